"""Base classes of errors that decide whether a loop skips one row, ends its turn, or ends its process."""

from __future__ import annotations


class EndsTurn(Exception):
    """The remaining rows of the turn would fail too: the lease is lost, or the cluster does not respond."""


class SkipsRow(Exception):
    """An ordinary reason not to process one row now: it waits for something, it was changed meanwhile, or the action
    does not fit its state. The message says why. The next turn retries the row."""


class TimeLimitExceeded(BaseException):
    """The run of a loop took too long. The process ends afterwards, so that whatever the run left behind ends with it.

    It is no Exception, so that no handler of a row's errors takes it for one.
    """
