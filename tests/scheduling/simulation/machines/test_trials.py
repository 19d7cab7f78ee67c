"""Jobs of evaluation campaigns on a simulated cluster: their logs contain what the real program would write."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from scheduling.evaluation.rules import orders
from scheduling.evaluation.rules.job_output import parse_job_output
from scheduling.simulation.machines.faults import FaultImpact, FaultKind
from scheduling.simulation.machines.scripts import evaluation_jobs, job_output
from scheduling.simulation.machines.scripts.play import simulate_run
from scheduling.simulation.machines.values import SimulatedJob

from .make import NOW, request


def what(do: str = "run", *, scores: bool = False, parts: int = 3, **more) -> dict:
    listed = [
        {"id": n, "dataset": "gsm8k", "start": 10 * n, "samples": 10, "scores": scores, "expected_s": 4.0}
        for n in range(parts)
    ]
    plain = {
        "do": do, "nonce": "word", "checkpoint": "/m", "model": "/m", "parts": listed,
        "from": "/a", "to": "/dev/shm/b", "grace_s": 10,
    }  # fmt: skip
    return plain | more


def job(payload: dict, **changed) -> SimulatedJob:
    plain = request("seren-001", gpus_per_node=1)
    environment = {"ACME_EVALUATION": json.dumps(payload), "ACME_KIND": "evaluation"}
    new_job = SimulatedJob(id=7, request=replace(plain, environment=environment, comment="key"), submitted_at=NOW)
    return replace(new_job, began_at=NOW, nodes=("seren-001",), gpus={"seren-001": (0,)}, **changed)


def parsed_output(of: SimulatedJob, until_s: float = 1e9):
    script = job_output.plan_log(of, simulate_run(of, seed=1, speed=60))
    return parse_job_output(job_output.lines_until(script, 0, until_s), "word")


def test_trial_reports_each_part_once_in_order_and_succeeds():
    of = job(what())
    output = parsed_output(of)

    assert [part.part for part in output.parts] == [0, 1, 2]
    assert [part.at_s for part in output.parts] == sorted(part.at_s for part in output.parts)
    assert output.ready
    assert simulate_run(of, seed=1, speed=60).state == "COMPLETED"


def test_part_is_reported_only_when_it_is_done():
    whole = parsed_output(job(what()))
    first, second, _ = whole.parts

    assert [part.part for part in parsed_output(job(what()), (first.at_s + second.at_s) / 2).parts] == [0]


def test_duration_does_not_depend_on_the_estimate():
    modest, bold = what(), what()
    for part in bold["parts"]:
        part["expected_s"] = 1000.0

    assert parsed_output(job(modest)).parts == parsed_output(job(bold)).parts


def test_copy_of_a_checkpoint_scores_like_the_checkpoint():
    copied = what(scores=True, checkpoint="/ckpt/step-5000", model=f"/dev/shm/acme-{'0' * 20}")
    original = what(scores=True, checkpoint="/ckpt/step-5000", model="/ckpt/step-5000")

    scores = [[part.scores for part in parsed_output(job(payload)).parts] for payload in (copied, original)]

    assert scores[0] == scores[1]


def test_scores_are_reproducible():
    (one, *_), (again, *_) = parsed_output(job(what(scores=True))).parts, parsed_output(job(what(scores=True))).parts

    assert one.scores == again.scores
    assert 0 <= one.scores["accuracy"] <= 1


def course(payload: dict, speed: float = 1.0):
    return evaluation_jobs.trial_output({"ACME_EVALUATION": json.dumps(payload)}, True, "dice", speed)


def test_faster_cluster_gives_the_same_results_sooner():
    plain, fast = course(what(scores=True)), course(what(scores=True), speed=10)
    slow, quick = (parse_job_output([text for _, text in one.lines], "word").parts for one in (plain, fast))

    assert fast.ends_s == pytest.approx(plain.ends_s / 10)
    assert [part.took_s for part in quick] == pytest.approx([part.took_s / 10 for part in slow], abs=0.001)
    assert [part.scores for part in quick] == [part.scores for part in slow]


def test_model_without_a_local_copy_loads_over_the_network():
    copied = orders.copy_path("/dev/shm", "vision", "/ckpt/a")

    assert course(what(model=copied)).lines[0][0] < course(what()).lines[0][0]


def test_scoring_command_holds_its_gpu():
    assert course(what(scores=True)).ends_s > course(what()).ends_s


def test_copies_are_staged_and_removed():
    assert parsed_output(job(what("stage"))).gb == 14.0
    assert parsed_output(job(what("remove"))).removed


def test_fault_ends_the_log_of_a_trial_and_earlier_results_count():
    whole = parsed_output(job(what()))
    at = whole.parts[1].at_s - 0.01
    struck = job(
        what(), blows=(FaultImpact(kind=FaultKind.OFF_BUS, at=NOW + at, until=NOW + at, node="seren-001", gpu=0),)
    )

    assert [part.part for part in parsed_output(struck).parts] == [0]
    assert simulate_run(struck, seed=1, speed=60).state == "FAILED"


MOMENTS = (10.0, 14.0, 18.0, 22.0)  # the model is ready, and each of three parts is done


@pytest.mark.parametrize(
    ("preempted_s", "grace_s", "ends_s"),
    [
        (3.0, 10, 3.0),  # it is still loading its model
        (15.0, 10, 18.0),  # its second part is expected to take three seconds more
        (15.0, 2, 15.0),
        (23.0, 10, None),  # it has finished
    ],
)
def test_preempted_trial_ends_after_its_part_or_at_once(preempted_s, grace_s, ends_s):
    environment = {"ACME_EVALUATION": json.dumps(what(grace_s=grace_s))}

    assert evaluation_jobs.preempted_end_s(environment, MOMENTS, preempted_s) == ends_s


def test_other_jobs_ignore_preemption():
    assert evaluation_jobs.preempted_end_s({}, (), 3.0) is None
    assert evaluation_jobs.preempted_end_s({"ACME_EVALUATION": json.dumps({"do": "stage"})}, (4.5,), 3.0) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"do": "run"}', '{"do": "fly"}', '{"do": "run", "parts": [1]}'])
def test_job_with_an_invalid_variable_is_simulated_as_an_ordinary_job(text):
    assert evaluation_jobs.trial_output({"ACME_EVALUATION": text}, True, "dice") is None


def test_lines_are_due_in_order_and_never_after_the_end():
    of = job(what())
    script = job_output.plan_log(of, simulate_run(of, seed=1, speed=60))
    due = [job_output.next_due_s(script, index) for index in range(6)]

    assert due[:4] == sorted(due[:4])
    assert due[4:] == [float("inf")] * 2
