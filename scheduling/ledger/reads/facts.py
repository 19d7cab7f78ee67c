"""Reads the facts of a period for the ledger. Writes nothing.

Takes fifteen short statements per cluster. The number of rows read grows with the jobs that ended since the period
began (so old periods cost more), with their attempts x nodes, and with the Events of the nodes. `loops.periods` stores
the result for finished hours and days. Rows that change its figures for past hours are recorded by triggers: a new fact
that is read here needs a trigger (`_ledger_triggers.py`) and a change in `tests/scheduling/ledger/random_history.py`.

Nothing is guessed: a node has today's capacity since its cluster was added; an attempt without reports is productive
from its confirmed start; stalls by checkpoints are those that trainers report; slow steps are those found by
`failures.loops.slow_steps`, so jobs that report no steps count as productive.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from django.db import connection
from django.db.models import Max

from failures.incidents.grouping import NODE_CAUSES
from failures.models import Anomaly, Diagnosis
from failures.recovery.decisions import INCIDENT_REASON_PREFIX
from jobs.actions.journal import SYNC
from jobs.actions.maintenance import MAINTENANCE
from jobs.core.gpu_shares import profile_milli
from jobs.core.lifecycle import (
    ASLEEP_NODE_FLAGS,
    CLOSED_NODE_FLAGS,
    FAILURE_STATES,
    USABLE_NODE_STATES,
    Flag,
    NodeFlag,
    State,
)
from jobs.models import (
    Attempt,
    Checkpoint,
    CheckpointVerdict,
    Cluster,
    Event,
    HoldKind,
    Node,
    ProgressSource,
)
from jobs.models.job import ATTEMPT_SPAN
from jobs.queries.map_rows import NODE_EVENTS, last_node_events, node_first_seen
from scheduling.ledger.reads import rows as ledger_rows
from scheduling.ledger.reads.rows import AttemptRow, JobRow, Microseconds, any_of, attempts_by_job
from scheduling.ledger.rules import attempt_intervals, buckets, parts
from scheduling.ledger.rules.buckets import (
    Bucket,
    BucketInterval,
    GpuAllocation,
    LedgerInput,
    NodeHistory,
    WaitInterval,
)
from scheduling.ledger.rules.parts import JobRecovery, LedgerMoments, LedgerPart
from scheduling.ledger.rules.reliability import JobLifetime

HANG_CAUSE = "Hang"  # the root cause of a diagnosis
RECOVERY_AUTHOR_NAME = "recovery"  # drains and tests nodes; the reason names the incident
UP_STATES = {str(state) for state in USABLE_NODE_STATES} | {"UP"}
NOT_ELIGIBLE_REASONS = ("Dependency", "BeginTime", "JobHeldUser", "JobHeldAdmin")

MAINTENANCE_DRAIN = "drained for maintenance"
FIRST_STEPS_SQL = """
SELECT a.id, (EXTRACT(EPOCH FROM p.at) * 1000000)::bigint FROM unnest(%s::bigint[]) AS a (id) CROSS JOIN LATERAL
  (SELECT at FROM jobs_progress WHERE attempt_id = a.id AND step IS NOT NULL ORDER BY at LIMIT 1) AS p
"""


def unix_microseconds(moment: datetime) -> int:
    """Return exact microseconds, computed with integers: a float of seconds loses them."""
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def cluster_parts(
    cluster: Cluster, since: datetime, until: datetime, divisions: Sequence[int] = ()
) -> list[LedgerPart]:
    """Return the ledger of a period, computed from all its rows. `divisions` are times at which it is divided into
    parts, such as midnights."""
    start, end = unix_microseconds(since), unix_microseconds(until)
    edges = (start, *(moment for moment in divisions if start < moment < end), end)
    jobs = {job.pk: job for job in ledger_rows.jobs_in_period(cluster, since, until)}
    attempts = attempts_by_job(list(jobs))
    live = {
        attempt.pk: attempt
        for tries in attempts.values()
        for attempt in tries
        if attempt.promised < end and (attempt.ended is None or attempt.ended > start)
    }
    facts = LedgerInput(
        machines=_machines(cluster, _holdings(list(live), end), since, until),
        lives=_attempt_spells(attempts, live),
        waits=[
            *(wait for job in jobs.values() for wait in _waits(job, attempts.get(job.pk, ()), end)),
            *(
                WaitInterval(wait.since, end, wait.gpus_per_node or int(wait.gpu_milli > 0), wait.gpu_model)
                for wait in ledger_rows.open_waits(cluster, until, NOT_ELIGIBLE_REASONS)
            ),
        ],
    )
    moments = LedgerMoments(
        failures=[(one.ended, one.cause) for one in live.values() if one.ended and one.state in FAILURE_STATES],
        broken=_machine_failures(cluster, since, until),
        recoveries=[back for tries in attempts.values() for back in _job_recoveries(tries)],
    )
    owners = {pk: (jobs[one.job].team, jobs[one.job].kind) for pk, one in live.items()}
    entries = buckets.ledger_entries(facts, edges)
    return parts.parts_by_window(edges, entries, owners, _runs(jobs.values(), attempts, end), moments, facts.machines)


def failures_after(cluster: Cluster, until: datetime) -> Counter[str]:
    """Return the attempts that were live at this time and have failed since, by cause."""
    over = Attempt.objects.alias(span=ATTEMPT_SPAN).filter(ended_at__gt=until, promised_at__lt=until)
    failed = over.filter(span__contains=until, state__in=FAILURE_STATES, job__cluster=cluster)
    return Counter(failed.order_by().values_list("cause", flat=True))


def _machine_failures(cluster: Cluster, since: datetime, until: datetime) -> list[tuple[int, tuple[str, int]]]:
    """Return the hardware failures with their nodes and incidents. Jobs that failed in the same incident count as one
    failure."""
    named = Diagnosis.objects.filter(cluster=cluster, root_cause__in=NODE_CAUSES, nodes__isnull=False)
    rows: Any = named.filter(failed_at__gte=since, failed_at__lt=until).order_by()
    rows = rows.values_list(Microseconds("failed_at"), "nodes__name", "incident", "attempt")
    return [(at, (node, incident or -attempt)) for at, node, incident, attempt in rows]


def _runs(jobs: Iterable[JobRow], attempts: Mapping[int, Sequence[AttemptRow]], end: int) -> Iterable[JobLifetime]:
    for job in jobs:
        if tries := attempts.get(job.pk):
            yield JobLifetime(
                job=job.pk, gpus=job.gpus, gpu_milli=job.gpu_milli, start=tries[0].promised, end=job.ended or end
            )


def _job_recoveries(tries: Sequence[AttemptRow]) -> Iterable[tuple[int, JobRecovery]]:
    for before, after in pairwise(tries):
        if before.ended and before.state in FAILURE_STATES:
            yield after.promised, JobRecovery(before.cause or before.state, after.promised - before.ended)


# --- allocations


def _holdings(attempts: Sequence[int], end: int) -> dict[int, list[GpuAllocation]]:
    """Return the GPU allocations by node."""
    by_node: dict[int, list[GpuAllocation]] = defaultdict(list)
    for row in ledger_rows.allocations(attempts):
        over = row.released or max(end, row.held)
        unplaced = row.requested if row.foreign_id and not row.gpus else 0
        if row.gpus or unplaced:
            by_node[row.node].append(
                GpuAllocation(row.attempt, row.held, over, tuple(sorted(row.gpus)), unplaced, row.milli)
            )
    return by_node


def _attempt_spells(
    attempts: Mapping[int, Sequence[AttemptRow]], live: Mapping[int, AttemptRow]
) -> dict[int, list[BucketInterval]]:
    steps = _first_steps(list(live))
    good = Checkpoint.objects.filter(attempt__in=any_of(live), durable_at__isnull=False).exclude(
        verdict=CheckpointVerdict.BAD
    )
    saved: dict[int, int] = dict(good.order_by().values_list("attempt").annotate(newest=Microseconds(Max("saved_at"))))
    stalls, slows = _save_stalls(list(live)), _slow_intervals(list(live))
    lives = {}
    for tries in attempts.values():
        before = ""
        for attempt in tries:
            if attempt.pk in live:
                history = _attempt_interval(
                    attempt, before, _first_step(attempt, steps), saved.get(attempt.pk), stalls.get(attempt.pk, ())
                )
                lives[attempt.pk] = attempt_intervals.bucket_intervals(
                    replace(history, slows=slows.get(attempt.pk, ()))
                )
            before = (attempt.cause or attempt.state) if attempt.state in FAILURE_STATES else ""
    return lives


def _first_step(attempt: AttemptRow, steps: Mapping[int, int]) -> int | None:
    """Return the time of the first step, unless the log was not read from the beginning: then the first known step is
    not the first one."""
    return None if attempt.progress_source == ProgressSource.LATE else steps.get(attempt.pk)


@dataclass(frozen=True, kw_only=True)
class JobEfficiency:
    """Productive time of a job, as a fraction of the time in which it held GPUs (goodput) and of the time since its
    first allocation (ETTR). Upper bounds, like the ledger's."""

    goodput: float | None
    ettr: float | None


def job_efficiency(jobs: Sequence[int], now: datetime) -> dict[int, JobEfficiency]:
    """Return the efficiency of each job up to its end or now."""
    attempts, end = attempts_by_job(jobs), unix_microseconds(now)
    live = {attempt.pk: attempt for tries in attempts.values() for attempt in tries}
    lives = _attempt_spells(attempts, live)
    ratios: dict[int, JobEfficiency] = {}
    for job, tries in attempts.items():
        over = max(attempt.ended or end for attempt in tries)
        wall = max(0, min(over, end) - tries[0].promised)
        held = sum(max(0, min(attempt.ended or end, end) - attempt.promised) for attempt in tries)
        productive = sum(_productive_us(attempt, lives[attempt.pk], end) for attempt in tries)
        ratios[job] = JobEfficiency(
            goodput=productive / held if held else None, ettr=productive / wall if wall else None
        )
    return ratios


def held_by_job(job: int, now: datetime) -> Counter[Bucket]:
    """Return the GPU-microseconds of the job by bucket. Down times of its nodes are not considered."""
    attempts, end = attempts_by_job([job]), unix_microseconds(now)
    live = {attempt.pk: attempt for tries in attempts.values() for attempt in tries}
    holdings = _holdings(list(live), end)
    machines = [
        NodeHistory(name=str(node), capacity=[(0, _gpu_count(held))], holdings=held) for node, held in holdings.items()
    ]
    start = min((allocation.start for held in holdings.values() for allocation in held), default=end)
    facts = LedgerInput(machines=machines, lives=_attempt_spells(attempts, live))
    sums: Counter[Bucket] = Counter()
    for entry in buckets.ledger_entries(facts, (start, end)):
        if entry.attempt is not None:
            sums[entry.bucket] += entry.gpu_us
    return sums


def _gpu_count(held: Sequence[GpuAllocation]) -> int:
    return max(max(one.gpus, default=-1) + 1 + one.unplaced_gpus for one in held)


def _productive_us(attempt: AttemptRow, life: Sequence[BucketInterval], end: int) -> int:
    """Return the time of the attempt outside all intervals, which may overlap."""
    over = min(attempt.ended or end, end)
    productive, at = 0, attempt.promised
    for spell in sorted(life):
        productive += max(0, min(spell.start, over) - at)
        at = max(at, spell.end)
    return productive + max(0, over - at)


def newest_checkpoint_times(jobs: Sequence[int]) -> dict[int, datetime]:
    """Return the save time of each job's newest durable checkpoint that was not judged bad."""
    good = Checkpoint.objects.filter(job__in=jobs, durable_at__isnull=False).exclude(verdict=CheckpointVerdict.BAD)
    return dict(good.order_by().values_list("job").annotate(Max("saved_at")))


def _first_steps(attempts: Sequence[int]) -> dict[int, int]:
    with connection.cursor() as cursor:
        cursor.execute(FIRST_STEPS_SQL, [list(attempts)])
        return dict(cursor.fetchall())


def _save_stalls(attempts: Sequence[int]) -> dict[int, list[attempt_intervals.UsSpan]]:
    """Return the stalls by checkpoints. A save is reported when training continues, so the stall ends at that time."""
    rows = Checkpoint.objects.filter(attempt__in=any_of(attempts), stall_s__gt=0)
    stalls: dict[int, list[attempt_intervals.UsSpan]] = defaultdict(list)
    for attempt, at, stall_s in rows.order_by("saved_at").values_list("attempt", Microseconds("saved_at"), "stall_s"):
        stalls[attempt].append((at - round(stall_s * 1_000_000), at))
    return stalls


def _slow_intervals(attempts: Sequence[int]) -> dict[int, list[attempt_intervals.SlowPeriod]]:
    """Return the slow periods. A lasting one ends where it was last seen."""
    anomalies = Anomaly.objects.slow().filter(attempt__in=any_of(attempts)).order_by("since")
    periods: dict[int, list[attempt_intervals.SlowPeriod]] = defaultdict(list)
    for anomaly in anomalies:
        over = unix_microseconds(anomaly.ended_at or anomaly.seen_at)
        pace = attempt_intervals.SlowPeriod(
            start=unix_microseconds(anomaly.since),
            end=over,
            observed=anomaly.observed,
            expected=anomaly.expected,
            cause="SlowNode",
        )
        periods[anomaly.attempt_id or 0].append(pace)
    return periods


def _attempt_interval(
    attempt: AttemptRow, before: str, step: int | None, saved: int | None, stalls: Sequence[attempt_intervals.UsSpan]
) -> attempt_intervals.AttemptHistory:
    hangs = []
    if attempt.cause == HANG_CAUSE and attempt.progressed is not None and attempt.ended is not None:
        hangs = [(attempt.progressed, attempt.ended)]
    return attempt_intervals.AttemptHistory(
        promised=attempt.promised,
        confirmed=attempt.confirmed,
        first_step=step,
        ended=attempt.ended,
        keeps_work=attempt.state in (State.COMPLETED, State.CANCELLED) or attempt.ended is None,
        saved=saved,
        cause=attempt.cause or attempt.state,
        after=before,
        stalls=stalls,
        hangs=hangs,
    )


# --- waiting jobs


def _waits(job: JobRow, attempts: Sequence[AttemptRow], end: int) -> Iterable[WaitInterval]:
    since = max(job.submitted, job.eligible or job.submitted)
    gpus = job.gpus_per_node or int(job.gpu_milli > 0)  # a share fits on a free GPU
    for attempt in attempts:
        yield WaitInterval(since, attempt.promised, gpus, job.gpu_model)
        since = attempt.ended or end
    kept_back = job.hold != HoldKind.NONE or Flag.REQUEUE_HOLD in job.flags or job.reason in NOT_ELIGIBLE_REASONS
    if job.state == State.PENDING and not kept_back:
        yield WaitInterval(since, end, gpus, job.gpu_model)


# --- states of nodes


def _machines(
    cluster: Cluster, holdings: Mapping[int, Sequence[GpuAllocation]], since: datetime, until: datetime
) -> list[NodeHistory]:
    nodes = list(Node.objects.filter(cluster=cluster, gpus__gt=0).order_by("name"))
    events, first_seen = _node_events(cluster, nodes, since, until), node_first_seen(cluster)
    return [
        NodeHistory(
            name=node.name,
            model=node.gpu_model,
            capacity=[(unix_microseconds(first_seen.get(node.pk, cluster.created_at)), node.gpus)],
            slices={gpu: profile_milli(profile) for gpu, profile in node.slice_profiles.items()},
            spells=_node_spells(events[node.pk], unix_microseconds(since), unix_microseconds(until)),
            holdings=holdings.get(node.pk, ()),
        )
        for node in nodes
    ]


NodeEvent = tuple[int, str, str, str]  # when, what, to which state, why


def _node_events(
    cluster: Cluster, nodes: Sequence[Node], since: datetime, until: datetime
) -> dict[int, list[NodeEvent]]:
    rows: Any = Event.objects.filter(node__in=[node.pk for node in nodes], type__in=NODE_EVENTS)
    rows = rows.filter(at__gte=since, at__lt=until).order_by("at", "id")
    found: list[Any] = [(since, *one) for one in last_node_events(cluster, since)]
    found += rows.values_list("at", "node", "type", "to_state", "why", "by")
    by_people = {(node, why) for _, node, _, _, why, by in found if by not in (RECOVERY_AUTHOR_NAME, SYNC.by)}
    events: dict[int, list[NodeEvent]] = defaultdict(list)
    for at, node, what, state, why, by in found:
        cause = why if (node, why) in by_people else _closing_cause(why, by)
        events[node].append((unix_microseconds(at), _event_kind(what, by), state, cause))
    return events


def _event_kind(what: str, by: str) -> str:
    return MAINTENANCE_DRAIN if what == "node.drained" and by == MAINTENANCE.by else what


def _closing_cause(why: str, by: str) -> str:
    """Return the cause of a drain. Drains by recovery share one cause, because their reasons name different incidents.
    The cluster repeats such a reason as its own."""
    repeated = by == SYNC.by and why.startswith(INCIDENT_REASON_PREFIX)
    return RECOVERY_AUTHOR_NAME if why and (by == RECOVERY_AUTHOR_NAME or repeated) else why


def _node_spells(events: Sequence[NodeEvent], start: int, end: int) -> list[BucketInterval]:
    """Return the intervals in which the node was drained, down or asleep. Each Event holds until the next one; a node
    without Events has no intervals."""
    spells, condition, drain, cause, since = [], "UP", "", "", start
    for at, what, state, why in [*events, (end, "", "", "")]:
        if (bucket := _node_bucket(condition, drain)) and at > since:
            spells.append(BucketInterval(since, at, bucket, cause))
        since = max(since, at)
        if what == "node.state_changed":
            condition = state
        elif what:
            drain = "" if what == "node.resumed" else what
        cause = why or cause
    return spells


def _node_bucket(condition: str, drain: str) -> Bucket | None:
    """Return the bucket of a node's state. A node that is off during its maintenance counts as drained, not down."""
    state, *flags = condition.split("+")
    if drain == MAINTENANCE_DRAIN:
        return Bucket.DRAINED
    if state not in UP_STATES or NodeFlag.NOT_RESPONDING in flags:
        return Bucket.DOWN
    if drain or CLOSED_NODE_FLAGS.intersection(flags):
        return Bucket.DRAINED
    return None if set(ASLEEP_NODE_FLAGS).isdisjoint(flags) else Bucket.ASLEEP
