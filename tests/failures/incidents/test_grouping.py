"""Grouping of failures: one incident per cause, not per symptom."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from failures.incidents.grouping import (
    FailureSymptom,
    IncidentScope,
    OpenIncident,
    accused_nodes,
    incident_subject,
    matching_incident,
    scope_of_symptom,
    shape_of_line,
)

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
A, B = frozenset({"seren-001"}), frozenset({"seren-002"})


def symptom(root_cause="NVLinkError", *, nodes=A, suspects=A, job="j1", at=NOON, words=""):
    return FailureSymptom(root_cause=root_cause, at=at, job=job, nodes=nodes, suspects=suspects, words=words)


def known(root_cause="NVLinkError", scope=IncidentScope.NODE, *, id=7, nodes=A, jobs=("j0",), at=NOON, words=""):
    return OpenIncident(
        id=id,
        root_cause=root_cause,
        scope=scope,
        first_at=at,
        last_at=at,
        nodes=nodes,
        jobs=frozenset(jobs),
        words=words,
    )


SERVICE, JOB = IncidentScope.SERVICE, IncidentScope.JOB

JOINS = {
    "another job on the same sick node": (symptom(), known()),
    "the same node called dead by one and off the bus by another": (symptom("NodeFailure"), known("GPUFallenOffBus")),
    "a wide job of which one node is accused": (symptom(nodes=A | B), known()),
    "what a peer saw of the dead node": (symptom("NCCLRemoteError", nodes=A | B, suspects=frozenset()), known()),
    "a log that says nothing, on a node that died": (symptom("Unknown", suspects=frozenset()), known("NodeFailure")),
    "two jobs on different nodes, one store away": (
        symptom("S3StorageError", nodes=B, suspects=frozenset()),
        known("S3StorageError", SERVICE, nodes=frozenset()),
    ),
    "the same words from two ports": (
        symptom("ConnectionError", nodes=B, suspects=frozenset(), words=shape_of_line("refused by 10.0.0.1:8080")),
        known("ConnectionError", SERVICE, nodes=frozenset(), words=shape_of_line("refused by 10.0.0.7:8081")),
    ),
    "the next attempt of the same job": (symptom("TypeError", job="j0"), known("TypeError", JOB, nodes=frozenset())),
}
STAYS_APART = {
    "another node": (symptom(nodes=B, suspects=B), known()),
    "the same node on another day": (symptom(at=NOON + timedelta(hours=20)), known()),
    "a script error on a sick node": (symptom("TypeError", suspects=frozenset()), known()),
    "another store": (symptom("NetworkError"), known("S3StorageError", SERVICE)),
    "the store, an hour later": (
        symptom("S3StorageError", at=NOON + timedelta(hours=1)),
        known("S3StorageError", SERVICE, nodes=frozenset()),
    ),
    "a connection to something else": (
        symptom("ConnectionError", nodes=B, suspects=frozenset(), words="refused by git"),
        known("ConnectionError", SERVICE, words="refused by the store"),
    ),
    "the same mistake in two programs": (symptom("TypeError", job="j9"), known("TypeError", JOB)),
    "a peer's word about a node it never ran on": (symptom("NCCLRemoteError", nodes=B, suspects=A), known()),
}


@pytest.mark.parametrize("case", JOINS.values(), ids=JOINS)
def test_failures_with_one_cause_are_one_incident(case):
    assert matching_incident(case[0], [case[1]]) == 7


@pytest.mark.parametrize("case", STAYS_APART.values(), ids=STAYS_APART)
def test_failures_with_two_causes_are_two_incidents(case):
    assert matching_incident(case[0], [case[1]]) is None


def test_best_match_is_chosen_and_the_newest_among_equals():
    peers = symptom("NetworkError", nodes=A, suspects=frozenset())
    node = known("NodeFailure", id=1, at=NOON + timedelta(minutes=5))
    early, late = (known("NetworkError", SERVICE, id=n, at=NOON + timedelta(minutes=n)) for n in (2, 3))

    assert matching_incident(peers, [node, early, late]) == 3
    assert matching_incident(peers, [node]) == 1
    assert matching_incident(peers, []) is None


def test_only_node_of_an_attempt_is_accused_without_being_named():
    alone = symptom("ECCError", suspects=frozenset())
    wide = symptom("ECCError", nodes=A | B, suspects=frozenset())

    assert (accused_nodes(alone), scope_of_symptom(alone), incident_subject(alone)) == (
        A,
        IncidentScope.NODE,
        "seren-001",
    )
    assert (accused_nodes(wide), scope_of_symptom(wide), incident_subject(wide)) == (
        frozenset(),
        IncidentScope.JOB,
        "j1",
    )


def test_named_node_on_which_the_job_did_not_run_is_not_accused():
    assert accused_nodes(symptom("NodeFailure", nodes=A | B, suspects=frozenset({"login-1"}))) == frozenset()


@given(
    st.sampled_from(["NVLinkError", "NetworkError", "TypeError", "Unknown", "ConnectionError"]),
    st.integers(-2000, 2000),
    st.lists(st.sampled_from([known(), known("NetworkError", SERVICE, id=2), known("TypeError", JOB, id=3)])),
)
def test_order_of_the_incidents_does_not_matter(cause, minutes, incidents):
    asked = symptom(cause, job="j0", at=NOON + timedelta(minutes=minutes))

    assert matching_incident(asked, incidents) == matching_incident(asked, incidents[::-1])
