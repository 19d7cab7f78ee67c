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

GPU, HOST = "OutOfMemoryError", ("HostOOMKilled", "DataloaderKilled")
CAUSES = frozenset({GPU, *HOST})

# An option as it is written in a command: --micro-batch-size 8, data.micro_batch_size=8, MICRO_BATCH_SIZE=8
OPTION = re.compile(
    r"(?<![^\s'\"])(?P<flag>--?[A-Za-z][\w.-]*|\+{0,2}[A-Za-z_][\w./]*(?==))(?P<by>=|[ \t]+)"
    r"(?P<value>\d{1,7})(?![^\s'\";\\])"
)
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

MEMORY, COMMAND, ENVIRONMENT = "memory_per_node", "command", "environment"
GIB = 1024


@dataclass(frozen=True, kw_only=True)
class Option:
    place: str  # command or environment
    flag: str
    by: str
    value: int

    @property
    def name(self) -> str:
        return re.split(r"[./]", self.flag.lstrip("-+"))[-1].lower().replace("-", "_")

    @property
    def text(self) -> str:
        return f"{self.flag}{self.by}{self.value}"


@dataclass(frozen=True, kw_only=True)
class Request:
    """What of a job's request says how much memory it needs."""

    memory_mb: int = 0  # 0: what its cluster gives
    most_memory_mb: int = 0  # of a node that it could run on
    whole_nodes: bool = False
    options: tuple[Option, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Change:
    what: str
    was: str
    becomes: str
    why: str
    keeps_batch: bool = True

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


def request(asked: Asked, *, most_memory_mb: int, whole_nodes: bool) -> Request:
    """Only numbers behind a name that counts here: a command may hold secrets, and this is kept with the decision."""
    found = [*_options(COMMAND, [asked.command]), *_options(ENVIRONMENT, _assignments(asked.environment))]
    counted = PER_GPU | STEPS | WHOLE | WORKERS | {BATCH}
    return Request(
        memory_mb=asked.memory_mb,
        most_memory_mb=most_memory_mb,
        whole_nodes=whole_nodes,
        options=tuple(one for one in found if one.name in counted)[:MOST_OPTIONS],
    )


def _assignments(environment: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in environment.items()]


def _options(place: str, texts: Iterable[str]) -> Iterator[Option]:
    for text in texts:
        for match in OPTION.finditer(text):
            yield Option(place=place, flag=match["flag"], by=match["by"], value=int(match["value"]))


# --- what is asked for instead


def change(cause: str, request: Request | None) -> tuple[Change, ...]:
    """Empty: nobody here knows what would help."""
    if request is None:
        return ()
    return _smaller_batch(request) if cause == GPU else _more_memory(request) or _fewer_workers(request)


def _smaller_batch(request: Request) -> tuple[Change, ...]:
    names = {one.name for one in request.options}
    batch = _one(request, PER_GPU if names & PER_GPU else {BATCH})
    if batch is None or batch.value < 2:
        return ()
    part = next(part for part in range(2, batch.value + 1) if batch.value % part == 0)
    smaller = _changed(batch, batch.value // part, "each step needs less memory")
    if names & (WHOLE if batch.name == BATCH else WHOLE | {BATCH}):  # beside one of a GPU's it is that of all
        return (replace(smaller, why="each step needs less memory, and the global batch that it names stays"),)
    if steps := _one(request, STEPS):
        more = _changed(steps, steps.value * part, "so the batch between two updates stays as it was")
        return smaller, more
    if batch.name in TRANSFORMERS and batch.place == COMMAND and batch.flag.startswith("--"):
        added = f"{smaller.becomes} --gradient_accumulation_steps{batch.by}{part}"
        why = "each step needs less memory, and the batch between two updates stays as it was"
        return (replace(smaller, becomes=added, why=why),)
    return (replace(smaller, keeps_batch=False),)


def _more_memory(request: Request) -> tuple[Change, ...]:
    was, most = request.memory_mb, request.most_memory_mb
    more = min(most, -(-was * 3 // 2 // GIB) * GIB) if was else most if request.whole_nodes else 0
    if more <= was:
        return ()
    why = "all that its nodes have" if more == most else "half as much again"
    return (Change(what=MEMORY, was=_written(was), becomes=_written(more), why=why),)


def _fewer_workers(request: Request) -> tuple[Change, ...]:
    workers = _one(request, WORKERS)
    if workers is None or workers.value < 2:
        return ()
    return (_changed(workers, workers.value // 2, "each worker of a data loader holds a copy of what it prepares"),)


def _one(request: Request, names: Iterable[str]) -> Option | None:
    """What is named twice means two things, and nobody here knows which of them was too large."""
    found = [one for one in request.options if one.name in names]
    return found[0] if len(found) == 1 else None


def _changed(option: Option, value: int, why: str) -> Change:
    return Change(what=option.place, was=option.text, becomes=replace(option, value=value).text, why=why)


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
        name, _, value = one.was.partition("=")
        if asked.environment.get(name) != value:
            raise Differs(f"its environment does not say {one.was} any more")
        return replace(asked, environment={**asked.environment, name: one.becomes.partition("=")[2]})
    written = re.compile(rf"(?<![^\s'\"]){re.escape(one.was)}(?![^\s'\";\\])")
    if len(written.findall(asked.command)) != 1:
        raise Differs(f"its command does not say {one.was} any more")
    return replace(asked, command=written.sub(lambda _: one.becomes, asked.command))


def _written(megabytes: int) -> str:
    """To the megabyte, for it is read back; nothing where nothing was asked for."""
    return "" if not megabytes else f"{megabytes}M" if megabytes % GIB else f"{megabytes // GIB}G"


def _megabytes(text: str) -> int:
    return parse_memory_mb(text) if text else 0
