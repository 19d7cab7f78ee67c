"""What a team has used of one cluster over time: GPU-hours per day, quota, and decayed usage beside a fair share.

GPU-hours are those of the ledger, decayed usage is that of the scheduler's snapshot. The first counts GPUs as they were
allocated, the second what the jobs requested, from allocation to end. Takes one ledger of one cluster, the cached
snapshot and one statement over the attempts of the period.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from jobs.models import Cluster, Team
from scheduling.core.quotas import QuotaUse
from scheduling.ledger.reads import table as ledger_table
from scheduling.ledger.rules.parts import US_PER_HOUR
from scheduling.models.history import HOUR_S, half_life_s
from scheduling.queries import history
from scheduling.queries.queue_order import queue_states

MAX_HALF_LIVES = 20.0


@dataclass(frozen=True, kw_only=True)
class TeamStanding:
    """A team on a cluster now. `quota` None: it has none. Usage is decayed, in GPU-hours."""

    team: str
    use: QuotaUse
    quota: int | None
    usage: float
    usage_share: float | None  # of the decayed usage of all teams


@dataclass(frozen=True, kw_only=True)
class UsageDay:
    """A day (UTC), or the part of it that is within the period. Usage is that at its end."""

    start: datetime
    end: datetime
    gpu_hours: Mapping[str, float]  # by kind of job
    quota_gpu_hours: float | None
    usage: float
    fair_share: float

    @property
    def total(self) -> float:
        return sum(self.gpu_hours.values())


@dataclass(frozen=True, kw_only=True)
class TeamUsage:
    days: Sequence[UsageDay]

    @property
    def total(self) -> float:
        return sum(day.total for day in self.days)


def team_standings(cluster: Cluster, teams: Collection[str], now: datetime) -> list[TeamStanding]:
    """The teams that use, request or own GPUs of the cluster, those with the most usage first."""
    state = queue_states.of(cluster, now)
    usage = history.account_usage(cluster, now)
    total = sum(usage.values())
    quotas = _quotas(cluster)
    standings = [
        TeamStanding(
            team=team,
            use=state.quota_uses.get((team, None)) or QuotaUse(),
            quota=quotas.get(team),
            usage=usage.get(team, 0.0) / HOUR_S,
            usage_share=usage.get(team, 0.0) / total if total else None,
        )
        for team in teams
        if team in usage or team in quotas or (team, None) in state.quota_uses
    ]
    return sorted(standings, key=lambda one: (-one.usage, one.team))


def _quotas(cluster: Cluster) -> dict[str, int]:
    """The quota of each team: that for all kinds, else the sum of those for single kinds."""
    kinds: dict[str, int] = {}
    whole: dict[str, int] = {}
    for team, kind, gpus in cluster.quotas.filter(gpu_model="").values_list("team__name", "kind", "gpus"):
        target = kinds if kind else whole
        target[team] = target.get(team, 0) + gpus
    return kinds | whole


def team_quota(cluster: Cluster, team: str) -> int | None:
    """The quota of a team in GPUs; None if it has none."""
    return _quotas(cluster).get(team)


def team_usage(cluster: Cluster, team: Team, since: datetime, until: datetime, now: datetime) -> TeamUsage:
    """The usage of a team in a period. `until` must not be after `now`."""
    edges = _day_edges(since, until)
    ledger = ledger_table.period_ledgers(since, until, cluster).ledgers[0]
    held = ledger_table.held_us_by_day(ledger, team.pk)
    own, fair = _decayed_usage(cluster, team.name, edges, now)
    quota = team_quota(cluster, team.name)
    days = [
        UsageDay(
            start=start,
            end=end,
            gpu_hours={kind: us / US_PER_HOUR for kind, us in sorted(held.get(f"{start:%F}", {}).items())},
            quota_gpu_hours=None if quota is None else quota * (end - start).total_seconds() / HOUR_S,
            usage=usage / HOUR_S,
            fair_share=share / HOUR_S,
        )
        for start, end, usage, share in zip(edges, edges[1:], own[1:], fair[1:], strict=False)
    ]
    return TeamUsage(days=days)


def _day_edges(since: datetime, until: datetime) -> list[datetime]:
    """The period, divided at midnights (UTC)."""
    since, until = since.astimezone(UTC), until.astimezone(UTC)
    midnight = since.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    between = []
    while midnight < until:
        between.append(midnight)
        midnight += timedelta(days=1)
    return [since, *between, until]


def _decayed_usage(
    cluster: Cluster, team: str, edges: Sequence[datetime], now: datetime
) -> tuple[list[float], list[float]]:
    """The usage of the team, and the mean usage of all teams with any, at each edge, in GPU-seconds."""
    half_life = half_life_s(cluster)
    lead = timedelta(seconds=MAX_HALF_LIVES * half_life)
    leads = needs_lead((now - edges[0]).total_seconds(), half_life)
    windows = [*([edges[0] - lead] if leads else []), *edges, *([now] if edges[-1] < now else [])]
    used = history.used_per_window(cluster, windows, now)
    present = history.account_usage(cluster, now)
    seconds = [(edge - now).total_seconds() for edge in windows]
    nothing = [0.0] * (len(windows) - 1)
    curves = {
        name: usage_at_edges(present.get(name, 0.0), used.get(name, nothing), seconds, half_life)
        for name in {*present, *used, team}
    }
    first = 1 if leads else 0
    shown = slice(first, first + len(edges))
    teams = len(present) or 1
    mean = [sum(values) / teams for values in zip(*curves.values(), strict=True)]
    return curves[team][shown], mean[shown]


def needs_lead(span_s: float, half_life_s: float) -> bool:
    """Whether the edges must begin `MAX_HALF_LIVES` before the first value that is shown."""
    return span_s > MAX_HALF_LIVES * half_life_s


def usage_at_edges(present: float, used: Sequence[float], edges_s: Sequence[float], half_life_s: float) -> list[float]:
    """Return the decayed usage at each edge. `used` has one value per window between edges: the GPU time of the window,
    decayed to its end. The last edge is the present.

    Usage halves every half-life. Going back from the present value is exact although older attempts were deleted. Over
    more than `MAX_HALF_LIVES` that would amplify rounding errors; then it starts with nothing at the first edge, which
    by the same number of half-lives later makes no difference.
    """
    kept = [0.5 ** ((end - start) / half_life_s) for start, end in pairwise(edges_s)]
    if needs_lead(edges_s[-1] - edges_s[0], half_life_s):
        values = [0.0]
        for part, gain in zip(kept, used, strict=True):
            values.append(values[-1] * part + gain)
        return [*values[:-1], present]
    values = [present]
    for part, gain in zip(reversed(kept), reversed(used), strict=True):
        # After a change of the half-life the present value can be smaller than what was used since
        values.append(max(0.0, (values[-1] - gain) / part))
    return values[::-1]
