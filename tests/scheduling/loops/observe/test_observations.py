"""The changes that follow from an observed state of the cluster, as a table."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.core.backend_job import BackendJob
from jobs.core.lifecycle import Flag, State
from scheduling.loops.observe.observations import (
    MAX_START_DELAY,
    AttemptFacts,
    BackendIdChange,
    MissingChange,
    ObservedEnd,
    RunStart,
    StrandedAttempt,
    SuspensionChange,
    observed_changes,
    pick_job,
    topology,
)
from tests.make import NOON

AGO = NOON - timedelta(minutes=1)


def facts(*, confirmed=True, suspended=False, stopping=False, **fields):
    columns = {
        "backend_id": "7",
        "confirmed_at": AGO if confirmed else None,
        "state": State.SUSPENDED if suspended else State.RUNNING,
        "stop_state": State.CANCELLED if stopping else "",
    }
    return AttemptFacts(**{**columns, "missing_since": None, "promised_at": AGO, "number": 1, **fields})


def waiting(**fields):
    """Of an attempt that the cluster took and has not begun."""
    return facts(**{"confirmed": False, "promised_at": NOON - MAX_START_DELAY * 1.1, **fields})


def seen(state=State.RUNNING, **fields):
    defaults = {"backend_id": "7", "key": "k.1", "name": "x", "user": "u", "started_at": AGO, "nodes": ("n1",)}
    return BackendJob(state=state, **{**defaults, **fields})


@pytest.mark.parametrize(
    ("known", "look", "news"),
    [
        # nothing new
        (facts(), seen(), []),
        (facts(confirmed=False), seen(State.PENDING, started_at=None), []),
        (facts(confirmed=False), seen(flags=frozenset({Flag.CONFIGURING})), []),
        # it was taken after all
        (facts(backend_id="", confirmed=False), seen(State.PENDING, started_at=None), [BackendIdChange("7")]),
        # it runs
        (facts(confirmed=False), seen(), [RunStart(AGO)]),
        (facts(confirmed=False, suspended=False), seen(State.SUSPENDED), [RunStart(AGO), SuspensionChange(True)]),
        (facts(suspended=True), seen(), [SuspensionChange(False)]),
        # it is left waiting there, though nobody ended it and no operator holds it
        (waiting(), seen(State.PENDING, started_at=None, reason="Resources"), [StrandedAttempt("Resources")]),
        (waiting(promised_at=NOON - MAX_START_DELAY), seen(State.PENDING, started_at=None), []),
        (waiting(), seen(State.PENDING, started_at=None, submitted_at=AGO), []),
        (waiting(number=2), seen(State.PENDING, started_at=None), []),
        # by our clock, because the cluster's may be ahead or behind
        (
            waiting(accepted_at=NOON - MAX_START_DELAY * 1.1),
            seen(State.PENDING, started_at=None, submitted_at=NOON + timedelta(minutes=4)),
            [StrandedAttempt("")],
        ),
        (waiting(accepted_at=AGO), seen(State.PENDING, started_at=None, submitted_at=NOON - timedelta(hours=1)), []),
        (waiting(), seen(State.PENDING, started_at=None, reason="BeginTime", held=True), []),
        (waiting(stopping=True), seen(State.PENDING, started_at=None), []),
        (waiting(confirmed=True), seen(State.PENDING, started_at=AGO), []),
        # it ended
        (facts(), seen(State.COMPLETED, ended_at=NOON, exit_code=0), [ObservedEnd(State.COMPLETED, NOON, 0, None, "")]),
        (
            facts(confirmed=False),
            seen(State.FAILED, ended_at=NOON, exit_code=1, reason="BadConstraints"),
            [RunStart(AGO), ObservedEnd(State.FAILED, NOON, 1, None, "Reason given by the cluster: BadConstraints.")],
        ),
        (
            facts(confirmed=False),
            seen(State.CANCELLED, started_at=None, nodes=(), ended_at=NOON),
            [ObservedEnd(State.CANCELLED, NOON, None, None, "")],
        ),
        (facts(), seen(State.COMPLETED, flags=frozenset({Flag.COMPLETING})), []),
        # it is not seen
        (facts(sent=False), None, []),
        (facts(), None, [MissingChange(NOON)]),
        (facts(missing_since=AGO), seen(), [MissingChange(None)]),
        (facts(missing_since=NOON - timedelta(days=1)), None, []),
    ],
)
def test_observed_state_gives_these_changes(known, look, news):
    assert observed_changes(known, look, NOON) == news


@given(
    backend_id=st.sampled_from(("", "7")),
    confirmed_at=st.sampled_from((None, AGO)),
    attempt_state=st.sampled_from((State.RUNNING, State.SUSPENDED)),
    missing_since=st.sampled_from((None, AGO)),
    stop_state=st.sampled_from(("", State.CANCELLED)),
    has_record=st.booleans(),
    look=st.builds(
        seen,
        st.sampled_from(State),
        flags=st.frozensets(st.sampled_from(Flag)),
        started_at=st.sampled_from((None, AGO)),
        exit_code=st.sampled_from((None, 0, 1)),
        held=st.booleans(),
    ),
)
def test_attempt_that_runs_as_known_has_no_changes(
    backend_id, confirmed_at, attempt_state, missing_since, stop_state, has_record, look
):
    columns = (backend_id, confirmed_at, attempt_state, missing_since, AGO, stop_state, 1)
    known = AttemptFacts(*columns, has_record=has_record)

    if known.runs_as_known(look):
        assert observed_changes(known, look, NOON) == []


def test_running_attempt_runs_as_known():
    assert facts().runs_as_known(seen())
    assert not facts().runs_as_known(seen(State.FAILED))


def test_of_two_jobs_with_one_key_the_recorded_one_counts():
    first, second = seen(backend_id="7"), seen(backend_id="8")

    assert pick_job([first, second], "8") == (second, [first])
    assert pick_job([second, first], "") == (first, [second])
    assert pick_job([], "7") == (None, [])


def test_a_finished_duplicate_is_not_cancelled():
    live, over = seen(backend_id="8"), seen(State.COMPLETED, backend_id="7")

    assert pick_job([over, live], "8") == (live, [])


@pytest.mark.parametrize(
    ("features", "fields"),
    [
        (["a100", "rack-r01", "leaf-l03", "pod-p1"], {"rack": "r01", "leaf": "l03", "pod": "p1"}),
        (["nic-hdr200x4"], {"nic_type": "hdr200", "nic_count": 4}),
        (["nic-roce"], {"nic_type": "roce", "nic_count": 1}),
        (["rack-", "nic", "x"], {}),
    ],
)
def test_topology_is_read_from_features(features, fields):
    assert topology(features) == fields
