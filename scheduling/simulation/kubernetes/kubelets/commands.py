"""What a command does in the container of a simulated program. Pure.

A simulated container has no processes and no files, so it understands only what people and Acme ask of it: `kill` (with
a pid, a file with a pid, or processes found by a variable in /proc/PID/environ), `cat` of a file with a pid, `echo`,
`hostname`, `env`, `printenv`, `nvidia-smi`, `true`, `false` and `sleep`, alone or in a script of a shell. Everything
else is not found, as in an image without it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from signal import Signals

from scheduling.simulation.machines.values import SignalTarget

SHELLS = ("sh", "bash", "dash", "ash")
MAIN_PID = 7  # of the program that the wrapper in the container has started
NOT_FOUND, WRONG_USE = 127, 2
# A name, a number, or the variable that holds either: kill -s USR1 …, kill -10 …, kill -s "$1" …
KILL = re.compile(r"\bkill\s+-(?:s\s+)?[\"']?(\$\{?\w+\}?|[A-Z][A-Z0-9]+|\d+)")
EVERY_PROCESS = re.compile(r"/proc/[^\s/]*\*")
SEPARATORS = re.compile(r"\n|;|&&|\|\|")
REDIRECTION = re.compile(r"\s*[012]?>+\s*\S+")


@dataclass(frozen=True, kw_only=True)
class ContainerView:
    """What a command sees in a container."""

    hostname: str
    environment: Mapping[str, str]
    gpus: Sequence[tuple[int, str]] = ()  # index on the node, and uuid
    model: str = ""


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    stdout: str = ""
    stderr: str = ""
    code: int = 0
    signals: tuple[tuple[int, SignalTarget], ...] = field(default=())


def run_command(words: Sequence[str], view: ContainerView) -> CommandResult:
    """The result of `kubectl exec POD -- WORDS`."""
    program = PurePosixPath(words[0]).name if words else ""
    if program not in SHELLS:
        return _run_words(words, view)
    options = [place for place, word in enumerate(words) if re.fullmatch(r"-[a-z]*c", word)]
    if not options or options[0] + 1 >= len(words):
        return CommandResult()  # a shell without a script, whose input has ended
    script, arguments = words[options[0] + 1], words[options[0] + 2 :]
    return _run_script(script, arguments, view)


def _run_script(script: str, arguments: Sequence[str], view: ContainerView) -> CommandResult:
    values = {str(place): word for place, word in enumerate(arguments)} | dict(view.environment)
    for name, value in re.findall(r"^\s*(\w+)=[\"']?([\w./-]*)[\"']?\s*$", script, re.MULTILINE):
        values.setdefault(name, value)
    if found := KILL.findall(script):
        target = SignalTarget.SHELL if _reads_one_pid(script, arguments) else SignalTarget.ALL
        return _signals(found, values, target)
    result = CommandResult()
    for line in filter(None, map(str.strip, SEPARATORS.split(script))):
        one = _run_words(_split(REDIRECTION.sub("", _expanded(line, values))), view)
        result = CommandResult(stdout=result.stdout + one.stdout, stderr=result.stderr + one.stderr, code=one.code)
    return result


def _reads_one_pid(script: str, arguments: Sequence[str]) -> bool:
    """Whether a script signals the process whose pid a file contains, and not all that it finds in /proc."""
    return ".pid" in " ".join((script, *arguments)) and not EVERY_PROCESS.search(script)


def _signals(found: Sequence[str], values: Mapping[str, str], target: SignalTarget) -> CommandResult:
    numbers = [signal_number(_expanded(name, values)) for name in found]
    sent = dict.fromkeys(number for number in numbers if number)  # 0 only asks whether a process exists
    if not sent and None in numbers:
        return CommandResult(stderr="sh: 1: kill: Illegal option\n", code=WRONG_USE)
    return CommandResult(signals=tuple((number, target) for number in sent if number is not None))


def signal_number(text: str) -> int | None:
    """The number of `TERM`, `SIGTERM` or `15`; None for anything else."""
    if text.isascii() and text.isdigit():
        return int(text[:3]) if int(text[:3]) < 65 else None
    name = text if text.startswith("SIG") else f"SIG{text}"
    return int(Signals[name]) if name in Signals.__members__ else None


def _expanded(text: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\$\{?(\w+)\}?", lambda match: values.get(match[1], ""), text)


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


def _run_words(words: Sequence[str], view: ContainerView) -> CommandResult:
    if not words:
        return CommandResult()
    program, arguments = PurePosixPath(words[0]).name, words[1:]
    if program not in PROGRAMS:
        return CommandResult(stderr=f"{words[0]:.200}: not found\n", code=NOT_FOUND)
    return PROGRAMS[program](arguments, view)


def _kill(arguments: Sequence[str], view: ContainerView) -> CommandResult:
    found = KILL.findall(shlex.join(["kill", *arguments]))
    numbers = [signal_number(name) for name in found] or [int(Signals.SIGTERM)]
    if not arguments or None in numbers:
        return CommandResult(stderr="kill: wrong arguments\n", code=WRONG_USE)
    target = SignalTarget.SHELL if arguments[-1] in ("1", str(MAIN_PID)) else SignalTarget.ALL
    return CommandResult(signals=tuple((number, target) for number in numbers if number))


def _cat(arguments: Sequence[str], view: ContainerView) -> CommandResult:
    if arguments and arguments[-1].endswith(".pid"):
        return CommandResult(stdout=f"{MAIN_PID}\n")
    missing = arguments[-1] if arguments else ""
    return CommandResult(stderr=f"cat: {missing:.200}: No such file or directory\n", code=1)


def _environment(arguments: Sequence[str], view: ContainerView) -> CommandResult:
    if arguments:
        value = view.environment.get(arguments[0])
        return CommandResult(code=1) if value is None else CommandResult(stdout=f"{value}\n")
    return CommandResult(stdout="".join(f"{name}={value}\n" for name, value in view.environment.items()))


def _nvidia_smi(arguments: Sequence[str], view: ContainerView) -> CommandResult:
    """The GPUs of the container, with the indices that they have in it."""
    model = f"NVIDIA {view.model.upper()}"
    rows = [f"GPU {place}: {model} (UUID: {uuid})" for place, (_, uuid) in enumerate(view.gpus)]
    return CommandResult(stdout="".join(f"{row}\n" for row in rows))


PROGRAMS: Mapping[str, Callable[[Sequence[str], ContainerView], CommandResult]] = {
    "cat": _cat,
    "echo": lambda arguments, view: CommandResult(stdout=" ".join(arguments) + "\n"),
    "env": _environment,
    "false": lambda arguments, view: CommandResult(code=1),
    "hostname": lambda arguments, view: CommandResult(stdout=f"{view.hostname}\n"),
    "kill": _kill,
    "nvidia-smi": _nvidia_smi,
    "printenv": _environment,
    "sleep": lambda arguments, view: CommandResult(),
    "true": lambda arguments, view: CommandResult(),
    "test": lambda arguments, view: CommandResult(),
}
