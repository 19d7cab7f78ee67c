"""What the last looks at a cluster saw, so that the next one costs what moved and not what is there.

A state that is the same was not asked for again; so everything is asked for anew every `ALL_EVERY` looks, and whatever
a state does not tell (a comment, a limit, a reason) is at most that old. Kept by one connection, and gone with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jobs.lifecycle import State

from .base import SeenJob, SeenNode

ALL_EVERY = 30
MOST_ONE_BY_ONE = 40
SKEW_S = 60  # between the clocks of a cluster and of ours


class Seen:
    def __init__(self) -> None:
        self.jobs: dict[str, SeenJob] = {}
        self.nodes: Sequence[SeenNode] = ()
        self.jobs_since = self.nodes_since = 0
        self._job_looks = self._node_looks = ALL_EVERY

    def jobs_in_a_row(self) -> bool:
        """Whether one more look may do with what moved."""
        self._job_looks += 1
        return self._job_looks < ALL_EVERY

    def nodes_in_a_row(self) -> bool:
        self._node_looks += 1
        return self._node_looks < ALL_EVERY

    def note_jobs(self, jobs: Sequence[SeenJob], began: float) -> None:
        self.jobs = {job.backend_id: job for job in jobs}
        self._job_looks, self.jobs_since = 0, int(began) - SKEW_S

    def note_nodes(self, nodes: Sequence[SeenNode], began: float) -> None:
        self.nodes = nodes
        self._node_looks, self.nodes_since = 0, int(began) - SKEW_S

    def moved(self, states: Mapping[str, tuple[State, frozenset[str]]]) -> list[str]:
        """Whose state is new, or not what it was."""
        known = {name: (job.state, job.flags) for name, job in self.jobs.items()}
        return [name for name, standing in states.items() if known.get(name) != standing]

    def renew(self, states: Mapping[str, object], fresh: Sequence[SeenJob]) -> list[SeenJob]:
        """Those that are still there, each as it was last seen."""
        found = self.jobs | {job.backend_id: job for job in fresh}
        self.jobs = {name: found[name] for name in states if name in found}
        return list(self.jobs.values())
