"""Formats of slurmrestd in responses and requests; Acme's adapter parses what the simulator writes."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from hypothesis import given

from jobs.core.lifecycle import State
from scheduling.backends import dialect
from scheduling.simulation.machines.values import SignalTarget
from scheduling.simulation.slurm import request_bodies, wire
from scheduling.simulation.slurm.values import SlurmError
from scheduling.simulation.slurm.wire import ClusterInfo, InvalidRequest
from tests.scheduling.backends.test_dialect import anything, recorded, submission
from tests.scheduling.simulation.machines.make import NODES, NOW, request

from .make import controller

SEREN = ClusterInfo(name="seren")


def running():
    cluster = controller()
    cluster.submit(request(*NODES[:2], gpu_model="a100", comment="acme:k1", limit_s=90.0), NOW)
    cluster.submit(request(NODES[2], seconds=1, end="FAILED:3"), NOW)
    cluster.submit(request(NODES[0], gpus_per_node=8), NOW)
    cluster.drain(NODES[3], "fan", "ada", NOW)
    cluster.advance_to(NOW + 5)
    return cluster


def test_adapter_parses_the_jobs_of_the_simulator():
    cluster = running()

    gang, failed, waiting = [dialect.parse_job(wire.job_body(SEREN, job)) for job in cluster.jobs.values()]

    assert (gang.key, gang.state, gang.nodes) == ("k1", State.RUNNING, NODES[:2])
    assert gang.gpus == {NODES[0]: (0, 1, 2, 3), NODES[1]: (0, 1, 2, 3)}
    assert (failed.state, failed.exit_code, failed.gpus) == (State.FAILED, 3, {})
    assert (waiting.state, waiting.reason, waiting.started_at) == (State.PENDING, "Resources", None)


def test_adapter_parses_the_nodes_of_the_simulator():
    nodes = {
        node.name: node for node in dialect.parse_nodes(wire.nodes_body(running(), SEREN, running().nodes.values()))
    }

    assert (nodes[NODES[0]].gpus, nodes[NODES[0]].gpu_model) == (8, "a100")
    assert "leaf-l01" in nodes[NODES[0]].features
    assert (nodes[NODES[3]].flags, nodes[NODES[3]].reason) == ({"DRAIN"}, "fan")


@pytest.mark.parametrize("kind", ["jobs", "nodes"])
def test_every_field_has_the_format_of_a_real_slurm(kind):
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


def test_submission_of_the_adapter_is_parsed():
    sent = dialect.submit_body(dialect.DIALECTS[wire.API], submission(time_limit=timedelta(minutes=90)))

    job_request = request_bodies.parse_job_request(json.loads(json.dumps(sent)), "ada")

    assert (job_request.comment, job_request.user, job_request.account) == ("acme:a1", "ada", "nlp")
    assert (job_request.required_nodes, job_request.node_count) == (("gpu1", "gpu2"), 2)
    assert (job_request.gpus_per_node, job_request.gpu_model, job_request.cpus_per_node) == (8, "a100", 64)
    assert (job_request.limit_s, job_request.memory_per_node_mb, job_request.stdout) == (5400.0, 1000, "/logs/a1.log")
    assert job_request.environment["LANG"] == "C"


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
def test_invalid_submission_has_slurms_error_number(changed, number):
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
def test_gpus_are_parsed_in_all_spellings(text, gpus):
    job_request = request_bodies.parse_job_request({"job": {**GOOD, "tres_per_node": text}}, "ada")

    assert (job_request.gpu_model, job_request.gpus_per_node) == gpus


@given(anything)
def test_parsers_reject_any_invalid_body_with_an_api_error(body):
    for read in (
        lambda b: request_bodies.parse_job_request(b, "x"),
        request_bodies.parse_job_update,
        request_bodies.parse_node_update,
    ):
        for candidate in (body, {"job": body}, {"job": {**GOOD, "required_nodes": body}}, {"state": body}):
            try:
                read(candidate)
            except (InvalidRequest, SlurmError):
                continue


@pytest.mark.parametrize(("text", "number"), [("9", 9), ("KILL", 9), ("sigusr1", 10), ("TERM", 15)])
def test_signal_is_a_number_or_a_name(text, number):
    assert request_bodies.parse_signal(text) == number


@pytest.mark.parametrize("text", ["", "99", "FOO", "-1", "9999999999"])
def test_other_texts_are_not_signals(text):
    with pytest.raises(InvalidRequest):
        request_bodies.parse_signal(text)


def test_gpu_indices_are_formatted_as_ranges():
    assert wire.format_ranges([7, 0, 1, 2, 5]) == "0-2,5,7"


@pytest.mark.parametrize(
    ("text", "aim"),
    [("", SignalTarget.ALL), ("BATCH_JOB", SignalTarget.SHELL), ("FULL_STEPS_ONLY", SignalTarget.STEPS)],
)
def test_flags_select_the_processes_that_get_a_signal(text, aim):
    assert request_bodies.parse_signal_target(text) == aim


def test_unknown_flag_is_rejected():
    with pytest.raises(InvalidRequest, match="flags=EVERYBODY"):
        request_bodies.parse_signal_target("EVERYBODY")
