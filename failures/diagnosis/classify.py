"""Selects the root cause from the findings in a log. Pure.

A cause ranks above a symptom, wherever they are in the log and however often they occur. Among causes the more specific
one wins, then the earlier one. Uncertainty is part of the result: alternatives with scores, a confidence, or `Unknown`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from . import confidence, endings, suspects
from .labels import LABELS, NONE, UNKNOWN
from .lines import LOW_LEVELS
from .reader import MENTION_NOTE, UNKNOWN_EXCEPTION_SPECIFICITY, LogReading
from .signatures import PYTHON_EXCEPTION, TRACEBACK
from .table import exceptions
from .values import (
    AlternativeCause,
    Blame,
    ChainLink,
    EvidenceLine,
    ExitStatus,
    FailureCategory,
    LineRole,
    LogDiagnosis,
    LogFinding,
    ParsedLine,
)

CERTAIN_SPECIFICITY = 70  # from here on a single line is enough to name the cause
CLEAR_SYMPTOM_SPECIFICITY = 40  # a symptom at least this specific shows that something had failed before it
MAX_EVIDENCE_LINES = 8
MAX_EVIDENCE_CHARS = 2000
SCHEDULER_STOP_SIGNATURES = frozenset({"slurm-time-limit", "slurm-preempted", "pod-evicted"})
PERSISTENT_SIGNATURES = frozenset({"loss-scale-floor"})  # steps continue, but nothing is trained
RECORD_ONLY_SIGNATURES = frozenset({"xid-63", "xid-92"})  # memory is recorded for repair; the data was corrected
RETRY_WORDS = re.compile(
    r"(?i)\bretrying\b|\bwill (?:re)?try\b|\btrying again\b|\b(?:attempt|try|retry) #?\d+ ?(?:/|of) ?\d+"
)
EXHAUSTION_LABELS = frozenset({"OutOfMemoryError", "HostOOMKilled", "DiskFull"})
GIVE_UP_WORDS = re.compile(
    r"(?i)\b(?:exit(?:s|ing)|abort(?:s|ing|ed)?|giv(?:es|ing) up|terminat(?:es|ing|ed)|stopp(?:ing|ed))\b"
)
CLOSING_SIGNAL = "closing-signal"  # launchers send it to healthy workers too, before or after reporting success
ROLE_RANK = {LineRole.INITIATING: 2, LineRole.CASCADE: 1, LineRole.TEARDOWN: 0}
PROGRESS_LINE = re.compile(
    r"(?i)\b(?:iter(?:ation)?|step|epoch|samples?|batch)\b.{0,80}(?:loss|time(?!d|-?out|r|stamp)|speed|throughput|"
    r"(?<![a-z])lr(?![a-z])|tokens|/s(?:ec(?:ond)?)?\b)|\d+%\||"
    r"\bglobal_step/sec\b|\bloss ?[=:] ?\d[^|]{0,60}\bstep ?[=:] ?\d|"
    r"^\{'(?:train_|eval_)?loss'|\bsaved? (?:model|checkpoint)|bus bandwidth|it/s|s/it|"
    r"\b(?:finished|completed|ended|done|saved|trained|passed|exited) successfully\b|"
    r"\bsuccessfully (?:finished|completed|ended|saved|trained|exited|wrote|written)\b|- Init COMPLETE\b|"
    r"\bAll distributed processes registered\b|"
    r"\b(?:training|run|job|evaluation|workers|ranks|tasks) (?:is |are |has |have )?(?:complete|finished|done)|"
    r"\bpass@\d+\W|\b(?:accuracy|acc|bleu|f1|perplexity|ppl)\b\W{1,4}\d|\bexit(?:ed)?(?: with)?(?: exit)? code:? 0\b"
)
COMPLETION_LINE = re.compile(
    r"(?i)\b(?:finished|completed|ended|done|saved|trained|passed|exited) successfully\b|\bWorkerState\.SUCCEEDED\b|"
    r"\bsuccessfully (?:finished|completed|ended|saved|trained|exited|wrote|written)\b|\bsaved? (?:model|checkpoint)|"
    r"\b(?:training|run|job|evaluation|workers|ranks|tasks) (?:is |are |has |have )?(?:complete|finished|done)|"
    r"\bexit(?:ed)?(?: with)?(?: exit)? code:? 0\b|\btrain_runtime\b|\b100%\|"
)
LOADING_BAR = re.compile(
    r"(?i)\b(?:load|download|fetch|generat|map|tokeniz|prepar|resolv|filter)\w*\b.{0,60}\d+%\||"
    r"\d+%\|[^|]*\|.{0,60}\d[kMG]?i?B/s\]"  # a bar that counts bytes is a download, whatever its label
)


@dataclass(frozen=True, kw_only=True)
class ClassifierInput:
    """The findings in a log, and what is known about the end of the job."""

    findings: tuple[LogFinding, ...]
    failed: bool | None  # None: the exit status is unknown
    progress: int  # number of lines with progress after the last finding

    @property
    def made_progress(self) -> bool:
        return self.progress > 0 or self.failed is False

    def continues_after(self, root: LogFinding | None) -> bool:
        """Whether work continued after this finding.

        One line of progress is enough after a symptom. After an exception it may come from another rank that was still
        running, so two are needed.
        """
        vague = root is None or root.role is not LineRole.INITIATING or root.line.level in LOW_LEVELS
        return self.progress >= (1 if vague else 2)


def diagnose_reading(reading: LogReading, ending: ExitStatus | None = None) -> LogDiagnosis:
    """The diagnosis of a log that was read, with the exit status if it is known."""
    case = _classifier_input(reading, ending or ExitStatus())
    ranked = _ranked_findings(case)
    root = ranked[0] if ranked else None
    label = _root_label(root, case, reading)
    return _build_diagnosis(label, root if label not in (NONE, UNKNOWN) else None, ranked, case, reading)


def _classifier_input(reading: LogReading, ending: ExitStatus) -> ClassifierInput:
    findings = [*reading.findings]
    if (unnamed := _unnamed_exception(reading)) is not None:
        findings.append(unnamed)
    if (exit_finding := endings.exit_status_finding(ending)) is not None:
        findings.append(exit_finding)
    first_failed = first_failed_rank(reading.tail)
    findings = [_adjust_for_context(finding, findings, first_failed) for finding in findings]
    last = max((finding.last_number for finding in findings if finding.signature != CLOSING_SIGNAL), default=0)
    closing = max((finding.last_number for finding in findings if finding.signature == CLOSING_SIGNAL), default=0)
    progress = sum(_is_progress_after(line, closing) for line in reading.tail if line.number > last)
    return ClassifierInput(findings=tuple(findings), failed=endings.is_failure(ending), progress=progress)


def _is_progress_after(line: ParsedLine, closing: int) -> bool:
    """Whether a line shows progress. After a closing signal, only lines that report completion count: workers that
    are being stopped may still print the progress they made before."""
    return is_progress_line(line.text) and (line.number > closing or COMPLETION_LINE.search(line.text) is not None)


def _unnamed_exception(reading: LogReading) -> LogFinding | None:
    """An exception with an unknown name (`dask.KilledWorker: …`), recognised by its position below a traceback.

    Only the end of the log is searched, where they usually are. A search of the whole log would slow the scan by a
    third.
    """
    opened = [finding.last_number for finding in reading.findings if finding.signature == TRACEBACK]
    if not opened or any(finding.label and finding.note != MENTION_NOTE for finding in reading.findings):
        return None
    for line in reversed(reading.tail):
        if line.number > opened[0] and (name := exceptions.unknown_exception_name(line.message)) is not None:
            return LogFinding(
                signature=PYTHON_EXCEPTION, label=exceptions.label_by_name(name), role=LineRole.INITIATING,
                specificity=UNKNOWN_EXCEPTION_SPECIFICITY, blame=Blame.JOB, restart=None,
                line=line, last_number=line.number,
            )  # fmt: skip
    return None


def is_progress_line(text: str) -> bool:
    """Whether a line shows work. Loading bars do not count: other ranks may still draw one after this rank has died."""
    return PROGRESS_LINE.search(text) is not None and LOADING_BAR.search(text) is None


def _adjust_for_context(finding: LogFinding, others: list[LogFinding], first_failed: int | None) -> LogFinding:
    """The finding with its role and weight adjusted: it means less if something else had already failed before it."""
    at = finding.line.number
    if finding.signature in SCHEDULER_STOP_SIGNATURES and _certain_cause_before(at, finding, others):
        return replace(finding, role=LineRole.CASCADE)
    if finding.signature == PYTHON_EXCEPTION and finding.specificity in WEAK_SPECIFICITIES:
        own_rank = first_failed if finding.line.rank == first_failed else None
        if _symptom_before(at, others, own_rank):
            return replace(finding, role=LineRole.CASCADE)
    if finding.signature == "checkpoint-torn" and any(SPAWN_FRAME in frame for frame in finding.frames):
        return replace(finding, role=LineRole.TEARDOWN, label="")
    if finding.signature == DAEMON_LOST_SIGNATURE and _sigkill_before(at, others):
        return replace(finding, specificity=CLEAR_SYMPTOM_SPECIFICITY - 2)
    if finding.signature == KEEP_ALIVE_SIGNATURE and any(other.signature == "sigkill" for other in others):
        return replace(finding, specificity=CLEAR_SYMPTOM_SPECIFICITY - 2)
    if (
        finding.signature in STEP_KILL_SIGNATURES
        and finding.line.text.startswith(SLURM_PREFIXES)
        and _task_exit_before(at, others)
    ):
        return replace(finding, role=LineRole.TEARDOWN, label="")
    return relabel_by_frames(finding)


DAEMON_LOST_SIGNATURE = "daemon-lost"
KEEP_ALIVE_SIGNATURE = "keep-alive-lost"  # if the agent reports a killed worker, the agent itself is alive
PREEMPTION_SIGNATURE = "slurm-preempted"  # after a node failure it is the reason why the node is gone
SPAWN_FRAME = "multiprocessing/spawn.py:"  # a child with truncated start data: its parent died while writing it


def _sigkill_before(at: int, others: list[LogFinding]) -> bool:
    """Whether a process was killed before this line: then the launcher only reports that its daemon is gone."""
    return any(other.signature == "sigkill" and 0 < other.line.number < at for other in others)


# Slurm kills the remaining tasks of a step when one task has failed
STEP_KILL_SIGNATURES = frozenset({"sigkill", "slurm-cancelled"})
SLURM_PREFIXES = ("srun: ", "slurmstepd: ")
TASK_EXIT_LINE = re.compile(r"srun: .*: Exited with exit code (?!137\b|9\b)\d")


def _task_exit_before(at: int, others: list[LogFinding]) -> bool:
    lines = [line for other in others for line in (other.line, *other.more)]
    return any(0 < line.number < at and TASK_EXIT_LINE.search(line.text) for line in lines)


WEAK_SPECIFICITIES = frozenset(exceptions.WEAK_EXCEPTIONS.values())


def _certain_cause_before(at: int, finding: LogFinding, others: list[LogFinding]) -> bool:
    return any(
        other.role is LineRole.INITIATING and other.specificity >= CERTAIN_SPECIFICITY and other.line.number < at
        and other.label != finding.label
        and not (finding.signature == PREEMPTION_SIGNATURE and other.label == "NodeFailure")
        for other in others
    )  # fmt: skip


def _symptom_before(at: int, others: list[LogFinding], own_rank: int | None = None) -> bool:
    """Whether a symptom precedes this line.

    Ranks share one log in no fixed order. With `own_rank`, the rank that failed first, only the symptoms of that rank
    count, and those without a known rank.
    """
    return any(
        other.role is LineRole.CASCADE and other.specificity >= CLEAR_SYMPTOM_SPECIFICITY and 0 < other.line.number < at
        and (own_rank is None or other.line.rank is None or own_rank in other.ranks)
        for other in others
    )  # fmt: skip


TORCHRUN_REPORT_HEADER = re.compile(r"Root Cause \(first observed failure\)")
TORCHRUN_REPORT_RANK = re.compile(r"^\W*rank +: +(\d+)\b")
TORCHRUN_REPORT_LINES = 8  # length of a torchrun report after its headline


def first_failed_rank(tail: tuple[ParsedLine, ...]) -> int | None:
    """The rank that torchrun reports as the first failure; None if unknown.

    Each node has its own agent, which knows only the ranks of its node. If the reports name several ranks, it is not
    known which of them was the first of the job.
    """
    ranks: set[int] = set()
    lines_to_read = 0
    for line in tail:
        is_header = TORCHRUN_REPORT_HEADER.search(line.message)
        lines_to_read = TORCHRUN_REPORT_LINES if is_header else lines_to_read - 1
        if lines_to_read > 0 and (named := TORCHRUN_REPORT_RANK.search(line.message)):
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


def relabel_by_frames(finding: LogFinding) -> LogFinding:
    """The finding relabelled by its traceback: frames show what the program was doing, which the name does not."""
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
        finding.signature == PYTHON_EXCEPTION
        and finding.label in WEIGHT_MISMATCH_LABELS
        and any(TENSOR_LOAD_FRAME.search(frame) for frame in frames[-2:])
    ):
        return replace(finding, label="ModelLoadingError", specificity=64)
    if (
        finding.signature == PYTHON_EXCEPTION
        and finding.label in UNSPECIFIC_LABELS
        and any(DATASET_FRAME.search(frame) for frame in frames)
    ):
        return replace(finding, label="DatasetLoadingError", specificity=66)
    return finding


def finding_sort_key(finding: LogFinding) -> tuple[int, int, int]:
    """Sorts raised before mentioned, causes before symptoms, specific before vague, early before late."""
    rank = -1 if finding.note == MENTION_NOTE else ROLE_RANK.get(finding.role, 0)
    return (-rank, -finding.specificity, finding.line.number)


def _ranked_findings(case: ClassifierInput) -> list[LogFinding]:
    return sorted((finding for finding in case.findings if finding.label), key=finding_sort_key)


def _root_label(root: LogFinding | None, case: ClassifierInput, reading: LogReading) -> str:
    if root is None or (root.note == MENTION_NOTE and case.failed is not True):
        return _label_without_cause(case, reading.sentence)
    if case.failed is False and (root.role is not LineRole.INITIATING or case.continues_after(root)):
        return NONE  # not for a plain exception: some launchers return 0 although a rank has died
    if case.failed is None and case.continues_after(root) and _is_refuted_by_progress(root):
        return NONE
    return root.label


def _is_refuted_by_progress(root: LogFinding) -> bool:
    """Whether continued work disproves this cause: a vague line, a mere record, or an error that is being retried."""
    if root.signature in PERSISTENT_SIGNATURES:
        return False
    vague = root.role is not LineRole.INITIATING or root.specificity < CERTAIN_SPECIFICITY
    if _is_warning_only(root):
        return True
    recorded = root.signature in RECORD_ONLY_SIGNATURES or root.line.level in ("DEBUG", "INFO", "NOTICE")
    return vague or recorded or RETRY_WORDS.search(root.line.text) is not None


def _is_warning_only(root: LogFinding) -> bool:
    """Whether the program itself logged this as a warning only.

    The level is ignored for hardware and exhausted resources, which a program cannot judge, and for NCCL, which logs
    everything as a warning.
    """
    if root.line.level != "WARNING" or root.label in EXHAUSTION_LABELS or "NCCL WARN" in root.line.text:
        return False
    return LABELS[root.label].category is not FailureCategory.INFRASTRUCTURE and not GIVE_UP_WORDS.search(
        root.line.text
    )


def _label_without_cause(case: ClassifierInput, sentence: str) -> str:
    """`None` or `Unknown` for a log without a cause. An unreadable log proves success only with a good exit status."""
    if case.failed or (sentence and case.failed is None):
        return UNKNOWN
    indicates_failure = any(_indicates_failure(finding, case) for finding in case.findings)
    return UNKNOWN if indicates_failure and case.failed is None and not case.continues_after(None) else NONE


def _indicates_failure(finding: LogFinding, case: ClassifierInput) -> bool:
    """Whether a finding shows a failure. A traceback does not if its exception was only mentioned or ignored."""
    if finding.note == MENTION_NOTE:
        return False
    if finding.signature == TRACEBACK and any(other.note == MENTION_NOTE for other in case.findings):
        return False
    return finding.role in (LineRole.TEARDOWN, LineRole.CASCADE)


def _build_diagnosis(
    label: str, root: LogFinding | None, ranked: list[LogFinding], case: ClassifierInput, reading: LogReading
) -> LogDiagnosis:
    row = LABELS[label]
    same = [finding for finding in ranked if root and finding.label == root.label and finding is not root]
    restart = root.restart if root and root.restart else row.restart
    return LogDiagnosis(
        root_cause=label, category=row.category,
        confidence=confidence.diagnosis_confidence(label, root, ranked, reading, case.made_progress),
        evidence=_build_evidence(root, same), chain=_build_chain(root, case),
        restart_helps=restart, restart_reason=row.reason,
        suspect_nodes=suspects.suspect_nodes(root, same, reading), suspect_gpus=suspects.suspect_gpus(root, reading),
        action=row.action, alternatives=_build_alternatives(label, ranked), blame=root.blame if root else None,
        engine="signature", rules_version=reading.rules_version, lines=reading.lines, size=reading.size,
        notes=_collect_notes(root, reading),
    )  # fmt: skip


def _build_evidence(root: LogFinding | None, same: list[LogFinding]) -> tuple[EvidenceLine, ...]:
    """The line of the root cause, then other findings with the same label, then further lines of all of them."""
    findings = [root, *same] if root else []
    firsts = [_evidence_line(finding, finding.line, finding.count) for finding in findings]
    more = [_evidence_line(finding, line, 1) for finding in findings for line in finding.more]
    return tuple([*firsts[:MAX_EVIDENCE_LINES], *more][:MAX_EVIDENCE_LINES])


def _evidence_line(finding: LogFinding, line: ParsedLine, count: int) -> EvidenceLine:
    return EvidenceLine(
        line=line.number, text=line.text[:MAX_EVIDENCE_CHARS], rank=line.rank, host=line.host, time=line.time,
        signature=finding.signature, count=count,
    )  # fmt: skip


def _build_chain(root: LogFinding | None, case: ClassifierInput) -> tuple[ChainLink, ...]:
    """The cause, then its consequences in the order of the log. Other causes before it are not consequences."""
    if root is None:
        return ()
    log_end = 1 << 62
    later = [finding for finding in case.findings if finding is not root and finding.note != MENTION_NOTE
            and (finding.role is not LineRole.INITIATING or finding.line.number > root.line.number)]  # fmt: skip
    later.sort(key=lambda finding: finding.line.number or log_end)  # line 0 is the exit status, which comes last
    return tuple(
        _chain_link(finding, LineRole.INITIATING if finding is root else None) for finding in [root, *later][:12]
    )


def _chain_link(finding: LogFinding, role: LineRole | None) -> ChainLink:
    default_role = LineRole.CASCADE if finding.role is LineRole.INITIATING else finding.role
    return ChainLink(
        role=role or default_role, label=finding.label or finding.signature, line=finding.line.number,
        text=finding.line.text[:300], time=finding.line.time, count=finding.count, ranks=finding.ranks[:64],
    )  # fmt: skip


def _build_alternatives(label: str, ranked: list[LogFinding]) -> tuple[AlternativeCause, ...]:
    best: dict[str, LogFinding] = {}
    for finding in ranked:
        if finding.label != label:
            best.setdefault(finding.label, finding)
    return tuple(
        AlternativeCause(
            root_cause=finding.label, score=confidence.finding_confidence(finding), line=finding.line.number
        )
        for finding in list(best.values())[:5]
    )


def _collect_notes(root: LogFinding | None, reading: LogReading) -> tuple[str, ...]:
    notes = [reading.sentence] if reading.sentence else []
    if root and root.note and root.note != MENTION_NOTE:
        notes.append(root.note)
    notes += [event.note for event in reading.gpu_events[:64] if event.note not in notes]
    return tuple(dict.fromkeys(notes))[:6]
