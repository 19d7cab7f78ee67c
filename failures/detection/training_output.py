"""What a training prints of itself: lines of its log → the newest step with its figures, and a checkpoint that it says
is saved. Pure.

A step counts only where its line also tells what trainings alone tell (a loss, a norm of gradients, a learning rate, a
throughput), and where nothing before it says that something else is counted: an evaluation, a download, a warm-up. A
bar of tqdm counts by its label and its figures; one without any only together with the figures that its trainer prints
beside it. Doubt means: no step. Nothing of this is evidence against anybody; it is shown, and dates the first step.

Ranks print the same step: the furthest counts, and who comes behind only adds what was not told yet. A step a little
lower than what is known is such a straggler; one that is much lower is a program that went back.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

MAX_LINE_CHARS = 800  # characters of a line that are looked at
MAX_TOKENS = 2**62
MAX_RANK_LAG_STEPS = 4  # steps by which ranks of one job may differ in what they print
CONTEXT_CHARS = 60  # characters before a number that say what it counts
CHUNK_LINES, OVERLAP_LINES = 16, 4  # lines; a bar comes right before or after its figures
MAX_PARSED_LINES = 512  # lines of a look
MAX_COUNTERS = MAX_HOST_NAMES = 8  # of a line
MAX_EPOCHS, MAX_STEPS = 100_000, 10**12  # more is a misreading

NUMBER_GROUP = r"([-+]?(?:\d{1,15}(?:,\d{3}){0,4}(?:\.\d{0,18})?(?:e[-+]?\d{1,3})?|nan|inf(?:inity)?))(?!\w|\.\d)"
VALUE_SEPARATOR = r"[\"']?\s{0,8}(?:[:=]\s{0,8})?[\"'\[(]{0,2}"

STEP_COUNTER = re.compile(
    r"(?i)(?<![\w.-])(global[_ ]?step|steps?|iter(?:ation)?|num_updates)\b(?:\(train\))?[\"']?\s{0,12}"
    r"(?:[:=#]\s{0,12})?(?:[\"'\[(]\s{0,8})?(\d{1,12})(?:\.0{1,3})?(?![\w.]|,\d)(?:\s{0,4}/\s{0,12}(\d{1,12}))?"
)
OTHER_COUNTERS = re.compile(
    r"(?i)(?<![a-z])(?:eval|valid|val(?![a-z])|test|predict|infer|sampling|denois|generat|warm|max|total|num[ _]|every|"
    r"sav|resum|load|restor|download|tokeni|preprocess|profil|benchmark|sanity|skip|overflow|at )"
)
# An evaluation, unless it is a figure by the way: `val_loss: 3.1` says nothing of the loss after it.
EVALUATION_WORDS = re.compile(
    r"(?i)(?<![a-z])(?:eval|valid(?![_ ]tok)|val(?![a-z])|test|predict|infer)"
    r"(?!\w{0,8}[_/](?:loss|acc|accuracy|ppl|perplexity)[\"']?\s{0,4}[:=])"
)
TRAINING_WORDS = re.compile(r"(?i)(?<![a-z])train")
PROGRESS_BAR = re.compile(r"(?:^|[\s:\]])\d{1,3}%\|[^|]{0,300}\|\s{0,8}(\d{1,12})/(\d{1,12})\s\[")
TRAINING_BAR_WORDS = frozenset(
    [
        "rank",
        "epoch",
        "training",
        "train",
        "trainer",
        "steps",
        "step",
        "iter",
        "iters",
        "iterations",
        "progress",
        "info",
    ]
)
LAUNCHER_PREFIX = re.compile(
    r"(?i)\[(?:(?:(?:local[_ ]?)?rank|default|node|worker|gpu)?[\s:=_-]{0,3}\d{1,6}|[\d\s:.,/tz+-]{1,40}|"
    r"(?:mon|tue|wed|thu|fri|sat|sun|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)\s[\w\s:.,]{1,30}|"
    r"(?:debug|info|warn(?:ing)?|error)(?![a-z])[^\]\[]{0,60})\]"
)
HOST_PREFIX = re.compile(
    r"(?<![\w./-])([A-Za-z][\w-]{0,62})(?:\.[\w.-]{1,60})?(?=[:|\])]|\s{1,8}\||\s\S{1,60}\[\d{1,8}\]:)"
)
WORD = re.compile(r"[A-Za-z]{1,40}")
EPOCH = re.compile(r"(?i)\bepoch\W{0,4}(\d{1,12})")

LOSS_VALUE = re.compile(rf"(?i)loss{VALUE_SEPARATOR}{NUMBER_GROUP}")
LOSS_AT_STEP = re.compile(
    rf"(?i)\bloss\s{{1,4}}at\s{{1,4}}(?:step|iteration)\s{{1,4}}(\d{{1,12}})\s{{0,4}}[:=]\s{{0,4}}{NUMBER_GROUP}"
)
LOSS_PREFIX = re.compile(r"(?i)(?<![A-Za-z_])(?:lm|train|training|total|avg|mean|step|reduced_train)[_/]$")
LOSS_QUALIFIERS = frozenset(
    ["lm", "train", "training", "total", "average", "avg", "mean", "step", "info", "debug", "and"]
)
GRAD_NORM = re.compile(rf"(?i)(?:grad(?:ient)?[_ ]?norm|\bgnorm){VALUE_SEPARATOR}{NUMBER_GROUP}")
LEARNING_RATE = re.compile(rf"(?i)(?<![A-Za-z])(?:learning[_ ]rate|lr){VALUE_SEPARATOR}{NUMBER_GROUP}")
TOKENS = re.compile(rf"(?i)consumed[_ ]tokens{VALUE_SEPARATOR}{NUMBER_GROUP}")
THROUGHPUT = re.compile(r"(?i)\b(?:tps|tgs|wps|tok(?:en)?s?/s|tokens?/(?:gpu/)?s|samples/s|\w{0,20}samplespersec)")
STEP_TIME = re.compile(
    r"(?i)(?:time[_ ]per[_ ](?:iteration|step)|(?:iter|step)[_ ]time|step[_ ]timing)(?:[_ ]in)?[_ ]?\(?(ms|s)?\)?"
    r"\s{0,2}[:=]\s{0,8}(\d{1,12}(?:\.\d{1,12})?)\s?(ms|k)?(?![a-rt-z\d])"
)
BRIEF_TIME = re.compile(r"(?i)(?<![\w-])time:?\s{1,2}(\d{1,12}(?:\.\d{1,12})?)\s?ms\b")
STEP_RATE = re.compile(
    r"(?i)(?<![\w.])(\d{1,12}(?:\.\d{1,12})?)\s?(?:(s|sec)/(?:it|iter|step)|(?:it|iter|step)s?/s(?:ec)?)\b"
)

SAVE_COMPLETE = re.compile(r"(?i)\b(?:saved|finished sav\w{0,5}|is ready now|save ckpt use)\b")
CHECKPOINT_NOUN = re.compile(r"(?i)checkpoint|ckpt|global_step\d")
SAVE_INCOMPLETE = re.compile(
    r"(?i)\b(?:not|never|no|fail\w{0,5}|error|exception|unable|cannot|could|will|would|to be|before|if|when|"
    r"load\w{0,4}|restor\w{0,4}|resum\w{0,4}|delet\w{0,4}|remov\w{0,4}|last|previous|configuration)\b"
)
SHARD_FILE = re.compile(r"(?i)(?:model|optim)_states")  # of one rank; others may still write
CHECKPOINT_STEP = re.compile(r"(?i)(?:iteration|iter_?|step|checkpoint-)[\s:=_-]{0,12}(\d{1,12})(?!\d)")
CHECKPOINT_PATH = re.compile(
    r"\b(?:to|in|at|as)\s{1,4}[\"'`]?(?!\d{1,4}/\d{1,2}(?:/\d{1,4})?(?:[\sT,;.)\]]|$))"  # a date
    r"((?:\.{0,2}/|[a-z][a-z0-9]{0,11}:/{1,2}|[\w.-]{1,100}/)[^\s\"'`,;|]{1,290})"
)
PART_OF_PATH = re.compile(r"/[A-Za-z._~]|[A-Za-z._]/")
FOLDER_PATH = re.compile(r"(?<!\S)/(?:[\w.-]{1,60}/){1,12}")


@dataclass(frozen=True, kw_only=True)
class LoggedStep:
    """A step that was completed, with what was said of it."""

    step: int
    total: int | None = None
    loss: float | None = None
    grad_norm: float | None = None
    step_time_s: float | None = None
    learning_rate: float | None = None
    tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class LoggedCheckpoint:
    """A checkpoint of which the log says that it is saved; nobody has looked."""

    step: int
    path: str = ""


@dataclass(frozen=True, kw_only=True)
class TrainingOutput:
    newest: LoggedStep | None = None
    saved: LoggedCheckpoint | None = None


def parse_training_output(
    lines: Sequence[str], before: int | None = None, hosts: Collection[str] = ()
) -> TrainingOutput:
    """`before` is the furthest step that was known; without anything new, `newest` is None. It runs on `hosts`."""
    lines = _hide_host_names(lines, hosts)
    newest = _latest_step(lines)
    if newest is not None and before is not None and before - MAX_RANK_LAG_STEPS < newest.step <= before:
        newest = None
    return TrainingOutput(newest=newest, saved=_latest_checkpoint(lines, before))


def _hide_host_names(lines: Sequence[str], hosts: Collection[str]) -> Sequence[str]:
    """A node may be called test-001. In front of a line that says nothing of what the line counts."""
    misleading = {host.partition(".")[0].lower() for host in hosts if OTHER_COUNTERS.search(host)}
    if not misleading:
        return lines
    return [_hide_names_in_line(misleading, line) if _may_report_step(line) else line for line in lines]


def _hide_names_in_line(misleading: Collection[str], line: str) -> str:
    return HOST_PREFIX.sub(lambda named: _neutral_name(named, misleading), line[:MAX_LINE_CHARS], count=MAX_HOST_NAMES)


def _neutral_name(named: re.Match[str], misleading: Collection[str]) -> str:
    before = named.string[: named.start()]
    is_prefix = named[1].lower() in misleading and "%|" not in before and not STEP_COUNTER.search(before)
    return "host" if is_prefix else named[0]


def _latest_step(lines: Sequence[str]) -> LoggedStep | None:
    """From the end on, by a few lines at once: of a thousand steps only the last is wanted."""
    marked = [line[:MAX_LINE_CHARS] for line in lines if _may_report_step(line)][-MAX_PARSED_LINES:]
    for end in range(len(marked), 0, -CHUNK_LINES):
        newest: LoggedStep | None = None
        for one in _iter_steps(marked[max(0, end - CHUNK_LINES) : end + OVERLAP_LINES]):
            newest = _merge_steps(newest, one)
        if newest is not None:
            return newest
    return None


def _may_report_step(line: str) -> bool:
    low = line.lower()
    counts = "step" in low or "iter" in low or "num_updates" in low or "%|" in low
    return counts or ("epoch" in low and ("loss" in low or "eval_" in low))


def _latest_checkpoint(lines: Sequence[str], before: int | None) -> LoggedCheckpoint | None:
    """One that does not say at which step is of the step before it."""
    for place in range(len(lines) - 1, -1, -1):
        if (saved := _checkpoint_of_line(lines[place][:MAX_LINE_CHARS])) is None:
            continue
        newest = _latest_step(lines[:place]) if saved.step < 0 else None
        step = newest.step if newest else before if saved.step < 0 else saved.step
        return replace(saved, step=step) if step is not None else None
    return None


def _merge_steps(known: LoggedStep | None, one: LoggedStep) -> LoggedStep:
    """The furthest step, with the last that was said of each figure."""
    if known is None:
        return one
    ahead, behind = (one, known) if one.step > known.step else (known, one)
    missing = {name: value for name, value in vars(behind).items() if getattr(ahead, name) is None}
    return replace(ahead, **missing)


def _iter_steps(lines: Iterable[str]) -> Iterator[LoggedStep]:
    bars = _ProgressBars()
    for line in lines:
        if (found := bars.heard(line)) is not None:
            yield found
    if (late := bars.late()) is not None:
        yield late


class _ProgressBars:
    """A trainer that shows a bar prints its figures without their step, above a bar that it then draws anew."""

    def __init__(self) -> None:
        self.bar: tuple[int, int] | None = None
        self.waits: LoggedStep | None = None

    def heard(self, line: str) -> LoggedStep | None:
        if "%|" in line and (drawn := PROGRESS_BAR.search(line)):
            return self.add_bar(line, drawn)
        if "eval_" in line and "{" in line:
            late, self.bar = self.late(), None  # whatever was drawn last may have counted the evaluation
            return late or _step_of_line(line)
        if told := _step_of_line(line):
            return told
        if "epoch" in line.lower() and (figures := _figures_without_step(line)):
            late, self.waits = self.late(), figures
            return late
        return None

    def add_bar(self, line: str, drawn: re.Match[str]) -> LoggedStep | None:
        bare = _bare_bar(line, drawn)
        if bare is None:
            return _step_beside_bar(line, drawn)
        if self._is_next_bar(bare):
            self.waits = None  # nobody knows of which of the two they are
        if self.waits is None or (self.bar is None and bare[0]) or (self.bar and self.bar[1] == bare[1]):
            self.bar = bare
        return self.late()

    def _is_next_bar(self, bare: tuple[int, int]) -> bool:
        return self.bar is not None and self.bar[0] >= self.bar[1] and bare[0] > 0 and bare[1] > self.bar[1]

    def late(self) -> LoggedStep | None:
        """Figures whose bar has come, or will not come any more: another one is not theirs."""
        told, self.waits = self.waits, None
        return (
            replace(told, step=self.bar[0], total=_valid_total(self.bar[0], self.bar[1])) if told and self.bar else None
        )


def _step_of_line(line: str) -> LoggedStep | None:
    found = [match for match in islice(STEP_COUNTER.finditer(line), MAX_COUNTERS) if _counts_training(line, match)]
    if not found:
        return _step_of_loss_line(line)
    of_all = next((match for match in found if match[1].lower().startswith("global")), found[0])
    step = int(of_all[2])
    total = _valid_total(step, int(of_all[3])) if of_all[3] else None
    told = _with_figures(line, LoggedStep(step=step, total=total), found[0].start())
    tells = (told.loss, told.grad_norm, told.learning_rate, told.tokens, THROUGHPUT.search(line))
    return told if any(one is not None for one in tells) else None


def _step_of_loss_line(line: str) -> LoggedStep | None:
    """`loss at step 50: 2.31`"""
    match = LOSS_AT_STEP.search(line)
    if match is None or not (_counts_training(line, match) and _is_training_loss(line, match.start())):
        return None
    return LoggedStep(step=int(match[1]), loss=float(match[2].replace(",", "")))


def _counts_training(line: str, match: re.Match[str]) -> bool:
    """The folders in which a program lies say nothing of what it does."""
    before = FOLDER_PATH.sub(lambda folders: " " * len(folders[0]), line[: match.start()])
    return not OTHER_COUNTERS.search(before[-CONTEXT_CHARS:])


def _valid_total(step: int, total: int) -> int | None:
    return total if total >= step else None


# --- bars


def _bare_bar(line: str, drawn: re.Match[str]) -> tuple[int, int] | None:
    """How far one is that says nothing but a number."""
    others = OTHER_COUNTERS.search(line[: drawn.start() + 1])
    if others or _bar_labels(line, drawn) - {"rank"} or "=" in line[drawn.end() :]:
        return None
    return int(drawn[1]), int(drawn[2])


def _step_beside_bar(line: str, drawn: re.Match[str]) -> LoggedStep | None:
    """What stands beside the bar of an evaluation is the evaluation's."""
    if EVALUATION_WORDS.search(line[: drawn.start() + 1]):
        return None
    return _step_of_bar(line, drawn) or _step_of_line(line[drawn.end() :])


def _step_of_bar(line: str, drawn: re.Match[str]) -> LoggedStep | None:
    if _bar_labels(line, drawn) - TRAINING_BAR_WORDS or OTHER_COUNTERS.search(line[: drawn.start() + 1]):
        return None
    figures, done, total = line[drawn.end() :], int(drawn[1]), int(drawn[2])
    of_all = next((match for match in STEP_COUNTER.finditer(figures) if match[1].lower().startswith("global")), None)
    told = _with_figures(figures, LoggedStep(step=done))
    if told.loss is None and "v_num=" not in figures:
        return None
    if of_all:
        return replace(told, step=int(of_all[2]))
    if epoch := EPOCH.search(line[: drawn.start()]):  # counts anew in each
        step = int(epoch[1]) * total + done
        return replace(told, step=step) if int(epoch[1]) <= MAX_EPOCHS and step <= MAX_STEPS else None
    return replace(told, total=_valid_total(done, total))


def _bar_labels(line: str, drawn: re.Match[str]) -> set[str]:
    """What launchers put in brackets, a rank or a moment or a level, is no label; other words there are."""
    before = LAUNCHER_PREFIX.sub("", line[: drawn.start() + 1])
    return {word.lower() for word in WORD.findall(before)}


def _figures_without_step(line: str) -> LoggedStep | None:
    """`{'loss': 2.1, 'learning_rate': 1e-05, 'epoch': 0.1}`; its step is what the bar says."""
    begin = line.find("{")
    if begin < 0 or "train_runtime" in line:
        return None
    told = _with_figures(line[begin:], LoggedStep(step=0))
    return told if told.loss is not None else None


# --- figures


def _with_figures(line: str, told: LoggedStep, counted_at: int = 0) -> LoggedStep:
    norm = _parse_number(GRAD_NORM.search(line))
    tokens = _parse_number(TOKENS.search(line))
    return replace(
        told,
        loss=_training_loss(line, counted_at),
        grad_norm=None if norm is not None and norm < 0 else norm,
        learning_rate=_parse_number(LEARNING_RATE.search(line)),
        step_time_s=_step_time(line),
        tokens=int(tokens) if tokens is not None and 0 <= tokens < MAX_TOKENS else None,
    )


def _parse_number(match: re.Match[str] | None) -> float | None:
    return float(match[1].replace(",", "")) if match else None


def _training_loss(line: str, counted_at: int) -> float | None:
    """The training's own: there are losses of a validation, of parts of the model, of a critic."""
    evaluated = [match.start() for match in EVALUATION_WORDS.finditer(line, counted_at)]
    trained = [match.start() for match in TRAINING_WORDS.finditer(line, counted_at)]
    for match in LOSS_VALUE.finditer(line):
        evaluates, trains = (_last_before(match.start(), places) for places in (evaluated, trained))
        if evaluates <= trains and _is_training_loss(line, match.start()):
            return _parse_number(match)
    return None


def _last_before(end: int, places: list[int]) -> int:
    return places[at - 1] if (at := bisect_left(places, end)) else -1


def _is_training_loss(line: str, at: int) -> bool:
    before = line[max(0, at - 24) : at]
    if not before or not (before[-1].isalnum() or before[-1] in "_/-. "):
        return True
    if before[-1] != " ":
        return LOSS_PREFIX.search(before) is not None
    word = WORD.search(before.rpartition(" ")[0].rpartition(" ")[2])
    is_word = before[-2:-1].isalpha()
    return not is_word or (word is not None and word[0].lower() in LOSS_QUALIFIERS)


def _step_time(line: str) -> float | None:
    if match := STEP_TIME.search(line):
        units = (match[1] or "").lower(), (match[3] or "").lower()
        return _positive_or_none(float(match[2]) / (1000 if "ms" in units else 1) * (1000 if "k" in units else 1))
    if match := STEP_RATE.search(line):
        value = float(match[1])
        return _positive_or_none(value if match[2] else 1 / value if value else 0.0)
    match = BRIEF_TIME.search(line)
    return _positive_or_none(float(match[1]) / 1000) if match else None


def _positive_or_none(value: float) -> float | None:
    return value if 0 < value < math.inf else None


# --- checkpoints


def _checkpoint_of_line(line: str) -> LoggedCheckpoint | None:
    low = line.lower()
    if not ("save" in low or "saving" in low or "ready" in low) or not (
        SAVE_COMPLETE.search(line) and CHECKPOINT_NOUN.search(line)
    ):
        return None
    path = CHECKPOINT_PATH.search(line)
    words = line.replace(path[1], "") if path else line
    if SAVE_INCOMPLETE.search(words) or SHARD_FILE.search(line):
        return None
    return LoggedCheckpoint(step=_checkpoint_step(line, path[1] if path else ""), path=path[1] if path else "")


def _checkpoint_step(line: str, path: str) -> int:
    """As the words say, else the innermost folder: those around it may be named after steps of a recipe."""
    words = " ".join(word for word in line.replace(path, "").split() if not PART_OF_PATH.search(word))
    if said := CHECKPOINT_STEP.search(words):
        return int(said[1])
    named = CHECKPOINT_STEP.findall(path) or CHECKPOINT_STEP.findall(line)
    return int(named[-1]) if named else -1
