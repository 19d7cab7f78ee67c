"""The energy beside the GPU-hours of a ledger: by the same rows, and lost to the same causes.

Energy is known by attempt and hour, not by bucket. What was lost to a cause is the energy of each team and kind on a
day in proportion to its GPU time, so it assumes that lost time drew as much power as the rest of it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scheduling.ledger.reads.periods import ClusterLedger, moment
from scheduling.ledger.rules import parts
from scheduling.ledger.rules.reliability import LOST_BUCKETS
from scheduling.power.reads.energy import EnergyRow
from scheduling.power.rules.energy_use import EnergyUse, total_use

EnergyOwner = tuple[str, str, int | None, str]  # cluster, day, team, kind


@dataclass(frozen=True, kw_only=True)
class RowEnergy:
    """The energy of one row of a table: of GPUs that jobs held, and of GPUs that no job held."""

    held: EnergyUse | None = None
    unallocated: EnergyUse | None = None

    @property
    def all(self) -> EnergyUse | None:
        return total_use(use for use in (self.held, self.unallocated) if use)


NO_ENERGY = RowEnergy()


def energy_by_name(rows: Iterable[EnergyRow], by: str, teams: Mapping[int, str]) -> dict[str, RowEnergy]:
    """Return the energy by the names that the rows of the ledger have."""
    held: dict[str, list[EnergyUse]] = defaultdict(list)
    unallocated: dict[str, list[EnergyUse]] = defaultdict(list)
    for row in rows:
        (unallocated if row.team is None else held)[_row_name(row, by, teams)].append(row.use)
    return {
        name: RowEnergy(held=total_use(held[name]), unallocated=total_use(unallocated[name]))
        for name in {*held, *unallocated}
    }


def _row_name(row: EnergyRow, by: str, teams: Mapping[int, str]) -> str:
    if by == "cluster":
        return row.cluster
    if by == "day":
        return row.day
    team = teams.get(row.team, "") if row.team is not None else ""
    return team if by == "team" or not team else row.kind


def lost_energy(ledgers: Sequence[ClusterLedger], rows: Iterable[EnergyRow]) -> dict[str, EnergyUse]:
    """Return the energy lost to failures and preemption by cause, the most first."""
    shares = _lost_shares(ledgers)
    lost: dict[str, list[EnergyUse]] = defaultdict(list)
    for row in rows:
        for cause, share in shares.get((row.cluster, row.day, row.team, row.kind), {}).items():
            lost[cause].append(row.use.share(share))
    sums = {cause: total for cause, uses in lost.items() if (total := total_use(uses))}
    return dict(sorted(sums.items(), key=lambda entry: -entry[1].kwh))


def _lost_shares(ledgers: Sequence[ClusterLedger]) -> dict[EnergyOwner, dict[str, float]]:
    """Return how much of its GPU time each team and kind lost to each cause, by cluster and day."""
    held: Counter[EnergyOwner] = Counter()
    lost: dict[EnergyOwner, Counter[str]] = defaultdict(Counter)
    for ledger in ledgers:
        for start, total in parts.totals_by_step(ledger.parts, parts.US_PER_DAY).items():
            for key, gpu_us in total.gpu_us.items():
                if key.team is None:
                    continue
                owner = ledger.cluster, f"{moment(start):%F}", key.team, key.kind
                held[owner] += gpu_us
                if key.bucket in LOST_BUCKETS:
                    lost[owner][key.cause] += gpu_us
    return {
        owner: {cause: size / held[owner] for cause, size in causes.items()}
        for owner, causes in lost.items()
        if held[owner]
    }
