"""Parses and validates requests for suites and campaigns. Raises InvalidField.

API, forms and command line share this module, so they show the same messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from acmeweb.common.errors import InvalidField
from jobs.core import parsing
from scheduling.evaluation.rules.checkpoint_paths import MAX_CAMPAIGN_NAME
from scheduling.evaluation.rules.frameworks import TEMPLATES

MAX_DATASETS = 500
MAX_CHECKPOINTS = 1000
MAX_EVALUATIONS = 50_000
MAX_COMMAND_LENGTH = 8000
MAX_DATASET_PARTS = 1000
SUITE_NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9-]{0,39}", re.ASCII)
DATASET_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:+-]{0,79}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    name: str
    samples: int
    parts: int = MAX_DATASET_PARTS
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
    name: str = ""  # empty: `default_campaign_name`
    nodes: int | None = None
    deadline_at: datetime | None = None
    checkpoint_gb: float = 14.0
    rerun: bool = False


def _amount_reader(unit: str, low: float, high: int) -> Callable[[str, Any], float]:
    def read_amount(name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            why = f"is {parsing.short_repr(value)}; must be a number of {unit} from {low} to {high}"
            parsing.raise_invalid_field(name, why)
        return float(value)

    return read_amount


read_gigabytes = _amount_reader("GB", 0.001, 10**5)


def read_directory(name: str, value: Any) -> str:
    """Read an absolute path other than the root of the file system: jobs create and remove files inside it."""
    path = parsing.read_absolute_path(name, value)
    if len(path) > 250:
        parsing.raise_invalid_field(name, "has more than 250 characters")
    return path if not path or path.strip("/") else parsing.raise_invalid_field(name, "is the root of the file system")


read_command = parsing.text_reader(MAX_COMMAND_LENGTH, lines=True)

DATASET_READERS: dict[str, parsing.FieldReader] = {
    "name": parsing.nonempty_reader(parsing.pattern_reader(DATASET_NAME_PATTERN, "name of a dataset")),
    "samples": parsing.integer_reader(1, 10**8),
    "parts": parsing.integer_reader(1, MAX_DATASET_PARTS),
    "infer": read_command,
    "metric": read_command,
    "infer_s": _amount_reader("seconds", 0, 10**7),
    "score_s": _amount_reader("seconds", 0, 10**7),
}

SUITE_READERS: dict[str, parsing.FieldReader] = {
    "name": parsing.nonempty_reader(
        parsing.pattern_reader(SUITE_NAME_PATTERN, "name: lowercase letters, digits and dashes, at most 40")
    ),
    "title": parsing.text_reader(120),
    "framework": parsing.choice_reader(tuple(TEMPLATES)),
    "serve": read_command,
    "infer": read_command,
    "metric": read_command,
    "output_root": read_directory,
    "stage_root": read_directory,
    "gpus": parsing.integer_reader(0, 64),
    "cpus": parsing.integer_reader(1, 1024),
    "memory": parsing.read_memory_mb,
    "metric_jobs": parsing.integer_reader(1, 1000),
    "datasets": parsing.list_reader(lambda name, value: value, MAX_DATASETS),
}

CAMPAIGN_READERS: dict[str, parsing.FieldReader] = {
    "checkpoints": parsing.list_reader(parsing.nonempty_reader(parsing.read_absolute_path), MAX_CHECKPOINTS),
    "name": parsing.text_reader(MAX_CAMPAIGN_NAME),
    "nodes": parsing.integer_reader(1, 100_000),
    "deadline_at": parsing.read_timestamp,
    "checkpoint_gb": read_gigabytes,
    "rerun": parsing.read_bool,
}


def parse_suite(request: Mapping[str, Any]) -> SuiteSpec:
    values = parsing.read_fields(request, SUITE_READERS, "a suite")
    for name in ("name", "output_root", "datasets"):
        if not values.get(name):
            raise InvalidField(name, "is missing")
    template = TEMPLATES[values.get("framework", "plain")]
    if "memory" in values:
        values["memory_mb"] = values.pop("memory")
    values["infer"] = values.get("infer") or template.infer
    values["metric"] = values.get("metric") or template.metric
    datasets = tuple(
        _parse_dataset(number, dataset, template.splits) for number, dataset in enumerate(values.pop("datasets"))
    )
    names = [dataset.name for dataset in datasets]
    for name in names:
        if names.count(name) > 1:
            raise InvalidField("datasets", f"names {name} twice")
    for number, dataset in enumerate(datasets):
        if not (dataset.infer or values["infer"]):
            raise InvalidField("infer", f"is missing, and dataset {number + 1} ({dataset.name}) does not override it")
    return SuiteSpec(datasets=datasets, **values)


def _parse_dataset(number: int, request: Any, splits: bool) -> DatasetSpec:
    place = f"datasets[{number + 1}]"
    if not isinstance(request, Mapping):
        raise InvalidField(place, f"is {parsing.json_type_name(request)}, not an object")
    try:
        values = parsing.read_fields(request, DATASET_READERS, "a dataset")
    except InvalidField as error:
        raise InvalidField(f"{place}.{error.field}", error.why) from None
    for name in ("name", "samples"):
        if name not in values:
            raise InvalidField(f"{place}.{name}", "is missing")
    if not splits and not values.get("infer"):
        values["parts"] = 1
    return DatasetSpec(**values)


def parse_campaign(request: Mapping[str, Any]) -> CampaignSpec:
    """Parse the campaign's own fields. The caller has already removed the team, the cluster and the suite."""
    values = parsing.read_fields(request, CAMPAIGN_READERS, "a campaign")
    if "checkpoints" not in values:
        raise InvalidField("checkpoints", "is missing")
    if "nodes" in values and "deadline_at" in values:
        raise InvalidField("nodes", "and deadline_at exclude each other; give only one of them")
    values["checkpoints"] = tuple(dict.fromkeys(values["checkpoints"]))
    return CampaignSpec(**values)
