"""What may be asked of an evaluation: a suite, a campaign. Request in, checked values out, or BadSpec.

The same for API, form and command line, so all three print the same sentence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jobs import readers
from jobs.readers import BadSpec
from scheduling.evaluation.frameworks import TEMPLATES

MOST_DATASETS = 500
MOST_CHECKPOINTS = 1000
MOST_EVALUATIONS = 50_000
LONGEST_COMMAND = 8000
MOST_PARTS = 1000
SLUG = re.compile(r"[a-z0-9][a-z0-9-]{0,39}", re.ASCII)
DATASET = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:+-]{0,79}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    name: str
    samples: int
    parts: int = MOST_PARTS
    infer: str = ""
    metric: str = ""
    infer_s: float | None = None
    score_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class SuiteSpec:
    name: str
    datasets: tuple[DatasetSpec, ...]
    output_root: str
    infer: str
    title: str = ""
    framework: str = "plain"
    serve: str = ""
    metric: str = ""
    stage_root: str = ""
    gpus: int = 1
    cpus: int = 4
    memory_mb: int = 0
    metric_jobs: int = 16


@dataclass(frozen=True, kw_only=True)
class CampaignSpec:
    checkpoints: tuple[str, ...]
    nodes: int | None = None
    deadline_at: datetime | None = None
    weights_gb: float = 14.0
    again: bool = False


def seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 10**7:
        readers.bad(name, f"is {readers.short(value)}, no number of seconds from 0 to 10000000")
    return float(value)


def gigabytes(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.001 <= value <= 10**5:
        readers.bad(name, f"is {readers.short(value)}, no number of GB from 0.001 to 100000")
    return float(value)


def directory(name: str, value: Any) -> str:
    """An absolute path that is no root of a file system: what lies beneath it is made and removed by jobs."""
    found = readers.path(name, value)
    if len(found) > 250:
        readers.bad(name, "has more than 250 characters")
    return found if not found or found.strip("/") else readers.bad(name, "is the root of the file system")


COMMAND = readers.text(LONGEST_COMMAND, lines=True)

DATASET_READERS: dict[str, readers.Reader] = {
    "name": readers.needed(readers.word(DATASET, "name of a dataset")),
    "samples": readers.whole(1, 10**8),
    "parts": readers.whole(1, MOST_PARTS),
    "infer": COMMAND,
    "metric": COMMAND,
    "infer_s": seconds,
    "score_s": seconds,
}

SUITE_READERS: dict[str, readers.Reader] = {
    "name": readers.needed(readers.word(SLUG, "name: small letters, digits and dashes, at most 40")),
    "title": readers.text(120),
    "framework": readers.one_of(tuple(TEMPLATES)),
    "serve": COMMAND,
    "infer": COMMAND,
    "metric": COMMAND,
    "output_root": directory,
    "stage_root": directory,
    "gpus": readers.whole(0, 64),
    "cpus": readers.whole(1, 1024),
    "memory": readers.memory,
    "metric_jobs": readers.whole(1, 1000),
    "datasets": readers.list_of(lambda name, value: value, MOST_DATASETS),
}

CAMPAIGN_READERS: dict[str, readers.Reader] = {
    "checkpoints": readers.list_of(readers.needed(readers.path), MOST_CHECKPOINTS),
    "nodes": readers.whole(1, 100_000),
    "deadline_at": readers.moment,
    "weights_gb": gigabytes,
    "again": readers.truth,
}


def suite(asked: Mapping[str, Any]) -> SuiteSpec:
    values = readers.read_all(asked, SUITE_READERS, "a suite")
    for name in ("name", "output_root", "datasets"):
        if not values.get(name):
            raise BadSpec(name, "is missing")
    template = TEMPLATES[values.get("framework", "plain")]
    if "memory" in values:
        values["memory_mb"] = values.pop("memory")
    values["infer"] = values.get("infer") or template.infer
    values["metric"] = values.get("metric") or template.metric
    datasets = tuple(_dataset(number, one, template.splits) for number, one in enumerate(values.pop("datasets")))
    names = [one.name for one in datasets]
    for name in names:
        if names.count(name) > 1:
            raise BadSpec("datasets", f"names {name} twice")
    for number, one in enumerate(datasets):
        if not (one.infer or values["infer"]):
            raise BadSpec("infer", f"is missing, and dataset {number + 1} ({one.name}) has none of its own")
    return SuiteSpec(datasets=datasets, **values)


def _dataset(number: int, asked: Any, splits: bool) -> DatasetSpec:
    place = f"datasets[{number + 1}]"
    if not isinstance(asked, Mapping):
        raise BadSpec(place, f"is {readers.kind_of(asked)}, not an object")
    try:
        values = readers.read_all(asked, DATASET_READERS, "a dataset")
    except BadSpec as bad:
        raise BadSpec(f"{place}.{bad.field}", bad.why) from None
    for name in ("name", "samples"):
        if name not in values:
            raise BadSpec(f"{place}.{name}", "is missing")
    if not splits and not values.get("infer"):
        values["parts"] = 1
    return DatasetSpec(**values)


def campaign(asked: Mapping[str, Any]) -> CampaignSpec:
    """`asked` holds only what belongs to the campaign itself: who, where and which suite is somebody else's to read."""
    values = readers.read_all(asked, CAMPAIGN_READERS, "a campaign")
    if "checkpoints" not in values:
        raise BadSpec("checkpoints", "is missing")
    if "nodes" in values and "deadline_at" in values:
        raise BadSpec("nodes", "and deadline_at are two ways to say the same; give one of them")
    values["checkpoints"] = tuple(dict.fromkeys(values["checkpoints"]))
    return CampaignSpec(**values)
