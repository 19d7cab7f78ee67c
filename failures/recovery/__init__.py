"""Recovery decisions: the table of remedies, the decision, its limits, and checkpoints. Pure functions, no database."""

from failures.recovery.decide import decide

__all__ = ["decide"]
