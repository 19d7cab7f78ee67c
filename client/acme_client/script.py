"""Options of sbatch, from the command line and from `#SBATCH` and `#ACME` lines, as fields of Acme's REST API. Pure.

Options without effect in Acme (partitions, QOS, output files) are accepted and reported, so scripts run unchanged.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from acme_client.request_fields import DEFAULT_REQUEUE_LIMIT, REQUEST_FIELDS, Notation

SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
DIRECTIVE_PATTERN = re.compile(r"#(ACME|SBATCH)\s+(.*)")
PART_PATTERN = re.compile(r"0?\.\d{1,9}", re.ASCII)
RELATIVE_TIME_PATTERN = re.compile(r"now\+(\d+)(seconds?|minutes?|hours?|days?|weeks?)?")
CLOCK_PATTERN = re.compile(r"(\d{1,2})(?::(\d{2}))?(?::(\d{2}))? ?([ap]m)?")
DATE_PATTERN = re.compile(r"(\d{1,2})[/.](\d{1,2})(?:[/.](\d{2}|\d{4}))?(?:-(.+))?")
MIG_RESOURCE = "nvidia.com/mig-"
CLOCK_WORDS = {"midnight": "00:00", "noon": "12:00", "teatime": "16:00"}


class BadOption(ValueError):
    """The message is a sentence that names the option."""


@dataclass(kw_only=True)
class SubmitOptions:
    """The result of all options of the command line and the script."""

    fields: dict[str, Any] = field(default_factory=dict)
    total_gpus: float | None = None
    tasks_per_node: int = 1
    cpus_per_task: int | None = None
    ignored_options: list[str] = field(default_factory=list)


OptionSetter = Callable[[SubmitOptions, str, str], None]


def build_submit_body(
    options: Sequence[str], script: str, arguments: Sequence[str] = (), *, now: datetime, environment: Mapping[str, str]
) -> tuple[dict[str, Any], list[str]]:
    """Return the body of a submission, and the ignored options. The command line takes precedence over the script."""
    submit = SubmitOptions()
    reader = _OptionReader(submit, now, environment)
    for words in parse_directives(script):
        reader.read(words)
    reader.read(options)
    return {"command": insert_script_arguments(script, arguments), **submit_fields(submit)}, submit.ignored_options


def build_wrapped_body(
    options: Sequence[str], command: str, *, now: datetime, environment: Mapping[str, str]
) -> tuple[dict[str, Any], list[str]]:
    """Return the body of a submission with --wrap. The command is sent unchanged, and only scripts have directives."""
    body, ignored = build_submit_body(options, "", now=now, environment=environment)
    return {**body, "command": command}, ignored


def parse_directives(script: str) -> list[list[str]]:
    """Return the words of each directive line. As in sbatch, directives end at the first command."""
    directives = []
    for line in script.splitlines():
        if match := DIRECTIVE_PATTERN.match(line):
            try:
                directives.append(shlex.split(match[2], comments=True))
            except ValueError:
                raise BadOption(f"#{match[1]} {match[2][:60]}: unbalanced quotation mark") from None
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return directives


def insert_script_arguments(script: str, arguments: Sequence[str]) -> str:
    """Return the script with its arguments set by its first command; only shells support that."""
    if not arguments:
        return script
    first, _, remainder = script.partition("\n")
    shell = first.removeprefix("#!").split()
    names = {word.rsplit("/", 1)[-1] for word in shell}
    if first.startswith("#!") and not names.intersection(SHELLS):
        raise BadOption("Only shell scripts take arguments.")
    command = f"set -- {shlex.join(arguments)}"
    return f"{first}\n{command}\n{remainder}" if first.startswith("#!") else f"{command}\n{script}"


def split_options(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split words into options, and the script with its arguments: the first word that is not an option or a value."""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-", "--"):
        name, _, value = words[at].partition("=")
        bare = _check_option_name(SHORT_OPTIONS.get(name[:2], name[:2]) if not name.startswith("--") else name)
        attached = bool(value) or "=" in words[at] or (not name.startswith("--") and len(name) > 2)
        at += 1 if attached or bare in SWITCHES else 2
    remainder = list(words[at:])
    return list(words[:at]), remainder[1:] if remainder[:1] == ["--"] else remainder


def submit_fields(submit: SubmitOptions) -> dict[str, Any]:
    """Return the fields; totals are converted to amounts per node."""
    fields = dict(submit.fields)
    nodes = fields.get("nodes", 1)
    if submit.total_gpus is not None and "gpus_per_node" not in fields:
        if 0 < submit.total_gpus < 1:
            return fields | {"gpus_per_node": submit.total_gpus}
        if submit.total_gpus % nodes:
            raise BadOption(f"--gpus {submit.total_gpus} cannot be distributed evenly over {nodes} nodes")
        fields["gpus_per_node"] = int(submit.total_gpus) // nodes
    if submit.cpus_per_task is not None:
        fields["cpus_per_node"] = submit.cpus_per_task * submit.tasks_per_node
    return fields


class _OptionReader:
    def __init__(self, submit: SubmitOptions, now: datetime, environment: Mapping[str, str]) -> None:
        self.submit, self.now, self.environment = submit, now, environment

    def read(self, words: Sequence[str]) -> None:
        remaining = list(words)
        while remaining:
            name, value = _pop_option(remaining)
            if name in IGNORED_OPTIONS:
                self.submit.ignored_options.append(name)
            elif name in TIME_OPTIONS:
                self.submit.fields[TIME_OPTIONS[name]] = _parse_time(name, value, self.now)
            elif name == "--export":
                self._read_export(value)
            else:
                OPTIONS[name](self.submit, name, value)

    def _read_export(self, value: str) -> None:
        """Read --export. NAME takes its value from here. ALL is ignored, because it would send all secrets."""
        for part in filter(None, value.split(",")):
            name, sign, value_text = part.partition("=")
            if name in ("ALL", "NONE", "NIL"):
                self.submit.ignored_options += ["--export=ALL"] * (name == "ALL")
            elif sign or name in self.environment:
                self.submit.fields.setdefault("environment", {})[name] = value_text if sign else self.environment[name]
            else:
                raise BadOption(f"--export: {name} is not set in this environment")


def _pop_option(remaining: list[str]) -> tuple[str, str]:
    """Remove and return the first option with its value."""
    word = remaining.pop(0)
    if word.startswith("--"):
        name, sign, value = word.partition("=")
    elif word.startswith("-") and len(word) > 1:
        name, value = SHORT_OPTIONS.get(word[:2], word[:2]), word[2:].removeprefix("=")
        sign = value
    else:
        raise BadOption(f"{word!r} is not an option")
    if _check_option_name(name) in SWITCHES:
        return name, ""
    if not sign:
        if not remaining:
            raise BadOption(f"{name} needs a value")
        value = remaining.pop(0)
    return name, value


def _check_option_name(name: str) -> str:
    if name not in OPTIONS and name not in IGNORED_OPTIONS and name not in (*TIME_OPTIONS, "--export"):
        raise BadOption(f"{name} is not an option of Acme or sbatch")
    return name


# --- setters


def _text_setter(field: str) -> OptionSetter:
    def set_text(submit: SubmitOptions, name: str, value: str) -> None:
        submit.fields[field] = value

    return set_text


def _number_setter(field: str) -> OptionSetter:
    def set_number(submit: SubmitOptions, name: str, value: str) -> None:
        submit.fields[field] = _parse_whole_number(name, value)

    return set_number


def _constant_setter(field: str, value: Any) -> OptionSetter:
    def set_constant(submit: SubmitOptions, name: str, value_text: str) -> None:
        submit.fields[field] = value

    return set_constant


def _parse_whole_number(name: str, value: str) -> int:
    if not (value.isascii() and value.removeprefix("-").isdigit()):
        raise BadOption(f"{name}: {value!r} is not a whole number")
    return int(value)


def _set_nodes(submit: SubmitOptions, name: str, value: str) -> None:
    low, _, high = value.partition("-")
    if high and high != low:
        raise BadOption(f"{name} {value}: Acme does not support ranges of nodes")
    submit.fields["nodes"] = _parse_whole_number(name, low)


def _set_gpus_per_node(submit: SubmitOptions, name: str, value: str) -> None:
    model, number = _parse_gpus(name, value)
    submit.fields["gpus_per_node"] = number
    if model:
        submit.fields["gpu_model"] = model


def _set_total_gpus(submit: SubmitOptions, name: str, value: str) -> None:
    model, submit.total_gpus = _parse_gpus(name, value)
    if model:
        submit.fields["gpu_model"] = model


def _parse_gpus(name: str, value: str) -> tuple[str, float]:
    """Parse `8`, `h100:8`, or `0.5` for a part of a GPU."""
    model, _, number = value.rpartition(":")
    if PART_PATTERN.fullmatch(number):
        return model, float(number)
    return model, _parse_whole_number(name, number)


def _set_gres(submit: SubmitOptions, name: str, value: str) -> None:
    """Parse `gpu`, `gpu:8`, `gpu:h100:8`, `shard:2`, `mps:50`, `nvidia.com/mig-1g.10gb:1`."""
    kind, _, remainder = value.partition(":")
    if kind.startswith(MIG_RESOURCE) and "," not in value:
        if remainder not in ("", "1"):
            raise BadOption(f"{name} {value}: a job can request one MIG slice")
        if kind == MIG_RESOURCE:
            raise BadOption(f"{name} {value}: the profile is missing, such as {MIG_RESOURCE}1g.10gb")
        submit.fields["mig_profile"] = kind.removeprefix(MIG_RESOURCE)
        return
    if kind not in ("gpu", "shard", "mps") or "," in value:
        raise BadOption(f"{name} {value}: Acme supports only gpu, shard, mps or {MIG_RESOURCE}PROFILE")
    if remainder and ":" not in remainder and not remainder.isdigit():
        remainder += ":1"
    if kind == "gpu":
        _set_gpus_per_node(submit, name, remainder or "1")
        return
    model, _, number = (remainder or "1").rpartition(":")
    submit.fields["gpu_mps" if kind == "mps" else "gpu_shards"] = _parse_whole_number(name, number)
    if model:
        submit.fields["gpu_model"] = model


def _set_cpus_per_task(submit: SubmitOptions, name: str, value: str) -> None:
    submit.cpus_per_task = _parse_whole_number(name, value)


def _set_tasks_per_node(submit: SubmitOptions, name: str, value: str) -> None:
    submit.tasks_per_node = _parse_whole_number(name, value)


def _pair_setter(field: str) -> OptionSetter:
    def set_pair(submit: SubmitOptions, name: str, value: str) -> None:
        key, sign, content = value.partition("=")
        if not sign:
            raise BadOption(f"{name} {value[:40]}: write NAME=VALUE")
        submit.fields.setdefault(field, {})[key] = content

    return set_pair


def _add_mounts(submit: SubmitOptions, name: str, value: str) -> None:
    submit.fields.setdefault("mounts", []).extend(word.strip() for word in value.split(",") if word.strip())


def _set_time_limit(submit: SubmitOptions, name: str, value: str) -> None:
    if value.upper() not in ("UNLIMITED", "INFINITE"):
        submit.fields["time_limit"] = value


def _parse_time(name: str, value: str, now: datetime) -> str:
    """Parse a time as sbatch does: `now+2hours`, `18:00`, `6pm`, `noon`, `01/31-18:00` or an ISO time. A time without a
    zone is in the zone of this machine. A time of day or a day of the year is the next one.
    """
    try:
        return _sbatch_time(value.strip().lower(), now.astimezone()).astimezone(UTC).isoformat()
    except (ValueError, OverflowError):
        why = f"{value!r} is not a time. Write now+2hours, 18:00 or 2026-01-31T08:00"
        raise BadOption(f"{name}: {why}") from None


def _sbatch_time(word: str, now: datetime) -> datetime:
    if match := RELATIVE_TIME_PATTERN.fullmatch(word):
        unit = (match[2] or "seconds").rstrip("s") + "s"
        return now + timedelta(**{unit: int(match[1])})
    if word in ("now", "today", "tomorrow"):
        return now + timedelta(days=word == "tomorrow")
    if match := CLOCK_PATTERN.fullmatch(CLOCK_WORDS.get(word, word)):
        at = datetime.combine(now, _time_of_day(match), now.tzinfo)
        return at if at > now else at + timedelta(days=1)
    if match := DATE_PATTERN.fullmatch(word):
        return _day_of_year(match, now)
    return datetime.fromisoformat(word.upper())


def _time_of_day(match: re.Match[str]) -> time:
    hour, minute, second = (int(part or 0) for part in match.group(1, 2, 3))
    if not (match[2] or match[4]):
        raise ValueError("a number alone is no time of day")
    if match[4]:
        if not 1 <= hour <= 12:
            raise ValueError("not an hour of a 12-hour clock")
        hour = hour % 12 + 12 * (match[4] == "pm")
    return time(hour, minute, second)


def _day_of_year(match: re.Match[str], now: datetime) -> datetime:
    """The day MM/DD[/YY], at midnight or at the time after the hyphen."""
    month, day, year, clock = match.groups()
    time_of_day = CLOCK_PATTERN.fullmatch(clock or "00:00")
    if time_of_day is None:
        raise ValueError("not a time of day")
    date_of_year = date(2000 + int(year) % 100 if year else now.year, int(month), int(day))
    at = datetime.combine(date_of_year, _time_of_day(time_of_day), now.tzinfo)
    return at if year or at > now else at.replace(year=now.year + 1)


def _field_setter(field: str, notation: Notation) -> OptionSetter:
    match notation:
        case Notation.NUMBER:
            return _number_setter(field)
        case Notation.FLAG:
            return _constant_setter(field, True)
        case Notation.PAIRS:
            return _pair_setter(field)
        case _:
            return _text_setter(field)


FIELD_OPTIONS = [(field.option, name, field.value.notation) for name, field in REQUEST_FIELDS.items() if field.option]
TIME_OPTIONS = {option.name: field for option, field, notation in FIELD_OPTIONS if notation == Notation.TIME}
OPTIONS: dict[str, OptionSetter] = {
    **{
        option.name: _field_setter(field, notation)
        for option, field, notation in FIELD_OPTIONS
        if notation != Notation.TIME
    },
    "--account": _text_setter("team"),
    "--team": _text_setter("team"),
    "--clusters": _text_setter("cluster"),
    "--cluster": _text_setter("cluster"),
    "--nodes": _set_nodes,
    "--cpus-per-task": _set_cpus_per_task,
    "--ntasks-per-node": _set_tasks_per_node,
    "--gpus": _set_total_gpus,
    "--gpus-per-node": _set_gpus_per_node,
    "--gres": _set_gres,
    "--time": _set_time_limit,
    "--requeue": _constant_setter("requeue_limit", DEFAULT_REQUEUE_LIMIT),
    "--no-requeue": _constant_setter("requeue_limit", 0),
    "--container-image": _text_setter("image"),  # of sbatch with Pyxis
    "--mount": _add_mounts,
}
SWITCHES = frozenset(
    {
        *("--requeue", "--no-requeue", "--exclusive"),
        *(option.name for option, _, notation in FIELD_OPTIONS if notation == Notation.FLAG),
    }
)
IGNORED_OPTIONS = frozenset(
    {
        *("--partition", "--qos", "--output", "--error", "--input", "--ntasks", "--constraint", "--nodelist"),
        *("--exclude", "--reservation", "--mail-type", "--mail-user", "--open-mode", "--exclusive"),
        *("--mem-per-cpu", "--mem-per-gpu", "--cpus-per-gpu", "--ntasks-per-gpu", "--nice", "--licenses"),
    }
)
SHORT_OPTIONS = {
    **{option.short: option.name for option, _, _ in FIELD_OPTIONS if option.short},
    "-A": "--account",
    "-M": "--clusters",
    "-n": "--ntasks",
    "-G": "--gpus",
    "-p": "--partition",
    "-q": "--qos",
    "-C": "--constraint",
    "-w": "--nodelist",
    "-x": "--exclude",
    "-o": "--output",
    "-e": "--error",
    "-i": "--input",
}
