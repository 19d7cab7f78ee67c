"""The ledger as a table by day, team, kind or cluster, with losses and failure rates."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from jobs.core.lifecycle import FINAL_STATES, State
from jobs.models import Cluster, Node, Team
from scheduling.ledger.reads.energy import NO_ENERGY, RowEnergy, energy_by_name, lost_energy
from scheduling.ledger.reads.facts import failures_after
from scheduling.ledger.reads.periods import ClusterLedger, cluster_ledger, moment
from scheduling.ledger.rules import buckets, parts, reliability, report_rows
from scheduling.ledger.rules.buckets import Bucket
from scheduling.ledger.rules.parts import US_PER_DAY, US_PER_HOUR
from scheduling.ledger.rules.reliability import Mttf
from scheduling.power.reads.energy import EnergyRow, energy_document, energy_rows
from scheduling.power.rules.energy_use import EnergyUse, total_use

GROUPINGS = ("day", "team", "kind", "cluster")
MAX_NODES_LISTED = 50


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
    energy: RowEnergy = NO_ENERGY


@dataclass(frozen=True, kw_only=True)
class LedgerTable:
    rows: Sequence[LedgerRow]
    gpu_us: Mapping[Bucket, int]
    costs: Mapping[Bucket, float]
    capacity_us: int
    goodput: float | None
    ettr: float | None
    lost: Mapping[str, int]  # by cause; adds up to the buckets of the group "lost"
    energy: EnergyUse | None  # None: no telemetry of energy or power
    lost_energy: Mapping[str, EnergyUse]  # by cause
    closed: Mapping[str, int]  # by reason; adds up to the buckets of the group "closed"
    mttf: Mttf
    mttf_by_cause: Mapping[str, Mttf]
    mttf_by_model: Mapping[str, Mttf]
    mttf_by_node: Mapping[str, Mttf]  # nodes with failures only, the least reliable first
    outdated: timedelta  # how much of the period is about to change, in the cluster with the most
    left_out: timedelta  # how much of the period is not computed yet, in the cluster with the most


@dataclass(frozen=True, kw_only=True)
class PeriodLedgers:
    """The ledgers of all clusters for one period, from which each table is grouped."""

    since: datetime
    until: datetime
    ledgers: Sequence[ClusterLedger]
    prices: Mapping[str, float | None]
    teams: Mapping[int, str]
    models: Mapping[tuple[str, str], str]  # GPU model by cluster and node
    later_failures: Counter[str]  # by cause, of attempts that were live at the end of the period
    energy: Sequence[EnergyRow] = ()


def _longest(spans_by_cluster: Iterable[Iterable[tuple[int, int]]]) -> timedelta:
    lengths = (sum(end - start for start, end in spans) for spans in spans_by_cluster)
    return timedelta(microseconds=max(lengths, default=0))


def table(
    by: str, since: datetime, until: datetime, teams: Sequence[int] | None = None, cluster: Cluster | None = None
) -> LedgerTable:
    """Return the table over all clusters, or over one. Rows of teams outside `teams` are counted without a name; None:
    all teams are named."""
    return table_of(period_ledgers(since, until, cluster), by, teams)


def period_ledgers(since: datetime, until: datetime, cluster: Cluster | None = None) -> PeriodLedgers:
    """Return the ledgers of all clusters, or of one, for a period. The expensive part of a table: it reads the stored
    hours and days, and computes what is not stored (`periods`)."""
    clusters = [cluster] if cluster else list(Cluster.objects.order_by("name"))
    nodes = Node.objects.filter(cluster__in=clusters).values_list("cluster__name", "name", "gpu_model")
    return PeriodLedgers(
        since=since,
        until=until,
        ledgers=[cluster_ledger(cluster, since, until) for cluster in clusters],
        prices={cluster.name: cluster.gpu_hour_price for cluster in clusters},
        teams=dict(Team.objects.values_list("pk", "name")),
        models={(of, name): model for of, name, model in nodes},
        later_failures=sum((failures_after(cluster, until) for cluster in clusters), Counter()),
        energy=energy_rows(clusters, since, until),
    )


def table_of(period: PeriodLedgers, by: str, teams: Sequence[int] | None = None) -> LedgerTable:
    sums: dict[str, Counter[Bucket]] = defaultdict(Counter)
    costs: dict[str, dict[Bucket, float]] = defaultdict(lambda: defaultdict(float))
    for ledger in period.ledgers:
        price = period.prices[ledger.cluster]
        for name, gpu_us in _sums_by_name(ledger, by, _visible_names(period, teams)).items():
            sums[name].update(gpu_us)
            for bucket, cost in bucket_costs(gpu_us, price).items():
                costs[name][bucket] += cost
    energy = energy_by_name(period.energy, by, _visible_names(period, teams))
    total = parts.total_of(ledger.total for ledger in period.ledgers)
    whole = total.bucket_us
    exposure = reliability.held_gpu_us(whole) / US_PER_HOUR
    failures = total.failures + period.later_failures
    return LedgerTable(
        rows=[
            _ledger_row(by, name, sums[name], costs[name], energy.get(name, NO_ENERGY))
            for name in sorted({*sums, *energy})
        ],
        gpu_us=whole,
        costs=_total_costs(costs.values()),
        capacity_us=total.capacity_us,
        goodput=reliability.goodput(whole, total.capacity_us),
        ettr=reliability.goodput(whole, total.wall_us),
        lost=total.by_cause(reliability.LOST_BUCKETS),
        energy=total_use(row.use for row in period.energy),
        lost_energy=lost_energy(period.ledgers, period.energy),
        closed=total.by_cause(reliability.CLOSED_BUCKETS),
        mttf=reliability.mttf(failures.total(), exposure),
        mttf_by_cause={cause: reliability.mttf(count, exposure) for cause, count in failures.most_common()},
        **_mttf_by_machine(period),
        outdated=_longest(ledger.outdated for ledger in period.ledgers),
        left_out=_longest(ledger.left_out for ledger in period.ledgers),
    )


def _visible_names(period: PeriodLedgers, teams: Sequence[int] | None) -> Mapping[int, str]:
    return {team: name for team, name in period.teams.items() if teams is None or team in teams}


def _sums_by_name(ledger: ClusterLedger, by: str, teams: Mapping[int, str]) -> dict[str, Counter[Bucket]]:
    """Return the sums of one cluster by the name of their row."""
    if by == "cluster":
        return {ledger.cluster: ledger.total.bucket_us}
    if by == "day":
        days = parts.totals_by_step(ledger.parts, US_PER_DAY)
        return {f"{moment(day):%F}": total.bucket_us for day, total in days.items()}
    sums: dict[str, Counter[Bucket]] = defaultdict(Counter)
    for key, gpu_us in ledger.total.gpu_us.items():
        name = teams.get(key.team, "") if key.team is not None else ""
        sums[name if by == "team" or not name else key.kind][key.bucket] += gpu_us
    return sums


def held_us_by_day(ledger: ClusterLedger, team: int) -> dict[str, Counter[str]]:
    """Return the allocated GPU time of a team by day (UTC) and kind of job."""
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for day, total in parts.totals_by_step(ledger.parts, US_PER_DAY).items():
        for key, gpu_us in total.gpu_us.items():
            if key.team == team:
                sums[f"{moment(day):%F}"][key.kind] += gpu_us
    return sums


def bucket_costs(gpu_us: Mapping[Bucket, int], price: float | None) -> dict[Bucket, float]:
    """Return the costs by bucket. Empty without a price."""
    return {} if price is None else {bucket: price * size / US_PER_HOUR for bucket, size in gpu_us.items()}


def _total_costs(rows: Iterable[Mapping[Bucket, float]]) -> dict[Bucket, float]:
    costs: dict[Bucket, float] = defaultdict(float)
    for row in rows:
        for bucket, cost in row.items():
            costs[bucket] += cost
    return costs


def _mttf_by_machine(period: PeriodLedgers) -> dict[str, Mapping[str, Mttf]]:
    """Return the MTTF by model and by node, from hardware failures and allocated hours."""
    held: Counter[tuple[str, str]] = Counter()
    broken: Counter[tuple[str, str]] = Counter()
    for ledger in period.ledgers:
        total = ledger.total
        for node, gpu_us in total.held_us.items():
            held[period.models.get((ledger.cluster, node), ""), f"{ledger.cluster}/{node}"] += gpu_us
        for node, _ in total.broken:
            broken[period.models.get((ledger.cluster, node), ""), f"{ledger.cluster}/{node}"] += 1
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


def _ledger_row(
    by: str, name: str, sums: Counter[Bucket], costs: Mapping[Bucket, float], energy: RowEnergy
) -> LedgerRow:
    whole = sum(sums.values()) if by in ("day", "cluster") else reliability.held_gpu_us(sums)
    return LedgerRow(name=name, gpu_us=sums, goodput=reliability.goodput(sums, whole), costs=costs, energy=energy)


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
        "outdated_s": ledger.outdated.total_seconds(),
        "left_out_s": ledger.left_out.total_seconds(),
        "rows": [_row_document(row) for row in ledger.rows],
        **energy_document(ledger.energy),
        "lost": [
            {"cause": cause, "gpu_hours": part / US_PER_HOUR, "kwh": kwh(ledger.lost_energy.get(cause))}
            for cause, part in ledger.lost.items()
        ],
        "closed": [{"reason": reason, "gpu_hours": part / US_PER_HOUR} for reason, part in ledger.closed.items()],
        "mttf": _mttf("", ledger.mttf),
        "mttf_by_cause": [_mttf(cause, mttf) for cause, mttf in ledger.mttf_by_cause.items()],
        "mttf_by_model": [_mttf(name, mttf, "model") for name, mttf in ledger.mttf_by_model.items()],
        "mttf_by_node": [_mttf(name, mttf, "node") for name, mttf in ledger.mttf_by_node.items()],
    }


def _row_document(row: LedgerRow) -> dict[str, Any]:
    cost = report_rows.total_cost(row.costs)
    return {"name": row.name, "gpu_hours": _hours(row.gpu_us), "goodput": row.goodput, "cost": cost} | (
        energy_document(row.energy.all)
    )


def kwh(use: EnergyUse | None) -> float | None:
    return None if use is None else use.kwh


def _hours(gpu_us: Mapping[Bucket, int]) -> dict[str, float]:
    return {bucket.value: gpu_us.get(bucket, 0) / US_PER_HOUR for bucket in Bucket}


def _mttf(name: str, mttf: Mttf, of: str = "cause") -> dict[str, Any]:
    limits = {"mean": mttf.mean, "low": mttf.low, "high": mttf.high}
    return {of: name, "failures": mttf.failures, "gpu_hours_held": mttf.exposure, **limits}
