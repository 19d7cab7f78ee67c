"""The demo datacenter: its teams and people, and what they submit. They use the product as anybody does.

Nothing here knows that the cluster is simulated: the jobs carry what the simulated cluster is to play in their
environment (`SIM_DURATION_S`, `SIM_END`), as an argument to a program would.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from random import Random

from django.contrib.auth import get_user_model
from django.db import transaction

from jobs.actions import jobs as job_actions
from jobs.actions import recovery as recovery_actions
from jobs.actions.journal import Author
from jobs.actions.stack_requests import STACKS_LABEL
from jobs.actions.wake import request_turn
from jobs.core import spec
from jobs.core.lifecycle import JobKind
from jobs.models import Allocation, Cluster, Job, Membership, Node, Quota, Team, TeamRole
from scheduling.actions import campaigns as campaign_actions
from scheduling.evaluation import campaign_requests as asked
from scheduling.models import Campaign, Suite
from scheduling.slurmsim import workload
from scheduling.slurmsim.workload import SampledJob, WorkloadSettings

DEMO_CLUSTER = "seren"
MAX_WAITING_JOBS = 150  # the people of the demo get tired of submitting
MAX_JOB_SHARE = 0.5  # of the cluster, for one job
IDLE_CLUSTER_SHARE = 0.2


@dataclass(frozen=True, kw_only=True)
class DemoTeam:
    title: str
    people: tuple[str, ...]
    kinds: tuple[JobKind, ...]
    quota_share: float | None  # of the cluster's GPUs


DEMO_TEAMS = {
    "pretraining": DemoTeam(
        title="Pretraining", people=("ada", "grace"), kinds=(JobKind.PRETRAIN, JobKind.DEBUG), quota_share=0.65
    ),
    "alignment": DemoTeam(title="Alignment", people=("edsger", "barbara"), kinds=(JobKind.SFT,), quota_share=0.15),
    "multimodal": DemoTeam(title="Multimodal", people=("fei", "yann"), kinds=(JobKind.MLLM,), quota_share=0.15),
    "evaluation": DemoTeam(
        title="Evaluation", people=("donald", "radia"), kinds=(JobKind.EVALUATION,), quota_share=0.20
    ),
    "platform": DemoTeam(title="Platform", people=("linus", "margaret"), kinds=(JobKind.OTHER,), quota_share=None),
}


@transaction.atomic
def create_teams_and_users() -> None:
    """Teams and people; nobody gets a password, so nobody can log in as them until an administrator gives one."""
    for name, team in DEMO_TEAMS.items():
        row, _ = Team.objects.get_or_create(name=name, defaults={"title": team.title})
        for person, role in zip(team.people, (TeamRole.ADMIN, TeamRole.RESEARCHER), strict=True):
            user, new = get_user_model().objects.get_or_create(username=person)
            if new:
                user.set_unusable_password()
                user.save()
            Membership.objects.get_or_create(team=row, user=user, defaults={"role": role})


def enable_automatic_recovery(cluster: Cluster) -> None:
    """So that it is seen at work; whoever installs Acme is asked before each deed until they say otherwise."""
    recovery_actions.set_recovery_mode("act", author=Author(by="demo"), cluster_id=cluster.pk)


def set_quotas(cluster: Cluster, gpus: int) -> None:
    """Once the cluster has told how many GPUs there are to share out."""
    for name, team in DEMO_TEAMS.items():
        if team.quota_share:
            Quota.objects.get_or_create(
                team=Team.objects.get(name=name),
                cluster=cluster,
                kind="",
                defaults={"gpus": max(8, int(gpus * team.quota_share) // 8 * 8)},
            )


def workload_target(cluster: Cluster, *, speed: float, longest_s: float) -> WorkloadSettings | None:
    """None while the cluster has not told what it has."""
    counts = list(Node.objects.filter(cluster=cluster, gpus__gt=0).values_list("gpus", flat=True))
    if not counts:
        return None
    node, gpus = max(counts), sum(counts)
    widest = max(node, int(gpus * MAX_JOB_SHARE) // node * node)
    return WorkloadSettings(gpus=gpus, gpus_per_node=node, most_gpus=widest, speed=speed, longest_s=longest_s)


def is_mostly_idle(cluster: Cluster, place: WorkloadSettings) -> bool:
    """Nobody has come in yet: the doors were just opened, or were closed for long."""
    held = Allocation.objects.filter(node__cluster=cluster, released_at=None, gpu__isnull=False).count()
    return held < place.gpus * IDLE_CLUSTER_SHARE


def initial_jobs(dice: Random, place: WorkloadSettings) -> Iterator[SampledJob]:
    """What is there when the doors open: long pretraining jobs and the queue of a normal hour."""
    for share in (4, 6):
        wide = replace(place, most_gpus=max(place.gpus_per_node, place.gpus // share))
        yield workload.with_duration(workload.sample_job_of_kind(JobKind.PRETRAIN, dice, wide), dice.uniform(900, 3600))
    for _ in range(60):
        yield workload.sample_job(dice, place)


DEMO_DATASETS = (
    *("humaneval", "gsm8k", "mbpp", "piqa", "boolq", "winogrande", "arc_challenge", "openbookqa", "commonsenseqa"),
    *("truthfulqa", "race_middle", "ceval"),
)
SAMPLES_PER_DATASET = 150  # of each: a whole one takes longer than who looks at a demo stays
CHECKPOINT_EVERY_S = 900.0


def demo_suite() -> Suite:
    """What the evaluation team measures; the same again is the same version."""
    spec = asked.parse_suite(
        {
            "name": "core",
            "title": "A little of everything",
            "framework": "lm-eval",
            "output_root": "/shared/evaluations",
            "stage_root": "/dev/shm",  # noqa: S108 - memory of the node, for the length of a campaign
            "datasets": [{"name": name, "samples": SAMPLES_PER_DATASET} for name in DEMO_DATASETS],
        }
    )
    return campaign_actions.define_suite(spec, team=Team.objects.get(name="evaluation"), author=_evaluation_author())


def evaluate(cluster: Cluster, step: int, now: datetime) -> Campaign:
    """A pretraining run has saved a checkpoint, and somebody wants to know what it can do."""
    names = [f"/checkpoints/pretrain-7b/step-{step + more}" for more in (0, 1000)]
    spec = asked.parse_campaign({"checkpoints": names, "nodes": 2})
    of = demo_suite()
    return campaign_actions.create_campaign(
        spec, suite=of, cluster=cluster, team=of.team, author=_evaluation_author(), now=now
    )


def _evaluation_author() -> Author:
    person = get_user_model().objects.get(username="donald")
    return Author(by=person.get_username(), user_id=person.pk)


def submit(cluster: Cluster, wish: SampledJob, dice: Random, now: datetime) -> Job:
    name, team = next((name, team) for name, team in DEMO_TEAMS.items() if wish.kind in team.kinds)
    person = get_user_model().objects.get(username=dice.choice(team.people))
    asked = _job_request(wish, dice)
    jobs = job_actions.submit(
        [spec.parse(asked, Node.objects.shape(cluster))],
        cluster=cluster,
        team=Team.objects.get(name=name),
        author=Author(by=person.get_username(), user_id=person.pk),
        now=now,
    )
    request_turn(cluster.pk)
    return jobs[0]


def _job_request(wish: SampledJob, dice: Random) -> dict[str, object]:
    asked: dict[str, object] = {
        "name": wish.name,
        "kind": wish.kind.value,
        "command": wish.command,
        "workdir": f"/home/{wish.name}",
        "environment": {"SIM_DURATION_S": str(wish.duration_s), "SIM_END": wish.end, "OMP_NUM_THREADS": "8"},
        "nodes": wish.nodes,
        "gpus_per_node": wish.gpus_per_node,
        "time_limit": int(wish.time_limit.total_seconds()),
        "priority": 100 if wish.kind == JobKind.PRETRAIN else 0,
        "preemptible": wish.kind == JobKind.EVALUATION and dice.random() < 0.3,
    }
    if wish.kind == JobKind.PRETRAIN:
        asked |= {"checkpoint_dir": f"/checkpoints/{wish.name}", "checkpoint_interval": "30:00"}
        asked |= {"labels": {STACKS_LABEL: "USR2"}}  # their program has a handler for it
    return asked
