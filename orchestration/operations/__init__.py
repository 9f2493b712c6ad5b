"""What operators ask for: stage, start, compare, switch, reset, retire. Commands and Dagster are shells around it.

- An operation with a plan: `planning` makes it from what `looking` finds, as data of `plans`; `execute` applies it, stage by
  stage, with `applying`.
- One that has to act before it knows how to go on is in `procedures`. `supervising` is what runs all the time.
- `comparing` compares two results, for plans and for stages.
- A planner gets a `reading`, which can't write; what acts gets a `context`. `journal` opens and closes operations,
  `lifecycle` has the states of a release.
"""
