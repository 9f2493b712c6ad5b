"""A folder with an app of its own, as an author has one."""
