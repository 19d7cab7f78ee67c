"""Combining the diagnosis of a log with the cluster's report about the end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from failures.diagnosis import engine
from failures.diagnosis.values import ExitStatus, LineRole
from failures.incidents.circumstances import (
    ClusterEndReport,
    NodeStateChange,
    first_symptom_time,
    merge_cluster_report,
    parse_log_time,
)
from tests.failures import make

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
QUIET = "[2026-11-21 11:00:00] step 10 loss 2.1\n[2026-11-21 11:00:30] step 11 loss 2.0\n"


def log(text, exit_code=1):
    return engine.diagnose_text(text, ExitStatus(exit_code=exit_code))


def dead(node="seren-002", at=NOON, condition="DOWN+NOT_RESPONDING"):
    return NodeStateChange(node=node, at=at, condition=condition)


@pytest.mark.parametrize(
    ("state", "text", "counts"),
    [
        ("NODE_FAIL", QUIET, "SlurmNodeFail"),
        ("NODE_FAIL", make.DEAD_PEER, "SlurmNodeFail"),
        ("NODE_FAIL", make.XID, "GPUFallenOffBus"),
        ("OUT_OF_MEMORY", QUIET, "HostOOMKilled"),
        ("OUT_OF_MEMORY", make.TYPO, "TypeError"),
        ("TIMEOUT", QUIET, "Preempted/TimeLimit"),
        ("DEADLINE", QUIET, "Preempted/TimeLimit"),
        ("TIMEOUT", make.STORAGE, "S3StorageError"),
        ("BOOT_FAIL", "", "NodeFailure"),
        ("FAILED", make.TYPO, "TypeError"),
        ("FAILED", QUIET, "Unknown"),
    ],
)
def test_cluster_report_decides_if_the_log_names_no_cause(state, text, counts):
    assert merge_cluster_report(log(text), ClusterEndReport(state=state)).root_cause == counts


def test_failed_node_explains_symptoms_of_peers_and_is_named():
    merged = merge_cluster_report(log(make.DEAD_PEER), ClusterEndReport(state="FAILED", news=[dead()]))

    assert (merged.root_cause, merged.category, merged.engine) == ("NodeFailure", "Infrastructure", "cluster")
    assert [node.host for node in merged.suspect_nodes] == ["seren-002"]
    assert merged.restart_helps == "yes"


def test_recovered_or_drained_node_is_not_a_cause():
    news = [dead(condition="UP"), dead(condition="UP+DRAIN")]

    assert merge_cluster_report(log(make.TYPO), ClusterEndReport(state="FAILED", news=news)).root_cause == "TypeError"


def test_host_that_reported_a_node_failure_is_not_the_failed_node():
    text = (
        QUIET + "slurmstepd: error: *** JOB 7 ON seren-001 CANCELLED AT 2026-11-21T12:00:00 DUE TO NODE FAILURE ***\n"
    )

    merged = merge_cluster_report(log(text), ClusterEndReport(state="NODE_FAIL", news=[dead()]))

    assert [node.host for node in merged.suspect_nodes] == ["seren-002"]
    assert merge_cluster_report(log(text), ClusterEndReport(state="NODE_FAIL")).suspect_nodes == ()


def test_failed_node_is_not_blamed_for_out_of_memory():
    assert merge_cluster_report(log(QUIET), ClusterEndReport(state="OUT_OF_MEMORY", news=[dead()])).suspect_nodes == ()


def test_chain_starts_with_the_cluster_report_and_keeps_the_log_evidence():
    chain = merge_cluster_report(
        log(make.DEAD_PEER), ClusterEndReport(state="NODE_FAIL", reason="node seren-002 died")
    ).chain

    assert (chain[0].role, chain[0].line) == (LineRole.INITIATING, 0)
    assert "node seren-002 died" in chain[0].text
    assert all(link.role is not LineRole.INITIATING for link in chain[1:])
    assert any(link.line for link in chain[1:])


def test_failed_attempt_is_never_diagnosed_as_healthy():
    merged = merge_cluster_report(
        log(QUIET, exit_code=0), ClusterEndReport(state="FAILED", reason="lost by the cluster")
    )

    assert merged.root_cause == "Unknown"
    assert "lost by the cluster" in merged.notes[0]


def test_first_symptom_is_the_earliest_plausible_time():
    found = log(f"2026-11-21 11:58:00 {make.XID}2026-11-21 11:59:00 {make.DEAD_PEER}")
    began, ended = NOON - timedelta(hours=1), NOON

    assert first_symptom_time(found, ClusterEndReport(state="FAILED"), began, ended) == NOON - timedelta(minutes=2)
    assert first_symptom_time(
        found, ClusterEndReport(state="FAILED", news=[dead(at=NOON - timedelta(minutes=9))]), began, ended
    ) == (NOON - timedelta(minutes=9))
    assert first_symptom_time(
        found, ClusterEndReport(state="FAILED"), NOON + timedelta(days=1), NOON + timedelta(days=2)
    ) == (NOON + timedelta(days=2))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2026-11-21 12:00:00", NOON),
        ("2026/11/21T12:00:00,000", NOON),
        ("2026-11-21 14:00:00+02:00", NOON),
        ("12:00:00", None),
        ("Nov 21 12:00:00", None),
        ("8214.55", None),
        ("", None),
        ("0001-01-01 00:00:00+23:59", None),
    ],
)
def test_log_times_are_parsed(text, found):
    assert parse_log_time(text) == found
