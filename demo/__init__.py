"""The demo: what it runs, and the independent ledger that judges it."""
