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

LONGEST = 800  # characters of a line that are looked at
MOST = 2**62
BEHIND = 4  # steps by which ranks of one job may differ in what they print
LOOKED_BACK = 60  # characters before a number that say what it counts
AT_ONCE, AROUND = 16, 4  # lines; a bar comes right before or after its figures
MOST_TAKEN_APART = 512  # lines of a look
MOST_COUNTERS = MOST_NAMES = 8  # of a line
MOST_EPOCHS, MOST_STEPS = 100_000, 10**12  # more is a misreading

NUMBER = r"([-+]?(?:\d{1,15}(?:,\d{3}){0,4}(?:\.\d{0,18})?(?:e[-+]?\d{1,3})?|nan|inf(?:inity)?))(?!\w|\.\d)"
IS = r"[\"']?\s{0,8}(?:[:=]\s{0,8})?[\"'\[(]{0,2}"

STEP = re.compile(
    r"(?i)(?<![\w.-])(global[_ ]?step|steps?|iter(?:ation)?|num_updates)\b(?:\(train\))?[\"']?\s{0,12}"
    r"(?:[:=#]\s{0,12})?(?:[\"'\[(]\s{0,8})?(\d{1,12})(?:\.0{1,3})?(?![\w.]|,\d)(?:\s{0,4}/\s{0,12}(\d{1,12}))?"
)
OTHERS = re.compile(
    r"(?i)(?<![a-z])(?:eval|valid|val(?![a-z])|test|predict|infer|sampling|denois|generat|warm|max|total|num[ _]|every|"
    r"sav|resum|load|restor|download|tokeni|preprocess|profil|benchmark|sanity|skip|overflow|at )"
)
# An evaluation, unless it is a figure by the way: `val_loss: 3.1` says nothing of the loss after it.
EVALUATES = re.compile(
    r"(?i)(?<![a-z])(?:eval|valid(?![_ ]tok)|val(?![a-z])|test|predict|infer)"
    r"(?!\w{0,8}[_/](?:loss|acc|accuracy|ppl|perplexity)[\"']?\s{0,4}[:=])"
)
TRAINS = re.compile(r"(?i)(?<![a-z])train")
BAR = re.compile(r"(?:^|[\s:\]])\d{1,3}%\|[^|]{0,300}\|\s{0,8}(\d{1,12})/(\d{1,12})\s\[")
BAR_WORDS = frozenset(
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
OF_LAUNCHER = re.compile(
    r"(?i)\[(?:(?:(?:local[_ ]?)?rank|default|node|worker|gpu)?[\s:=_-]{0,3}\d{1,6}|[\d\s:.,/tz+-]{1,40}|"
    r"(?:mon|tue|wed|thu|fri|sat|sun|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)\s[\w\s:.,]{1,30}|"
    r"(?:debug|info|warn(?:ing)?|error)(?![a-z])[^\]\[]{0,60})\]"
)
HOST = re.compile(r"(?<![\w./-])([A-Za-z][\w-]{0,62})(?:\.[\w.-]{1,60})?(?=[:|\])]|\s{1,8}\||\s\S{1,60}\[\d{1,8}\]:)")
WORD = re.compile(r"[A-Za-z]{1,40}")
EPOCH = re.compile(r"(?i)\bepoch\W{0,4}(\d{1,12})")

LOSS = re.compile(rf"(?i)loss{IS}{NUMBER}")
LOSS_AT = re.compile(
    rf"(?i)\bloss\s{{1,4}}at\s{{1,4}}(?:step|iteration)\s{{1,4}}(\d{{1,12}})\s{{0,4}}[:=]\s{{0,4}}{NUMBER}"
)
LOSS_JOINED = re.compile(r"(?i)(?<![A-Za-z_])(?:lm|train|training|total|avg|mean|step|reduced_train)[_/]$")
LOSS_AFTER = frozenset(["lm", "train", "training", "total", "average", "avg", "mean", "step", "info", "debug", "and"])
GRAD_NORM = re.compile(rf"(?i)(?:grad(?:ient)?[_ ]?norm|\bgnorm){IS}{NUMBER}")
RATE = re.compile(rf"(?i)(?<![A-Za-z])(?:learning[_ ]rate|lr){IS}{NUMBER}")
TOKENS = re.compile(rf"(?i)consumed[_ ]tokens{IS}{NUMBER}")
THROUGHPUT = re.compile(r"(?i)\b(?:tps|tgs|wps|tok(?:en)?s?/s|tokens?/(?:gpu/)?s|samples/s|\w{0,20}samplespersec)")
STEP_TIME = re.compile(
    r"(?i)(?:time[_ ]per[_ ](?:iteration|step)|(?:iter|step)[_ ]time|step[_ ]timing)(?:[_ ]in)?[_ ]?\(?(ms|s)?\)?"
    r"\s{0,2}[:=]\s{0,8}(\d{1,12}(?:\.\d{1,12})?)\s?(ms|k)?(?![a-rt-z\d])"
)
BRIEF_TIME = re.compile(r"(?i)(?<![\w-])time:?\s{1,2}(\d{1,12}(?:\.\d{1,12})?)\s?ms\b")
PACE = re.compile(
    r"(?i)(?<![\w.])(\d{1,12}(?:\.\d{1,12})?)\s?(?:(s|sec)/(?:it|iter|step)|(?:it|iter|step)s?/s(?:ec)?)\b"
)

DONE = re.compile(r"(?i)\b(?:saved|finished sav\w{0,5}|is ready now|save ckpt use)\b")
SUBJECT = re.compile(r"(?i)checkpoint|ckpt|global_step\d")
NOT_DONE = re.compile(
    r"(?i)\b(?:not|never|no|fail\w{0,5}|error|exception|unable|cannot|could|will|would|to be|before|if|when|"
    r"load\w{0,4}|restor\w{0,4}|resum\w{0,4}|delet\w{0,4}|remov\w{0,4}|last|previous|configuration)\b"
)
SHARD = re.compile(r"(?i)(?:model|optim)_states")  # of one rank; others may still write
SAVED_STEP = re.compile(r"(?i)(?:iteration|iter_?|step|checkpoint-)[\s:=_-]{0,12}(\d{1,12})(?!\d)")
PATH = re.compile(
    r"\b(?:to|in|at|as)\s{1,4}[\"'`]?(?!\d{1,4}/\d{1,2}(?:/\d{1,4})?(?:[\sT,;.)\]]|$))"  # a date
    r"((?:\.{0,2}/|[a-z][a-z0-9]{0,11}:/{1,2}|[\w.-]{1,100}/)[^\s\"'`,;|]{1,290})"
)
PART_OF_PATH = re.compile(r"/[A-Za-z._~]|[A-Za-z._]/")
FOLDERS = re.compile(r"(?<!\S)/(?:[\w.-]{1,60}/){1,12}")


@dataclass(frozen=True, kw_only=True)
class Told:
    """A step that was completed, with what was said of it."""

    step: int
    total: int | None = None
    loss: float | None = None
    grad_norm: float | None = None
    step_time_s: float | None = None
    learning_rate: float | None = None
    tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A checkpoint of which the log says that it is saved; nobody has looked."""

    step: int
    path: str = ""


@dataclass(frozen=True, kw_only=True)
class Printed:
    newest: Told | None = None
    saved: Saved | None = None


def read(lines: Sequence[str], before: int | None = None, hosts: Collection[str] = ()) -> Printed:
    """`before` is the furthest step that was known; without anything new, `newest` is None. It runs on `hosts`."""
    lines = _without_hosts(lines, hosts)
    newest = _newest(lines)
    if newest is not None and before is not None and before - BEHIND < newest.step <= before:
        newest = None
    return Printed(newest=newest, saved=_last_saved(lines, before))


def _without_hosts(lines: Sequence[str], hosts: Collection[str]) -> Sequence[str]:
    """A node may be called test-001. In front of a line that says nothing of what the line counts."""
    misleading = {host.partition(".")[0].lower() for host in hosts if OTHERS.search(host)}
    if not misleading:
        return lines
    return [_without(misleading, line) if _may_tell(line) else line for line in lines]


def _without(misleading: Collection[str], line: str) -> str:
    return HOST.sub(lambda named: _hidden(named, misleading), line[:LONGEST], count=MOST_NAMES)


def _hidden(named: re.Match[str], misleading: Collection[str]) -> str:
    before = named.string[: named.start()]
    is_prefix = named[1].lower() in misleading and "%|" not in before and not STEP.search(before)
    return "host" if is_prefix else named[0]


def _newest(lines: Sequence[str]) -> Told | None:
    """From the end on, by a few lines at once: of a thousand steps only the last is wanted."""
    marked = [line[:LONGEST] for line in lines if _may_tell(line)][-MOST_TAKEN_APART:]
    for end in range(len(marked), 0, -AT_ONCE):
        newest: Told | None = None
        for one in _told(marked[max(0, end - AT_ONCE) : end + AROUND]):
            newest = _joined(newest, one)
        if newest is not None:
            return newest
    return None


def _may_tell(line: str) -> bool:
    low = line.lower()
    counts = "step" in low or "iter" in low or "num_updates" in low or "%|" in low
    return counts or ("epoch" in low and ("loss" in low or "eval_" in low))


def _last_saved(lines: Sequence[str], before: int | None) -> Saved | None:
    """One that does not say at which step is of the step before it."""
    for place in range(len(lines) - 1, -1, -1):
        if (saved := _saved(lines[place][:LONGEST])) is None:
            continue
        newest = _newest(lines[:place]) if saved.step < 0 else None
        step = newest.step if newest else before if saved.step < 0 else saved.step
        return replace(saved, step=step) if step is not None else None
    return None


def _joined(known: Told | None, one: Told) -> Told:
    """The furthest step, with the last that was said of each figure."""
    if known is None:
        return one
    ahead, behind = (one, known) if one.step > known.step else (known, one)
    missing = {name: value for name, value in vars(behind).items() if getattr(ahead, name) is None}
    return replace(ahead, **missing)


def _told(lines: Iterable[str]) -> Iterator[Told]:
    bars = _Bars()
    for line in lines:
        if (found := bars.heard(line)) is not None:
            yield found
    if (late := bars.late()) is not None:
        yield late


class _Bars:
    """A trainer that shows a bar prints its figures without their step, above a bar that it then draws anew."""

    def __init__(self) -> None:
        self.bar: tuple[int, int] | None = None
        self.waits: Told | None = None

    def heard(self, line: str) -> Told | None:
        if "%|" in line and (drawn := BAR.search(line)):
            return self.drawn(line, drawn)
        if "eval_" in line and "{" in line:
            late, self.bar = self.late(), None  # whatever was drawn last may have counted the evaluation
            return late or _of_line(line)
        if told := _of_line(line):
            return told
        if "epoch" in line.lower() and (figures := _figures_alone(line)):
            late, self.waits = self.late(), figures
            return late
        return None

    def drawn(self, line: str, drawn: re.Match[str]) -> Told | None:
        bare = _bare_bar(line, drawn)
        if bare is None:
            return _beside_a_bar(line, drawn)
        if self._ended_before(bare):
            self.waits = None  # nobody knows of which of the two they are
        if self.waits is None or (self.bar is None and bare[0]) or (self.bar and self.bar[1] == bare[1]):
            self.bar = bare
        return self.late()

    def _ended_before(self, bare: tuple[int, int]) -> bool:
        return self.bar is not None and self.bar[0] >= self.bar[1] and bare[0] > 0 and bare[1] > self.bar[1]

    def late(self) -> Told | None:
        """Figures whose bar has come, or will not come any more: another one is not theirs."""
        told, self.waits = self.waits, None
        return replace(told, step=self.bar[0], total=_total(self.bar[0], self.bar[1])) if told and self.bar else None


def _of_line(line: str) -> Told | None:
    found = [match for match in islice(STEP.finditer(line), MOST_COUNTERS) if _counts_training(line, match)]
    if not found:
        return _loss_at(line)
    of_all = next((match for match in found if match[1].lower().startswith("global")), found[0])
    step = int(of_all[2])
    total = _total(step, int(of_all[3])) if of_all[3] else None
    told = _figures(line, Told(step=step, total=total), found[0].start())
    tells = (told.loss, told.grad_norm, told.learning_rate, told.tokens, THROUGHPUT.search(line))
    return told if any(one is not None for one in tells) else None


def _loss_at(line: str) -> Told | None:
    """`loss at step 50: 2.31`"""
    match = LOSS_AT.search(line)
    if match is None or not (_counts_training(line, match) and _is_its_loss(line, match.start())):
        return None
    return Told(step=int(match[1]), loss=float(match[2].replace(",", "")))


def _counts_training(line: str, match: re.Match[str]) -> bool:
    """The folders in which a program lies say nothing of what it does."""
    before = FOLDERS.sub(lambda folders: " " * len(folders[0]), line[: match.start()])
    return not OTHERS.search(before[-LOOKED_BACK:])


def _total(step: int, total: int) -> int | None:
    return total if total >= step else None


# --- bars


def _bare_bar(line: str, drawn: re.Match[str]) -> tuple[int, int] | None:
    """How far one is that says nothing but a number."""
    others = OTHERS.search(line[: drawn.start() + 1])
    if others or _labels(line, drawn) - {"rank"} or "=" in line[drawn.end() :]:
        return None
    return int(drawn[1]), int(drawn[2])


def _beside_a_bar(line: str, drawn: re.Match[str]) -> Told | None:
    """What stands beside the bar of an evaluation is the evaluation's."""
    if EVALUATES.search(line[: drawn.start() + 1]):
        return None
    return _of_bar(line, drawn) or _of_line(line[drawn.end() :])


def _of_bar(line: str, drawn: re.Match[str]) -> Told | None:
    if _labels(line, drawn) - BAR_WORDS or OTHERS.search(line[: drawn.start() + 1]):
        return None
    figures, done, total = line[drawn.end() :], int(drawn[1]), int(drawn[2])
    of_all = next((match for match in STEP.finditer(figures) if match[1].lower().startswith("global")), None)
    told = _figures(figures, Told(step=done))
    if told.loss is None and "v_num=" not in figures:
        return None
    if of_all:
        return replace(told, step=int(of_all[2]))
    if epoch := EPOCH.search(line[: drawn.start()]):  # counts anew in each
        step = int(epoch[1]) * total + done
        return replace(told, step=step) if int(epoch[1]) <= MOST_EPOCHS and step <= MOST_STEPS else None
    return replace(told, total=_total(done, total))


def _labels(line: str, drawn: re.Match[str]) -> set[str]:
    """What launchers put in brackets, a rank or a moment or a level, is no label; other words there are."""
    before = OF_LAUNCHER.sub("", line[: drawn.start() + 1])
    return {word.lower() for word in WORD.findall(before)}


def _figures_alone(line: str) -> Told | None:
    """`{'loss': 2.1, 'learning_rate': 1e-05, 'epoch': 0.1}`; its step is what the bar says."""
    begin = line.find("{")
    if begin < 0 or "train_runtime" in line:
        return None
    told = _figures(line[begin:], Told(step=0))
    return told if told.loss is not None else None


# --- figures


def _figures(line: str, told: Told, counted_at: int = 0) -> Told:
    norm = _number(GRAD_NORM.search(line))
    tokens = _number(TOKENS.search(line))
    return replace(
        told,
        loss=_loss(line, counted_at),
        grad_norm=None if norm is not None and norm < 0 else norm,
        learning_rate=_number(RATE.search(line)),
        step_time_s=_step_time(line),
        tokens=int(tokens) if tokens is not None and 0 <= tokens < MOST else None,
    )


def _number(match: re.Match[str] | None) -> float | None:
    return float(match[1].replace(",", "")) if match else None


def _loss(line: str, counted_at: int) -> float | None:
    """The training's own: there are losses of a validation, of parts of the model, of a critic."""
    evaluated = [match.start() for match in EVALUATES.finditer(line, counted_at)]
    trained = [match.start() for match in TRAINS.finditer(line, counted_at)]
    for match in LOSS.finditer(line):
        evaluates, trains = (_last_before(match.start(), places) for places in (evaluated, trained))
        if evaluates <= trains and _is_its_loss(line, match.start()):
            return _number(match)
    return None


def _last_before(end: int, places: list[int]) -> int:
    return places[at - 1] if (at := bisect_left(places, end)) else -1


def _is_its_loss(line: str, at: int) -> bool:
    before = line[max(0, at - 24) : at]
    if not before or not (before[-1].isalnum() or before[-1] in "_/-. "):
        return True
    if before[-1] != " ":
        return LOSS_JOINED.search(before) is not None
    word = WORD.search(before.rpartition(" ")[0].rpartition(" ")[2])
    is_word = before[-2:-1].isalpha()
    return not is_word or (word is not None and word[0].lower() in LOSS_AFTER)


def _step_time(line: str) -> float | None:
    if match := STEP_TIME.search(line):
        units = (match[1] or "").lower(), (match[3] or "").lower()
        return _positive(float(match[2]) / (1000 if "ms" in units else 1) * (1000 if "k" in units else 1))
    if match := PACE.search(line):
        value = float(match[1])
        return _positive(value if match[2] else 1 / value if value else 0.0)
    match = BRIEF_TIME.search(line)
    return _positive(float(match[1]) / 1000) if match else None


def _positive(value: float) -> float | None:
    return value if 0 < value < math.inf else None


# --- checkpoints


def _saved(line: str) -> Saved | None:
    low = line.lower()
    if not ("save" in low or "saving" in low or "ready" in low) or not (DONE.search(line) and SUBJECT.search(line)):
        return None
    path = PATH.search(line)
    words = line.replace(path[1], "") if path else line
    if NOT_DONE.search(words) or SHARD.search(line):
        return None
    return Saved(step=_saved_step(line, path[1] if path else ""), path=path[1] if path else "")


def _saved_step(line: str, path: str) -> int:
    """As the words say, else the innermost folder: those around it may be named after steps of a recipe."""
    words = " ".join(word for word in line.replace(path, "").split() if not PART_OF_PATH.search(word))
    if said := SAVED_STEP.search(words):
        return int(said[1])
    named = SAVED_STEP.findall(path) or SAVED_STEP.findall(line)
    return int(named[-1]) if named else -1
