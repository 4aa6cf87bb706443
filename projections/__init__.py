"""Projections: folds over the facts, and histories that a model can continue from."""
