"""Rows → what `recovery.decide` is asked: the facts of one failure, the history around it, what its team allows.

Reads; changes nothing. Some ten short statements, none of which grows with the history of the cluster: decisions of the
last day, the attempts of one job. A directory of checkpoints is listed here too, so no transaction may be open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Q, QuerySet

from failures import checkpoints, shelves
from failures.detect import loss
from failures.detect.findings import Symptom
from failures.detect.loss import Point
from failures.diagnosis.labels import UNKNOWN
from failures.diagnosis.values import Category, Restart
from failures.models import Decision, Diagnosis, Order, Sign
from failures.models.decision import CARRIED_OUT
from failures.recovery import resizing
from failures.recovery.remedies import Action, Mode
from failures.recovery.values import ANY, Done, Facts, History, Policy, Saved
from failures.recovery.values import Order as Said
from jobs import actions
from jobs.hostlist import expand
from jobs.ledgers import Try
from jobs.models import Attempt, Job, Node, Progress, RecoveryMode, Source

MOST_POINTS = 20_000
MOST_DONE = 2_000
SPIKE = "LossNaNOrSpike"
CAUSES = {Symptom.SLOW: "SlowNode", Symptom.NODE: "NodeHealth"}  # of the table of remedies
SEEN = 0.9  # measured, not guessed


@dataclass(frozen=True, kw_only=True)
class Situation:
    facts: Facts
    history: History
    policy: Policy


def of(row: Diagnosis, now: datetime) -> Situation:
    facts = facts_of(row)
    tries = actions.tries_of(row.attempt)
    return Situation(facts=facts, history=_history(row.cluster_id, tries, facts, now), policy=policy_of(row.attempt))


def of_sign(row: Sign, now: datetime) -> Situation:
    """It lasts, so it is judged as of now. A node alone is nobody's job, and for operators to say."""
    attempt, facts = row.attempt, _facts_of_sign(row, now)
    tries = actions.tries_of(attempt) if attempt else []
    policy = policy_of(attempt) if attempt else policy_on(row.cluster_id)
    return Situation(facts=facts, history=_history(row.cluster_id, tries, facts, now), policy=policy)


def _facts_of_sign(row: Sign, now: datetime) -> Facts:
    attempt, named = row.attempt, frozenset({row.node.name} if row.node else ())
    common: dict[str, Any] = {
        "cause": CAUSES[Symptom(row.symptom)], "category": Category.INFRASTRUCTURE, "at": now, "confidence": SEEN,
        "restart_helps": Restart.YES, "incident": str(row.incident_id or ""), "suspects": named, "sign": row.why,
    }  # fmt: skip
    if attempt is None:
        return Facts(job="", team="", nodes=named, **common)
    job = attempt.job
    return Facts(
        job=job.public_id,
        team=job.team.name,
        nodes=frozenset(expand(attempt.nodelist)),
        labels={str(name): str(value) for name, value in job.labels.items()},
        checkpoints=_saved(attempt, None),
        started_from=_started_from(attempt),
        **common,
    )


def facts_of(row: Diagnosis) -> Facts:
    attempt, job = row.attempt, row.attempt.job
    spike_at = _spike(attempt) if row.root_cause == SPIKE else None
    others = Diagnosis.objects.filter(incident=row.incident_id).exclude(attempt__job=job)
    saved = _saved(attempt, spike_at)
    return Facts(
        job=job.public_id,
        team=job.team.name,
        cause=row.root_cause or UNKNOWN,
        category=Category(row.category),
        at=row.failed_at,
        confidence=1.0 if row.reviewed_by_id else row.confidence,  # a person has said so
        restart_helps=Restart(row.restart_helps),
        incident=str(row.incident_id or ""),
        nodes=frozenset(expand(attempt.nodelist)),
        suspects=frozenset(row.nodes.values_list("name", flat=True)),
        alike=others.values("attempt__job").distinct().count() if row.incident_id else 0,
        labels={str(name): str(value) for name, value in job.labels.items()},
        checkpoints=saved,
        started_from=_started_from(attempt),
        ran=None if saved else _ran(attempt, row.failed_at),
        spike_at=spike_at,
        request=_request(row, job) if row.root_cause in resizing.CAUSES else None,
    )


def _saved(attempt: Attempt, spike_at: int | None) -> tuple[Saved, ...]:
    """Those that lie in its directory, with what was reported and judged of them; or only what was reported."""
    job = attempt.job
    reported = {one.path: one for one in job.checkpoints.order_by("-step")[:200]}
    lying = {one.path: one for one in _lying(attempt, spike_at)}
    for path, row in reported.items():
        known = lying.get(path)
        bad = spike_at is not None and row.step >= spike_at
        lying[path] = Saved(
            step=row.step,
            path=path,
            whole=known.whole if known else None,
            verdict=row.verdict or ("bad" if bad else known.verdict if known else ""),
            order=known.order if known else 0,
        )
    return tuple(sorted(lying.values(), key=lambda one: (-one.step, one.path)))


def _lying(attempt: Attempt, spike_at: int | None) -> tuple[Saved, ...]:
    job = attempt.job
    if not (job.cluster.checkpoint_root and job.checkpoint_dir):
        return ()
    try:
        found = checkpoints.find(shelves.listing(job.cluster.checkpoint_root, job.checkpoint_dir))
    except shelves.NoShelf:
        return ()
    return checkpoints.as_saved(found, job.checkpoint_dir, spike_at)


def _request(row: Diagnosis, job: Job) -> resizing.Request | None:
    """What it asks for, beside the largest of the nodes that could take it."""
    nodes = Node.objects.filter(cluster=job.cluster_id, gpus__gte=job.gpus_per_node, cpus__gte=job.cpus_per_node)
    wanted = {"gpu_model": job.gpu_model, "nic_type": job.nic_type, "name": job.on_node}
    nodes = nodes.filter(**{name: value for name, value in wanted.items() if value})
    sizes = sorted(nodes.values_list("memory_mb", "gpus"), reverse=True)
    enough = sizes[min(job.nodes, len(sizes)) - 1] if sizes else (0, 0)  # as much as all of its nodes have
    asked = resizing.Asked(command=job.command, environment=job.environment, memory_mb=job.memory_per_node_mb)
    whole = bool(job.gpus_per_node) and job.gpus_per_node == enough[1]
    said = [str(one.get("text", "")) for one in row.evidence]
    found = resizing.request(asked, most_memory_mb=enough[0], whole_nodes=whole, said=said)
    return resizing.possible(row.root_cause, found, asked)


def _started_from(attempt: Attempt) -> int | None:
    """What recovery had told this attempt to load."""
    before = Decision.objects.filter(attempt__job=attempt.job_id, attempt__number__lt=attempt.number, course="done")
    return before.order_by("-attempt__number").values_list("checkpoint_step", flat=True).first()


def _ran(attempt: Attempt, until: datetime) -> timedelta:
    """How long all attempts of its job ran, this one included: what a start from the beginning repeats at most."""
    earlier = Attempt.objects.filter(job=attempt.job_id, number__lte=attempt.number, confirmed_at__isnull=False)
    spans = earlier.values_list("confirmed_at", "ended_at")
    return sum((max((ended or until) - began, timedelta(0)) for began, ended in spans), timedelta(0))


def _spike(attempt: Attempt) -> int | None:
    """The step at which its loss went up and stayed there, from what it reported."""
    rows = Progress.objects.filter(attempt_id=attempt.pk, step__isnull=False).order_by("-at")
    rows = rows.filter(attempt__pulse__source=Source.REPORTS)  # figures picked out of a log judge nobody
    told = list(rows.values_list("step", "at", "loss", "grad_norm")[:MOST_POINTS])
    points = [Point(step=step, at=at.timestamp(), loss=value, grad_norm=norm) for step, at, value, norm in told[::-1]]
    found = loss.trouble(points)
    return int(found[-1].subject.partition("-")[0]) if found else None


def _history(cluster_id: int, tries: Sequence[Try], facts: Facts, now: datetime) -> History:
    return History(
        tries=tries,
        done=_done(cluster_id, now),
        orders=_orders(cluster_id, facts),
        cluster_nodes=Node.objects.filter(cluster=cluster_id).count(),
    )


def _done(cluster_id: int, now: datetime) -> tuple[Done, ...]:
    rows = Decision.objects.filter(
        cluster=cluster_id, course__in=CARRIED_OUT, began_at__gt=now - timedelta(days=1)
    ).order_by("-began_at")
    columns = ("action", "attempt__job__public_id", "began_at", "incident_id", "drain", "not_before", "checkpoint_step")
    return tuple(
        Done(
            action=Action(action),
            job=job or "",
            at=began_at,
            incident=str(incident),
            nodes=frozenset(drained),
            until=not_before if action == Action.WAIT else None,
            checkpoint=step,
        )
        for action, job, began_at, incident, drained, not_before, step in rows.values_list(*columns)[:MOST_DONE]
    )


def _orders(cluster_id: int, facts: Facts) -> tuple[Said, ...]:
    standing = Order.objects.standing().filter(cluster=cluster_id).select_related("job", "node")
    subjects = facts.nodes | {facts.job}
    return tuple(Said(subject=one.subject, by=one.by, why=one.why) for one in standing if one.subject in subjects)


def policy_of(attempt: Attempt) -> Policy:
    """Rows of one cluster overrule those of all; `Policy.mode` takes the least of a team's and the operators'."""
    return _policy(RecoveryMode.objects.for_job(attempt.job))


def policy_on(cluster_id: int) -> Policy:
    """What operators said for a cluster."""
    return _policy(RecoveryMode.objects.filter(Q(cluster=None) | Q(cluster=cluster_id), team=None))


def _policy(said: QuerySet[RecoveryMode]) -> Policy:
    rows = list(said.select_related("team"))
    modes: dict[tuple[str, str], Mode] = {}
    for row in sorted(rows, key=lambda row: row.cluster_id is not None):
        modes[row.team.name if row.team else ANY, row.action or ANY] = Mode(row.mode)
    return Policy(modes=modes)
