"""Reads training progress from log lines: the newest step with its metrics, and the last saved checkpoint. Pure.

A step counts only if its line also has a training metric (loss, gradient norm, learning rate, throughput), and if
nothing before it shows that something else is counted: an evaluation, a download, a warm-up. A tqdm bar counts by its
label and metrics; a bar without any counts only together with the metrics that its trainer prints beside it. In doubt
there is no step. The result is displayed and dates the first step; it is never evidence of a fault.

Several ranks print the same step. The highest step wins, and the others only add missing metrics. A step slightly lower
than the known one comes from a rank that is behind; a much lower one means that the program went back.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

MAX_LINE_CHARS = 800
MAX_TOKENS = 2**62
MAX_RANK_LAG_STEPS = 4  # a rank may be this far behind the others in what it prints
CONTEXT_CHARS = 60  # before a number: they show what it counts
CHUNK_LINES, OVERLAP_LINES = 16, 4  # overlap, because a bar is printed right before or after its metrics
MAX_PARSED_LINES = 512  # per call
MAX_COUNTERS = MAX_HOST_NAMES = 8  # per line
MAX_EPOCHS, MAX_STEPS = 100_000, 10**12  # a higher number is a misread line

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
# Words of an evaluation, but not as part of a metric's name: `val_loss: 3.1` does not apply to the loss after it.
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
MFU = re.compile(rf"(?i)(?<![A-Za-z])mfu{VALUE_SEPARATOR}{NUMBER_GROUP}\s?(%)?")
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
SHARD_FILE = re.compile(r"(?i)(?:model|optim)_states")  # of one rank; other ranks may still be writing
CHECKPOINT_STEP = re.compile(r"(?i)(?:iteration|iter_?|step|checkpoint-)[\s:=_-]{0,12}(\d{1,12})(?!\d)")
CHECKPOINT_PATH = re.compile(
    r"\b(?:to|in|at|as)\s{1,4}[\"'`]?(?!\d{1,4}/\d{1,2}(?:/\d{1,4})?(?:[\sT,;.)\]]|$))"  # a date
    r"((?:\.{0,2}/|[a-z][a-z0-9]{0,11}:/{1,2}|[\w.-]{1,100}/)[^\s\"'`,;|]{1,290})"
)
PART_OF_PATH = re.compile(r"/[A-Za-z._~]|[A-Za-z._]/")
FOLDER_PATH = re.compile(r"(?<!\S)/(?:[\w.-]{1,60}/){1,12}")


@dataclass(frozen=True, kw_only=True)
class LoggedStep:
    """A completed step with the metrics from its log line."""

    step: int
    total: int | None = None
    loss: float | None = None
    grad_norm: float | None = None
    step_time_s: float | None = None
    learning_rate: float | None = None
    tokens: int | None = None
    mfu: float | None = None


@dataclass(frozen=True, kw_only=True)
class LoggedCheckpoint:
    """A checkpoint that the log reports as saved. Acme has not verified it."""

    step: int
    path: str = ""


@dataclass(frozen=True, kw_only=True)
class TrainingOutput:
    newest: LoggedStep | None = None
    saved: LoggedCheckpoint | None = None


def parse_training_output(
    lines: Sequence[str], before: int | None = None, hosts: Collection[str] = ()
) -> TrainingOutput:
    """The newest step and the last saved checkpoint in these lines.

    `before` is the highest step known so far; `newest` is None if there is none beyond it. `hosts` are the job's nodes.
    """
    lines = _hide_host_names(lines, hosts)
    newest = _latest_step(lines)
    if newest is not None and before is not None and before - MAX_RANK_LAG_STEPS < newest.step <= before:
        newest = None
    return TrainingOutput(newest=newest, saved=_latest_checkpoint(lines, before))


def _hide_host_names(lines: Sequence[str], hosts: Collection[str]) -> Sequence[str]:
    """The lines without misleading node names: a prefix such as `test-001` does not mean that a test is counted."""
    misleading = {host.partition(".")[0].lower() for host in hosts if OTHER_COUNTERS.search(host)}
    if not misleading:
        return lines
    return [_hide_names_in_line(misleading, line) if _may_report_step(line) else line for line in lines]


def _hide_names_in_line(misleading: Collection[str], line: str) -> str:
    return HOST_PREFIX.sub(lambda match: _neutral_name(match, misleading), line[:MAX_LINE_CHARS], count=MAX_HOST_NAMES)


def _neutral_name(match: re.Match[str], misleading: Collection[str]) -> str:
    before = match.string[: match.start()]
    is_prefix = match[1].lower() in misleading and "%|" not in before and not STEP_COUNTER.search(before)
    return "host" if is_prefix else match[0]


def _latest_step(lines: Sequence[str]) -> LoggedStep | None:
    """The last step, searched in chunks from the end: of a thousand steps only the last one is needed."""
    marked = [line[:MAX_LINE_CHARS] for line in lines if _may_report_step(line)][-MAX_PARSED_LINES:]
    for end in range(len(marked), 0, -CHUNK_LINES):
        newest: LoggedStep | None = None
        for step in _iter_steps(marked[max(0, end - CHUNK_LINES) : end + OVERLAP_LINES]):
            newest = _merge_steps(newest, step)
        if newest is not None:
            return newest
    return None


def _may_report_step(line: str) -> bool:
    low = line.lower()
    counts = "step" in low or "iter" in low or "num_updates" in low or "%|" in low
    return counts or ("epoch" in low and ("loss" in low or "eval_" in low))


def _latest_checkpoint(lines: Sequence[str], before: int | None) -> LoggedCheckpoint | None:
    """The last saved checkpoint. If its line has no step, the step before that line is used."""
    for place in range(len(lines) - 1, -1, -1):
        if (saved := _checkpoint_of_line(lines[place][:MAX_LINE_CHARS])) is None:
            continue
        newest = _latest_step(lines[:place]) if saved.step < 0 else None
        step = newest.step if newest else before if saved.step < 0 else saved.step
        return replace(saved, step=step) if step is not None else None
    return None


def _merge_steps(known: LoggedStep | None, new: LoggedStep) -> LoggedStep:
    """The higher of two steps; metrics that it lacks are taken from the other one."""
    if known is None:
        return new
    ahead, behind = (new, known) if new.step > known.step else (known, new)
    missing = {name: value for name, value in vars(behind).items() if getattr(ahead, name) is None}
    return replace(ahead, **missing)


def _iter_steps(lines: Iterable[str]) -> Iterator[LoggedStep]:
    bars = _ProgressBars()
    for line in lines:
        if (step := bars.process_line(line)) is not None:
            yield step
    if (pending := bars.take_pending()) is not None:
        yield pending


class _ProgressBars:
    """Matches metrics to the progress bar that has their step.

    A trainer with a bar prints its metrics without a step, above the bar, which it then draws again.
    """

    def __init__(self) -> None:
        self.bar: tuple[int, int] | None = None
        self.pending: LoggedStep | None = None

    def process_line(self, line: str) -> LoggedStep | None:
        if "%|" in line and (bar_match := PROGRESS_BAR.search(line)):
            return self.add_bar(line, bar_match)
        if "eval_" in line and "{" in line:
            pending, self.bar = self.take_pending(), None  # the last bar may have counted the evaluation
            return pending or _step_of_line(line)
        if step := _step_of_line(line):
            return step
        if "epoch" in line.lower() and (metrics := _metrics_without_step(line)):
            pending, self.pending = self.take_pending(), metrics
            return pending
        return None

    def add_bar(self, line: str, bar_match: re.Match[str]) -> LoggedStep | None:
        bare = _bare_bar(line, bar_match)
        if bare is None:
            return _step_beside_bar(line, bar_match)
        if self._is_next_bar(bare):
            self.pending = None  # ambiguous: they may belong to either bar
        if self.pending is None or (self.bar is None and bare[0]) or (self.bar and self.bar[1] == bare[1]):
            self.bar = bare
        return self.take_pending()

    def _is_next_bar(self, bare: tuple[int, int]) -> bool:
        return self.bar is not None and self.bar[0] >= self.bar[1] and bare[0] > 0 and bare[1] > self.bar[1]

    def take_pending(self) -> LoggedStep | None:
        """The waiting metrics with the step of the current bar; None without a bar. They are used once only."""
        metrics, self.pending = self.pending, None
        if not (metrics and self.bar):
            return None
        return replace(metrics, step=self.bar[0], total=_valid_total(self.bar[0], self.bar[1]))


def _step_of_line(line: str) -> LoggedStep | None:
    counters = [match for match in islice(STEP_COUNTER.finditer(line), MAX_COUNTERS) if _counts_training(line, match)]
    if not counters:
        return _step_of_loss_line(line)
    # A global step counts over all epochs, so it wins over a counter that starts again in each epoch
    counter = next((match for match in counters if match[1].lower().startswith("global")), counters[0])
    step = int(counter[2])
    total = _valid_total(step, int(counter[3])) if counter[3] else None
    logged = _with_metrics(line, LoggedStep(step=step, total=total), counters[0].start())
    evidence = (logged.loss, logged.grad_norm, logged.learning_rate, logged.tokens, THROUGHPUT.search(line))
    return logged if any(item is not None for item in evidence) else None


def _step_of_loss_line(line: str) -> LoggedStep | None:
    """The step of a line such as `loss at step 50: 2.31`."""
    match = LOSS_AT_STEP.search(line)
    if match is None or not (_counts_training(line, match) and _is_training_loss(line, match.start())):
        return None
    return LoggedStep(step=int(match[1]), loss=float(match[2].replace(",", "")))


def _counts_training(line: str, match: re.Match[str]) -> bool:
    """Whether the counter is one of training steps. Directory names before it are ignored: they may be misleading."""
    before = FOLDER_PATH.sub(lambda path: " " * len(path[0]), line[: match.start()])
    return not OTHER_COUNTERS.search(before[-CONTEXT_CHARS:])


def _valid_total(step: int, total: int) -> int | None:
    return total if total >= step else None


# --- progress bars


def _bare_bar(line: str, bar_match: re.Match[str]) -> tuple[int, int] | None:
    """(done, total) of a bar without label and metrics; None for any other bar."""
    others = OTHER_COUNTERS.search(line[: bar_match.start() + 1])
    if others or _bar_labels(line, bar_match) - {"rank"} or "=" in line[bar_match.end() :]:
        return None
    return int(bar_match[1]), int(bar_match[2])


def _step_beside_bar(line: str, bar_match: re.Match[str]) -> LoggedStep | None:
    """The step from a bar or the text after it; None for the bar of an evaluation, whose metrics are not training's."""
    if EVALUATION_WORDS.search(line[: bar_match.start() + 1]):
        return None
    return _step_of_bar(line, bar_match) or _step_of_line(line[bar_match.end() :])


def _step_of_bar(line: str, bar_match: re.Match[str]) -> LoggedStep | None:
    if _bar_labels(line, bar_match) - TRAINING_BAR_WORDS or OTHER_COUNTERS.search(line[: bar_match.start() + 1]):
        return None
    metrics, done, total = line[bar_match.end() :], int(bar_match[1]), int(bar_match[2])
    counter = next((match for match in STEP_COUNTER.finditer(metrics) if match[1].lower().startswith("global")), None)
    logged = _with_metrics(metrics, LoggedStep(step=done))
    if logged.loss is None and "v_num=" not in metrics:  # v_num: the bar of PyTorch Lightning
        return None
    if counter:
        return replace(logged, step=int(counter[2]))
    if epoch := EPOCH.search(line[: bar_match.start()]):  # the bar starts again in each epoch
        step = int(epoch[1]) * total + done
        return replace(logged, step=step) if int(epoch[1]) <= MAX_EPOCHS and step <= MAX_STEPS else None
    return replace(logged, total=_valid_total(done, total))


def _bar_labels(line: str, bar_match: re.Match[str]) -> set[str]:
    """The words before a bar, without a launcher's prefix in brackets (rank, time or log level)."""
    before = LAUNCHER_PREFIX.sub("", line[: bar_match.start() + 1])
    return {word.lower() for word in WORD.findall(before)}


def _metrics_without_step(line: str) -> LoggedStep | None:
    """The metrics of a line such as `{'loss': 2.1, 'learning_rate': 1e-05, 'epoch': 0.1}`; the bar has their step."""
    begin = line.find("{")
    if begin < 0 or "train_runtime" in line:
        return None
    metrics = _with_metrics(line[begin:], LoggedStep(step=0))
    return metrics if metrics.loss is not None else None


# --- metrics


def _with_metrics(line: str, step: LoggedStep, counted_at: int = 0) -> LoggedStep:
    norm = _parse_number(GRAD_NORM.search(line))
    tokens = _parse_number(TOKENS.search(line))
    return replace(
        step,
        loss=_training_loss(line, counted_at),
        grad_norm=None if norm is not None and norm < 0 else norm,
        learning_rate=_parse_number(LEARNING_RATE.search(line)),
        step_time_s=_step_time(line),
        tokens=int(tokens) if tokens is not None and 0 <= tokens < MAX_TOKENS else None,
        mfu=_mfu(line),
    )


def _parse_number(match: re.Match[str] | None) -> float | None:
    return float(match[1].replace(",", "")) if match else None


def _mfu(line: str) -> float | None:
    """The model FLOPs utilization as a share of 1. Programs print it as a share or in percent."""
    match = MFU.search(line)
    if (value := _parse_number(match)) is None or match is None:
        return None
    share = value / 100 if match[2] or value > 1 else value
    return share if 0 <= share <= 1 else None


def _training_loss(line: str, counted_at: int) -> float | None:
    """The training loss of a line, and not that of a validation, of a part of the model or of a critic."""
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
    """Whether the loss at `at` has no qualifier before it, or one that is used for the training loss."""
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
    """The step from the text, else from the innermost directory: outer ones may be named after steps of a recipe."""
    words = " ".join(word for word in line.replace(path, "").split() if not PART_OF_PATH.search(word))
    if in_text := CHECKPOINT_STEP.search(words):
        return int(in_text[1])
    named = CHECKPOINT_STEP.findall(path) or CHECKPOINT_STEP.findall(line)
    return int(named[-1]) if named else -1
