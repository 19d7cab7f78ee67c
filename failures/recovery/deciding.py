"""What is done about a failure, with what speaks for and against it. Pure: the same facts give the same answer.

The remedy comes from a table (`remedies`); this module says which column holds and what it needs, `restraint` how far
it may go by itself. Progress that is not known consumes no retry (`jobs.ledgers`); then the rate limit and the breaker
are what ends a loop.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from failures.diagnosis.values import Category, Restart
from failures.recovery import resizing
from failures.recovery.remedies import CORDONING, REMEDIES, RESTARTING, TERMS, Action, Remedy
from failures.recovery.restraint import Case, limits
from failures.recovery.values import Done, Facts, History, Policy, Recovery, Saved
from jobs.ledgers import Try, crash_loop

CORRUPT = "CheckpointCorrupt"
AGAIN = timedelta(minutes=10)


def decide(facts: Facts, history: History, policy: Policy, now: datetime) -> Recovery:
    _refuse_naive(facts.at, now)
    action, why = _action(facts, history, REMEDIES.get(facts.cause, REMEDIES["Unknown"]))
    change = resizing.change(facts.cause, facts.request) if action is Action.RESIZE else ()
    base, lack = _base(action, facts, history) if action in RESTARTING or change else (None, "")
    if lack:
        action, why = Action.STOP, lack
    drain, test, kept = _nodes(action, facts, history)
    case = Case(
        action=action, facts=facts, history=history, policy=policy, base=base, drain=drain, now=now, change=change
    )
    held = limits(case)
    mode = min((policy.mode(facts.team, action), *(mode for mode, _ in held)), key=lambda one: one.rank)
    pro, con = _evidence(case)
    return Recovery(
        action=action, mode=mode, why=why, pro=pro, con=(*con, *kept), limits=held, drain=drain, test=test,
        checkpoint=base, skip=_skip(action, facts, policy, base), undo=TERMS[action].undo,
        not_before=_not_before(action, facts, history, policy, now), expires_at=facts.at + TERMS[action].expires,
        consumes=history.step is not None, change=change,
    )  # fmt: skip


def _refuse_naive(*moments: datetime) -> None:
    if any(moment.tzinfo is None for moment in moments):
        raise ValueError("at, now: a time without a zone says nothing")


# --- which action


def _action(facts: Facts, history: History, remedy: Remedy) -> tuple[Action, str]:
    """The column of the table that holds, unless something forbids to start again."""
    if facts.category is Category.SCRIPT:
        return Action.STOP, f"{remedy.why}; the program must be changed before it runs again"
    action = remedy.again if _came_back(facts, history) else remedy.named if facts.named else remedy.unnamed
    if action is Action.ELSEWHERE and not facts.named:
        action = Action.TEST  # somebody must be left out, and nobody knows whom
    if facts.is_service and action in RESTARTING:
        action = Action.WAIT  # whoever is named, leaving him out does not bring the service back
    if action in RESTARTING and facts.restart_helps is Restart.NO and action is not Action.ROLL_BACK:
        return Action.STOP, "what was found in the log fails the same way again"
    # An outage is nobody's crash loop: the job never got as far as to fail by itself
    if action in RESTARTING - {Action.WAIT} and (loop := crash_loop(history.tries)):
        return Action.STOP, loop
    return action, remedy.why


def _came_back(facts: Facts, history: History) -> bool:
    """The same cause ended the last attempt whose progress is known, and this one came no further."""
    *before, last = history.tries or (Try(cause=""),)
    known = [one for one in before if one.step is not None]
    if last.step is None or not known:
        return False
    furthest = max(one.step or 0 for one in known)
    return known[-1].cause == facts.cause and last.step <= furthest


# --- from where


def _base(action: Action, facts: Facts, history: History) -> tuple[Saved | None, str]:
    """The checkpoint to start from, and what is lacking where there must be one."""
    usable = [one for one in facts.checkpoints if one.is_usable]
    if action is Action.ROLL_BACK:
        bound = _bound(facts, history)
        # Where nobody knows which one was bad, only one that was looked at will do
        usable = [one for one in usable if (one.whole if bound is None else one.step < bound)]
        if not usable:
            return None, "it must go back behind the trouble, and no checkpoint from before it can be trusted"
    # Sent back once, a job has abandoned what it had saved further on, though it still lies there
    return max(usable, key=lambda one: (one.order, one.step, one.path), default=None), ""


def _bound(facts: Facts, history: History) -> int | None:
    """Older than the trouble, and older than every checkpoint that this incident went back to already."""
    steps = [
        one.checkpoint
        for one in history.done
        if one.action is Action.ROLL_BACK and one.job == facts.job and one.incident == facts.incident
    ]
    trouble = facts.started_from if facts.cause == CORRUPT else facts.spike_at
    if trouble is None and facts.cause != CORRUPT:
        trouble = history.step
    return min((step for step in (*steps, trouble) if step is not None), default=None)


def _skip(action: Action, facts: Facts, policy: Policy, base: Saved | None) -> tuple[int, int] | None:
    """The steps whose data led there. A damaged file says nothing against the data."""
    if action is not Action.ROLL_BACK or facts.spike_at is None or base is None:
        return None
    return max(base.step + 1, facts.spike_at - policy.skip_before), facts.spike_at + policy.skip_after


def _nodes(action: Action, facts: Facts, history: History) -> tuple[frozenset[str], frozenset[str], tuple[str, ...]]:
    """Whom to drain, whom to test, and a sentence for each whom a person keeps in service."""
    if action not in CORDONING:
        return frozenset(), frozenset(), ()
    test = facts.named or (facts.nodes if action is Action.TEST else frozenset())
    kept = {order.subject: order for order in history.orders if not order.lifted and order.subject in test}
    words = tuple(f"{name} stays in service: {kept[name].by} decided so ({kept[name].why})." for name in sorted(kept))
    return facts.named - set(kept), test - set(kept), words


# --- when


def _not_before(action: Action, facts: Facts, history: History, policy: Policy, now: datetime) -> datetime:
    """One wait for one cause: who comes later joins the wait that is on."""
    if action is not Action.WAIT:
        return now
    waits = _waits(facts, history)
    running = max(waits, default=now)
    wait: timedelta = policy.first_wait * 2 ** min(len(waits), 16)
    return running if running > now else now + min(wait, policy.longest_wait)


def _waits(facts: Facts, history: History) -> set[datetime]:
    """The ends of all waits for this outage: those of its incident, and those after which this job failed again at
    once. A wait may be longer than what keeps an incident open."""
    waited = [one for one in history.done if one.action is Action.WAIT and one.until]
    found = {one.until for one in waited if one.until and _same(one, facts)}
    since = facts.at
    for one in sorted((one for one in waited if one.job == facts.job), key=lambda one: one.at, reverse=True):
        if one.until is None or since - one.until >= AGAIN:
            break
        found.add(one.until)
        since = one.at
    return found


def _same(done: Done, facts: Facts) -> bool:
    return done.incident == facts.incident if facts.incident else done.job == facts.job


# --- for and against


def _evidence(case: Case) -> tuple[tuple[str, ...], tuple[str, ...]]:
    action, facts = case.action, case.facts
    pro = [facts.sign] if facts.sign else [f"The diagnosis is {facts.cause}, {facts.confidence:.0%} sure."]
    con = []
    if facts.named:
        pro.append(f"The evidence names {', '.join(sorted(facts.named))}.")
    if strangers := facts.suspects - facts.nodes:
        con.append(f"It also names {', '.join(sorted(strangers))}, where the job did not run.")
    if facts.alike:
        pro.append(f"{facts.alike} other {'job' if facts.alike == 1 else 'jobs'} died of the same cause.")
    if facts.restart_helps is not Restart.UNKNOWN and facts.job:
        (pro if (facts.restart_helps is Restart.YES) == (action in RESTARTING) else con).append(
            f"Restarting helps against this: {facts.restart_helps}."
        )
    pro += [one.sentence for one in case.change]
    if case.restarts and facts.job:
        _weigh_restart(pro, con, facts, case.history, case.base)
    return tuple(pro), tuple(con)


def _weigh_restart(pro: list[str], con: list[str], facts: Facts, history: History, base: Saved | None) -> None:
    step = history.step
    if base is not None:
        known = {True: "It was looked at and is whole", None: "Nobody has looked whether it is whole"}[base.whole]
        pro.append(f"A checkpoint of step {base.step} is there: {base.path}. {known}.")
        if step is not None and step > base.step:
            con.append(f"{step - base.step} steps since then are lost.")
    else:
        con.append("No checkpoint is known: it starts from the beginning.")
    if _came_back(facts, history):
        con.append("The attempt before ended of the same cause, and no step further.")
    if step is None:
        con.append("Nobody knows how far it had come, so this end consumes no retry.")
