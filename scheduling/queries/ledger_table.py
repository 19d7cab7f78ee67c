"""The ledger as a table by day, team, kind or cluster, with losses and failure rates."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any

from jobs.core.lifecycle import FINAL_STATES, State
from jobs.models import Cluster
from scheduling.ledger import buckets, reliability, report_rows
from scheduling.ledger.buckets import Bucket
from scheduling.ledger.reliability import Mttf
from scheduling.queries.ledger_facts import (
    US_PER_HOUR,
    AttemptOwner,
    ClusterLedger,
    cluster_ledger,
    unix_microseconds,
)

GROUPINGS = ("day", "team", "kind", "cluster")
MAX_NODES_LISTED = 50
WINDOW, ATTEMPT = attrgetter("window"), attrgetter("attempt")


def cause_label(cause: str) -> str:
    """Return the label of a cause of lost GPU-hours. Before a failure is diagnosed, only its state is known."""
    if not cause:
        return "unknown causes"
    if cause == State.PREEMPTED:
        return "preemption"
    return f"undiagnosed failures ({cause})" if cause in {str(state) for state in FINAL_STATES} else cause


def reason_label(reason: str) -> str:
    """Return the label of a reason for which nodes were drained or down."""
    return reason or "no reason given"


@dataclass(frozen=True, kw_only=True)
class LedgerRow:
    name: str
    gpu_us: Mapping[Bucket, int]
    goodput: float | None
    costs: Mapping[Bucket, float]  # clusters with a price only; empty if none has one


@dataclass(frozen=True, kw_only=True)
class LedgerTable:
    rows: Sequence[LedgerRow]
    gpu_us: Mapping[Bucket, int]
    costs: Mapping[Bucket, float]
    capacity_us: int
    goodput: float | None
    ettr: float | None
    lost: Mapping[str, int]  # by cause; adds up to the buckets of the group "lost"
    closed: Mapping[str, int]  # by reason; adds up to the buckets of the group "closed"
    mttf: Mttf
    mttf_by_cause: Mapping[str, Mttf]
    mttf_by_model: Mapping[str, Mttf]
    mttf_by_node: Mapping[str, Mttf]  # nodes with failures only, the least reliable first


@dataclass(frozen=True, kw_only=True)
class PeriodLedgers:
    """The ledgers of all clusters for one period, from which each table is grouped."""

    since: datetime
    until: datetime
    ledgers: Sequence[ClusterLedger]
    prices: Mapping[str, float | None]


def table(
    by: str, since: datetime, until: datetime, teams: Sequence[int] | None = None, cluster: Cluster | None = None
) -> LedgerTable:
    """Return the table over all clusters, or over one. Rows of teams outside `teams` are counted without a name; None:
    all teams are named."""
    return table_of(period_ledgers(since, until, cluster), by, teams)


def period_ledgers(since: datetime, until: datetime, cluster: Cluster | None = None) -> PeriodLedgers:
    """Return the ledgers of all clusters, or of one, for a period, with a window per day. The expensive part of a
    table."""
    clusters = [cluster] if cluster else list(Cluster.objects.order_by("name"))
    midnights = utc_midnights(since, until)
    return PeriodLedgers(
        since=since,
        until=until,
        ledgers=[cluster_ledger(cluster, since, until, midnights) for cluster in clusters],
        prices={cluster.name: cluster.gpu_hour_price for cluster in clusters},
    )


def table_of(period: PeriodLedgers, by: str, teams: Sequence[int] | None = None) -> LedgerTable:
    sums: dict[str, Counter[Bucket]] = defaultdict(Counter)
    costs: dict[str, dict[Bucket, float]] = defaultdict(lambda: defaultdict(float))
    lost: Counter[str] = Counter()
    closed: Counter[str] = Counter()
    for ledger in period.ledgers:
        price = period.prices[ledger.cluster]
        for name, gpu_us in _sums_by_name(ledger, by, teams).items():
            sums[name] += gpu_us
            for bucket, cost in bucket_costs(gpu_us, price).items():
                costs[name][bucket] += cost
        lost += reliability.gpu_us_by_cause(ledger.entries, reliability.LOST_BUCKETS)
        closed += reliability.gpu_us_by_cause(ledger.entries, reliability.CLOSED_BUCKETS)
    whole = sum(sums.values(), Counter())
    capacity = sum(ledger.capacity_us for ledger in period.ledgers)
    runs = [run for ledger in period.ledgers for run in ledger.all_runs]
    exposure = reliability.held_gpu_us(whole) / US_PER_HOUR
    failures = sum((ledger.failures for ledger in period.ledgers), Counter())
    return LedgerTable(
        rows=[_ledger_row(by, name, sums[name], costs[name]) for name in sorted(sums)],
        gpu_us=whole,
        costs=_total_costs(costs.values()),
        capacity_us=capacity,
        goodput=reliability.goodput(whole, capacity),
        ettr=reliability.ettr(whole, runs, unix_microseconds(period.since), unix_microseconds(period.until)),
        lost=dict(lost.most_common()),
        closed=dict(closed.most_common()),
        mttf=reliability.mttf(failures.total(), exposure),
        mttf_by_cause={cause: reliability.mttf(count, exposure) for cause, count in failures.most_common()},
        **_mttf_by_machine(period.ledgers),
    )


def _sums_by_name(ledger: ClusterLedger, by: str, teams: Sequence[int] | None) -> dict[str, Counter[Bucket]]:
    """Return the sums of one cluster by the name of their row. Entries are summed by their key before keys get names,
    because there are a hundred times as many entries as keys."""
    if by == "cluster":
        return {ledger.cluster: buckets.sum_by_key(ledger.entries, lambda _: None).get(None, Counter())}
    if by == "day":
        days = [f"{datetime.fromtimestamp(edge // 1_000_000, UTC):%F}" for edge in ledger.edges]
        return {days[window]: part for window, part in buckets.sum_by_key(ledger.entries, WINDOW).items()}
    sums: dict[str, Counter[Bucket]] = defaultdict(Counter)
    for attempt, part in buckets.sum_by_key(ledger.entries, ATTEMPT).items():
        sums[_owner_name(ledger.whose.get(attempt) if attempt is not None else None, by, teams)] += part
    return sums


def held_us_by_day(ledger: ClusterLedger, team: int) -> dict[str, Counter[str]]:
    """Return the allocated GPU time of a team by day (UTC) and kind of job."""
    days = [f"{datetime.fromtimestamp(edge // 1_000_000, UTC):%F}" for edge in ledger.edges]
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for entry in ledger.entries:
        owner = ledger.whose.get(entry.attempt) if entry.attempt is not None else None
        if owner and owner.team == team:
            sums[days[entry.window]][owner.kind] += entry.gpu_us
    return sums


def _owner_name(owner: AttemptOwner | None, by: str, teams: Sequence[int] | None) -> str:
    if owner is None or (teams is not None and owner.team not in teams):
        return ""
    return owner.team_name if by == "team" else owner.kind


def bucket_costs(gpu_us: Mapping[Bucket, int], price: float | None) -> dict[Bucket, float]:
    """Return the costs by bucket. Empty without a price."""
    return {} if price is None else {bucket: price * size / US_PER_HOUR for bucket, size in gpu_us.items()}


def _total_costs(rows: Iterable[Mapping[Bucket, float]]) -> dict[Bucket, float]:
    costs: dict[Bucket, float] = defaultdict(float)
    for row in rows:
        for bucket, cost in row.items():
            costs[bucket] += cost
    return costs


def _mttf_by_machine(ledgers: Iterable[ClusterLedger]) -> dict[str, Mapping[str, Mttf]]:
    """Return the MTTF by model and by node, from hardware failures and allocated hours."""
    held: Counter[tuple[str, str]] = Counter()
    broken: Counter[tuple[str, str]] = Counter()
    for ledger in ledgers:
        by_node: Counter[str] = Counter()
        for entry in ledger.entries:
            if entry.attempt is not None:
                by_node[entry.node] += entry.gpu_us
        for node, gpu_us in by_node.items():
            held[ledger.models.get(node, ""), f"{ledger.cluster}/{node}"] += gpu_us
        for node, count in ledger.broken.items():
            broken[ledger.models.get(node, ""), f"{ledger.cluster}/{node}"] += count
    by_model = {model: (_model_total(broken, model), _model_total(held, model)) for model in {key[0] for key in held}}
    worst = sorted(broken, key=lambda key: (held[key] / broken[key], key))[:MAX_NODES_LISTED]
    return {
        "mttf_by_model": {
            model: reliability.mttf(count, us_held / US_PER_HOUR)
            for model, (count, us_held) in sorted(by_model.items())
        },
        "mttf_by_node": {key[1]: reliability.mttf(broken[key], held[key] / US_PER_HOUR) for key in worst},
    }


def _model_total(sums: Mapping[tuple[str, str], int], model: str) -> int:
    return sum(count for (of, _), count in sums.items() if of == model)


def _ledger_row(by: str, name: str, sums: Counter[Bucket], costs: Mapping[Bucket, float]) -> LedgerRow:
    whole = sum(sums.values()) if by in ("day", "cluster") else reliability.held_gpu_us(sums)
    return LedgerRow(name=name, gpu_us=sums, goodput=reliability.goodput(sums, whole), costs=costs)


def utc_midnights(since: datetime, until: datetime) -> list[int]:
    """Return the midnights (UTC) from the day of `since` to the day of `until`."""
    first = since.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    days = range((until - first).days + 1)
    return [unix_microseconds(first + timedelta(days=day)) for day in days]


def ledger_document(ledger: LedgerTable, by: str, since: datetime, until: datetime) -> dict[str, Any]:
    """Return the table as the API and the command output it, in GPU-hours."""
    return {
        "from": since.isoformat(),
        "to": until.isoformat(),
        "by": by,
        "version": buckets.VERSION,
        "capacity_gpu_hours": ledger.capacity_us / US_PER_HOUR,
        "gpu_hours": _hours(ledger.gpu_us),
        "goodput": ledger.goodput,
        "ettr": ledger.ettr,
        "cost": report_rows.total_cost(ledger.costs),
        "rows": [_row_document(row) for row in ledger.rows],
        "lost": [{"cause": cause, "gpu_hours": part / US_PER_HOUR} for cause, part in ledger.lost.items()],
        "closed": [{"reason": reason, "gpu_hours": part / US_PER_HOUR} for reason, part in ledger.closed.items()],
        "mttf": _mttf("", ledger.mttf),
        "mttf_by_cause": [_mttf(cause, mttf) for cause, mttf in ledger.mttf_by_cause.items()],
        "mttf_by_model": [_mttf(name, mttf, "model") for name, mttf in ledger.mttf_by_model.items()],
        "mttf_by_node": [_mttf(name, mttf, "node") for name, mttf in ledger.mttf_by_node.items()],
    }


def _row_document(row: LedgerRow) -> dict[str, Any]:
    cost = report_rows.total_cost(row.costs)
    return {"name": row.name, "gpu_hours": _hours(row.gpu_us), "goodput": row.goodput, "cost": cost}


def _hours(gpu_us: Mapping[Bucket, int]) -> dict[str, float]:
    return {bucket.value: gpu_us.get(bucket, 0) / US_PER_HOUR for bucket in Bucket}


def _mttf(name: str, mttf: Mttf, of: str = "cause") -> dict[str, Any]:
    limits = {"mean": mttf.mean, "low": mttf.low, "high": mttf.high}
    return {of: name, "failures": mttf.failures, "gpu_hours_held": mttf.exposure, **limits}
