"""Adjusts the findings in a log to each other: a line means less if something else had already failed before it. Pure.

The traits of a signature name the rules for its findings (`CONTEXT_RULES`). The first rule that applies decides.
Without one, the traceback above the line may still change the label.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from . import lines
from .table import exceptions
from .values import Blame, LineRole, LogFinding, SignatureTrait

CERTAIN_SPECIFICITY = 70  # from here on a single line is enough to name the cause
CLEAR_SYMPTOM_SPECIFICITY = 40  # a symptom at least this specific shows that something had failed before it
WEAK_SPECIFICITIES = frozenset(exceptions.WEAK_EXCEPTIONS.values())
SPAWN_FRAME = "multiprocessing/spawn.py:"
SLURM_PREFIXES = ("srun: ", "slurmstepd: ")
TASK_EXIT_LINE = re.compile(r"srun: .*: Exited with exit code (?!137\b|9\b)\d")


@dataclass(frozen=True, kw_only=True)
class LogContext:
    findings: tuple[LogFinding, ...]
    first_failed_rank: int | None

    def killed_processes(self) -> list[LogFinding]:
        return [finding for finding in self.findings if SignatureTrait.PROCESS_KILLED in finding.traits]


def adjust_finding(finding: LogFinding, log: LogContext) -> LogFinding:
    """Return the finding with its role, label and specificity adjusted to the rest of the log."""
    for trait in finding.traits:
        rule = CONTEXT_RULES.get(trait)
        if rule and (adjusted := rule(finding, log)) is not None:
            return adjusted
    return _relabel_by_frames(finding)


def _weak_exception(finding: LogFinding, log: LogContext) -> LogFinding | None:
    """An exception whose name says little is a symptom if another symptom precedes it."""
    own_rank = log.first_failed_rank if finding.line.rank == log.first_failed_rank else None
    if finding.specificity in WEAK_SPECIFICITIES and _symptom_before(finding.line.number, log.findings, own_rank):
        return replace(finding, role=LineRole.CASCADE)
    return None


def _symptom_before(at: int, others: tuple[LogFinding, ...], own_rank: int | None) -> bool:
    """Return whether a symptom precedes this line.

    Ranks share one log in no fixed order. With `own_rank`, the rank that failed first, only the symptoms of that rank
    count, and those without a known rank.
    """
    return any(
        other.role is LineRole.CASCADE and other.specificity >= CLEAR_SYMPTOM_SPECIFICITY and 0 < other.line.number < at
        and (own_rank is None or other.line.rank is None or own_rank in other.ranks)
        for other in others
    )  # fmt: skip


def _scheduler_stop(finding: LogFinding, log: LogContext) -> LogFinding | None:
    """A stop by the scheduler is a symptom if a certain cause with another label precedes it."""
    return replace(finding, role=LineRole.CASCADE) if _certain_cause_before(finding, log.findings) else None


def _certain_cause_before(finding: LogFinding, others: tuple[LogFinding, ...]) -> bool:
    explained = "NodeFailure" if SignatureTrait.EXPLAINS_NODE_FAILURE in finding.traits else None
    return any(
        other.role is LineRole.INITIATING and other.specificity >= CERTAIN_SPECIFICITY
        and other.line.number < finding.line.number and other.label not in (finding.label, explained)
        for other in others
    )  # fmt: skip


def _truncated_data(finding: LogFinding, log: LogContext) -> LogFinding | None:
    """Truncated start data of a spawned process: its parent died while it wrote them."""
    return _as_teardown(finding) if any(SPAWN_FRAME in frame for frame in finding.frames) else None


def _lost_after_kill(finding: LogFinding, log: LogContext) -> LogFinding | None:
    """If a process was killed before, the launcher reports only that its daemon is gone."""
    killed = any(0 < other.line.number < finding.line.number for other in log.killed_processes())
    return _as_unclear_symptom(finding) if killed else None


def _lost_with_kill(finding: LogFinding, log: LogContext) -> LogFinding | None:
    """If the agent reports a killed process, the agent itself is alive."""
    return _as_unclear_symptom(finding) if log.killed_processes() else None


def _step_kill(finding: LogFinding, log: LogContext) -> LogFinding | None:
    """Slurm kills the remaining tasks of a step when one task has failed."""
    from_slurm = finding.line.text.startswith(SLURM_PREFIXES)
    return _as_teardown(finding) if from_slurm and _task_exit_before(finding.line.number, log.findings) else None


def _task_exit_before(at: int, others: tuple[LogFinding, ...]) -> bool:
    lines = [line for other in others for line in (other.line, *other.more)]
    return any(0 < line.number < at and TASK_EXIT_LINE.search(line.text) for line in lines)


def _as_teardown(finding: LogFinding) -> LogFinding:
    return replace(finding, role=LineRole.TEARDOWN, label="")


def _as_unclear_symptom(finding: LogFinding) -> LogFinding:
    return replace(finding, specificity=CLEAR_SYMPTOM_SPECIFICITY - 2)


# A rule returns the adjusted finding, or None if it does not apply
CONTEXT_RULES: dict[SignatureTrait, Callable[[LogFinding, LogContext], LogFinding | None]] = {
    SignatureTrait.EXCEPTION: _weak_exception,
    SignatureTrait.SCHEDULER_STOP: _scheduler_stop,
    SignatureTrait.TRUNCATED_DATA: _truncated_data,
    SignatureTrait.LOST_AFTER_KILL: _lost_after_kill,
    SignatureTrait.LOST_WITH_KILL: _lost_with_kill,
    SignatureTrait.STEP_KILL: _step_kill,
}


TORCHRUN_REPORT_HEADER = re.compile(r"Root Cause \(first observed failure\)")
TORCHRUN_REPORT_RANK = re.compile(r"^\W*rank +: +(\d+)\b")
TORCHRUN_REPORT_LINES = 8  # length of a torchrun report after its headline


def first_failed_rank(tail: Sequence[tuple[int, str]]) -> int | None:
    """Return the rank that torchrun reports as the first failure; None if unknown.

    Each node has its own agent, which knows only the ranks of its node. If the reports name several ranks, it is not
    known which of them was the first of the job.
    """
    ranks: set[int] = set()
    lines_to_read = 0
    for number, text in tail:
        if TORCHRUN_REPORT_HEADER.search(text):
            lines_to_read = TORCHRUN_REPORT_LINES
            continue
        lines_to_read -= 1
        if lines_to_read > 0 and (named := TORCHRUN_REPORT_RANK.search(lines.parse(number, text).message)):
            ranks.add(int(named[1]))
            lines_to_read = 0
    return ranks.pop() if len(ranks) == 1 else None


SAVE_FRAMES = ("serialization.py:save", "serialization.py:_save", "serialization.py:_legacy_save", "save_checkpoint")
LOAD_FRAMES = ("serialization.py:load", "serialization.py:_load", "serialization.py:_legacy_load")
TRUNCATED_FILE_WORDS = re.compile(r"EOFError|unexpected EOF|magic number|Ran out of input|invalid load key")
DATASET_FRAME = re.compile(
    r"/datasets/(?:load|builder|arrow_\w+|packaged_modules/.*)\.py:|/streaming/base/\w+\.py:get_shards"
)
OBJECT_STORE_FRAME = re.compile(
    r"/(?:botocore|s3transfer|s3fs|minio|gcsfs|oss2|adlfs|google/cloud/storage|azure/storage)/"
)
WEIGHT_LOAD_FRAME = re.compile(r":(?:load_weights|load_model|load_state_dict|_load_pretrained_model|load_checkpoint)$")
TENSOR_LOAD_FRAME = re.compile(r":\w*(?:load_weights?|weight_loader)$")  # copies one tensor from a file into a model
WEIGHT_MISMATCH_LABELS = frozenset({"RuntimeError", "ValueError", "AssertionError", "KeyError"})
UNSPECIFIC_LABELS = frozenset({"ValueError", "RuntimeError", "OSError"})  # they do not show what the program was doing
DATA_WORKER_FRAME = re.compile(
    r"/torch/utils/data/_utils/(?:worker|fetch)\.py:|/datasets?/(?:\S+/)?\w+\.py:|:__getitem__$"
)
WRITE_FAILURE_WORDS = re.compile(r"cannot be opened|Input/output error|file write failed|unexpected pos|write\(\)")


def _relabel_by_frames(finding: LogFinding) -> LogFinding:
    """Return the finding relabeled by its traceback: frames show what the program was doing, the name does not."""
    words, frames = finding.line.text, finding.frames
    if any(frame.endswith(SAVE_FRAMES) for frame in frames) and WRITE_FAILURE_WORDS.search(words):
        return replace(finding, label="DiskFull", specificity=72, blame=Blame.STORAGE)
    if (
        finding.label == "CheckpointCorrupt"
        and any(DATA_WORKER_FRAME.search(frame) for frame in frames)
        and TRUNCATED_FILE_WORDS.search(words)
    ):
        return replace(finding, label="DatasetLoadingError")
    if any(frame.endswith(LOAD_FRAMES) for frame in frames) and TRUNCATED_FILE_WORDS.search(words):
        return replace(finding, label="CheckpointCorrupt", specificity=80, blame=Blame.STORAGE)
    if finding.label == "ConnectionError" and any(OBJECT_STORE_FRAME.search(frame) for frame in frames):
        return replace(finding, label="S3StorageError", blame=Blame.STORAGE)
    if finding.label == "KeyError" and any(WEIGHT_LOAD_FRAME.search(frame) for frame in frames[-2:]):
        return replace(finding, label="ModelLoadingError", specificity=64)
    if (
        SignatureTrait.EXCEPTION in finding.traits
        and finding.label in WEIGHT_MISMATCH_LABELS
        and any(TENSOR_LOAD_FRAME.search(frame) for frame in frames[-2:])
    ):
        return replace(finding, label="ModelLoadingError", specificity=64)
    if (
        SignatureTrait.EXCEPTION in finding.traits
        and finding.label in UNSPECIFIC_LABELS
        and any(DATASET_FRAME.search(frame) for frame in frames)
    ):
        return replace(finding, label="DatasetLoadingError", specificity=66)
    return finding
