"""A reset and its undo: what is asked for (`request`), the new positions (`positions`), the reasons to refuse
(`refusals`), the decision from all of these (`decision`), the stages (`stages`), and what the plan shows (`show`).
`plan` and `undo` put it together.
"""
