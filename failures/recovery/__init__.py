"""From a failure to what is done about it: the table, the decision, and what holds it back."""

from failures.recovery.decide import decide

__all__ = ["decide"]
