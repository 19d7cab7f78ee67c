"""The tables that people publish: which column holds what, and each one's trap.

A layout is known by its header. `columns` maps our fact to the names a source may give it, best first; `finish` makes
the run time, GPUs and queueing time of what the source has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from jobs.traces.cells import Parse, clock, gpus_of_tres, megabytes, moment, number
from jobs.traces.trace import Floats

Columns = dict[str, Floats]
KINDS = {
    "eval": "evaluation",
    "evaluation": "evaluation",
    "pretrain": "pretrain",
    "sft": "sft",
    "mllm": "mllm",
    "debug": "debug",
    "other": "other",
}


@dataclass(frozen=True, kw_only=True)
class Layout:
    name: str
    marks: frozenset[str]  # a header with all of these is of this layout
    words: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, tuple[str, Parse]] = field(default_factory=dict)
    finish: Callable[[Columns], Columns] = dict
    separator: str = ","
    skips: Callable[[str], bool] | None = None  # ids of rows that are no jobs, as the steps of sacct


def _from_start(columns: Columns) -> Columns:
    """Start and end say the run time, whatever `duration` means here; duration only where they are missing."""
    measured = columns["end"] - columns["start"]
    columns["runtime_s"] = np.where(np.isnan(measured), columns["duration"], measured)
    columns["queue_s"] = np.where(
        np.isnan(columns["queue_s"]), columns["start"] - columns["submit_s"], columns["queue_s"]
    )
    return columns


def _kalos(columns: Columns) -> Columns:
    """The trap of Kalos: `duration` is end minus submit, so the queueing must be taken out of it."""
    measured = columns["end"] - columns["start"]
    without_queue = columns["duration"] - np.nan_to_num(columns["queue_s"])
    columns["runtime_s"] = np.where(np.isnan(measured), without_queue, measured)
    return columns


def _openb(columns: Columns) -> Columns:
    """A pod asks for whole GPUs or a part of one; a part holds the GPU whole here, as nothing of ours shares one."""
    columns["runtime_s"] = columns["end"] - columns["start"]
    columns["queue_s"] = columns["start"] - columns["submit_s"]
    columns["cpus"] = columns["cpus"] / 1000
    return columns


def _sacct(columns: Columns) -> Columns:
    """What was allocated, and for what runs still the time so far; `Elapsed` is 0 for what never started."""
    columns["gpus"] = np.where(columns["gpus"] > 0, columns["gpus"], np.nan_to_num(columns["asked_gpus"]))
    columns["duration"] = np.where(np.isnan(columns["start"]), np.nan, columns["duration"])
    return _from_start(columns)


def _plain(columns: Columns) -> Columns:
    columns["runtime_s"] = columns["duration"]
    return columns


_ACME = {
    "submit_s": ("submit_time", moment),
    "start": ("start_time", moment),
    "end": ("end_time", moment),
    "duration": ("duration", number),
    "queue_s": ("queue", number),
    "gpus": ("gpu_num", number),
    "nodes": ("node_num", number),
    "cpus": ("cpu_num", number),
}

LAYOUTS = (
    Layout(
        name="kalos",
        marks=frozenset({"job_id", "type", "submit_time", "fail_time", "duration", "queue"}),
        words={"ids": "job_id", "users": "user", "kinds": "type", "states": "state"},
        numbers=_ACME,
        finish=_kalos,
    ),
    Layout(
        name="seren",
        marks=frozenset({"job_id", "type", "submit_time", "start_time", "duration", "queue"}),
        words={"ids": "job_id", "users": "user", "kinds": "type", "states": "state"},
        numbers=_ACME,
        finish=_from_start,
    ),
    Layout(
        name="helios",
        marks=frozenset({"job_id", "vc", "jobname", "submit_time", "duration"}),
        words={"ids": "job_id", "users": "user", "pools": "vc", "names": "jobname", "states": "state"},
        numbers=_ACME,
        finish=_from_start,
    ),
    Layout(
        name="openb",
        marks=frozenset({"name", "cpu_milli", "num_gpu", "creation_time", "deletion_time"}),
        words={"ids": "name", "kinds": "qos", "states": "pod_phase"},
        numbers={
            "submit_s": ("creation_time", moment),
            "start": ("scheduled_time", moment),
            "end": ("deletion_time", moment),
            "gpus": ("num_gpu", number),
            "cpus": ("cpu_milli", number),
            "memory_mb": ("memory_mib", number),
        },
        finish=_openb,
    ),
    Layout(
        name="sacct",
        marks=frozenset({"JobID", "Submit", "State"}),
        words={"ids": "JobID", "users": "User", "pools": "Partition", "names": "JobName", "states": "State"},
        numbers={
            "submit_s": ("Submit", moment),
            "start": ("Start", moment),
            "end": ("End", moment),
            "duration": ("Elapsed", clock),
            "limit_s": ("Timelimit", clock),
            "gpus": ("AllocTRES", gpus_of_tres),
            "asked_gpus": ("ReqTRES", gpus_of_tres),
            "nodes": ("NNodes", number),
            "cpus": ("NCPUS", number),
            "memory_mb": ("ReqMem", megabytes),
        },
        finish=_sacct,
        separator="|",
        skips=lambda job_id: "." in job_id,
    ),
    Layout(
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
            "submit_s": ("submit_ts", number),
            "duration": ("duration_s", number),
            "queue_s": ("queue_s", number),
            "limit_s": ("timelimit_s", number),
            "gpus": ("gpu_num", number),
            "nodes": ("node_num", number),
            "cpus": ("cpu_num", number),
            "memory_mb": ("memory_mib", number),
        },
        finish=_plain,
    ),
)
