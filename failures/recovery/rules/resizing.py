"""Changed requests for a job that ran out of memory: a smaller batch per GPU, fewer workers or more memory. Pure.

The batch size is changed where the job sets it, in its command or its environment. The steps of accumulation are
changed with it to keep the global batch: half the batch size, twice the steps. A batch size that is set twice, or in a
file, is left to the owner of the job. The rest of the command is neither changed nor stored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from acmeweb.common.errors import StateConflict
from jobs.core.slurm_notation import parse_memory_mb

GPU_OOM, HOST_OOM, LOADER_OOM = "OutOfMemoryError", "HostOOMKilled", "DataloaderKilled"
MEMORY_CAUSES = frozenset({GPU_OOM, HOST_OOM, LOADER_OOM})

# An option in a command: --micro-batch-size 8, data.micro_batch_size=8, MICRO_BATCH_SIZE=8
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
BATCH_NAME = "batch_size"  # per GPU or global: programs differ
ACCUMULATION_NAMES = frozenset(
    {
        *("gradient_accumulation_steps", "gradient_accumulation", "accumulation_steps", "accumulate_grad_batches"),
        *("grad_accum_steps", "grad_acc_steps", "gas"),
    }
)
GLOBAL_BATCH_NAMES = frozenset(
    {"global_batch_size", "train_batch_size", "gbs"}
)  # such a program adapts its accumulation
TRANSFORMERS_BATCH_NAMES = frozenset(
    {"per_device_train_batch_size", "per_gpu_train_batch_size"}
)  # used with --gradient_accumulation_steps
WORKER_COUNT_NAMES = frozenset(
    {"num_workers", "dataloader_num_workers", "num_data_workers", "data_workers", "dataloader_workers"}
)

OPTION_NAME_GROUPS = (PER_GPU_BATCH_NAMES | {BATCH_NAME}, ACCUMULATION_NAMES, GLOBAL_BATCH_NAMES, WORKER_COUNT_NAMES)
RELEVANT_OPTION_NAMES = frozenset().union(*OPTION_NAME_GROUPS)

IDENTIFIER_PATTERN = re.compile(r"(?<![A-Za-z0-9_])[A-Za-z_]\w*(?:-[A-Za-z_]\w*)*")
REFERENCE_PATTERN = re.compile(r"(?:=|[ \t]+)\"?\$\{?(\w+)")  # after an option: its value is a variable
COMMENT_PATTERN = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.|(?P<comment>(?<![^\s;&|()])#[^\n]*)""", re.DOTALL)

MEMORY, COMMAND, ENVIRONMENT = "memory_per_node", "command", "environment"
MB_PER_GIB = 1024
ROUND_UP_FROM_MB = 8 * MB_PER_GIB  # smaller requests are not rounded
MAX_BATCH_DIVISOR = 8  # a larger divisor would make the batch far too small

# Signs that shared memory ran out. Its size does not depend on the memory request
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
    variable: str = ""  # the environment variable that contains it
    raw: str = ""  # the value as written, such as 08

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
    """The parts of a job's request that determine how much memory it needs."""

    memory_mb: int = 0  # 0: the default of its cluster
    most_memory_mb: int = 0  # available on the nodes that it could run on
    whole_nodes: bool = False
    options: tuple[RequestOption, ...] = ()
    shared: bool = False  # shared memory ran out
    unread: tuple[str, ...] = ()  # relevant names whose value is not a plain number


@dataclass(frozen=True, kw_only=True)
class RequestChange:
    field: str
    before: str
    after: str
    why: str
    keeps_batch: bool = True
    variable: str = ""  # the environment variable that is changed

    @property
    def sentence(self) -> str:
        return f"{self.after} instead of {self.before or 'nothing'}: {self.why}."


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """The parts of a job that a change applies to."""

    command: str
    environment: Mapping[str, str] = field(default_factory=dict)
    memory_mb: int = 0


def build_memory_request(
    job_request: JobRequest, *, most_memory_mb: int, whole_nodes: bool, evidence: Iterable[str] = ()
) -> MemoryRequest:
    """The memory request of a job. `evidence` are the lines of its log.

    It contains only numbers of relevant options: it is stored with the decision, and a command may contain secrets.
    """
    options = [option for option in _all_options(job_request) if option.name in RELEVANT_OPTION_NAMES]
    return MemoryRequest(
        memory_mb=job_request.memory_mb,
        most_memory_mb=most_memory_mb,
        whole_nodes=whole_nodes,
        options=tuple(options[:MAX_OPTIONS]),
        shared=any(SHARED_MEMORY_PATTERN.search(line) for line in evidence),
        unread=tuple(sorted(_unreadable_names(job_request, options))),
    )


def applicable_request(cause: str, request: MemoryRequest, job_request: JobRequest) -> MemoryRequest | None:
    """The request, or None if the proposed changes could not be applied to the job."""
    try:
        apply_changes(propose_changes(cause, request), job_request)
    except StateConflict:
        return None
    return request


def _all_options(request: JobRequest) -> list[RequestOption]:
    options = list(_parse_options(_blank_comments(request.command), COMMAND))
    for name, value in request.environment.items():
        if INTEGER_VALUE_PATTERN.fullmatch(value):
            options.append(
                RequestOption(place=ENVIRONMENT, flag=name, by="=", value=int(value), variable=name, raw=value)
            )
        options += _parse_options(value, ENVIRONMENT, name)
    return options


def _parse_options(text: str, place: str, variable: str = "") -> Iterator[RequestOption]:
    for match in OPTION_PATTERN.finditer(text):
        yield RequestOption(
            place=place, flag=match["flag"], by=match["by"], value=int(match["value"]), variable=variable,
            raw=match["value"],
        )  # fmt: skip


def _blank_comments(command: str) -> str:
    """The command with its comments replaced by blanks. The length stays the same, so that positions stay valid."""
    return COMMENT_PATTERN.sub(lambda match: " " * len(match[0]) if match["comment"] else match[0], command)


def _unreadable_names(request: JobRequest, options: Iterable[RequestOption]) -> set[str]:
    """Relevant names whose value cannot be read, except references to an option that was read."""
    assigned = [option for option in options if option.by == "="]
    readable = {option.flag for option in assigned if option.place == COMMAND or option.flag == option.variable}
    variables = request.environment.items()
    names = {_relevant_name(name) for name, value in variables if not INTEGER_VALUE_PATTERN.fullmatch(value)}
    for text in (_blank_comments(request.command), *request.environment.values()):
        names.update(_unreadable_names_in_text(text, readable))
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
    """The relevant option name in a word, or "". Accumulation options may have a prefix of the program."""
    name = _normalize_name(word)
    return (
        name
        if name in RELEVANT_OPTION_NAMES
        else next((suffix for suffix in sorted(ACCUMULATION_NAMES) if name.endswith(f"_{suffix}")), "")
    )


# --- proposed changes


def propose_changes(cause: str, request: MemoryRequest | None) -> tuple[RequestChange, ...]:
    """The changes that would help against this cause; empty if none is known."""
    if request is None:
        return ()
    if cause == GPU_OOM:
        return _smaller_batch(request)
    if cause == LOADER_OOM and request.shared:
        return _fewer_workers(request)
    return _more_memory(request) or _fewer_workers(request)


def _smaller_batch(request: MemoryRequest) -> tuple[RequestChange, ...]:
    names, unread = {option.name for option in request.options}, set(request.unread)
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
    ):  # next to a batch size per GPU, this is the global one
        return (replace(smaller, why="each step needs less memory, and the global batch size is set separately"),)
    if unread & (GLOBAL_BATCH_NAMES | {BATCH_NAME}):
        return (replace(smaller, keeps_batch=False),)
    named = (names | unread) & ACCUMULATION_NAMES
    if (steps := _single_option(request, ACCUMULATION_NAMES)) and steps.value:
        more = _option_change(steps, steps.value * part, "this keeps the global batch unchanged")
        return smaller, more
    if not named and batch.name in TRANSFORMERS_BATCH_NAMES and batch.place == COMMAND and batch.flag.startswith("--"):
        added = f"{smaller.after} --gradient_accumulation_steps{batch.by}{part}"
        why = "each step needs less memory, and the global batch stays unchanged"
        return (replace(smaller, after=added, why=why),)
    return (replace(smaller, keeps_batch=False),)


def _more_memory(request: MemoryRequest) -> tuple[RequestChange, ...]:
    was, most = request.memory_mb, request.most_memory_mb
    half_more = was + -(-was // 2)
    rounded = half_more if half_more < ROUND_UP_FROM_MB else -(-half_more // MB_PER_GIB) * MB_PER_GIB
    more = min(most, rounded) if was else most if request.whole_nodes else 0
    if more <= was:
        return ()
    why = "all memory of its nodes" if more == most else f"{_format_memory(more - was)} more"
    return (RequestChange(field=MEMORY, before=_format_memory(was), after=_format_memory(more), why=why),)


def _fewer_workers(request: MemoryRequest) -> tuple[RequestChange, ...]:
    workers = _single_option(request, WORKER_COUNT_NAMES)
    if workers is None or workers.value < 2:
        return ()
    return (
        _option_change(workers, workers.value // 2, "each data loader worker holds a copy of the data it prepares"),
    )


def _single_option(request: MemoryRequest, names: frozenset[str]) -> RequestOption | None:
    """The only option with one of these names. None if there are several, because either could be the cause."""
    options = [option for option in request.options if option.name in names]
    return options[0] if len(options) == 1 and not names & set(request.unread) else None


def _option_change(option: RequestOption, value: int, why: str) -> RequestChange:
    after = replace(option, value=value, raw="").text
    return RequestChange(field=option.place, before=option.text, after=after, why=why, variable=option.variable)


# --- applied changes


def apply_changes(changes: Iterable[RequestChange], request: JobRequest) -> JobRequest:
    for change in changes:
        request = _apply_change(change, request)
    return request


def reverse_changes(changes: Iterable[RequestChange]) -> tuple[RequestChange, ...]:
    return tuple(replace(change, before=change.after, after=change.before) for change in changes)


def _apply_change(change: RequestChange, request: JobRequest) -> JobRequest:
    if change.field == MEMORY:
        if request.memory_mb != _parse_memory(change.before):
            raise StateConflict(f"it now requests {_format_memory(request.memory_mb) or 'no'} memory")
        return replace(request, memory_mb=_parse_memory(change.after))
    if change.field == ENVIRONMENT:
        name = change.variable or change.before.partition("=")[0]
        value = _apply_in_variable(change, name, request.environment)
        return replace(request, environment={**request.environment, name: value})
    command = _apply_in_text(change, request.command, "its command", _blank_comments(request.command))
    return replace(request, command=command)


def _apply_in_variable(change: RequestChange, name: str, environment: Mapping[str, str]) -> str:
    if name not in environment:
        raise StateConflict(f"its environment no longer contains {name}")
    if f"{name}={environment[name]}" == change.before:
        return change.after.removeprefix(f"{name}=")
    return _apply_in_text(change, environment[name], f"{name} of its environment")


def _apply_in_text(change: RequestChange, text: str, whose: str, counted: str | None = None) -> str:
    """The text with the change applied at its only occurrence. `counted` is the text without its comments."""
    pattern = re.compile(rf"(?<![^\s'\"]){re.escape(change.before)}(?![^\s'\";\\])")
    spans = [match.span() for match in pattern.finditer(text if counted is None else counted)]
    if len(spans) != 1:
        raise StateConflict(
            f"{whose} contains {change.before} more than once"
            if spans
            else f"{whose} no longer contains {change.before}"
        )
    ((start, end),) = spans
    return text[:start] + change.after + text[end:]


def _format_memory(megabytes: int) -> str:
    """Exact to the megabyte, because it is parsed again; empty for 0."""
    return "" if not megabytes else f"{megabytes}M" if megabytes % MB_PER_GIB else f"{megabytes // MB_PER_GIB}G"


def _parse_memory(text: str) -> int:
    return parse_memory_mb(text) if text else 0
