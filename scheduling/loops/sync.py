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
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from acmeweb import live
from jobs import actions
from jobs.actions import Correction
from jobs.lifecycle import FINAL
from jobs.models import Allocation, Attempt, Cluster, Deed, DeedKind, Mode, Node
from jobs.wishes import want_diagnoses
from scheduling import observing
from scheduling.backends.base import Backend, SeenJob
from scheduling.loops.foreign import follow_once
from scheduling.loops.news import KNOWN, apply_news, facts
from scheduling.loops.nodes import sync_nodes
from scheduling.loops.rows import one_row

log = logging.getLogger(__name__)


def sync_once(cluster: Cluster, backend: Backend, now: datetime) -> int:
    """Take over what the cluster reports. Return how many attempts moved."""
    asked_at = now
    nodes, jobs = backend.nodes(), backend.jobs()
    sync_nodes(cluster, nodes, _foreign_gpus(jobs), now)
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


def _sync_attempts(cluster: Cluster, backend: Backend, jobs: Sequence[SeenJob], now: datetime) -> int:
    by_key: dict[str, list[SeenJob]] = defaultdict(list)
    for job in jobs:
        if job.key:
            by_key[job.key].append(job)
    ours = Attempt.objects.live().filter(job__cluster=cluster, job__foreign_id="").order_by("id")
    standing = list(ours.values_list("key", "pk", *KNOWN))
    sent = _sent([pk for key, pk, *_ in standing if key not in by_key], now)
    told: dict[int, SeenJob | None] = {}
    for key, pk, *known in standing:
        chosen, spare = observing.pick(by_key.pop(key, []), known[0])
        if observing.anything_new(facts(*known, sent=pk in sent), chosen, now):
            told[pk] = chosen
        _cancel_all(cluster, backend, spare)
    moved = _take_over(told, sent, now)
    _cancel_all(cluster, backend, _zombies(by_key))
    _correct_gpus(cluster, jobs, {pk: key for key, pk, *_ in standing})
    return moved


def _sent(attempt_ids: Sequence[int], now: datetime) -> set[int]:
    """Which of those that the cluster does not show it had said yes to, before it was looked at."""
    said_yes = Deed.objects.filter(attempt__in=attempt_ids, kind=DeedKind.SUBMIT, done_at__lt=now)
    return set(said_yes.values_list("attempt_id", flat=True))


def _take_over(told: Mapping[int, SeenJob | None], sent: set[int], now: datetime) -> int:
    """Rows are made into objects only here: nearly all attempts stand as they stood a second ago."""
    moved = 0
    rows = Attempt.objects.live().filter(pk__in=told).select_related("job").defer("job__command", "job__environment")
    for attempt in rows.order_by("id"):
        with one_row(attempt):
            moved += apply_news(attempt, told[attempt.pk], attempt.pk in sent, now)
    return moved


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


def _correct_gpus(cluster: Cluster, jobs: Iterable[SeenJob], keys: Mapping[int, str]) -> None:
    """Take over the GPU indices that the cluster gave, where they are not the ones we promised."""
    given = {(job.key, node): gpus for job in jobs if job.key for node, gpus in job.gpus.items()}
    if not given:
        return
    nodes = dict(Node.objects.filter(cluster=cluster).order_by().values_list("pk", "name"))
    held = Allocation.objects.live().filter(attempt__in=keys, gpu__isnull=False)
    corrections = [
        Correction(attempt_id=attempt, node_id=node, promised=old, given=new)
        for attempt, node, promised in held.per_place()
        for old, new in _swaps(promised, given.get((keys[attempt], nodes[node]), ()))
    ]
    with one_row("the GPU indices"):
        actions.correct_gpus(corrections)


def _swaps(held: Sequence[int], given: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs of what we wrote and what is; nothing when the counts differ, because then we do not understand it."""
    if len(held) != len(given):
        return []
    return list(zip(sorted(set(held) - set(given)), sorted(set(given) - set(held)), strict=True))
