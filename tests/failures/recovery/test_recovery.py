"""Recovery decisions: the table of remedies, the limits of the mode, and properties that always hold."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from failures.diagnosis.labels import FRAMEWORK, LABELS, SCRIPT
from failures.diagnosis.values import FailureCategory, RestartAdvice
from failures.recovery.rules.decide import decide
from failures.recovery.rules.limits import breaker_trip_reason
from failures.recovery.rules.remedies import (
    ACTION_TERMS,
    CORDON_ACTIONS,
    REMEDIES,
    RESTART_ACTIONS,
    AutomationMode,
    RecoveryAction,
)
from failures.recovery.rules.values import (
    CircuitBreaker,
    FailureFacts,
    FailureHistory,
    NodeEvidence,
    OverrideFacts,
    PastAction,
    RecoveryPolicy,
    SavedCheckpoint,
)
from jobs.core.retry_budget import PastAttempt

NOW = datetime(2026, 11, 2, 3, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
EVERYTHING = RecoveryPolicy(modes={("*", "*"): AutomationMode.ACT})
NODES = frozenset({"n1", "n2", "n3", "n4"})
SAVED = (
    SavedCheckpoint(step=100, path="/ckpt/100", whole=True),
    SavedCheckpoint(step=200, path="/ckpt/200", whole=True),
)

STOPPING = {*SCRIPT, *(set(FRAMEWORK) - {"OutOfMemoryError", "HostOOMKilled", "DataloaderKilled"})}
STOPPING -= {"LossNaNOrSpike", "CheckpointCorrupt"}


def failed(cause="ECCError", **fields):
    category = LABELS[cause].category if cause in LABELS else FailureCategory.UNKNOWN
    usual = {"job": "j1", "team": "llm", "cause": cause, "category": category, "at": NOW - MINUTE, "nodes": NODES}
    return FailureFacts(**(usual | {"checkpoints": SAVED, "incident": "i1"} | fields))


def evidence(*nodes):
    return tuple(NodeEvidence(node=node, sentence=f"Telemetry of {node}.") for node in nodes)


def past(*steps, cause="ECCError", **fields):
    return FailureHistory(
        tries=[PastAttempt(cause=cause, step=step) for step in steps], **({"cluster_nodes": 302} | fields)
    )


def done(action=RecoveryAction.RESTART, job="j1", minutes=5, **fields):
    return PastAction(action=action, job=job, at=NOW - minutes * MINUTE, **fields)


def decided(facts, history=None, policy=EVERYTHING, now=NOW):
    return decide(facts, history or past(250), policy, now)


# --- the table


@pytest.mark.parametrize("cause", sorted(LABELS))
def test_every_cause_has_a_row(cause):
    assert cause in REMEDIES


@pytest.mark.parametrize(
    ("cause", "named", "unnamed", "again"),
    [
        ("ECCError", RecoveryAction.ELSEWHERE, RecoveryAction.TEST, RecoveryAction.ELSEWHERE),
        ("GPUFallenOffBus", RecoveryAction.ELSEWHERE, RecoveryAction.TEST, RecoveryAction.ELSEWHERE),
        ("NVLinkError", RecoveryAction.ELSEWHERE, RecoveryAction.TEST, RecoveryAction.TEST),
        ("NodeFailure", RecoveryAction.ELSEWHERE, RecoveryAction.RESTART, RecoveryAction.ELSEWHERE),
        ("SlurmNodeFail", RecoveryAction.ELSEWHERE, RecoveryAction.RESTART, RecoveryAction.ELSEWHERE),
        ("CUDAError", RecoveryAction.ELSEWHERE, RecoveryAction.RESTART, RecoveryAction.STOP),
        ("XidOther", RecoveryAction.ELSEWHERE, RecoveryAction.TEST, RecoveryAction.STOP),
        ("NCCLTimeoutError", RecoveryAction.TEST, RecoveryAction.TEST, RecoveryAction.RESTART),
        ("NCCLRemoteError", RecoveryAction.TEST, RecoveryAction.RESTART, RecoveryAction.TEST),
        ("Hang", RecoveryAction.TEST, RecoveryAction.TEST, RecoveryAction.STOP),
        ("NetworkError", RecoveryAction.ELSEWHERE, RecoveryAction.WAIT, RecoveryAction.WAIT),
        ("ConnectionError", RecoveryAction.WAIT, RecoveryAction.WAIT, RecoveryAction.WAIT),
        ("S3StorageError", RecoveryAction.WAIT, RecoveryAction.WAIT, RecoveryAction.WAIT),
        ("Preempted/TimeLimit", RecoveryAction.RESTART, RecoveryAction.RESTART, RecoveryAction.RESTART),
        ("LossNaNOrSpike", RecoveryAction.ROLL_BACK, RecoveryAction.ROLL_BACK, RecoveryAction.ROLL_BACK),
        ("CheckpointCorrupt", RecoveryAction.ROLL_BACK, RecoveryAction.ROLL_BACK, RecoveryAction.ROLL_BACK),
        ("OutOfMemoryError", RecoveryAction.RESIZE, RecoveryAction.RESIZE, RecoveryAction.RESIZE),
        ("HostOOMKilled", RecoveryAction.RESIZE, RecoveryAction.RESIZE, RecoveryAction.RESIZE),
        ("DataloaderKilled", RecoveryAction.RESIZE, RecoveryAction.RESIZE, RecoveryAction.RESIZE),
        ("Unknown", RecoveryAction.RESTART, RecoveryAction.RESTART, RecoveryAction.STOP),
        ("None", RecoveryAction.NOTHING, RecoveryAction.NOTHING, RecoveryAction.NOTHING),
        *((cause, RecoveryAction.STOP, RecoveryAction.STOP, RecoveryAction.STOP) for cause in sorted(STOPPING)),
    ],
)
def test_action_follows_the_table_of_remedies(cause, named, unnamed, again):
    suspect = failed(cause, suspects=frozenset({"n2"}), spike_at=240)

    assert decided(suspect, past(250, cause=cause)).action is named
    assert decided(failed(cause), past(250, cause=cause)).action is unnamed
    assert decided(suspect, past(250, 250, cause=cause)).action is again


def test_cause_without_a_remedy_is_treated_as_unknown():
    assert decided(failed("Gremlins")).action is RecoveryAction.RESTART


# --- where, from which checkpoint, when


def test_confirmed_node_is_drained_and_tested_and_the_job_resumes_from_its_newest_checkpoint():
    decision = decided(failed(suspects=frozenset({"n2", "elsewhere"}), evidence=evidence("n2")))

    assert (decision.mode, decision.drain, decision.test) == (AutomationMode.ACT, {"n2"}, {"n2"})
    assert decision.checkpoint.step == 200
    assert "The evidence names n2." in decision.pro and "50 steps since then are lost." in decision.con
    assert any("elsewhere" in sentence for sentence in decision.con)


ONE_NODE = "Only the job's log names a hardware fault; the node is tested before it is drained."
TWO_NODES = "Only the job's log names a hardware fault; the 2 nodes are tested before they are drained."
ONE_SLOW_NODE = "Only the job's reports name a hardware fault; the node is tested before it is drained."


@pytest.mark.parametrize(
    ("cause", "named", "confirmed", "drained", "sentence"),
    [
        ("GPUFallenOffBus", "n1", "", "", ONE_NODE),
        ("GPUFallenOffBus", "n1", "n1", "n1", ""),
        ("GPUFallenOffBus", "n1", "n2", "", ONE_NODE),
        ("GPUFallenOffBus", "n1 n2", "n2", "n2", ONE_NODE),
        ("GPUFallenOffBus", "n1 n2", "", "", TWO_NODES),
        ("ECCError", "n1", "", "", ONE_NODE),
        ("NodeFailure", "n1", "", "", ONE_NODE),
        ("CUDAError", "n1", "", "", ONE_NODE),
        ("NetworkError", "n1", "", "", ONE_NODE),
        ("NCCLTimeoutError", "n1", "", "", ONE_NODE),
        ("NCCLTimeoutError", "n1", "n1", "n1", ""),
        ("SlowNode", "n1", "", "", ONE_SLOW_NODE),
        ("SlowNode", "n1", "n1", "n1", ""),
    ],
)
def test_node_is_drained_only_if_more_than_the_job_names_it(cause, named, confirmed, drained, sentence):
    anomaly = "Node n1 computes 50% longer." if cause == "SlowNode" else ""
    facts = failed(cause, suspects=frozenset(named.split()), evidence=evidence(*confirmed.split()), anomaly=anomaly)

    decision = decided(facts, past(250, cause=cause))

    assert (decision.drain, decision.test) == (set(drained.split()), set(named.split()))
    assert [one for one in decision.con if one.startswith("Only the job's")] == ([sentence] if sentence else [])
    assert [one for one in decision.pro if one.startswith("Telemetry")] == [
        f"Telemetry of {n}." for n in drained.split()
    ]


@given(
    st.sampled_from(sorted(REMEDIES)), st.sets(st.sampled_from(sorted(NODES))), st.sets(st.sampled_from(sorted(NODES)))
)
def test_no_cause_drains_a_node_without_evidence_against_it(cause, named, confirmed):
    facts = failed(cause, suspects=frozenset(named), evidence=evidence(*confirmed))

    assert decided(facts, past(250, cause=cause)).drain <= confirmed


def test_all_nodes_are_tested_and_none_is_drained_if_none_is_named():
    decision = decided(failed("NCCLTimeoutError"))

    assert decision.test == NODES and not decision.drain


def test_evidence_against_most_nodes_of_a_job_accuses_none():
    decision = decided(failed("NodeFailure", suspects=frozenset({"n1", "n2", "n3"})))

    assert decision.action is RecoveryAction.RESTART and not decision.drain


@pytest.mark.parametrize(
    ("newest", "step"),
    [
        (SavedCheckpoint(step=300, path="/c", whole=True), 300),
        (SavedCheckpoint(step=300, path="/c"), 300),
        (SavedCheckpoint(step=300, path="/c", whole=False), 200),
        (SavedCheckpoint(step=300, path="/c", whole=True, verdict="bad"), 200),
    ],
)
def test_newest_usable_checkpoint_is_chosen(newest, step):
    assert decided(failed(checkpoints=(*SAVED, newest))).checkpoint.step == step


def test_checkpoint_saved_later_is_preferred_to_a_higher_step():
    """Sent back to step 900 once, it has abandoned what it had saved further on."""
    abandoned = SavedCheckpoint(step=1000, path="/c/1000", whole=True, order=2)
    went_on = SavedCheckpoint(step=900, path="/c/900", whole=True, order=3)

    assert decided(failed(checkpoints=(abandoned, went_on)), past(950)).checkpoint.step == 900


def test_loss_spike_rolls_back_before_it_and_skips_the_data():
    policy = replace(EVERYTHING, skip_before=5, skip_after=20)

    decision = decided(failed("LossNaNOrSpike", spike_at=190), policy=policy)

    assert decision.checkpoint.step == 100 and decision.skip == (185, 210)


def test_repeated_loss_spike_rolls_back_further():
    again = failed("LossNaNOrSpike", spike_at=240)
    went = done(RecoveryAction.ROLL_BACK, incident="i1", checkpoint=200)

    assert decided(again).checkpoint.step == 200
    assert decided(again, past(250, done=[went])).checkpoint.step == 100


def test_rollback_without_an_earlier_checkpoint_stops():
    decision = decided(failed("LossNaNOrSpike", spike_at=50))

    assert decision.action is RecoveryAction.STOP and "no earlier checkpoint" in decision.why


def test_a_damaged_checkpoint_is_not_loaded_again():
    assert decided(failed("CheckpointCorrupt", started_from=200)).checkpoint.step == 100
    assert (
        decided(failed("CheckpointCorrupt", checkpoints=(SavedCheckpoint(step=9, path="/c"),))).action
        is RecoveryAction.STOP
    )


def test_jobs_with_one_cause_share_a_wait():
    first = decided(failed("S3StorageError"), past(None))
    wait = done(RecoveryAction.WAIT, job="j1", incident="i1", until=first.not_before)

    second = decided(failed("S3StorageError", job="j2", alike=1), past(None, done=[wait]))

    assert first.not_before == NOW + MINUTE and second.not_before == first.not_before


def test_waits_double_up_to_a_limit_and_a_shared_wait_counts_once():
    ended = [
        done(RecoveryAction.WAIT, job=job, incident="i1", until=NOW - ago * MINUTE) for ago in (1, 9) for job in "ab"
    ]

    assert decided(failed("S3StorageError"), past(None, done=ended)).not_before == NOW + 4 * MINUTE
    many = [done(RecoveryAction.WAIT, job="x", incident="i1", until=NOW - ago * MINUTE) for ago in range(50)]
    assert decided(failed("S3StorageError"), past(None, done=many)).not_before == NOW + 5 * MINUTE


def test_waits_keep_growing_if_an_outage_outlives_its_incident():
    waits = [
        done(RecoveryAction.WAIT, incident="i1", minutes=14, until=NOW - 12 * MINUTE),
        done(RecoveryAction.WAIT, incident="i1", minutes=11, until=NOW - MINUTE),
    ]

    assert decided(failed("S3StorageError", incident="i2"), past(None, done=waits)).not_before == NOW + 4 * MINUTE


def test_waits_of_a_past_outage_do_not_extend_the_next_one():
    yesterday = [done(RecoveryAction.WAIT, incident="i1", minutes=99, until=NOW - 95 * MINUTE)]

    assert decided(failed("S3StorageError", incident="i2"), past(None, done=yesterday)).not_before == NOW + MINUTE


def test_network_failure_of_many_jobs_waits_even_if_a_host_is_named():
    assert decided(failed("NetworkError", suspects=frozenset({"n2"}), alike=3)).action is RecoveryAction.WAIT


def test_outage_is_not_a_crash_loop():
    assert decided(failed("S3StorageError"), past(*[250] * 9, cause="S3StorageError")).action is RecoveryAction.WAIT


# --- retries


def test_retry_budget_stops_a_crash_loop():
    decision = decided(failed(suspects=frozenset({"n2"})), past(250, 250, 250, 250))

    assert decision.action is RecoveryAction.STOP and "4 failures with cause ECCError" in decision.why


def test_unknown_progress_does_not_count_against_the_retry_limit():
    decision = decided(failed(suspects=frozenset({"n2"})), past(*[None] * 20))

    assert decision.action is RecoveryAction.ELSEWHERE and not decision.consumes_retry
    assert any("does not count against the retry limit" in sentence for sentence in decision.con)


def test_signature_that_rules_out_a_restart_is_respected():
    assert decided(failed("NCCLTimeoutError", restart_helps=RestartAdvice.NO)).action is RecoveryAction.STOP


# --- how far it may go


@pytest.mark.parametrize(
    ("modes", "mode"),
    [
        ({}, AutomationMode.PROPOSE),
        ({("*", "*"): AutomationMode.ACT}, AutomationMode.ACT),
        ({("*", "*"): AutomationMode.ACT, ("*", "restart elsewhere"): AutomationMode.OBSERVE}, AutomationMode.OBSERVE),
        (
            {("llm", "*"): AutomationMode.ACT, ("*", "restart elsewhere"): AutomationMode.OBSERVE},
            AutomationMode.OBSERVE,
        ),
        (
            {("llm", "restart elsewhere"): AutomationMode.ACT, ("*", "*"): AutomationMode.PROPOSE},
            AutomationMode.PROPOSE,
        ),
        ({("llm", "*"): AutomationMode.OBSERVE, ("*", "*"): AutomationMode.ACT}, AutomationMode.OBSERVE),
        (
            {
                ("llm", "restart elsewhere"): AutomationMode.PROPOSE,
                ("llm", "*"): AutomationMode.ACT,
                ("*", "*"): AutomationMode.ACT,
            },
            AutomationMode.PROPOSE,
        ),
        ({("llm", "*"): AutomationMode.ACT}, AutomationMode.PROPOSE),
        ({("others", "*"): AutomationMode.ACT}, AutomationMode.PROPOSE),
    ],
)
def test_stricter_of_operator_and_team_mode_applies_and_the_default_is_propose(modes, mode):
    assert decided(failed(suspects=frozenset({"n2"})), policy=RecoveryPolicy(modes=modes)).mode is mode


@pytest.mark.parametrize("action", RecoveryAction)
def test_team_mode_alone_restarts_jobs_but_drains_no_nodes(action):
    allowed = RecoveryPolicy(modes={("llm", "*"): AutomationMode.ACT}).mode("llm", action)

    assert allowed is (AutomationMode.PROPOSE if action in CORDON_ACTIONS else AutomationMode.ACT)


@pytest.mark.parametrize(
    ("facts", "history", "mode", "word"),
    [
        ({"labels": {"acme-recovery": "off"}}, {}, AutomationMode.OBSERVE, "opted out"),
        ({"at": NOW - 31 * MINUTE}, {}, AutomationMode.OBSERVE, "it failed at"),
        ({"confidence": 0.5}, {}, AutomationMode.PROPOSE, "confidence 50%, threshold 70%"),
        ({"checkpoints": ()}, {}, AutomationMode.PROPOSE, "it had reached step 250"),
        ({}, {"done": [done(RecoveryAction.ELSEWHERE)] * 3}, AutomationMode.PROPOSE, "was carried out 3 times"),
        ({}, {"done": [done(RecoveryAction.ELSEWHERE, minutes=61)] * 3}, AutomationMode.ACT, ""),
        (
            {},
            {"overrides": [OverrideFacts(subject="j1", by="ann", why="we look ourselves")]},
            AutomationMode.OBSERVE,
            "ann has excluded this job",
        ),
        ({}, {"overrides": [OverrideFacts(subject="j1", by="ann", why="done", lifted=True)]}, AutomationMode.ACT, ""),
        ({}, {"overrides": [OverrideFacts(subject="j9", by="ann", why="another")]}, AutomationMode.ACT, ""),
    ],
)
def test_limit_lowers_the_mode(facts, history, mode, word):
    decision = decided(failed(**({"suspects": frozenset({"n2"})} | facts)), past(250, **history))

    assert decision.mode is mode
    assert [word in why for _, why in decision.limits] == ([True] if word else [])


@pytest.mark.parametrize(
    ("fields", "mode"),
    [
        ({"ran": 29 * MINUTE}, AutomationMode.ACT),
        ({"ran": 31 * MINUTE}, AutomationMode.PROPOSE),
        ({"ran": None}, AutomationMode.PROPOSE),
        ({"ran": MINUTE, "started_from": 200}, AutomationMode.PROPOSE),
    ],
)
def test_job_without_checkpoints_restarts_automatically_only_if_little_is_repeated(fields, mode):
    decision = decided(failed(**({"suspects": frozenset({"n2"}), "checkpoints": ()} | fields)), past(12))

    assert decision.mode is mode
    assert decision.checkpoint is None


@pytest.mark.parametrize("action", [RecoveryAction.RESTART, RecoveryAction.ELSEWHERE, RecoveryAction.TEST])
def test_restarts_that_led_to_a_newer_checkpoint_are_not_a_loop(action):
    cause = {RecoveryAction.RESTART: "NodeFailure", RecoveryAction.ELSEWHERE: "ECCError", RecoveryAction.TEST: "Hang"}[
        action
    ]
    suspects = frozenset({"n2"}) if action is RecoveryAction.ELSEWHERE else frozenset()
    went_on = [done(action, checkpoint=step) for step in (100, 120, 150)]
    stuck = [done(action, checkpoint=200) for _ in range(3)]

    assert decided(failed(cause, suspects=suspects), past(250, cause=cause, done=went_on)).mode is AutomationMode.ACT
    assert decided(failed(cause, suspects=suspects), past(250, cause=cause, done=stuck)).mode is AutomationMode.PROPOSE


def test_repeated_rollbacks_are_a_loop_even_with_new_checkpoints():
    went_back = [
        done(RecoveryAction.ROLL_BACK, incident=f"x{n}", checkpoint=step) for n, step in enumerate((10, 20, 30))
    ]

    assert decided(failed("LossNaNOrSpike", spike_at=240), past(250, done=went_back)).mode is AutomationMode.PROPOSE


def test_node_kept_in_service_by_an_operator_is_not_drained():
    order = OverrideFacts(subject="n2", by="ann", why="it is our canary")

    decision = decided(failed(suspects=frozenset({"n2"})), past(250, overrides=[order]))

    assert not decision.drain and not decision.test
    assert "n2 stays in service by decision of ann (it is our canary)." in decision.con


def test_circuit_breaker_trips_on_a_share_of_nodes_and_on_restarts():
    calm = CircuitBreaker(cordoned_share=0.1, restarts=3)
    out = [done(RecoveryAction.ELSEWHERE, nodes=frozenset({f"x{number}"})) for number in range(3)]

    assert not breaker_trip_reason(past(cluster_nodes=30, done=out[:2]), calm, NOW)
    assert "3 of 20 nodes" in breaker_trip_reason(past(cluster_nodes=20, done=out), calm, NOW)
    assert "3 jobs were restarted" in breaker_trip_reason(past(cluster_nodes=99, done=[done()] * 3), calm, NOW)


def test_tripped_circuit_breaker_leaves_only_proposals():
    decision = decided(failed(suspects=frozenset({"n2"})), past(250, done=[done(job="x")] * 60))

    assert decision.mode is AutomationMode.PROPOSE and decision.action is RecoveryAction.ELSEWHERE


def test_one_node_of_a_small_cluster_may_always_be_drained():
    assert decided(failed(suspects=frozenset({"n2"})), past(250, cluster_nodes=4)).is_automatic


def test_time_without_a_zone_is_rejected():
    with pytest.raises(ValueError, match="zone"):
        decided(failed(at=datetime(2026, 1, 1)))  # noqa: DTZ001


# --- what must always hold


names = st.frozensets(st.sampled_from(sorted(NODES | {"x"})))
steps = st.none() | st.integers(0, 300)
moments = st.integers(-300, 5).map(lambda minutes: NOW + minutes * MINUTE)
saved = st.builds(
    SavedCheckpoint,
    step=st.integers(0, 300),
    path=st.just("/c"),
    whole=st.sampled_from([True, False, None]),
    verdict=st.sampled_from(["", "good", "bad"]),
)
commands = st.builds(
    PastAction,
    action=st.sampled_from(RecoveryAction),
    job=st.sampled_from(["j1", "j2"]),
    at=moments,
    incident=st.sampled_from(["", "i1"]),
    nodes=names,
    until=st.none() | moments,
    checkpoint=steps,
)
facts = st.builds(
    failed,
    st.sampled_from(sorted(LABELS)),
    at=moments,
    confidence=st.floats(0, 1),
    restart_helps=st.sampled_from(RestartAdvice),
    nodes=names,
    suspects=names,
    alike=st.integers(0, 3),
    labels=st.sampled_from([{}, {"acme-recovery": "off"}]),
    checkpoints=st.lists(saved, max_size=4).map(tuple),
    started_from=steps,
    spike_at=steps,
)
histories = st.builds(
    FailureHistory,
    tries=st.lists(st.builds(PastAttempt, cause=st.sampled_from(["", "ECCError", "Unknown"]), step=steps), max_size=5),
    done=st.lists(commands, max_size=6),
    overrides=st.lists(
        st.builds(
            OverrideFacts,
            subject=st.sampled_from(["j1", "n1"]),
            by=st.just("ann"),
            why=st.just("so"),
            lifted=st.booleans(),
        ),
        max_size=2,
    ),
    cluster_nodes=st.integers(0, 40),
)


@given(facts, histories)
def test_program_error_is_never_restarted(case, history):
    decision = decide(case, history, EVERYTHING, NOW)

    if case.cause in STOPPING or case.category is FailureCategory.SCRIPT:
        assert decision.action is RecoveryAction.STOP and not decision.drain


@given(facts, histories)
def test_old_opted_out_or_overridden_failures_are_not_acted_on(case, history):
    decision = decide(case, history, EVERYTHING, NOW)
    decided_by_one = any(override.subject == case.job and not override.lifted for override in history.overrides)

    if case.at + ACTION_TERMS[decision.action].expires < NOW or case.labels or decided_by_one:
        assert decision.mode is AutomationMode.OBSERVE


@given(facts, histories, st.sampled_from(AutomationMode))
def test_mode_never_exceeds_the_team_setting(case, history, allowed):
    assert decide(case, history, RecoveryPolicy(modes={("llm", "*"): allowed}), NOW).mode.rank <= allowed.rank


@given(facts, histories)
def test_the_same_facts_give_the_same_answer(case, history):
    again = replace(history, overrides=list(history.overrides), done=list(history.done))

    assert decide(case, history, EVERYTHING, NOW) == decide(case, again, EVERYTHING, NOW)


@given(histories, commands, names)
def test_further_action_never_resets_the_circuit_breaker(history, command, adding):
    if breaker_trip_reason(history, CircuitBreaker(restarts=3), NOW, adding):
        assert breaker_trip_reason(
            replace(history, done=[*history.done, command]), CircuitBreaker(restarts=3), NOW, adding
        )


@given(facts, histories)
def test_job_starts_from_usable_checkpoints_and_drains_only_its_own_nodes(case, history):
    decision = decide(case, history, EVERYTHING, NOW)

    assert decision.checkpoint is None or decision.checkpoint.is_usable
    assert decision.drain <= decision.test <= case.nodes
    assert decision.why and decision.undo and decision.expires_at > case.at and decision.not_before >= NOW
    assert (decision.skip is None) or decision.skip[0] > decision.checkpoint.step
    if decision.action not in RESTART_ACTIONS:
        assert decision.checkpoint is None and not decision.test
