"""What operators ask for: stage, start, compare, switch, reset, retire. Commands and Dagster are shells around these
operations.

- An operation with a plan: `planning` makes the plan from what `looking` finds, as data of `plans`; `execute` applies
  it, stage by stage, with `applying`.
- An operation whose later steps depend on what the earlier ones find is in `procedures`. `supervising` runs all the
  time.
- `comparing` compares two results, for plans and for stages.
- A planner gets a `reading`, which can't write; code that acts gets a `context`. `journal` opens and closes operations;
  `lifecycle` knows the states of a release.
"""
