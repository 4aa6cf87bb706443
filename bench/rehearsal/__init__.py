"""Recorded conversations, driven through the real gate, queue and ledger: for tests, and to measure
the whole of it. The model and the tools answer as recorded.
"""
