"""Slurm's REST dialects: what to send in which version, and how to read what comes back.

Every difference between versions that we know of is in `DIALECTS` or in a reader that takes both shapes. A reader
never trusts the answer: what is missing or of the wrong kind becomes `OddAnswer`, which names the field. Nothing in
here talks to anybody.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from urllib.parse import urlencode

from jobs.hostlist import BadHostlist, expand
from jobs.lifecycle import FINAL, JOB_STATES, Flag, NodeFlag, NodeState, State

from .base import Listing, SeenJob, SeenNode, Submission, UnreadableRow

T = TypeVar("T")
Standing = tuple[State, frozenset[str]]

PREFIX = "acme:"
PLAIN_PATH = "/usr/local/bin:/usr/bin:/bin"  # Slurm refuses an empty environment and adds nothing to a given one

NOT_ACCOUNTED = frozenset({2017, 9003})  # "nothing found", with 200 and an empty list
GONE = frozenset({2017, 2021})  # no such job; already completing or completed: nothing is left to cancel
# A no about the place as it is now, not about the job: a node died, is drained or reserved, a partition is closed, or a
# node has less than when it was chosen (2014; also said of what no node ever had, so nobody may ask for ever).
ABOUT_PLACE = frozenset({2014, 2015, 2016, 2035, 2056, 2068, 2070, 2079, 2101, 2118})
# Errors of Slurm's own transport: slurmrestd answered us, but could not be sure of its controller. 7000 is v0.0.39 that
# finds no accounting store: it says so of every request, also of a submission that went through.
UNSENT = frozenset({1001, 1800})
TRANSPORT = (range(1000, 1100), range(1800, 1900), range(5000, 5100), range(7000, 7001))

MOST_MINUTES = 2**31  # more is one of Slurm's words for "none"
MOST_NAME = 64  # characters of a node's name, as its row in the record has
MOST_FLAG = 20  # characters of a node's flag, likewise
MOST_CPUS = 2**31 - 1  # also the largest job id: both are columns of 32 bits or nearly so in Slurm and in the record
MOST_MEMORY_MB = 2**50
MOST_SIGNAL = 32_767
MOST_DIGITS = 9  # of a count or an index; Python refuses to read thousands of them
MOST_MODEL = 40  # characters, as in a node's row
MOST_GPUS = 4096  # per node; an index list comes from outside and must not fill the memory
GPU_COUNT = re.compile(r"(?:^|,)\s*(?:gres[/:])?gpu(?::([^:,()]+))?:(\d+)")
GPU_INDICES = re.compile(r"(?:^|,)gpu(?::[^,()]*)?\(IDX:([0-9,-]+)\)")
ODD_NODE_FLAGS = {"MAINT": str(NodeFlag.MAINTENANCE), "DRAINED": str(NodeFlag.DRAIN), "DRAINING": str(NodeFlag.DRAIN)}
# v0.0.38 gives one word, and a flag's word hides the state beneath it. COMPLETING is an end of a kind that is not told
# yet, with the GPUs still held: until the next look it counts as running, never as an end that we would have to invent.
STATE_BENEATH = {
    **dict.fromkeys((Flag.COMPLETING, Flag.CONFIGURING, Flag.POWER_UP_NODE, Flag.RESIZING), State.RUNNING),
    **dict.fromkeys((Flag.SIGNALING, Flag.STAGE_OUT, Flag.STOPPED), State.RUNNING),
    **dict.fromkeys((Flag.REQUEUED, Flag.REQUEUE_FED, Flag.REQUEUE_HOLD, Flag.SPECIAL_EXIT), State.PENDING),
    **dict.fromkeys((Flag.RESV_DEL_HOLD, Flag.RECONFIG_FAIL, Flag.LAUNCH_FAILED), State.PENDING),
    Flag.REVOKED: State.CANCELLED,
}
NO_REASON = frozenset({"", "None", "(null)"})
NO_NODES = NO_REASON | {"None assigned"}  # the last one is accounting's
NEVER = datetime.min.replace(tzinfo=UTC)


class OddAnswer(ValueError):
    """The answer is not what Slurm would say; the sentence names the field."""


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How one version of the API wants to be spoken to."""

    api: str
    script_inside_job: bool = True
    environment_is_list: bool = True
    nodes_field: str = "required_nodes"
    nodes_is_list: bool = True
    counts_apart: bool = True  # minimum_nodes and maximum_nodes; before, a pair in `nodes`
    gres_field: str = "tres_per_node"
    gres_prefix: str = "gres/gpu"
    numbers_are_structures: bool = True
    no_requeue: tuple[str, bool] = ("requeue", False)
    drains: bool = True
    lists_states: bool = False  # /jobs/state/: a few words a job, where /jobs has 26 KB
    says_unchanged: bool = False  # a bare 304 for ?update_time; later versions answer 200 with an empty list
    skips_steps: bool = False  # accounting understands skip_steps; a step is as long as its job
    aims_signals: bool = True  # `flags` say who of a job gets a signal; without them it is everybody


OLDEST = Dialect(
    api="v0.0.38",
    script_inside_job=False,
    environment_is_list=False,
    nodes_field="nodelist",  # `required_nodes` is a disabled key there; this spelling of sbatch's option is taken
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
NEWER = ("v0.0.45", "v0.0.44", "v0.0.43", "v0.0.42", "v0.0.41")
DIALECTS: dict[str, Dialect] = {
    **{api: Dialect(api=api, lists_states=True) for api in NEWER},
    "v0.0.40": Dialect(api="v0.0.40", script_inside_job=False),  # 23.11 wants it outside, 24.11 takes both
    "v0.0.39": Dialect(api="v0.0.39", script_inside_job=False, gres_prefix="gres:gpu", aims_signals=False),
    "v0.0.38": OLDEST,
}


# What is sent


def submit_body(dialect: Dialect, what: Submission) -> dict[str, Any]:
    script = under_bash(what.script)
    job = {**_plain_wishes(dialect, what), **_place(dialect, what), **_limits(dialect, what)}
    job["environment"] = _environment(dialect, what.environment)
    if dialect.script_inside_job:
        return {"job": {**job, "script": script}}
    return {"script": script, "job": job}


def under_bash(script: str) -> str:
    """Slurm refuses a script without an interpreter line; a bare command is bash's."""
    text = script if script.startswith("#!") else f"#!/bin/bash\n{script}"
    return text if text.endswith("\n") else f"{text}\n"


def comment_of(what: Submission) -> str:
    """`acme:<installation>:<key>`: which Acme submitted it, and which of its attempts it is."""
    return f"{PREFIX}{what.installation}:{what.key}" if what.installation else f"{PREFIX}{what.key}"


def _plain_wishes(dialect: Dialect, what: Submission) -> dict[str, Any]:
    name_of_requeue, requeue = dialect.no_requeue
    wishes: dict[str, Any] = {
        "name": what.name,
        "comment": comment_of(what),
        "current_working_directory": what.workdir,
        "tasks_per_node": 1,
        "cpus_per_task": max(what.cpus_per_node, 1),
        name_of_requeue: requeue,  # Acme decides after a fault; a second start behind its back would run twice
    }
    # An empty name of a log is a file that cannot be opened, so the job would fail; none at all is Slurm's own choice
    named = {"account": what.account, "standard_output": what.stdout}
    return wishes | {name: value for name, value in named.items() if value}


def _place(dialect: Dialect, what: Submission) -> dict[str, Any]:
    count = len(what.nodes)
    place: dict[str, Any] = {
        dialect.nodes_field: list(what.nodes) if dialect.nodes_is_list else ",".join(what.nodes),
    }
    place |= {"minimum_nodes": count, "maximum_nodes": count} if dialect.counts_apart else {"nodes": [count, count]}
    if what.gpus_per_node:
        model = f":{what.gpu_model}" if what.gpu_model else ""
        place[dialect.gres_field] = f"{dialect.gres_prefix}{model}:{what.gpus_per_node}"
    return place


def _limits(dialect: Dialect, what: Submission) -> dict[str, Any]:
    limits: dict[str, int] = {}
    if what.memory_per_node_mb:
        limits["memory_per_node"] = what.memory_per_node_mb
    if what.time_limit is not None:
        limits["time_limit"] = max(math.ceil(what.time_limit.total_seconds() / 60), 1)  # Slurm counts whole minutes
    if dialect.numbers_are_structures:
        return {name: {"set": True, "infinite": False, "number": value} for name, value in limits.items()}
    return dict(limits)


def _environment(dialect: Dialect, wanted: Mapping[str, str]) -> dict[str, str] | list[str]:
    environment = {"PATH": PLAIN_PATH, **wanted}
    if dialect.environment_is_list:
        return [f"{name}={value}" for name, value in environment.items()]
    return environment


def signal_flags(dialect: Dialect, shell: bool) -> dict[str, str] | None:
    """What says whom a signal is for. None: this version would send it to the batch shell too, which dies of it and
    takes the job along. A shell that is to get it has a trap and passes it on, so there it does no harm."""
    if not dialect.aims_signals:
        return {} if shell else None
    return {"flags": "BATCH_JOB" if shell else "FULL_STEPS_ONLY"}


def drain_body(reason: str) -> dict[str, Any]:
    return {"state": ["DRAIN"], "reason": reason}


def resume_body() -> dict[str, Any]:
    return {"state": ["RESUME"]}


def accounted_query(dialect: Dialect, since: datetime) -> str:
    """Jobs that were alive at some time since then: those submitted since are among them. A plain number is no time to
    22.05, `uts` is understood by every version."""
    steps = {"skip_steps": "true"} if dialect.skips_steps else {}
    return urlencode({"start_time": f"uts{int(since.timestamp())}", **steps})


# What comes back: errors


@dataclass(frozen=True, kw_only=True)
class Complaint:
    """One entry of errors[]."""

    number: int
    words: str

    @property
    def unsent(self) -> bool:
        return self.number in UNSENT

    @property
    def about_place(self) -> bool:
        return self.number in ABOUT_PLACE

    @property
    def transport(self) -> bool:
        return any(self.number in numbers for numbers in TRANSPORT)


def complaints(answer: object) -> list[Complaint]:
    """errors[] in any version's spelling, and the per-job outcomes of a cancellation, which newer versions answer
    with 200 and an empty errors[]."""
    if not isinstance(answer, Mapping):
        return []
    said = [_complaint(entry) for entry in _entries(answer, "errors")]
    return said + [bad for entry in _entries(answer, "status") if (bad := _outcome(entry)) is not None]


def _entries(answer: Mapping[str, Any], field: str) -> list[Mapping[str, Any]]:
    entries = answer.get(field)
    return [entry for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, list) else []


def _outcome(entry: Mapping[str, Any]) -> Complaint | None:
    error = entry.get("error")
    if not isinstance(error, Mapping) or not error.get("code"):
        return None
    code = error["code"]
    return Complaint(number=code if type(code) is int else 0, words=str(error.get("string") or f"error {code}"))


def _complaint(entry: Mapping[str, Any]) -> Complaint:
    number = next((entry[k] for k in ("error_number", "error_code") if type(entry.get(k)) is int), 0)
    texts = (entry.get(k) for k in ("error", "description"))
    said = [text for text in texts if isinstance(text, str) and text not in ("", "No error")]
    short, *longer = said or [f"error {number}"]
    return Complaint(number=number, words=next((text for text in longer if short in text), ": ".join([short, *longer])))


def in_words(found: Sequence[Complaint]) -> str:
    """What Slurm said first: later entries only say that it gave up."""
    return found[0].words


# What comes back: values


def job_id(answer: object) -> str:
    number = _number(_mapping(answer, "the answer").get("job_id"), "job_id")
    if not number:
        raise OddAnswer("job_id is missing in the answer to a submission")
    return str(_within(number, "job_id", MOST_CPUS))


def release(answer: object) -> str:
    """Slurm's version out of a ping; a ping that hides it is still a ping."""
    meta = answer.get("meta") if isinstance(answer, Mapping) else None
    slurm = (meta.get("slurm") or meta.get("Slurm")) if isinstance(meta, Mapping) else None
    found = slurm.get("release") if isinstance(slurm, Mapping) else None
    return found if isinstance(found, str) else "unknown"


def controller_is_up(answer: object) -> bool:
    """slurmrestd answers a ping with 200 while its controller is away (and newer ones for a bad token too)."""
    pings = _entries(answer, "pings") if isinstance(answer, Mapping) else []
    return any((ping.get("pinged") or ping.get("ping")) == "UP" or ping.get("responding") is True for ping in pings)


def jobs(answer: object) -> Listing[SeenJob]:
    """Rows that cannot be read are set aside. OddAnswer if that is more than half of them."""
    return _mostly_readable("jobs", one_job(answer))


def one_job(answer: object) -> Listing[SeenJob]:
    """The answer to a question for a single job, which may well be unreadable."""
    return _rows(answer, "jobs", job, unreadable_job)


def nodes(answer: object) -> Listing[SeenNode]:
    """Rows that cannot be read are set aside. OddAnswer if that is more than half of them."""
    return _mostly_readable("nodes", _rows(answer, "nodes", node, unreadable_node))


def job_states(answer: object) -> Listing[tuple[str, Standing | str]]:
    """Job ids with state and flags, of /jobs/state/; a text where the state cannot be read, so the job must be asked
    for in full. Only rows without a readable id are set aside."""
    return _mostly_readable("jobs", _rows(answer, "jobs", _state_row, unreadable_job))


def _state_row(entry: Mapping[str, Any]) -> tuple[str, Standing | str]:
    value = entry.get("job_id")
    name = value if isinstance(value, str) and value.isascii() and value.isdigit() else job_id(entry)
    try:
        return name, _job_state(entry.get("state"))
    except OddAnswer as odd:
        return name, str(odd)


def _rows(
    answer: object,
    field: str,
    read: Callable[[Mapping[str, Any]], T],
    set_aside: Callable[[object, OddAnswer], UnreadableRow],
) -> Listing[T]:
    readable: list[T] = []
    unreadable: list[UnreadableRow] = []
    for entry in _entries_of(answer, field):
        try:
            readable.append(read(_mapping(entry, f"an entry of {field}")))
        except OddAnswer as odd:
            unreadable.append(set_aside(entry, odd))
    return Listing(readable, unreadable)


def _mostly_readable(what: str, found: Listing[T]) -> Listing[T]:
    """An answer that is wrong as a whole must not look like a cluster that lost most of its jobs."""
    bad = len(found.unreadable)
    if bad > len(found):
        raise OddAnswer(f"{bad} of {bad + len(found)} {what} cannot be read; the first: {found.unreadable[0].sentence}")
    return found


def unreadable_job(entry: object, odd: OddAnswer) -> UnreadableRow:
    raw = entry if isinstance(entry, Mapping) else {}
    name, installation, key, comment_read = _id_as_far_as_readable(raw), "", "", True
    try:
        installation, key = _origin(raw)
    except OddAnswer:
        comment_read = False
    return UnreadableRow(
        kind="job",
        name=name,
        key=key,
        installation=installation,
        sentence=f"job {name}: {odd}" if name else f"a job without a readable id: {odd}",
        comment_read=comment_read and isinstance(entry, Mapping) and "comment" in entry,
    )


def _id_as_far_as_readable(raw: Mapping[str, Any]) -> str:
    value = raw.get("job_id")
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return value[:20]
    try:
        return job_id(raw)
    except OddAnswer:
        return ""


def unreadable_node(entry: object, odd: OddAnswer) -> UnreadableRow:
    name = entry.get("name") if isinstance(entry, Mapping) else None
    found = name[:MOST_NAME] if isinstance(name, str) else ""
    shown = found if found.isprintable() else ascii(found)
    sentence = f"node {shown}: {odd}" if found else f"a node without a name: {odd}"
    return UnreadableRow(kind="node", name=found, sentence=sentence)


def job(raw: Mapping[str, Any]) -> SeenJob:
    state, flags = _job_state(raw.get("job_state"))
    names = _hosts(raw)
    code, signal = _exit(raw.get("exit_code")) if state in FINAL else (None, None)
    begun = None if state == State.PENDING else _time(raw, "start_time")  # Slurm guesses the start of a waiting job
    installation, key = _origin(raw)
    return SeenJob(
        backend_id=job_id(raw),
        key=key,
        installation=installation,
        name=_text(raw, "name"),
        user=_text(raw, "user_name"),
        state=state,
        flags=flags,
        reason=_reason(raw),
        nodes=names,
        gpus=_gpus(names, raw.get("gres_detail")),
        submitted_at=_time(raw, "submit_time"),
        started_at=begun,
        ended_at=_time(raw, "end_time") if state in FINAL else None,  # before the end it is start plus time limit
        exit_code=code,
        signal=signal,
        **_asked(raw),
    )


def _asked(raw: Mapping[str, Any]) -> dict[str, Any]:
    """What it asked for; of a job that others submitted nothing else tells it."""
    minutes = _number(raw.get("time_limit"), "time_limit")
    return {
        "account": _text(raw, "account"),
        "gpus_per_node": _gpu_count(_text(raw, "tres_per_node"))[1],
        "cpus": _count_if_any(raw.get("cpus"), "cpus", MOST_CPUS),
        "memory_per_node_mb": _count_if_any(raw.get("memory_per_node"), "memory_per_node", MOST_MEMORY_MB),
        "time_limit": timedelta(minutes=minutes) if minutes and minutes < MOST_MINUTES else None,
        "stdout": _text(raw, "standard_output"),
    }


def accounted_jobs(answer: object) -> Listing[SeenJob]:
    """Of /slurmdb/, oldest first. Rows that cannot be read are set aside, however many they are."""
    found = _rows(answer, "jobs", accounted_job, unreadable_job)
    return Listing(sorted(found, key=lambda job: job.submitted_at or NEVER), found.unreadable)


def accounted_job(raw: Mapping[str, Any]) -> SeenJob:
    """A job in slurmdbd's words. What is not needed to tell how it ended may be missing or odd."""
    told, times = _mapping(raw.get("state"), "state"), _mapping(raw.get("time"), "time")
    state, flags = _job_state(told.get("current"))
    code, signal = _exit(raw.get("exit_code")) if state in FINAL else (None, None)
    if state == State.FAILED and not code and not signal:
        code = None  # 22.05 says SUCCESS and 0 of every exit code
    reason = _text_if_any(told, "reason")
    installation, key = _origin(raw)
    return SeenJob(
        backend_id=job_id(raw),
        key=key,
        installation=installation,
        name=_text_if_any(raw, "name"),
        user=_text_if_any(raw, "user"),
        account=_text_if_any(raw, "account"),
        state=state,
        flags=flags,
        reason="" if reason in NO_REASON else reason,
        nodes=_hosts_if_any(raw),
        submitted_at=_time(times, "submission"),
        started_at=None if state == State.PENDING else _time(times, "start"),
        ended_at=_time(times, "end") if state in FINAL else None,
        exit_code=code,
        signal=signal,
        stdout=_text_if_any(raw, "stdout"),
    )


def server_time(answer: object) -> int | None:
    """When the controller made this listing, by its own clock; versions before v0.0.40 and the list of states do not
    tell it."""
    try:
        return _number(_mapping(answer, "the answer").get("last_update"), "last_update")
    except OddAnswer:
        return None


def node(raw: Mapping[str, Any]) -> SeenNode:
    state, flags = _node_state(raw)
    model, gpus = _gpu_count(_text(raw, "gres"))
    name = _text(raw, "name")
    if not name or len(name) > MOST_NAME:
        raise OddAnswer(f"name is {len(name)} characters long" if name else "name is missing in a node")
    return SeenNode(
        name=name,
        state=state,
        flags=flags,
        reason=_text(raw, "reason"),
        cpus=_within(raw.get("cpus"), "cpus", MOST_CPUS),
        memory_mb=_within(raw.get("real_memory"), "real_memory", MOST_MEMORY_MB),
        gpus=gpus,
        gpu_model=model,
        features=tuple(_words(raw.get("features"), "features")),
        boot_at=_time(raw, "boot_time"),
    )


def _mapping(value: object, field: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise OddAnswer(f"{field} is {_kind(value)}, not an object")
    return value


def _entries_of(answer: object, field: str) -> list[object]:
    entries = _mapping(answer, "the answer").get(field)
    if not isinstance(entries, list):
        raise OddAnswer(f"{field} is {_kind(entries)}, not a list")
    return entries


def _kind(value: object) -> str:
    return "missing" if value is None else f"a {type(value).__name__}"


def _text(raw: Mapping[str, Any], field: str) -> str:
    value = raw.get(field)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise OddAnswer(f"{field} is {_kind(value)}, not a text")
    return _storable(value)


def _text_if_any(raw: Mapping[str, Any], field: str) -> str:
    """Of what nothing depends on: a wrong type counts as missing."""
    value = raw.get(field)
    return _storable(value) if isinstance(value, str) else ""


def _storable(text: str) -> str:
    """JSON may contain NUL and half surrogate pairs, which no database takes."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "").encode(errors="replace").decode()


def _number(value: object, field: str) -> int | None:
    """A plain number, or {"set", "infinite", "number"}; None where there is none."""
    if isinstance(value, Mapping):
        if not value.get("set", True) or value.get("infinite"):
            return None
        value = value.get("number")
    if value is None:
        return None
    if type(value) is not int:
        raise OddAnswer(f"{field} is {_kind(value)}, not a number")
    return value


def _within(value: object, field: str, most: int) -> int:
    number = _number(value, field) or 0
    if not 0 <= number <= most:
        raise OddAnswer(f"{field} is {number}, not a number from 0 to {most}")
    return number


def _count_if_any(value: object, field: str, most: int) -> int:
    """Slurm also writes "none" as the largest numbers of its types."""
    number = _number(value, field) or 0
    return number if 0 <= number <= most else 0


def _time(raw: Mapping[str, Any], field: str) -> datetime | None:
    seconds = _number(raw.get(field), field)
    if not seconds:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        raise OddAnswer(f"{field} is {seconds}, which is no time") from None


def _words(value: object, field: str) -> list[str]:
    """["a", "b"] or "a,b"."""
    if value is None:
        return []
    found = value.split(",") if isinstance(value, str) else value
    if not (isinstance(found, list) and all(isinstance(word, str) for word in found)):
        raise OddAnswer(f"{field} is {_kind(value)}, not a list of words")
    return [_storable(word.strip()) for word in found if word.strip()]


def _job_state(value: object) -> Standing:
    words = _words(value, "job_state")
    base = next((State(word) for word in words if word in JOB_STATES), None)
    if base is None and words and words[0] in Flag.__members__:
        base = STATE_BENEATH[Flag(words[0])]
    if base is None:
        raise OddAnswer(f"job_state {words!r:.80} names no state of a job")
    return base, frozenset(words) - {str(base)}


def _node_state(raw: Mapping[str, Any]) -> tuple[NodeState, frozenset[str]]:
    """A base this code has never heard of (FUTURE, INVALID) is UNKNOWN: nothing will be placed there."""
    words = [w.upper() for w in [*_words(raw.get("state"), "state"), *_words(raw.get("state_flags"), "state_flags")]]
    base = next((NodeState(word) for word in words if word in NodeState.__members__), NodeState.UNKNOWN)
    flags = (ODD_NODE_FLAGS.get(word, word) for word in words if word != str(base))
    return base, frozenset(flag[:MOST_FLAG] for flag in flags)


def _origin(raw: Mapping[str, Any]) -> tuple[str, str]:
    """(installation, key) out of a job's comment; both empty for a job that no Acme submitted.

    A comment of a wrong type says nothing: taken for somebody else's job, our own job would be missing.
    """
    comment = raw.get("comment")
    if isinstance(comment, Mapping):  # some releases wrap it
        comment = comment.get("job")
    if not (comment is None or isinstance(comment, str)):
        raise OddAnswer(f"comment is {_kind(comment)}, not a text")
    if not comment or not comment.startswith(PREFIX):
        return "", ""
    installation, _, key = _storable(comment).removeprefix(PREFIX).rpartition(":")
    return installation, key


def _reason(raw: Mapping[str, Any]) -> str:
    said = (_text(raw, "state_description"), _text(raw, "state_reason"))
    return next((text for text in said if text not in NO_REASON), "")


def _hosts(raw: Mapping[str, Any]) -> tuple[str, ...]:
    text = _text(raw, "nodes")
    try:
        return () if text in NO_NODES else tuple(expand(text))
    except BadHostlist as error:
        raise OddAnswer(f"nodes: {error}") from None


def _hosts_if_any(raw: Mapping[str, Any]) -> tuple[str, ...]:
    try:
        return _hosts(raw)
    except OddAnswer:
        return ()


def _exit(value: object) -> tuple[int | None, int | None]:
    """(code, signal) of a wait status (v0.0.38), of one in a structure for numbers (v0.0.39), or of a structure."""
    if isinstance(value, Mapping) and "number" in value:
        value = _number(value, "exit_code")
    if type(value) is int:
        return (value >> 8) & 0xFF, (value & 0x7F) or None
    if value is None:
        return None, None
    raw = _mapping(value, "exit_code")
    signal = raw.get("signal")
    number = signal.get("id", signal.get("signal_id")) if isinstance(signal, Mapping) else signal
    code = _within(raw.get("return_code"), "return_code", MOST_CPUS)
    return code, _within(number, "exit_code.signal.id", MOST_SIGNAL) or None


def _gpus(names: Sequence[str], detail: object) -> dict[str, tuple[int, ...]]:
    """gres_detail has one text per node, in the order of the nodes, and only while the job runs."""
    if not detail:
        return {}
    if not (isinstance(detail, list) and all(isinstance(text, str) for text in detail)):
        raise OddAnswer(f"gres_detail is {_kind(detail)}, not a list of texts")
    return {name: tuple(_indices(text)) for name, text in zip(names, detail, strict=False)}


def _indices(text: str) -> Iterator[int]:
    count = 0
    for listed in GPU_INDICES.findall(text):
        for piece in listed.strip(",").split(","):
            low, _, high = piece.partition("-")
            first, last = _index(low, piece), _index(high or low, piece)
            count += last - first + 1
            if count > MOST_GPUS:
                raise OddAnswer(f"gres_detail has more than {MOST_GPUS} GPU indices")
            yield from range(first, last + 1)


def _index(digits: str, piece: str) -> int:
    if not (digits.isdigit() and len(digits) <= MOST_DIGITS and int(digits) < MOST_GPUS):
        raise OddAnswer(f"gres_detail has GPU indices {piece!r:.40}")
    return int(digits)


def _gpu_count(gres: str) -> tuple[str, int]:
    """("a100", 8) of "gpu:a100:8(S:0-1)"; with several models the first one names the node."""
    found = GPU_COUNT.findall(gres)
    model = next((name for name, _ in found if name), "")
    if any(len(count) > MOST_DIGITS for _, count in found):
        raise OddAnswer(f"gres {gres!r:.60} has too many GPUs")
    return model[:MOST_MODEL], _within(sum(int(count) for _, count in found), "the number of GPUs", MOST_GPUS)
