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

from jobs import actions, recovery_actions, spec
from jobs.journal import Author
from jobs.lifecycle import Kind
from jobs.models import Allocation, Cluster, Job, Membership, Node, Quota, Role, Team
from jobs.stack_actions import STACKS_LABEL
from jobs.wishes import want_turn
from scheduling import evaluation_actions
from scheduling.evaluation import asked
from scheduling.models import Campaign, Suite
from scheduling.simulator import workload
from scheduling.simulator.workload import Place, Wish

CLUSTER = "seren"
MOST_WAITING = 150  # the people of the demo get tired of submitting
WIDEST_SHARE = 0.5  # of the cluster, for one job
QUIET_SHARE = 0.2


@dataclass(frozen=True, kw_only=True)
class DemoTeam:
    title: str
    people: tuple[str, ...]
    kinds: tuple[Kind, ...]
    quota_share: float | None  # of the cluster's GPUs


TEAMS = {
    "pretraining": DemoTeam(
        title="Pretraining", people=("ada", "grace"), kinds=(Kind.PRETRAIN, Kind.DEBUG), quota_share=0.65
    ),
    "alignment": DemoTeam(title="Alignment", people=("edsger", "barbara"), kinds=(Kind.SFT,), quota_share=0.15),
    "multimodal": DemoTeam(title="Multimodal", people=("fei", "yann"), kinds=(Kind.MLLM,), quota_share=0.15),
    "evaluation": DemoTeam(title="Evaluation", people=("donald", "radia"), kinds=(Kind.EVALUATION,), quota_share=0.20),
    "platform": DemoTeam(title="Platform", people=("linus", "margaret"), kinds=(Kind.OTHER,), quota_share=None),
}


@transaction.atomic
def found() -> None:
    """Teams and people; nobody gets a password, so nobody can log in as them until an administrator gives one."""
    for name, team in TEAMS.items():
        row, _ = Team.objects.get_or_create(name=name, defaults={"title": team.title})
        for person, role in zip(team.people, (Role.ADMIN, Role.RESEARCHER), strict=True):
            user, new = get_user_model().objects.get_or_create(username=person)
            if new:
                user.set_unusable_password()
                user.save()
            Membership.objects.get_or_create(team=row, user=user, defaults={"role": role})


def let_recovery_act(cluster: Cluster) -> None:
    """So that it is seen at work; whoever installs Acme is asked before each deed until they say otherwise."""
    recovery_actions.set_mode("act", author=Author(by="demo"), cluster_id=cluster.pk)


def set_quotas(cluster: Cluster, gpus: int) -> None:
    """Once the cluster has told how many GPUs there are to share out."""
    for name, team in TEAMS.items():
        if team.quota_share:
            Quota.objects.get_or_create(
                team=Team.objects.get(name=name),
                cluster=cluster,
                kind="",
                defaults={"gpus": max(8, int(gpus * team.quota_share) // 8 * 8)},
            )


def place_of(cluster: Cluster, *, speed: float, longest_s: float) -> Place | None:
    """None while the cluster has not told what it has."""
    counts = list(Node.objects.filter(cluster=cluster, gpus__gt=0).values_list("gpus", flat=True))
    if not counts:
        return None
    node, gpus = max(counts), sum(counts)
    widest = max(node, int(gpus * WIDEST_SHARE) // node * node)
    return Place(gpus=gpus, gpus_per_node=node, most_gpus=widest, speed=speed, longest_s=longest_s)


def is_quiet(cluster: Cluster, place: Place) -> bool:
    """Nobody has come in yet: the doors were just opened, or were closed for long."""
    held = Allocation.objects.filter(node__cluster=cluster, released_at=None, gpu__isnull=False).count()
    return held < place.gpus * QUIET_SHARE


def first_morning(dice: Random, place: Place) -> Iterator[Wish]:
    """What is there when the doors open: long pretraining jobs and the queue of a normal hour."""
    for share in (4, 6):
        wide = replace(place, most_gpus=max(place.gpus_per_node, place.gpus // share))
        yield workload.lasting(workload.wish_of(Kind.PRETRAIN, dice, wide), dice.uniform(900, 3600))
    for _ in range(60):
        yield workload.wish(dice, place)


DATASETS = (
    *("humaneval", "gsm8k", "mbpp", "piqa", "boolq", "winogrande", "arc_challenge", "openbookqa", "commonsenseqa"),
    *("truthfulqa", "race_middle", "ceval"),
)
SAMPLES = 150  # of each: a whole one takes longer than who looks at a demo stays
CHECKPOINT_EVERY_S = 900.0


def suite() -> Suite:
    """What the evaluation team measures; the same again is the same version."""
    spec = asked.suite(
        {
            "name": "core",
            "title": "A little of everything",
            "framework": "lm-eval",
            "output_root": "/shared/evaluations",
            "stage_root": "/dev/shm",  # noqa: S108 - memory of the node, for the length of a campaign
            "datasets": [{"name": name, "samples": SAMPLES} for name in DATASETS],
        }
    )
    return evaluation_actions.define(spec, team=Team.objects.get(name="evaluation"), author=_donald())


def evaluate(cluster: Cluster, step: int, now: datetime) -> Campaign:
    """A pretraining run has saved a checkpoint, and somebody wants to know what it can do."""
    names = [f"/checkpoints/pretrain-7b/step-{step + more}" for more in (0, 1000)]
    spec = asked.campaign({"checkpoints": names, "nodes": 2})
    of = suite()
    return evaluation_actions.ask(spec, suite=of, cluster=cluster, team=of.team, author=_donald(), now=now)


def _donald() -> Author:
    person = get_user_model().objects.get(username="donald")
    return Author(by=person.get_username(), user_id=person.pk)


def submit(cluster: Cluster, wish: Wish, dice: Random, now: datetime) -> Job:
    name, team = next((name, team) for name, team in TEAMS.items() if wish.kind in team.kinds)
    person = get_user_model().objects.get(username=dice.choice(team.people))
    asked = _asked(wish, dice)
    jobs = actions.submit(
        [spec.parse(asked, Node.objects.shape(cluster))],
        cluster=cluster,
        team=Team.objects.get(name=name),
        author=Author(by=person.get_username(), user_id=person.pk),
        now=now,
    )
    want_turn(cluster.pk)
    return jobs[0]


def _asked(wish: Wish, dice: Random) -> dict[str, object]:
    asked: dict[str, object] = {
        "name": wish.name,
        "kind": wish.kind.value,
        "command": wish.command,
        "workdir": f"/home/{wish.name}",
        "environment": {"SIM_DURATION_S": str(wish.duration_s), "SIM_END": wish.end, "OMP_NUM_THREADS": "8"},
        "nodes": wish.nodes,
        "gpus_per_node": wish.gpus_per_node,
        "time_limit": int(wish.time_limit.total_seconds()),
        "priority": 100 if wish.kind == Kind.PRETRAIN else 0,
        "preemptible": wish.kind == Kind.EVALUATION and dice.random() < 0.3,
    }
    if wish.kind == Kind.PRETRAIN:
        asked |= {"checkpoint_dir": f"/checkpoints/{wish.name}", "checkpoint_interval": "30:00"}
        asked |= {"labels": {STACKS_LABEL: "USR2"}}  # their program has a handler for it
    return asked
