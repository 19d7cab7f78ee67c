"""The only code that changes a Decision or an Order. Each verb is one transaction with its Event.

A person who corrects a verdict also says that what was decided rests on the wrong cause: what is not done yet is
withdrawn with that reason, and the loop asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import F

from acmeweb import live
from failures import actions as failure_actions
from failures.actions import Moved, storable
from failures.models import Course, Decision, Diagnosis, Order, Sign, Standing, Step
from failures.models.decision import OPEN
from failures.recovery.remedies import Action, Mode
from failures.recovery.resizing import MEMORY, Asked, Change, Differs, applied, taken_back
from failures.recovery.stored import as_json
from failures.recovery.values import Recovery
from failures.situation import Situation
from jobs import actions, journal, node_actions, recovery_actions
from jobs.actions import JobError
from jobs.journal import Author
from jobs.lifecycle import State
from jobs.models import Attempt, Hold, Job, Node

RECOVERY = Author(by="recovery")
OF_INCIDENT = "Recovery of incident"  # how the reasons begin with which it closes and tests nodes
COURSES = {Mode.OBSERVE: Course.OBSERVED, Mode.PROPOSE: Course.PROPOSED, Mode.ACT: Course.APPROVED}
CLAIM = timedelta(seconds=60)
ACTING_TAKES = timedelta(minutes=30)  # with two rounds of tests; then the job is given back to its ending


def record(row: Diagnosis | Sign, situation: Situation, found: Recovery, now: datetime) -> Decision | None:
    """One for each failed attempt (that stands) and for each sign; None where somebody else was faster."""
    try:
        with transaction.atomic():
            return _record(row, situation, found, now)
    except IntegrityError:
        return None


def _record(row: Diagnosis | Sign, situation: Situation, found: Recovery, now: datetime) -> Decision:
    ground = {"diagnosis": row} if isinstance(row, Diagnosis) else {"sign": row}
    inputs = {name: storable(as_json(getattr(situation, name))) for name in ("facts", "history", "policy")}
    base, words = found.checkpoint, {"pro": found.pro, "con": found.con}
    decision = Decision.objects.create(
        cluster_id=row.cluster_id, incident_id=row.incident_id, attempt=row.attempt, at=now, **ground,
        action=found.action.value, mode=found.mode.value, why=storable(found.why),
        limits=storable([[mode.value, why] for mode, why in found.limits]), drain=sorted(found.drain),
        test=sorted(found.test), checkpoint_path=base.path[:1000] if base else "",
        checkpoint_step=base.step if base else None, skip=list(found.skip) if found.skip else None,
        change=storable(as_json(found.change)), undo=found.undo, not_before=found.not_before,
        expires_at=found.expires_at, consumes=found.consumes,
        course=_course(found), due_at=now, **inputs, **{name: storable(list(one)) for name, one in words.items()},
    )  # fmt: skip
    _event("decision.made", RECOVERY, decision, why=sentence(decision), to_state=decision.course)
    _let_the_job_wait(decision, now)
    _tell(decision)
    return decision


def _course(found: Recovery) -> str:
    """What nobody can say yes to is no proposal: an end, or advice."""
    if found.restarts or (found.action is Action.STOP and found.acts):
        return COURSES[found.mode]
    return Course.OBSERVED


def _let_the_job_wait(decision: Decision, now: datetime) -> None:
    """As long as the decision may still come to pass. Who is started again by nobody need not wait for anybody."""
    attempt = decision.attempt
    if attempt is None or attempt.ended_at is None:
        return
    try:
        if decision.course == Course.APPROVED:
            recovery_actions.postpone(attempt, now + ACTING_TAKES, why=f"Recovery: {sentence(decision)}")
        elif decision.course == Course.PROPOSED:
            why = f"Proposed: {sentence(decision)} Incident {decision.incident_id} waits for somebody's yes."
            recovery_actions.postpone(attempt, decision.expires_at, why=why)
        else:
            give_back(decision, RECOVERY)
    except JobError:
        return  # the rule of its ending, or a person, was there first


def sentence(decision: Decision) -> str:
    """What it is, in one line."""
    what = decision.action.capitalize()
    if decision.change:
        what += f": {' and '.join(_instead(one) for one in decision.changes)}"
    if decision.checkpoint_step is not None:
        what += f"{',' if decision.change else ''} from step {decision.checkpoint_step}"
    if decision.drain:
        what += f" without {', '.join(decision.drain)}"
    elif decision.test:
        what += f": {', '.join(decision.test)}"
    return f"{what}, because {decision.why}."


def _instead(one: Change) -> str:
    words = f"{one.what} {one.becomes}" if one.what == MEMORY else one.becomes
    return f"{words} instead of {one.was}" if one.was else words


def asks_instead(decision: Decision, *, back: bool = False) -> dict[str, Any]:
    """The fields of its job as the change leaves them; with `back`, as they were before it. Raises Differs."""
    if decision.attempt is None or not decision.change:
        return {}
    job = Job.objects.select_for_update(of=("self",)).get(pk=decision.attempt.job_id)
    now = Asked(command=job.command, environment=job.environment, memory_mb=job.memory_per_node_mb)
    new = applied(taken_back(decision.changes) if back else decision.changes, now)
    return {"command": new.command, "environment": dict(new.environment), "memory_per_node_mb": new.memory_mb}


def distrust(decision: Decision) -> None:
    """What it went back behind stays bad: the next failure, of another cause, must not go on from there."""
    if decision.action != Action.ROLL_BACK or decision.attempt is None or decision.checkpoint_step is None:
        return
    saved = [(one["path"][:500], one["step"]) for one in decision.facts["checkpoints"]]
    spoiled = {path: step for path, step in saved if step > decision.checkpoint_step}
    recovery_actions.distrust(decision.attempt, spoiled.items(), author=RECOVERY, why=_went_back(decision))


def _went_back(decision: Decision) -> str:
    return f"Recovery went back behind it, to step {decision.checkpoint_step}: incident {decision.incident_id}."


def give_back(decision: Decision, author: Author, why: str = "", *, hold: bool = False) -> None:
    """The job becomes what its end says, but with `hold` does not run again by itself. Raises JobError where it does
    not wait any more."""
    stops = decision.action == Action.STOP and decision.mode == Mode.ACT
    words = why or f"{decision.why[:1].upper()}{decision.why[1:]}."
    if decision.attempt is not None:
        recovery_actions.give_back(decision.attempt, author=author, why=words, hold=hold or stops)


# --- what people say


@transaction.atomic
def approve(decision: Decision, *, author: Author, now: datetime, why: str = "") -> None:
    """One click: it will be carried out as it stands."""
    row = _locked(decision)
    if row.course != Course.PROPOSED:
        raise Moved(f"it is {row.course} already")
    if now > row.expires_at:
        raise Moved(f"it was right until {row.expires_at:%d %b %H:%M} UTC; what was right then may be wrong now")
    _say(row, Course.APPROVED, author, now, why, due_at=now)
    _event("decision.approved", author, row, why=why, to_state=Course.APPROVED)
    if row.attempt is not None and row.restarts:
        _if_it_waits(lambda: recovery_actions.postpone(row.attempt, now + ACTING_TAKES, why="Recovery was approved."))
    decision.refresh_from_db()


@transaction.atomic
def decline(decision: Decision, *, author: Author, now: datetime, why: str = "") -> None:
    """The job becomes what its end says."""
    row = _locked(decision)
    if row.course != Course.PROPOSED:
        raise Moved(f"it is {row.course} already")
    _say(row, Course.DECLINED, author, now, why, ended_at=now)
    _event("decision.declined", author, row, why=why, to_state=Course.DECLINED)
    words = f"{author.by} declined its recovery" + (f": {why}" if why else ".")
    _if_it_waits(lambda: give_back(row, author, words))
    decision.refresh_from_db()


@transaction.atomic
def undo(decision: Decision, *, author: Author, now: datetime, why: str = "") -> None:
    """Nodes that it drained take work again, the job is held if it still waits; recovery leaves both alone until the
    orders are lifted."""
    row = _locked(decision)
    if not row.can_be_undone:
        raise Moved(f"it is {row.course}, and there is nothing to undo")
    words = why or f"{author.by} took back “{row.action}” of {row.at:%d %b %H:%M}"
    _say(row, Course.UNDONE, author, now, why, ended_at=now)
    _event("decision.undone", author, row, why=words, to_state=Course.UNDONE)
    done = [_resumed(step, author, words, now) for step in row.steps.filter(kind=Step.Kind.DRAINED, node__isnull=False)]
    done.append(_held_again(row, author, words, now))
    Step.objects.create(decision=row, kind=Step.Kind.UNDONE, words=" ".join(one for one in done if one))
    decision.refresh_from_db()


def _resumed(step: Step, author: Author, why: str, now: datetime) -> str:
    node = Node.objects.get(pk=step.node_id)
    Order.objects.create(cluster_id=node.cluster_id, node=node, by=author.by, why=why, at=now)
    if not node.drain_asked or node.reason_by != RECOVERY.by:
        return ""  # somebody else has decided about it since
    node_actions.resume(node, author=author, why=why, now=now)
    return f"{node} takes work again."


def _held_again(row: Decision, author: Author, why: str, now: datetime) -> str:
    """A job that has not gone on yet is held, whatever its end would have made of it; one that has is nobody's to
    stop."""
    if row.attempt is None:
        return ""
    job = Job.objects.get(pk=row.attempt.job_id)
    Order.objects.create(cluster_id=row.cluster_id, job=job, by=author.by, why=why, at=now)
    if job.state != State.PENDING:
        return f"{job} is {job.state}."
    said = _asks_as_before(row, job, author, why)
    if row.action == Action.ROLL_BACK:
        recovery_actions.trust_again(row.attempt, author=author, why=why, judged=_went_back(row))
    if job.recover_by is not None:
        give_back(row, author, why, hold=True)
        job.refresh_from_db()
    elif job.hold == Hold.NONE:
        actions.hold(job, author=author, why=why)
    return f"{job} is held.{said}" if job.state == State.PENDING else f"{job} is {job.state}, as its end says.{said}"


def _asks_as_before(row: Decision, job: Job, author: Author, why: str) -> str:
    """What was changed for it is changed back, unless somebody has changed it since."""
    if not row.steps.filter(kind=Step.Kind.RESTARTED).exists() or not row.change:
        return ""
    try:
        recovery_actions.ask_for(job, asks_instead(row, back=True), author=author, why=why)
    except Differs as changed:
        return f" What it asks for stays: {changed}."
    return " It asks for what it asked for before."


@transaction.atomic
def lift(order: Order, *, author: Author, now: datetime) -> None:
    """Recovery may decide about its subject again."""
    if not Order.objects.standing().filter(pk=order.pk).update(lifted_at=now, lifted_by=author.by):
        raise Moved("somebody lifted it already")
    order.refresh_from_db()
    where = {"job_id": order.job_id, "node_id": order.node_id, "cluster_id": order.cluster_id}
    journal.event("order.lifted", author, why=order.why, **where).save()
    live.changed("failures")


def _say(row: Decision, course: str, author: Author, now: datetime, why: str, **fields: Any) -> None:
    said = {"said_by": author.by, "said_at": now, "said_why": storable(why)[:1000]}
    Decision.objects.filter(pk=row.pk).update(course=course, **said, **fields)
    _tell(row)


def _if_it_waits(act: Callable[[], None]) -> None:
    try:
        with transaction.atomic():
            act()
    except JobError:
        return  # somebody let it go meanwhile


@transaction.atomic
def correct(row: Diagnosis, root_cause: str, *, author: Author, now: datetime, note: str = "") -> None:
    """A person knows better why it failed, or confirms it; what rests on another cause is not to be done any more."""
    failure_actions.correct(row, root_cause, author=author, now=now, note=note)
    for decision in row.decisions.standing():
        _withdraw(_locked(decision), row, author, now)


def _withdraw(decision: Decision, row: Diagnosis, author: Author, now: datetime) -> None:
    """Who carries it out holds the lock until his step is written, and then finds that it is not his any more."""
    if decision.facts["cause"] == row.root_cause or not _may_be_withdrawn(decision):
        return
    why = f"{author.by} corrected the diagnosis from {decision.facts['cause']} to {row.root_cause}."
    done = [f"{step.kind} {step.node or ''}".strip() for step in decision.steps.select_related("node")]
    outcome = f"{why} What was done before that stays: {', '.join(done)}." if done else why
    _say(decision, Course.WITHDRAWN, author, now, "", ended_at=now, outcome=storable(outcome))
    _event("decision.withdrawn", author, decision, why=outcome, to_state=Course.WITHDRAWN)


def _may_be_withdrawn(decision: Decision) -> bool:
    """Nothing was done about the job, and nobody has said no to it."""
    if decision.course == Course.OBSERVED:
        return decision.incident.state != Standing.RESOLVED
    if decision.course not in OPEN:
        return False
    return not decision.steps.filter(kind__in=(Step.Kind.RESTARTED, Step.Kind.ENDED)).exists()


# --- what the loop does


def claim(decision: Decision, now: datetime) -> Decision | None:
    """Ours for a while; counted before anything is done. The number of tries is the fence."""
    taken = Decision.objects.due(now).filter(pk=decision.pk, tries=decision.tries)
    began = decision.began_at or now
    if not taken.update(course=Course.ACTING, tries=decision.tries + 1, due_at=now + CLAIM, began_at=began):
        return None
    decision.refresh_from_db()
    return decision


def still_ours(decision: Decision) -> None:
    """Locked until the step is written: who takes the decision back waits for that, or was first and it is not made."""
    rows = Decision.objects.select_for_update(of=("self",)).only("pk")
    if rows.filter(pk=decision.pk, tries=decision.tries, course=Course.ACTING).first() is None:
        raise Moved(f"decision {decision.pk} was taken back, or is carried out by somebody else")


@transaction.atomic
def finish(decision: Decision, course: str, outcome: str, now: datetime) -> bool:
    ended = {"course": course, "outcome": storable(outcome), "ended_at": now}
    if not Decision.objects.filter(pk=decision.pk, tries=decision.tries, course=Course.ACTING).update(**ended):
        return False
    decision.refresh_from_db()
    _event(f"decision.{course}", RECOVERY, decision, why=outcome, to_state=course)
    _tell(decision)
    return True


def stumble(decision: Decision) -> int:
    """How often it has raised by now."""
    Decision.objects.filter(pk=decision.pk).update(errors=F("errors") + 1)
    decision.refresh_from_db()
    return decision.errors


def wait(decision: Decision, until: datetime, outcome: str) -> None:
    mine = Decision.objects.filter(pk=decision.pk, tries=decision.tries, course=Course.ACTING)
    if mine.exclude(outcome=outcome).update(outcome=outcome, due_at=until):
        _tell(decision)
    else:
        mine.update(due_at=until)


def name_faulty(decision: Decision, names: Sequence[str]) -> None:
    """The test found them: they count among the nodes that were closed."""
    mine = Decision.objects.filter(pk=decision.pk, tries=decision.tries, course=Course.ACTING)
    mine.update(drain=sorted({*decision.drain, *names}))
    decision.refresh_from_db()


def expire(now: datetime) -> int:
    """What nobody said yes to in time is never done."""
    late = Decision.objects.filter(course=Course.PROPOSED, expires_at__lte=now).select_related("attempt__job")
    return sum(_expired(row, "Nobody approved it in time.", now) for row in late[:200])


def forget(sign: Sign, why: str, now: datetime) -> None:
    """What was proposed because of a sign that has passed is not to be done any more."""
    for row in Decision.objects.filter(sign=sign, course=Course.PROPOSED).select_related("attempt__job"):
        _expired(row, why, now)


@transaction.atomic
def _expired(row: Decision, why: str, now: datetime) -> bool:
    over = {"course": Course.EXPIRED, "ended_at": now, "outcome": why}
    if not Decision.objects.filter(pk=row.pk, course=Course.PROPOSED).update(**over):
        return False
    _event("decision.expired", RECOVERY, row, to_state=Course.EXPIRED, why=why)
    _tell(row)
    return True


def _locked(decision: Decision) -> Decision:
    rows = Decision.objects.select_for_update(of=("self",)).select_related("attempt__job", "incident", "sign__node")
    return rows.get(pk=decision.pk)


def step(decision: Decision, kind: str, words: str, node: Node | None = None) -> None:
    Step.objects.create(decision=decision, kind=kind, node=node, words=storable(words))


def _event(what: str, author: Author, decision: Decision, **fields: Any) -> None:
    detail = {"incident": decision.incident_id, "decision": decision.pk, "action": decision.action}
    if decision.attempt_id is None:
        node = Node.objects.get(signs__decision=decision)
        journal.of_node(what, author, node, detail=detail, **fields).save()
        return
    attempt = Attempt.objects.select_related("job").get(pk=decision.attempt_id)
    journal.of_job(what, author, attempt.job, attempt=attempt, detail=detail, **fields).save()


def _tell(decision: Decision) -> None:
    of_job = [f"job:{decision.attempt.job.public_id}"] if decision.attempt else []
    live.changed("failures", f"incident:{decision.incident_id}", *of_job)
