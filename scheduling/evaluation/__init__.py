"""Evaluation campaigns: they measure checkpoints with datasets, and rules start them for new checkpoints."""
