"""A random history of a small cluster, and random changes of it: rows as loops, users and imports leave them."""

from __future__ import annotations

import random
from datetime import datetime, timedelta

from failures.detection.findings import Severity, SymptomType
from failures.incidents.grouping import NODE_CAUSES
from failures.models import Anomaly, Diagnosis
from jobs.core.lifecycle import FINAL_STATES, Flag, State
from jobs.models import Allocation, Attempt, Checkpoint, Cluster, Event, HoldKind, Job, LatestProgress, Node, Progress
from tests import make

MINUTE = timedelta(minutes=1)
DAYS = 3
ENDS = [
    State.COMPLETED,
    State.COMPLETED,
    State.FAILED,
    State.NODE_FAIL,
    State.TIMEOUT,
    State.CANCELLED,
    State.PREEMPTED,
]
CAUSES = ["", "Hang", "TypeError", *sorted(NODE_CAUSES)[:2]]
REASONS = ["", "Resources", "Dependency", "JobHeldUser"]


class RandomHistory:
    """Each change leaves rows that the loops could have written; times have microseconds, as real ones do."""

    def __init__(self, cluster: Cluster, now: datetime, seed: int) -> None:
        self.cluster, self.now, self.chance = cluster, now, random.Random(seed)
        self.began = now - timedelta(days=DAYS)
        Cluster.objects.filter(pk=cluster.pk).update(created_at=self.began)
        cluster.refresh_from_db()
        self.nodes = list(Node.objects.filter(cluster=cluster))
        self.keys = iter(range(1_000_000))

    def moment(self, low: datetime, high: datetime) -> datetime:
        return low + self.chance.random() * max(high - low, timedelta())

    def fill(self, jobs: int) -> None:
        for _ in range(jobs):
            self.add_job()
        for node in self.nodes:
            self.add_node_events(node)

    def add_job(self) -> None:
        chance = self.chance
        job = make.job(gpus_per_node=chance.choice([0, 1, 4, 8]), kind=chance.choice(["sft", "pretrain", "debug"]))
        submitted = self.moment(self.began - timedelta(hours=6), self.now)
        Job.objects.filter(pk=job.pk).update(submitted_at=submitted, reason=chance.choice(REASONS))
        free, number = self.moment(submitted, submitted + 90 * MINUTE), 0
        while free < self.now and number < 3 and chance.random() < 0.8:
            number += 1
            free = self.add_attempt(job, number, free)
            if free is None:
                return
        if number and chance.random() < 0.8:
            state = Attempt.objects.get(job=job, number=number).state
            Job.objects.filter(pk=job.pk).update(state=state, ended_at=free)

    def add_attempt(self, job: Job, number: int, promised: datetime) -> datetime | None:
        """Return when the next attempt may begin; None if this one still runs."""
        chance = self.chance
        ended = promised + MINUTE * chance.expovariate(1 / 300)
        if ended >= self.now:
            ended = None
        state = State.RUNNING if ended is None else chance.choice(ENDS)
        confirmed = min(promised + MINUTE * chance.random() * 5, ended or self.now)
        attempt = Attempt.objects.create(
            job=job, number=number, key=f"random-{next(self.keys)}", state=state, promised_at=promised,
            confirmed_at=confirmed, ended_at=ended, cause=chance.choice(CAUSES) if ended else "",
        )  # fmt: skip
        self.hold_gpus(attempt, job)
        self.report_steps(attempt, confirmed, ended or self.now)
        if ended is None:
            Job.objects.filter(pk=job.pk).update(state=State.RUNNING)
            return None
        if attempt.cause in NODE_CAUSES:
            self.diagnose(attempt)
        return self.moment(ended, ended + 60 * MINUTE)

    def hold_gpus(self, attempt: Attempt, job: Job) -> None:
        if attempt.ended_at is None and self.chance.random() < 0.5:
            return  # at most one live holder of a GPU: live attempts have the GPUs of their own number, or none
        node = self.chance.choice(self.nodes)
        taken = set(Allocation.objects.live().filter(node=node).values_list("gpu", flat=True))
        Allocation.objects.bulk_create(
            Allocation(attempt=attempt, node=node, gpu=gpu, held_at=attempt.promised_at, released_at=attempt.ended_at)
            for gpu in range(job.gpus_per_node)
            if attempt.ended_at is not None or gpu not in taken
        )

    def report_steps(self, attempt: Attempt, low: datetime, high: datetime) -> None:
        if high - low < MINUTE:
            return
        if self.chance.random() < 0.5:
            first, last = sorted([self.moment(low, high), self.moment(low, high)])
            Progress.objects.create(attempt=attempt, at=first, step=1)
            Progress.objects.create(attempt=attempt, at=last, step=9)
            LatestProgress.objects.create(attempt=attempt, at=last, step=9)
        for number in range(self.chance.randrange(3)):
            at = self.moment(low, high)
            Checkpoint.objects.create(
                job=attempt.job, attempt=attempt, step=number, path=f"/{attempt.pk}/{number}", saved_at=at,
                durable_at=at, stall_s=self.chance.choice([None, 20.0, 900.0]),
            )  # fmt: skip
        if self.chance.random() < 0.3:
            since, until = sorted([self.moment(low, high), self.moment(low, high)])
            Anomaly.objects.create(
                cluster=self.cluster, attempt=attempt, symptom=SymptomType.SLOW, severity=Severity.WARN, since=since,
                seen_at=until, ended_at=self.chance.choice([None, until]), observed=3, expected=2,
            )  # fmt: skip

    def diagnose(self, attempt: Attempt) -> None:
        diagnosis = Diagnosis.objects.create(
            attempt=attempt, cluster=self.cluster, failed_at=attempt.ended_at, root_cause=attempt.cause
        )
        diagnosis.nodes.set(self.chance.sample(self.nodes, 1))

    def add_node_events(self, node: Node) -> None:
        at = self.moment(self.began, self.now)
        for number in range(4):
            kind, state = self.chance.choice(
                [
                    ("node.drained", ""),
                    ("node.resumed", ""),
                    ("node.state_changed", "DOWN"),
                    ("node.state_changed", "UP+POWERED_DOWN"),
                    ("node.state_changed", "IDLE"),
                ]
            )
            Event.objects.create(
                type=kind,
                node=node,
                cluster=self.cluster,
                by="ada",
                why=f"fan {node.pk} {number}",
                to_state=state,
                at=at,
            )
            at = self.moment(at, self.now)

    # --- changes

    def change(self) -> str:
        """Change some row that past hours depend on. Return the name of the change."""
        name = self.chance.choice(sorted(CHANGES))
        CHANGES[name](self)
        return name

    def pick(self, rows):
        found = list(rows.order_by("pk"))
        return self.chance.choice(found) if found else None

    def end_late(self) -> None:
        if attempt := self.pick(Attempt.objects.live()):
            ended = self.moment(attempt.promised_at, self.now)
            state = self.chance.choice(ENDS)
            Attempt.objects.filter(pk=attempt.pk).update(ended_at=ended, state=state, cause=self.chance.choice(CAUSES))
            Allocation.objects.filter(attempt=attempt).update(released_at=ended)
            Job.objects.filter(pk=attempt.job_id).update(state=state, ended_at=ended)

    def change_cause(self) -> None:
        if attempt := self.pick(Attempt.objects.filter(ended_at__isnull=False)):
            Attempt.objects.filter(pk=attempt.pk).update(cause=self.chance.choice(CAUSES))

    def change_state(self) -> None:
        if attempt := self.pick(Attempt.objects.filter(ended_at__isnull=False)):
            Attempt.objects.filter(pk=attempt.pk).update(state=self.chance.choice(ENDS))

    def correct_end(self) -> None:
        """As the cluster's accounting does, for the last attempt of a job."""
        if job := self.pick(Job.objects.filter(ended_at__isnull=False, attempts__isnull=False)):
            attempt = Attempt.objects.filter(job=job).order_by("-number")[0]
            ended = self.moment(attempt.promised_at, self.now)
            Attempt.objects.filter(pk=attempt.pk).update(ended_at=ended)
            Allocation.objects.filter(attempt=attempt).update(released_at=ended)
            Job.objects.filter(pk=job.pk).update(ended_at=ended)

    def judge_checkpoint(self) -> None:
        if checkpoint := self.pick(Checkpoint.objects.all()):
            Checkpoint.objects.filter(pk=checkpoint.pk).update(verdict=self.chance.choice(["", "good", "bad"]))

    def add_checkpoint(self) -> None:
        if attempt := self.pick(Attempt.objects.all()):
            at = self.moment(attempt.promised_at, attempt.ended_at or self.now)
            path = f"/late/{next(self.keys)}"
            Checkpoint.objects.create(
                job=attempt.job, attempt=attempt, step=1, path=path, saved_at=at, durable_at=at, stall_s=60.0
            )

    def delete_checkpoint(self) -> None:
        if checkpoint := self.pick(Checkpoint.objects.all()):
            checkpoint.delete()

    def end_slow_period(self) -> None:
        if anomaly := self.pick(Anomaly.objects.slow()):
            Anomaly.objects.filter(pk=anomaly.pk).update(
                ended_at=self.moment(anomaly.since, self.now), observed=self.chance.choice([1, 3, 9])
            )

    def report_step_late(self) -> None:
        if attempt := self.pick(Attempt.objects.all()):
            at = self.moment(attempt.promised_at, attempt.ended_at or self.now)
            Progress.objects.create(attempt=attempt, at=at, step=1)

    def hold_job(self) -> None:
        if job := self.pick(Job.objects.waiting()):
            Job.objects.filter(pk=job.pk).update(hold=self.chance.choice(HoldKind.values))

    def change_flags(self) -> None:
        if job := self.pick(Job.objects.waiting()):
            Job.objects.filter(pk=job.pk).update(
                flags=self.chance.choice([[], [Flag.REQUEUE_HOLD]]), reason=self.chance.choice(REASONS)
            )

    def cancel_waiting_job(self) -> None:
        if job := self.pick(Job.objects.waiting()):
            Job.objects.filter(pk=job.pk).update(state=State.CANCELLED, ended_at=self.now)

    def requeue(self) -> None:
        if job := self.pick(Job.objects.filter(state__in=FINAL_STATES)):
            Job.objects.filter(pk=job.pk).update(state=State.PENDING, ended_at=None, reason="", hold="")

    def start_again(self) -> None:
        for job in Job.objects.waiting().order_by("pk"):
            last = Attempt.objects.filter(job=job).order_by("-number").first()
            if last and last.ended_at:
                self.add_attempt(job, last.number + 1, self.moment(last.ended_at, self.now))
                return

    def move_to_team(self) -> None:
        if job := self.pick(Job.objects.all()):
            Job.objects.filter(pk=job.pk).update(team=make.team("vision"), kind="mllm")

    def change_begin(self) -> None:
        if job := self.pick(Job.objects.waiting()):
            Job.objects.filter(pk=job.pk).update(begin_at=self.moment(job.submitted_at, self.now))

    def swap_gpu(self) -> None:
        if allocation := self.pick(Allocation.objects.filter(released_at__isnull=False)):
            Allocation.objects.filter(pk=allocation.pk).update(gpu=self.chance.randrange(8))

    def blame_other_node(self) -> None:
        if diagnosis := self.pick(Diagnosis.objects.all()):
            diagnosis.nodes.set(self.chance.sample(self.nodes, 2))
            Diagnosis.objects.filter(pk=diagnosis.pk).update(root_cause=self.chance.choice(CAUSES[1:]))

    def import_events(self) -> None:
        self.add_node_events(self.chance.choice(self.nodes))

    def import_job(self) -> None:
        self.add_job()


CHANGES = {
    name: member
    for name, member in vars(RandomHistory).items()
    if callable(member) and list(vars(RandomHistory)).index(name) > list(vars(RandomHistory)).index("pick")
}
