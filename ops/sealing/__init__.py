"""The seal of a log: who writes it, and who verifies it."""
