"""What a job that was too large for its memory asks for instead: a smaller batch for each GPU, or more memory. Pure.

The batch is made smaller where the job names it, in its command or in its environment, and what the program needs to
keep its global batch is changed with it: half the batch, twice the steps of accumulation. A batch that is named twice,
or in a file that nobody here reads, is left to its owner. Nothing else of a command is touched, and none of it is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from jobs.notation import parse_memory_mb

GPU, HOST, LOADER = "OutOfMemoryError", "HostOOMKilled", "DataloaderKilled"
CAUSES = frozenset({GPU, HOST, LOADER})

# An option as it is written in a command: --micro-batch-size 8, data.micro_batch_size=8, MICRO_BATCH_SIZE=8
OPTION = re.compile(
    r"(?<![^\s'\"])(?P<flag>--?[A-Za-z][\w.-]*|\+{0,2}[A-Za-z_][\w./]*(?==))(?P<by>=|[ \t]+)"
    r"(?P<value>[0-9]{1,7})(?![^\s'\";\\])"
)
WHOLE_VALUE = re.compile(r"[0-9]{1,7}")
MOST_OPTIONS = 200

PER_GPU = frozenset(
    {
        *("micro_batch_size", "micro_batch_size_per_gpu", "train_micro_batch_size_per_gpu", "mbs", "local_batch_size"),
        *("per_device_train_batch_size", "per_gpu_train_batch_size"),
    }
)
BATCH = "batch_size"  # of one GPU or of all: programs differ
STEPS = frozenset(
    {
        *("gradient_accumulation_steps", "gradient_accumulation", "accumulation_steps", "accumulate_grad_batches"),
        *("grad_accum_steps", "grad_acc_steps", "gas"),
    }
)
WHOLE = frozenset({"global_batch_size", "train_batch_size", "gbs"})  # who names it accumulates by himself
TRANSFORMERS = frozenset({"per_device_train_batch_size", "per_gpu_train_batch_size"})  # and its name for the steps
WORKERS = frozenset({"num_workers", "dataloader_num_workers", "num_data_workers", "data_workers", "dataloader_workers"})

KINDS = (PER_GPU | {BATCH}, STEPS, WHOLE, WORKERS)
COUNTED = frozenset().union(*KINDS)

WORD = re.compile(r"(?<![A-Za-z0-9_])[A-Za-z_]\w*(?:-[A-Za-z_]\w*)*")
REFERENCE = re.compile(r"(?:=|[ \t]+)\"?\$\{?(\w+)")  # behind an option: its value stands somewhere else
COMMENT = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.|(?P<comment>(?<![^\s;&|()])#[^\n]*)""", re.DOTALL)

MEMORY, COMMAND, ENVIRONMENT = "memory_per_node", "command", "environment"
GIB = 1024
TO_THE_GIB = 8 * GIB  # less is asked for to the megabyte
MOST_PARTS = 8  # a batch that only a larger number divides would become far too small

# A data loader's memory between its processes has a size of its own, whatever the job asks for
SHARED = re.compile(
    r"shared[ _]memory|\bshm\b|bus error|sigbus|\bsignal:? 7\b|(?:exitcode *:|code[ =:]{1,4}) *(?:-7|135)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Option:
    place: str  # command or environment
    flag: str
    by: str
    value: int
    variable: str = ""  # of the environment, in whose value it stands or whose value it is
    raw: str = ""  # the value as it is written: 08

    @property
    def name(self) -> str:
        return _name(re.split(r"[./]", self.flag.lstrip("-+"))[-1])

    @property
    def text(self) -> str:
        return f"{self.flag}{self.by}{self.raw or self.value}"


def _name(word: str) -> str:
    return word.lower().replace("-", "_")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What of a job's request says how much memory it needs."""

    memory_mb: int = 0  # 0: what its cluster gives
    most_memory_mb: int = 0  # of a node that it could run on
    whole_nodes: bool = False
    options: tuple[Option, ...] = ()
    shared: bool = False  # it was the memory between its processes that ran out
    unread: tuple[str, ...] = ()  # names that count and stand there too, with what is no plain number


@dataclass(frozen=True, kw_only=True)
class Change:
    what: str
    was: str
    becomes: str
    why: str
    keeps_batch: bool = True
    variable: str = ""  # of the environment

    @property
    def sentence(self) -> str:
        return f"{self.becomes} instead of {self.was or 'nothing'}: {self.why}."


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What of a job a change is made to."""

    command: str
    environment: Mapping[str, str] = field(default_factory=dict)
    memory_mb: int = 0


class Differs(Exception):
    """The job does not ask any more for what was to be changed; the message is a sentence."""


def request(asked: Asked, *, most_memory_mb: int, whole_nodes: bool, said: Iterable[str] = ()) -> Request:
    """Only numbers behind a name that counts here: a command may hold secrets, and this is kept with the decision.
    `said` is the evidence, as it stands in the log."""
    found = [one for one in _found(asked) if one.name in COUNTED]
    return Request(
        memory_mb=asked.memory_mb,
        most_memory_mb=most_memory_mb,
        whole_nodes=whole_nodes,
        options=tuple(found[:MOST_OPTIONS]),
        shared=any(SHARED.search(line) for line in said),
        unread=tuple(sorted(_unread(asked, found))),
    )


def possible(cause: str, request: Request, asked: Asked) -> Request | None:
    """None where what would be proposed could not be carried out: then it stays advice."""
    try:
        applied(change(cause, request), asked)
    except Differs:
        return None
    return request


def _found(asked: Asked) -> list[Option]:
    found = list(_options(_without_comments(asked.command), COMMAND))
    for name, value in asked.environment.items():
        if WHOLE_VALUE.fullmatch(value):
            found.append(Option(place=ENVIRONMENT, flag=name, by="=", value=int(value), variable=name, raw=value))
        found += _options(value, ENVIRONMENT, name)
    return found


def _options(text: str, place: str, variable: str = "") -> Iterator[Option]:
    for match in OPTION.finditer(text):
        yield Option(
            place=place, flag=match["flag"], by=match["by"], value=int(match["value"]), variable=variable,
            raw=match["value"],
        )  # fmt: skip


def _without_comments(command: str) -> str:
    """As long as before, so that what is found stands where it stood."""
    return COMMENT.sub(lambda match: " " * len(match[0]) if match["comment"] else match[0], command)


def _unread(asked: Asked, found: Iterable[Option]) -> set[str]:
    """What is named, but with a value that nobody here can read; not where it refers to one that was read."""
    read = {one.flag for one in found if one.by == "=" and (one.place == COMMAND or one.flag == one.variable)}
    names = {_counted(name) for name, value in asked.environment.items() if not WHOLE_VALUE.fullmatch(value)}
    for text in (_without_comments(asked.command), *asked.environment.values()):
        names.update(_unread_in(text, read))
    return names - {""}


def _unread_in(text: str, read: set[str]) -> Iterator[str]:
    ends = {match.end("flag") for match in OPTION.finditer(text)}
    for word in WORD.finditer(text):
        name, start, end = _counted(word[0]), *word.span()
        if not name or (end in ends and name == _name(word[0])):
            continue
        behind = REFERENCE.match(text, end)
        source = word[0] if text[max(0, start - 2) : start].endswith(("$", "${")) else behind[1] if behind else ""
        if source not in read or not any({name, _name(source)} <= kind for kind in KINDS):
            yield name


def _counted(word: str) -> str:
    """The name that counts; a program may have put its own before that of the steps."""
    name = _name(word)
    return name if name in COUNTED else next((one for one in sorted(STEPS) if name.endswith(f"_{one}")), "")


# --- what is asked for instead


def change(cause: str, request: Request | None) -> tuple[Change, ...]:
    """Empty: nobody here knows what would help."""
    if request is None:
        return ()
    if cause == GPU:
        return _smaller_batch(request)
    if cause == LOADER and request.shared:
        return _fewer_workers(request)
    return _more_memory(request) or _fewer_workers(request)


def _smaller_batch(request: Request) -> tuple[Change, ...]:
    names, unread = {one.name for one in request.options}, set(request.unread)
    kind = PER_GPU if (names | unread) & PER_GPU else frozenset({BATCH})
    batch = _one(request, kind)
    if batch is None or batch.value < 2:
        return ()
    part = next((part for part in range(2, MOST_PARTS + 1) if batch.value % part == 0), None)
    if part is None:
        return ()
    smaller = _changed(batch, batch.value // part, "each step needs less memory")
    if names & (WHOLE if batch.name == BATCH else WHOLE | {BATCH}):  # beside one of a GPU's it is that of all
        return (replace(smaller, why="each step needs less memory, and the global batch that it names stays"),)
    if unread & (WHOLE | {BATCH}):
        return (replace(smaller, keeps_batch=False),)
    named = (names | unread) & STEPS
    if (steps := _one(request, STEPS)) and steps.value:
        more = _changed(steps, steps.value * part, "so the batch between two updates stays as it was")
        return smaller, more
    if not named and batch.name in TRANSFORMERS and batch.place == COMMAND and batch.flag.startswith("--"):
        added = f"{smaller.becomes} --gradient_accumulation_steps{batch.by}{part}"
        why = "each step needs less memory, and the batch between two updates stays as it was"
        return (replace(smaller, becomes=added, why=why),)
    return (replace(smaller, keeps_batch=False),)


def _more_memory(request: Request) -> tuple[Change, ...]:
    was, most = request.memory_mb, request.most_memory_mb
    half_more = was + -(-was // 2)
    rounded = half_more if half_more < TO_THE_GIB else -(-half_more // GIB) * GIB
    more = min(most, rounded) if was else most if request.whole_nodes else 0
    if more <= was:
        return ()
    why = "all that its nodes have" if more == most else f"{_written(more - was)} more"
    return (Change(what=MEMORY, was=_written(was), becomes=_written(more), why=why),)


def _fewer_workers(request: Request) -> tuple[Change, ...]:
    workers = _one(request, WORKERS)
    if workers is None or workers.value < 2:
        return ()
    return (_changed(workers, workers.value // 2, "each worker of a data loader holds a copy of what it prepares"),)


def _one(request: Request, names: frozenset[str]) -> Option | None:
    """What is named twice means two things, and nobody here knows which of them was too large."""
    found = [one for one in request.options if one.name in names]
    return found[0] if len(found) == 1 and not names & set(request.unread) else None


def _changed(option: Option, value: int, why: str) -> Change:
    becomes = replace(option, value=value, raw="").text
    return Change(what=option.place, was=option.text, becomes=becomes, why=why, variable=option.variable)


# --- made


def applied(changes: Iterable[Change], asked: Asked) -> Asked:
    for one in changes:
        asked = _applied(one, asked)
    return asked


def taken_back(changes: Iterable[Change]) -> tuple[Change, ...]:
    return tuple(replace(one, was=one.becomes, becomes=one.was) for one in changes)


def _applied(one: Change, asked: Asked) -> Asked:
    if one.what == MEMORY:
        if asked.memory_mb != _megabytes(one.was):
            raise Differs(f"it asks for {_written(asked.memory_mb) or 'no amount'} of memory by now")
        return replace(asked, memory_mb=_megabytes(one.becomes))
    if one.what == ENVIRONMENT:
        name = one.variable or one.was.partition("=")[0]
        return replace(asked, environment={**asked.environment, name: _in_variable(one, name, asked.environment)})
    return replace(asked, command=_in_text(one, asked.command, "its command", _without_comments(asked.command)))


def _in_variable(one: Change, name: str, environment: Mapping[str, str]) -> str:
    if name not in environment:
        raise Differs(f"its environment has no {name} any more")
    if f"{name}={environment[name]}" == one.was:
        return one.becomes.removeprefix(f"{name}=")
    return _in_text(one, environment[name], f"{name} of its environment")


def _in_text(one: Change, text: str, whose: str, counted: str | None = None) -> str:
    """Where it stands in what counts of the text."""
    written = re.compile(rf"(?<![^\s'\"]){re.escape(one.was)}(?![^\s'\";\\])")
    found = [match.span() for match in written.finditer(text if counted is None else counted)]
    if len(found) != 1:
        raise Differs(f"{whose} says {one.was} more than once" if found else f"{whose} does not say {one.was} any more")
    ((start, end),) = found
    return text[:start] + one.becomes + text[end:]


def _written(megabytes: int) -> str:
    """To the megabyte, for it is read back; nothing where nothing was asked for."""
    return "" if not megabytes else f"{megabytes}M" if megabytes % GIB else f"{megabytes // GIB}G"


def _megabytes(text: str) -> int:
    return parse_memory_mb(text) if text else 0
