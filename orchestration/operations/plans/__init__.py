"""What a plan is: data that is shown, kept in the journal and applied. `planning` makes plans, `applying` carries them out."""
