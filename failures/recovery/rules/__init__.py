"""The rules of recovery: remedies, the decision and its limits, checkpoints, memory requests, pair tests. Pure."""
