"""Scripts that nothing is tuned on: they run with `--unseen` only, to check the others."""
