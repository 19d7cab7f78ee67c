"""The course of simulated jobs, and their output."""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf

import pytest

from acmeweb.common.errors import InvalidInput
from jobs.core.lifecycle import State
from scheduling.simulation.machines.failure_reasons import REASON_NAMES
from scheduling.simulation.machines.faults import FaultImpact, FaultKind
from scheduling.simulation.machines.scripts.job_output import lines_until, plan_log
from scheduling.simulation.machines.scripts.play import check_hints, simulate_run
from scheduling.simulation.machines.values import SimulatedJob, SpeedChange

from .make import NODES, NOW, request


def job(**environment: str) -> SimulatedJob:
    job_request = request(*NODES[:2], environment=environment, comment="acme:a1")
    return SimulatedJob(id=7, request=job_request, submitted_at=NOW, started_at=NOW, began_at=NOW, nodes=NODES[:2])


def play(speed: float = 1.0, seed: int = 0, **environment: str):
    return simulate_run(job(**environment), seed=seed, speed=speed)


def log(until: float = inf, first: int = 0, **environment: str) -> list[str]:
    script = plan_log(job(**environment), play(**environment))
    return lines_until(script, first, until)


def test_same_seed_gives_the_same_run():
    assert play(ACME_KIND="pretrain") == play(ACME_KIND="pretrain")
    assert play(seed=1) != play(seed=2)


def test_speed_divides_drawn_durations_but_not_hints():
    assert play(speed=10, SIM_END="COMPLETED").duration_s == pytest.approx(
        play(speed=1, SIM_END="COMPLETED").duration_s / 10
    )
    assert play(speed=10, SIM_DURATION_S="30").duration_s == 30


def test_hints_determine_the_run():
    run = play(SIM_DURATION_S="12.5", SIM_END="FAILED:9:ecc_error", SIM_LOSS="spike:0.5")

    assert (run.duration_s, run.state, run.exit.code, run.cause) == (12.5, State.FAILED, 9, "ecc_error")


def test_job_with_the_end_timeout_never_ends_by_itself():
    assert play(SIM_END="TIMEOUT", SIM_DURATION_S="3").duration_s == inf


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SIM_DURATION_S", "soon"),
        ("SIM_DURATION_S", "-1"),
        ("SIM_DURATION_S", "nan"),
        ("SIM_END", "EXPLODED"),
        ("SIM_END", "FAILED:x"),
        ("SIM_END", "FAILED:1:bad_mood"),
        ("SIM_END", "COMPLETED:1"),
        ("SIM_END", "COMPLETED,EXPLODED"),
    ],
)
def test_invalid_hint_is_rejected_with_its_name(name, value):
    with pytest.raises(InvalidInput, match=name):
        check_hints({name: value})


def test_training_log_contains_loss_and_throughput():
    lines = log(until=300, ACME_KIND="pretrain", SIM_DURATION_S="4000")

    assert any("world size 8" in line for line in lines[:8])
    assert all(word in lines[20] for word in ("loss", "grad norm", "tokens/s/gpu"))
    assert any("checkpoint saved" in line for line in lines)


def test_loss_decreases_and_a_spike_is_visible():
    plain, spiking = (
        log(ACME_KIND="sft", SIM_DURATION_S="400", SIM_END="COMPLETED", SIM_LOSS=hint) for hint in ("", "spike:0.5")
    )

    def loss(line: str) -> float:
        return float(line.split("loss ")[1].split()[0])

    assert loss(plain[120]) < loss(plain[10])
    assert loss(spiking[120]) > 2 * loss(plain[120])


def test_evaluation_log_contains_the_datasets():
    lines = log(ACME_KIND="evaluation", SIM_DURATION_S="100", SIM_END="COMPLETED")

    assert any("mmlu: finished, accuracy" in line for line in lines)
    assert lines[-1].endswith("all done")


def test_evaluation_named_after_a_benchmark_runs_only_this_one():
    job_request = request(seconds=200.0, comment="acme:a1", name="bbh", environment={"ACME_KIND": "evaluation"})
    bbh = SimulatedJob(id=7, request=job_request, submitted_at=NOW, started_at=NOW, began_at=NOW, nodes=NODES[:1])
    lines = lines_until(plan_log(bbh, simulate_run(bbh, seed=0, speed=60)), 0, inf)

    assert any("bbh: finished" in line for line in lines) and not any("mmlu" in line for line in lines)


@pytest.mark.parametrize("kind", ["pretrain", "sft", "mllm", "evaluation", "debug", "other", ""])
def test_job_without_hints_runs_for_minutes_and_succeeds(kind):
    runs = [play(speed=60, seed=seed, ACME_KIND=kind) for seed in range(200)]

    assert {run.state for run in runs} == {State.COMPLETED}
    assert all(50 < run.duration_s < 1_200 for run in runs)


def test_resumed_training_continues_at_the_step_of_its_checkpoint():
    lines = log(until=60, ACME_KIND="pretrain", ACME_CHECKPOINT_STEP="12000", SIM_DURATION_S="600")

    assert any("loading checkpoint of step 12000" in line for line in lines)
    assert any("step   12001 |" in line for line in lines)


@pytest.mark.parametrize("cause", sorted(REASON_NAMES))
def test_every_failure_reason_has_output(cause):
    lines = log(ACME_KIND="pretrain", SIM_DURATION_S="60", SIM_END=f"FAILED:1:{cause}")

    assert not any(word in line for line in lines for word in ("{rank}", "{host}", "{pid}", "{job}", "{step}"))
    assert any(word in "\n".join(lines[-40:]) for word in ("Error", "error"))


@pytest.mark.parametrize("duration", ["0", "0.1", "1", "3.3", "60", "601", "20000"])
@pytest.mark.parametrize("end", ["COMPLETED", "FAILED:1:out_of_memory_error"])
def test_log_written_in_pieces_equals_the_log_written_at_once(duration, end):
    hints = {"ACME_KIND": "pretrain", "SIM_DURATION_S": duration, "SIM_END": end}
    whole, pieces = log(**hints), []

    for step in range(1, 12):
        pieces += log(until=float(duration) * step / 10, first=len(pieces), **hints)

    assert pieces == whole
    assert log(first=len(whole), **hints) == []


def test_long_log_stays_small():
    assert len(log(ACME_KIND="pretrain", SIM_DURATION_S="1000000", SIM_END="COMPLETED")) < 2_100


@pytest.mark.parametrize(
    ("comment", "state"),
    [
        ("acme:a.1", "FAILED"),
        ("acme:a.2", "NODE_FAIL"),
        ("acme:a.3", "COMPLETED"),
        ("acme:a.9", "COMPLETED"),
        ("v1.2", "FAILED"),
    ],
)
def test_each_attempt_has_the_end_of_its_number(comment, state):
    job_request = request(end="FAILED:1:cuda_error,NODE_FAIL,COMPLETED", comment=comment)

    assert simulate_run(SimulatedJob(id=1, request=job_request, submitted_at=NOW), seed=1, speed=1).state == state


def capped(*speeds: tuple[float, float], blows=(), **environment: str):
    changes = tuple(SpeedChange(at=NOW + at_s, speed=speed) for at_s, speed in speeds)
    return replace(job(**environment), speeds=changes, blows=blows)


def test_lower_clocks_prolong_a_job_from_then_on():
    hints = {"SIM_DURATION_S": "100", "SIM_END": "COMPLETED"}

    assert simulate_run(capped((60, 0.5), **hints), seed=0, speed=1).duration_s == 140
    assert simulate_run(capped((60, 0.5), (80, 1.0), **hints), seed=0, speed=1).duration_s == 110
    assert simulate_run(capped((100, 0.5), **hints), seed=0, speed=1).duration_s == 100


def test_slow_gpu_on_capped_nodes_is_slower_by_both():
    slow = FaultImpact(kind=FaultKind.SLOW, at=NOW + 20, until=NOW + 10_000)
    run = simulate_run(capped((50, 0.5), blows=(slow,), SIM_DURATION_S="100", SIM_END="COMPLETED"), seed=0, speed=1)

    done_before = 20 + 30 / 1.8
    assert run.duration_s == pytest.approx(50 + (100 - done_before) * 1.8 / 0.5)
    assert [run.pace(at) for at in (10, 30, 60)] == pytest.approx([1, 1 / 1.8, 0.5 / 1.8])


def test_log_reports_longer_steps_at_lower_clocks_and_keeps_its_past():
    hints = {"ACME_KIND": "pretrain", "SIM_DURATION_S": "20000", "SIM_END": "COMPLETED"}
    plain, slow = (capped(*speeds, **hints) for speeds in ((), ((10_000, 0.5),)))
    logs = [lines_until(plan_log(one, simulate_run(one, seed=0, speed=1)), 0, 15_000) for one in (plain, slow)]

    def step_times(lines):
        return [float(found[1]) for line in lines if (found := re.search(r"\| ([\d.]+) s/step", line))]

    before = lines_until(plan_log(slow, simulate_run(slow, seed=0, speed=1)), 0, 10_000)
    assert logs[0][: len(before)] == before and len(logs[1]) < len(logs[0])
    assert step_times(logs[1])[-1] == pytest.approx(2 * step_times(logs[0])[-1], rel=0.1)
