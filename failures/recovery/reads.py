"""Loads the inputs of `rules.decide`: the facts of one failure, its history, and the policy of its team. Read-only.

About ten short queries; none grows with the history of the cluster, because they cover the decisions of the last day
and the attempts of one job. This also lists the checkpoint directory, so no transaction may be open.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Exists, OuterRef, Q, QuerySet

from failures.detection import loss
from failures.detection.findings import SymptomType
from failures.detection.loss import LossPoint
from failures.diagnosis.labels import UNKNOWN
from failures.diagnosis.values import FailureCategory, RestartAdvice
from failures.models import Anomaly, Decision, Diagnosis, ManualOverride
from failures.models.decision import CARRIED_OUT_STATES
from failures.recovery import checkpoint_listing, node_evidence
from failures.recovery.rules import checkpoints, resizing
from failures.recovery.rules.decide import decide
from failures.recovery.rules.remedies import CORDON_ACTIONS, REMEDIES, AutomationMode, RecoveryAction
from failures.recovery.rules.resizing import RequestChange
from failures.recovery.rules.serialization import from_json
from failures.recovery.rules.values import (
    ANY_SUBJECT,
    FailureFacts,
    FailureHistory,
    OverrideFacts,
    PastAction,
    RecoveryDecision,
    RecoveryPolicy,
    SavedCheckpoint,
)
from jobs.actions import jobs as job_actions
from jobs.core.gpu_models import gpu_models
from jobs.core.hostlist import expand
from jobs.core.retry_budget import PastAttempt
from jobs.models import Attempt, Job, Node, Progress, ProgressSource, RecoveryMode, Resolution, Sample

MAX_LOSS_POINTS = 20_000
MAX_PAST_ACTIONS = 2_000
SPIKE_CAUSE = "LossNaNOrSpike"
SLOW_CAUSE = "SlowNode"
ANOMALY_CAUSES = {SymptomType.SLOW: SLOW_CAUSE, SymptomType.NODE: "NodeHealth"}  # rows of REMEDIES
TELEMETRY_WAIT = timedelta(seconds=20)  # samples are taken every 15 s
MEASURED_CONFIDENCE = 0.9  # anomalies are measured, not inferred from a log


@dataclass(frozen=True, kw_only=True)
class RecoveryInputs:
    facts: FailureFacts
    history: FailureHistory
    policy: RecoveryPolicy


def awaits_telemetry(row: Diagnosis, now: datetime) -> bool:
    """Whether telemetry from after the failure is still due from a node that recovery might drain."""
    remedy = REMEDIES.get(row.root_cause)
    is_recent = now < row.failed_at + TELEMETRY_WAIT
    if not is_recent or remedy is None or remedy.named not in CORDON_ACTIONS or not row.cluster.metrics_address:
        return False
    newer = Sample.objects.filter(node=OuterRef("pk"), resolution=Resolution.RAW, at__gt=row.failed_at)
    return row.nodes.exclude(Exists(newer)).exists()


def recovery_inputs(row: Diagnosis | Anomaly, now: datetime) -> RecoveryInputs:
    """The inputs for a failure, or for an ongoing anomaly as of now. For a node without a job, only operator settings
    apply."""
    facts = diagnosis_facts(row, now) if isinstance(row, Diagnosis) else _anomaly_facts(row, now)
    tries = job_actions.attempt_history(row.attempt) if row.attempt else []
    policy = attempt_policy(row.attempt) if row.attempt else _cluster_policy(row.cluster_id)
    return RecoveryInputs(facts=facts, history=_failure_history(row.cluster_id, tries, facts, now), policy=policy)


def _anomaly_facts(row: Anomaly, now: datetime) -> FailureFacts:
    attempt, named = row.attempt, frozenset({row.node.name} if row.node else ())
    cause = ANOMALY_CAUSES[SymptomType(row.symptom)]
    common: dict[str, Any] = {
        "cause": cause, "category": FailureCategory.INFRASTRUCTURE, "at": now,
        "confidence": MEASURED_CONFIDENCE, "restart_helps": RestartAdvice.YES,
        "incident": str(row.incident_id or ""), "suspects": named, "anomaly": row.why,
        "evidence": node_evidence.evidence_against(row.cluster_id, named, now, slow=cause == SLOW_CAUSE),
    }  # fmt: skip
    if attempt is None:
        return FailureFacts(job="", team="", nodes=named, **common)
    job = attempt.job
    return FailureFacts(
        job=job.public_id,
        team=job.team.name,
        nodes=frozenset(expand(attempt.nodelist)),
        labels={str(name): str(value) for name, value in job.labels.items()},
        checkpoints=_saved_checkpoints(attempt, None),
        started_from=_loaded_checkpoint_step(attempt),
        **common,
    )


def diagnosis_facts(row: Diagnosis, now: datetime) -> FailureFacts:
    attempt, job = row.attempt, row.attempt.job
    spike_at = _loss_spike_step(attempt) if row.root_cause == SPIKE_CAUSE else None
    others = Diagnosis.objects.filter(incident=row.incident_id).exclude(attempt__job=job)
    saved = _saved_checkpoints(attempt, spike_at)
    suspects = frozenset(row.nodes.values_list("name", flat=True))
    return FailureFacts(
        job=job.public_id,
        team=job.team.name,
        cause=row.root_cause or UNKNOWN,
        category=FailureCategory(row.category),
        at=row.failed_at,
        confidence=1.0 if row.reviewed_by_id else row.confidence,  # reviewed by a user
        restart_helps=RestartAdvice(row.restart_helps),
        incident=str(row.incident_id or ""),
        nodes=frozenset(expand(attempt.nodelist)),
        suspects=suspects,
        evidence=node_evidence.evidence_against(row.cluster_id, suspects, now, attempt=attempt),
        alike=others.values("attempt__job").distinct().count() if row.incident_id else 0,
        labels={str(name): str(value) for name, value in job.labels.items()},
        checkpoints=saved,
        started_from=_loaded_checkpoint_step(attempt),
        ran=None if saved else _total_run_time(attempt, row.failed_at),
        spike_at=spike_at,
        request=_memory_request(row, job) if row.root_cause in resizing.MEMORY_CAUSES else None,
    )


def _saved_checkpoints(attempt: Attempt, spike_at: int | None) -> tuple[SavedCheckpoint, ...]:
    """The checkpoints in the job's directory and those that the job reported, with their verdicts; newest first."""
    job = attempt.job
    reported = {checkpoint.path: checkpoint for checkpoint in job.checkpoints.order_by("-step")[:200]}
    by_path = {checkpoint.path: checkpoint for checkpoint in _listed_checkpoints(attempt, spike_at)}
    for path, row in reported.items():
        listed = by_path.get(path)
        bad = spike_at is not None and row.step >= spike_at
        by_path[path] = SavedCheckpoint(
            step=row.step,
            path=path,
            whole=listed.whole if listed else None,
            verdict=row.verdict or ("bad" if bad else listed.verdict if listed else ""),
            order=listed.order if listed else 0,
        )
    return tuple(sorted(by_path.values(), key=lambda checkpoint: (-checkpoint.step, checkpoint.path)))


def _listed_checkpoints(attempt: Attempt, spike_at: int | None) -> tuple[SavedCheckpoint, ...]:
    job = attempt.job
    if not (job.cluster.checkpoint_root and job.checkpoint_dir):
        return ()
    try:
        listed = checkpoints.find_checkpoints(
            checkpoint_listing.list_checkpoint_files(job.cluster.checkpoint_root, job.checkpoint_dir)
        )
    except checkpoint_listing.CheckpointListingError:
        return ()
    return checkpoints.to_saved_checkpoints(listed, job.checkpoint_dir, spike_at)


def _memory_request(row: Diagnosis, job: Job) -> resizing.MemoryRequest | None:
    """The memory request of the job, with the memory of the nodes that could run it; None if no change would help."""
    nodes = Node.objects.filter(cluster=job.cluster_id, gpus__gte=job.gpus_per_node, cpus__gte=job.cpus_per_node)
    constraints = {"gpu_model__in": gpu_models(job.gpu_model), "nic_type": job.nic_type, "name": job.required_node}
    nodes = nodes.filter(**{name: value for name, value in constraints.items() if value})
    sizes = sorted(nodes.values_list("memory_mb", "gpus"), reverse=True)
    enough = (
        sizes[min(job.nodes, len(sizes)) - 1] if sizes else (0, 0)
    )  # available on each of as many nodes as the job needs
    current = resizing.JobRequest(command=job.command, environment=job.environment, memory_mb=job.memory_per_node_mb)
    whole = bool(job.gpus_per_node) and job.gpus_per_node == enough[1]
    evidence = [str(line.get("text", "")) for line in row.evidence]
    request = resizing.build_memory_request(current, most_memory_mb=enough[0], whole_nodes=whole, evidence=evidence)
    return resizing.applicable_request(row.root_cause, request, current)


def _loaded_checkpoint_step(attempt: Attempt) -> int | None:
    """The step of the checkpoint that recovery told this attempt to load, if any."""
    earlier = Decision.objects.filter(attempt__job=attempt.job_id, attempt__number__lt=attempt.number, state="done")
    return earlier.order_by("-attempt__number").values_list("checkpoint_step", flat=True).first()


def _total_run_time(attempt: Attempt, until: datetime) -> timedelta:
    """The run time of the job's attempts up to this one: the most that a start from the beginning repeats."""
    earlier = Attempt.objects.filter(job=attempt.job_id, number__lte=attempt.number, confirmed_at__isnull=False)
    spans = earlier.values_list("confirmed_at", "ended_at")
    return sum((max((ended or until) - began, timedelta(0)) for began, ended in spans), timedelta(0))


def _loss_spike_step(attempt: Attempt) -> int | None:
    """The step of the last lasting loss spike that the job reported; None if there is none."""
    rows = Progress.objects.filter(attempt_id=attempt.pk, step__isnull=False).order_by("-at")
    rows = rows.filter(
        attempt__latest_progress__source=ProgressSource.REPORTS
    )  # values parsed from a log are too unreliable
    samples = list(rows.values_list("step", "at", "loss", "grad_norm")[:MAX_LOSS_POINTS])
    points = [
        LossPoint(step=step, at=at.timestamp(), loss=value, grad_norm=norm) for step, at, value, norm in samples[::-1]
    ]
    findings = loss.loss_findings(points)
    return int(findings[-1].subject.partition("-")[0]) if findings else None


def _failure_history(
    cluster_id: int, tries: Sequence[PastAttempt], facts: FailureFacts, now: datetime
) -> FailureHistory:
    return FailureHistory(
        tries=tries,
        done=_past_actions(cluster_id, now),
        overrides=_active_overrides(cluster_id, facts),
        cluster_nodes=Node.objects.filter(cluster=cluster_id).count(),
    )


def _past_actions(cluster_id: int, now: datetime) -> tuple[PastAction, ...]:
    rows = Decision.objects.filter(
        cluster=cluster_id, state__in=CARRIED_OUT_STATES, began_at__gt=now - timedelta(days=1)
    ).order_by("-began_at")
    columns = ("action", "attempt__job__public_id", "began_at", "incident_id", "drain", "not_before", "checkpoint_step")
    return tuple(
        PastAction(
            action=RecoveryAction(action),
            job=job or "",
            at=began_at,
            incident=str(incident),
            nodes=frozenset(drained),
            until=not_before if action == RecoveryAction.WAIT else None,
            checkpoint=step,
        )
        for action, job, began_at, incident, drained, not_before, step in rows.values_list(*columns)[:MAX_PAST_ACTIONS]
    )


def _active_overrides(cluster_id: int, facts: FailureFacts) -> tuple[OverrideFacts, ...]:
    rows = ManualOverride.objects.active().filter(cluster=cluster_id).select_related("job", "node")
    subjects = facts.nodes | {facts.job}
    return tuple(OverrideFacts(subject=row.subject, by=row.by, why=row.why) for row in rows if row.subject in subjects)


def attempt_policy(attempt: Attempt) -> RecoveryPolicy:
    """The policy for an attempt. Settings of its cluster override those for every cluster."""
    return _policy_from_rows(RecoveryMode.objects.for_job(attempt.job))


def _cluster_policy(cluster_id: int) -> RecoveryPolicy:
    """The policy of a cluster from the settings of operators."""
    return _policy_from_rows(RecoveryMode.objects.filter(Q(cluster=None) | Q(cluster=cluster_id), team=None))


def _policy_from_rows(settings: QuerySet[RecoveryMode]) -> RecoveryPolicy:
    rows = list(settings.select_related("team"))
    modes: dict[tuple[str, str], AutomationMode] = {}
    for row in sorted(rows, key=lambda row: row.cluster_id is not None):
        modes[row.team.name if row.team else ANY_SUBJECT, row.action or ANY_SUBJECT] = AutomationMode(row.mode)
    return RecoveryPolicy(modes=modes)


# --- replay: what the current rules would decide from the stored inputs


@dataclass(frozen=True, kw_only=True)
class ReplayDifference:
    field: str
    recorded: str
    current: str

    @property
    def is_same(self) -> bool:
        return self.recorded == self.current


def replay_decision(decision: Decision) -> RecoveryDecision:
    facts = from_json(FailureFacts, decision.facts)
    return decide(
        facts, from_json(FailureHistory, decision.history), from_json(RecoveryPolicy, decision.policy), decision.at
    )


def compare_with_replay(decision: Decision) -> list[ReplayDifference]:
    replayed = replay_decision(decision)
    base = replayed.checkpoint
    rows: tuple[tuple[str, Any, Any], ...] = (
        ("action", decision.action, replayed.action.value),
        ("mode", decision.mode, replayed.mode.value),
        ("reason", decision.why, replayed.why),
        ("drain", ", ".join(decision.drain), ", ".join(sorted(replayed.drain))),
        ("test", ", ".join(decision.test), ", ".join(sorted(replayed.test))),
        ("from step", _format_step(decision.checkpoint_step), _format_step(base.step if base else None)),
        ("skipped steps", _format_step_range(decision.skip), _format_step_range(replayed.skip)),
        ("changed request", _format_changes(decision.changes), _format_changes(replayed.change)),
        ("limits", "; ".join(why for _, why in decision.limits), "; ".join(why for _, why in replayed.limits)),
    )
    return [
        ReplayDifference(field=field, recorded=recorded or "nothing", current=current or "nothing")
        for field, recorded, current in rows
    ]


def _format_changes(changes: Iterable[RequestChange]) -> str:
    return "; ".join(f"{change.field} {change.after}" for change in changes)


def _format_step(step: int | None) -> str:
    return "" if step is None else str(step)


def _format_step_range(skip: Any) -> str:
    return f"{skip[0]} to {skip[1]}" if skip else ""
