"""What a contract says, what a cluster offers, and when a job may be preempted."""

from datetime import UTC, datetime, timedelta

import pytest

from acmeweb.common.errors import InvalidField
from jobs.core.preemption_contract import (
    CHECKPOINT_ANSWER_TIME,
    CHECKPOINT_TOLERANCE,
    CheckpointClause,
    ContractLimits,
    Preemptability,
    PreemptionContract,
    PreemptionFacts,
    limit_errors,
)

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
OFFERED = ContractLimits(
    min_exempt=5 * MINUTE,
    max_exempt=60 * MINUTE,
    checkpoint_clause=CheckpointClause.OPTIONAL,
    min_per_day=1,
    max_per_day=4,
)


@pytest.mark.parametrize(
    ("terms", "text"),
    [
        ({}, "Can be preempted at any time."),
        ({"exempt_time": 30 * MINUTE}, "Can be preempted after 30 min."),
        ({"at_checkpoint": True}, "Can be preempted at checkpoints."),
        ({"per_day": 1}, "Can be preempted at any time, at most once a day."),
        (
            {"exempt_time": 30 * MINUTE, "at_checkpoint": True, "per_day": 2},
            "Can be preempted after 30 min, then at checkpoints, at most 2 times a day.",
        ),
        ({"exempt_time": 26 * 60 * MINUTE, "per_day": 0}, "Is never preempted."),
        ({"exempt_time": 26.5 * 60 * MINUTE}, "Can be preempted after 1 d 2 h 30 min."),
    ],
)
def test_contract_is_one_sentence(terms, text):
    assert PreemptionContract(**terms).text() == text


def test_checkpoint_clause_comes_with_a_note():
    assert PreemptionContract(at_checkpoint=True).note() == "A job that reports no checkpoints is not preempted."
    assert PreemptionContract(exempt_time=MINUTE).note() == ""


STANDINGS = [
    ({}, {}, Preemptability.NOW, None),
    ({"exempt_time": 30 * MINUTE}, {}, Preemptability.PROTECTED, None),
    ({"exempt_time": 30 * MINUTE}, {"started_at": 29}, Preemptability.PROTECTED, 1),
    ({"exempt_time": 30 * MINUTE}, {"started_at": 30}, Preemptability.NOW, None),
    ({"per_day": 0}, {}, Preemptability.PROTECTED, None),
    ({"per_day": 2}, {"preempted_at": (60,)}, Preemptability.NOW, None),
    ({"per_day": 2}, {"preempted_at": (60, 120, 3000)}, Preemptability.PROTECTED, 1320),
    ({"per_day": 2}, {"preempted_at": (60, 1440)}, Preemptability.NOW, None),
    ({"at_checkpoint": True}, {}, Preemptability.PROTECTED, None),
    ({"at_checkpoint": True}, {"saved_at": 1}, Preemptability.NOW, None),
    ({"at_checkpoint": True}, {"saved_at": 2}, Preemptability.AFTER_CHECKPOINT, None),
    ({"at_checkpoint": True}, {"saved_at": 30, "asked_at": 15}, Preemptability.AFTER_CHECKPOINT, None),
    ({"at_checkpoint": True}, {"saved_at": 30, "asked_at": 16}, Preemptability.PROTECTED, None),
    ({"at_checkpoint": True}, {"saved_at": 15, "asked_at": 30}, Preemptability.AFTER_CHECKPOINT, None),
    ({"at_checkpoint": True, "exempt_time": MINUTE}, {"saved_at": 0, "started_at": 0}, Preemptability.PROTECTED, 1),
]


@pytest.mark.parametrize(("terms", "minutes_ago", "may", "until"), STANDINGS)
def test_standing_follows_from_recorded_times(terms, minutes_ago, may, until):
    times = {
        name: tuple(NOW - each * MINUTE for each in ago) if isinstance(ago, tuple) else NOW - ago * MINUTE
        for name, ago in minutes_ago.items()
    }

    standing = PreemptionContract(**terms).standing(PreemptionFacts(**times), NOW)

    assert (standing.may, standing.until) == (may, None if until is None else NOW + until * MINUTE)
    assert standing.why.endswith(".")


def test_stated_tolerances_are_the_ones_of_the_table():
    assert (CHECKPOINT_TOLERANCE, CHECKPOINT_ANSWER_TIME) == (MINUTE, 15 * MINUTE)


@pytest.mark.parametrize(
    ("limits", "stated", "message"),
    [
        (
            OFFERED,
            {"preempt_exempt_time": 4 * MINUTE},
            "preempt_exempt_time: 4 min is less than 5 min, the minimum of kalos",
        ),
        (
            OFFERED,
            {"preempt_exempt_time": 61 * MINUTE},
            "preempt_exempt_time: 1 h 1 min is more than 1 h, the maximum of kalos",
        ),
        (OFFERED, {"preemptions_per_day": 0}, "preemptions_per_day: 0 is less than 1, the minimum of kalos"),
        (OFFERED, {"preemptions_per_day": 5}, "preemptions_per_day: 5 is more than 4, the maximum of kalos"),
        (ContractLimits(), {"preempt_exempt_time": MINUTE}, "preempt_exempt_time: is not offered by kalos"),
        (ContractLimits(), {"preempt_at_checkpoint": True}, "preempt_at_checkpoint: is not offered by kalos"),
        (ContractLimits(), {"preemptions_per_day": 1}, "preemptions_per_day: is not offered by kalos"),
        (
            ContractLimits(checkpoint_clause=CheckpointClause.REQUIRED),
            {"preempt_at_checkpoint": False},
            "preempt_at_checkpoint: must be true, because kalos requires it",
        ),
    ],
)
def test_request_outside_the_limits_is_refused_in_one_sentence(limits, stated, message):
    with pytest.raises(InvalidField) as refused:
        limits.columns(stated, cluster="kalos", preemptible=True)

    assert str(refused.value) == message


@pytest.mark.parametrize("field", ["preempt_exempt_time", "preempt_at_checkpoint", "preemptions_per_day"])
def test_terms_need_a_preemptible_job(field):
    stated = {"preempt_exempt_time": 10 * MINUTE, "preempt_at_checkpoint": True, "preemptions_per_day": 0}

    with pytest.raises(InvalidField, match=f"{field}: applies only to preemptible jobs"):
        OFFERED.columns({field: stated[field]}, cluster="kalos", preemptible=False)


def test_job_that_states_nothing_gets_what_the_cluster_gives_everybody():
    required = ContractLimits(
        min_exempt=5 * MINUTE, max_exempt=9 * MINUTE, checkpoint_clause=CheckpointClause.REQUIRED, max_per_day=3
    )

    assert required.columns({}, cluster="kalos", preemptible=True) == {
        "preempt_exempt_time": 5 * MINUTE,
        "preempt_at_checkpoint": True,
        "preemptions_per_day": 3,
    }
    assert required.columns({}, cluster="kalos", preemptible=False) == {}


def test_default_limits_promise_nothing():
    columns = ContractLimits().columns({}, cluster="kalos", preemptible=True)

    assert list(columns.values()) == [timedelta(0), False, None]


def test_limits_that_contradict_each_other_are_named():
    assert limit_errors(0, 0, None, None) == {}
    assert limit_errors(10, 5, 3, 2) == {
        "min_exempt_minutes": "10 is more than the maximum, 5.",
        "min_preemptions_per_day": "3 is more than the maximum, 2.",
    }
