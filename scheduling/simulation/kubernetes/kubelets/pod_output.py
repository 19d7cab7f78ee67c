"""The output of each pod of a program, cut out of the output of the whole program. Pure.

The first pod prints the progress of the training, as rank 0 does. The others print that they are ready. When a program
fails, each line of a rank goes to the pod of that rank, and the lines of the launcher to the pod at fault. Lines that
only Slurm's tools print are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from jobs.core.lifecycle import State
from scheduling.simulation.machines.failure_reasons import HOST_OOM
from scheduling.simulation.machines.scripts.job_output import (
    PlannedLog,
    body_line_count,
    final_lines,
    lines_until,
    next_due_s,
    rank_at_fault,
)

RANK = re.compile(r"\[rank(\d{1,7})\]")
SLURM_LINES = ("srun:", "slurmstepd:")
READY_LINES = 2  # of the start-up output: who it is, and that it waits for the others
READY_AFTER_S = 0.5


@dataclass(frozen=True)
class TimedLine:
    at_s: float  # after the begin of the program
    text: str


def pod_lines(script: PlannedLog, place: int, first: int, until_s: float) -> list[TimedLine]:
    """The regular lines of the pod at a place in the gang, from line `first` on, that are due."""
    limit = min(until_s, script.ends_s)
    if place == 0:
        count = body_line_count(script) if script.ends_s < inf else None
        texts = lines_until(script, first, min(limit, _before_end(script, until_s)))
        texts = texts if count is None else texts[: max(count - first, 0)]
        return [TimedLine(next_due_s(script, first + number), text) for number, text in enumerate(texts)]
    ready = _ready_lines(script, place)[first:]
    return [line for line in ready if line.at_s <= limit]


def _before_end(script: PlannedLog, until_s: float) -> float:
    """A time before the final lines, which are distributed separately."""
    return until_s if until_s < script.play.duration_s else script.play.duration_s - 1e-6


def next_line_s(script: PlannedLog, place: int, index: int) -> float:
    """When the next regular line of a pod is due; infinity if there is none."""
    if place == 0:
        return next_due_s(script, index)
    ready = _ready_lines(script, place)
    return ready[index].at_s if index < len(ready) else inf


def regular_line_count(script: PlannedLog, place: int) -> float:
    """How many lines a pod prints before the end of the program."""
    if place:
        return READY_LINES
    return body_line_count(script) if script.ends_s < inf else inf


def _ready_lines(script: PlannedLog, place: int) -> list[TimedLine]:
    rank = place * script.gpus_per_node
    return [
        TimedLine(
            0.0, f"job {script.name}: {script.ranks} ranks on {len(script.nodes)} nodes; this is {_node(script, place)}"
        ),
        TimedLine(READY_AFTER_S, f"rank {rank} of {script.ranks} is ready; waiting for the others"),
    ]


def _node(script: PlannedLog, place: int) -> str:
    return script.nodes[place] if place < len(script.nodes) else "localhost"


def last_lines(script: PlannedLog, place: int) -> list[str]:
    """What a pod prints when the program ends by itself."""
    if script.play.state != State.COMPLETED and script.play.cause == HOST_OOM:
        return []  # the kernel kills the process; only the container's state says so
    if script.play.state == State.COMPLETED and place:
        return []
    return lines_of_place(final_lines(script), script, place)


def lines_of_place(lines: Iterable[str], script: PlannedLog, place: int) -> list[str]:
    """The lines that the ranks of one pod print."""
    per_pod = max(script.gpus_per_node, 1)
    culprit = rank_at_fault(script) // per_pod if len(script.nodes) > 1 else 0
    at, kept = culprit, []
    for line in lines:
        if line.startswith(SLURM_LINES):
            continue
        if found := RANK.match(line):
            at = int(found[1]) // per_pod
        elif not line.startswith(" "):
            at = culprit
        if at == place:
            kept.append(line)
    return kept
