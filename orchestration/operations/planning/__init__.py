"""Planning: what an operation would do. One module per operation, each with a `plan_...` function that writes nothing.

A planner gets a `Reading`, which can't write. Several operations share the modules `meeting`, `moving`, `readiness` and
`topics`.
"""
