"""A reset and its undo: what is asked for (`request`), where it leads (`positions`), what speaks against it (`refusals`),
all of it decided (`decision`), its stages (`stages`), what the plan shows (`show`); `plan` and `undo` put it together.
"""
