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
DIRECTIVE_PATTERN = re.compile(r"#(ACME|SBATCH)\s+(.*)")
RELATIVE_TIME_PATTERN = re.compile(r"now\+(\d+)(seconds?|minutes?|hours?|days?|weeks?)?")


class BadOption(ValueError):
    """The message is a sentence that names the option."""


@dataclass(kw_only=True)
class SubmitOptions:
    """What options and script add up to."""

    fields: dict[str, Any] = field(default_factory=dict)
    total_gpus: int | None = None
    tasks_per_node: int = 1
    cpus_per_task: int | None = None
    ignored_options: list[str] = field(default_factory=list)


OptionSetter = Callable[[SubmitOptions, str, str], None]


def build_submit_body(
    options: Sequence[str], script: str, arguments: Sequence[str] = (), *, now: datetime, environment: Mapping[str, str]
) -> tuple[dict[str, Any], list[str]]:
    """The body of a submission and the options that were left out; the command line wins over the script."""
    wish = SubmitOptions()
    reader = _OptionReader(wish, now, environment)
    for words in parse_directives(script):
        reader.read(words)
    reader.read(options)
    return {"command": insert_script_arguments(script, arguments), **submit_fields(wish)}, wish.ignored_options


def parse_directives(script: str) -> list[list[str]]:
    """The words of each directive line; as for sbatch they end at the first line that is a command."""
    found = []
    for line in script.splitlines():
        if match := DIRECTIVE_PATTERN.match(line):
            try:
                found.append(shlex.split(match[2], comments=True))
            except ValueError:
                raise BadOption(f"#{match[1]} {match[2][:60]}: a quotation mark is not closed") from None
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return found


def insert_script_arguments(script: str, arguments: Sequence[str]) -> str:
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


def split_options(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Options, then the script and its arguments: the first word that is no option, nor the value of one."""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-", "--"):
        name, _, value = words[at].partition("=")
        bare = _check_option_name(SHORT_OPTIONS.get(name[:2], name[:2]) if not name.startswith("--") else name)
        attached = bool(value) or "=" in words[at] or (not name.startswith("--") and len(name) > 2)
        at += 1 if attached or bare in SWITCHES else 2
    rest = list(words[at:])
    return list(words[:at]), rest[1:] if rest[:1] == ["--"] else rest


def submit_fields(wish: SubmitOptions) -> dict[str, Any]:
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


class _OptionReader:
    def __init__(self, wish: SubmitOptions, now: datetime, environment: Mapping[str, str]) -> None:
        self.wish, self.now, self.environment = wish, now, environment

    def read(self, words: Sequence[str]) -> None:
        left = list(words)
        while left:
            name, value = _pop_option(left)
            if name in IGNORED_OPTIONS:
                self.wish.ignored_options.append(name)
            elif name == "--begin":
                self.wish.fields["begin_at"] = _parse_begin_time(value, self.now)
            elif name == "--export":
                self._read_export(value)
            else:
                OPTIONS[name](self.wish, name, value)

    def _read_export(self, value: str) -> None:
        """NAME takes the value it has here. ALL would send every secret of the shell, so nobody can ask for it."""
        for part in filter(None, value.split(",")):
            name, sign, given = part.partition("=")
            if name in ("ALL", "NONE", "NIL"):
                self.wish.ignored_options += ["--export=ALL"] * (name == "ALL")
            elif sign or name in self.environment:
                self.wish.fields.setdefault("environment", {})[name] = given if sign else self.environment[name]
            else:
                raise BadOption(f"--export: {name} is not set here")


def _pop_option(left: list[str]) -> tuple[str, str]:
    """Take one option and its value off the words."""
    word = left.pop(0)
    if word.startswith("--"):
        name, sign, value = word.partition("=")
    elif word.startswith("-") and len(word) > 1:
        name, value = SHORT_OPTIONS.get(word[:2], word[:2]), word[2:].removeprefix("=")
        sign = value
    else:
        raise BadOption(f"{word!r} is no option")
    if _check_option_name(name) in SWITCHES:
        return name, ""
    if not sign:
        if not left:
            raise BadOption(f"{name} needs a value")
        value = left.pop(0)
    return name, value


def _check_option_name(name: str) -> str:
    if name in UNSUPPORTED_OPTIONS:
        raise BadOption(f"{name}: {UNSUPPORTED_OPTIONS[name]}")
    if name not in OPTIONS and name not in IGNORED_OPTIONS and name not in ("--begin", "--export"):
        raise BadOption(f"{name} is no option that Acme or sbatch knows")
    return name


# --- setters


def _text_setter(field: str) -> OptionSetter:
    def set_text(wish: SubmitOptions, name: str, value: str) -> None:
        wish.fields[field] = value

    return set_text


def _number_setter(field: str) -> OptionSetter:
    def set_number(wish: SubmitOptions, name: str, value: str) -> None:
        wish.fields[field] = _parse_whole_number(name, value)

    return set_number


def _constant_setter(field: str, value: Any) -> OptionSetter:
    def set_constant(wish: SubmitOptions, name: str, given: str) -> None:
        wish.fields[field] = value

    return set_constant


def _parse_whole_number(name: str, value: str) -> int:
    if not (value.isascii() and value.removeprefix("-").isdigit()):
        raise BadOption(f"{name}: {value!r} is no whole number")
    return int(value)


def _set_nodes(wish: SubmitOptions, name: str, value: str) -> None:
    low, _, high = value.partition("-")
    if high and high != low:
        raise BadOption(f"{name} {value}: Acme places a fixed number of nodes")
    wish.fields["nodes"] = _parse_whole_number(name, low)


def _set_gpus_per_node(wish: SubmitOptions, name: str, value: str) -> None:
    model, number = _parse_gpus(name, value)
    wish.fields["gpus_per_node"] = number
    if model:
        wish.fields["gpu_model"] = model


def _set_total_gpus(wish: SubmitOptions, name: str, value: str) -> None:
    model, wish.total_gpus = _parse_gpus(name, value)
    if model:
        wish.fields["gpu_model"] = model


def _parse_gpus(name: str, value: str) -> tuple[str, int]:
    """`8` or `h100:8`."""
    model, _, number = value.rpartition(":")
    return model, _parse_whole_number(name, number)


def _set_gres(wish: SubmitOptions, name: str, value: str) -> None:
    """`gpu`, `gpu:8`, `gpu:h100:8`."""
    kind, _, rest = value.partition(":")
    if kind != "gpu" or "," in value:
        raise BadOption(f"{name} {value}: Acme knows gpu only")
    if rest and not rest.rpartition(":")[2].isdigit():
        rest += ":1"
    _set_gpus_per_node(wish, name, rest or "1")


def _set_cpus_per_task(wish: SubmitOptions, name: str, value: str) -> None:
    wish.cpus_per_task = _parse_whole_number(name, value)


def _set_tasks_per_node(wish: SubmitOptions, name: str, value: str) -> None:
    wish.tasks_per_node = _parse_whole_number(name, value)


def _set_label(wish: SubmitOptions, name: str, value: str) -> None:
    key, sign, content = value.partition("=")
    if not sign:
        raise BadOption(f"{name} {value}: write NAME=VALUE")
    wish.fields.setdefault("labels", {})[key] = content


def _time_limit_setter(field: str) -> OptionSetter:
    def set_time_limit(wish: SubmitOptions, name: str, value: str) -> None:
        if value.upper() not in ("UNLIMITED", "INFINITE"):
            wish.fields[field] = value

    return set_time_limit


def _parse_begin_time(value: str, now: datetime) -> str:
    """`now+2hours`, or an ISO time; without a zone it means the zone of this machine, as for sbatch."""
    if match := RELATIVE_TIME_PATTERN.fullmatch(value):
        unit = (match[2] or "seconds").rstrip("s") + "s"
        return (now + timedelta(**{unit: int(match[1])})).astimezone(UTC).isoformat()
    try:
        return datetime.fromisoformat(value).astimezone(UTC).isoformat()
    except (ValueError, OverflowError):
        raise BadOption(f"--begin: {value!r} is neither now+2hours nor a time such as 2026-01-31T08:00") from None


OPTIONS: dict[str, OptionSetter] = {
    "--account": _text_setter("team"),
    "--team": _text_setter("team"),
    "--clusters": _text_setter("cluster"),
    "--cluster": _text_setter("cluster"),
    "--job-name": _text_setter("name"),
    "--chdir": _text_setter("workdir"),
    "--nodes": _set_nodes,
    "--cpus-per-task": _set_cpus_per_task,
    "--ntasks-per-node": _set_tasks_per_node,
    "--gpus": _set_total_gpus,
    "--gpus-per-node": _set_gpus_per_node,
    "--gres": _set_gres,
    "--mem": _text_setter("memory_per_node"),
    "--time": _time_limit_setter("time_limit"),
    "--dependency": _text_setter("dependencies"),
    "--array": _text_setter("array"),
    "--comment": _text_setter("comment"),
    "--priority": _number_setter("priority"),
    "--hold": _constant_setter("hold", True),
    "--requeue": _constant_setter("requeue_limit", 3),
    "--no-requeue": _constant_setter("requeue_limit", 0),
    "--kind": _text_setter("kind"),
    "--gpu-model": _text_setter("gpu_model"),
    "--nic-type": _text_setter("nic_type"),
    "--preemptible": _constant_setter("preemptible", True),
    "--label": _set_label,
    "--checkpoint-dir": _text_setter("checkpoint_dir"),
    "--checkpoint-interval": _text_setter("checkpoint_interval"),
    "--signal": _text_setter("checkpoint_signal"),
}
SWITCHES = frozenset({"--hold", "--requeue", "--no-requeue", "--preemptible", "--exclusive"})
# Leaving these out would do what the caller asked not to be done
UNSUPPORTED_OPTIONS = {"--test-only": "Acme cannot try a submission, so nothing was submitted"}
IGNORED_OPTIONS = frozenset(
    {
        *("--partition", "--qos", "--output", "--error", "--input", "--ntasks", "--constraint", "--nodelist"),
        *("--exclude", "--reservation", "--mail-type", "--mail-user", "--open-mode", "--exclusive"),
        *("--mem-per-cpu", "--mem-per-gpu", "--cpus-per-gpu", "--ntasks-per-gpu", "--nice", "--licenses"),
    }
)
SHORT_OPTIONS = {
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
