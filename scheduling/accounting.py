"""The rows of a window as facts for the ledger.

Twelve short statements for each cluster, whatever the window; nothing is written. What is read grows with the jobs that
ended since the window began (old windows cost more than new ones), with their attempts x nodes, and with the nodes' own
Events. What no row tells is not guessed: the capacity of a node is that of today, since its cluster was entered; an
attempt that reports nothing is productive from its confirmation on; a pause for a save is what a trainer reports of it;
slow steps are what `scheduling.loops.slow` has seen of them, so those of jobs that report no steps lie in "productive".
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

from failures.decision_actions import OF_INCIDENT
from failures.grouping import NODE_CAUSES
from failures.models import Diagnosis, Sign
from jobs.journal import SYNC
from jobs.lifecycle import CLOSED_NODE_FLAGS, FAILURES, FINAL, USABLE_NODE, Flag, NodeFlag, State
from jobs.maintenance_actions import MAINTENANCE
from jobs.map_rows import NODE_EVENTS, joined, told_before
from jobs.models import Allocation, Attempt, Checkpoint, Cluster, Event, Hold, Job, Node, Source, Verdict
from scheduling import ledger, worked
from scheduling.ledger import Bucket, Facts, Holding, Machine, Piece, Spell, Wait
from scheduling.reliability import Run

US_PER_HOUR = 3_600_000_000
HANG = "Hang"  # the diagnosis' label
RECOVERY = "recovery"  # who closes a node and tests it; the sentence says for which incident
UP = {str(state) for state in USABLE_NODE} | {"UP"}
NO_TURN_YET = ("Dependency", "BeginTime", "JobHeldUser", "JobHeldAdmin")

MAINTAINED = "drained for maintenance"
FIRST_STEPS = """
SELECT a.id, p.at FROM unnest(%s::bigint[]) AS a (id) CROSS JOIN LATERAL
  (SELECT at FROM jobs_progress WHERE attempt_id = a.id AND step IS NOT NULL ORDER BY at LIMIT 1) AS p
"""


def us(moment: datetime) -> int:
    """Exact: seconds as a float would not hold the microseconds of today."""
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


@dataclass(frozen=True, kw_only=True)
class Whose:
    team: int
    team_name: str
    kind: str
    cluster: str


@dataclass(frozen=True, kw_only=True)
class Comeback:
    """A job that failed and was promised GPUs again."""

    cause: str
    took: timedelta  # from the end to the promise


@dataclass(frozen=True, kw_only=True)
class Account:
    """One cluster's window: the pieces, and whose they are."""

    cluster: str
    pieces: Sequence[Piece]
    whose: Mapping[int, Whose]
    runs: Mapping[int, Sequence[Run]]  # by team
    failures: Counter[str]  # by cause
    comebacks: Sequence[Comeback]
    broken: Counter[str]  # how often the machine was at fault, by node
    models: Mapping[str, str]  # of the nodes
    capacity_us: int


def account(cluster: Cluster, since: datetime, until: datetime) -> Account:
    start, end = us(since), us(until)
    ended = Q(ended_at__gte=since) | (Q(ended_at=None) & ~Q(state__in=FINAL))
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
    facts = Facts(
        machines=_machines(cluster, _holdings(list(live), end), since, until),
        lives=_lives(attempts, live),
        waits=[wait for job in asked for wait in _waits(job, attempts.get(job.pk, ()), end)],
    )
    jobs = {job.pk: job for job in asked}
    return Account(
        cluster=cluster.name,
        pieces=list(ledger.pieces(facts, start, end)),
        whose={pk: _whose(jobs[one.job_id], cluster) for pk, one in live.items()},
        runs=_runs(asked, attempts, end),
        failures=Counter(one.cause for one in live.values() if one.ended_at and one.state in FAILURES),
        comebacks=[back for tries in attempts.values() for back in _comebacks(tries, since, until)],
        broken=_broken(list(live), since, until),
        models={machine.name: machine.model for machine in facts.machines},
        capacity_us=ledger.capacity_us(facts.machines, start, end),
    )


def _broken(attempts: Sequence[int], since: datetime, until: datetime) -> Counter[str]:
    """By node: the incidents of a machine's cause that name it. Two jobs that died of one fault are one failure."""
    named = Diagnosis.objects.filter(attempt__in=attempts, root_cause__in=NODE_CAUSES, nodes__isnull=False)
    rows = named.filter(failed_at__gte=since, failed_at__lt=until).values_list("nodes__name", "incident", "attempt")
    return Counter(node for node, _ in {(node, incident or -attempt) for node, incident, attempt in rows})


def _whose(job: Job, cluster: Cluster) -> Whose:
    return Whose(team=job.team_id, team_name=job.team.name, kind=job.kind, cluster=cluster.name)


def _attempts(jobs: Sequence[int]) -> dict[int, list[Attempt]]:
    found: dict[int, list[Attempt]] = defaultdict(list)
    rows = Attempt.objects.filter(job__in=jobs).select_related("pulse").order_by("job", "number")
    for row in rows.defer("nodelist", "reason", "stop_why"):
        found[row.job_id].append(row)
    return found


def _runs(asked: Iterable[Job], attempts: Mapping[int, Sequence[Attempt]], end: int) -> dict[int, list[Run]]:
    runs: dict[int, list[Run]] = defaultdict(list)
    for job in asked:
        if tries := attempts.get(job.pk):
            over = us(job.ended_at) if job.ended_at else end
            runs[job.team_id].append(Run(job=job.pk, gpus=job.gpus, start=us(tries[0].promised_at), end=over))
    return runs


def _comebacks(tries: Sequence[Attempt], since: datetime, until: datetime) -> Iterable[Comeback]:
    for before, one in pairwise(tries):
        if before.ended_at and before.state in FAILURES and since <= one.promised_at < until:
            yield Comeback(cause=before.cause or before.state, took=one.promised_at - before.ended_at)


# --- who held what


def _holdings(attempts: Sequence[int], end: int) -> dict[int, list[Holding]]:
    """By node."""
    rows = (
        Allocation.objects.filter(attempt__in=attempts)
        .order_by()
        .values_list("attempt", "node", "held_at", "released_at", "attempt__job__foreign_id")
        .annotate(
            gpus=ArrayAgg("gpu", filter=Q(gpu__isnull=False), default=[]), asked=Max("attempt__job__gpus_per_node")
        )
    )
    found: dict[int, list[Holding]] = defaultdict(list)
    for attempt, node, held, released, foreign, gpus, asked in rows:
        over = us(released) if released else max(end, us(held))
        unplaced = asked if foreign and not gpus else 0
        if gpus or unplaced:
            found[node].append(Holding(attempt, us(held), over, tuple(sorted(gpus)), unplaced))
    return found


def _lives(attempts: Mapping[int, Sequence[Attempt]], live: Mapping[int, Attempt]) -> dict[int, list[Spell]]:
    steps = _first_steps(list(live))
    good = Checkpoint.objects.filter(attempt__in=list(live), durable_at__isnull=False).exclude(verdict=Verdict.BAD)
    saved = dict(good.order_by().values_list("attempt").annotate(Max("saved_at")))
    stalls, slows = _stalls(list(live)), _slows(list(live))
    lives = {}
    for tries in attempts.values():
        before = ""
        for one in tries:
            if one.pk in live:
                told = _life(one, before, _first_step(one, steps), saved.get(one.pk), stalls.get(one.pk, ()))
                lives[one.pk] = worked.life(replace(told, slows=slows.get(one.pk, ())))
            before = (one.cause or one.state) if one.state in FAILURES else ""
    return lives


def _first_step(one: Attempt, steps: Mapping[int, datetime]) -> datetime | None:
    """Where its log was not read from the beginning, the first step that is known is not its first."""
    pulse = getattr(one, "pulse", None)
    return steps.get(one.pk) if pulse is None or pulse.source != Source.LATE else None


def ettr_of_jobs(jobs: Sequence[int], now: datetime) -> dict[int, float | None]:
    """Of each, from its first promise until now or its end; an upper bound, as all of the ledger's are."""
    attempts, end = _attempts(jobs), us(now)
    live = {one.pk: one for tries in attempts.values() for one in tries}
    lives = _lives(attempts, live)
    found: dict[int, float | None] = {}
    for job, tries in attempts.items():
        over = max(us(one.ended_at) if one.ended_at else end for one in tries)
        wall = max(0, min(over, end) - us(tries[0].promised_at))
        productive = sum(_productive(one, lives[one.pk], end) for one in tries)
        found[job] = productive / wall if wall else None
    return found


def held_by_job(job: int, now: datetime) -> Counter[Bucket]:
    """GPU-microseconds of all its attempts, each in one bucket. Whether its nodes were down meanwhile is not asked."""
    attempts, end = _attempts([job]), us(now)
    live = {one.pk: one for tries in attempts.values() for one in tries}
    holdings = _holdings(list(live), end)
    machines = [Machine(name=str(node), capacity=[(0, _width(held))], holdings=held) for node, held in holdings.items()]
    start = min((one.start for held in holdings.values() for one in held), default=end)
    facts = Facts(machines=machines, lives=_lives(attempts, live))
    found: Counter[Bucket] = Counter()
    for piece in ledger.pieces(facts, start, end):
        if piece.attempt is not None:
            found[piece.bucket] += piece.gpu_us
    return found


def _width(held: Sequence[Holding]) -> int:
    return max(max(one.gpus, default=-1) + 1 + one.unplaced for one in held)


def _productive(one: Attempt, life: Sequence[Spell], end: int) -> int:
    """What of its time no spell claims; spells may overlap."""
    start, over = us(one.promised_at), min(us(one.ended_at) if one.ended_at else end, end)
    left, at = 0, start
    for spell in sorted(life):
        left += max(0, min(spell.start, over) - at)
        at = max(at, spell.end)
    return left + max(0, over - at)


def saved_of_jobs(jobs: Sequence[int]) -> dict[int, datetime]:
    """When the newest checkpoint of each was saved that reached remote storage and was not judged bad."""
    good = Checkpoint.objects.filter(job__in=jobs, durable_at__isnull=False).exclude(verdict=Verdict.BAD)
    return dict(good.order_by().values_list("job").annotate(Max("saved_at")))


def _first_steps(attempts: Sequence[int]) -> dict[int, datetime]:
    with connection.cursor() as cursor:
        cursor.execute(FIRST_STEPS, [list(attempts)])
        return dict(cursor.fetchall())


def _stalls(attempts: Sequence[int]) -> dict[int, list[worked.Span]]:
    """A save is told of when training goes on; so long before that it stood still."""
    told = Checkpoint.objects.filter(attempt__in=attempts, stall_s__gt=0)
    found: dict[int, list[worked.Span]] = defaultdict(list)
    for attempt, at, stall_s in told.order_by("saved_at").values_list("attempt", "saved_at", "stall_s"):
        found[attempt].append((us(at) - round(stall_s * 1_000_000), us(at)))
    return found


def _slows(attempts: Sequence[int]) -> dict[int, list[worked.Pace]]:
    """One that lasts is known until it was seen last."""
    told = Sign.objects.slow().filter(attempt__in=attempts).order_by("since")
    found: dict[int, list[worked.Pace]] = defaultdict(list)
    for sign in told:
        over = us(sign.ended_at or sign.seen_at)
        pace = worked.Pace(
            start=us(sign.since), end=over, observed=sign.observed, expected=sign.expected, cause="SlowNode"
        )
        found[sign.attempt_id or 0].append(pace)
    return found


def _life(
    one: Attempt, before: str, step: datetime | None, saved: datetime | None, stalls: Sequence[worked.Span] = ()
) -> worked.Attempt:
    pulse = getattr(one, "pulse", None)
    hung = one.cause == HANG and pulse is not None and one.ended_at is not None
    return worked.Attempt(
        promised=us(one.promised_at),
        confirmed=us(one.confirmed_at) if one.confirmed_at else None,
        first_step=us(step) if step else None,
        ended=us(one.ended_at) if one.ended_at else None,
        kept=one.state in (State.COMPLETED, State.CANCELLED) or one.ended_at is None,
        saved=us(saved) if saved else None,
        cause=one.cause or one.state,
        after=before,
        stalls=stalls,
        hangs=[(us(pulse.at), us(one.ended_at))] if hung and pulse and one.ended_at else [],
    )


# --- who waited


def _waits(job: Job, attempts: Sequence[Attempt], end: int) -> Iterable[Wait]:
    since = us(max(job.submitted_at, job.begin_at) if job.begin_at else job.submitted_at)
    for one in attempts:
        yield Wait(since, us(one.promised_at), job.gpus_per_node, job.gpu_model)
        since = us(one.ended_at) if one.ended_at else end
    kept_back = job.hold != Hold.NONE or Flag.REQUEUE_HOLD in job.flags or job.reason in NO_TURN_YET
    if job.state == State.PENDING and not kept_back:
        yield Wait(since, end, job.gpus_per_node, job.gpu_model)


# --- what nodes were


def _machines(
    cluster: Cluster, holdings: Mapping[int, Sequence[Holding]], since: datetime, until: datetime
) -> list[Machine]:
    nodes = list(Node.objects.filter(cluster=cluster, gpus__gt=0).order_by("name"))
    told, came = _told(cluster, nodes, since, until), joined(cluster)
    return [
        Machine(
            name=node.name,
            model=node.gpu_model,
            capacity=[(us(came.get(node.pk, cluster.created_at)), node.gpus)],
            spells=_spells(told[node.pk], us(since), us(until)),
            holdings=holdings.get(node.pk, ()),
        )
        for node in nodes
    ]


Told = tuple[int, str, str, str]  # when, what, to which state, why


def _told(cluster: Cluster, nodes: Sequence[Node], since: datetime, until: datetime) -> dict[int, list[Told]]:
    rows: Any = Event.objects.filter(node__in=[node.pk for node in nodes], what__in=NODE_EVENTS)
    rows = rows.filter(at__gte=since, at__lt=until).order_by("id")
    found: list[Any] = [(since, *one) for one in told_before(cluster, since)]
    found += rows.values_list("at", "node", "what", "to_state", "why", "by")
    by_people = {(node, why) for _, node, _, _, why, by in found if by not in (RECOVERY, SYNC.by)}
    told: dict[int, list[Told]] = defaultdict(list)
    for at, node, what, state, why, by in found:
        cause = why if (node, why) in by_people else _cause(why, by)
        told[node].append((us(at), _told_by(what, by), state, cause))
    return told


def _told_by(what: str, by: str) -> str:
    return MAINTAINED if what == "node.drained" and by == MAINTENANCE.by else what


def _cause(why: str, by: str) -> str:
    """Recovery's sentences name the incident; each would be a cause of its own. The cluster repeats them as its own."""
    repeated = by == SYNC.by and why.startswith(OF_INCIDENT)
    return RECOVERY if why and (by == RECOVERY or repeated) else why


def _spells(told: Sequence[Told], start: int, end: int) -> list[Spell]:
    """An Event says what holds from then on; of a node of which nothing was ever told, nothing is said."""
    spells, condition, asked, cause, since = [], "UP", "", "", start
    for at, what, state, why in [*told, (end, "", "", "")]:
        if (bucket := _bucket(condition, asked)) and at > since:
            spells.append(Spell(since, at, bucket, cause))
        since = max(since, at)
        if what == "node.moved":
            condition = state
        elif what:
            asked = "" if what == "node.resumed" else what
        cause = why or cause
    return spells


def _bucket(condition: str, asked: str) -> Bucket | None:
    """A node that is switched off in its maintenance is not broken."""
    state, *flags = condition.split("+")
    if asked == MAINTAINED:
        return Bucket.DRAINED
    if state not in UP or NodeFlag.NOT_RESPONDING in flags:
        return Bucket.DOWN
    return Bucket.DRAINED if asked or CLOSED_NODE_FLAGS.intersection(flags) else None
