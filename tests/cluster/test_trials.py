"""Jobs of evaluation campaigns, as a simulated cluster plays them: their logs say what the real program would."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from scheduling.evaluation import orders
from scheduling.evaluation.job_output import parse_job_output
from scheduling.slurmsim.faults import FaultImpact, FaultKind
from scheduling.slurmsim.scripts import evaluation_jobs, job_output
from scheduling.slurmsim.scripts.play import simulate_run
from scheduling.slurmsim.values import SlurmJob
from tests.cluster.make import NOW, request


def what(do: str = "run", *, scores: bool = False, parts: int = 3, **more) -> dict:
    listed = [
        {"id": n, "dataset": "gsm8k", "start": 10 * n, "samples": 10, "scores": scores, "expected_s": 4.0}
        for n in range(parts)
    ]
    plain = {"do": do, "nonce": "word", "model": "/m", "parts": listed, "from": "/a", "to": "/dev/shm/b", "grace_s": 10}
    return plain | more


def job(asked: dict, **changed) -> SlurmJob:
    plain = request("seren-001", gpus_per_node=1)
    environment = {"ACME_EVALUATION": json.dumps(asked), "ACME_KIND": "evaluation"}
    made = SlurmJob(id=7, request=replace(plain, environment=environment, comment="key"), submitted_at=NOW)
    return replace(made, began_at=NOW, nodes=("seren-001",), gpus={"seren-001": (0,)}, **changed)


def told(of: SlurmJob, until_s: float = 1e9):
    script = job_output.plan_log(of, simulate_run(of, seed=1, speed=60))
    return parse_job_output(job_output.lines_until(script, 0, until_s), "word")


def test_a_trial_says_each_part_once_at_growing_times_and_ends_well():
    of = job(what())
    said = told(of)

    assert [part.part for part in said.parts] == [0, 1, 2]
    assert [part.at_s for part in said.parts] == sorted(part.at_s for part in said.parts)
    assert said.ready
    assert simulate_run(of, seed=1, speed=60).state == "COMPLETED"


def test_a_part_is_said_when_it_is_done_and_not_before():
    whole = told(job(what()))
    first, second, _ = whole.parts

    assert [part.part for part in told(job(what()), (first.at_s + second.at_s) / 2).parts] == [0]


def test_what_it_takes_is_not_what_was_expected():
    modest, bold = what(), what()
    for part in bold["parts"]:
        part["expected_s"] = 1000.0

    assert told(job(modest)).parts == told(job(bold)).parts


def test_a_metric_brings_a_result_that_is_the_same_at_every_look():
    (one, *_), (again, *_) = told(job(what(scores=True))).parts, told(job(what(scores=True))).parts

    assert one.scores == again.scores
    assert 0 <= one.scores["accuracy"] <= 1


def course(asked: dict, speed: float = 1.0):
    return evaluation_jobs.trial_output({"ACME_EVALUATION": json.dumps(asked)}, True, "dice", speed)


def test_a_faster_cluster_says_the_same_sooner():
    plain, fast = course(what(scores=True)), course(what(scores=True), speed=10)
    slow, quick = (parse_job_output([text for _, text in one.said], "word").parts for one in (plain, fast))

    assert fast.ends_s == pytest.approx(plain.ends_s / 10)
    assert [part.took_s for part in quick] == pytest.approx([part.took_s / 10 for part in slow], abs=0.001)
    assert [part.scores for part in quick] == [part.scores for part in slow]


def test_a_model_that_is_no_copy_comes_over_the_link():
    copied = orders.copy_path("/dev/shm", "vision", "/ckpt/a")

    assert course(what(model=copied)).said[0][0] < course(what()).said[0][0]


def test_a_command_that_scores_holds_its_gpu_meanwhile():
    assert course(what(scores=True)).ends_s > course(what()).ends_s


def test_copies_arrive_and_go():
    assert told(job(what("stage"))).gb == 14.0
    assert told(job(what("remove"))).removed


def test_what_befalls_a_trial_cuts_its_log_and_what_it_said_before_counts():
    whole = told(job(what()))
    at = whole.parts[1].at_s - 0.01
    struck = job(
        what(), blows=(FaultImpact(kind=FaultKind.OFF_BUS, at=NOW + at, until=NOW + at, node="seren-001", gpu=0),)
    )

    assert [part.part for part in told(struck).parts] == [0]
    assert simulate_run(struck, seed=1, speed=60).state == "FAILED"


MOMENTS = (10.0, 14.0, 18.0, 22.0)  # the model is there, and each of three parts is done


@pytest.mark.parametrize(
    ("asked_s", "grace_s", "ends_s"),
    [
        (3.0, 10, 3.0),  # it still loads its model
        (15.0, 10, 18.0),  # its second part is expected to take three seconds more
        (15.0, 2, 15.0),
        (23.0, 10, None),  # it is through
    ],
)
def test_asked_to_give_way_it_ends_after_its_part_or_at_once(asked_s, grace_s, ends_s):
    environment = {"ACME_EVALUATION": json.dumps(what(grace_s=grace_s))}

    assert evaluation_jobs.preempted_end_s(environment, MOMENTS, asked_s) == ends_s


def test_no_other_job_gives_way():
    assert evaluation_jobs.preempted_end_s({}, (), 3.0) is None
    assert evaluation_jobs.preempted_end_s({"ACME_EVALUATION": json.dumps({"do": "stage"})}, (4.5,), 3.0) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"do": "run"}', '{"do": "fly"}', '{"do": "run", "parts": [1]}'])
def test_a_variable_that_is_nonsense_is_played_like_any_other_job(text):
    assert evaluation_jobs.trial_output({"ACME_EVALUATION": text}, True, "dice") is None


def test_lines_are_due_one_after_the_other_and_then_never():
    of = job(what())
    script = job_output.plan_log(of, simulate_run(of, seed=1, speed=60))
    due = [job_output.next_due_s(script, index) for index in range(6)]

    assert due[:4] == sorted(due[:4])
    assert due[4:] == [float("inf")] * 2
