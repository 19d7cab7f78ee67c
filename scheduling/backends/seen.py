"""What the last looks at a cluster saw, so that the next one costs what moved and not what is there.

A state that is the same was not asked for again; so everything is asked for anew every `ALL_EVERY` looks, and whatever
a state does not tell (a comment, a limit, a reason) is at most that old. Kept by one connection, and gone with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from .base import BackendJob, BackendNode, ClusterListing, UnreadableRow
from .dialect import StateAndFlags

FULL_LISTING_EVERY = 30
MAX_SINGLE_JOB_REQUESTS = 40
MAX_UNREADABLE_RETRIES = 10  # rows that have never been read: which GPUs these jobs hold is not known at all
CLOCK_SKEW_S = 60  # between the clocks of a cluster and of ours


class ListingCache:
    def __init__(self) -> None:
        self.jobs: dict[str, BackendJob] = {}
        self.unreadable_jobs: tuple[UnreadableRow, ...] = ()
        self.nodes: ClusterListing[BackendNode] = ClusterListing()
        self.jobs_since = self.nodes_since = 0
        self._standing_of_unreadable: dict[str, StateAndFlags | str] = {}
        self._job_looks = self._node_looks = FULL_LISTING_EVERY

    @property
    def all_jobs(self) -> ClusterListing[BackendJob]:
        return ClusterListing(self.jobs.values(), self.unreadable_jobs)

    def may_list_changed_jobs(self) -> bool:
        """Whether one more look may do with what moved."""
        self._job_looks += 1
        return self._job_looks < FULL_LISTING_EVERY

    def may_list_changed_nodes(self) -> bool:
        self._node_looks += 1
        return self._node_looks < FULL_LISTING_EVERY

    def force_full_job_listing(self) -> None:
        """The next look asks for everything."""
        self._job_looks = FULL_LISTING_EVERY

    def store_jobs(self, jobs: ClusterListing[BackendJob], began: float) -> None:
        self.unreadable_jobs, self._standing_of_unreadable = self._attach_last_seen(jobs.unreadable), {}
        self.jobs = {job.backend_id: job for job in jobs}
        self._job_looks, self.jobs_since = 0, int(began) - CLOCK_SKEW_S

    def store_nodes(self, nodes: ClusterListing[BackendNode], began: float) -> None:
        self.nodes = nodes
        self._node_looks, self.nodes_since = 0, int(began) - CLOCK_SKEW_S

    def moved(self, states: Mapping[str, StateAndFlags | str]) -> list[str]:
        """Whose state is new, or not what it was. A row that could not be read is asked for again once it moves,
        and at each look while nothing is known of the job."""
        known: dict[str, StateAndFlags | str] = {name: (job.state, job.flags) for name, job in self.jobs.items()}
        known |= self._standing_of_unreadable
        return [name for name, standing in states.items() if known.get(name) != standing]

    def renew(
        self,
        states: Mapping[str, StateAndFlags | str],
        fresh: Sequence[BackendJob],
        unreadable: Mapping[str, UnreadableRow],
        nameless: Sequence[UnreadableRow],
    ) -> ClusterListing[BackendJob]:
        """Those that are still there, each as it was last seen; a row that cannot be read any more is set aside."""
        found = self.jobs | {job.backend_id: job for job in fresh}
        aside = {row.name: row for row in self.unreadable_jobs if row.name in states and row.name not in found}
        aside |= unreadable
        never_read = [name for name in aside if name not in self.jobs and not aside[name].last_seen]
        ask_again = set(never_read[:MAX_UNREADABLE_RETRIES])
        self._standing_of_unreadable = {name: states[name] for name in aside if name not in ask_again}
        self.unreadable_jobs = self._attach_last_seen((*aside.values(), *nameless))
        self.jobs = {name: found[name] for name in states if name in found and name not in aside}
        return self.all_jobs

    def _attach_last_seen(self, rows: Iterable[UnreadableRow]) -> tuple[UnreadableRow, ...]:
        known = {row.name: row.last_seen for row in self.unreadable_jobs} | self.jobs
        return tuple(replace(row, last_seen=known.get(row.name)) if row.name else row for row in rows)
