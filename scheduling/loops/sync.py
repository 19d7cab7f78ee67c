"""Sync: take over what the cluster says of its nodes and of our attempts.

Who is eligible   every node of the cluster; every live attempt, oldest first.
What a turn does  node rows follow the report; attempts are accepted, confirmed, suspended, ended; GPU indices are
                  corrected to those the cluster gave; jobs of ours that run once too often are cancelled; jobs that
                  others submitted are followed (`foreign`).
Failure story     It only compares and takes over, each row guarded by the state it expects: killed anywhere or run
                  twice, the next look finds what is left to do. A cluster that cannot be reached says nothing about
                  its jobs, so nothing is changed.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime

from django.db import transaction

from acmeweb import live
from jobs import actions, node_actions
from jobs.actions import Correction
from jobs.journal import SYNC
from jobs.lifecycle import FINAL
from jobs.models import TO_NODES, Allocation, Attempt, Cluster, Deed, DeedKind, Mode, Node
from jobs.wishes import want_diagnoses
from scheduling import observing
from scheduling.backends.base import Backend, SeenJob, SeenNode
from scheduling.loops.foreign import follow_once
from scheduling.loops.news import apply_news
from scheduling.loops.rows import one_row

log = logging.getLogger(__name__)


def sync_once(cluster: Cluster, backend: Backend, now: datetime) -> int:
    """Take over what the cluster reports. Return how many attempts moved."""
    asked_at = now
    nodes, jobs = backend.nodes(), backend.jobs()
    _sync_nodes(cluster, nodes, _foreign_gpus(jobs), now)
    moved = _sync_attempts(cluster, backend, jobs, asked_at)
    moved += follow_once(cluster, jobs, now)
    if moved:
        want_diagnoses()
    greeting = backend.ping() if not cluster.product else None
    fields = {"product": greeting.product, "api": greeting.api} if greeting else {}
    Cluster.objects.filter(pk=cluster.pk).update(heard_at=now, trouble="", **fields)
    if cluster.trouble:
        live.changed("nodes")
    return moved


def _foreign_gpus(jobs: Iterable[SeenJob]) -> dict[str, list[int]]:
    """Node name -> GPUs held by jobs that are not ours."""
    held: dict[str, list[int]] = defaultdict(list)
    for job in jobs:
        if not job.key and job.state not in FINAL:
            for node, gpus in job.gpus.items():
                held[node].extend(gpus)
    return held


def _sync_nodes(cluster: Cluster, seen: Sequence[SeenNode], foreign: dict[str, list[int]], now: datetime) -> None:
    # In one transaction, so that nobody takes a cluster that was half written down for the whole of it
    with transaction.atomic():
        _take_over_nodes(cluster, seen, foreign, now)


def _take_over_nodes(cluster: Cluster, seen: Sequence[SeenNode], foreign: dict[str, list[int]], now: datetime) -> None:
    rows = {node.name: node for node in Node.objects.filter(cluster=cluster)}
    busy_deeds = set(
        Deed.objects.open().filter(node__cluster=cluster, kind__in=TO_NODES).values_list("node_id", flat=True)
    )
    for report in seen:
        node = rows.pop(report.name, None) or Node.objects.create(cluster=cluster, name=report.name)
        fields = {**observing.node_fields(report), "foreign_gpus": sorted(foreign.get(report.name, ()))}
        # While a drain or resume is on its way the cluster's own words about it are yesterday's
        if report.reason and not node.drain_asked and node.pk not in busy_deeds:
            fields |= {"reason": report.reason, "reason_by": f"cluster {cluster.name}"}
        elif not report.reason and not node.drain_asked:
            fields |= {"reason": "", "reason_by": "", "reason_at": None}
        node_actions.observe(node, author=SYNC, now=now, **fields)
    for node in rows.values():
        node_actions.observe(node, author=SYNC, now=now, **observing.ABSENT_NODE)


def _sync_attempts(cluster: Cluster, backend: Backend, jobs: Sequence[SeenJob], now: datetime) -> int:
    by_key: dict[str, list[SeenJob]] = defaultdict(list)
    for job in jobs:
        if job.key:
            by_key[job.key].append(job)
    live_attempts = list(_live_attempts(cluster))
    sent = set(
        Deed.objects.filter(attempt__in=live_attempts, kind=DeedKind.SUBMIT, done_at__lt=now).values_list(
            "attempt_id", flat=True
        )
    )
    moved = 0
    for attempt in live_attempts:
        chosen, spare = observing.pick(by_key.pop(attempt.key, []), attempt.backend_id)
        with one_row(attempt):
            moved += apply_news(attempt, chosen, attempt.pk in sent, now)
        _cancel_all(cluster, backend, spare)
    _cancel_all(cluster, backend, _zombies(by_key))
    _correct_gpus(jobs)
    return moved


def _live_attempts(cluster: Cluster) -> Iterable[Attempt]:
    return (
        Attempt.objects.filter(job__cluster=cluster, job__foreign_id="", ended_at__isnull=True)
        .select_related("job")
        .defer("job__command", "job__environment")
        .order_by("id")
    )


def _zombies(by_key: dict[str, list[SeenJob]]) -> list[SeenJob]:
    """Jobs of ours that still run although the record says that they ended. A key we never gave is not ours."""
    running = {key: job for key, seen in by_key.items() for job in seen if job.state not in FINAL}
    over = Attempt.objects.filter(key__in=running, ended_at__isnull=False).values_list("key", flat=True)
    return [running[key] for key in over]


def _cancel_all(cluster: Cluster, backend: Backend, jobs: Iterable[SeenJob]) -> None:
    """Not on a cluster we only watch, whoever's key the job carries."""
    for job in jobs if cluster.mode == Mode.DRIVE else ():
        log.warning("job %s of the cluster carries key %s once too often: it is cancelled", job.backend_id, job.key)
        with one_row(f"job {job.backend_id} of {cluster}"):
            backend.cancel(job.backend_id)


def _correct_gpus(jobs: Sequence[SeenJob]) -> None:
    """Take over the GPU indices that the cluster gave, where they are not the ones we promised."""
    given = {(job.key, node): gpus for job in jobs if job.key for node, gpus in job.gpus.items()}
    if not given:
        return
    promised: dict[tuple[str, int, str, int], list[int]] = defaultdict(list)
    rows = Allocation.objects.filter(
        released_at__isnull=True, gpu__isnull=False, attempt__key__in={key for key, _ in given}
    ).values_list("attempt__key", "attempt_id", "node__name", "node_id", "gpu")
    for key, attempt_id, node, node_id, gpu in rows:
        promised[key, attempt_id, node, node_id].append(gpu)
    corrections = [
        Correction(attempt_id=attempt_id, node_id=node_id, promised=old, given=new)
        for (key, attempt_id, node, node_id), held in promised.items()
        for old, new in _swaps(held, given.get((key, node), ()))
    ]
    with one_row("the GPU indices"):
        actions.correct_gpus(corrections)


def _swaps(held: Sequence[int], given: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs of what we wrote and what is; nothing when the counts differ, because then we do not understand it."""
    if len(held) != len(given):
        return []
    return list(zip(sorted(set(held) - set(given)), sorted(set(given) - set(held)), strict=True))
