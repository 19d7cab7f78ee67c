"""What a job that was too large for its memory asks for instead: a smaller batch for each GPU, or more memory. Pure.

The batch is made smaller where the job names it, in its command or in its environment, and what the program needs to
keep its global batch is changed with it: half the batch, twice the steps of accumulation. A batch that is named twice,
or in a file that nobody here reads, is left to its owner. Nothing else of a command is touched, and none of it is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from jobs.core.slurm_notation import parse_memory_mb

GPU_OOM, HOST_OOM, LOADER_OOM = "OutOfMemoryError", "HostOOMKilled", "DataloaderKilled"
MEMORY_CAUSES = frozenset({GPU_OOM, HOST_OOM, LOADER_OOM})

# An option as it is written in a command: --micro-batch-size 8, data.micro_batch_size=8, MICRO_BATCH_SIZE=8
OPTION_PATTERN = re.compile(
    r"(?<![^\s'\"])(?P<flag>--?[A-Za-z][\w.-]*|\+{0,2}[A-Za-z_][\w./]*(?==))(?P<by>=|[ \t]+)"
    r"(?P<value>[0-9]{1,7})(?![^\s'\";\\])"
)
INTEGER_VALUE_PATTERN = re.compile(r"[0-9]{1,7}")
MAX_OPTIONS = 200

PER_GPU_BATCH_NAMES = frozenset(
    {
        *("micro_batch_size", "micro_batch_size_per_gpu", "train_micro_batch_size_per_gpu", "mbs", "local_batch_size"),
        *("per_device_train_batch_size", "per_gpu_train_batch_size"),
    }
)
BATCH_NAME = "batch_size"  # of one GPU or of all: programs differ
ACCUMULATION_NAMES = frozenset(
    {
        *("gradient_accumulation_steps", "gradient_accumulation", "accumulation_steps", "accumulate_grad_batches"),
        *("grad_accum_steps", "grad_acc_steps", "gas"),
    }
)
GLOBAL_BATCH_NAMES = frozenset({"global_batch_size", "train_batch_size", "gbs"})  # who names it accumulates by himself
TRANSFORMERS_BATCH_NAMES = frozenset(
    {"per_device_train_batch_size", "per_gpu_train_batch_size"}
)  # and its name for the steps
WORKER_COUNT_NAMES = frozenset(
    {"num_workers", "dataloader_num_workers", "num_data_workers", "data_workers", "dataloader_workers"}
)

OPTION_NAME_GROUPS = (PER_GPU_BATCH_NAMES | {BATCH_NAME}, ACCUMULATION_NAMES, GLOBAL_BATCH_NAMES, WORKER_COUNT_NAMES)
RELEVANT_OPTION_NAMES = frozenset().union(*OPTION_NAME_GROUPS)

IDENTIFIER_PATTERN = re.compile(r"(?<![A-Za-z0-9_])[A-Za-z_]\w*(?:-[A-Za-z_]\w*)*")
REFERENCE_PATTERN = re.compile(r"(?:=|[ \t]+)\"?\$\{?(\w+)")  # behind an option: its value stands somewhere else
COMMENT_PATTERN = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.|(?P<comment>(?<![^\s;&|()])#[^\n]*)""", re.DOTALL)

MEMORY, COMMAND, ENVIRONMENT = "memory_per_node", "command", "environment"
MB_PER_GIB = 1024
ROUND_UP_FROM_MB = 8 * MB_PER_GIB  # less is asked for to the megabyte
MAX_BATCH_DIVISOR = 8  # a batch that only a larger number divides would become far too small

# A data loader's memory between its processes has a size of its own, whatever the job asks for
SHARED_MEMORY_PATTERN = re.compile(
    r"shared[ _]memory|\bshm\b|bus error|sigbus|\bsignal:? 7\b|(?:exitcode *:|code[ =:]{1,4}) *(?:-7|135)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class RequestOption:
    place: str  # command or environment
    flag: str
    by: str
    value: int
    variable: str = ""  # of the environment, in whose value it stands or whose value it is
    raw: str = ""  # the value as it is written: 08

    @property
    def name(self) -> str:
        return _normalize_name(re.split(r"[./]", self.flag.lstrip("-+"))[-1])

    @property
    def text(self) -> str:
        return f"{self.flag}{self.by}{self.raw or self.value}"


def _normalize_name(word: str) -> str:
    return word.lower().replace("-", "_")


@dataclass(frozen=True, kw_only=True)
class MemoryRequest:
    """What of a job's request says how much memory it needs."""

    memory_mb: int = 0  # 0: what its cluster gives
    most_memory_mb: int = 0  # of a node that it could run on
    whole_nodes: bool = False
    options: tuple[RequestOption, ...] = ()
    shared: bool = False  # it was the memory between its processes that ran out
    unread: tuple[str, ...] = ()  # names that count and stand there too, with what is no plain number


@dataclass(frozen=True, kw_only=True)
class RequestChange:
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
class JobRequest:
    """What of a job a change is made to."""

    command: str
    environment: Mapping[str, str] = field(default_factory=dict)
    memory_mb: int = 0


class RequestChangedMeanwhile(Exception):
    """The job does not ask any more for what was to be changed; the message is a sentence."""


def build_memory_request(
    asked: JobRequest, *, most_memory_mb: int, whole_nodes: bool, said: Iterable[str] = ()
) -> MemoryRequest:
    """Only numbers behind a name that counts here: a command may hold secrets, and this is kept with the decision.
    `said` is the evidence, as it stands in the log."""
    found = [one for one in _all_options(asked) if one.name in RELEVANT_OPTION_NAMES]
    return MemoryRequest(
        memory_mb=asked.memory_mb,
        most_memory_mb=most_memory_mb,
        whole_nodes=whole_nodes,
        options=tuple(found[:MAX_OPTIONS]),
        shared=any(SHARED_MEMORY_PATTERN.search(line) for line in said),
        unread=tuple(sorted(_unreadable_names(asked, found))),
    )


def applicable_request(cause: str, request: MemoryRequest, asked: JobRequest) -> MemoryRequest | None:
    """None where what would be proposed could not be carried out: then it stays advice."""
    try:
        apply_changes(propose_changes(cause, request), asked)
    except RequestChangedMeanwhile:
        return None
    return request


def _all_options(asked: JobRequest) -> list[RequestOption]:
    found = list(_parse_options(_blank_comments(asked.command), COMMAND))
    for name, value in asked.environment.items():
        if INTEGER_VALUE_PATTERN.fullmatch(value):
            found.append(
                RequestOption(place=ENVIRONMENT, flag=name, by="=", value=int(value), variable=name, raw=value)
            )
        found += _parse_options(value, ENVIRONMENT, name)
    return found


def _parse_options(text: str, place: str, variable: str = "") -> Iterator[RequestOption]:
    for match in OPTION_PATTERN.finditer(text):
        yield RequestOption(
            place=place, flag=match["flag"], by=match["by"], value=int(match["value"]), variable=variable,
            raw=match["value"],
        )  # fmt: skip


def _blank_comments(command: str) -> str:
    """As long as before, so that what is found stands where it stood."""
    return COMMENT_PATTERN.sub(lambda match: " " * len(match[0]) if match["comment"] else match[0], command)


def _unreadable_names(asked: JobRequest, found: Iterable[RequestOption]) -> set[str]:
    """What is named, but with a value that nobody here can read; not where it refers to one that was read."""
    read = {one.flag for one in found if one.by == "=" and (one.place == COMMAND or one.flag == one.variable)}
    names = {
        _relevant_name(name) for name, value in asked.environment.items() if not INTEGER_VALUE_PATTERN.fullmatch(value)
    }
    for text in (_blank_comments(asked.command), *asked.environment.values()):
        names.update(_unreadable_names_in_text(text, read))
    return names - {""}


def _unreadable_names_in_text(text: str, read: set[str]) -> Iterator[str]:
    ends = {match.end("flag") for match in OPTION_PATTERN.finditer(text)}
    for word in IDENTIFIER_PATTERN.finditer(text):
        name, start, end = _relevant_name(word[0]), *word.span()
        if not name or (end in ends and name == _normalize_name(word[0])):
            continue
        behind = REFERENCE_PATTERN.match(text, end)
        source = word[0] if text[max(0, start - 2) : start].endswith(("$", "${")) else behind[1] if behind else ""
        if source not in read or not any({name, _normalize_name(source)} <= kind for kind in OPTION_NAME_GROUPS):
            yield name


def _relevant_name(word: str) -> str:
    """The name that counts; a program may have put its own before that of the steps."""
    name = _normalize_name(word)
    return (
        name
        if name in RELEVANT_OPTION_NAMES
        else next((one for one in sorted(ACCUMULATION_NAMES) if name.endswith(f"_{one}")), "")
    )


# --- what is asked for instead


def propose_changes(cause: str, request: MemoryRequest | None) -> tuple[RequestChange, ...]:
    """Empty: nobody here knows what would help."""
    if request is None:
        return ()
    if cause == GPU_OOM:
        return _smaller_batch(request)
    if cause == LOADER_OOM and request.shared:
        return _fewer_workers(request)
    return _more_memory(request) or _fewer_workers(request)


def _smaller_batch(request: MemoryRequest) -> tuple[RequestChange, ...]:
    names, unread = {one.name for one in request.options}, set(request.unread)
    kind = PER_GPU_BATCH_NAMES if (names | unread) & PER_GPU_BATCH_NAMES else frozenset({BATCH_NAME})
    batch = _single_option(request, kind)
    if batch is None or batch.value < 2:
        return ()
    part = next((part for part in range(2, MAX_BATCH_DIVISOR + 1) if batch.value % part == 0), None)
    if part is None:
        return ()
    smaller = _option_change(batch, batch.value // part, "each step needs less memory")
    if names & (
        GLOBAL_BATCH_NAMES if batch.name == BATCH_NAME else GLOBAL_BATCH_NAMES | {BATCH_NAME}
    ):  # beside one of a GPU's it is that of all
        return (replace(smaller, why="each step needs less memory, and the global batch that it names stays"),)
    if unread & (GLOBAL_BATCH_NAMES | {BATCH_NAME}):
        return (replace(smaller, keeps_batch=False),)
    named = (names | unread) & ACCUMULATION_NAMES
    if (steps := _single_option(request, ACCUMULATION_NAMES)) and steps.value:
        more = _option_change(steps, steps.value * part, "so the batch between two updates stays as it was")
        return smaller, more
    if not named and batch.name in TRANSFORMERS_BATCH_NAMES and batch.place == COMMAND and batch.flag.startswith("--"):
        added = f"{smaller.becomes} --gradient_accumulation_steps{batch.by}{part}"
        why = "each step needs less memory, and the batch between two updates stays as it was"
        return (replace(smaller, becomes=added, why=why),)
    return (replace(smaller, keeps_batch=False),)


def _more_memory(request: MemoryRequest) -> tuple[RequestChange, ...]:
    was, most = request.memory_mb, request.most_memory_mb
    half_more = was + -(-was // 2)
    rounded = half_more if half_more < ROUND_UP_FROM_MB else -(-half_more // MB_PER_GIB) * MB_PER_GIB
    more = min(most, rounded) if was else most if request.whole_nodes else 0
    if more <= was:
        return ()
    why = "all that its nodes have" if more == most else f"{_format_memory(more - was)} more"
    return (RequestChange(what=MEMORY, was=_format_memory(was), becomes=_format_memory(more), why=why),)


def _fewer_workers(request: MemoryRequest) -> tuple[RequestChange, ...]:
    workers = _single_option(request, WORKER_COUNT_NAMES)
    if workers is None or workers.value < 2:
        return ()
    return (
        _option_change(workers, workers.value // 2, "each worker of a data loader holds a copy of what it prepares"),
    )


def _single_option(request: MemoryRequest, names: frozenset[str]) -> RequestOption | None:
    """What is named twice means two things, and nobody here knows which of them was too large."""
    found = [one for one in request.options if one.name in names]
    return found[0] if len(found) == 1 and not names & set(request.unread) else None


def _option_change(option: RequestOption, value: int, why: str) -> RequestChange:
    becomes = replace(option, value=value, raw="").text
    return RequestChange(what=option.place, was=option.text, becomes=becomes, why=why, variable=option.variable)


# --- made


def apply_changes(changes: Iterable[RequestChange], asked: JobRequest) -> JobRequest:
    for one in changes:
        asked = _apply_change(one, asked)
    return asked


def reverse_changes(changes: Iterable[RequestChange]) -> tuple[RequestChange, ...]:
    return tuple(replace(one, was=one.becomes, becomes=one.was) for one in changes)


def _apply_change(one: RequestChange, asked: JobRequest) -> JobRequest:
    if one.what == MEMORY:
        if asked.memory_mb != _parse_memory(one.was):
            raise RequestChangedMeanwhile(
                f"it asks for {_format_memory(asked.memory_mb) or 'no amount'} of memory by now"
            )
        return replace(asked, memory_mb=_parse_memory(one.becomes))
    if one.what == ENVIRONMENT:
        name = one.variable or one.was.partition("=")[0]
        return replace(asked, environment={**asked.environment, name: _apply_in_variable(one, name, asked.environment)})
    return replace(asked, command=_apply_in_text(one, asked.command, "its command", _blank_comments(asked.command)))


def _apply_in_variable(one: RequestChange, name: str, environment: Mapping[str, str]) -> str:
    if name not in environment:
        raise RequestChangedMeanwhile(f"its environment has no {name} any more")
    if f"{name}={environment[name]}" == one.was:
        return one.becomes.removeprefix(f"{name}=")
    return _apply_in_text(one, environment[name], f"{name} of its environment")


def _apply_in_text(one: RequestChange, text: str, whose: str, counted: str | None = None) -> str:
    """Where it stands in what counts of the text."""
    written = re.compile(rf"(?<![^\s'\"]){re.escape(one.was)}(?![^\s'\";\\])")
    found = [match.span() for match in written.finditer(text if counted is None else counted)]
    if len(found) != 1:
        raise RequestChangedMeanwhile(
            f"{whose} says {one.was} more than once" if found else f"{whose} does not say {one.was} any more"
        )
    ((start, end),) = found
    return text[:start] + one.becomes + text[end:]


def _format_memory(megabytes: int) -> str:
    """To the megabyte, for it is read back; nothing where nothing was asked for."""
    return "" if not megabytes else f"{megabytes}M" if megabytes % MB_PER_GIB else f"{megabytes // MB_PER_GIB}G"


def _parse_memory(text: str) -> int:
    return parse_memory_mb(text) if text else 0
