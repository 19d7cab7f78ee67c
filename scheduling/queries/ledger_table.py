"""The ledger as a table: by day, team, kind or cluster, with what was lost and how often machines fail."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from jobs.core.lifecycle import FINAL_STATES
from jobs.models import Cluster
from scheduling.ledger import buckets, reliability, report_rows
from scheduling.ledger.buckets import Bucket, LedgerEntry
from scheduling.ledger.reliability import Mttf
from scheduling.queries.ledger_facts import US_PER_HOUR, ClusterLedger, cluster_ledger, unix_microseconds

GROUPINGS = ("day", "team", "kind", "cluster")
MAX_NODES_LISTED = 50


def cause_label(cause: str) -> str:
    """What GPU-hours were lost to: until a failure has its diagnosis, its state is all that is known."""
    if not cause:
        return "what nobody knows yet"
    return f"failures without a diagnosis ({cause})" if cause in {str(state) for state in FINAL_STATES} else cause


@dataclass(frozen=True, kw_only=True)
class LedgerRow:
    name: str
    gpu_us: Mapping[Bucket, int]
    goodput: float | None
    costs: Mapping[Bucket, float]  # of clusters that have a price; empty where none has


@dataclass(frozen=True, kw_only=True)
class LedgerTable:
    rows: Sequence[LedgerRow]
    gpu_us: Mapping[Bucket, int]
    costs: Mapping[Bucket, float]
    capacity_us: int
    goodput: float | None
    ettr: float | None
    lost: Mapping[str, int]
    mttf: Mttf
    mttf_by_cause: Mapping[str, Mttf]
    mttf_by_model: Mapping[str, Mttf]
    mttf_by_node: Mapping[str, Mttf]  # that failed at all, the worst first


def table(by: str, since: datetime, until: datetime, teams: Sequence[int] | None = None) -> LedgerTable:
    """Of all clusters. Work of other `teams` counts, without their name; None: all teams may be named."""
    clusters = list(Cluster.objects.order_by("name"))
    accounts = [cluster_ledger(cluster, since, until) for cluster in clusters]
    prices = {cluster.name: cluster.gpu_hour_price for cluster in clusters}
    sums: dict[str, Counter[Bucket]] = defaultdict(Counter)
    costs: dict[str, dict[Bucket, float]] = defaultdict(lambda: defaultdict(float))
    lost: Counter[str] = Counter()
    for one in accounts:
        for piece in buckets.split_entries(one.pieces, utc_midnights(since, until)) if by == "day" else one.pieces:
            name = _group_name(by, one, piece, teams)
            sums[name][piece.bucket] += piece.gpu_us
            if (price := prices[one.cluster]) is not None:
                costs[name][piece.bucket] += price * piece.gpu_us / US_PER_HOUR
        for (cause, _), part in reliability.lost_by_cause(one.pieces).items():
            lost[cause] += part
    whole = sum(sums.values(), Counter())
    capacity = sum(one.capacity_us for one in accounts)
    runs = [run for one in accounts for found in one.runs.values() for run in found]
    exposure = reliability.held_gpu_us(whole) / US_PER_HOUR
    failures = sum((one.failures for one in accounts), Counter())
    return LedgerTable(
        rows=[_ledger_row(by, name, sums[name], costs[name]) for name in sorted(sums)],
        gpu_us=whole,
        costs=_total_costs(costs.values()),
        capacity_us=capacity,
        goodput=reliability.goodput(whole, capacity),
        ettr=reliability.ettr(whole, runs, unix_microseconds(since), unix_microseconds(until)),
        lost=dict(lost.most_common()),
        mttf=reliability.mttf(failures.total(), exposure),
        mttf_by_cause={cause: reliability.mttf(count, exposure) for cause, count in failures.most_common()},
        **_mttf_by_machine(accounts),
    )


def bucket_costs(gpu_us: Mapping[Bucket, int], price: float | None) -> dict[Bucket, float]:
    """What they cost, where a GPU-hour has a price."""
    return {} if price is None else {bucket: price * size / US_PER_HOUR for bucket, size in gpu_us.items()}


def _total_costs(found: Iterable[Mapping[Bucket, float]]) -> dict[Bucket, float]:
    costs: dict[Bucket, float] = defaultdict(float)
    for one in found:
        for bucket, cost in one.items():
            costs[bucket] += cost
    return costs


def _mttf_by_machine(accounts: Iterable[ClusterLedger]) -> dict[str, Mapping[str, Mttf]]:
    """Only what was the machine's fault, by the hours that jobs held it."""
    held: Counter[tuple[str, str]] = Counter()
    broken: Counter[tuple[str, str]] = Counter()
    for one in accounts:
        for piece in one.pieces:
            if piece.attempt is not None:
                held[one.models.get(piece.node, ""), f"{one.cluster}/{piece.node}"] += piece.gpu_us
        for node, count in one.broken.items():
            broken[one.models.get(node, ""), f"{one.cluster}/{node}"] += count
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


def _group_name(by: str, account: ClusterLedger, piece: LedgerEntry, teams: Sequence[int] | None) -> str:
    if by == "cluster":
        return account.cluster
    if by == "day":
        return f"{datetime.fromtimestamp(piece.start // 1_000_000, UTC):%F}"
    mine = account.whose.get(piece.attempt) if piece.attempt is not None else None
    if mine is None or (teams is not None and mine.team not in teams):
        return ""
    return mine.team_name if by == "team" else mine.kind


def utc_midnights(since: datetime, until: datetime) -> list[int]:
    """UTC, as everything that is stored."""
    first = since.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    days = range((until - first).days + 1)
    return [unix_microseconds(first + timedelta(days=day)) for day in days]


def ledger_document(found: LedgerTable, by: str, since: datetime, until: datetime) -> dict[str, Any]:
    """The table as the API and the command tell it, in GPU-hours."""
    return {
        "from": since.isoformat(),
        "to": until.isoformat(),
        "by": by,
        "version": buckets.VERSION,
        "capacity_gpu_hours": found.capacity_us / US_PER_HOUR,
        "gpu_hours": _hours(found.gpu_us),
        "goodput": found.goodput,
        "ettr": found.ettr,
        "cost": report_rows.total_cost(found.costs),
        "rows": [_row_document(row) for row in found.rows],
        "lost": [{"cause": cause, "gpu_hours": part / US_PER_HOUR} for cause, part in found.lost.items()],
        "mttf": _mttf("", found.mttf),
        "mttf_by_cause": [_mttf(cause, one) for cause, one in found.mttf_by_cause.items()],
        "mttf_by_model": [_mttf(name, one, "model") for name, one in found.mttf_by_model.items()],
        "mttf_by_node": [_mttf(name, one, "node") for name, one in found.mttf_by_node.items()],
    }


def _row_document(row: LedgerRow) -> dict[str, Any]:
    cost = report_rows.total_cost(row.costs)
    return {"name": row.name, "gpu_hours": _hours(row.gpu_us), "goodput": row.goodput, "cost": cost}


def _hours(gpu_us: Mapping[Bucket, int]) -> dict[str, float]:
    return {bucket.value: gpu_us.get(bucket, 0) / US_PER_HOUR for bucket in Bucket}


def _mttf(name: str, one: Mttf, of: str = "cause") -> dict[str, Any]:
    limits = {"mean": one.mean, "low": one.low, "high": one.high}
    return {of: name, "failures": one.failures, "gpu_hours_held": one.exposure, **limits}
