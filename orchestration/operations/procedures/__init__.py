"""Procedures: operations whose later steps depend on what the earlier ones find. They wait, check and compare, and make
and carry out plans on the way.
"""
