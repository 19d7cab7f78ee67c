"""slurmrestd's shapes, out and in; the adapter reads what this writes."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings

from jobs.core.lifecycle import State
from scheduling.backends import dialect
from scheduling.slurmsim import request_bodies, wire
from scheduling.slurmsim.values import SignalTarget, SlurmError
from scheduling.slurmsim.wire import ClusterInfo, InvalidRequest
from tests.backends.test_dialect import anything, recorded, submission

from .make import NODES, NOW, request, world

SEREN = ClusterInfo(name="seren")


def running():
    cluster = world()
    cluster.submit(request(*NODES[:2], gpu_model="a100", comment="acme:k1", limit_s=90.0), NOW)
    cluster.submit(request(NODES[2], seconds=1, end="FAILED:3"), NOW)
    cluster.submit(request(NODES[0], gpus_per_node=8), NOW)
    cluster.drain(NODES[3], "fan", "ada", NOW)
    cluster.advance_to(NOW + 5)
    return cluster


def test_the_adapter_reads_what_the_wire_writes():
    cluster = running()

    gang, failed, waiting = [dialect.parse_job(wire.job_body(SEREN, job)) for job in cluster.jobs.values()]

    assert (gang.key, gang.state, gang.nodes) == ("k1", State.RUNNING, NODES[:2])
    assert gang.gpus == {NODES[0]: (0, 1, 2, 3), NODES[1]: (0, 1, 2, 3)}
    assert (failed.state, failed.exit_code, failed.gpus) == (State.FAILED, 3, {})
    assert (waiting.state, waiting.reason, waiting.started_at) == (State.PENDING, "Resources", None)


def test_nodes_are_written_as_they_are_read():
    nodes = {
        node.name: node for node in dialect.parse_nodes(wire.nodes_body(running(), SEREN, running().nodes.values()))
    }

    assert (nodes[NODES[0]].gpus, nodes[NODES[0]].gpu_model) == (8, "a100")
    assert "leaf-l01" in nodes[NODES[0]].features
    assert (nodes[NODES[3]].flags, nodes[NODES[3]].reason) == ({"DRAIN"}, "fan")


@pytest.mark.parametrize("kind", ["jobs", "nodes"])
def test_every_field_has_the_shape_that_a_real_slurm_gives_it(kind):
    cluster = running()
    ours = (
        wire.job_body(SEREN, cluster.jobs[1])
        if kind == "jobs"
        else wire.node_body(cluster, SEREN, cluster.nodes[NODES[0]])
    )
    theirs = recorded("v0.0.42")[kind][kind][0]

    assert set(ours) <= set(theirs)
    assert {name: type(value) for name, value in ours.items()} == {name: type(theirs[name]) for name in ours}
    assert {n: sorted(v) for n, v in ours.items() if isinstance(v, dict)} == {
        n: sorted(theirs[n]) for n, v in ours.items() if isinstance(v, dict)
    }


def test_a_submission_of_the_adapter_is_understood():
    sent = dialect.submit_body(dialect.DIALECTS[wire.API], submission(time_limit=timedelta(minutes=90)))

    asked = request_bodies.parse_job_request(json.loads(json.dumps(sent)), "ada")

    assert (asked.comment, asked.user, asked.account) == ("acme:a1", "ada", "nlp")
    assert (asked.required_nodes, asked.node_count) == (("gpu1", "gpu2"), 2)
    assert (asked.gpus_per_node, asked.gpu_model, asked.cpus_per_node) == (8, "a100", 64)
    assert (asked.limit_s, asked.memory_per_node_mb, asked.stdout) == (5400.0, 1000, "/logs/a1.log")
    assert asked.environment["LANG"] == "C"


GOOD = {"script": "#!/bin/sh\n", "environment": ["A=b"], "current_working_directory": "/tmp"}


@pytest.mark.parametrize(
    ("changed", "number"),
    [
        ({"script": ""}, 9000),
        ({"script": "true"}, 9202),
        ({"environment": []}, 2127),
        ({"environment": ["A"]}, 9202),
        ({"current_working_directory": None}, 2063),
        ({"time_limit": "soon"}, 9202),
        ({"time_limit": {"set": True, "number": []}}, 9202),
        ({"tres_per_node": "gres/fpga:1"}, 2072),
        ({"required_nodes": "a[1-"}, 9202),
        ({"required_nodes": [7]}, 9202),
        ({"name": 7}, 9202),
        ({"hold": "yes"}, 9202),
    ],
)
def test_a_bad_submission_is_named_with_slurms_number(changed, number):
    with pytest.raises(InvalidRequest) as bad:
        request_bodies.parse_job_request({"job": {**GOOD, **changed}}, "ada")

    assert bad.value.number == number


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("", ("", 0)),
        ("gpu", ("", 1)),
        ("gpu:8", ("", 8)),
        ("gres/gpu:a100:4", ("a100", 4)),
        ("gres:gpu:h200", ("h200", 1)),
    ],
)
def test_gpus_are_asked_for_in_any_spelling(text, gpus):
    asked = request_bodies.parse_job_request({"job": {**GOOD, "tres_per_node": text}}, "ada")

    assert (asked.gpu_model, asked.gpus_per_node) == gpus


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(anything)
def test_no_body_makes_it_fall_over(body):
    for read in (
        lambda b: request_bodies.parse_job_request(b, "x"),
        request_bodies.parse_job_update,
        request_bodies.parse_node_update,
    ):
        for said in (body, {"job": body}, {"job": {**GOOD, "required_nodes": body}}, {"state": body}):
            try:
                read(said)
            except (InvalidRequest, SlurmError):
                continue


@pytest.mark.parametrize(("text", "number"), [("9", 9), ("KILL", 9), ("sigusr1", 10), ("TERM", 15)])
def test_a_signal_is_a_number_or_a_name(text, number):
    assert request_bodies.parse_signal(text) == number


@pytest.mark.parametrize("text", ["", "99", "FOO", "-1", "9999999999"])
def test_no_other_word_is_a_signal(text):
    with pytest.raises(InvalidRequest):
        request_bodies.parse_signal(text)


def test_gpu_indices_are_written_as_ranges():
    assert wire.format_ranges([7, 0, 1, 2, 5]) == "0-2,5,7"


@pytest.mark.parametrize(
    ("text", "aim"),
    [("", SignalTarget.ALL), ("BATCH_JOB", SignalTarget.SHELL), ("FULL_STEPS_ONLY", SignalTarget.STEPS)],
)
def test_flags_say_who_of_a_job_gets_a_signal(text, aim):
    assert request_bodies.parse_signal_target(text) == aim


def test_no_other_flag_is_understood():
    with pytest.raises(InvalidRequest, match="flags=EVERYBODY"):
        request_bodies.parse_signal_target("EVERYBODY")
