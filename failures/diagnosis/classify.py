"""Selects the root cause from the findings in a log. Pure.

A cause ranks above a symptom, wherever they are in the log and however often they occur. Among causes the more specific
one wins, then the earlier one. Uncertainty is part of the result: alternatives with scores, a confidence, or `Unknown`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from . import confidence, context, endings, lines, suspects
from .context import CERTAIN_SPECIFICITY
from .labels import LABELS, NONE, UNKNOWN
from .lines import LOW_LEVELS
from .parsers.collectives import find_desync
from .reader import MENTION_NOTE, UNKNOWN_EXCEPTION_SPECIFICITY, LogReading
from .signatures import PYTHON_EXCEPTION
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
    SignatureTrait,
)

MAX_EVIDENCE_LINES = 8
MAX_EVIDENCE_CHARS = 2000
RETRY_WORDS = re.compile(
    r"(?i)\bretrying\b|\bwill (?:re)?try\b|\btrying again\b|\b(?:attempt|try|retry) #?\d+ ?(?:/|of) ?\d+"
)
EXHAUSTION_LABELS = frozenset({"OutOfMemoryError", "HostOOMKilled", "DiskFull"})
GIVE_UP_WORDS = re.compile(
    r"(?i)\b(?:exit(?:s|ing)|abort(?:s|ing|ed)?|giv(?:es|ing) up|terminat(?:es|ing|ed)|stopp(?:ing|ed))\b"
)
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
    def has_progress(self) -> bool:
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
    log = context.LogContext(findings=tuple(findings), first_failed_rank=context.first_failed_rank(reading.tail))
    findings = [context.adjust_finding(finding, log) for finding in findings]
    last = max((finding.last_number for finding in findings if not _is_closing_signal(finding)), default=0)
    closing = max((finding.last_number for finding in findings if _is_closing_signal(finding)), default=0)
    progress = sum(_is_progress_after(number, text.strip(), closing) for number, text in reading.tail if number > last)
    return ClassifierInput(findings=tuple(findings), failed=endings.is_failure(ending), progress=progress)


def _is_closing_signal(finding: LogFinding) -> bool:
    return SignatureTrait.CLOSING_SIGNAL in finding.traits


def _is_progress_after(number: int, text: str, closing: int) -> bool:
    """Whether a line shows progress. After a closing signal, only lines that report completion count: workers that
    are being stopped may still print the progress they made before."""
    return is_progress_line(text) and (number > closing or COMPLETION_LINE.search(text) is not None)


def _unnamed_exception(reading: LogReading) -> LogFinding | None:
    """An exception with an unknown name (`dask.KilledWorker: …`), recognized by its position below a traceback.

    Only the end of the log is searched, where they usually are. A search of the whole log would slow the scan by a
    third.
    """
    opened = [finding.last_number for finding in reading.findings if SignatureTrait.TRACEBACK in finding.traits]
    if not opened or any(finding.label and finding.note != MENTION_NOTE for finding in reading.findings):
        return None
    for number, text in reversed(reading.tail):
        if number <= opened[0]:
            break
        line = lines.parse(number, text)
        if (name := exceptions.unknown_exception_name(line.message)) is not None:
            return LogFinding(
                signature=PYTHON_EXCEPTION, label=exceptions.label_by_name(name), role=LineRole.INITIATING,
                specificity=UNKNOWN_EXCEPTION_SPECIFICITY, blame=Blame.JOB, restart=None,
                line=line, last_number=line.number, traits=(SignatureTrait.EXCEPTION,),
            )  # fmt: skip
    return None


def is_progress_line(text: str) -> bool:
    """Whether a line shows work. Loading bars do not count: other ranks may still draw one after this rank has died."""
    return PROGRESS_LINE.search(text) is not None and LOADING_BAR.search(text) is None


def finding_sort_key(finding: LogFinding) -> tuple[int, int, int]:
    """Return a key: raised before mentioned, causes before symptoms, specific before vague, early before late."""
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
    if SignatureTrait.NO_TRAINING in root.traits:
        return False
    vague = root.role is not LineRole.INITIATING or root.specificity < CERTAIN_SPECIFICITY
    if _is_warning_only(root):
        return True
    recorded = SignatureTrait.RECORD_ONLY in root.traits or root.line.level in ("DEBUG", "INFO", "NOTICE")
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
    if SignatureTrait.TRACEBACK in finding.traits and any(other.note == MENTION_NOTE for other in case.findings):
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
        confidence=confidence.diagnosis_confidence(label, root, ranked, reading, case.has_progress),
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
    if root and (desync := find_desync(root.collectives)):
        notes.append(desync.sentence)
    if root and root.note and root.note != MENTION_NOTE:
        notes.append(root.note)
    notes += [event.note for event in reading.gpu_events[:64] if event.note not in notes]
    return tuple(dict.fromkeys(notes))[:6]
