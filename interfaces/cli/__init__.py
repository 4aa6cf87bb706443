"""What the commands do, by who they are for: run, decide, look, check."""
