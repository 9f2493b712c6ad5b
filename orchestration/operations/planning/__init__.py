"""Planning: what an operation would do. One module per operation; each has a `plan_...` function, which writes nothing.

A planner gets a `Reading`, which can't write. Modules that several operations share: `meeting`, `switching`, `readiness`,
`probe`, `topics`.
"""
