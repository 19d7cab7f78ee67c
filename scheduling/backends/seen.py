"""The results of earlier polls of a cluster, so that a poll only fetches what changed.

A job whose state is unchanged is not fetched again. Therefore every `FULL_LISTING_EVERY`-th poll fetches everything,
and fields that change without the state (a comment, a limit, a reason) are at most that old. One connection
owns the cache.

A listing may be older than an earlier one: it comes from a cache, or from a slurmrestd that lags behind. Slurm reports
when a listing was made (`last_update`) from v0.0.40 on. An older one would make a job that was just accepted look
missing, or an ended job look alive, so it is rejected. A clock that was set back looks the same; so after
`ACCEPT_OLDER_AFTER_S` with only older listings, the new time is accepted. Versions before v0.0.40 and the short list of
states do not show the age of a listing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from jobs.core.backend_job import BackendJob

from .base import BackendNode, ClusterListing, UnreadableRow
from .dialect import StateAndFlags

FULL_LISTING_EVERY = 30
MAX_SINGLE_JOB_REQUESTS = 40
MAX_UNREADABLE_RETRIES = 10  # of rows that were never readable: the GPUs of these jobs are unknown
ACCEPT_OLDER_AFTER_S = 30.0
CLOCK_SKEW_S = 60  # between the cluster's clock and ours


class ListingCache:
    def __init__(self) -> None:
        self.jobs: dict[str, BackendJob] = {}
        self.unreadable_jobs: tuple[UnreadableRow, ...] = ()
        self.nodes: ClusterListing[BackendNode] = ClusterListing()
        self.jobs_since = self.nodes_since = 0
        self._states_of_unreadable: dict[str, StateAndFlags | str] = {}
        self._job_polls = self._node_polls = FULL_LISTING_EVERY

    @property
    def all_jobs(self) -> ClusterListing[BackendJob]:
        return ClusterListing(self.jobs.values(), self.unreadable_jobs)

    def may_list_changed_jobs(self) -> bool:
        """Count a poll of jobs. Whether it may fetch only what changed."""
        self._job_polls += 1
        return self._job_polls < FULL_LISTING_EVERY

    def may_list_changed_nodes(self) -> bool:
        self._node_polls += 1
        return self._node_polls < FULL_LISTING_EVERY

    def force_full_job_listing(self) -> None:
        """Make the next poll fetch everything."""
        self._job_polls = FULL_LISTING_EVERY

    def store_jobs(self, jobs: ClusterListing[BackendJob], began: float) -> None:
        self.unreadable_jobs, self._states_of_unreadable = self._attach_last_seen(jobs.unreadable), {}
        self.jobs = {job.backend_id: job for job in jobs}
        self._job_polls, self.jobs_since = 0, int(began) - CLOCK_SKEW_S

    def store_nodes(self, nodes: ClusterListing[BackendNode], began: float) -> None:
        self.nodes = nodes
        self._node_polls, self.nodes_since = 0, int(began) - CLOCK_SKEW_S

    def changed_jobs(self, states: Mapping[str, StateAndFlags | str]) -> list[str]:
        """Ids of jobs that are new or whose state changed.

        An unreadable row is fetched again when its state changes, and at each poll while nothing is known of the job.
        """
        known: dict[str, StateAndFlags | str] = {name: (job.state, job.flags) for name, job in self.jobs.items()}
        known |= self._states_of_unreadable
        return [name for name, state in states.items() if known.get(name) != state]

    def renew(
        self,
        states: Mapping[str, StateAndFlags | str],
        fresh: Sequence[BackendJob],
        unreadable: Mapping[str, UnreadableRow],
        nameless: Sequence[UnreadableRow],
    ) -> ClusterListing[BackendJob]:
        """Update the cache: listed jobs stay as last read, and rows that became unreadable are set aside."""
        jobs_by_id = self.jobs | {job.backend_id: job for job in fresh}
        set_aside = {row.name: row for row in self.unreadable_jobs if row.name in states and row.name not in jobs_by_id}
        set_aside |= unreadable
        never_read = [name for name in set_aside if name not in self.jobs and not set_aside[name].last_seen]
        ask_again = set(never_read[:MAX_UNREADABLE_RETRIES])
        self._states_of_unreadable = {name: states[name] for name in set_aside if name not in ask_again}
        self.unreadable_jobs = self._attach_last_seen((*set_aside.values(), *nameless))
        self.jobs = {name: jobs_by_id[name] for name in states if name in jobs_by_id and name not in set_aside}
        return self.all_jobs

    def _attach_last_seen(self, rows: Iterable[UnreadableRow]) -> tuple[UnreadableRow, ...]:
        known = {row.name: row.last_seen for row in self.unreadable_jobs} | self.jobs
        return tuple(replace(row, last_seen=known.get(row.name)) if row.name else row for row in rows)


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
