"""Replaying, verifying and backtesting a log."""
