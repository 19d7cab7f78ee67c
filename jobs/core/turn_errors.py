"""Two base classes of errors that decide whether a loop skips one row or ends its turn (`jobs.actions.one_row`)."""

from __future__ import annotations


class EndsTurn(Exception):
    """The remaining rows of the turn would fail too: the lease is lost, or the cluster does not respond."""


class SkipsRow(Exception):
    """The error concerns one row only. The next turn retries the row."""
