"""Comparing two results: as of one cut, whole (`fold`), and what came since (`since`): of tables a `delta`, of streams an
`agreement`.
"""
