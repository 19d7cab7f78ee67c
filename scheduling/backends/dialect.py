"""Slurm's REST API versions: how requests are written and responses are read in each of them.

All known differences between versions are in `DIALECTS` or in parsers that accept both forms. Parsers do not trust a
response: a missing value or a wrong type raises `MalformedResponse`, which names the field. This module has no network
code.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from urllib.parse import urlencode

from acmeweb.common.errors import InvalidInput, MalformedResponse
from jobs.core.backend_job import BackendJob
from jobs.core.gpu_shares import MPS, SHARD, WHOLE_GPU
from jobs.core.hostlist import expand
from jobs.core.lifecycle import FINAL_STATES, JOB_STATES, Flag, NodeFlag, NodeState, State, is_asleep

from .base import BackendNode, ClusterListing, SubmitRequest, UnreadableRow
from .batch_script import batch_script

T = TypeVar("T")
StateAndFlags = tuple[State, frozenset[str]]

COMMENT_PREFIX = "acme:"
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"  # Slurm rejects an empty environment and adds nothing to a non-empty one

NO_ACCOUNTING_RECORD_ERRORS = frozenset({2017, 9003})  # "nothing found", with 200 and an empty list
JOB_GONE_ERRORS = frozenset({2017, 2021})  # no such job; already completing or completed: nothing to cancel
# Rejections of the placement, not of the job: a node failed, is drained or reserved, a partition is closed, or a node
# has less than when it was chosen. 2014 also means that no node ever had the resources, so retries must be limited.
PLACEMENT_ERRORS = frozenset({2014, 2015, 2016, 2035, 2056, 2068, 2070, 2079, 2101, 2118})
# Errors of Slurm's own transport: slurmrestd responded, but could not be sure of its controller. v0.0.39 returns 7000
# when it finds no accounting storage; it does so for every request, even for a submission that succeeded.
NOT_DELIVERED_ERRORS = frozenset({1001, 1800})
TRANSPORT_ERRORS = (range(1000, 1100), range(1800, 1900), range(5000, 5100), range(7000, 7001))

MAX_TIME_LIMIT_MINUTES = 2**31  # larger values are Slurm's ways of writing "none"
MAX_NODE_NAME_LENGTH = 64  # characters, as in the database column
MAX_NODE_FLAG_LENGTH = 20  # characters, as in the database column
MAX_CPUS = 2**31 - 1  # also the largest job id: both are about 32 bits wide in Slurm and in the database
MAX_MEMORY_MB = 2**50
MAX_SIGNAL_NUMBER = 32_767
MAX_DIGITS = 9  # of a count or an index; int() rejects strings of thousands of digits
MAX_GPU_MODEL_LENGTH = 40  # characters, as in the database column
MAX_GPUS_PER_NODE = 4096  # index lists are untrusted input and must not exhaust memory
GPU_COUNT = re.compile(r"(?:^|,)\s*(?:gres[/:])?gpu(?::([^:,()]+))?:(\d+)")
SHARE_COUNT = re.compile(r"(?:^|,)\s*(?:gres[/:])?(shard|mps)(?::[^:,()]+)?:(\d+)")
# Shards name the GPU that they are parts of
GPU_INDICES = re.compile(r"(?:^|,)(?:gpu|shard|mps)(?::[^,()]*)?\(IDX:([0-9,-]+)\)")
NODE_FLAG_ALIASES = {
    "MAINT": str(NodeFlag.MAINTENANCE),
    "DRAINED": str(NodeFlag.DRAIN),
    "DRAINING": str(NodeFlag.DRAIN),
}
# v0.0.38 reports one word, and a flag hides the base state. COMPLETING does not show yet how the job ended, and the
# GPUs are still held: until the next poll it counts as running, because any final state would be a guess.
BASE_STATE_OF_FLAG = {
    **dict.fromkeys((Flag.COMPLETING, Flag.CONFIGURING, Flag.POWER_UP_NODE, Flag.RESIZING), State.RUNNING),
    **dict.fromkeys((Flag.SIGNALING, Flag.STAGE_OUT, Flag.STOPPED), State.RUNNING),
    **dict.fromkeys((Flag.REQUEUED, Flag.REQUEUE_FED, Flag.REQUEUE_HOLD, Flag.SPECIAL_EXIT), State.PENDING),
    **dict.fromkeys((Flag.RESV_DEL_HOLD, Flag.RECONFIG_FAIL, Flag.LAUNCH_FAILED), State.PENDING),
    Flag.REVOKED: State.CANCELLED,
}
NO_VALUE = frozenset({"", "None", "(null)"})
NO_REASON = NO_VALUE | {"NonZeroExitCode", "TimeLimit", "OutOfMemory"}  # these add nothing to state and exit code
# Set by an operator of the cluster, whose decision stands, or until a time that the cluster has set
HOLD_REASONS = ("JobHeld", "BeginTime", "launch failed", "launch_failed", "Dependency")
NO_NODES = NO_VALUE | {"None assigned"}  # "None assigned" comes from accounting
UNKNOWN_SUBMIT_TIME = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How requests are written in one version of the API."""

    api: str
    script_inside_job: bool = True
    environment_is_list: bool = True
    nodes_field: str = "required_nodes"
    nodes_is_list: bool = True
    counts_apart: bool = True  # minimum_nodes and maximum_nodes; earlier versions use a pair in `nodes`
    gres_field: str = "tres_per_node"
    gres_prefix: str = "gres/gpu"
    numbers_are_structures: bool = True
    no_requeue: tuple[str, bool] = ("requeue", False)
    drains: bool = True
    lists_states: bool = False  # has /jobs/state/: a few words per job instead of the 26 KB of /jobs
    says_unchanged: bool = False  # a bare 304 for ?update_time; later versions answer 200 with an empty list
    skips_steps: bool = False  # accounting supports skip_steps; a step's record is as large as its job's
    aims_signals: bool = True  # `flags` select the processes that get a signal; without them all do


OLDEST_DIALECT = Dialect(
    api="v0.0.38",
    script_inside_job=False,
    environment_is_list=False,
    nodes_field="nodelist",  # `required_nodes` is disabled there; the name of sbatch's option works
    nodes_is_list=False,
    counts_apart=False,
    gres_field="gres",
    gres_prefix="gpu",
    numbers_are_structures=False,
    no_requeue=("no_requeue", True),  # `requeue: false` is accepted there and means true
    drains=False,
    aims_signals=False,
    says_unchanged=True,
    skips_steps=True,
)
NEWER_API_VERSIONS = ("v0.0.45", "v0.0.44", "v0.0.43", "v0.0.42", "v0.0.41")
DIALECTS: dict[str, Dialect] = {
    **{api: Dialect(api=api, lists_states=True) for api in NEWER_API_VERSIONS},
    "v0.0.40": Dialect(api="v0.0.40", script_inside_job=False),  # 23.11 requires it outside, 24.11 accepts both
    "v0.0.39": Dialect(api="v0.0.39", script_inside_job=False, gres_prefix="gres:gpu", aims_signals=False),
    "v0.0.38": OLDEST_DIALECT,
}


# Request bodies


def submit_body(dialect: Dialect, what: SubmitRequest) -> dict[str, Any]:
    script = with_interpreter_line(batch_script(what.script, record=what.record, forward=what.shell_signals))
    job = {**_basic_fields(dialect, what), **_placement_fields(dialect, what), **_limit_fields(dialect, what)}
    job["environment"] = _environment_field(dialect, what.environment)
    if dialect.script_inside_job:
        return {"job": {**job, "script": script}}
    return {"script": script, "job": job}


def with_interpreter_line(script: str) -> str:
    """The script with a first line that names an interpreter, which Slurm requires; bash if there is none."""
    text = script if script.startswith("#!") else f"#!/bin/bash\n{script}"
    return text if text.endswith("\n") else f"{text}\n"


def job_comment(what: SubmitRequest) -> str:
    """`acme:<installation>:<key>`: the installation that submits the job, and the attempt."""
    return f"{COMMENT_PREFIX}{what.installation}:{what.key}" if what.installation else f"{COMMENT_PREFIX}{what.key}"


def _basic_fields(dialect: Dialect, what: SubmitRequest) -> dict[str, Any]:
    requeue_field, requeue = dialect.no_requeue
    fields: dict[str, Any] = {
        "name": what.name,
        "comment": job_comment(what),
        "current_working_directory": what.workdir,
        "tasks_per_node": 1,
        "cpus_per_task": max(what.cpus_per_node, 1),
        requeue_field: requeue,  # only Acme requeues; a requeue by Slurm would start the job twice
    }
    # Slurm fails a job whose log path is empty, so an empty value is left out and Slurm uses its default.
    optional = {"account": what.account, "standard_output": what.stdout, "wckey": what.wckey}
    return fields | {name: value for name, value in optional.items() if value}


def _placement_fields(dialect: Dialect, what: SubmitRequest) -> dict[str, Any]:
    count = len(what.nodes)
    place: dict[str, Any] = {
        dialect.nodes_field: list(what.nodes) if dialect.nodes_is_list else ",".join(what.nodes),
    }
    place |= {"minimum_nodes": count, "maximum_nodes": count} if dialect.counts_apart else {"nodes": [count, count]}
    if what.gpus_per_node:
        model = f":{what.gpu_model}" if what.gpu_model else ""
        place[dialect.gres_field] = f"{dialect.gres_prefix}{model}:{what.gpus_per_node}"
    elif what.gpu_shards:
        place[dialect.gres_field] = f"{dialect.gres_prefix.removesuffix('gpu')}{what.share_gres}:{what.gpu_shards}"
    return place


def _limit_fields(dialect: Dialect, what: SubmitRequest) -> dict[str, Any]:
    limits: dict[str, int] = {}
    if what.memory_per_node_mb:
        limits["memory_per_node"] = what.memory_per_node_mb
    if what.time_limit is not None:
        limits["time_limit"] = max(math.ceil(what.time_limit.total_seconds() / 60), 1)  # Slurm counts whole minutes
    if dialect.numbers_are_structures:
        return {name: {"set": True, "infinite": False, "number": value} for name, value in limits.items()}
    return dict(limits)


def _environment_field(dialect: Dialect, requested: Mapping[str, str]) -> dict[str, str] | list[str]:
    environment = {"PATH": DEFAULT_PATH, **requested}
    if dialect.environment_is_list:
        return [f"{name}={value}" for name, value in environment.items()]
    return environment


def signal_flags(dialect: Dialect, shell: bool) -> dict[str, str] | None:
    """The query flags that select which processes of a job get a signal.

    None if this version would also send it to the batch shell, which would end and take the job along. A shell that is
    to get the signal has a trap and passes it on, so no flags are needed then.
    """
    if not dialect.aims_signals:
        return {} if shell else None
    return {"flags": "BATCH_JOB" if shell else "FULL_STEPS_ONLY"}


def drain_body(reason: str) -> dict[str, Any]:
    return {"state": ["DRAIN"], "reason": reason}


def resume_body() -> dict[str, Any]:
    return {"state": ["RESUME"]}


def power_body(*, up: bool) -> dict[str, Any]:
    """SuspendProgram or ResumeProgram is called for the node; running jobs end first. POWER_UP must not be sent for a
    node that boots: Slurm then calls ResumeProgram again and waits for another boot.
    """
    return {"state": ["POWER_UP" if up else "POWER_DOWN"]}


def accounting_query(dialect: Dialect, since: datetime) -> str:
    """The query for jobs that existed at some time since then, which includes all submitted since then.

    Slurm 22.05 does not parse a plain number as a time; all versions parse `uts`.
    """
    steps = {"skip_steps": "true"} if dialect.skips_steps else {}
    return urlencode({"start_time": f"uts{int(since.timestamp())}", **steps})


# Errors in responses


@dataclass(frozen=True, kw_only=True)
class ErrorEntry:
    """One entry of errors[]."""

    number: int
    words: str

    @property
    def is_not_delivered(self) -> bool:
        return self.number in NOT_DELIVERED_ERRORS

    @property
    def is_placement_error(self) -> bool:
        return self.number in PLACEMENT_ERRORS

    @property
    def is_transport_error(self) -> bool:
        return any(self.number in numbers for numbers in TRANSPORT_ERRORS)


def error_entries(answer: object) -> list[ErrorEntry]:
    """The entries of errors[] in any version, and the per-job errors of a cancellation.

    Newer versions report the latter with status 200 and an empty errors[].
    """
    if not isinstance(answer, Mapping):
        return []
    entries = [_parse_error_entry(entry) for entry in _mapping_entries(answer, "errors")]
    return entries + [
        bad for entry in _mapping_entries(answer, "status") if (bad := _parse_status_error(entry)) is not None
    ]


def _mapping_entries(answer: Mapping[str, Any], field: str) -> list[Mapping[str, Any]]:
    entries = answer.get(field)
    return [entry for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, list) else []


def _parse_status_error(entry: Mapping[str, Any]) -> ErrorEntry | None:
    error = entry.get("error")
    if not isinstance(error, Mapping) or not error.get("code"):
        return None
    code = error["code"]
    return ErrorEntry(number=code if type(code) is int else 0, words=str(error.get("string") or f"error {code}"))


def _parse_error_entry(entry: Mapping[str, Any]) -> ErrorEntry:
    number = next((entry[k] for k in ("error_number", "error_code") if type(entry.get(k)) is int), 0)
    texts = (entry.get(k) for k in ("error", "description"))
    messages = [text for text in texts if isinstance(text, str) and text not in ("", "No error")]
    short, *longer = messages or [f"error {number}"]
    return ErrorEntry(
        number=number, words=next((text for text in longer if short in text), ": ".join([short, *longer]))
    )


def first_error_message(entries: Sequence[ErrorEntry]) -> str:
    """The message of the first entry; later ones usually only report that Slurm gave up."""
    return entries[0].words


# Values in responses


def parse_job_id(answer: object) -> str:
    number = _parse_number(_require_mapping(answer, "the response").get("job_id"), "job_id")
    if not number:
        raise MalformedResponse("job_id is missing in the response to a submission")
    return str(_number_in_range(number, "job_id", MAX_CPUS))


def parse_release(answer: object) -> str:
    """Slurm's version from a ping; "unknown" if it is missing."""
    meta = answer.get("meta") if isinstance(answer, Mapping) else None
    slurm = (meta.get("slurm") or meta.get("Slurm")) if isinstance(meta, Mapping) else None
    release = slurm.get("release") if isinstance(slurm, Mapping) else None
    return release if isinstance(release, str) else "unknown"


def controller_is_up(answer: object) -> bool:
    """Whether a ping reports a reachable controller.

    slurmrestd responds with status 200 while its controller is down, and newer versions do so for a bad token too.
    """
    pings = _mapping_entries(answer, "pings") if isinstance(answer, Mapping) else []
    return any((ping.get("pinged") or ping.get("ping")) == "UP" or ping.get("responding") is True for ping in pings)


def parse_jobs(answer: object) -> ClusterListing[BackendJob]:
    """All readable jobs; unreadable rows are set aside. MalformedResponse if they are more than half."""
    return _require_mostly_readable("jobs", parse_single_job(answer))


def parse_single_job(answer: object) -> ClusterListing[BackendJob]:
    """The response to a request for one job, which may be unreadable."""
    return _parse_rows(answer, "jobs", parse_job, unreadable_job)


def parse_nodes(answer: object) -> ClusterListing[BackendNode]:
    """All readable nodes; unreadable rows are set aside. MalformedResponse if they are more than half."""
    return _require_mostly_readable("nodes", _parse_rows(answer, "nodes", parse_node, unreadable_node))


def parse_job_states(answer: object) -> ClusterListing[tuple[str, StateAndFlags | str]]:
    """Job ids with state and flags from /jobs/state/; an error text where the state cannot be read.

    The caller must fetch those jobs in full. Only rows without a readable id are set aside.
    """
    return _require_mostly_readable("jobs", _parse_rows(answer, "jobs", _parse_state_row, unreadable_job))


def _parse_state_row(entry: Mapping[str, Any]) -> tuple[str, StateAndFlags | str]:
    value = entry.get("job_id")
    name = value if isinstance(value, str) and value.isascii() and value.isdigit() else parse_job_id(entry)
    try:
        return name, _parse_job_state(entry.get("state"))
    except MalformedResponse as error:
        return name, str(error)


def _parse_rows(
    answer: object,
    field: str,
    read: Callable[[Mapping[str, Any]], T],
    set_aside: Callable[[object, MalformedResponse], UnreadableRow],
) -> ClusterListing[T]:
    readable: list[T] = []
    unreadable: list[UnreadableRow] = []
    for entry in _require_list(answer, field):
        try:
            readable.append(read(_require_mapping(entry, f"an entry of {field}")))
        except MalformedResponse as error:
            unreadable.append(set_aside(entry, error))
    return ClusterListing(readable, unreadable)


def _require_mostly_readable(what: str, rows: ClusterListing[T]) -> ClusterListing[T]:
    """Raise MalformedResponse if most rows are unreadable; otherwise the cluster would seem to have lost its jobs."""
    unreadable = len(rows.unreadable)
    if unreadable > len(rows):
        raise MalformedResponse(
            f"{unreadable} of {unreadable + len(rows)} {what} cannot be read; first: {rows.unreadable[0].sentence}"
        )
    return rows


def unreadable_job(entry: object, error: MalformedResponse) -> UnreadableRow:
    raw = entry if isinstance(entry, Mapping) else {}
    name, installation, key, comment_read = _readable_job_id(raw), "", "", True
    try:
        installation, key = _parse_comment(raw)
    except MalformedResponse:
        comment_read = False
    return UnreadableRow(
        kind="job",
        name=name,
        key=key,
        installation=installation,
        sentence=f"job {name}: {error}" if name else f"a job without a readable id: {error}",
        comment_read=comment_read and isinstance(entry, Mapping) and "comment" in entry,
    )


def _readable_job_id(raw: Mapping[str, Any]) -> str:
    value = raw.get("job_id")
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return value[:20]
    try:
        return parse_job_id(raw)
    except MalformedResponse:
        return ""


def unreadable_node(entry: object, error: MalformedResponse) -> UnreadableRow:
    name = entry.get("name") if isinstance(entry, Mapping) else None
    known_name = name[:MAX_NODE_NAME_LENGTH] if isinstance(name, str) else ""
    printable = known_name if known_name.isprintable() else ascii(known_name)
    sentence = f"node {printable}: {error}" if known_name else f"a node without a name: {error}"
    return UnreadableRow(kind="node", name=known_name, sentence=sentence)


def parse_job(raw: Mapping[str, Any]) -> BackendJob:
    state, flags = _parse_job_state(raw.get("job_state"))
    names = _node_names(raw)
    code, signal = _parse_exit_status(raw.get("exit_code")) if state in FINAL_STATES else (None, None)
    # Slurm reports an estimated start for a pending job
    started_at = None if state == State.PENDING else _time_field(raw, "start_time")
    installation, key = _parse_comment(raw)
    reason = _state_reason(raw)
    return BackendJob(
        backend_id=parse_job_id(raw),
        key=key,
        installation=installation,
        name=_text_field(raw, "name"),
        user=_text_field(raw, "user_name"),
        state=state,
        flags=flags,
        reason=reason,
        held=state == State.PENDING and reason.startswith(HOLD_REASONS),
        nodes=names,
        gpus=_gpus_by_node(names, raw.get("gres_detail")),
        submitted_at=_time_field(raw, "submit_time"),
        started_at=started_at,
        ended_at=_time_field(raw, "end_time")
        if state in FINAL_STATES
        else None,  # until then Slurm reports start plus time limit
        exit_code=code,
        signal=signal,
        **_parse_request_fields(raw),
    )


def _parse_request_fields(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The resources a job requested; for jobs that Acme did not submit there is no other source."""
    minutes = _parse_number(raw.get("time_limit"), "time_limit")
    return {
        "account": _text_field(raw, "account"),
        "gpus_per_node": _parse_gres(_text_field(raw, "tres_per_node"))[1],
        "cpus": _optional_count(raw.get("cpus"), "cpus", MAX_CPUS),
        "memory_per_node_mb": _optional_count(raw.get("memory_per_node"), "memory_per_node", MAX_MEMORY_MB),
        "time_limit": timedelta(minutes=minutes) if minutes and minutes < MAX_TIME_LIMIT_MINUTES else None,
        "stdout": _text_field(raw, "standard_output"),
    }


def parse_accounting_jobs(answer: object) -> ClusterListing[BackendJob]:
    """Jobs from /slurmdb/, oldest first. Unreadable rows are set aside, however many there are."""
    jobs = _parse_rows(answer, "jobs", parse_accounting_job, unreadable_job)
    return ClusterListing(sorted(jobs, key=lambda job: job.submitted_at or UNKNOWN_SUBMIT_TIME), jobs.unreadable)


def parse_accounting_job(raw: Mapping[str, Any]) -> BackendJob:
    """Read a job from accounting. Fields that do not affect its outcome may be missing or malformed."""
    state_object, times = _require_mapping(raw.get("state"), "state"), _require_mapping(raw.get("time"), "time")
    state, flags = _parse_job_state(state_object.get("current"))
    code, signal = _parse_exit_status(raw.get("exit_code")) if state in FINAL_STATES else (None, None)
    if state == State.FAILED and not code and not signal:
        code = None  # 22.05 reports SUCCESS and 0 for every exit code
    reason = _optional_text_field(state_object, "reason")
    installation, key = _parse_comment(raw)
    return BackendJob(
        backend_id=parse_job_id(raw),
        key=key,
        installation=installation,
        name=_optional_text_field(raw, "name"),
        user=_optional_text_field(raw, "user"),
        account=_optional_text_field(raw, "account"),
        state=state,
        flags=flags,
        reason="" if reason in NO_REASON else reason,
        nodes=_optional_node_names(raw),
        submitted_at=_time_field(times, "submission"),
        started_at=None if state == State.PENDING else _time_field(times, "start"),
        ended_at=_time_field(times, "end") if state in FINAL_STATES else None,
        exit_code=code,
        signal=signal,
        stdout=_optional_text_field(raw, "stdout"),
    )


def parse_listing_time(answer: object) -> int | None:
    """When the controller made this listing, by its own clock; None if unknown.

    Versions before v0.0.40 and the list of states do not report it.
    """
    try:
        return _parse_number(_require_mapping(answer, "the response").get("last_update"), "last_update")
    except MalformedResponse:
        return None


def parse_node(raw: Mapping[str, Any]) -> BackendNode:
    state, flags = _parse_node_state(raw)
    model, gpus = _parse_gres(_text_field(raw, "gres"))
    share_gres, shards = _parse_shares(_text_field(raw, "gres"))
    name = _text_field(raw, "name")
    if not name or len(name) > MAX_NODE_NAME_LENGTH:
        raise MalformedResponse(f"name is {len(name)} characters long" if name else "name is missing in a node")
    return BackendNode(
        name=name,
        state=state,
        flags=flags,
        reason=_text_field(raw, "reason"),
        cpus=_number_in_range(raw.get("cpus"), "cpus", MAX_CPUS),
        memory_mb=_number_in_range(raw.get("real_memory"), "real_memory", MAX_MEMORY_MB),
        gpus=gpus,
        gpu_shards=shards,
        share_gres=share_gres,
        gpu_model=model,
        features=tuple(_word_list(raw.get("features"), "features")),
        boot_at=_time_field(raw, "boot_time"),
    )


def _require_mapping(value: object, field: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise MalformedResponse(f"{field} is {_type_description(value)}, not an object")
    return value


def _require_list(answer: object, field: str) -> list[object]:
    entries = _require_mapping(answer, "the response").get(field)
    if not isinstance(entries, list):
        raise MalformedResponse(f"{field} is {_type_description(entries)}, not a list")
    return entries


def _type_description(value: object) -> str:
    return "missing" if value is None else f"a {type(value).__name__}"


def _text_field(raw: Mapping[str, Any], field: str) -> str:
    value = raw.get(field)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise MalformedResponse(f"{field} is {_type_description(value)}, not a string")
    return _storable_text(value)


def _optional_text_field(raw: Mapping[str, Any], field: str) -> str:
    """A field that nothing depends on: a wrong type counts as missing."""
    value = raw.get(field)
    return _storable_text(value) if isinstance(value, str) else ""


def _storable_text(text: str) -> str:
    """The text without NUL and lone surrogates, which JSON may contain and databases reject."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "").encode(errors="replace").decode()


def _parse_number(value: object, field: str) -> int | None:
    """A plain number, or {"set", "infinite", "number"}; None if there is none."""
    if isinstance(value, Mapping):
        if not value.get("set", True) or value.get("infinite"):
            return None
        value = value.get("number")
    if value is None:
        return None
    if type(value) is not int:
        raise MalformedResponse(f"{field} is {_type_description(value)}, not a number")
    return value


def _number_in_range(value: object, field: str, most: int) -> int:
    number = _parse_number(value, field) or 0
    if not 0 <= number <= most:
        raise MalformedResponse(f"{field} is {number}, not a number from 0 to {most}")
    return number


def _optional_count(value: object, field: str, most: int) -> int:
    """The count, or 0 if it is out of range: Slurm also writes "none" as the largest number of a type."""
    number = _parse_number(value, field) or 0
    return number if 0 <= number <= most else 0


def _time_field(raw: Mapping[str, Any], field: str) -> datetime | None:
    seconds = _parse_number(raw.get(field), field)
    if not seconds:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        raise MalformedResponse(f"{field} is {seconds}, which is not a valid time") from None


def _word_list(value: object, field: str) -> list[str]:
    """A list of words from ["a", "b"] or "a,b"."""
    if value is None:
        return []
    words = value.split(",") if isinstance(value, str) else value
    if not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
        raise MalformedResponse(f"{field} is {_type_description(value)}, not a list of strings")
    return [_storable_text(word.strip()) for word in words if word.strip()]


def _parse_job_state(value: object) -> StateAndFlags:
    words = _word_list(value, "job_state")
    base = next((State(word) for word in words if word in JOB_STATES), None)
    if base is None and words and words[0] in Flag.__members__:
        base = BASE_STATE_OF_FLAG[Flag(words[0])]
    if base is None:
        raise MalformedResponse(f"job_state {words!r:.80} is not a job state")
    return base, frozenset(words) - {str(base)}


def _parse_node_state(raw: Mapping[str, Any]) -> tuple[NodeState, frozenset[str]]:
    """The base state and flags of a node. An unknown state (FUTURE, INVALID) is UNKNOWN, so nothing is placed there."""
    words = [
        w.upper() for w in [*_word_list(raw.get("state"), "state"), *_word_list(raw.get("state_flags"), "state_flags")]
    ]
    base = next((NodeState(word) for word in words if word in NodeState.__members__), NodeState.UNKNOWN)
    flags = {NODE_FLAG_ALIASES.get(word, word)[:MAX_NODE_FLAG_LENGTH] for word in words if word != str(base)}
    if is_asleep(base, flags):
        flags.discard(NodeFlag.NOT_RESPONDING)  # a node that boots is not expected to respond
    return base, frozenset(flags)


def _parse_comment(raw: Mapping[str, Any]) -> tuple[str, str]:
    """(installation, key) from a job's comment; both empty for a job that Acme did not submit.

    A comment of a wrong type raises: if it were taken for another user's job, Acme's own job would count as missing.
    """
    comment = raw.get("comment")
    if isinstance(comment, Mapping):  # some releases wrap it
        comment = comment.get("job")
    if not (comment is None or isinstance(comment, str)):
        raise MalformedResponse(f"comment is {_type_description(comment)}, not a string")
    if not comment or not comment.startswith(COMMENT_PREFIX):
        return "", ""
    installation, _, key = _storable_text(comment).removeprefix(COMMENT_PREFIX).rpartition(":")
    return installation, key


def _state_reason(raw: Mapping[str, Any]) -> str:
    texts = (_text_field(raw, "state_description"), _text_field(raw, "state_reason"))
    return next((text for text in texts if text not in NO_REASON), "")


def _node_names(raw: Mapping[str, Any]) -> tuple[str, ...]:
    text = _text_field(raw, "nodes")
    try:
        return () if text in NO_NODES else tuple(expand(text))
    except InvalidInput as error:
        raise MalformedResponse(f"nodes: {error}") from None


def _optional_node_names(raw: Mapping[str, Any]) -> tuple[str, ...]:
    try:
        return _node_names(raw)
    except MalformedResponse:
        return ()


def _parse_exit_status(value: object) -> tuple[int | None, int | None]:
    """(code, signal) from a wait status (v0.0.38), from one wrapped in a number object (v0.0.39), or from an object."""
    if isinstance(value, Mapping) and "number" in value:
        value = _parse_number(value, "exit_code")
    if type(value) is int:
        return (value >> 8) & 0xFF, (value & 0x7F) or None
    if value is None:
        return None, None
    raw = _require_mapping(value, "exit_code")
    signal = raw.get("signal")
    number = signal.get("id", signal.get("signal_id")) if isinstance(signal, Mapping) else signal
    code = _number_in_range(raw.get("return_code"), "return_code", MAX_CPUS)
    return code, _number_in_range(number, "exit_code.signal.id", MAX_SIGNAL_NUMBER) or None


def _gpus_by_node(names: Sequence[str], detail: object) -> dict[str, tuple[int, ...]]:
    """GPU indices by node. gres_detail has one text per node, in node order, and only while the job runs."""
    if not detail:
        return {}
    if not (isinstance(detail, list) and all(isinstance(text, str) for text in detail)):
        raise MalformedResponse(f"gres_detail is {_type_description(detail)}, not a list of strings")
    return {name: tuple(_gpu_indices(text)) for name, text in zip(names, detail, strict=False)}


def _gpu_indices(text: str) -> Iterator[int]:
    count = 0
    for listed in GPU_INDICES.findall(text):
        for piece in listed.strip(",").split(","):
            low, _, high = piece.partition("-")
            first, last = _parse_gpu_index(low, piece), _parse_gpu_index(high or low, piece)
            count += last - first + 1
            if count > MAX_GPUS_PER_NODE:
                raise MalformedResponse(f"gres_detail has more than {MAX_GPUS_PER_NODE} GPU indices")
            yield from range(first, last + 1)


def _parse_gpu_index(digits: str, piece: str) -> int:
    if not (digits.isdigit() and len(digits) <= MAX_DIGITS and int(digits) < MAX_GPUS_PER_NODE):
        raise MalformedResponse(f"gres_detail has invalid GPU indices {piece!r:.40}")
    return int(digits)


def _parse_gres(gres: str) -> tuple[str, int]:
    """("a100", 8) from "gpu:a100:8(S:0-1)"; with several models, the first one counts."""
    gpus = GPU_COUNT.findall(gres)
    model = next((name for name, _ in gpus if name), "")
    if any(len(count) > MAX_DIGITS for _, count in gpus):
        raise MalformedResponse(f"gres {gres!r:.60} has too many GPUs")
    return model[:MAX_GPU_MODEL_LENGTH], _number_in_range(
        sum(int(count) for _, count in gpus), "the number of GPUs", MAX_GPUS_PER_NODE
    )


def _parse_shares(gres: str) -> tuple[str, int]:
    """("shard", 64) from "gpu:a100:8(S:0-1),shard:64(S:0-1)". A node that has both offers its shards."""
    found = SHARE_COUNT.findall(gres)
    if any(len(count) > MAX_DIGITS for _, count in found):
        raise MalformedResponse(f"gres {gres!r:.60} has too many shares of GPUs")
    name = MPS if found and all(kind == MPS for kind, _ in found) else SHARD
    total = sum(int(count) for kind, count in found if kind == name)
    return name, _number_in_range(total, f"the number in gres/{name}", MAX_GPUS_PER_NODE * WHOLE_GPU)
