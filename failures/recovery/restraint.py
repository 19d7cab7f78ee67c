"""How far a deed may go by itself: everything that takes a mode down, and the breaker of a whole cluster. Pure.

Doubt only ever takes away; no rule here raises what a team allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from failures.recovery.remedies import CORDONING, RESTARTING, RUNNING_AGAIN, TERMS, Action, Mode
from failures.recovery.resizing import Change
from failures.recovery.values import OPT_IN, OPT_OUT, Breaker, Done, Facts, History, Limit, Policy, Saved

PLAIN_RESTARTS = frozenset({Action.RESTART, Action.ELSEWHERE, Action.TEST})


@dataclass(frozen=True, kw_only=True)
class Case:
    """What was decided so far."""

    action: Action
    facts: Facts
    history: History
    policy: Policy
    base: Saved | None
    drain: frozenset[str]
    now: datetime
    change: tuple[Change, ...] = ()

    @property
    def restarts(self) -> bool:
        return self.action in RESTARTING or bool(self.change)


def limits(case: Case) -> tuple[Limit, ...]:
    return tuple(found for rule in RULES if (found := rule(case)))


def _opted_out(case: Case) -> Limit | None:
    off = case.facts.labels.get(OPT_OUT) == "off"
    return (Mode.OBSERVE, f"the job opted out by its label {OPT_OUT}=off") if off else None


def _expired(case: Case) -> Limit | None:
    if case.now <= case.facts.at + TERMS[case.action].expires:
        return None
    return Mode.OBSERVE, f"it failed at {case.facts.at:%d %b %H:%M} and what was right then may be wrong now"


def _ordered(case: Case) -> Limit | None:
    for order in case.history.orders:
        if order.subject == case.facts.job and not order.lifted:
            return Mode.OBSERVE, f"{order.by} decided about this job: {order.why}"
    return None


def _unsure(case: Case) -> Limit | None:
    if case.facts.confidence >= case.policy.sure:
        return None
    needed = f"{case.policy.sure:.0%} are needed to act"
    return Mode.PROPOSE, f"the diagnosis is {case.facts.confidence:.0%} sure, and {needed}"


def _too_often(case: Case) -> Limit | None:
    terms, same = TERMS[case.action], (case.action, case.facts.job)
    since = case.now - terms.within
    done = [one for one in case.history.done if (one.action, one.job) == same and one.at > since]
    count = sum(not _saved_more_since(one, case.base) for one in done)
    hours = terms.within / timedelta(hours=1)
    return (Mode.PROPOSE, f"“{case.action}” was done {count} times within {hours:g} h") if count >= terms.most else None


def _saved_more_since(done: Done, base: Saved | None) -> bool:
    """A restart after which the job saved a newer checkpoint is part of no loop: a gang of thousands of GPUs meets
    several broken nodes in an hour. A loss that goes wrong again and again needs a person although it saves."""
    if done.action not in PLAIN_RESTARTS or done.checkpoint is None or base is None:
        return False
    return base.step > done.checkpoint


def _loses_all(case: Case) -> Limit | None:
    step = max((one.step or 0 for one in case.history.tries), default=0)
    if not case.restarts or case.base is not None or not step or _repeats_little(case):
        return None
    return Mode.PROPOSE, f"it had come to step {step}, and no checkpoint is known to start from"


def _repeats_little(case: Case) -> bool:
    """A job that failed before its first save. Repeating minutes costs less than waiting for a person; but a job that
    had loaded a checkpoint has one, and it is only not found."""
    ran = case.facts.ran
    return ran is not None and ran <= case.policy.most_repeated and case.facts.started_from is None


def _not_opted_in(case: Case) -> Limit | None:
    if not case.change or case.facts.labels.get(OPT_IN) == "on":
        return None
    return Mode.PROPOSE, f"what a job asks for is changed by itself only where its label says {OPT_IN}=on"


def _other_batch(case: Case) -> Limit | None:
    if all(one.keeps_batch for one in case.change):
        return None
    return Mode.PROPOSE, "its global batch may become smaller, and what it learns with it, which is its owner's to say"


def _broken(case: Case) -> Limit | None:
    if not case.restarts:
        return None
    why = tripped(case.history, case.policy.breaker, case.now, case.drain)
    return (Mode.PROPOSE, why) if why else None


RULES: tuple[Callable[[Case], Limit | None], ...] = (
    _opted_out,
    _expired,
    _ordered,
    _unsure,
    _too_often,
    _loses_all,
    _not_opted_in,
    _other_batch,
    _broken,
)


def tripped(history: History, breaker: Breaker, now: datetime, adding: frozenset[str] = frozenset()) -> str:
    """Why nothing on this cluster may act by itself; empty: it may. More deeds never take this back."""
    since = now - breaker.cordon_window
    nodes = set(adding).union(*(one.nodes for one in history.done if one.action in CORDONING and one.at > since))
    if nodes and len(nodes) > breaker.cordoned_share * history.cluster_nodes and len(nodes) > 1:
        minutes = breaker.cordon_window // timedelta(minutes=1)
        share = f"{len(nodes)} of {history.cluster_nodes} nodes would be taken out within {minutes} minutes"
        return f"{share}; {breaker.cordoned_share:.0%} are allowed"
    since = now - breaker.restart_window
    restarts = sum(one.action in RUNNING_AGAIN and one.at > since for one in history.done)
    if restarts >= breaker.restarts:
        minutes = breaker.restart_window // timedelta(minutes=1)
        return f"{restarts} jobs were restarted within {minutes} minutes; {breaker.restarts} are allowed"
    return ""
