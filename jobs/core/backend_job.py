"""A job as its cluster reports it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from jobs.core.lifecycle import State


@dataclass(frozen=True, kw_only=True)
class BackendJob:
    """One job as the cluster reports it. `key` is empty for a job that Acme did not submit.

    `installation` names the installation that submitted it. It is empty for jobs of versions that did not send it.
    `reason` is the cluster's own text. It is shown to users, and no code compares it: what Acme decides on is in the
    other fields.
    """

    backend_id: str  # opaque text of at most MAX_BACKEND_ID_LENGTH characters
    key: str
    name: str
    user: str
    state: State
    flags: frozenset[str] = frozenset()
    reason: str = ""  # empty if it adds nothing to the state and the exit code
    held: bool = False  # pending because an operator of the cluster holds it, or until a condition or time set there
    nodes: tuple[str, ...] = ()
    # Node name -> GPU indices, while known; also of the GPU of which the job holds shards
    gpus: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    gpu_counts: Mapping[str, int] = field(default_factory=dict)  # node name -> GPUs held, where the indices are unknown
    # Node name -> number by profile of those among `gpu_counts` that are MIG slices
    mig_counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    pods: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # node name -> "namespace/name" of its pods there
    submitted_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    signal: int | None = None
    account: str = ""
    gpus_per_node: int = 0  # as requested, also while the job is pending
    cpus: int = 0  # of all its nodes together
    memory_per_node_mb: int = 0
    time_limit: timedelta | None = None
    stdout: str = ""
    installation: str = ""

    @property
    def foreign_id(self) -> str:
        """What identifies a job that this installation did not submit: a controller that lost its state reuses ids."""
        return f"{self.backend_id}@{int(self.submitted_at.timestamp()) if self.submitted_at else 0}"

    @property
    def has_run(self) -> bool:
        return self.started_at is not None and bool(self.nodes)
