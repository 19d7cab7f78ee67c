"""Rules of Jobs: completion indexes and final states. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from scheduling.simulation.kubernetes.objects import JsonObject, condition_of, value_at

INDEX = "batch.kubernetes.io/job-completion-index"


def is_finished(job: JsonObject) -> bool:
    return any((condition_of(job, kind) or {}).get("status") == "True" for kind in ("Complete", "Failed"))


def parse_indexes(text: str) -> set[int]:
    """The indexes of a text such as `0,2-4`."""
    indexes: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        indexes.update(range(int(first), int(last or first) + 1))
    return indexes


def format_indexes(indexes: Iterable[int]) -> str:
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ",".join(_run_text(run) for run in runs)


def _run_text(run: list[int]) -> str:
    if len(run) == 1:
        return str(run[0])
    return f"{run[0]},{run[1]}" if len(run) == 2 else f"{run[0]}-{run[-1]}"


def missing_indexes(job: JsonObject, busy: set[int]) -> Iterator[int]:
    """The lowest indexes that have neither succeeded nor a pod."""
    done = parse_indexes(value_at(job, "status", "completedIndexes", default=""))
    return (index for index in range(int(job["spec"]["completions"])) if index not in done and index not in busy)
