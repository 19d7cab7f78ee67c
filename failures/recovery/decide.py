"""What is done about a failure, with what speaks for and against it. Pure: the same facts give the same answer.

The remedy comes from a table (`remedies`); this module says which column holds and what it needs, `limits` how far it
may go by itself. Unknown progress uses no retry (`jobs.core.retry_budget`); the rate limit and the circuit breaker end
such a loop.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from failures.diagnosis.values import FailureCategory, RestartAdvice
from failures.recovery import resizing
from failures.recovery.limits import DecisionDraft, mode_limits
from failures.recovery.remedies import ACTION_TERMS, CORDON_ACTIONS, REMEDIES, RESTART_ACTIONS, RecoveryAction, Remedy
from failures.recovery.values import (
    FailureFacts,
    FailureHistory,
    PastAction,
    RecoveryDecision,
    RecoveryPolicy,
    SavedCheckpoint,
)
from jobs.core.retry_budget import PastAttempt, crash_loop_reason

CORRUPT_CHECKPOINT_CAUSE = "CheckpointCorrupt"
SAME_OUTAGE_WITHIN = timedelta(minutes=10)


def decide(facts: FailureFacts, history: FailureHistory, policy: RecoveryPolicy, now: datetime) -> RecoveryDecision:
    _require_timezone(facts.at, now)
    action, why = _choose_action(facts, history, REMEDIES.get(facts.cause, REMEDIES["Unknown"]))
    change = resizing.propose_changes(facts.cause, facts.request) if action is RecoveryAction.RESIZE else ()
    base, lack = _choose_checkpoint(action, facts, history) if action in RESTART_ACTIONS or change else (None, "")
    if lack:
        action, why = RecoveryAction.STOP, lack
    drain, test, kept = _nodes_to_drain_and_test(action, facts, history)
    case = DecisionDraft(
        action=action, facts=facts, history=history, policy=policy, base=base, drain=drain, now=now, change=change
    )
    held = mode_limits(case)
    mode = min((policy.mode(facts.team, action), *(mode for mode, _ in held)), key=lambda one: one.rank)
    pro, con = _pros_and_cons(case)
    return RecoveryDecision(
        action=action, mode=mode, why=why, pro=pro, con=(*con, *kept), limits=held, drain=drain, test=test,
        checkpoint=base, skip=_steps_to_skip(action, facts, policy, base), undo=ACTION_TERMS[action].undo,
        not_before=_earliest_start(action, facts, history, policy, now),
        expires_at=facts.at + ACTION_TERMS[action].expires, consumes=history.step is not None, change=change,
    )  # fmt: skip


def _require_timezone(*moments: datetime) -> None:
    if any(moment.tzinfo is None for moment in moments):
        raise ValueError("at, now: a time without a zone says nothing")


# --- which action


def _choose_action(facts: FailureFacts, history: FailureHistory, remedy: Remedy) -> tuple[RecoveryAction, str]:
    """The column of the table that holds, unless something forbids to start again."""
    if facts.category is FailureCategory.SCRIPT:
        return RecoveryAction.STOP, f"{remedy.why}; the program must be changed before it runs again"
    action = (
        remedy.again if _repeated_without_progress(facts, history) else remedy.named if facts.named else remedy.unnamed
    )
    if action is RecoveryAction.ELSEWHERE and not facts.named:
        action = RecoveryAction.TEST  # somebody must be left out, and nobody knows whom
    if facts.is_service_outage and action in RESTART_ACTIONS:
        action = RecoveryAction.WAIT  # whoever is named, leaving him out does not bring the service back
    if action in RESTART_ACTIONS and facts.restart_helps is RestartAdvice.NO and action is not RecoveryAction.ROLL_BACK:
        return RecoveryAction.STOP, "what was found in the log fails the same way again"
    # An outage is nobody's crash loop: the job never got as far as to fail by itself
    if action in RESTART_ACTIONS - {RecoveryAction.WAIT} and (loop := crash_loop_reason(history.tries)):
        return RecoveryAction.STOP, loop
    return action, remedy.why


def _repeated_without_progress(facts: FailureFacts, history: FailureHistory) -> bool:
    """The same cause ended the last attempt whose progress is known, and this one came no further."""
    *before, last = history.tries or (PastAttempt(cause=""),)
    known = [one for one in before if one.step is not None]
    if last.step is None or not known:
        return False
    furthest = max(one.step or 0 for one in known)
    return known[-1].cause == facts.cause and last.step <= furthest


# --- from where


def _choose_checkpoint(
    action: RecoveryAction, facts: FailureFacts, history: FailureHistory
) -> tuple[SavedCheckpoint | None, str]:
    """The checkpoint to start from, and what is lacking where there must be one."""
    usable = [one for one in facts.checkpoints if one.is_usable]
    if action is RecoveryAction.ROLL_BACK:
        bound = _rollback_bound(facts, history)
        # Where nobody knows which one was bad, only one that was looked at will do
        usable = [one for one in usable if (one.whole if bound is None else one.step < bound)]
        if not usable:
            return None, "it must go back behind the trouble, and no checkpoint from before it can be trusted"
    # Sent back once, a job has abandoned what it had saved further on, though it still lies there
    return max(usable, key=lambda one: (one.order, one.step, one.path), default=None), ""


def _rollback_bound(facts: FailureFacts, history: FailureHistory) -> int | None:
    """Older than the trouble, and older than every checkpoint that this incident went back to already."""
    steps = [
        one.checkpoint
        for one in history.done
        if one.action is RecoveryAction.ROLL_BACK and one.job == facts.job and one.incident == facts.incident
    ]
    trouble = facts.started_from if facts.cause == CORRUPT_CHECKPOINT_CAUSE else facts.spike_at
    if trouble is None and facts.cause != CORRUPT_CHECKPOINT_CAUSE:
        trouble = history.step
    return min((step for step in (*steps, trouble) if step is not None), default=None)


def _steps_to_skip(
    action: RecoveryAction, facts: FailureFacts, policy: RecoveryPolicy, base: SavedCheckpoint | None
) -> tuple[int, int] | None:
    """The steps whose data led there. A damaged file says nothing against the data."""
    if action is not RecoveryAction.ROLL_BACK or facts.spike_at is None or base is None:
        return None
    return max(base.step + 1, facts.spike_at - policy.skip_before), facts.spike_at + policy.skip_after


def _nodes_to_drain_and_test(
    action: RecoveryAction, facts: FailureFacts, history: FailureHistory
) -> tuple[frozenset[str], frozenset[str], tuple[str, ...]]:
    """Whom to drain, whom to test, and a sentence for each whom a person keeps in service."""
    if action not in CORDON_ACTIONS:
        return frozenset(), frozenset(), ()
    test = facts.named or (facts.nodes if action is RecoveryAction.TEST else frozenset())
    kept = {order.subject: order for order in history.orders if not order.lifted and order.subject in test}
    words = tuple(f"{name} stays in service: {kept[name].by} decided so ({kept[name].why})." for name in sorted(kept))
    return facts.named - set(kept), test - set(kept), words


# --- when


def _earliest_start(
    action: RecoveryAction, facts: FailureFacts, history: FailureHistory, policy: RecoveryPolicy, now: datetime
) -> datetime:
    """One wait for one cause: who comes later joins the wait that is on."""
    if action is not RecoveryAction.WAIT:
        return now
    waits = _previous_wait_ends(facts, history)
    running = max(waits, default=now)
    wait: timedelta = policy.first_wait * 2 ** min(len(waits), 16)
    return running if running > now else now + min(wait, policy.longest_wait)


def _previous_wait_ends(facts: FailureFacts, history: FailureHistory) -> set[datetime]:
    """The ends of all waits for this outage: those of its incident, and those after which this job failed again at
    once. A wait may be longer than what keeps an incident open."""
    waited = [one for one in history.done if one.action is RecoveryAction.WAIT and one.until]
    found = {one.until for one in waited if one.until and _is_same_outage(one, facts)}
    since = facts.at
    for one in sorted((one for one in waited if one.job == facts.job), key=lambda one: one.at, reverse=True):
        if one.until is None or since - one.until >= SAME_OUTAGE_WITHIN:
            break
        found.add(one.until)
        since = one.at
    return found


def _is_same_outage(done: PastAction, facts: FailureFacts) -> bool:
    return done.incident == facts.incident if facts.incident else done.job == facts.job


# --- for and against


def _pros_and_cons(case: DecisionDraft) -> tuple[tuple[str, ...], tuple[str, ...]]:
    action, facts = case.action, case.facts
    pro = [facts.sign] if facts.sign else [f"The diagnosis is {facts.cause}, {facts.confidence:.0%} sure."]
    con = []
    if facts.named:
        pro.append(f"The evidence names {', '.join(sorted(facts.named))}.")
    if strangers := facts.suspects - facts.nodes:
        con.append(f"It also names {', '.join(sorted(strangers))}, where the job did not run.")
    if facts.alike:
        pro.append(f"{facts.alike} other {'job' if facts.alike == 1 else 'jobs'} died of the same cause.")
    if facts.restart_helps is not RestartAdvice.UNKNOWN and facts.job:
        (pro if (facts.restart_helps is RestartAdvice.YES) == (action in RESTART_ACTIONS) else con).append(
            f"Restarting helps against this: {facts.restart_helps}."
        )
    pro += [one.sentence for one in case.change]
    if case.restarts and facts.job:
        _add_restart_arguments(pro, con, facts, case.history, case.base)
    return tuple(pro), tuple(con)


def _add_restart_arguments(
    pro: list[str], con: list[str], facts: FailureFacts, history: FailureHistory, base: SavedCheckpoint | None
) -> None:
    step = history.step
    if base is not None:
        known = {True: "It was looked at and is whole", None: "Nobody has looked whether it is whole"}[base.whole]
        pro.append(f"A checkpoint of step {base.step} is there: {base.path}. {known}.")
        if step is not None and step > base.step:
            con.append(f"{step - base.step} steps since then are lost.")
    else:
        con.append("No checkpoint is known: it starts from the beginning.")
    if _repeated_without_progress(facts, history):
        con.append("The attempt before ended of the same cause, and no step further.")
    if step is None:
        con.append("Nobody knows how far it had come, so this end consumes no retry.")
