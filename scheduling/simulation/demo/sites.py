"""The two clusters of the demo, as in the Acme study: Seren runs Slurm, Kalos runs Kubernetes. Pure.

Both have a ninth of the nodes that the study counts. Kalos is for pretraining and evaluation, so most of it is reserved
for pretraining.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jobs.core.lifecycle import JobKind
from scheduling.simulation.drill.history import HistorySettings
from scheduling.simulation.machines.workload import KALOS_PROFILES, SEREN_PROFILES, WorkloadProfile


@dataclass(frozen=True, kw_only=True)
class DemoTeam:
    title: str
    people: tuple[str, ...]
    kinds: tuple[JobKind, ...]


@dataclass(frozen=True, kw_only=True)
class DemoSite:
    """What distinguishes the clusters."""

    title: str
    profiles: Mapping[JobKind, WorkloadProfile]
    quota_shares: Mapping[str, float]  # of the cluster's GPUs, by team
    most_gpus_share: float  # of the cluster's GPUs, for one job
    seed: int  # so that the clusters do not have the same jobs


DEMO_TEAMS = {
    "pretraining": DemoTeam(title="Pretraining", people=("ada", "grace"), kinds=(JobKind.PRETRAIN, JobKind.DEBUG)),
    "alignment": DemoTeam(title="Alignment", people=("edsger", "barbara"), kinds=(JobKind.SFT,)),
    "multimodal": DemoTeam(title="Multimodal", people=("fei", "yann"), kinds=(JobKind.MLLM,)),
    "evaluation": DemoTeam(title="Evaluation", people=("donald", "radia"), kinds=(JobKind.EVALUATION,)),
    "platform": DemoTeam(title="Platform", people=("linus", "margaret"), kinds=(JobKind.OTHER,)),
}
TEAM_OF_KIND = {kind: name for name, team in DEMO_TEAMS.items() for kind in team.kinds}
DEMO_SITES = {
    "seren": DemoSite(
        title="Slurm, simulated",
        profiles=SEREN_PROFILES,
        quota_shares={"pretraining": 0.65, "alignment": 0.15, "multimodal": 0.15, "evaluation": 0.20},
        most_gpus_share=0.5,
        seed=1,
    ),
    "kalos": DemoSite(
        title="Kubernetes, simulated",
        profiles=KALOS_PROFILES,
        quota_shares={"pretraining": 0.85, "evaluation": 0.15},
        most_gpus_share=1024 / (302 * 8),  # the largest job of the study
        seed=2,
    ),
}


def quota_gpus(site: DemoSite, gpus: int) -> dict[str, int]:
    """The quotas of the teams on a cluster with so many GPUs, in whole nodes."""
    return {team: max(8, int(gpus * share) // 8 * 8) for team, share in site.quota_shares.items()}


def history_settings(name: str, *, seed: int | None = None, **size: Any) -> HistorySettings:
    """How the history of this cluster is simulated; `size` has its days, nodes and GPUs per node."""
    site = DEMO_SITES[name]
    return HistorySettings(
        site=name, seed=site.seed if seed is None else seed, most_gpus_share=site.most_gpus_share, teams=TEAM_OF_KIND,
        quotas=quota_gpus(site, size["nodes"] * size["gpus_per_node"]), **size,
    )  # fmt: skip
