"""Details of a decision: the arguments that an operator reads, the steps to skip, and the waits of an outage."""

from dataclasses import replace
from datetime import timedelta

import pytest

from failures.diagnosis.values import RestartAdvice
from failures.recovery.rules.remedies import RecoveryAction
from failures.recovery.rules.values import FailureHistory, SavedCheckpoint
from jobs.core.retry_budget import PastAttempt
from tests.failures.recovery.test_recovery import EVERYTHING, MINUTE, NOW, SAVED, decided, done, failed, past

SECOND = timedelta(seconds=1)


# --- for and against


@pytest.mark.parametrize(
    ("alike", "sentence"),
    [(1, "1 other job failed with the same cause."), (2, "2 other jobs failed with the same cause.")],
)
def test_other_failures_of_the_incident_are_counted(alike, sentence):
    assert sentence in decided(failed(alike=alike)).pro
    assert not any("same cause" in argument for argument in decided(failed()).pro)


def test_finding_of_a_detector_replaces_the_diagnosis():
    assert decided(failed()).pro[0] == "The diagnosis is ECCError, 100% confidence."
    assert decided(failed(anomaly="No step for 20 min.")).pro[0] == "No step for 20 min."


@pytest.mark.parametrize(
    ("confidence", "argument", "sentence"),
    [
        (0.7, "pro", "The diagnosis is ECCError, 70% confidence."),
        (0.69, "con", "The diagnosis is ECCError, 69% confidence."),
        (0.0, "con", "The cause is unknown."),
    ],
)
def test_uncertain_diagnosis_is_an_argument_against(confidence, argument, sentence):
    decision = decided(failed(confidence=confidence))

    assert (sentence in decision.pro, sentence in decision.con) == (argument == "pro", argument == "con")


@pytest.mark.parametrize(
    ("cause", "advice", "argument"),
    [
        ("ECCError", RestartAdvice.YES, "pro"),
        ("ECCError", RestartAdvice.UNKNOWN, None),
        ("LossNaNOrSpike", RestartAdvice.NO, "con"),  # it goes back nevertheless
        ("ECCError", RestartAdvice.NO, "pro"),  # it stops
        ("KeyError", RestartAdvice.YES, "con"),
    ],
)
def test_advice_on_restarts_is_an_argument_for_or_against(cause, advice, argument):
    decision = decided(failed(cause, restart_helps=advice, spike_at=240), past(250, cause=cause))
    sentence = f"A restart {'helps' if advice == RestartAdvice.YES else 'does not help'} against this cause."

    assert (sentence in decision.pro, sentence in decision.con) == (argument == "pro", argument == "con")


def test_advice_on_restarts_says_nothing_about_a_node_without_a_job():
    decision = decided(failed("NodeHealth", job="", restart_helps=RestartAdvice.YES), past(None))

    assert not any("against this cause" in sentence for sentence in (*decision.pro, *decision.con))


@pytest.mark.parametrize(("whole", "words"), [(True, "It is complete."), (None, "It is not verified.")])
def test_checkpoint_is_described(whole, words):
    newest = SavedCheckpoint(step=240, path="/ckpt/240", whole=whole)

    assert f"A checkpoint of step 240 is available: /ckpt/240. {words}" in decided(failed(checkpoints=(newest,))).pro


@pytest.mark.parametrize(("step", "lost"), [(200, None), (201, "1 steps since then are lost."), (None, None)])
def test_lost_steps_are_those_after_the_checkpoint(step, lost):
    sentences = [sentence for sentence in decided(failed(), past(step)).con if "steps since then" in sentence]

    assert sentences == ([lost] if lost else [])


def test_restart_without_a_checkpoint_says_so():
    assert "No checkpoint is known: the job starts from the beginning." in decided(failed(checkpoints=())).con


@pytest.mark.parametrize(
    ("steps", "repeated"),
    [
        ((250, 250), True),
        ((250, 240), True),
        ((250, 251), False),
        ((250, None), False),
        ((None, 250), False),
        ((250, None, 250), True),
        ((0, 0), True),
    ],
)
def test_repeated_failure_is_one_without_further_progress(steps, repeated):
    decision = decided(failed("CUDAError"), past(*steps, cause="CUDAError"))

    assert decision.action is (RecoveryAction.STOP if repeated else RecoveryAction.RESTART)


@pytest.mark.parametrize(
    ("causes", "minutes", "repeated"),
    [
        (("Unknown", "Unknown"), 2, True),
        (("Unknown", "Unknown"), 59, True),
        (("Unknown", "Unknown"), 60, False),  # it may have made progress
        (("Unknown", "Unknown"), None, False),
        (("CUDAError", "Unknown"), 2, False),
        (("Unknown", "CUDAError", "Unknown"), 2, False),
        (("Unknown", "", "Unknown"), 2, False),  # a user stopped the attempt in between
        (("Unknown",), 2, False),
    ],
)
def test_failure_without_a_known_step_is_repeated_if_it_came_back_soon(causes, minutes, repeated):
    ran = None if minutes is None else timedelta(minutes=minutes)
    tries = [PastAttempt(cause=cause, step=None if cause == "Unknown" else 5, ran=ran) for cause in causes]

    decision = decided(failed("Unknown"), FailureHistory(tries=tries))

    assert decision.action is (RecoveryAction.STOP if repeated else RecoveryAction.RESTART)


@pytest.mark.parametrize(
    ("logged", "words"), [(None, "Its progress is unknown,"), (70, "Step 70 is known only from its log,")]
)
def test_argument_names_the_step_in_the_log(logged, words):
    decision = decided(failed(), FailureHistory(tries=[PastAttempt(cause="ECCError", logged_step=logged)]))

    assert f"{words} so this failure does not count against the retry limit." in decision.con


def test_failure_after_another_cause_is_not_repeated():
    history = past(250, 250, cause="ECCError")

    assert decided(failed("CUDAError"), history).action is RecoveryAction.RESTART
    again = "The previous attempt failed with the same cause, and this one made no further progress."
    assert again not in decided(failed("CUDAError"), history).con
    assert again in decided(failed(suspects=frozenset({"n2"})), history).con


# --- rollback


@pytest.mark.parametrize(
    ("spike_at", "skip"),
    [
        (240, (230, 245)),
        (205, (201, 210)),  # the checkpoint contains the data of step 200
        (201, (201, 206)),
        (200, (190, 205)),  # the checkpoint of the spike itself is not used
    ],
)
def test_skipped_data_begin_after_the_checkpoint(spike_at, skip):
    policy = replace(EVERYTHING, skip_before=10, skip_after=5)

    assert decided(failed("LossNaNOrSpike", spike_at=spike_at), policy=policy).skip == skip


def test_restart_skips_no_data():
    assert decided(failed(spike_at=240)).skip is None
    assert decided(failed("LossNaNOrSpike")).skip is None


def test_rollback_without_a_known_spike_precedes_the_last_step():
    assert decided(failed("LossNaNOrSpike"), past(200)).checkpoint.step == 100
    assert decided(failed("LossNaNOrSpike"), past(201)).checkpoint.step == 200


@pytest.mark.parametrize(
    ("fields", "step"),
    [
        ({}, 100),
        ({"incident": "i2"}, 200),
        ({"job": "j2"}, 200),
        ({"action": RecoveryAction.RESTART}, 200),
        ({"checkpoint": None}, 200),
    ],
)
def test_only_rollbacks_of_this_job_and_incident_bound_the_next_one(fields, step):
    went = done(**({"action": RecoveryAction.ROLL_BACK, "incident": "i1", "checkpoint": 200} | fields))

    assert decided(failed("LossNaNOrSpike", spike_at=240), past(250, done=[went])).checkpoint.step == step


def test_corrupt_checkpoint_of_unknown_step_leaves_only_verified_ones():
    unverified = SavedCheckpoint(step=300, path="/ckpt/300")

    decision = decided(failed("CheckpointCorrupt", checkpoints=(*SAVED, unverified)), past(150))

    assert decision.checkpoint.step == 200


# --- waits


def waited(began, ended, **fields):
    return done(RecoveryAction.WAIT, minutes=began, until=NOW - MINUTE * ended, **fields)


@pytest.mark.parametrize(
    ("gap", "wait"),
    [(timedelta(minutes=10), 1), (timedelta(minutes=10) - SECOND, 2)],
)
def test_failure_within_ten_minutes_after_a_wait_continues_the_outage(gap, wait):
    facts = failed("S3StorageError", incident="i2")
    earlier = done(RecoveryAction.WAIT, incident="i1", minutes=20, until=facts.at - gap)

    assert decided(facts, past(None, done=[earlier])).not_before == NOW + wait * MINUTE


def test_waits_are_followed_back_through_one_job_only():
    facts = failed("S3StorageError", incident="i2")
    own = waited(12, 3, incident="i1")

    assert decided(facts, past(None, done=[own, waited(30, 14, incident="i0")])).not_before == NOW + 4 * MINUTE
    assert decided(facts, past(None, done=[own, waited(30, 23, incident="i0")])).not_before == NOW + 2 * MINUTE
    assert (
        decided(facts, past(None, done=[own, waited(30, 14, job="j2", incident="i0")])).not_before == NOW + 2 * MINUTE
    )


def test_wait_without_an_incident_belongs_to_its_job():
    facts = failed("S3StorageError", incident="")
    long_ago = [waited(99, 95), waited(99, 94, job="j2")]

    assert decided(facts, past(None, done=long_ago)).not_before == NOW + 2 * MINUTE


def test_running_wait_is_joined_and_an_ended_one_is_not():
    facts = failed("S3StorageError")

    assert decided(facts, past(None, done=[waited(5, -3, incident="i1")])).not_before == NOW + 3 * MINUTE
    assert decided(facts, past(None, done=[waited(5, 0, incident="i1")])).not_before == NOW + 2 * MINUTE
