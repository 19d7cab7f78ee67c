"""The factors of failure reasons: many jobs of any mix fail for each reason as often as the study counted."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from jobs.core.lifecycle import JobKind
from scheduling.simulation.drill.failure_odds import DRAWN_REASONS, EVEN_ODDS, LikelyFailures, table_odds
from scheduling.simulation.drill.faults import FAILURE_SHARE, draw_flaw
from scheduling.simulation.machines.failure_reasons import draw_reason

TOTAL = sum(reason.count for reason in DRAWN_REASONS)


def mix(seed, count=3000):
    """Jobs of one GPU to 128, most of them small, that end after seconds to days."""
    dice = Random(seed)
    kinds, sizes = list(JobKind), [1 << max(0, round(dice.gauss(1, 2))) for _ in range(count)]
    return [
        LikelyFailures(kind, min(gpus, 128), dice.lognormvariate(5, 2), FAILURE_SHARE[kind])
        for gpus, kind in zip(sizes, dice.choices(kinds, k=count), strict=True)
    ]


@pytest.mark.parametrize("seed", [1, 2])
def test_reasons_are_drawn_in_the_proportions_of_the_table(seed):
    jobs, dice = mix(seed), Random(seed)
    odds = table_odds(jobs)

    drawn = Counter(
        draw_reason(dice, job.kind, job.gpus, job.at_s, odds).name
        for job in dice.choices(jobs, weights=[job.expected for job in jobs], k=20_000)
    )

    for reason in DRAWN_REASONS:
        share = reason.count / TOTAL
        assert drawn[reason.name] / 20_000 == pytest.approx(share, abs=5 * (share / 20_000) ** 0.5 + 1e-3)


def test_reasons_of_large_jobs_are_still_drawn_for_large_jobs():
    odds, dice = table_odds(mix(3)), Random(3)

    def share(gpus):
        drawn = Counter(draw_reason(dice, JobKind.SFT, gpus, 60.0, odds).name for _ in range(2000))
        return (drawn["runtime_error"] + drawn["cuda_error"]) / 2000

    assert share(128) > 5 * share(1)


def test_machine_faults_are_never_the_flaw_of_a_job():
    flaws = [draw_flaw(JobKind.DEBUG, 8, f"job-{number}") for number in range(3000)]

    assert {flaw.reason for flaw in flaws if flaw} <= {name for name, odds in EVEN_ODDS.items() if odds}


def test_no_jobs_leave_the_table_as_it_is():
    assert table_odds([]) == EVEN_ODDS
