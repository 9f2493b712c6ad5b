"""Compares two results: all of both as of one cut (`fold`), and what both wrote since (`since`): a `delta` for tables,
an `agreement` for streams.
"""
