"""Request bodies of each version, and recorded responses.

`record` made the responses, with 22.05 (v0.0.38), 23.11 (v0.0.39), 24.11 (v0.0.40 to v0.0.42) and 26.05 (v0.0.43 to
v0.0.45).
"""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmeweb.common.errors import MalformedResponse
from jobs.core.lifecycle import NodeFlag, NodeState, State
from scheduling.backends import dialect
from scheduling.backends.base import SubmitRequest
from scheduling.backends.batch_script import batch_script
from scheduling.backends.dialect import DIALECTS
from scheduling.backends.slurm import state_in_log

ANSWERS = Path(__file__).parent / "answers"
VERSIONS = tuple(DIALECTS)
SILENT_VERSIONS = ("v0.0.40", "v0.0.41")  # report no error when an unknown job is cancelled


def recorded(version: str) -> dict[str, Any]:
    return json.loads((ANSWERS / f"{version}.json").read_text())


def submission(**changed: Any) -> SubmitRequest:
    plain: dict[str, Any] = {
        "key": "a1",
        "name": "train",
        "user": "ada",
        "account": "nlp",
        "script": "python train.py",
        "workdir": "/home/ada",
        "environment": {"LANG": "C"},
        "nodes": ("gpu1", "gpu2"),
        "gpus_per_node": 8,
        "gpu_model": "a100",
        "cpus_per_node": 64,
        "memory_per_node_mb": 1000,
        "time_limit": timedelta(minutes=90),
        "stdout": "/logs/a1.log",
    }
    return SubmitRequest(**{**plain, **changed})


def body(version: str, **changed: Any) -> dict[str, Any]:
    return dialect.submit_body(DIALECTS[version], submission(**changed))


def test_old_version_uses_plain_values():
    sent = body("v0.0.38")

    assert sent["script"] == "#!/bin/bash\npython train.py\n"
    assert sent["job"]["nodelist"] == "gpu1,gpu2"
    assert sent["job"]["nodes"] == [2, 2]
    assert sent["job"]["gres"] == "gpu:a100:8"
    assert sent["job"]["time_limit"] == 90
    assert sent["job"]["environment"]["LANG"] == "C"
    assert sent["job"]["no_requeue"] is True


def test_newer_version_uses_number_objects():
    job = body("v0.0.42")["job"]

    assert job["script"].startswith("#!/bin/bash\n")
    assert (job["required_nodes"], job["minimum_nodes"], job["maximum_nodes"]) == (["gpu1", "gpu2"], 2, 2)
    assert job["tres_per_node"] == "gres/gpu:a100:8"
    assert job["time_limit"] == {"set": True, "infinite": False, "number": 90}
    assert "LANG=C" in job["environment"]
    assert job["requeue"] is False


@pytest.mark.parametrize("version", DIALECTS)
def test_every_version_sends_the_key_and_the_output_path(version):
    job = body(version)["job"]

    assert (job["comment"], job["standard_output"]) == ("acme:a1", "/logs/a1.log")


@pytest.mark.parametrize(("limit", "minutes"), [(1, 1), (60, 1), (61, 2), (3600, 60)])
def test_time_limit_is_rounded_up_to_whole_minutes(limit, minutes):
    assert body("v0.0.38", time_limit=timedelta(seconds=limit))["job"]["time_limit"] == minutes


def test_workload_key_is_sent():
    assert body("v0.0.42", wckey="climate")["job"]["wckey"] == "climate"


def test_unset_values_are_not_sent():
    job = body("v0.0.42", time_limit=None, gpus_per_node=0, account="", memory_per_node_mb=0)["job"]

    assert not {"time_limit", "tres_per_node", "account", "memory_per_node", "wckey"} & set(job)


@pytest.mark.parametrize("version", ["v0.0.38", "v0.0.42"])
def test_script_with_a_record_is_wrapped(version):
    sent = body(version, record="/logs/a.log.acme", shell_signals=("USR1",))

    script = sent["job"].get("script") or sent["script"]
    assert script == batch_script("python train.py", record="/logs/a.log.acme", forward=("USR1",))


def test_script_keeps_its_interpreter_line():
    assert dialect.with_interpreter_line("#!/usr/bin/env python3\nprint()\n") == "#!/usr/bin/env python3\nprint()\n"


# Recorded responses


def jobs_by_name(version: str):
    return {job.name: job for job in dialect.parse_jobs(recorded(version)["jobs"])}


@pytest.mark.parametrize("version", VERSIONS)
def test_all_versions_report_the_same_states(version):
    seen = {name: (job.state, job.exit_code, job.signal) for name, job in jobs_by_name(version).items()}

    assert seen == {
        "gang": (State.RUNNING, None, None),
        "exit3": (State.FAILED, 3, None),
        "killed": (State.FAILED, 0, 9),
        "waits": (State.PENDING, None, None),
        "cancelled": (State.CANCELLED, 0, 15),
        "good": (State.COMPLETED, 0, None),
        "forever": (State.RUNNING, None, None),
    }


@pytest.mark.parametrize("version", [api for api, spoken in DIALECTS.items() if spoken.lists_states])
def test_list_of_states_agrees_with_the_list_of_jobs(version):
    states = dict(dialect.parse_job_states(recorded(version)["states"]))

    assert states == {job.backend_id: (job.state, job.flags) for job in jobs_by_name(version).values()}


@pytest.mark.parametrize("version", VERSIONS)
def test_gpus_of_a_multi_node_job_are_parsed_per_node(version):
    gang = jobs_by_name(version)["gang"]

    assert gang.key == "gang"
    assert gang.nodes == ("node2", "node3")
    assert gang.gpus == {"node2": (0, 1, 2), "node3": (0, 1, 2)}


@pytest.mark.parametrize("version", VERSIONS)
def test_projected_end_and_estimated_start_are_ignored(version):
    seen = jobs_by_name(version)

    assert seen["gang"].ended_at is None
    assert seen["waits"].started_at is None
    assert seen["good"].started_at <= seen["good"].ended_at


@pytest.mark.parametrize("version", VERSIONS)
def test_nodes_of_each_version_are_parsed(version):
    nodes = {node.name: node for node in dialect.parse_nodes(recorded(version)["nodes"])}

    assert (nodes["node2"].state, nodes["node2"].gpus, nodes["node2"].gpu_model) == (NodeState.MIXED, 8, "h200")
    assert nodes["node2"].memory_mb == 1_000_000
    assert "DRAIN" in nodes["node4"].flags
    assert nodes["node4"].reason == "bad fan"


@pytest.mark.parametrize("version", VERSIONS)
def test_rejection_and_unknown_job_are_recognized(version):
    answers = recorded(version)

    assert "Invalid node name specified" in dialect.first_error_message(dialect.error_entries(answers["refused"]))
    numbers = {c.number for c in dialect.error_entries(answers["cancel_unknown"])}
    assert numbers == ({2017} if version not in SILENT_VERSIONS else set())


@pytest.mark.parametrize("version", VERSIONS)
def test_ping_reports_the_release_and_the_state_of_the_controller(version):
    ping = recorded(version)["ping"]

    assert dialect.parse_release(ping).count(".") == 2
    assert dialect.controller_is_up(ping)
    assert not dialect.controller_is_up({"pings": [{"pinged": "DOWN"}]})


# Malformed responses


def raw_job(**changed: Any) -> dict[str, Any]:
    return {"job_id": 7, "job_state": ["RUNNING"], "nodes": "gpu[1-2]", **changed}


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"job_id": "7"}, "job_id"),
        ({"job_id": True}, "job_id"),
        ({"job_state": ["ASLEEP"]}, "job_state"),
        ({"job_state": None}, "job_state"),
        ({"nodes": ["gpu1"]}, "nodes"),
        ({"nodes": "gpu[1-"}, "nodes"),
        ({"nodes": "gpu[1-999999999]"}, "nodes"),
        ({"gres_detail": "gpu"}, "gres_detail"),
        ({"gres_detail": ["gpu:8(IDX:0-99999999)"]}, "gres_detail"),
        ({"start_time": 10**30}, "start_time"),
        ({"start_time": {"set": True, "number": "soon"}}, "start_time"),
        ({"name": {}}, "name"),
        ({"job_state": "FAILED", "exit_code": "1:0"}, "exit_code"),
    ],
)
def test_malformed_job_raises_an_error_that_names_the_field(changed, field):
    with pytest.raises(MalformedResponse, match=field):
        dialect.parse_job(raw_job(**changed))


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"comment": 7}, "comment"),
        ({"comment": {"job": ["acme:a1"]}}, "comment"),
        ({"job_id": -7}, "job_id"),
        ({"job_id": 2**40}, "job_id"),
        ({"nodes": "gpu[" + "9" * 5000 + "]"}, "nodes"),
        ({"nodes": "gpu" + "[1]" * 3000}, "nodes"),
        ({"nodes": "x" * 60_000 + "[1-100000]"}, "nodes"),
        ({"gres_detail": ["gpu:8(IDX:" + "9" * 5000 + ")"]}, "gres_detail"),
        ({"gres_detail": ["gpu:8(IDX:" + "0-4000," * 5000 + "1)"]}, "gres_detail"),
        ({"tres_per_node": "gres/gpu:" + "9" * 5000}, "gres"),
        ({"job_state": "FAILED", "exit_code": {"return_code": 2**70}}, "return_code"),
    ],
)
def test_value_too_large_for_its_column_raises(changed, field):
    with pytest.raises(MalformedResponse, match=field):
        dialect.parse_job(raw_job(**changed))


def test_text_that_a_database_rejects_is_cleaned():
    seen = dialect.parse_job(raw_job(name="tra\0in", user_name="ad\ud800a"))

    assert (seen.name, seen.user) == ("train", "ad?a")


def test_unknown_flag_of_a_node_is_truncated_to_its_column():
    seen = dialect.parse_node({"name": "n", "state": ["IDLE", "WAITING_FOR_SOMETHING_NEW"]})

    assert (seen.state, seen.flags) == (NodeState.IDLE, {"WAITING_FOR_SOMETHIN"})


@pytest.mark.parametrize("comment", ["acme", "acme-7", "xacme:7", " acme:7", None])
def test_only_the_exact_prefix_marks_a_job_as_ours(comment):
    assert dialect.parse_job(raw_job(comment=comment)).key == ""


def test_completing_alone_counts_as_running():
    seen = dialect.parse_job(raw_job(job_state="COMPLETING", exit_code=15))

    assert (seen.state, seen.flags, seen.exit_code) == (State.RUNNING, {"COMPLETING"}, None)


@pytest.mark.parametrize(
    ("fields", "held", "reason"),
    [
        ({"state_reason": "JobHeldAdmin"}, True, "JobHeldAdmin"),
        ({"state_reason": "JobHeldUser"}, True, "JobHeldUser"),
        ({"state_reason": "BeginTime"}, True, "BeginTime"),
        ({"state_reason": "Dependency"}, True, "Dependency"),
        (
            {"state_reason": "JobHeldAdmin", "state_description": "launch failed requeued held"},
            True,
            "launch failed requeued held",
        ),
        ({"state_reason": "Resources"}, False, "Resources"),
        ({"state_reason": "ReqNodeNotAvail"}, False, "ReqNodeNotAvail"),
        ({"state_reason": "None"}, False, ""),
        ({"state_reason": "JobHeldAdmin", "job_state": ["RUNNING"]}, False, "JobHeldAdmin"),
        ({"state_reason": "NonZeroExitCode", "job_state": ["FAILED"]}, False, ""),
        ({"state_reason": "BadConstraints", "job_state": ["FAILED"]}, False, "BadConstraints"),
    ],
)
def test_reason_of_slurm_says_whether_a_pending_job_is_held(fields, held, reason):
    seen = dialect.parse_job(raw_job(**{"job_state": ["PENDING"], **fields}))

    assert (seen.held, seen.reason) == (held, reason)


@pytest.mark.parametrize(
    ("tail", "state"),
    [
        ("*** JOB 7 ON n1 CANCELLED AT 2026-11-23T03:10:00 ***", State.CANCELLED),
        ("x\n*** JOB 7 ON n1 CANCELLED AT 2026-11-23T03:10:00 DUE TO TIME LIMIT ***\ny", State.TIMEOUT),
        ("*** JOB 7 ON n1 CANCELLED AT 2026-11-23T03:10:00 DUE TO NODE FAILURE ***", State.NODE_FAIL),
        ("*** JOB 7 ON n1 CANCELLED AT 2026-11-23T03:10:00 DUE TO PREEMPTION ***", State.PREEMPTED),
        ("step 7 loss 2.1", None),
        ("", None),
    ],
)
def test_message_of_slurmstepd_in_the_log_gives_the_state(tail, state):
    assert state_in_log(tail) == state


def test_unknown_node_state_is_parsed_as_unknown():
    assert dialect.parse_node({"name": "n", "state": ["FUTURE"]}).state == NodeState.UNKNOWN


@pytest.mark.parametrize(
    ("states", "flags"),
    [
        (["IDLE", "POWER_DOWN"], {NodeFlag.POWER_DOWN}),
        (["IDLE", "POWERING_DOWN"], {NodeFlag.POWERING_DOWN}),
        (["IDLE", "CLOUD", "POWERED_DOWN"], {"CLOUD", NodeFlag.POWERED_DOWN}),
        (["ALLOCATED", "NOT_RESPONDING", "POWERING_UP"], {NodeFlag.POWERING_UP}),
        (["DOWN", "NOT_RESPONDING", "POWERING_UP"], {NodeFlag.NOT_RESPONDING, NodeFlag.POWERING_UP}),
    ],
    ids=("requested", "falls-asleep", "asleep", "boots", "did-not-boot"),
)
def test_node_that_boots_is_not_expected_to_respond(states, flags):
    assert dialect.parse_node({"name": "n", "state": states}).flags == flags


def test_other_gres_besides_gpus_are_ignored():
    seen = dialect.parse_job(raw_job(nodes="gpu1", gres_detail=["nic:1(IDX:0),gpu:a100:3(IDX:1,4-5)"]))

    assert seen.gpus == {"gpu1": (1, 4, 5)}


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
ACCOUNTED = ("time", "current", "submission", "end", "return_code", "number", "signal")
JOB = ("job_id", "job_state", "nodes", "gres_detail", "exit_code", "start_time", "comment")
FIELDS = (*ACCOUNTED, *JOB, "jobs", "state", "name", "gres")


@given(st.dictionaries(st.sampled_from(FIELDS), anything))
def test_arbitrary_rows_raise_only_malformed_response(raw):
    rows = (dialect.parse_job, dialect.parse_node, dialect.parse_accounting_job, dialect.parse_job_id)
    listings = (dialect.parse_jobs, dialect.parse_nodes, dialect.parse_job_states, dialect.parse_accounting_jobs)
    for read in (*rows, *listings):
        try:
            read(raw)
        except MalformedResponse:
            continue


@given(anything)
def test_errors_are_looked_for_in_anything(answer):
    dialect.error_entries(answer)
    dialect.parse_release(answer)
    dialect.controller_is_up(answer)
