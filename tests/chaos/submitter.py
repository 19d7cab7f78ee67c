"""Submits jobs in batches and records what was confirmed: accepted jobs, and observed final states.

A request counts as accepted once its response was read; until then it is repeated with the same Idempotency-Key. After
a failover that lost commits, everything accepted since the backup is forgotten and sent again in the same way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from tests.chaos.people import Caller
from tests.chaos.record import Record

BATCH = 20
ENDS = ("COMPLETED", "COMPLETED", "COMPLETED", "FAILED:1", "OUT_OF_MEMORY")
# Causes with different remedies: immediate restart, restart elsewhere, rollback, or no restart
TRAINING_FAILS = ("cuda_error", "ecc_error", "dataloader_killed", "checkpoint_corrupt", "value_error")
# GPUs per node of multi-node and training jobs: whole nodes, and parts of shared nodes
WIDTHS = (2, 4, 8)
# Shorter and longer than the error of a cluster's clock
TIME_LIMITS_S = (120, 600)

Request = dict[str, object]
Drawing = Callable[[Random, int], Request]


@dataclass(kw_only=True)
class Batch:
    """Requests that are sent together."""

    key: str
    jobs: Sequence[Request]
    accepted_at: float = 0.0
    ids: Sequence[str] = ()


class Submitter:
    def __init__(
        self,
        caller: Caller,
        record: Record,
        *,
        clusters: Sequence[str],
        draw: Drawing,
        seed: str,
        most_unfinished: int,
        batch: int = BATCH,
    ) -> None:
        self.caller, self.record, self.clusters, self.draw, self.seed = caller, record, clusters, draw, seed
        self.most_unfinished, self.batch_size = most_unfinished, batch
        self.withdrawn: set[str] = set()
        self._batches: list[Batch] = []
        self._finals: dict[str, tuple[float, str]] = {}  # job -> time of the observation and final state
        self._lost: list[Batch] = []
        self._restored_at = 0.0
        self._lock = threading.Lock()

    @property
    def accepted(self) -> dict[str, str]:
        with self._lock:
            return {
                job: str(request["name"])
                for batch in self._batches
                for job, request in zip(batch.ids, batch.jobs, strict=True)
            }

    @property
    def final_once(self) -> dict[str, str]:
        with self._lock:
            return {job: state for job, (_, state) in self._finals.items()}

    def submit_until(self, over: threading.Event, most: int) -> None:
        dice, number = Random(f"jobs:{self.seed}"), 0
        while not over.is_set():
            if self._lost:
                self._send(self._lost.pop(), dice, over)
            elif self._is_enough(most):
                over.wait(0.2)
            else:
                jobs = [self._request(dice, number + i) for i in range(self.batch_size)]
                number += self.batch_size
                self._send(Batch(key=f"{self.seed}-{number}", jobs=jobs), dice, over)

    def _request(self, dice: Random, number: int) -> Request:
        return self.draw(dice, number) | {"cluster": dice.choice(self.clusters)}

    def _is_enough(self, most: int) -> bool:
        accepted = self.accepted
        return len(accepted) >= most or len(accepted.keys() - self.final_once.keys()) > self.most_unfinished

    def _send(self, batch: Batch, dice: Random, over: threading.Event) -> None:
        while result := self.caller.ask("jobs/bulk/", {"jobs": list(batch.jobs)}, key=batch.key, over=over):
            sent_at, answer = result
            if answer.is_error:
                raise AssertionError(f"a submission failed with {answer.status_code}: {answer.text[:500]}")
            batch.ids = [job["id"] for job in answer.json()["results"]]
            with self._lock:
                if sent_at >= self._restored_at:  # otherwise the response may confirm a lost commit
                    batch.accepted_at = time.monotonic()
                    self._batches.append(batch)
                    break
        else:
            return
        if dice.random() < 0.3:
            self._withdraw(dice.sample(batch.ids, 2), batch.key, over)

    def _withdraw(self, jobs: Sequence[str], key: str, over: threading.Event) -> None:
        self.withdrawn.update(jobs)
        self.caller.ask("jobs/actions/", {"action": "cancel", "ids": list(jobs)}, key=f"{key}-cancel", over=over)

    def watch_until(self, over: threading.Event) -> None:
        """Record each final state when it is first observed; it must never change."""
        while not over.wait(0.7):
            with self._lock:
                now = time.monotonic()
                for job, state in self.record.finals().items():
                    self._finals.setdefault(job, (now, state))

    def failed_over(self, backup_began_at: float) -> None:
        """Forget what the failover loses. The database is stopped and will be restored from the backup."""
        with self._lock:
            self._restored_at = time.monotonic()
            lost = [batch for batch in self._batches if batch.accepted_at >= backup_began_at]
            self._batches = [batch for batch in self._batches if batch.accepted_at < backup_began_at]
            self._finals = {
                job: observation for job, observation in self._finals.items() if observation[0] < backup_began_at
            }
        self._lost.extend(lost)


def short_job(dice: Random, number: int) -> Request:
    gang = dice.random() < 0.1
    return {
        "name": f"storm-{number}",
        "command": "#!/bin/sh\ntrue\n",
        "kind": "debug",
        "environment": {"SIM_DURATION_S": f"{dice.uniform(0.2, 4):.1f}", "SIM_END": dice.choice(ENDS)},
        "nodes": 2 if gang else 1,
        "gpus_per_node": dice.choice(WIDTHS) if gang else dice.choice((1, 1, 1, 2)),
        "time_limit": dice.choice(TIME_LIMITS_S),
        "team": "platform",
    }


def training(dice: Random, number: int) -> Request:
    """A training job that fails once; recovery decides what follows."""
    fails = f"FAILED:1:{dice.choice(TRAINING_FAILS)}"
    return {
        "name": f"storm-{number}-train",
        "command": "#!/bin/sh\ntrue\n",
        "kind": "pretrain",
        "environment": {"SIM_DURATION_S": f"{dice.uniform(1, 5):.1f}", "SIM_END": f"{fails},COMPLETED"},
        "labels": {"acme-recovery": "on"},
        "nodes": dice.choice((1, 2)),
        "gpus_per_node": dice.choice(WIDTHS),
        "time_limit": 600,
        "checkpoint_dir": "/checkpoints/storm",
        "team": "platform",
    }


def borrower(dice: Random, number: int) -> Request:
    """A preemptible job that is long enough to be preempted, with terms. It reports checkpoints as training jobs do."""
    terms: Request = {
        "preempt_exempt_time": dice.randint(1, 6),
        "preempt_at_checkpoint": dice.random() < 0.3,
        "preemptions_per_day": dice.randint(1, 3),
    }
    return {
        "name": f"storm-{number}-borrower-train",
        "command": "#!/bin/sh\ntrue\n",
        "kind": "evaluation",
        "environment": {"SIM_DURATION_S": f"{dice.uniform(6, 15):.1f}", "SIM_END": "COMPLETED"},
        # Wide, so that borrowers fill the cluster and owners need their GPUs
        "nodes": dice.choice((2, 4, 8)),
        "gpus_per_node": 8,
        "time_limit": 600,
        "team": "platform",
        "preemptible": True,
        **{name: value for name, value in terms.items() if dice.random() < 0.7},
    }


def mixed(trainings: float) -> Drawing:
    """Draws short jobs and this share of training jobs."""

    def draw(dice: Random, number: int) -> Request:
        return training(dice, number) if trainings and dice.random() < trainings else short_job(dice, number)

    return draw


def neighbor(dice: Random, number: int) -> Request:
    """A job of the second installation; every tenth one holds its GPUs for longer than decisions can be delayed."""
    job = short_job(dice, number) | {"name": f"storm-neighbor-{number}"}
    if number % 10 == 0:
        job |= {"environment": {"SIM_DURATION_S": "80", "SIM_END": "COMPLETED"}, "gpus_per_node": 2, "nodes": 1}
    return job
