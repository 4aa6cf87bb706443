"""What it means: folds over the facts, and histories that a model can go on from."""
