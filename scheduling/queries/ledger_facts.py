"""The rows of a window as facts for the ledger.

Twelve short statements for each cluster, whatever the window; nothing is written. What is read grows with the jobs that
ended since the window began (old windows cost more than new ones), with their attempts x nodes, and with the nodes' own
Events. What no row tells is not guessed: the capacity of a node is that of today, since its cluster was entered; an
attempt that reports nothing is productive from its confirmation on; a pause for a save is what a trainer reports of it;
slow steps are those that `failures.loops.slow_steps` found, so those of jobs that report no steps are "productive".
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from django.contrib.postgres.aggregates import ArrayAgg
from django.db import connection
from django.db.models import Max, Q

from failures.actions.decisions import INCIDENT_REASON_PREFIX
from failures.incidents.grouping import NODE_CAUSES
from failures.models import Diagnosis, Sign
from jobs.actions.journal import SYNC
from jobs.actions.maintenance import MAINTENANCE
from jobs.core.lifecycle import (
    CLOSED_NODE_FLAGS,
    FAILURE_STATES,
    FINAL_STATES,
    USABLE_NODE_STATES,
    Flag,
    NodeFlag,
    State,
)
from jobs.models import (
    Allocation,
    Attempt,
    Checkpoint,
    CheckpointVerdict,
    Cluster,
    Event,
    HoldKind,
    Job,
    Node,
    ProgressSource,
)
from jobs.queries.map_rows import NODE_EVENTS, last_node_events, node_first_seen
from scheduling.ledger import attempt_intervals, buckets
from scheduling.ledger.buckets import (
    Bucket,
    BucketInterval,
    GpuAllocation,
    LedgerEntry,
    LedgerInput,
    NodeHistory,
    WaitInterval,
)
from scheduling.ledger.reliability import JobLifetime

US_PER_HOUR = 3_600_000_000
HANG_CAUSE = "Hang"  # the diagnosis' label
RECOVERY_AUTHOR_NAME = "recovery"  # who closes a node and tests it; the sentence says for which incident
UP_STATES = {str(state) for state in USABLE_NODE_STATES} | {"UP"}
NOT_ELIGIBLE_REASONS = ("Dependency", "BeginTime", "JobHeldUser", "JobHeldAdmin")

MAINTENANCE_DRAIN = "drained for maintenance"
FIRST_STEPS_SQL = """
SELECT a.id, p.at FROM unnest(%s::bigint[]) AS a (id) CROSS JOIN LATERAL
  (SELECT at FROM jobs_progress WHERE attempt_id = a.id AND step IS NOT NULL ORDER BY at LIMIT 1) AS p
"""


def unix_microseconds(moment: datetime) -> int:
    """Exact: seconds as a float would not hold the microseconds of today."""
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


@dataclass(frozen=True, kw_only=True)
class AttemptOwner:
    team: int
    team_name: str
    kind: str
    cluster: str


@dataclass(frozen=True, kw_only=True)
class JobRecovery:
    """A job that failed and was promised GPUs again."""

    cause: str
    took: timedelta  # from the end to the promise


@dataclass(frozen=True, kw_only=True)
class ClusterLedger:
    """One cluster's window: the pieces, and whose they are."""

    cluster: str
    pieces: Sequence[LedgerEntry]
    whose: Mapping[int, AttemptOwner]
    runs: Mapping[int, Sequence[JobLifetime]]  # by team
    failures: Counter[str]  # by cause
    comebacks: Sequence[JobRecovery]
    broken: Counter[str]  # how often the machine was at fault, by node
    models: Mapping[str, str]  # of the nodes
    capacity_us: int


def cluster_ledger(cluster: Cluster, since: datetime, until: datetime) -> ClusterLedger:
    start, end = unix_microseconds(since), unix_microseconds(until)
    ended = Q(ended_at__gte=since) | (Q(ended_at=None) & ~Q(state__in=FINAL_STATES))
    asked = list(
        Job.objects.filter(ended, cluster=cluster, submitted_at__lt=until)
        .select_related("team")
        .defer("command", "environment", "labels", "comment")
    )
    attempts = _attempts([job.pk for job in asked])
    live = {
        one.pk: one
        for found in attempts.values()
        for one in found
        if one.promised_at < until and (one.ended_at is None or one.ended_at > since)
    }
    facts = LedgerInput(
        machines=_machines(cluster, _holdings(list(live), end), since, until),
        lives=_attempt_spells(attempts, live),
        waits=[wait for job in asked for wait in _waits(job, attempts.get(job.pk, ()), end)],
    )
    jobs = {job.pk: job for job in asked}
    return ClusterLedger(
        cluster=cluster.name,
        pieces=list(buckets.ledger_entries(facts, start, end)),
        whose={pk: _attempt_owner(jobs[one.job_id], cluster) for pk, one in live.items()},
        runs=_runs(asked, attempts, end),
        failures=Counter(one.cause for one in live.values() if one.ended_at and one.state in FAILURE_STATES),
        comebacks=[back for tries in attempts.values() for back in _job_recoveries(tries, since, until)],
        broken=_machine_failures(list(live), since, until),
        models={machine.name: machine.model for machine in facts.machines},
        capacity_us=buckets.capacity_us(facts.machines, start, end),
    )


def _machine_failures(attempts: Sequence[int], since: datetime, until: datetime) -> Counter[str]:
    """By node: the incidents of a machine's cause that name it. Two jobs that died of one fault are one failure."""
    named = Diagnosis.objects.filter(attempt__in=attempts, root_cause__in=NODE_CAUSES, nodes__isnull=False)
    rows = named.filter(failed_at__gte=since, failed_at__lt=until).values_list("nodes__name", "incident", "attempt")
    return Counter(node for node, _ in {(node, incident or -attempt) for node, incident, attempt in rows})


def _attempt_owner(job: Job, cluster: Cluster) -> AttemptOwner:
    return AttemptOwner(team=job.team_id, team_name=job.team.name, kind=job.kind, cluster=cluster.name)


def _attempts(jobs: Sequence[int]) -> dict[int, list[Attempt]]:
    found: dict[int, list[Attempt]] = defaultdict(list)
    rows = Attempt.objects.filter(job__in=jobs).select_related("pulse").order_by("job", "number")
    for row in rows.defer("nodelist", "reason", "stop_why"):
        found[row.job_id].append(row)
    return found


def _runs(asked: Iterable[Job], attempts: Mapping[int, Sequence[Attempt]], end: int) -> dict[int, list[JobLifetime]]:
    runs: dict[int, list[JobLifetime]] = defaultdict(list)
    for job in asked:
        if tries := attempts.get(job.pk):
            over = unix_microseconds(job.ended_at) if job.ended_at else end
            runs[job.team_id].append(
                JobLifetime(job=job.pk, gpus=job.gpus, start=unix_microseconds(tries[0].promised_at), end=over)
            )
    return runs


def _job_recoveries(tries: Sequence[Attempt], since: datetime, until: datetime) -> Iterable[JobRecovery]:
    for before, one in pairwise(tries):
        if before.ended_at and before.state in FAILURE_STATES and since <= one.promised_at < until:
            yield JobRecovery(cause=before.cause or before.state, took=one.promised_at - before.ended_at)


# --- who held what


def _holdings(attempts: Sequence[int], end: int) -> dict[int, list[GpuAllocation]]:
    """By node."""
    rows = (
        Allocation.objects.filter(attempt__in=attempts)
        .order_by()
        .values_list("attempt", "node", "held_at", "released_at", "attempt__job__foreign_id")
        .annotate(
            gpus=ArrayAgg("gpu", filter=Q(gpu__isnull=False), default=[]), asked=Max("attempt__job__gpus_per_node")
        )
    )
    found: dict[int, list[GpuAllocation]] = defaultdict(list)
    for attempt, node, held, released, foreign, gpus, asked in rows:
        over = unix_microseconds(released) if released else max(end, unix_microseconds(held))
        unplaced = asked if foreign and not gpus else 0
        if gpus or unplaced:
            found[node].append(GpuAllocation(attempt, unix_microseconds(held), over, tuple(sorted(gpus)), unplaced))
    return found


def _attempt_spells(
    attempts: Mapping[int, Sequence[Attempt]], live: Mapping[int, Attempt]
) -> dict[int, list[BucketInterval]]:
    steps = _first_steps(list(live))
    good = Checkpoint.objects.filter(attempt__in=list(live), durable_at__isnull=False).exclude(
        verdict=CheckpointVerdict.BAD
    )
    saved = dict(good.order_by().values_list("attempt").annotate(Max("saved_at")))
    stalls, slows = _save_stalls(list(live)), _slow_intervals(list(live))
    lives = {}
    for tries in attempts.values():
        before = ""
        for one in tries:
            if one.pk in live:
                told = _attempt_interval(
                    one, before, _first_step(one, steps), saved.get(one.pk), stalls.get(one.pk, ())
                )
                lives[one.pk] = attempt_intervals.bucket_intervals(replace(told, slows=slows.get(one.pk, ())))
            before = (one.cause or one.state) if one.state in FAILURE_STATES else ""
    return lives


def _first_step(one: Attempt, steps: Mapping[int, datetime]) -> datetime | None:
    """Where its log was not read from the beginning, the first step that is known is not its first."""
    pulse = getattr(one, "pulse", None)
    return steps.get(one.pk) if pulse is None or pulse.source != ProgressSource.LATE else None


def job_ettr(jobs: Sequence[int], now: datetime) -> dict[int, float | None]:
    """Of each, from its first promise until now or its end; an upper bound, as all of the ledger's are."""
    attempts, end = _attempts(jobs), unix_microseconds(now)
    live = {one.pk: one for tries in attempts.values() for one in tries}
    lives = _attempt_spells(attempts, live)
    found: dict[int, float | None] = {}
    for job, tries in attempts.items():
        over = max(unix_microseconds(one.ended_at) if one.ended_at else end for one in tries)
        wall = max(0, min(over, end) - unix_microseconds(tries[0].promised_at))
        productive = sum(_productive_us(one, lives[one.pk], end) for one in tries)
        found[job] = productive / wall if wall else None
    return found


def held_by_job(job: int, now: datetime) -> Counter[Bucket]:
    """GPU-microseconds of all its attempts, each in one bucket. Whether its nodes were down meanwhile is not asked."""
    attempts, end = _attempts([job]), unix_microseconds(now)
    live = {one.pk: one for tries in attempts.values() for one in tries}
    holdings = _holdings(list(live), end)
    machines = [
        NodeHistory(name=str(node), capacity=[(0, _gpu_count(held))], holdings=held) for node, held in holdings.items()
    ]
    start = min((one.start for held in holdings.values() for one in held), default=end)
    facts = LedgerInput(machines=machines, lives=_attempt_spells(attempts, live))
    found: Counter[Bucket] = Counter()
    for piece in buckets.ledger_entries(facts, start, end):
        if piece.attempt is not None:
            found[piece.bucket] += piece.gpu_us
    return found


def _gpu_count(held: Sequence[GpuAllocation]) -> int:
    return max(max(one.gpus, default=-1) + 1 + one.unplaced_gpus for one in held)


def _productive_us(one: Attempt, life: Sequence[BucketInterval], end: int) -> int:
    """What of its time no spell claims; spells may overlap."""
    start, over = unix_microseconds(one.promised_at), min(unix_microseconds(one.ended_at) if one.ended_at else end, end)
    left, at = 0, start
    for spell in sorted(life):
        left += max(0, min(spell.start, over) - at)
        at = max(at, spell.end)
    return left + max(0, over - at)


def newest_checkpoint_times(jobs: Sequence[int]) -> dict[int, datetime]:
    """When the newest checkpoint of each was saved that reached remote storage and was not judged bad."""
    good = Checkpoint.objects.filter(job__in=jobs, durable_at__isnull=False).exclude(verdict=CheckpointVerdict.BAD)
    return dict(good.order_by().values_list("job").annotate(Max("saved_at")))


def _first_steps(attempts: Sequence[int]) -> dict[int, datetime]:
    with connection.cursor() as cursor:
        cursor.execute(FIRST_STEPS_SQL, [list(attempts)])
        return dict(cursor.fetchall())


def _save_stalls(attempts: Sequence[int]) -> dict[int, list[attempt_intervals.UsSpan]]:
    """A save is told of when training goes on; so long before that it stood still."""
    told = Checkpoint.objects.filter(attempt__in=attempts, stall_s__gt=0)
    found: dict[int, list[attempt_intervals.UsSpan]] = defaultdict(list)
    for attempt, at, stall_s in told.order_by("saved_at").values_list("attempt", "saved_at", "stall_s"):
        found[attempt].append((unix_microseconds(at) - round(stall_s * 1_000_000), unix_microseconds(at)))
    return found


def _slow_intervals(attempts: Sequence[int]) -> dict[int, list[attempt_intervals.SlowPeriod]]:
    """One that lasts is known until it was seen last."""
    told = Sign.objects.slow().filter(attempt__in=attempts).order_by("since")
    found: dict[int, list[attempt_intervals.SlowPeriod]] = defaultdict(list)
    for sign in told:
        over = unix_microseconds(sign.ended_at or sign.seen_at)
        pace = attempt_intervals.SlowPeriod(
            start=unix_microseconds(sign.since),
            end=over,
            observed=sign.observed,
            expected=sign.expected,
            cause="SlowNode",
        )
        found[sign.attempt_id or 0].append(pace)
    return found


def _attempt_interval(
    one: Attempt,
    before: str,
    step: datetime | None,
    saved: datetime | None,
    stalls: Sequence[attempt_intervals.UsSpan] = (),
) -> attempt_intervals.AttemptHistory:
    pulse = getattr(one, "pulse", None)
    hung = one.cause == HANG_CAUSE and pulse is not None and one.ended_at is not None
    return attempt_intervals.AttemptHistory(
        promised=unix_microseconds(one.promised_at),
        confirmed=unix_microseconds(one.confirmed_at) if one.confirmed_at else None,
        first_step=unix_microseconds(step) if step else None,
        ended=unix_microseconds(one.ended_at) if one.ended_at else None,
        kept=one.state in (State.COMPLETED, State.CANCELLED) or one.ended_at is None,
        saved=unix_microseconds(saved) if saved else None,
        cause=one.cause or one.state,
        after=before,
        stalls=stalls,
        hangs=[(unix_microseconds(pulse.at), unix_microseconds(one.ended_at))]
        if hung and pulse and one.ended_at
        else [],
    )


# --- who waited


def _waits(job: Job, attempts: Sequence[Attempt], end: int) -> Iterable[WaitInterval]:
    since = unix_microseconds(max(job.submitted_at, job.begin_at) if job.begin_at else job.submitted_at)
    for one in attempts:
        yield WaitInterval(since, unix_microseconds(one.promised_at), job.gpus_per_node, job.gpu_model)
        since = unix_microseconds(one.ended_at) if one.ended_at else end
    kept_back = job.hold != HoldKind.NONE or Flag.REQUEUE_HOLD in job.flags or job.reason in NOT_ELIGIBLE_REASONS
    if job.state == State.PENDING and not kept_back:
        yield WaitInterval(since, end, job.gpus_per_node, job.gpu_model)


# --- what nodes were


def _machines(
    cluster: Cluster, holdings: Mapping[int, Sequence[GpuAllocation]], since: datetime, until: datetime
) -> list[NodeHistory]:
    nodes = list(Node.objects.filter(cluster=cluster, gpus__gt=0).order_by("name"))
    told, came = _node_events(cluster, nodes, since, until), node_first_seen(cluster)
    return [
        NodeHistory(
            name=node.name,
            model=node.gpu_model,
            capacity=[(unix_microseconds(came.get(node.pk, cluster.created_at)), node.gpus)],
            spells=_node_spells(told[node.pk], unix_microseconds(since), unix_microseconds(until)),
            holdings=holdings.get(node.pk, ()),
        )
        for node in nodes
    ]


NodeEvent = tuple[int, str, str, str]  # when, what, to which state, why


def _node_events(
    cluster: Cluster, nodes: Sequence[Node], since: datetime, until: datetime
) -> dict[int, list[NodeEvent]]:
    rows: Any = Event.objects.filter(node__in=[node.pk for node in nodes], what__in=NODE_EVENTS)
    rows = rows.filter(at__gte=since, at__lt=until).order_by("id")
    found: list[Any] = [(since, *one) for one in last_node_events(cluster, since)]
    found += rows.values_list("at", "node", "what", "to_state", "why", "by")
    by_people = {(node, why) for _, node, _, _, why, by in found if by not in (RECOVERY_AUTHOR_NAME, SYNC.by)}
    told: dict[int, list[NodeEvent]] = defaultdict(list)
    for at, node, what, state, why, by in found:
        cause = why if (node, why) in by_people else _closing_cause(why, by)
        told[node].append((unix_microseconds(at), _event_kind(what, by), state, cause))
    return told


def _event_kind(what: str, by: str) -> str:
    return MAINTENANCE_DRAIN if what == "node.drained" and by == MAINTENANCE.by else what


def _closing_cause(why: str, by: str) -> str:
    """Recovery's sentences name the incident; each would be a cause of its own. The cluster repeats them as its own."""
    repeated = by == SYNC.by and why.startswith(INCIDENT_REASON_PREFIX)
    return RECOVERY_AUTHOR_NAME if why and (by == RECOVERY_AUTHOR_NAME or repeated) else why


def _node_spells(told: Sequence[NodeEvent], start: int, end: int) -> list[BucketInterval]:
    """An Event says what holds from then on; of a node of which nothing was ever told, nothing is said."""
    spells, condition, asked, cause, since = [], "UP", "", "", start
    for at, what, state, why in [*told, (end, "", "", "")]:
        if (bucket := _node_bucket(condition, asked)) and at > since:
            spells.append(BucketInterval(since, at, bucket, cause))
        since = max(since, at)
        if what == "node.moved":
            condition = state
        elif what:
            asked = "" if what == "node.resumed" else what
        cause = why or cause
    return spells


def _node_bucket(condition: str, asked: str) -> Bucket | None:
    """A node that is switched off in its maintenance is not broken."""
    state, *flags = condition.split("+")
    if asked == MAINTENANCE_DRAIN:
        return Bucket.DRAINED
    if state not in UP_STATES or NodeFlag.NOT_RESPONDING in flags:
        return Bucket.DOWN
    return Bucket.DRAINED if asked or CLOSED_NODE_FLAGS.intersection(flags) else None
