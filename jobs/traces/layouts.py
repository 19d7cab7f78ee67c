"""The layouts of published trace tables: which column contains what, and the pitfall of each.

A layout is recognized by its header. `words` and `numbers` map our fields to the columns of the source. `finish`
derives run time, GPUs and queueing time from the columns of the source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from jobs.traces.cells import CellParser, parse_megabytes, parse_number, parse_slurm_clock, parse_time, parse_tres_gpus
from jobs.traces.trace import Floats

Columns = dict[str, Floats]
KIND_NAMES = {
    "eval": "evaluation",
    "evaluation": "evaluation",
    "pretrain": "pretrain",
    "sft": "sft",
    "mllm": "mllm",
    "debug": "debug",
    "other": "other",
}


@dataclass(frozen=True, kw_only=True)
class TraceLayout:
    """One table format."""

    name: str
    marks: frozenset[str]  # a header that contains all of these has this layout
    words: Mapping[str, str] = field(default_factory=dict)
    better_words: Mapping[str, str] = field(default_factory=dict)  # columns that replace those, where they are present
    numbers: Mapping[str, tuple[str, CellParser]] = field(default_factory=dict)
    finish: Callable[[Columns], Columns] = dict
    separator: str = ","
    skips: Callable[[str], bool] | None = None  # whether a row with this id is not a job, such as a step in sacct


def _runtime_from_start(columns: Columns) -> Columns:
    """Derive the run time from start and end. `duration` has different meanings, so it is used only where they are
    missing."""
    measured = columns["end"] - columns["start"]
    columns["runtime_s"] = np.where(np.isnan(measured), columns["duration"], measured)
    columns["queue_s"] = np.where(
        np.isnan(columns["queue_s"]), columns["start"] - columns["submit_s"], columns["queue_s"]
    )
    return columns


def _kalos(columns: Columns) -> Columns:
    """Derive the run time for Kalos. There, `duration` is end minus submit, so the queueing time is subtracted."""
    measured = columns["end"] - columns["start"]
    without_queue = columns["duration"] - np.nan_to_num(columns["queue_s"])
    columns["runtime_s"] = np.where(np.isnan(measured), without_queue, measured)
    return columns


def _openb(columns: Columns) -> Columns:
    """Derive times for OpenB. A pod that requests a part of a GPU counts as a whole GPU here, as in most simulators
    that read this trace. `bench/zoo.py` shares GPUs.
    """
    columns["runtime_s"] = columns["end"] - columns["start"]
    columns["queue_s"] = columns["start"] - columns["submit_s"]
    columns["cpus"] = columns["cpus"] / 1000
    return columns


def _sacct(columns: Columns) -> Columns:
    """Use the allocated GPUs and, for running jobs, the elapsed time. `Elapsed` is 0 for jobs that never started."""
    columns["gpus"] = np.where(columns["gpus"] > 0, columns["gpus"], np.nan_to_num(columns["asked_gpus"]))
    columns["duration"] = np.where(np.isnan(columns["start"]), np.nan, columns["duration"])
    return _runtime_from_start(columns)


def _plain(columns: Columns) -> Columns:
    columns["runtime_s"] = columns["duration"]
    return columns


_ACME_COLUMNS = {
    "submit_s": ("submit_time", parse_time),
    "start": ("start_time", parse_time),
    "end": ("end_time", parse_time),
    "duration": ("duration", parse_number),
    "queue_s": ("queue", parse_number),
    "gpus": ("gpu_num", parse_number),
    "nodes": ("node_num", parse_number),
    "cpus": ("cpu_num", parse_number),
}

LAYOUTS = (
    TraceLayout(
        name="kalos",
        marks=frozenset({"job_id", "type", "submit_time", "fail_time", "duration", "queue"}),
        words={"ids": "job_id", "users": "user", "kinds": "type", "states": "state"},
        numbers=_ACME_COLUMNS,
        finish=_kalos,
    ),
    TraceLayout(
        name="seren",
        marks=frozenset({"job_id", "type", "submit_time", "start_time", "duration", "queue"}),
        words={"ids": "job_id", "users": "user", "kinds": "type", "states": "state"},
        numbers=_ACME_COLUMNS,
        finish=_runtime_from_start,
    ),
    TraceLayout(
        name="helios",
        marks=frozenset({"job_id", "vc", "jobname", "submit_time", "duration"}),
        words={"ids": "job_id", "users": "user", "pools": "vc", "names": "jobname", "states": "state"},
        numbers=_ACME_COLUMNS,
        finish=_runtime_from_start,
    ),
    TraceLayout(
        name="openb",
        marks=frozenset({"name", "cpu_milli", "num_gpu", "creation_time", "deletion_time"}),
        words={"ids": "name", "kinds": "qos", "states": "pod_phase"},
        numbers={
            "submit_s": ("creation_time", parse_time),
            "start": ("scheduled_time", parse_time),
            "end": ("deletion_time", parse_time),
            "gpus": ("num_gpu", parse_number),
            "cpus": ("cpu_milli", parse_number),
            "memory_mb": ("memory_mib", parse_number),
        },
        finish=_openb,
    ),
    TraceLayout(
        name="sacct",
        marks=frozenset({"JobID", "Submit", "State"}),
        words={"ids": "JobID", "users": "User", "pools": "Partition", "names": "JobName", "states": "State"},
        better_words={"pools": "Account"},
        numbers={
            "submit_s": ("Submit", parse_time),
            "start": ("Start", parse_time),
            "end": ("End", parse_time),
            "duration": ("Elapsed", parse_slurm_clock),
            "limit_s": ("Timelimit", parse_slurm_clock),
            "gpus": ("AllocTRES", parse_tres_gpus),
            "asked_gpus": ("ReqTRES", parse_tres_gpus),
            "nodes": ("NNodes", parse_number),
            "cpus": ("NCPUS", parse_number),
            "memory_mb": ("ReqMem", parse_megabytes),
        },
        finish=_sacct,
        separator="|",
        skips=lambda job_id: "." in job_id,
    ),
    TraceLayout(
        name="normalised",
        marks=frozenset({"job_id", "submit_ts", "duration_s", "gpu_num"}),
        words={
            "ids": "job_id",
            "users": "user",
            "pools": "group_or_vc",
            "kinds": "type",
            "names": "name",
            "states": "state",
        },
        numbers={
            "submit_s": ("submit_ts", parse_number),
            "duration": ("duration_s", parse_number),
            "queue_s": ("queue_s", parse_number),
            "limit_s": ("timelimit_s", parse_number),
            "deadline_s": ("deadline_ts", parse_number),
            "gpus": ("gpu_num", parse_number),
            "gpu_milli": ("gpu_milli", parse_number),
            "nodes": ("node_num", parse_number),
            "cpus": ("cpu_num", parse_number),
            "memory_mb": ("memory_mib", parse_number),
        },
        finish=_plain,
    ),
)
