"""The coordinator is killed at each of its writes, one after the other, and continues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection

from jobs.core.lifecycle import State
from jobs.models import Job
from scheduling.models import Campaign, Evaluation, Shard, Staging, Trial
from tests.scheduling.evaluation.campaign_make import Played, campaign, suite

pytestmark = pytest.mark.django_db

WRITES = ("INSERT", "UPDATE", "DELETE", "WITH")


class Killed(BaseException):
    pass


@contextmanager
def dying_at(write: int) -> Iterator[None]:
    """Instead of the n-th statement that changes anything; what its transaction has done by then is undone."""
    left = [write]

    def execute(run: Any, sql: str, *rest: Any) -> Any:
        if sql.lstrip().upper().startswith(WRITES):
            left[0] -= 1
            if not left[0]:
                raise Killed
        return run(sql, *rest)

    with connection.execute_wrapper(execute):
        yield


def standing(asked: Campaign) -> tuple[Any, ...]:
    """What the coordinator has brought about so far."""
    shards = Shard.objects.order_by("pk").values_list("pk", "state", "trial", "tries", "losses")
    ended = Trial.objects.filter(ended_at__isnull=False).count()
    evaluations = Evaluation.objects.order_by("pk").values_list("state", "given")
    copies = Staging.objects.order_by("pk").values_list("state", flat=True)
    state = Campaign.objects.values_list("state", flat=True).get(pk=asked.pk)
    return list(shards), ended, list(evaluations), list(copies), state, Job.objects.count()


def turn_dying_everywhere(played: Played, asked: Campaign) -> int:
    """One turn, killed at its first write, its second, ..., until it comes through; from the first again whenever
    something was brought about."""
    deaths, write, before = 0, 1, standing(asked)
    while True:
        try:
            with dying_at(write):
                played.turn(later=0.01)
        except Killed:
            after = standing(asked)
            write = write + 1 if after == before else 1
            deaths, before = deaths + 1, after
        else:
            return deaths


class Troubled:
    """Runs jobs, and lets the first of each kind come to grief: what was done for good is counted."""

    def __init__(self, played: Played) -> None:
        self.played = played
        self.done: Counter[tuple[bool, int]] = Counter()  # with a score or without, and the shard
        self.steps_to_kill = {"stage", "infer", "score"}

    def run(self, job: Job) -> None:
        what = self.played.told(job)
        kind = what["do"] if what["do"] != "run" else "score" if what["parts"][0]["scores"] else "infer"
        if kind not in self.steps_to_kill:
            self.played.run(job)
            self._count(what.get("parts", ()))
            return
        self.steps_to_kill.remove(kind)
        self.played.start(job)
        if kind == "infer":  # its node dies after the first shard
            first = what["parts"][0]
            self.played.says(job, part=first["id"], code=0, took=2.0)
            self._count([first])
            self.played.end(job, State.NODE_FAIL)
        elif kind == "score":
            for part in what["parts"]:
                self.played.says(job, part=part["id"], code=1, took=2.0, why="the judge does not answer")
            self.played.end(job, State.FAILED, code=1)
        else:
            self.played.says(job, failed="there is no room")
            self.played.end(job, State.FAILED, code=1)

    def _count(self, parts: Any) -> None:
        self.done.update((bool(part["scores"]), part["id"]) for part in parts)


def test_kill_at_any_write_loses_and_repeats_nothing(tmp_path):
    played = Played(tmp_path)
    datasets = [{"name": "alpha", "samples": 60, "infer_s": 9}, {"name": "beta", "samples": 50, "parts": 1}]
    asked = campaign(played.cluster, of=suite(stage_root="/dev/shm/models", datasets=datasets), nodes=2)
    troubled, deaths = Troubled(played), 0

    for _ in range(40):
        deaths += turn_dying_everywhere(played, asked)
        for job in played.waiting():
            troubled.run(job)
        asked.refresh_from_db()
        if asked.state == "COMPLETED" and not Staging.objects.exclude(state__in=("REMOVED", "FAILED")).exists():
            break

    assert deaths > 50
    assert asked.state == "COMPLETED"
    assert not troubled.steps_to_kill
    assert set(troubled.done.values()) == {1}
    shards = Shard.objects.filter(evaluation__campaign=asked)
    assert {(scored, pk) for pk in shards.values_list("pk", flat=True) for scored in (False, True)} == set(
        troubled.done
    )
    for row in Evaluation.objects.filter(campaign=asked).select_related("dataset"):
        pieces = sorted(row.shards.values_list("start", "samples"))
        assert [start for start, _ in pieces] == [sum(samples for _, samples in pieces[:n]) for n in range(len(pieces))]
        assert sum(samples for _, samples in pieces) == row.dataset.samples
