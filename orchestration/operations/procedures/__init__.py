"""Procedures: operations that act before they know how to go on. They wait, check and compare, make plans on the way and
carry them out.
"""
