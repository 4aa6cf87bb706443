"""The workers: one loop, and the reactions that it runs."""
