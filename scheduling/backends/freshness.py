"""Detects listings that are older than an earlier one, from a cache or from a slurmrestd that lags behind.

Slurm reports when a listing was made (`last_update`) from v0.0.40 on. A listing older than the previous one would make
a job that was just accepted look missing, or an ended job look alive, so it is rejected. A clock that was set back
looks the same; so after `ACCEPT_OLDER_AFTER_S` with only older listings, the new time is accepted. Versions before
v0.0.40 and the short list of states do not show the age of a listing.
"""

from __future__ import annotations

from collections.abc import Callable

ACCEPT_OLDER_AFTER_S = 30.0


class StaleListing(ValueError):
    """The message says how old the listing is."""


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
            raise StaleListing(f"{age} s older than the previous one: a cache, or a clock that was set back")
        self._older_since.pop(listing, None)
        self._newest[listing] = made_at

    def _clock_was_set_back(self, listing: str) -> bool:
        since = self._older_since.setdefault(listing, self._monotonic())
        return self._monotonic() - since >= ACCEPT_OLDER_AFTER_S
