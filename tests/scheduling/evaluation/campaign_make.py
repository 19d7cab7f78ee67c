"""A campaign and a cluster whose jobs are played by a test: rows and log files, no processes."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from jobs.actions import jobs as job_actions
from jobs.actions.jobs import AttemptEnd
from jobs.core.lifecycle import State
from jobs.models import Attempt, Cluster, Job, Node, clock
from scheduling.evaluation.actions import campaigns as campaign_actions
from scheduling.evaluation.loops.campaigns import coordinate_campaigns_once
from scheduling.evaluation.loops.staging import advance_stagings_once
from scheduling.evaluation.rules import campaign_requests
from scheduling.models import Campaign, Suite, Trial
from tests import make

A, B = "/checkpoints/run/step-1000", "/checkpoints/run/step-2000"


def suite(name: str = "core", *, team: Any = None, **wishes: Any) -> Suite:
    plain = {
        "name": name,
        "output_root": "/shared/evaluations",
        "infer": "python answer.py",
        "metric": "python score.py",
        "datasets": [{"name": "alpha", "samples": 100}, {"name": "beta", "samples": 50, "parts": 1}],
    }
    home = team or make.team(ada="researcher")
    return campaign_actions.define_suite(campaign_requests.parse_suite(plain | wishes), team=home, author=make.author())


def campaign(cluster: Cluster, *checkpoints: str, of: Suite | None = None, **wishes: Any) -> Campaign:
    of = of or suite()
    wanted = {"checkpoints": list(checkpoints or (A,)), "nodes": 1} | wishes
    spec = campaign_requests.parse_campaign(wanted)
    return campaign_actions.create_campaign(
        spec, suite=of, cluster=cluster, team=of.team, author=make.author(), now=clock.now()
    )


class Played:
    """The jobs of a cluster, run by hand."""

    def __init__(self, log_root: Path, **cluster: Any) -> None:
        self.log_root = log_root
        self.cluster = make.cluster(log_root=str(log_root), **cluster)
        self.now = clock.now()

    def turn(self, later: float = 10.0) -> int:
        """The coordinator's, some seconds later."""
        self.now += timedelta(seconds=later)
        advance_stagings_once(self.now)
        return coordinate_campaigns_once(self.now)

    def waiting(self) -> list[Job]:
        return list(Job.objects.filter(cluster=self.cluster, state=State.PENDING).order_by("id"))

    def told(self, job: Job) -> dict[str, Any]:
        return json.loads(job.environment["ACME_EVALUATION"])

    def start(self, job: Job) -> Attempt:
        node = Node.objects.get(cluster=self.cluster, name=job.required_node or "seren-001")
        held = set(node.allocations.filter(released_at=None, gpu__isnull=False).values_list("gpu", flat=True))
        free = [gpu for gpu in range(node.gpus) if gpu not in held][: job.gpus_per_node]
        attempt = make.running(job, gpus=tuple(free), on=(node.name,), log_path=str(self.log_root / f"{job.pk}.log"))
        job.refresh_from_db()
        return attempt

    def say(self, job: Job, text: str) -> None:
        with (self.log_root / f"{job.pk}.log").open("a") as log:
            log.write(text + "\n")

    def says(self, job: Job, **values: Any) -> None:
        self.say(job, f"acme:{self.told(job)['nonce']} {json.dumps({'at': 1.0, **values})}")

    def end(self, job: Job, state: str = State.COMPLETED, code: int = 0) -> None:
        attempt = job.attempts.get(ended_at=None)
        job_actions.finish(attempt, AttemptEnd(state=State(state), at=clock.now(), exit_code=code), author=make.LOOP)
        job.refresh_from_db()

    def run(self, job: Job, scores: dict[str, float] | None = None, **part: Any) -> None:
        """From its start to a good end: each of its parts took two seconds."""
        self.start(job)
        what = self.told(job)
        if what["do"] == "stage":
            self.says(job, staged=what["to"], gb=13.9)
        elif what["do"] == "remove":
            self.says(job, removed=what["to"])
        else:
            self.says(job, ready=True)
            for one in what["parts"]:
                result = (scores or {"accuracy": 0.5}) if one["scores"] else None
                self.says(job, **{"part": one["id"], "code": 0, "took": 2.0, "scores": result, **part})
        self.end(job)

    def run_all(self, most: int = 40) -> int:
        """Turns, and every job that waits, until nothing is left to do."""
        idle = 0
        for number in range(most):
            self.turn()
            jobs = self.waiting()
            idle = 0 if jobs else idle + 1
            if idle == 3:
                return number
            for job in jobs:
                self.run(job)
        raise AssertionError(f"not done after {most} turns")


def trials(of: Campaign, kind: str) -> list[Trial]:
    return list(Trial.objects.filter(campaign=of, kind=kind).order_by("id"))


def later(now: datetime, seconds: float) -> datetime:
    return now + timedelta(seconds=seconds)
