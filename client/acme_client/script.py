"""sbatch's options, on the command line and in `#SBATCH` and `#ACME` lines, as fields of Acme's REST API. Pure.

What Acme has no use for (partitions, QOS, output files) is accepted and named, so that a pasted script runs as it is.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
DIRECTIVE = re.compile(r"#(ACME|SBATCH)\s+(.*)")
NOW = re.compile(r"now\+(\d+)(seconds?|minutes?|hours?|days?|weeks?)?")


class BadOption(ValueError):
    """The message is a sentence that names the option."""


@dataclass(kw_only=True)
class Wish:
    """What options and script add up to."""

    fields: dict[str, Any] = field(default_factory=dict)
    total_gpus: int | None = None
    tasks_per_node: int = 1
    cpus_per_task: int | None = None
    ignored: list[str] = field(default_factory=list)


Setter = Callable[[Wish, str, str], None]


def request(
    options: Sequence[str], script: str, arguments: Sequence[str] = (), *, now: datetime, environment: Mapping[str, str]
) -> tuple[dict[str, Any], list[str]]:
    """The body of a submission and the options that were left out; the command line wins over the script."""
    wish = Wish()
    reader = _Reader(wish, now, environment)
    for words in directives(script):
        reader.read(words)
    reader.read(options)
    return {"command": with_arguments(script, arguments), **finish(wish)}, wish.ignored


def directives(script: str) -> list[list[str]]:
    """The words of each directive line; as for sbatch they end at the first line that is a command."""
    found = []
    for line in script.splitlines():
        if match := DIRECTIVE.match(line):
            try:
                found.append(shlex.split(match[2], comments=True))
            except ValueError:
                raise BadOption(f"#{match[1]} {match[2][:60]}: a quotation mark is not closed") from None
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return found


def with_arguments(script: str, arguments: Sequence[str]) -> str:
    """A script's arguments become its first command; only a shell understands that."""
    if not arguments:
        return script
    first, _, rest = script.partition("\n")
    shell = first.removeprefix("#!").split()
    names = {word.rsplit("/", 1)[-1] for word in shell}
    if first.startswith("#!") and not names.intersection(SHELLS):
        raise BadOption("arguments can be given to shell scripts only")
    given = f"set -- {shlex.join(arguments)}"
    return f"{first}\n{given}\n{rest}" if first.startswith("#!") else f"{given}\n{script}"


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Options, then the script and its arguments: the first word that is no option, nor the value of one."""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-", "--"):
        name, _, value = words[at].partition("=")
        bare = _known(SHORT.get(name[:2], name[:2]) if not name.startswith("--") else name)
        attached = bool(value) or "=" in words[at] or (not name.startswith("--") and len(name) > 2)
        at += 1 if attached or bare in SWITCHES else 2
    rest = list(words[at:])
    return list(words[:at]), rest[1:] if rest[:1] == ["--"] else rest


def finish(wish: Wish) -> dict[str, Any]:
    """Totals become amounts per node."""
    fields = dict(wish.fields)
    nodes = fields.get("nodes", 1)
    if wish.total_gpus is not None and "gpus_per_node" not in fields:
        if wish.total_gpus % nodes:
            raise BadOption(f"--gpus {wish.total_gpus} cannot be shared evenly by {nodes} nodes")
        fields["gpus_per_node"] = wish.total_gpus // nodes
    if wish.cpus_per_task is not None:
        fields["cpus_per_node"] = wish.cpus_per_task * wish.tasks_per_node
    return fields


class _Reader:
    def __init__(self, wish: Wish, now: datetime, environment: Mapping[str, str]) -> None:
        self.wish, self.now, self.environment = wish, now, environment

    def read(self, words: Sequence[str]) -> None:
        left = list(words)
        while left:
            name, value = _option(left)
            if name in IGNORED:
                self.wish.ignored.append(name)
            elif name == "--begin":
                self.wish.fields["begin_at"] = _begin(value, self.now)
            elif name == "--export":
                self._export(value)
            else:
                OPTIONS[name](self.wish, name, value)

    def _export(self, value: str) -> None:
        """NAME takes the value it has here. ALL would send every secret of the shell, so nobody can ask for it."""
        for part in filter(None, value.split(",")):
            name, sign, given = part.partition("=")
            if name in ("ALL", "NONE", "NIL"):
                self.wish.ignored += ["--export=ALL"] * (name == "ALL")
            elif sign or name in self.environment:
                self.wish.fields.setdefault("environment", {})[name] = given if sign else self.environment[name]
            else:
                raise BadOption(f"--export: {name} is not set here")


def _option(left: list[str]) -> tuple[str, str]:
    """Take one option and its value off the words."""
    word = left.pop(0)
    if word.startswith("--"):
        name, sign, value = word.partition("=")
    elif word.startswith("-") and len(word) > 1:
        name, value = SHORT.get(word[:2], word[:2]), word[2:].removeprefix("=")
        sign = value
    else:
        raise BadOption(f"{word!r} is no option")
    if _known(name) in SWITCHES:
        return name, ""
    if not sign:
        if not left:
            raise BadOption(f"{name} needs a value")
        value = left.pop(0)
    return name, value


def _known(name: str) -> str:
    if name in UNDOABLE:
        raise BadOption(f"{name}: {UNDOABLE[name]}")
    if name not in OPTIONS and name not in IGNORED and name not in ("--begin", "--export"):
        raise BadOption(f"{name} is no option that Acme or sbatch knows")
    return name


# --- setters


def _text(field: str) -> Setter:
    def put(wish: Wish, name: str, value: str) -> None:
        wish.fields[field] = value

    return put


def _number(field: str) -> Setter:
    def put(wish: Wish, name: str, value: str) -> None:
        wish.fields[field] = _count(name, value)

    return put


def _always(field: str, value: Any) -> Setter:
    def put(wish: Wish, name: str, given: str) -> None:
        wish.fields[field] = value

    return put


def _count(name: str, value: str) -> int:
    if not (value.isascii() and value.removeprefix("-").isdigit()):
        raise BadOption(f"{name}: {value!r} is no whole number")
    return int(value)


def _nodes(wish: Wish, name: str, value: str) -> None:
    low, _, high = value.partition("-")
    if high and high != low:
        raise BadOption(f"{name} {value}: Acme places a fixed number of nodes")
    wish.fields["nodes"] = _count(name, low)


def _gpus_per_node(wish: Wish, name: str, value: str) -> None:
    model, number = _gpus(name, value)
    wish.fields["gpus_per_node"] = number
    if model:
        wish.fields["gpu_model"] = model


def _all_gpus(wish: Wish, name: str, value: str) -> None:
    model, wish.total_gpus = _gpus(name, value)
    if model:
        wish.fields["gpu_model"] = model


def _gpus(name: str, value: str) -> tuple[str, int]:
    """`8` or `h100:8`."""
    model, _, number = value.rpartition(":")
    return model, _count(name, number)


def _gres(wish: Wish, name: str, value: str) -> None:
    """`gpu`, `gpu:8`, `gpu:h100:8`."""
    kind, _, rest = value.partition(":")
    if kind != "gpu" or "," in value:
        raise BadOption(f"{name} {value}: Acme knows gpu only")
    if rest and not rest.rpartition(":")[2].isdigit():
        rest += ":1"
    _gpus_per_node(wish, name, rest or "1")


def _cpus_per_task(wish: Wish, name: str, value: str) -> None:
    wish.cpus_per_task = _count(name, value)


def _tasks_per_node(wish: Wish, name: str, value: str) -> None:
    wish.tasks_per_node = _count(name, value)


def _label(wish: Wish, name: str, value: str) -> None:
    key, sign, content = value.partition("=")
    if not sign:
        raise BadOption(f"{name} {value}: write NAME=VALUE")
    wish.fields.setdefault("labels", {})[key] = content


def _unlimited(field: str) -> Setter:
    def put(wish: Wish, name: str, value: str) -> None:
        if value.upper() not in ("UNLIMITED", "INFINITE"):
            wish.fields[field] = value

    return put


def _begin(value: str, now: datetime) -> str:
    """`now+2hours`, or an ISO time; without a zone it means the zone of this machine, as for sbatch."""
    if match := NOW.fullmatch(value):
        unit = (match[2] or "seconds").rstrip("s") + "s"
        return (now + timedelta(**{unit: int(match[1])})).astimezone(UTC).isoformat()
    try:
        return datetime.fromisoformat(value).astimezone(UTC).isoformat()
    except (ValueError, OverflowError):
        raise BadOption(f"--begin: {value!r} is neither now+2hours nor a time such as 2026-01-31T08:00") from None


OPTIONS: dict[str, Setter] = {
    "--account": _text("team"),
    "--team": _text("team"),
    "--clusters": _text("cluster"),
    "--cluster": _text("cluster"),
    "--job-name": _text("name"),
    "--chdir": _text("workdir"),
    "--nodes": _nodes,
    "--cpus-per-task": _cpus_per_task,
    "--ntasks-per-node": _tasks_per_node,
    "--gpus": _all_gpus,
    "--gpus-per-node": _gpus_per_node,
    "--gres": _gres,
    "--mem": _text("memory_per_node"),
    "--time": _unlimited("time_limit"),
    "--dependency": _text("dependencies"),
    "--array": _text("array"),
    "--comment": _text("comment"),
    "--priority": _number("priority"),
    "--hold": _always("hold", True),
    "--requeue": _always("requeue_limit", 3),
    "--no-requeue": _always("requeue_limit", 0),
    "--kind": _text("kind"),
    "--gpu-model": _text("gpu_model"),
    "--nic-type": _text("nic_type"),
    "--preemptible": _always("preemptible", True),
    "--label": _label,
    "--checkpoint-dir": _text("checkpoint_dir"),
    "--checkpoint-interval": _text("checkpoint_interval"),
    "--signal": _text("checkpoint_signal"),
}
SWITCHES = frozenset({"--hold", "--requeue", "--no-requeue", "--preemptible", "--exclusive"})
# Leaving these out would do what the caller asked not to be done
UNDOABLE = {"--test-only": "Acme cannot try a submission, so nothing was submitted"}
IGNORED = frozenset(
    {
        *("--partition", "--qos", "--output", "--error", "--input", "--ntasks", "--constraint", "--nodelist"),
        *("--exclude", "--reservation", "--mail-type", "--mail-user", "--open-mode", "--exclusive"),
        *("--mem-per-cpu", "--mem-per-gpu", "--cpus-per-gpu", "--ntasks-per-gpu", "--nice", "--licenses"),
    }
)
SHORT = {
    "-A": "--account",
    "-M": "--clusters",
    "-J": "--job-name",
    "-D": "--chdir",
    "-N": "--nodes",
    "-n": "--ntasks",
    "-c": "--cpus-per-task",
    "-G": "--gpus",
    "-t": "--time",
    "-b": "--begin",
    "-d": "--dependency",
    "-a": "--array",
    "-H": "--hold",
    "-p": "--partition",
    "-q": "--qos",
    "-C": "--constraint",
    "-w": "--nodelist",
    "-x": "--exclude",
    "-o": "--output",
    "-e": "--error",
    "-i": "--input",
}
