"""The quality gate: one suite of expectations per result, run by Great Expectations over a fixed range of it.

`expectations.verdict` has the types, `expectations.names` the suites' names and `expectations.suites` the suites; none
of them loads anything heavy.
`expectations.gate.run_gate` needs a Spark session.
"""
