"""The only code that changes a Diagnosis or an Incident. Each function is one transaction that also records an Event.

Results are written only if the row still has the `tries` of the claim, so a worker whose lease has expired writes
nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import F, Q, QuerySet

from acmeweb.common import live
from acmeweb.common.errors import ClaimLost, StateConflict
from failures.actions.log_read_states import forget_diagnosis_state
from failures.diagnosis import values as diagnosis_values
from failures.diagnosis import wording
from failures.diagnosis.labels import LABELS, NONE, UNKNOWN
from failures.incidents import grouping
from failures.incidents.grouping import FailureSymptom, IncidentScope
from failures.models import Decision, DecisionState, Diagnosis, DiagnosisReview, Incident, IncidentState
from failures.models.incident import IncidentQuerySet
from failures.queries import incident_candidates
from failures.queries.diagnose_attempt import FailureCost
from jobs.actions import jobs as job_actions
from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.actions.one_row import skip_row_on_error
from jobs.actions.wake import request_recovery
from jobs.core.lifecycle import FAILURE_STATES, FINAL_STATES, State
from jobs.models import Attempt, Job, Node

DIAGNOSIS_AUTHOR = Author(by="diagnosis")
LEASE = timedelta(seconds=90)  # longer than the time limit of a task, so that no two workers process one row
LOG_COPY_WAIT = timedelta(seconds=10)
MAX_NEW_DIAGNOSES = 500
CLAIM_RELATIONS = ("attempt__job__cluster", "attempt__log_read_state")
MAX_RESOLVED_PER_TURN = 200
RECOVERED_WITHIN = timedelta(days=30)
MAX_BUNDLE_BYTES = 64 << 10
SUSPECT_BUNDLE_DELAY = timedelta(minutes=30)  # the log of a running attempt grows; its bundle is made later
# States of decisions of which nothing was carried out. One that was withdrawn is not among them: a user has corrected
# its diagnosis, which stays
UNSTARTED_STATES = (
    DecisionState.PROPOSED,
    DecisionState.OBSERVED,
    DecisionState.DECLINED,
    DecisionState.EXPIRED,
)
SYMPTOM_CONFIDENCE = 0.9  # measured: no step for three times the longest usual interval
INCIDENT_LOCK_KEY = 0x0E11  # class id of the lock per cluster, for pg_advisory_xact_lock


# --- work of the loops


def add_missing_diagnoses(since: datetime, now: datetime) -> int:
    """Add a row for each attempt that failed since then and has none. Returns how many. Safe to run concurrently.

    An attempt whose log is still being copied waits, for a while: the reason is in its last lines.
    """
    failed = (
        _failed_attempts(since)
        .filter(diagnosis=None)
        .exclude(log_pending=True, ended_at__gt=now - LOG_COPY_WAIT)
        .order_by("ended_at")
        .values_list("pk", "job__cluster_id", "ended_at")[:MAX_NEW_DIAGNOSES]
    )
    rows = [Diagnosis(attempt_id=pk, cluster_id=cluster, failed_at=at, due_at=now) for pk, cluster, at in failed]
    return len(Diagnosis.objects.bulk_create(rows, ignore_conflicts=True))


def _failed_attempts(since: datetime) -> QuerySet[Attempt]:
    """The attempts that failed by themselves since then."""
    return Attempt.objects.filter(ended_at__gte=since, state__in=sorted(FAILURE_STATES), stop_state="")


def withdraw_early_diagnoses(since: datetime, now: datetime) -> int:
    """Withdraw what a detector said about an attempt that then went on and failed by itself, with a reason of its own.

    Returns how many. A diagnosis that recovery acted on, or that a user reviewed, stays. An error in one row does not
    stop the others.
    """
    done, early = (
        0,
        Diagnosis.objects.filter(engine=DETECTOR_ENGINE, reviewed_at=None, attempt__in=_failed_attempts(since)),
    )
    later = early.filter(failed_at__lt=F("attempt__ended_at")).select_related("incident__lead", "attempt__job")
    for row in later:
        with skip_row_on_error(row):
            done += withdraw_early_diagnosis(row, "The attempt failed by itself later.", now)
    return done


def claim(now: datetime) -> Diagnosis | None:
    """Claim the next row with work to do, verdicts before bundles. `tries` is counted before the work starts.

    Only one bundle is built at a time: each takes seconds, and verdicts are more urgent.
    """
    with transaction.atomic():
        due = Diagnosis.objects.open().filter(due_at__lte=now).select_for_update(skip_locked=True, of=("self",))
        # Simultaneous failures are due at the same time; order by failed_at, so that the first one leads the incident
        order = (F("judged_at").asc(nulls_first=True), "due_at", "failed_at", "pk")
        row = due.order_by(*order).only("pk", "judged_at").first()
        if row is None or (row.judged_at and _bundle_in_progress(now)):
            return None
        Diagnosis.objects.filter(pk=row.pk).update(tries=F("tries") + 1, due_at=now + LEASE)
    return Diagnosis.objects.select_related(*CLAIM_RELATIONS).defer("bundle").get(pk=row.pk)


def _bundle_in_progress(now: datetime) -> bool:
    return Diagnosis.objects.open().judged().filter(due_at__gt=now, tries__gt=0).exists()


def postpone_diagnosis(row: Diagnosis, last_error: str, until: datetime) -> None:
    Diagnosis.objects.filter(pk=row.pk, tries=row.tries).update(last_error=last_error[:1000], due_at=until)


@transaction.atomic
def record_verdict(
    row: Diagnosis,
    verdict: diagnosis_values.LogDiagnosis,
    cost: FailureCost,
    first_symptom_at: datetime,
    now: datetime,
    last_error: str = "",
) -> Incident | None:
    """Store the verdict and add it to an incident, or open one. Returns the incident, None if nothing failed."""
    fields = verdict_fields(verdict) | {
        "gpus": cost.gpus,
        "ran": cost.ran,
        "lost": cost.lost,
        "last_error": last_error[:1000],
    }
    # The bundle is separate work with its own tries, due immediately
    fields |= {"judged_at": now, "tries": 0, "due_at": now}
    if not Diagnosis.objects.filter(pk=row.pk, tries=row.tries, judged_at=None).update(**fields):
        raise ClaimLost(f"{row.attempt} was diagnosed by another worker")
    for name, value in fields.items():  # update the instance without another query
        setattr(row, name, value)
    _update_attempt_cause(row, DIAGNOSIS_AUTHOR)
    row.nodes.set(_nodes_with_names(row, {node.host for node in verdict.suspect_nodes}))
    incident = None if row.root_cause == NONE else _join_incident(row, first_symptom_at, now)
    detail = {"confidence": row.confidence, "engine": row.engine, "rules_version": row.rules_version}
    _record_event("diagnosis.created", DIAGNOSIS_AUTHOR, row, to_state=row.root_cause, why=row.action, detail=detail)
    _publish_change(row)
    request_recovery()
    return incident


DETECTOR_ENGINE = "detector"  # name of the engine for diagnoses of running attempts


@transaction.atomic
def diagnose_running_attempt(attempt: Attempt, label: str, why: str, since: datetime, now: datetime) -> Incident | None:
    """Diagnose a running attempt from a symptom. Returns its incident; None if it already has a diagnosis."""
    row, is_new = Diagnosis.objects.get_or_create(
        attempt=attempt,
        defaults={
            "cluster_id": attempt.job.cluster_id, "failed_at": now, "due_at": now + SUSPECT_BUNDLE_DELAY,
            "judged_at": now, "gpus": attempt.job.gpus, **detector_fields(label, why),
        },
    )  # fmt: skip
    if not is_new:
        return None
    row.refresh_from_db()
    incident = _join_incident(row, since, now)
    _record_event(
        "diagnosis.created", DIAGNOSIS_AUTHOR, row, to_state=label, why=why, detail={"engine": DETECTOR_ENGINE}
    )
    _publish_change(row)
    return incident


@transaction.atomic
def withdraw_early_diagnosis(row: Diagnosis, why: str, now: datetime) -> bool:
    """Delete a detector's diagnosis of an attempt whose symptom has ended. False if recovery has acted on it.

    A later failure of the attempt gets its own diagnosis.
    """
    if row.engine != DETECTOR_ENGINE or not Attempt.objects.filter(pk=row.attempt_id, stop_state="").exists():
        return False
    # The lock makes a concurrent approval either fail or happen before the check below
    unstarted = Decision.objects.select_for_update(of=("self",)).filter(diagnosis=row)
    if any(decision.state not in UNSTARTED_STATES for decision in unstarted):
        return False
    incident = row.incident
    if incident is not None:
        Incident.objects.filter(pk=incident.pk).update(attempts=F("attempts") - 1)
        if incident.lead_id == row.pk:
            if incident.state != IncidentState.RESOLVED:
                resolve(incident, author=DIAGNOSIS_AUTHOR, now=now, why=why)
            Incident.objects.filter(pk=incident.pk).update(lead=None)
    unstarted.filter(state__in=UNSTARTED_STATES).delete()
    _record_event("diagnosis.withdrawn", DIAGNOSIS_AUTHOR, row, from_state=row.root_cause, why=why)
    _publish_change(row)
    row.delete()
    return True


def detector_fields(label: str, why: str) -> dict[str, Any]:
    """The columns of a diagnosis that a detector made."""
    label_info = LABELS[label]
    return {
        "root_cause": label, "engine_root_cause": label, "category": label_info.category.value,
        "confidence": SYMPTOM_CONFIDENCE, "restart_helps": label_info.restart.value,
        "restart_reason": label_info.reason, "action": label_info.action, "engine": DETECTOR_ENGINE, "notes": [why],
    }  # fmt: skip


def verdict_fields(verdict: diagnosis_values.LogDiagnosis) -> dict[str, Any]:
    """The columns of a diagnosis that the engine made."""
    verdict_json = sanitize_for_storage(wording.as_dict(verdict))
    copied = ("evidence", "chain", "suspect_nodes", "suspect_gpus", "alternatives", "notes", "lines", "size")
    names = ("root_cause", "confidence", "restart_reason", "action", "engine", "rules_version")
    fields = {name: verdict_json[name] for name in (*copied, *names)}
    fields |= {
        "engine_root_cause": verdict.root_cause,
        "category": verdict.category.value,
        "blame": verdict.blame or "",
    }
    return fields | {"restart_helps": verdict.restart_helps.value}


def sanitize_for_storage(value: Any) -> Any:
    """The value without NUL characters and lone surrogates, which occur in logs and which PostgreSQL rejects."""
    match value:
        case str():
            return value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
        case dict():
            return {name: sanitize_for_storage(inner) for name, inner in value.items()}
        case list() | tuple():
            return [sanitize_for_storage(inner) for inner in value]
    return value


def store_bundle(row: Diagnosis, text: str, now: datetime) -> None:
    """Store the bundle, which completes the row, and forget what was read of its log."""
    raw = text.encode("utf-8", "replace")[:MAX_BUNDLE_BYTES]
    packed = zlib.compress(raw, 9) if raw else None
    open_row = Diagnosis.objects.filter(pk=row.pk, tries=row.tries, bundle_stored_at=None)
    if open_row.update(bundle=packed, bundle_size=len(raw), bundle_stored_at=now):
        forget_diagnosis_state([row.attempt_id])


def _nodes_with_names(row: Diagnosis, names: Iterable[str]) -> list[Node]:
    """The nodes with these names. A log may contain `seren-001.cluster.local` for the node `seren-001`."""
    candidates = set(names) | {name.partition(".")[0] for name in names}
    return list(Node.objects.filter(cluster_id=row.cluster_id, name__in=candidates)) if candidates else []


# --- incidents


def find_or_open_incident(
    cluster_id: int, symptom: FailureSymptom, category: str, first_at: datetime, lead: Diagnosis | None = None
) -> tuple[Incident, bool]:
    """The incident of a symptom, and whether it existed before.

    Takes a lock per cluster: two attempts that fail with one cause at the same time must not open two incidents.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [INCIDENT_LOCK_KEY, cluster_id])
    incident_id = grouping.matching_incident(symptom, incident_candidates.candidates(cluster_id, symptom))
    if incident_id:
        return Incident.objects.get(pk=incident_id), True
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
    incident, existed = find_or_open_incident(row.cluster_id, symptom, row.category, first_at, lead=row)
    if incident.lead_id is None:  # opened by an anomaly: this is its first failed attempt
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
        named = _nodes_with_names(row, accused)
        incident.nodes.add(*named)
        row.nodes.add(*named)
    row.incident = incident
    what = "incident.joined" if existed else "incident.opened"
    _record_event(
        what, DIAGNOSIS_AUTHOR, row, to_state=incident.state, why=incident.title, detail={"incident": incident.pk}
    )
    return incident


@transaction.atomic
def open_node_incident(node: Node, root_cause: str, why: str, *, author: Author, now: datetime) -> Incident:
    """Open an incident of a node that no job has failed on, or join the open one of this node."""
    names = frozenset({node.name})
    symptom = FailureSymptom(root_cause=root_cause, at=now, job="", nodes=names, suspects=names)
    category = diagnosis_values.FailureCategory.INFRASTRUCTURE.value
    incident, existed = find_or_open_incident(node.cluster_id, symptom, category, now)
    Incident.objects.filter(pk=incident.pk).update(last_symptom_at=now)
    incident.nodes.add(node)
    what = "incident.joined" if existed else "incident.opened"
    journal.node_event(what, author, node, to_state=incident.state, why=why, detail={"incident": incident.pk}).save()
    live.publish_on_commit("failures", f"incident:{incident.pk}")
    return incident


def resolve_returned_node_incidents(cluster_id: int, root_cause: str, now: datetime) -> int:
    """Resolve the incidents of this cause whose nodes all accept jobs again. Returns how many."""
    rows = Incident.objects.unresolved().filter(cluster=cluster_id, root_cause=root_cause)
    back = [row for row in rows if all(node.is_schedulable for node in row.nodes.all())]
    return _resolve_all(Incident.objects.filter(pk__in=[row.pk for row in back]), "The node accepts jobs again.", now)


@transaction.atomic
def acknowledge(incident: Incident, *, author: Author, now: datetime, why: str = "") -> None:
    """Mark the incident as acknowledged: someone is working on it."""
    if not Incident.objects.filter(pk=incident.pk, state=IncidentState.OPEN).update(
        state=IncidentState.ACKNOWLEDGED, acknowledged_at=now, acknowledged_by=author.by
    ):
        raise _incident_conflict(incident, "acknowledged")
    _record_incident_event("incident.acknowledged", author, incident, IncidentState.ACKNOWLEDGED, why)


@transaction.atomic
def resolve(incident: Incident, *, author: Author, now: datetime, why: str = "") -> None:
    """Close the incident. New failures with the same cause open a new one."""
    if (
        not Incident.objects.unresolved()
        .filter(pk=incident.pk)
        .update(state=IncidentState.RESOLVED, resolved_at=now, resolved_by=author.by, resolved_why=why[:1000])
    ):
        raise _incident_conflict(incident, "resolved")
    _record_incident_event("incident.resolved", author, incident, IncidentState.RESOLVED, why)


def resolve_settled_incidents(now: datetime) -> int:
    """Resolve incidents of jobs that need nobody any more. Returns how many."""
    rows = Incident.objects.unresolved().filter(scope=IncidentScope.JOB, last_symptom_at__gte=now - RECOVERED_WITHIN)
    recovered = rows.exclude(diagnoses__attempt__job__in=Job.objects.exclude(state=State.COMPLETED))
    undecided = Decision.objects.filter(state=DecisionState.PROPOSED).exclude(incident=None).values("incident")
    # Only its author can correct a program, and the page of the job says what is wrong
    program_errors = rows.filter(category=diagnosis_values.FailureCategory.SCRIPT).exclude(pk__in=undecided)
    ended = program_errors.exclude(diagnoses__attempt__job__in=Job.objects.exclude(state__in=FINAL_STATES))
    resolved = _resolve_all(recovered, "All affected jobs have completed since.", now)
    return resolved + _resolve_all(ended, "The jobs have ended. Their program needs a correction.", now)


def _resolve_all(incidents: IncidentQuerySet, why: str, now: datetime) -> int:
    resolved = 0
    for incident in incidents.select_related("lead__attempt__job").order_by("pk")[:MAX_RESOLVED_PER_TURN]:
        try:
            resolve(incident, author=DIAGNOSIS_AUTHOR, now=now, why=why)
            resolved += 1
        except StateConflict:
            continue  # a user was faster
    return resolved


def _incident_conflict(incident: Incident, target_state: str) -> StateConflict:
    incident.refresh_from_db()
    return StateConflict(f"{incident} cannot be {target_state} because it is already {incident.state}")


def _record_incident_event(what: str, author: Author, incident: Incident, state: str, why: str) -> None:
    before = incident.state
    incident.refresh_from_db()
    values: dict[str, Any] = {"from_state": before, "to_state": state, "why": why, "detail": {"incident": incident.pk}}
    if incident.lead is not None:
        _record_event(what, author, incident.lead, **values)
    else:  # the incident has only anomalies
        journal.new_event(what, author, cluster_id=incident.cluster_id, node=incident.nodes.first(), **values).save()
    live.publish_on_commit("failures", f"incident:{incident.pk}")


# --- reviews


@transaction.atomic
def confirm(row: Diagnosis, *, author: Author, now: datetime, note: str = "") -> None:
    """Record that a user confirms the diagnosis."""
    _record_review(row, row.root_cause, author=author, now=now, note=note)


@transaction.atomic
def correct_verdict(row: Diagnosis, root_cause: str, *, author: Author, now: datetime, note: str = "") -> None:
    """Record the root cause given by a user. The cause that the engine named counts as a confirmation."""
    _record_review(row, root_cause, author=author, now=now, note=note)


def _record_review(row: Diagnosis, root_cause: str, *, author: Author, now: datetime, note: str) -> None:
    row.refresh_from_db(from_queryset=Diagnosis.objects.select_for_update(of=("self",)).defer("bundle"))
    if row.judged_at is None:
        raise StateConflict(f"{row.attempt} is not diagnosed yet")
    before, label = row.root_cause, LABELS[root_cause]
    review = DiagnosisReview.CONFIRMED if root_cause == row.engine_root_cause else DiagnosisReview.CORRECTED
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
    """Set the cause on the attempt for the crash loop check. An unknown cause is stored as empty."""
    unknown = row.root_cause in (NONE, UNKNOWN)
    job_actions.set_failure_cause(row.attempt, "" if unknown else row.root_cause, author=author)


def _update_incident_cause(row: Diagnosis) -> None:
    """Set the cause of the incident that this diagnosis leads."""
    led = Q(pk=row.incident_id, lead=row) & ~Q(root_cause=row.root_cause)
    Incident.objects.filter(led).update(root_cause=row.root_cause, category=row.category)


def _record_event(what: str, author: Author, row: Diagnosis, **fields: Any) -> None:
    journal.job_event(what, author, row.attempt.job, attempt=row.attempt, **fields).save()


def _publish_change(row: Diagnosis) -> None:
    topics = ["failures", f"job:{row.attempt.job.public_id}"]
    live.publish_on_commit(*topics, *([f"incident:{row.incident_id}"] if row.incident_id else []))
