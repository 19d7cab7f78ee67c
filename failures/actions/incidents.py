"""The only code that changes a Diagnosis or an Incident. Each verb is one transaction with its Event.

What a loop found is written under the number of its try: who slept past its time writes nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import F, Q

from acmeweb.common import live
from failures.actions import incident_candidates
from failures.actions.log_offsets import forget_offsets
from failures.diagnosis import values as pure
from failures.diagnosis import wording
from failures.diagnosis.labels import LABELS, NONE, UNKNOWN
from failures.incidents import grouping
from failures.incidents.grouping import FailureSymptom, IncidentScope
from failures.models import Decision, DecisionState, Diagnosis, DiagnosisReview, Incident, IncidentState
from jobs.actions import jobs as job_actions
from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.core.lifecycle import FAILURE_STATES, State
from jobs.models import Attempt, Job, Node

DIAGNOSIS_AUTHOR = Author(by="diagnosis")
RECOVERY_LOOP_AUTHOR = Author(by="recovery")
LEASE = timedelta(seconds=90)  # longer than a task may live, so that nobody else is at the same row
MAX_NEW_DIAGNOSES = 500
CLAIM_RELATIONS = ("attempt__job__cluster", "attempt__following")
MAX_RESOLVED_PER_TURN = 200
RECOVERED_WITHIN = timedelta(days=30)
MAX_BUNDLE_BYTES = 64 << 10
SUSPECT_BUNDLE_DELAY = timedelta(minutes=30)  # its bundle is made when its log has more to say
UNSTARTED_STATES = (DecisionState.PROPOSED, DecisionState.OBSERVED)
SYMPTOM_CONFIDENCE = 0.9  # no step for three times the longest usual: seen, not guessed
INCIDENT_LOCK_KEY = 0x0E11  # "who opens incidents of this cluster", for pg_advisory_xact_lock


class FailureStateConflict(Exception):
    """Somebody else changed the row first; the message is a sentence."""


# --- the work


def add_missing_diagnoses(since: datetime, now: datetime) -> int:
    """A row for each attempt that failed since then and has none. Twice or by two workers at once: still one each."""
    failed = (
        Attempt.objects.filter(ended_at__gte=since, state__in=sorted(FAILURE_STATES), stop_as="", diagnosis=None)
        .order_by("ended_at")
        .values_list("pk", "job__cluster_id", "ended_at")[:MAX_NEW_DIAGNOSES]
    )
    rows = [Diagnosis(attempt_id=pk, cluster_id=cluster, failed_at=at, due_at=now) for pk, cluster, at in failed]
    return len(Diagnosis.objects.bulk_create(rows, ignore_conflicts=True))


def claim(now: datetime) -> Diagnosis | None:
    """The next row with work to do, verdicts before bundles. Counted before it is begun.

    One bundle at a time: each is seconds of work that nobody waits for, and must not take every worker from verdicts.
    """
    with transaction.atomic():
        due = Diagnosis.objects.open().filter(due_at__lte=now).select_for_update(skip_locked=True, of=("self",))
        # What failed in one moment is due in one moment: its first symptom leads, whatever order the table gives
        longest = (F("judged_at").asc(nulls_first=True), "due_at", "failed_at", "pk")
        row = due.order_by(*longest).only("pk", "judged_at").first()
        if row is None or (row.judged_at and _bundle_in_progress(now)):
            return None
        Diagnosis.objects.filter(pk=row.pk).update(tries=F("tries") + 1, due_at=now + LEASE)
    return Diagnosis.objects.select_related(*CLAIM_RELATIONS).defer("bundle").get(pk=row.pk)


def _bundle_in_progress(now: datetime) -> bool:
    return Diagnosis.objects.open().judged().filter(due_at__gt=now, tries__gt=0).exists()


def postpone_diagnosis(row: Diagnosis, trouble: str, until: datetime) -> None:
    Diagnosis.objects.filter(pk=row.pk, tries=row.tries).update(trouble=trouble[:1000], due_at=until)


@dataclass(frozen=True, kw_only=True)
class FailureCost:
    gpus: int
    ran: timedelta
    lost: timedelta


@transaction.atomic
def record_verdict(
    row: Diagnosis,
    verdict: pure.LogDiagnosis,
    cost: FailureCost,
    first_symptom_at: datetime,
    now: datetime,
    trouble: str = "",
) -> Incident | None:
    """Write the verdict down and join it to an incident, or open one. What a person said meanwhile stays."""
    fields = _verdict_fields(verdict) | {
        "gpus": cost.gpus,
        "ran": cost.ran,
        "lost": cost.lost,
        "trouble": trouble[:1000],
    }
    # The bundle is a piece of work of its own, with tries of its own; and at once
    fields |= {"judged_at": now, "tries": 0, "due_at": now}
    if not Diagnosis.objects.filter(pk=row.pk, tries=row.tries, judged_at=None).update(**fields):
        raise FailureStateConflict(f"{row.attempt} was judged by somebody else a moment ago")
    for name, value in fields.items():  # as it is now in the database, without asking for all of it again
        setattr(row, name, value)
    _update_attempt_cause(row, DIAGNOSIS_AUTHOR)
    row.nodes.set(_known_nodes(row, {node.host for node in verdict.suspect_nodes}))
    incident = None if row.root_cause == NONE else _join_incident(row, first_symptom_at, now)
    detail = {"confidence": row.confidence, "engine": row.engine, "rules_version": row.rules_version}
    _record_event("diagnosis.made", DIAGNOSIS_AUTHOR, row, to_state=row.root_cause, why=row.action, detail=detail)
    _publish_change(row)
    return incident


DETECTOR_ENGINE = "detector"  # the engine's name, where a running attempt is judged by what it reports


@transaction.atomic
def diagnose_running_attempt(attempt: Attempt, label: str, why: str, since: datetime, now: datetime) -> Incident | None:
    """A running attempt shows a symptom: its verdict comes before its end. Twice: None."""
    found = LABELS[label]
    row, new = Diagnosis.objects.get_or_create(
        attempt=attempt,
        defaults={
            "cluster_id": attempt.job.cluster_id, "failed_at": now, "due_at": now + SUSPECT_BUNDLE_DELAY,
            "judged_at": now, "root_cause": label, "said": label, "category": found.category.value,
            "confidence": SYMPTOM_CONFIDENCE,
            "restart_helps": found.restart.value, "restart_reason": found.reason, "action": found.action,
            "engine": DETECTOR_ENGINE, "notes": [why], "gpus": attempt.job.gpus,
        },
    )  # fmt: skip
    if not new:
        return None
    row.refresh_from_db()
    incident = _join_incident(row, since, now)
    _record_event("diagnosis.made", DIAGNOSIS_AUTHOR, row, to_state=label, why=why, detail={"engine": DETECTOR_ENGINE})
    _publish_change(row)
    return incident


@transaction.atomic
def withdraw_early_diagnosis(row: Diagnosis, why: str, now: datetime) -> bool:
    """The symptom passed before anything was done about it: what fails later is judged for itself."""
    if (
        row.engine != DETECTOR_ENGINE
        or not Attempt.objects.filter(pk=row.attempt_id, ended_at=None, stop_as="").exists()
    ):
        return False
    # Locked: whoever says yes meanwhile finds it gone, or was first and keeps it
    waiting = Decision.objects.select_for_update(of=("self",)).filter(diagnosis=row)
    if any(one.course not in UNSTARTED_STATES for one in waiting):
        return False
    incident = row.incident
    if incident is not None:
        Incident.objects.filter(pk=incident.pk).update(attempts=F("attempts") - 1)
        if incident.lead_id == row.pk:
            if incident.state != IncidentState.RESOLVED:
                resolve(incident, author=DIAGNOSIS_AUTHOR, now=now, why=why)
            Incident.objects.filter(pk=incident.pk).update(lead=None)
    waiting.filter(course__in=UNSTARTED_STATES).delete()
    _record_event("diagnosis.withdrawn", DIAGNOSIS_AUTHOR, row, from_state=row.root_cause, why=why)
    _publish_change(row)
    row.delete()
    return True


def _verdict_fields(verdict: pure.LogDiagnosis) -> dict[str, Any]:
    shown = sanitize_for_storage(wording.as_dict(verdict))
    same = ("evidence", "chain", "suspect_nodes", "suspect_gpus", "alternatives", "notes", "lines", "size")
    words = ("root_cause", "confidence", "restart_reason", "action", "engine", "rules_version")
    found = {name: shown[name] for name in (*same, *words)}
    found |= {"said": verdict.root_cause, "category": verdict.category.value, "blame": verdict.blame or ""}
    return found | {"restart_helps": verdict.restart_helps.value}


def sanitize_for_storage(value: Any) -> Any:
    """PostgreSQL keeps no NUL and no half character; logs hold both."""
    match value:
        case str():
            return value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
        case dict():
            return {name: sanitize_for_storage(inner) for name, inner in value.items()}
        case list() | tuple():
            return [sanitize_for_storage(inner) for inner in value]
    return value


def store_bundle(row: Diagnosis, text: str, now: datetime) -> None:
    """The work on this row is done, and what a follower knew of the log is needed no more."""
    raw = text.encode("utf-8", "replace")[:MAX_BUNDLE_BYTES]
    packed = zlib.compress(raw, 9) if raw else None
    open_row = Diagnosis.objects.filter(pk=row.pk, tries=row.tries, kept_at=None)
    if open_row.update(bundle=packed, bundle_size=len(raw), kept_at=now):
        forget_offsets([row.attempt_id])


def _known_nodes(row: Diagnosis, names: Iterable[str]) -> list[Node]:
    """A log writes `seren-001.cluster.local` where the record says `seren-001`."""
    wanted = set(names) | {name.partition(".")[0] for name in names}
    return list(Node.objects.filter(cluster_id=row.cluster_id, name__in=wanted)) if wanted else []


# --- incidents


def find_or_open_incident(
    cluster_id: int, symptom: FailureSymptom, category: str, first_at: datetime, lead: Diagnosis | None = None
) -> tuple[Incident, bool]:
    """The incident that a symptom belongs to, and whether it was there. Under a lock of the cluster: two attempts that
    die of one cause in one moment must not open two incidents."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [INCIDENT_LOCK_KEY, cluster_id])
    found = grouping.matching_incident(symptom, incident_candidates.candidates(cluster_id, symptom))
    if found:
        return Incident.objects.get(pk=found), True
    opened = Incident.objects.create(
        cluster_id=cluster_id,
        root_cause=symptom.root_cause,
        category=category,
        scope=grouping.scope_of_symptom(symptom),
        subject=grouping.incident_subject(symptom)[:200],
        words=symptom.words,
        first_symptom_at=first_at,
        last_symptom_at=symptom.at,
        lead=lead,
    )
    return opened, False


def _join_incident(row: Diagnosis, first_at: datetime, now: datetime) -> Incident:
    symptom = incident_candidates.symptom_of(row)
    incident, found = find_or_open_incident(row.cluster_id, symptom, row.category, first_at, lead=row)
    if incident.lead_id is None:  # it was opened by a sign: now there is somebody who died of it
        Incident.objects.filter(pk=incident.pk).update(lead=row)
    Diagnosis.objects.filter(pk=row.pk).update(incident=incident)
    Incident.objects.filter(pk=incident.pk).update(
        attempts=F("attempts") + 1,
        gpu_hours_lost=F("gpu_hours_lost") + row.gpu_hours_lost,
        first_symptom_at=min(incident.first_symptom_at, first_at),
        last_symptom_at=max(incident.last_symptom_at, symptom.at),
    )
    accused = grouping.accused_nodes(symptom)
    if accused and grouping.scope_of_symptom(symptom) is IncidentScope.NODE:
        named = _known_nodes(row, accused)
        incident.nodes.add(*named)
        row.nodes.add(*named)
    row.incident = incident
    what = "incident.joined" if found else "incident.opened"
    _record_event(
        what, DIAGNOSIS_AUTHOR, row, to_state=incident.state, why=incident.title, detail={"incident": incident.pk}
    )
    return incident


@transaction.atomic
def acknowledge(incident: Incident, *, author: Author, now: datetime, why: str = "") -> None:
    """Somebody is at it."""
    if not Incident.objects.filter(pk=incident.pk, state=IncidentState.OPEN).update(
        state=IncidentState.ACKNOWLEDGED, acknowledged_at=now, acknowledged_by=author.by
    ):
        raise _incident_conflict(incident, "acknowledged")
    _record_incident_event("incident.acknowledged", author, incident, IncidentState.ACKNOWLEDGED, why)


@transaction.atomic
def resolve(incident: Incident, *, author: Author, now: datetime, why: str = "") -> None:
    """It is over; what fails from now on is another incident."""
    if (
        not Incident.objects.unresolved()
        .filter(pk=incident.pk)
        .update(state=IncidentState.RESOLVED, resolved_at=now, resolved_by=author.by, resolved_why=why[:1000])
    ):
        raise _incident_conflict(incident, "resolved")
    _record_incident_event("incident.resolved", author, incident, IncidentState.RESOLVED, why)


def resolve_recovered_incidents(now: datetime) -> int:
    """Close what a program mended by itself: every job that was in it has ended well since."""
    rows = Incident.objects.unresolved().filter(scope=IncidentScope.JOB, last_symptom_at__gte=now - RECOVERED_WITHIN)
    mended = rows.exclude(diagnoses__attempt__job__in=Job.objects.exclude(state=State.COMPLETED))
    done = 0
    for incident in mended.select_related("lead__attempt__job").order_by("pk")[:MAX_RESOLVED_PER_TURN]:
        try:
            resolve(incident, author=DIAGNOSIS_AUTHOR, now=now, why="Its jobs have ended well since.")
            done += 1
        except FailureStateConflict:
            continue  # a person was faster
    return done


def _incident_conflict(incident: Incident, wanted: str) -> FailureStateConflict:
    incident.refresh_from_db()
    return FailureStateConflict(f"{incident} cannot be {wanted}: it is {incident.state} already")


def _record_incident_event(what: str, author: Author, incident: Incident, state: str, why: str) -> None:
    before = incident.state
    incident.refresh_from_db()
    moved: dict[str, Any] = {"from_state": before, "to_state": state, "why": why, "detail": {"incident": incident.pk}}
    if incident.lead is not None:
        _record_event(what, author, incident.lead, **moved)
    else:  # signs alone
        journal.new_event(what, author, cluster_id=incident.cluster_id, node=incident.nodes.first(), **moved).save()
    live.publish_on_commit("failures", f"incident:{incident.pk}")


# --- what people say of a verdict


@transaction.atomic
def confirm(row: Diagnosis, *, author: Author, now: datetime, note: str = "") -> None:
    """A person looked, and it is so."""
    _record_review(row, row.root_cause, author=author, now=now, note=note)


@transaction.atomic
def correct_verdict(row: Diagnosis, root_cause: str, *, author: Author, now: datetime, note: str = "") -> None:
    """A person knows better. To what the engine had said: that confirms it."""
    _record_review(row, root_cause, author=author, now=now, note=note)


@transaction.atomic
def confirm_verdict_by_recovery(row: Diagnosis, *, now: datetime, note: str) -> bool:
    """What this verdict had us do has worked, so the verdict is held to be true; `note` says what was done.

    False where that proves nothing: a person has spoken, no cause was named, or what helped is said not to help.
    """
    row.refresh_from_db(from_queryset=Diagnosis.objects.select_for_update(of=("self",)).defer("bundle"))
    if row.review or row.judged_at is None or row.root_cause in (NONE, UNKNOWN):
        return False
    if row.restart_helps == pure.RestartAdvice.NO:
        return False
    _record_review(row, row.root_cause, author=RECOVERY_LOOP_AUTHOR, now=now, note=note)
    return True


def _record_review(row: Diagnosis, root_cause: str, *, author: Author, now: datetime, note: str) -> None:
    row.refresh_from_db(from_queryset=Diagnosis.objects.select_for_update(of=("self",)).defer("bundle"))
    if row.judged_at is None:
        raise FailureStateConflict(f"{row.attempt} is not diagnosed yet")
    before, label = row.root_cause, LABELS[root_cause]
    review = DiagnosisReview.CONFIRMED if root_cause == row.said else DiagnosisReview.CORRECTED
    fields: dict[str, Any] = {
        "review": review, "reviewed_by_id": author.user_id, "reviewed_at": now, "review_note": note[:1000],
    }  # fmt: skip
    if root_cause != before:
        fields |= {
            "root_cause": root_cause, "category": label.category.value, "restart_helps": label.restart.value,
            "restart_reason": label.reason, "action": label.action,
        }  # fmt: skip
    Diagnosis.objects.filter(pk=row.pk).update(**fields)
    row.refresh_from_db()
    _record_event(f"diagnosis.{review}", author, row, from_state=before, to_state=root_cause, why=note)
    _update_attempt_cause(row, author)
    _update_incident_cause(row)
    _publish_change(row)


def _update_attempt_cause(row: Diagnosis, author: Author) -> None:
    """For the ledgers against crash loops; a cause that nobody knows leaves them to count by how the command ended."""
    unknown = row.root_cause in (NONE, UNKNOWN)
    job_actions.set_failure_cause(row.attempt, "" if unknown else row.root_cause, author=author)


def _update_incident_cause(row: Diagnosis) -> None:
    """An incident is called by what its leading diagnosis says."""
    led = Q(pk=row.incident_id, lead=row) & ~Q(root_cause=row.root_cause)
    Incident.objects.filter(led).update(root_cause=row.root_cause, category=row.category)


def _record_event(what: str, author: Author, row: Diagnosis, **fields: Any) -> None:
    journal.job_event(what, author, row.attempt.job, attempt=row.attempt, **fields).save()


def _publish_change(row: Diagnosis) -> None:
    topics = ["failures", f"job:{row.attempt.job.public_id}"]
    live.publish_on_commit(*topics, *([f"incident:{row.incident_id}"] if row.incident_id else []))
