"""Answers that are older than one seen before: from a cache in between, or from a slurmrestd that lags behind.

Slurm says when a listing was made (`last_update`) from v0.0.40 on. An older listing than the one before would make a
job that was just accepted look missing, or an ended one alive, so it is refused. A clock that was set back looks the
same; so after `SET_BACK_AFTER_S` of nothing but older answers the new time counts. Before v0.0.40, and in the short
list of states, nothing says how old an answer is.
"""

from __future__ import annotations

from collections.abc import Callable

ACCEPT_OLDER_AFTER_S = 30.0


class StaleListing(ValueError):
    """Its text says how old the answer is."""


class FreshnessChecker:
    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._newest: dict[str, int] = {}
        self._older_since: dict[str, float] = {}

    def check_listing_time(self, listing: str, made_at: int | None) -> None:
        if made_at is None:
            return
        if made_at < self._newest.get(listing, made_at) and not self._clock_was_set_back(listing):
            age = self._newest[listing] - made_at
            raise StaleListing(f"{age} s before its last answer: a cache, or a clock that was set back")
        self._older_since.pop(listing, None)
        self._newest[listing] = made_at

    def _clock_was_set_back(self, listing: str) -> bool:
        since = self._older_since.setdefault(listing, self._monotonic())
        return self._monotonic() - since >= ACCEPT_OLDER_AFTER_S
