"""The simulated weeks from which the demo makes its history."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from jobs.core.lifecycle import JobKind
from scheduling.drill.history import HistorySettings, SiteHistory, simulate_history

TEAMS = dict.fromkeys(JobKind, "other") | {JobKind.PRETRAIN: "pretraining", JobKind.EVALUATION: "evaluation"}
SETTINGS = HistorySettings(days=2, nodes=32, gpus_per_node=8, teams=TEAMS, quotas={"pretraining": 160})


@pytest.fixture(scope="module")
def history() -> SiteHistory:
    *_, result = simulate_history(SETTINGS)
    assert isinstance(result, SiteHistory)
    return result


def test_no_gpu_is_used_twice_at_the_same_time(history):
    changes = []
    for job in history.jobs:
        for life in job.lives:
            for node, gpus in life.places:
                changes.append((life.promised, 1, node, gpus))
                if life.ended is not None:
                    changes.append((life.ended, 0, node, gpus))
    held = Counter()
    for _, starts, node, gpus in sorted(changes):
        held[node] += gpus if starts else -gpus
        assert 0 <= held[node] <= SETTINGS.gpus_per_node


def test_kinds_have_the_shares_of_the_published_trace(history):
    kinds = Counter(job.kind for job in history.jobs)

    assert kinds[JobKind.EVALUATION] / len(history.jobs) == pytest.approx(0.649, abs=0.03)
    assert kinds[JobKind.SFT] / len(history.jobs) == pytest.approx(0.149, abs=0.03)


def test_every_failure_was_diagnosed_and_decided(history):
    failed = sum(life.cause not in ("", "cancelled") for job in history.jobs for life in job.lives)

    assert failed >= len(history.failures) - 5 > 100
    assert {str(incident.id) for incident in history.incidents} == {row.facts.incident for row in history.failures}
    assert all(row.decision.why for row in history.failures)


def test_attempts_of_a_job_do_not_overlap(history):
    for job in history.jobs:
        assert all(before.ended <= after.promised for before, after in pairwise(job.lives))


def test_same_seed_gives_the_same_history(history):
    *_, again = simulate_history(SETTINGS)

    assert [(job.name, [(life.promised, life.places) for life in job.lives]) for job in again.jobs] == [
        (job.name, [(life.promised, life.places) for life in job.lives]) for job in history.jobs
    ]
