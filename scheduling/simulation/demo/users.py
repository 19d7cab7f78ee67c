"""The demo datacenter: its teams, its users, and the jobs they submit through the ordinary actions.

The requests of the jobs are those of real users. How a job will go is told to the simulated cluster separately.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random

from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import transaction

from jobs.actions import jobs as job_actions
from jobs.actions import recovery as recovery_actions
from jobs.actions.journal import Author
from jobs.actions.stack_requests import STACKS_LABEL
from jobs.actions.wake import request_turn
from jobs.core import spec
from jobs.core.cluster_kinds import KUBERNETES
from jobs.core.lifecycle import JobKind
from jobs.models import Allocation, Cluster, Job, Membership, Node, Quota, Team, TeamRole
from scheduling.evaluation.actions import campaigns as campaign_actions
from scheduling.evaluation.rules import campaign_requests
from scheduling.models import Campaign, Suite
from scheduling.simulation import client
from scheduling.simulation.demo import kalos
from scheduling.simulation.demo.sites import DEMO_SITES, DEMO_TEAMS, TEAM_OF_KIND, quota_gpus
from scheduling.simulation.drill.checkpoint_campaigns import BENCHMARKS, samples_by_benchmark
from scheduling.simulation.machines import workload
from scheduling.simulation.machines.workload import SampledJob, WorkloadSettings

MAX_WAITING_JOBS = 150  # no more jobs are submitted while this many wait
IDLE_CLUSTER_SHARE = 0.2
LONG_RUN_SHARES = (1 / 4, 1 / 6)  # of the nodes, for each pretraining run of days
MIN_LONG_RUN_LIMIT = timedelta(days=1)


@transaction.atomic
def create_teams_and_users() -> None:
    """Create teams and users. The users have no passwords, so logging in as them is not possible."""
    for name, team in DEMO_TEAMS.items():
        row, _ = Team.objects.get_or_create(name=name, defaults={"title": team.title})
        for person, role in zip(team.people, (TeamRole.ADMIN, TeamRole.RESEARCHER), strict=True):
            user, new = get_user_model().objects.get_or_create(username=person)
            if new:
                user.set_unusable_password()
                user.save()
            Membership.objects.get_or_create(team=row, user=user, defaults={"role": role})


def enable_automatic_recovery(cluster: Cluster) -> None:
    """Let recovery act on the demo cluster, to show it at work. Other installations require approval by default."""
    recovery_actions.set_recovery_mode("act", author=Author(by="demo"), cluster_id=cluster.pk)


def clusters() -> list[Cluster]:
    return list(Cluster.objects.filter(name__in=settings.DEMO_CLUSTERS, is_bundled=True).order_by("-name"))


def clusters_with_nodes() -> list[Cluster]:
    """The clusters that have reported their nodes."""
    return [cluster for cluster in clusters() if cluster.nodes.filter(gpus__gt=0).exists()]


def set_quotas(cluster: Cluster, gpus: int) -> None:
    """Create the quotas of the teams. Call it once the number of GPUs is known."""
    for name, quota in quota_gpus(DEMO_SITES[cluster.name], gpus).items():
        team = Team.objects.get(name=name)
        Quota.objects.get_or_create(team=team, cluster=cluster, kind="", gpu_model="", defaults={"gpus": quota})


@dataclass(frozen=True, kw_only=True)
class DemoLoad:
    """What the users submit to a cluster: pretraining runs of days, and short jobs on the other GPUs."""

    gpus: int
    long_run_nodes: tuple[int, ...]
    short_jobs: WorkloadSettings


def load_of(cluster: Cluster, *, speed: float, longest_s: float) -> DemoLoad | None:
    """Return the load of the cluster, or None until it has reported its nodes."""
    counts = list(Node.objects.filter(cluster=cluster, gpus__gt=0).values_list("gpus", flat=True))
    if not counts:
        return None
    site, node, gpus = DEMO_SITES[cluster.name], max(counts), sum(counts)
    long_run_nodes = tuple(nodes for share in LONG_RUN_SHARES if (nodes := int(len(counts) * share)))
    free = max(node, gpus - node * sum(long_run_nodes))
    short_jobs = WorkloadSettings(
        gpus=free,
        gpus_per_node=node,
        most_gpus=max(node, int(min(gpus * site.most_gpus_share, free / 2)) // node * node),
        speed=speed,
        longest_s=longest_s,
        profiles=workload.without_pretraining(site.profiles),
    )
    return DemoLoad(gpus=gpus, long_run_nodes=long_run_nodes, short_jobs=short_jobs)


def is_mostly_idle(cluster: Cluster, gpus: int) -> bool:
    """Whether the cluster was just started or was down for long."""
    held = Allocation.objects.filter(node__cluster=cluster, released_at=None, gpu__isnull=False).count()
    return held < gpus * IDLE_CLUSTER_SHARE


def missing_long_runs(cluster: Cluster, load: DemoLoad, dice: Random) -> Iterator[SampledJob]:
    """Yield new pretraining runs in place of those that have ended."""
    runs = Job.objects.unfinished().filter(cluster=cluster, kind=JobKind.PRETRAIN, time_limit__gte=MIN_LONG_RUN_LIMIT)
    found = list(runs.values_list("nodes", "name"))
    work, names = DEMO_SITES[cluster.name].profiles[JobKind.PRETRAIN], {name for _, name in found}
    for nodes in (Counter(load.long_run_nodes) - Counter(nodes for nodes, _ in found)).elements():
        run = workload.sample_long_run(work, nodes, load.short_jobs.gpus_per_node, dice, names)
        names.add(run.name)
        yield run


def queue_of_an_hour(load: DemoLoad, dice: Random) -> Iterator[SampledJob]:
    """Yield the short jobs of a normal hour, for a cluster without jobs."""
    return (workload.sample_job(dice, load.short_jobs) for _ in range(60))


SAMPLES_PER_DATASET = 150  # whole datasets would take too long for a demo
CHECKPOINT_EVERY_S = 900.0
FIRST_EVALUATED_STEP, EVALUATED_EVERY_STEPS = 20_000, 5_000


def demo_suite() -> Suite:
    """Define the suite of the evaluation team. Repeated calls return the same version."""
    return _define_suite("core", "Core benchmarks, 150 samples each", dict.fromkeys(BENCHMARKS, SAMPLES_PER_DATASET), 1)


def benchmark_suites(began: datetime) -> dict[int, Suite]:
    """Define the suites of the history, by the GPUs of a trial: a model that does not fit on one GPU gets a node."""
    samples = samples_by_benchmark()
    suites = {
        1: _define_suite("benchmarks", "All samples of the core benchmarks", samples, 1),
        8: _define_suite("benchmarks-8gpu", "The same for models that need a whole node", samples, 8),
    }
    Suite.objects.filter(pk__in=[suite.pk for suite in suites.values()]).update(created_at=began)
    return suites


def _define_suite(name: str, title: str, samples: Mapping[str, int], gpus: int) -> Suite:
    spec = campaign_requests.parse_suite(
        {
            "name": name,
            "title": title,
            "framework": "lm-eval",
            "output_root": "/shared/evaluations",
            "stage_root": "/dev/shm",  # noqa: S108 - the node's memory, used during a campaign
            "gpus": gpus,
            "datasets": [{"name": name, "samples": count} for name, count in samples.items()],
        }
    )
    return campaign_actions.define_suite(spec, team=Team.objects.get(name="evaluation"), author=_evaluation_author())


def evaluate(cluster: Cluster, now: datetime) -> Campaign:
    """Start a campaign for the next two checkpoints of a pretraining run."""
    first = FIRST_EVALUATED_STEP + 2 * EVALUATED_EVERY_STEPS * Campaign.objects.count()
    names = [f"/checkpoints/llm-7b/step-{step}" for step in (first, first + EVALUATED_EVERY_STEPS)]
    spec = campaign_requests.parse_campaign({"checkpoints": names, "nodes": 2})
    suite = demo_suite()
    return campaign_actions.create_campaign(
        spec, suite=suite, cluster=cluster, team=suite.team, author=_evaluation_author(), now=now
    )


def _evaluation_author() -> Author:
    person = get_user_model().objects.get(username="donald")
    return Author(by=person.get_username(), user_id=person.pk)


@transaction.atomic
def submit(cluster: Cluster, job: SampledJob, dice: Random, now: datetime) -> Job:
    """Submit a job, and tell the cluster how it goes before a scheduling turn can see it. Raises SimulatorError."""
    name = TEAM_OF_KIND[job.kind]
    person = get_user_model().objects.get(username=dice.choice(DEMO_TEAMS[name].people))
    request = _job_request(job, dice) | (kalos.container_request(job.kind) if cluster.kind is KUBERNETES else {})
    jobs = job_actions.submit(
        [spec.parse(request, Node.objects.shape(cluster))],
        cluster=cluster,
        team=Team.objects.get(name=name),
        author=Author(by=person.get_username(), user_id=person.pk),
        now=now,
    )
    client.plan_job(cluster, jobs[0].public_id, {"SIM_DURATION_S": str(job.duration_s), "SIM_END": job.end})
    request_turn(cluster.pk)
    return jobs[0]


def _job_request(job: SampledJob, dice: Random) -> dict[str, object]:
    request: dict[str, object] = {
        "name": job.name,
        "kind": job.kind.value,
        "command": job.command,
        "workdir": f"/home/{job.name}",
        "environment": {"OMP_NUM_THREADS": "8"},
        "nodes": job.nodes,
        "gpus_per_node": job.gpus_per_node,
        "time_limit": int(job.time_limit.total_seconds()),
        "priority": 100 if job.kind == JobKind.PRETRAIN else 0,
        "preemptible": job.kind == JobKind.EVALUATION and dice.random() < 0.3,
    }
    if job.kind == JobKind.PRETRAIN:
        request |= {"checkpoint_dir": f"/checkpoints/{job.name}", "checkpoint_interval": "30:00"}
        request |= {"labels": {STACKS_LABEL: "USR2"}}  # their program handles this signal
    return request
