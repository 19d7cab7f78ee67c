"""The drill: faults are the same for every strategy, and the results depend on the strategy."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from math import inf

import pytest
from django.core.management import CommandError, call_command

from scheduling.ledger.rules import buckets as ledger
from scheduling.simulation.drill import figures, report
from scheduling.simulation.drill.faults import BUG, SCENARIOS, draw_faults
from scheduling.simulation.drill.jobs import GANG_JOB
from scheduling.simulation.drill.run import STRATEGIES, run_drill
from scheduling.simulation.drill.values import DrillFault, DrillPlan
from scheduling.simulation.machines.faults import FaultKind

SMALL = DrillPlan(nodes=24, gang_nodes=12, hours=2.0, spares=2, cooldown_h=1.5, evaluate_steps=200)
OFTEN = replace(SCENARIOS["dense"], per_node_day=1.0)
AT = 3600.0


def fault(kind, *, number=1, node=3, sticks=False, lasts_s=1800.0, at=AT):
    return DrillFault(
        number=number,
        at=at,
        kind=str(kind),
        node=node,
        gpu=1,
        lasts_s=inf if sticks else lasts_s,
        factor=1.5,
        sticks=sticks,
    )


def drilled(*faults, answer="acme", plan=SMALL):
    return run_drill(OFTEN, plan, answer, faults)


def of_gang(done):
    return [case for case in done.tally.cases if case.job == GANG_JOB]


# --- random draws


def test_faults_do_not_depend_on_the_strategy_but_on_the_seed():
    plan = replace(SMALL, hours=48)

    assert draw_faults(OFTEN, plan) == draw_faults(OFTEN, plan)
    assert draw_faults(OFTEN, plan) != draw_faults(OFTEN, replace(plan, seed=2))


def test_faults_occur_at_the_rate_of_their_scenario():
    plan = DrillPlan(hours=24 * 365)
    for name, scenario in SCENARIOS.items():
        expected = scenario.per_node_day * 302 * 365

        assert abs(len(draw_faults(scenario, plan)) - expected) < 5 * expected**0.5, name


def test_llama_3_rate_is_one_interruption_of_16384_gpus_every_3_hours():
    assert SCENARIOS["llama3"].hours_between(2048) == pytest.approx(54 * 24 / 419)


def test_same_seed_gives_exactly_the_same_drill():
    one, other = (report.drill_document(SMALL, {"x": {"acme": run_drill(OFTEN, SMALL, "acme")}}) for _ in range(2))

    assert json.dumps(one) == json.dumps(other)


# --- no faults


@pytest.mark.parametrize("seed", range(3))
def test_without_faults_no_job_is_stopped_and_no_node_cordoned(seed):
    done = drilled(plan=replace(SMALL, hours=4.0, seed=seed))

    assert done.tally.wrong_stops == [] and done.tally.false_cordons == [] and done.tally.cordons == 0
    assert of_gang(done) == [] and len(done.works[GANG_JOB].lives) == 1


def test_buckets_of_the_gang_sum_to_its_gpus_and_time():
    done = drilled(fault(FaultKind.OFF_BUS, sticks=True))
    buckets = figures.buckets_us(done)
    start = done.works[GANG_JOB].lives[0].promised

    assert sum(buckets.values()) == 96 * round((SMALL.end_s - start) * 1_000_000)
    assert buckets[ledger.Bucket.LOST_WORK] > 0 and buckets[ledger.Bucket.RECOVERY] > 0


# --- faults and recovery


@pytest.mark.parametrize(
    ("kind", "sticks"),
    [
        (FaultKind.OFF_BUS, True),
        (FaultKind.NVLINK, True),
        (FaultKind.ECC, False),
        (FaultKind.ECC, True),
        (FaultKind.FABRIC, False),
        (FaultKind.DEATH, False),
        (FaultKind.HANG, False),
        (FaultKind.HANG, True),
        (FaultKind.SLOW, True),
        (FaultKind.STORAGE, False),
        (FaultKind.LOSS, False),
        ("cuda_error", False),
        ("nccl_timeout_error", True),
        ("nccl_remote_error", False),
    ],
)
def test_recoverable_fault_is_recovered_without_an_operator(kind, sticks):
    done = drilled(fault(kind, sticks=sticks))

    [case] = of_gang(done)
    assert case.is_recovered, case
    assert case.label in case.expected
    assert done.tally.wrong_stops == [] and done.tally.false_cordons == []


@pytest.mark.parametrize("kind", [FaultKind.OFF_BUS, FaultKind.NVLINK, FaultKind.HANG, FaultKind.SLOW])
def test_broken_node_is_excluded_when_the_gang_restarts(kind):
    done = drilled(fault(kind, sticks=True))

    assert 3 in done.works[GANG_JOB].lives[0].nodes and 3 not in done.works[GANG_JOB].lives[-1].nodes


def test_gang_without_recovery_waits_for_an_operator():
    done = drilled(fault(FaultKind.OFF_BUS, sticks=True), answer="off")

    [case] = of_gang(done)
    assert case.human and not case.is_recovered


def test_requeue_always_returns_to_the_broken_node():
    done = drilled(fault(FaultKind.OFF_BUS, sticks=True), answer="requeue")

    assert of_gang(done)[0].restarts >= 3 and of_gang(done)[0].human


def test_cluster_requeues_after_a_node_failure_without_recovery():
    [case] = of_gang(drilled(fault(FaultKind.DEATH), answer="off"))

    assert case.is_recovered


def test_program_error_is_left_to_its_owner_but_requeued_by_requeue_always():
    bug = fault(BUG)

    assert drilled(bug).tally.wrong_restarts == 0
    assert drilled(bug, answer="requeue").tally.wrong_restarts > 0


def test_loss_spike_rolls_back_and_skips_the_data():
    gang = drilled(fault(FaultKind.LOSS)).works[GANG_JOB]

    [(low, _, _)] = gang.bad_data
    assert gang.lives[-1].base < low and gang.is_step_skipped(low) and not gang.loss_defect


def test_gang_that_fails_before_its_first_checkpoint_restarts_without_an_operator():
    done = drilled(fault(FaultKind.OFF_BUS, sticks=True, at=200.0))

    [case] = of_gang(done)
    assert case.is_recovered and done.works[GANG_JOB].lives[1].base == 0


def test_four_broken_nodes_within_an_hour_are_excluded_without_an_operator():
    plan = replace(SMALL, nodes=48, gang_nodes=44, spares=4)
    broken = [fault(FaultKind.OFF_BUS, number=n, node=20 + n, sticks=True, at=2400.0 + 800 * n) for n in range(4)]

    done = drilled(*broken, plan=plan)

    assert [case.is_recovered for case in of_gang(done)] == [True] * 4


@pytest.mark.parametrize("kind", [FaultKind.HANG, "nccl_timeout_error"])
def test_start_on_a_hanging_node_is_ended_by_the_watchdog_and_repeated_without_the_node(kind):
    first, *_, last = drilled(fault(kind, sticks=True, at=0.5)).works[GANG_JOB].lives

    assert first.cause == "nccl_timeout_error" and first.first_step is None
    assert first.ended - first.promised > SMALL.watchdog_s
    assert 3 in first.nodes and 3 not in last.nodes


def test_fault_on_an_idle_node_is_counted_as_hitting_no_job():
    done = drilled(fault(FaultKind.FABRIC, node=23, at=60.0))

    assert done.tally.idle == ["fabric"] and figures.drill_summary([done])["hit_nobody"] == 1


# --- document and command


KEYS = {
    "injected", "recoverable", "recovered_without_human", "wrong_stops", "wrong_restarts",
    "false_cordons_per_node_day", "detection_s", "fault_to_first_step_s", "ettr", "by_kind",
}  # fmt: skip


def test_document_has_its_keys_and_the_ettr_of_every_strategy():
    document = report.drill_document(
        SMALL, {"llama3": {answer: run_drill(OFTEN, SMALL, answer) for answer in STRATEGIES}}
    )

    assert document.keys() >= KEYS and set(document["ettr"]) == {"acme", "requeue", "off"}
    assert set(document["detection_s"]) == {"p50", "p95"} == set(document["fault_to_first_step_s"])
    assert all(0 < part <= 1 for part in document["ettr"].values())
    assert sum(row["injected"] for row in document["by_kind"].values()) == document["injected"]
    assert len(list(report.report_lines(document))) > 10


def test_command_prints_one_document():
    out = io.StringIO()

    call_command("drill", "--hours", "0.5", "--rates", "llama3", "--json", stdout=out)

    assert json.loads(out.getvalue()).keys() >= KEYS


@pytest.mark.parametrize(
    ("arguments", "word"),
    [(("--hours", "0"), "--hours: 0"), (("--hours", "nan"), "--hours"), (("--rates", "x"), "'x'")],
)
def test_invalid_argument_is_rejected_with_a_message(arguments, word):
    with pytest.raises(CommandError, match=word):
        call_command("drill", *arguments)
