"""What was found in a log → why it failed. Pure.

A cause beats a symptom by its role, whatever stands last or shouts loudest; among causes the more specific one wins,
and only then the earlier one. What remains uncertain is said: alternatives with scores, a confidence, or `Unknown`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from . import confidence, endings, suspects
from .labels import LABELS, NONE, UNKNOWN
from .lines import MUTED
from .reader import MENTIONED, UNNAMED, Reading
from .signatures import GENERIC, TRACEBACK
from .table import exceptions
from .values import (
    Alternative,
    Blame,
    Category,
    ChainLink,
    Diagnosis,
    Ending,
    Evidence,
    Finding,
    Line,
    Role,
)

SURE = 70  # from here on a line alone names its cause
AUDIBLE = 40  # symptoms at least this specific say that something else had gone wrong by then
MOST_LINES = 8
MOST_TEXT = 2000
BOSS_LABELS = frozenset({"slurm-time-limit", "slurm-preempted", "pod-evicted"})
LASTING = frozenset({"loss-scale-floor"})  # steps go on, and train nothing
RECORDED = frozenset({"xid-63", "xid-92"})  # memory noted for repair; the job's own data was corrected
RETRIED = re.compile(
    r"(?i)\bretrying\b|\bwill (?:re)?try\b|\btrying again\b|\b(?:attempt|try|retry) #?\d+ ?(?:/|of) ?\d+"
)
SPENT = frozenset({"OutOfMemoryError", "HostOOMKilled", "DiskFull"})
GIVES_UP = re.compile(
    r"(?i)\b(?:exit(?:s|ing)|abort(?:s|ing|ed)?|giv(?:es|ing) up|terminat(?:es|ing|ed)|stopp(?:ing|ed))\b"
)
CLOSING = "closing-signal"  # launchers send it to healthy workers too, before or after they say that all is done
ROLE_RANK = {Role.INITIATING: 2, Role.CASCADE: 1, Role.TEARDOWN: 0}
PROGRESS = re.compile(
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
DONE = re.compile(
    r"(?i)\b(?:finished|completed|ended|done|saved|trained|passed|exited) successfully\b|\bWorkerState\.SUCCEEDED\b|"
    r"\bsuccessfully (?:finished|completed|ended|saved|trained|exited|wrote|written)\b|\bsaved? (?:model|checkpoint)|"
    r"\b(?:training|run|job|evaluation|workers|ranks|tasks) (?:is |are |has |have )?(?:complete|finished|done)|"
    r"\bexit(?:ed)?(?: with)?(?: exit)? code:? 0\b|\btrain_runtime\b|\b100%\|"
)
LOADING_BAR = re.compile(
    r"(?i)\b(?:load|download|fetch|generat|map|tokeniz|prepar|resolv|filter)\w*\b.{0,60}\d+%\||"
    r"\d+%\|[^|]*\|.{0,60}\d[kMG]?i?B/s\]"  # what is counted in bytes is a download, of whatever name
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """Findings in the order they matter, and what is known of the end."""

    findings: tuple[Finding, ...]
    failed: bool | None
    progress: int  # lines that show work being done after the last trouble

    @property
    def seen_working(self) -> bool:
        return self.progress > 0 or self.failed is False

    def goes_on(self, root: Finding | None) -> bool:
        """One such line outlives a symptom; after an exception it may be another rank's last word."""
        vague = root is None or root.role is not Role.INITIATING or root.line.level in MUTED
        return self.progress >= (1 if vague else 2)


def diagnose(reading: Reading, ending: Ending | None = None) -> Diagnosis:
    case = _case(reading, ending or Ending())
    ranked = _ranked(case)
    root = ranked[0] if ranked else None
    label = _label(root, case, reading)
    return _verdict(label, root if label not in (NONE, UNKNOWN) else None, ranked, case, reading)


def _case(reading: Reading, ending: Ending) -> Case:
    findings = [*reading.findings]
    if (unnamed := _last_words(reading)) is not None:
        findings.append(unnamed)
    if (ended := endings.finding(ending)) is not None:
        findings.append(ended)
    first_failed = first_failed_rank(reading.tail)
    findings = [_seen_in_context(finding, findings, first_failed) for finding in findings]
    last = max((finding.last_number for finding in findings if finding.signature != CLOSING), default=0)
    closing = max((finding.last_number for finding in findings if finding.signature == CLOSING), default=0)
    progress = sum(_went_on(line, closing) for line in reading.tail if line.number > last)
    return Case(findings=tuple(findings), failed=endings.failed(ending), progress=progress)


def _went_on(line: Line, closing: int) -> bool:
    """Workers that are sent home had worked before; only that all was done says why they were."""
    return progressed(line.text) and (line.number > closing or DONE.search(line.text) is not None)


def _last_words(reading: Reading) -> Finding | None:
    """An exception whose name tells nothing (`dask.KilledWorker: …`) is known by its place, under a traceback.

    To look for such names in whole logs would cost the scan a third of its speed; the end is where they are.
    """
    opened = [finding.last_number for finding in reading.findings if finding.signature == TRACEBACK]
    if not opened or any(finding.label and finding.note != MENTIONED for finding in reading.findings):
        return None
    for line in reversed(reading.tail):
        if line.number > opened[0] and (name := exceptions.untold(line.message)) is not None:
            return Finding(
                signature=GENERIC, label=exceptions.by_name(name), role=Role.INITIATING, specificity=UNNAMED,
                blame=Blame.JOB, restart=None, line=line, last_number=line.number,
            )  # fmt: skip
    return None


def progressed(text: str) -> bool:
    """Work was done, not only something loaded: a bar of another rank may still be drawn when this one is dead."""
    return PROGRESS.search(text) is not None and LOADING_BAR.search(text) is None


def _seen_in_context(finding: Finding, others: list[Finding], first_failed: int | None) -> Finding:
    """The same words mean less when the trouble had begun before them."""
    at = finding.line.number
    if finding.signature in BOSS_LABELS and _sure_before(at, finding, others):
        return replace(finding, role=Role.CASCADE)
    if finding.signature == GENERIC and finding.specificity in WEAK_POINTS:
        own_rank = first_failed if finding.line.rank == first_failed else None
        if _symptom_before(at, others, own_rank):
            return replace(finding, role=Role.CASCADE)
    if finding.signature == "checkpoint-torn" and any(SPAWNED in frame for frame in finding.frames):
        return replace(finding, role=Role.TEARDOWN, label="")
    if finding.signature == DAEMON_LOST and _killed_before(at, others):
        return replace(finding, specificity=AUDIBLE - 2)
    if finding.signature == KEEP_ALIVE and any(other.signature == "sigkill" for other in others):
        return replace(finding, specificity=AUDIBLE - 2)
    if finding.signature in SWEPT and finding.line.text.startswith(SLURM) and _task_ended_before(at, others):
        return replace(finding, role=Role.TEARDOWN, label="")
    return relabelled(finding)


DAEMON_LOST = "daemon-lost"
KEEP_ALIVE = "keep-alive-lost"  # an agent that tells how its worker was killed has outlived its own silence
TAKEN = "slurm-preempted"  # what became of a node that died, where it is told after its death
SPAWNED = "multiprocessing/spawn.py:"  # a child that finds its start cut short: its parent had died while it wrote


def _killed_before(at: int, others: list[Finding]) -> bool:
    """A launcher misses the daemon that somebody has just killed."""
    return any(other.signature == "sigkill" and 0 < other.line.number < at for other in others)


SWEPT = frozenset({"sigkill", "slurm-cancelled"})  # what Slurm does to the rest of a step when one task has ended
SLURM = ("srun: ", "slurmstepd: ")
ENDED = re.compile(r"srun: .*: Exited with exit code (?!137\b|9\b)\d")


def _task_ended_before(at: int, others: list[Finding]) -> bool:
    lines = [line for other in others for line in (other.line, *other.more)]
    return any(0 < line.number < at and ENDED.search(line.text) for line in lines)


WEAK_POINTS = frozenset(exceptions.WEAK.values())


def _sure_before(at: int, finding: Finding, others: list[Finding]) -> bool:
    return any(
        other.role is Role.INITIATING and other.specificity >= SURE and other.line.number < at
        and other.label != finding.label and not (finding.signature == TAKEN and other.label == "NodeFailure")
        for other in others
    )  # fmt: skip


def _symptom_before(at: int, others: list[Finding], own_rank: int | None = None) -> bool:
    """Whether a symptom precedes this line. Ranks share one log in no fixed order, so with `own_rank`, the rank that
    failed first, only symptoms of that rank count, and those of which no rank is known."""
    return any(
        other.role is Role.CASCADE and other.specificity >= AUDIBLE and 0 < other.line.number < at
        and (own_rank is None or other.line.rank is None or own_rank in other.ranks)
        for other in others
    )  # fmt: skip


REPORT_BEGINS = re.compile(r"Root Cause \(first observed failure\)")
REPORT_RANK = re.compile(r"^\W*rank +: +(\d+)\b")
REPORT_LINES = 8  # of a torchrun report after its headline


def first_failed_rank(tail: tuple[Line, ...]) -> int | None:
    """The rank that torchrun reports as the first failure. Every node has an agent of its own, which knows the ranks
    of that node only: where the reports name several ranks, none of them is known to be the first of the job."""
    ranks: set[int] = set()
    left = 0
    for line in tail:
        left = REPORT_LINES if REPORT_BEGINS.search(line.message) else left - 1
        if left > 0 and (named := REPORT_RANK.search(line.message)):
            ranks.add(int(named[1]))
            left = 0
    return ranks.pop() if len(ranks) == 1 else None


SAVING = ("serialization.py:save", "serialization.py:_save", "serialization.py:_legacy_save", "save_checkpoint")
LOADING = ("serialization.py:load", "serialization.py:_load", "serialization.py:_legacy_load")
TORN = re.compile(r"EOFError|unexpected EOF|magic number|Ran out of input|invalid load key")
DATASETS = re.compile(
    r"/datasets/(?:load|builder|arrow_\w+|packaged_modules/.*)\.py:|/streaming/base/\w+\.py:get_shards"
)
STORES = re.compile(r"/(?:botocore|s3transfer|s3fs|minio|gcsfs|oss2|adlfs|google/cloud/storage|azure/storage)/")
WEIGHTS = re.compile(r":(?:load_weights|load_model|load_state_dict|_load_pretrained_model|load_checkpoint)$")
LOADERS = re.compile(r":\w*(?:load_weights?|weight_loader)$")  # functions that put one tensor of a file into a model
UNFIT = frozenset({"RuntimeError", "ValueError", "AssertionError", "KeyError"})
UNTYPED = frozenset({"ValueError", "RuntimeError", "OSError"})  # names that say nothing of what was being done
FEEDING = re.compile(r"/torch/utils/data/_utils/(?:worker|fetch)\.py:|/datasets?/(?:\S+/)?\w+\.py:|:__getitem__$")
UNWRITTEN = re.compile(r"cannot be opened|Input/output error|file write failed|unexpected pos|write\(\)")


def relabelled(finding: Finding) -> Finding:
    """Where the frames say what the program was about to do, they know better than the exception's name."""
    words, frames = finding.line.text, finding.frames
    if any(frame.endswith(SAVING) for frame in frames) and UNWRITTEN.search(words):
        return replace(finding, label="DiskFull", specificity=72, blame=Blame.STORAGE)
    if finding.label == "CheckpointCorrupt" and any(FEEDING.search(frame) for frame in frames) and TORN.search(words):
        return replace(finding, label="DatasetLoadingError")
    if any(frame.endswith(LOADING) for frame in frames) and TORN.search(words):
        return replace(finding, label="CheckpointCorrupt", specificity=80, blame=Blame.STORAGE)
    if finding.label == "ConnectionError" and any(STORES.search(frame) for frame in frames):
        return replace(finding, label="S3StorageError", blame=Blame.STORAGE)
    if finding.label == "KeyError" and any(WEIGHTS.search(frame) for frame in frames[-2:]):
        return replace(finding, label="ModelLoadingError", specificity=64)
    if finding.signature == GENERIC and finding.label in UNFIT and any(LOADERS.search(frame) for frame in frames[-2:]):
        return replace(finding, label="ModelLoadingError", specificity=64)
    if finding.signature == GENERIC and finding.label in UNTYPED and any(DATASETS.search(frame) for frame in frames):
        return replace(finding, label="DatasetLoadingError", specificity=66)
    return finding


def order(finding: Finding) -> tuple[int, int, int]:
    """What was meant above what was only mentioned, cause above symptom, sure above vague, early above late."""
    rank = -1 if finding.note == MENTIONED else ROLE_RANK.get(finding.role, 0)
    return (-rank, -finding.specificity, finding.line.number)


def _ranked(case: Case) -> list[Finding]:
    return sorted((finding for finding in case.findings if finding.label), key=order)


def _label(root: Finding | None, case: Case, reading: Reading) -> str:
    if root is None or (root.note == MENTIONED and case.failed is not True):
        return _without_cause(case, reading.sentence)
    if case.failed is False and (root.role is not Role.INITIATING or case.goes_on(root)):
        return NONE  # launchers have been seen to return 0 over a dead rank, so a plain exception still counts
    if case.failed is None and case.goes_on(root) and _outlived(root):
        return NONE
    return root.label


def _outlived(root: Finding) -> bool:
    """Work that goes on disproves a vague line, a mere record, and what is tried again by its own words."""
    if root.signature in LASTING:
        return False
    vague = root.role is not Role.INITIATING or root.specificity < SURE
    if _taken_lightly(root):
        return True
    recorded = root.signature in RECORDED or root.line.level in ("DEBUG", "INFO", "NOTICE")
    return vague or recorded or RETRIED.search(root.line.text) is not None


def _taken_lightly(root: Finding) -> bool:
    """The program's own word that it takes this for no failure. Of hardware, and of room that has run out, it cannot
    know; and NCCL warns of everything."""
    if root.line.level != "WARNING" or root.label in SPENT or "NCCL WARN" in root.line.text:
        return False
    return LABELS[root.label].category is not Category.INFRASTRUCTURE and not GIVES_UP.search(root.line.text)


def _without_cause(case: Case, sentence: str) -> str:
    """What is no log proves no health, unless somebody saw it end well."""
    if case.failed or (sentence and case.failed is None):
        return UNKNOWN
    ended_badly = any(_speaks_of_an_end(finding, case) for finding in case.findings)
    return UNKNOWN if ended_badly and case.failed is None and not case.goes_on(None) else NONE


def _speaks_of_an_end(finding: Finding, case: Case) -> bool:
    """A traceback whose exception was only mentioned, or ignored by Python itself, is no end."""
    if finding.note == MENTIONED:
        return False
    if finding.signature == TRACEBACK and any(other.note == MENTIONED for other in case.findings):
        return False
    return finding.role in (Role.TEARDOWN, Role.CASCADE)


def _verdict(label: str, root: Finding | None, ranked: list[Finding], case: Case, reading: Reading) -> Diagnosis:
    row = LABELS[label]
    same = [finding for finding in ranked if root and finding.label == root.label and finding is not root]
    restart = root.restart if root and root.restart else row.restart
    return Diagnosis(
        root_cause=label, category=row.category,
        confidence=confidence.of(label, root, ranked, reading, case.seen_working),
        evidence=_evidence(root, same), chain=_chain(root, case), restart_helps=restart, restart_reason=row.reason,
        suspect_nodes=suspects.nodes(root, same, reading), suspect_gpus=suspects.gpus(root, reading),
        action=row.action, alternatives=_alternatives(label, ranked), blame=root.blame if root else None,
        engine="signature", rules_version=reading.rules_version, lines=reading.lines, size=reading.size,
        notes=_notes(root, reading),
    )  # fmt: skip


def _evidence(root: Finding | None, same: list[Finding]) -> tuple[Evidence, ...]:
    """The line itself, then other signs of the same cause, then what else was said of it."""
    found = [root, *same] if root else []
    firsts = [_exhibit(finding, finding.line, finding.count) for finding in found]
    more = [_exhibit(finding, line, 1) for finding in found for line in finding.more]
    return tuple([*firsts[:MOST_LINES], *more][:MOST_LINES])


def _exhibit(finding: Finding, line: Line, count: int) -> Evidence:
    return Evidence(
        line=line.number, text=line.text[:MOST_TEXT], rank=line.rank, host=line.host, time=line.time,
        signature=finding.signature, count=count,
    )  # fmt: skip


def _chain(root: Finding | None, case: Case) -> tuple[ChainLink, ...]:
    """The cause first, then what followed it, in the order of the log; what only came before it is no consequence."""
    if root is None:
        return ()
    reading_end = 1 << 62
    rest = [finding for finding in case.findings if finding is not root and finding.note != MENTIONED
            and (finding.role is not Role.INITIATING or finding.line.number > root.line.number)]  # fmt: skip
    rest.sort(key=lambda finding: finding.line.number or reading_end)  # line 0 is how it ended: the last thing
    return tuple(_link(finding, Role.INITIATING if finding is root else None) for finding in [root, *rest][:12])


def _link(finding: Finding, role: Role | None) -> ChainLink:
    as_seen = Role.CASCADE if finding.role is Role.INITIATING else finding.role
    return ChainLink(
        role=role or as_seen, label=finding.label or finding.signature, line=finding.line.number,
        text=finding.line.text[:300], time=finding.line.time, count=finding.count, ranks=finding.ranks[:64],
    )  # fmt: skip


def _alternatives(label: str, ranked: list[Finding]) -> tuple[Alternative, ...]:
    best: dict[str, Finding] = {}
    for finding in ranked:
        if finding.label != label:
            best.setdefault(finding.label, finding)
    return tuple(
        Alternative(root_cause=finding.label, score=confidence.score(finding), line=finding.line.number)
        for finding in list(best.values())[:5]
    )


def _notes(root: Finding | None, reading: Reading) -> tuple[str, ...]:
    notes = [reading.sentence] if reading.sentence else []
    if root and root.note and root.note != MENTIONED:
        notes.append(root.note)
    notes += [event.note for event in reading.gpu_events[:64] if event.note not in notes]
    return tuple(dict.fromkeys(notes))[:6]
