"""Management commands of scheduling, one per module."""
