"""Plans as data: shown, kept in the journal and applied. `planning` makes plans, `applying` carries them out."""
