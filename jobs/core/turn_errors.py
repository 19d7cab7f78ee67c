"""Two base classes of errors that decide whether a loop skips one row or ends its turn (`jobs.actions.one_row`)."""

from __future__ import annotations


class EndsTurn(Exception):
    """The remaining rows of the turn would fail too: the lease is lost, or the cluster does not respond."""


class SkipsRow(Exception):
    """An ordinary reason not to process one row now: it waits for something, it was changed meanwhile, or the action
    does not fit its state. The message says why. The next turn retries the row."""
