"""Two base classes that decide how far an error reaches in a turn of a loop (`jobs.actions.one_row`)."""

from __future__ import annotations


class EndsTurn(Exception):
    """The rest of the turn would fail as well: the lease is lost, or the cluster does not answer."""


class SkipsRow(Exception):
    """Concerns one row only. The next turn retries it."""
