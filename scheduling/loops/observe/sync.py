"""Sync: compare the database with the cluster's report of nodes and jobs, and apply the differences.

Eligible rows     All nodes of the cluster; all live attempts, the oldest first; pending jobs of which the cluster has a
                  job with a key of this installation that no attempt has, which happens after a failover that lost
                  commits, or when a backup was restored.
What a turn does  Updates node rows. Accepts, confirms, suspends and ends attempts. Corrects GPU indices to those that
                  the cluster allocated. Cancels duplicate jobs of an attempt. Restores attempts that the database has
                  lost, and their ends; if the cluster has not started such a job yet, its GPUs are recorded when it
                  starts. Follows jobs of others, including other Acme installations (`foreign_jobs`).
                  What a listing shows as running, waiting or missing may be over by now: before a job is cancelled as a
                  duplicate, marked as missing or sent to other nodes because of that, it is read again.
Failure story     Each write checks the expected state. Killed anywhere or run twice: the next sync applies the rest.
                  A restored attempt is one transaction. Its number and the live attempt of a job are unique, so it
                  cannot be restored twice; and this runs before jobs are started in the same turn, so the job cannot
                  start a second time. A job that is not pending is retried in the next turn.
                  If the cluster is unreachable or a row is unreadable, nothing is known about the jobs concerned, and
                  they are not changed.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from django.db.models import Q

from acmeweb.common import live
from jobs.actions import jobs as job_actions
from jobs.actions import restore
from jobs.actions.job_verbs import has_unknown_outcome
from jobs.actions.journal import SYNC
from jobs.actions.one_row import skip_row_on_error
from jobs.actions.promise import GpuCorrection
from jobs.actions.wake import request_diagnoses
from jobs.core.backend_job import BackendJob
from jobs.core.gpu_shares import whole_gpus
from jobs.core.lifecycle import FINAL_STATES, State
from jobs.models import (
    Allocation,
    Attempt,
    Cluster,
    ClusterCommand,
    ClusterCommandKind,
    ClusterMode,
    Installation,
    Job,
    Node,
)
from scheduling.backends.base import Backend, BackendNode, ClusterListing, UnreadableRow
from scheduling.loops.node_tests import is_node_test
from scheduling.loops.observe import observations
from scheduling.loops.observe.attempt_changes import apply_observations, settle_reappeared
from scheduling.loops.observe.foreign_jobs import sync_foreign_jobs_once
from scheduling.loops.observe.nodes import sync_nodes
from scheduling.loops.observe.observations import HeldGpus, index_corrections

log = logging.getLogger(__name__)

MAX_NAMED_ROWS = 3
MAX_ROW_LENGTH = 200
MAX_SYNC_S = 10.0  # a third of the lease: some changes need log storage, which may be slow


def sync_cluster_once(cluster: Cluster, backend: Backend, now: datetime) -> int:
    """Apply the cluster's report. Return how many attempts changed."""
    nodes, jobs = backend.nodes(), _with_labeled_gpus(cluster, backend.jobs())
    installation = Installation.current_id()
    by_name, live = _jobs_by_key(jobs, installation), _load_live_attempts(cluster)
    record_unreadable_rows(cluster, [*nodes.unreadable, *jobs.unreadable])
    sync_nodes(cluster, nodes, _foreign_gpus(cluster, nodes, jobs, live, installation), now)
    moved = _sync_attempts(cluster, backend, jobs, by_name, live, now)
    unmatched = {name: seen for name, seen in by_name.items() if name not in live and not is_node_test(name)}
    others = _settle_unknown_keys(cluster, backend, unmatched, now)
    foreign = ClusterListing([*(job for job in jobs if not job.key), *others], jobs.unreadable)
    moved += sync_foreign_jobs_once(cluster, foreign, now)
    if moved:
        request_diagnoses()
    greeting = backend.ping() if not cluster.product else None
    fields = {"product": greeting.product, "api": greeting.api} if greeting else {}
    Cluster.objects.filter(pk=cluster.pk).update(
        last_contact_at=now, runs_images=backend.traits.supports_images, **fields
    )
    return moved


def _with_labeled_gpus(cluster: Cluster, jobs: ClusterListing[BackendJob]) -> ClusterListing[BackendJob]:
    """The jobs with the GPU indices that telemetry knows, where the cluster itself reports only numbers."""
    if not any(job.pods for job in jobs):
        return jobs
    holders: dict[str, dict[str, list[int]]] = {}
    for node, pods in Node.objects.filter(cluster=cluster).exclude(gpu_pods={}).values_list("name", "gpu_pods"):
        by_pod = holders.setdefault(node, defaultdict(list))
        for index, pod in pods.items():
            by_pod[pod].append(int(index))
    if not holders:
        return jobs
    return ClusterListing((observations.with_labeled_gpus(job, holders) for job in jobs), jobs.unreadable)


class SyncedAttempt(NamedTuple):
    pk: int
    has_gpus: bool  # its allocations name GPUs, or it needs none
    facts: observations.AttemptFacts


def _load_live_attempts(cluster: Cluster) -> dict[str, SyncedAttempt]:
    """Return the live attempts by key. They are read as plain columns, because there may be thousands."""
    ours = Attempt.objects.live().filter(job__cluster=cluster, job__foreign_id="").order_by("id")
    requests_gpus = Q(job__gpus_per_node__gt=0) | Q(job__gpu_milli__gt=0)
    # Adopted ones, and those restored before they ran
    may_lack_gpus = requests_gpus & (Q(nodelist="") | ~Q(job__foreign_key=""))
    columns = ("key", "pk", ~Q(log_path=""), may_lack_gpus, *observations.ATTEMPT_FACT_COLUMNS)
    rows = list(ours.values_list(*columns))
    lacking = _attempts_without_gpus([pk for _, pk, _, may_lack, *_ in rows if may_lack])
    return {
        key: SyncedAttempt(pk, pk not in lacking, observations.AttemptFacts(*known)._replace(has_record=has_record))
        for key, pk, has_record, _, *known in rows
    }


def _attempts_without_gpus(attempt_ids: Sequence[int]) -> set[int]:
    """Return those of the attempts that have no GPUs allocated."""
    if not attempt_ids:
        return set()
    allocations = Allocation.objects.live().filter(attempt__in=attempt_ids, gpu__isnull=False)
    return set(attempt_ids) - set(allocations.values_list("attempt_id", flat=True))


def _attempt_key(job: BackendJob, installation: str) -> str:
    """Return the key of this job's attempt in our database. Empty if no Acme installation submitted the job."""
    here = job.installation in ("", installation)  # older versions sent no installation
    return job.key if here or not job.key else f"{job.installation}:{job.key}"


def _jobs_by_key(jobs: Iterable[BackendJob], installation: str) -> dict[str, list[BackendJob]]:
    by_name: dict[str, list[BackendJob]] = defaultdict(list)
    for job in jobs:
        if job.key:
            by_name[_attempt_key(job, installation)].append(job)
    return by_name


def _foreign_gpus(
    cluster: Cluster,
    nodes: Iterable[BackendNode],
    jobs: ClusterListing[BackendJob],
    live: Mapping[str, SyncedAttempt],
    installation: str,
) -> dict[str, list[int]]:
    """Return the GPUs, by node, of jobs without an allocation in our database. Jobs in unreadable rows count with their
    last known GPUs. Where the cluster reports only numbers, they are other GPUs than those of our allocations, as far
    as there are any."""
    held: dict[str, list[int]] = defaultdict(list)
    counts: dict[str, list[int]] = defaultdict(list)
    slices: dict[str, Counter[str]] = defaultdict(Counter)
    for job in [*jobs, *(row.last_seen for row in jobs.unreadable if row.last_seen)]:
        name = _attempt_key(job, installation)
        ours = is_node_test(name) or (name in live and live[name].has_gpus)
        if not ours and job.state not in FINAL_STATES:
            for node, gpus in job.gpus.items():
                held[node].extend(gpus)
            for node, count in job.gpu_counts.items():
                of_job = job.mig_counts.get(node, {})
                slices[node].update(of_job)
                counts[node].append(count - sum(of_job.values()))
    known, allocated = {node.name: node for node in nodes}, _allocated_gpus(cluster, counts)
    for node, numbers in counts.items():
        if report := known.get(node):
            whole, own = whole_gpus(report.gpus, report.mig_slices), allocated[node]
            held[node] += observations.indices_of_counts(numbers, held[node], own, whole)
            held[node] += observations.indices_of_slices(slices[node], report, held[node], own)
    return held


def _allocated_gpus(cluster: Cluster, nodes: Collection[str]) -> dict[str, set[int]]:
    """Return the GPUs of our live allocations on these nodes."""
    gpus: dict[str, set[int]] = defaultdict(set)
    if nodes:
        rows = Allocation.objects.live().filter(node__cluster=cluster, node__name__in=nodes, gpu__isnull=False)
        for node, gpu in rows.values_list("node__name", "gpu"):
            gpus[node].add(gpu)
    return gpus


def _sync_attempts(
    cluster: Cluster,
    backend: Backend,
    jobs: ClusterListing[BackendJob],
    by_name: Mapping[str, list[BackendJob]],
    live: Mapping[str, SyncedAttempt],
    now: datetime,
) -> int:
    sent = _submitted_attempts([attempt.pk for key, attempt in live.items() if key not in by_name], now)
    news = _attempt_news(jobs, by_name, live, sent, now)
    if doubtful := {key: live[key] for key, one in news.items() if one.must_be_read_again}:
        current = backend.current_jobs(doubtful)
        news = {key: one for key, one in news.items() if key not in doubtful}
        news |= _attempt_news(current, _jobs_by_key(current, Installation.current_id()), doubtful, sent, now)
    for one in news.values():
        _cancel_duplicates(cluster, backend, one.duplicates)
    moved = _apply_attempt_news({one.pk: one.job for one in news.values() if one.changes}, sent, now)
    _correct_gpu_indices(cluster, by_name, {attempt.pk: key for key, attempt in live.items()})
    _fill_missing_gpus(cluster, by_name, live)
    return moved


class AttemptNews(NamedTuple):
    pk: int
    job: BackendJob | None  # the one that counts
    duplicates: list[BackendJob]
    changes: list[observations.ObservedChange]

    @property
    def must_be_read_again(self) -> bool:
        return bool(self.duplicates) or any(observations.may_be_outdated(change) for change in self.changes)


def _attempt_news(
    jobs: ClusterListing[BackendJob],
    by_name: Mapping[str, list[BackendJob]],
    live: Mapping[str, SyncedAttempt],
    sent: set[int],
    now: datetime,
) -> dict[str, AttemptNews]:
    """Return what the listing says about live attempts, by key, where it differs from the database."""
    news: dict[str, AttemptNews] = {}
    for key, attempt in live.items():
        seen, facts = by_name.get(key, []), attempt.facts
        if jobs.hides_job(facts.backend_id, key) and all(job.backend_id != facts.backend_id for job in seen):
            continue
        picked, duplicates = observations.pick_job(seen, facts.backend_id)
        if picked and not duplicates and facts.runs_as_known(picked):
            continue  # nearly all
        changes = observations.observed_changes(facts._replace(sent=attempt.pk in sent), picked, now)
        if changes or duplicates:
            news[key] = AttemptNews(attempt.pk, picked, duplicates, changes)
    return news


def _submitted_attempts(attempt_ids: Sequence[int], now: datetime) -> set[int]:
    """Return the attempts that the cluster had accepted before its report. Adopted and restored attempts have no submit
    command, but were on the cluster before."""
    submits = ClusterCommand.objects.filter(attempt__in=attempt_ids, kind=ClusterCommandKind.SUBMIT)
    done = dict(submits.values_list("attempt_id", "done_at"))
    return {pk for pk in attempt_ids if pk not in done or (done[pk] and done[pk] < now)}


def _apply_attempt_news(news: Mapping[int, BackendJob | None], sent: set[int], now: datetime) -> int:
    """Apply the changes. Only changed attempts are loaded as objects, because nearly all are unchanged."""
    moved = 0
    rows = Attempt.objects.live().filter(pk__in=news).select_related("job").defer("job__command", "job__environment")
    began = time.monotonic()
    for attempt in rows.order_by("id"):
        if time.monotonic() - began > MAX_SYNC_S:
            log.warning("syncing attempts is slow; the remaining ones are synced in the next turn")
            break
        with skip_row_on_error(attempt):
            moved += apply_observations(attempt, news[attempt.pk], attempt.pk in sent, now)
    return moved


def _settle_unknown_keys(
    cluster: Cluster, backend: Backend, unmatched: Mapping[str, list[BackendJob]], now: datetime
) -> list[BackendJob]:
    """Handle jobs with a key that no live attempt has. Return those to follow as foreign jobs.

    If the attempt has ended in our database, and the job still runs when it is read again, it is a duplicate and is
    cancelled. Exception: the outcome of the attempt is unknown; then this may be its job, whose end becomes the
    outcome. An attempt that the database has lost, after a restore or a failover, is restored. All other jobs belong
    to another installation.
    """
    ended = dict(Attempt.objects.filter(key__in=unmatched, ended_at__isnull=False).values_list("key", "state"))
    unknown = _attempts_without_outcome([name for name, state in ended.items() if state == State.UNKNOWN])
    others: list[BackendJob] = []
    leftover: list[str] = []
    restorable = restorable_jobs(cluster, [name for name in unmatched if name not in ended])
    for name, seen in unmatched.items():
        if name in ended:
            if name in unknown:
                with skip_row_on_error(unknown[name]):
                    settle_reappeared(unknown[name], seen)
            elif any(job.state not in FINAL_STATES for job in seen):
                leftover.append(name)
        elif name in restorable:
            with skip_row_on_error(restorable[name]):
                restore_lost_attempt(restorable[name], name, seen, now)
        else:
            others += seen
    if leftover and cluster.mode == ClusterMode.DRIVE:
        current = _jobs_by_key(backend.current_jobs(leftover), Installation.current_id())
        still = [job for name in leftover for job in current.get(name, ()) if job.state not in FINAL_STATES]
        _cancel_duplicates(cluster, backend, still)
    return others


def _attempts_without_outcome(keys: Sequence[str]) -> dict[str, Attempt]:
    """Return the attempts, by key, whose jobs wait for a user to decide the outcome."""
    if not keys:
        return {}
    rows = Attempt.objects.filter(key__in=keys).select_related("job").defer("job__command", "job__environment")
    return {attempt.key: attempt for attempt in rows if has_unknown_outcome(attempt.job)}


def _cancel_duplicates(cluster: Cluster, backend: Backend, jobs: Iterable[BackendJob]) -> None:
    """Cancel duplicate jobs of an attempt. Nothing is cancelled on clusters that Acme does not drive."""
    for job in jobs if cluster.mode == ClusterMode.DRIVE else ():
        log.warning("cancelling job %s of the cluster: it is a duplicate with key %s", job.backend_id, job.key)
        with skip_row_on_error(f"job {job.backend_id} of {cluster}"):
            backend.cancel(job.backend_id)


def _correct_gpu_indices(cluster: Cluster, by_name: Mapping[str, list[BackendJob]], keys: Mapping[int, str]) -> None:
    """Correct the GPU indices of allocations to those that the cluster allocated."""
    running = ((key, job) for key, jobs in by_name.items() for job in jobs if job.state not in FINAL_STATES)
    actual = {(key, node): gpus for key, job in running for node, gpus in job.gpus.items()}
    if not actual:
        return
    names = dict(Node.objects.filter(cluster=cluster).order_by().values_list("pk", "name"))
    held: dict[int, dict[int, HeldGpus]] = defaultdict(dict)
    given: dict[int, dict[int, Sequence[int]]] = defaultdict(dict)
    allocations = Allocation.objects.live().filter(node__in=names, gpu__isnull=False)
    for attempt, node, indices, share in allocations.gpus_by_attempt_and_node():
        held[node][attempt] = HeldGpus([index for index in indices if index is not None], share)
        if found := actual.get((keys.get(attempt, ""), names[node])):
            given[node][attempt] = found
    corrections = [
        GpuCorrection(attempt_id=attempt, node_id=node, promised=old, given=new)
        for node in given
        for attempt, old, new in index_corrections(held[node], given[node])
    ]
    with skip_row_on_error("the correction of GPU indices"):
        job_actions.correct_gpus(corrections)


def _fill_missing_gpus(
    cluster: Cluster, by_name: Mapping[str, list[BackendJob]], live: Mapping[str, SyncedAttempt]
) -> None:
    """Record the GPUs of adopted attempts, and of attempts restored before they ran."""
    for key, attempt in live.items():
        if attempt.has_gpus:
            continue
        if gpus := next((job.gpus for job in by_name.get(key, []) if job.gpus), None):
            with skip_row_on_error(f"the GPUs of {key}"):
                job_actions.record_adopted_gpus(attempt.pk, cluster, gpus)


def unreadable_text(rows: Sequence[UnreadableRow]) -> str:
    """Return text like "job 12: job_state is missing; node n3: cpus is a str; and 4 more". Empty if there are none."""
    named = [row.sentence[:MAX_ROW_LENGTH] for row in rows[:MAX_NAMED_ROWS]]
    more = [f"and {len(rows) - MAX_NAMED_ROWS} more"] if len(rows) > MAX_NAMED_ROWS else []
    return "; ".join([*named, *more])


def record_unreadable_rows(cluster: Cluster, rows: Sequence[UnreadableRow]) -> None:
    """Show the rows to operators, and log them once per change."""
    count, text = len(rows), unreadable_text(rows)
    if (cluster.unreadable_count, cluster.unreadable_rows) == (count, text):
        return
    Cluster.objects.filter(pk=cluster.pk).update(unreadable_count=count, unreadable_rows=text)
    log.warning("cluster %s: %s", cluster, f"{count} unreadable rows: {text}" if rows else "no unreadable rows")
    live.publish_on_commit("nodes")


def restorable_jobs(cluster: Cluster, keys: Iterable[str]) -> dict[str, Job]:
    """Return the jobs of this installation by key, for keys that no attempt has."""
    ids = {key: _public_id_of_key(key) for key in keys}
    rows = Job.objects.filter(cluster=cluster, public_id__in=set(ids.values()) - {""}, foreign_id="")
    jobs = {job.public_id: job for job in rows.select_related("cluster")} if any(ids.values()) else {}
    return {key: jobs[public_id] for key, public_id in ids.items() if public_id in jobs}


def _public_id_of_key(key: str) -> str:
    public_id, _, number = key.rpartition(".")
    return public_id if number.isascii() and number.isdigit() and len(number) <= 4 and ":" not in key else ""


def restore_lost_attempt(job: Job, key: str, seen: Sequence[BackendJob], now: datetime) -> None:
    if job.state != State.PENDING:
        return
    picked, _ = observations.pick_job(seen, "")
    if picked is None:
        return
    lost = restore.LostAttempt(
        key=key,
        number=int(key.rpartition(".")[2]),
        backend_id=picked.backend_id,
        started_at=picked.started_at or now,
        nodes=picked.nodes,
        gpus=picked.gpus,
        cancelled=picked.state == State.CANCELLED,
    )
    attempt = restore.restore(job, lost, author=SYNC)
    apply_observations(attempt, picked, True, now)
