"""From a failure to what is done about it: the table, the decision, and what holds it back."""

from failures.recovery.deciding import decide

__all__ = ["decide"]
