"""Nodes of several GPU models in a replay, what its jobs request of them, and how fast jobs of each name are on each.

The run times of the trace are those on the first model of the request.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from acmeweb.common.errors import InvalidField
from jobs.core.gpu_models import HARDWARE_NAME, SEPARATOR, gpu_models, read_gpu_models
from jobs.traces.trace import EncodedColumn
from scheduling.engine.cluster import ResourceRequest
from scheduling.engine.gpu_speeds import MAX_SPEED, MIN_SPEED, GpuSpeeds, SpeedEntry, SpeedScope

MAX_JOB_NAME = 120  # on a live cluster


@dataclass(frozen=True, kw_only=True)
class ReplayGpuTypes:
    """`nodes` are models and numbers of nodes, in the order of the nodes. `requested` is that of every job."""

    nodes: tuple[tuple[str, int], ...]
    requested: str
    speeds: tuple[SpeedEntry, ...] = ()

    @property
    def node_models(self) -> list[str]:
        """The model of each node."""
        return [model for model, count in self.nodes for _ in range(count)]

    @property
    def widest(self) -> int:
        """The most nodes of a model that jobs accept: none is wider, because a job never mixes models."""
        accepted = gpu_models(self.requested)
        return max((count for model, count in self.nodes if model in accepted), default=0)

    def slowdowns(self, name: str) -> tuple[float, ...]:
        """Those of jobs with this name."""
        return GpuSpeeds(table=self.speeds).slowdowns(SpeedScope("", name[:MAX_JOB_NAME], 0), self.requested)

    def codes(self, names: EncodedColumn) -> list[int]:
        """A number per word of the column, equal for words with equal slowdowns."""
        numbers: dict[tuple[float, ...], int] = {}
        return [numbers.setdefault(self.slowdowns(name), len(numbers)) for name in names.words]

    def longest(self, names: Sequence[str]) -> list[float]:
        """By how much each of these jobs runs longer on its slowest model."""
        return [max(self.slowdowns(name), default=1.0) for name in names]

    def completed(self, need: ResourceRequest, name: str) -> ResourceRequest:
        """The request with its GPU models and the slowdowns of jobs with this name; unchanged without whole GPUs."""
        return replace(need, gpu_model=self.requested, slowdowns=self.slowdowns(name)) if need.gpus else need


def parse_gpu_types(text: str, requested: str, rows: Iterable[Mapping[str, object]]) -> ReplayGpuTypes:
    """The types from the options of `simulate`: `h100=4,a100=8`, `h100|a100`, and rows of speeds, which may say in
    `where` what errors call them. Raises `InvalidField`.
    """
    nodes = tuple(_model_count(part) for part in text.split(","))
    models = [model for model, _ in nodes]
    if len(set(models)) < len(models):
        raise InvalidField("gpu_types", f"{text[:80]} has a model twice")
    try:
        read_gpu_models("gpu_model", requested)
    except InvalidField as error:
        raise InvalidField("gpu_model", error.why) from None
    if unknown := [model for model in gpu_models(requested) if model not in models]:
        raise InvalidField("gpu_model", f"{unknown[0]} is not one of {', '.join(models)}")
    return ReplayGpuTypes(nodes=nodes, requested=requested or SEPARATOR.join(models), speeds=_read_speeds(rows, models))


def _read_speeds(rows: Iterable[Mapping[str, object]], models: Container[str]) -> tuple[SpeedEntry, ...]:
    speeds: dict[tuple[str, str], SpeedEntry] = {}
    for number, row in enumerate(rows):
        where = str(row.get("where", f"entry {number}"))
        speed = _speed_entry(where, row, models)
        if (key := (speed.pattern, speed.gpu_model)) in speeds:
            text = f"{where}: {speed.pattern[:40]} has a speed on {speed.gpu_model} already."
            raise InvalidField("gpu_speeds", text)
        speeds[key] = speed
    return tuple(speeds.values())


def _model_count(part: str) -> tuple[str, int]:
    model, _, count = part.strip().partition("=")
    if not HARDWARE_NAME.fullmatch(model) or not (count.isascii() and count.isdigit() and 0 < int(count) < 10**6):
        raise InvalidField("gpu_types", f"{part[:40]!r} is not a GPU model with its number of nodes, such as h100=4")
    return model, int(count)


def _speed_entry(where: str, row: Mapping[str, object], models: Container[str]) -> SpeedEntry:
    pattern, model, text = (str(row.get(name) or "") for name in ("pattern", "gpu_model", "speed"))
    if not pattern:
        raise InvalidField("gpu_speeds", f"{where}: pattern is empty")
    if model not in models:
        raise InvalidField("gpu_speeds", f"{where}: no node has {model[:40]!r}")
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not MIN_SPEED <= speed <= MAX_SPEED:  # false for NaN too
        why = f"{where}: {text[:40]!r} is not a speed between {MIN_SPEED:g} and {MAX_SPEED:g}"
        raise InvalidField("gpu_speeds", why)
    return SpeedEntry(pattern=pattern, gpu_model=model, speed=speed)
