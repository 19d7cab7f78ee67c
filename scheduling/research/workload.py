"""Jobs, their speeds and the speeds of pairs, read from CSV files, and the nodes of an option. Pure.

Every error is one sentence that names the file, and the line if there is one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from acmeweb.common.errors import InvalidInput
from jobs.traces.csv_table import CsvTable
from scheduling.research.widths.replay import NodeGroup

JOB_COLUMNS = ("submit_s", "model", "gpus", "steps")
DEADLINE = "deadline_s"  # optional: on the clock of submit_s; empty without one
SPEED_COLUMNS = ("model", "gpu_type", "gpus", "steps_per_s")
PAIR_COLUMNS = ("model1", "model2", "speed1", "speed2")
NODE_GROUP = re.compile(r"(?P<gpu_type>[^=,]+)=(?P<nodes>\d{1,9})x(?P<node_gpus>\d{1,9})")
MAX_GPUS = 100_000
MAX_S = 1e9
MAX_STEPS = 1e15
Row = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class SpeedJob:
    """A job of the workload. `where` is its file and line."""

    where: str
    submit_s: float
    model: str
    gpus: int
    steps: float
    deadline_s: float = math.inf


@dataclass(frozen=True, kw_only=True)
class SpeedTables:
    """The steps per second of each model on each GPU type, by number of GPUs."""

    source: str
    by_type: Mapping[tuple[str, str], Mapping[int, float]]  # (model, GPU type) -> GPUs, ascending -> steps per second

    @property
    def models(self) -> set[str]:
        return {model for model, _ in self.by_type}


@dataclass(frozen=True, kw_only=True)
class PairSpeeds:
    """How fast two models run on the same GPUs, as fractions of their speeds alone. Both orders are there."""

    parts: Mapping[tuple[str, str], float]  # (model, other) -> fraction of the model's speed
    wheres: Mapping[tuple[str, str], str]  # (model, other) -> file and line


@dataclass(frozen=True, kw_only=True)
class Workload:
    jobs: tuple[SpeedJob, ...]  # in order of submission
    speeds: SpeedTables
    pairs: PairSpeeds | None = None


def read_jobs(lines: Iterable[str], source: str) -> tuple[SpeedJob, ...]:
    """The jobs in order of submission."""
    jobs = [_job(row, where) for where, row in _table(lines, source, JOB_COLUMNS, [DEADLINE])]
    if not jobs:
        raise InvalidInput(f"{source} contains no job.")
    return tuple(sorted(jobs, key=lambda job: job.submit_s))


def read_speeds(lines: Iterable[str], source: str) -> SpeedTables:
    tables: dict[tuple[str, str], dict[int, float]] = {}
    for where, row in _table(lines, source, SPEED_COLUMNS):
        table = tables.setdefault((_text(row, "model", where), _text(row, "gpu_type", where)), {})
        gpus = _count(row, "gpus", where)
        if gpus in table:
            raise InvalidInput(f"{where}: the speed of this model on {gpus} GPUs of this type is there twice.")
        table[gpus] = _positive(row, "steps_per_s", where, MAX_STEPS)
    return SpeedTables(source=source, by_type={key: dict(sorted(table.items())) for key, table in tables.items()})


def read_pairs(lines: Iterable[str], source: str) -> PairSpeeds:
    parts: dict[tuple[str, str], float] = {}
    wheres: dict[tuple[str, str], str] = {}
    for where, row in _table(lines, source, PAIR_COLUMNS):
        first, second = _text(row, "model1", where), _text(row, "model2", where)
        if (first, second) in parts:
            raise InvalidInput(f"{where}: the pair {first!r} and {second!r} is there twice.")
        wheres[second, first] = wheres[first, second] = where
        parts[second, first] = _positive(row, "speed2", where, 10.0)
        parts[first, second] = _positive(row, "speed1", where, 10.0)
    return PairSpeeds(parts=parts, wheres=wheres)


def check_pairs(pairs: PairSpeeds, speeds: SpeedTables) -> None:
    models = speeds.models
    for (model, _), where in pairs.wheres.items():
        if model not in models:
            raise InvalidInput(f"{where}: {speeds.source} has no speed of the model {model!r}.")


def check_models(jobs: Sequence[SpeedJob], speeds: SpeedTables) -> None:
    models = speeds.models
    for job in jobs:
        if job.model not in models:
            raise InvalidInput(f"{job.where}: {speeds.source} has no speed of the model {job.model!r}.")


def parse_nodes(text: str) -> tuple[NodeGroup, ...]:
    """The nodes as the option writes them: `V100=4x8,K80=2x4`."""
    groups = tuple(_node_group(part.strip()) for part in text.split(","))
    names = [group.gpu_type for group in groups]
    if len(set(names)) < len(names):
        raise InvalidInput(f"nodes: {text!r} names a GPU type twice.")
    if sum(group.gpus for group in groups) > MAX_GPUS:
        raise InvalidInput(f"nodes: {text!r} are more than {MAX_GPUS:,} GPUs.")
    return groups


def _node_group(text: str) -> NodeGroup:
    found = NODE_GROUP.fullmatch(text)
    if found is None or not int(found["nodes"]) or not int(found["node_gpus"]):
        raise InvalidInput(f"nodes: {text[:40]!r} is not TYPE=NODESxGPUS, such as A100=4x8.")
    return NodeGroup(int(found["nodes"]), int(found["node_gpus"]), found["gpu_type"].strip())


def _table(lines: Iterable[str], source: str, columns: Sequence[str], optional: Sequence[str] = ()) -> CsvTable:
    return CsvTable(lines, source, columns, optional=optional, error=_invalid)


def _invalid(text: str) -> InvalidInput:
    return InvalidInput(f"{text}.")


def _job(row: Row, where: str) -> SpeedJob:
    submit_s = _number(row, "submit_s", where, MAX_S)
    deadline_s = _number(row, DEADLINE, where, MAX_S) if row[DEADLINE] else math.inf
    if deadline_s <= submit_s:
        raise InvalidInput(f"{where}: deadline_s {deadline_s:g} is not after submit_s {submit_s:g}.")
    return SpeedJob(
        where=where,
        submit_s=submit_s,
        model=_text(row, "model", where),
        gpus=_count(row, "gpus", where),
        steps=_positive(row, "steps", where, MAX_STEPS),
        deadline_s=deadline_s,
    )


def _text(row: Row, name: str, where: str) -> str:
    text = row[name]
    if not 0 < len(text) <= 200:
        raise InvalidInput(f"{where}: {name} {text[:40]!r} is not a name.")
    return text


def _number(row: Row, name: str, where: str, most: float) -> float:
    text = row[name]
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= most:
        raise InvalidInput(f"{where}: {name} {text[:40]!r} is not a number from 0 to {most:g}.")
    return value


def _positive(row: Row, name: str, where: str, most: float) -> float:
    value = _number(row, name, where, most)
    if value <= 0:
        raise InvalidInput(f"{where}: {name} must be above 0.")
    return value


def _count(row: Row, name: str, where: str) -> int:
    value = _positive(row, name, where, MAX_GPUS)
    if value != int(value):
        raise InvalidInput(f"{where}: {name} {row[name].strip()[:40]!r} is not a whole number.")
    return int(value)
