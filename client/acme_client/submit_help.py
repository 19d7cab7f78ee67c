"""The help of `acme submit`. Its options are those of sbatch and are parsed in `script`, not by typer."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from typer.core import TyperCommand

from acme_client import script
from acme_client.request_fields import FIELD_GROUPS, Notation

DESCRIPTION = """\
Submit a script with #SBATCH and #ACME lines, or a command with --wrap.

SCRIPT - reads the script from standard input. Options on the command line take precedence over those in the script.
Prints the job's id as sbatch does, and its URL on standard error."""

# Title of a group → options that are no field of a request by themselves, with their descriptions
OTHER_OPTIONS: dict[str, tuple[tuple[str, str], ...]] = {
    "Job": (
        ("--wrap COMMAND", "Run this command line instead of a script."),
        ("--account TEAM", "Team that owns the job. Required if you are in several."),
        ("--team TEAM", "The same as --account."),
        ("--clusters CLUSTER", "Required if there are several."),
        ("--cluster CLUSTER", "The same as --clusters."),
        ("--gpus [MODEL:]N", "Total number of GPUs, distributed evenly over the nodes. 0.5: a part of one GPU."),
    ),
    "Resources": (
        ("--gres gpu[:MODEL][:N]", "As in Slurm. Parts of one GPU: shard:N, mps:N, nvidia.com/mig-1g.10gb."),
        ("--ntasks-per-node N", "Multiplies --cpus-per-task. Default: 1."),
    ),
    "Scheduling": (
        ("--requeue", "Requeue up to 3 times after failures of the platform."),
        ("--no-requeue", "Never requeue."),
    ),
    "Working directory and environment": (
        ("--container-image IMAGE", "The same as --image, as in sbatch with Pyxis."),
        ("--export NAME[=VALUE],…", "Environment variables. NAME alone takes its value from here."),
    ),
    "Output": (
        ("--parsable", "Print only the id."),
        ("--dry-run", "Submit nothing. Show when the job would start, why it would wait, and its cost."),
        ("--test-only", "The same as --dry-run, as in sbatch."),
        ("--help", "Show this help."),
    ),
}
# What the help says about the value, after the help of the field
WRITTEN_IN_OPTIONS = {
    Notation.PATH: "An absolute path.",
    Notation.PAIRS: "Can be repeated.",
    Notation.NAMES: "Separated by commas.",
    Notation.MEMORY: "Such as 512G.",
    Notation.DURATION: "Minutes, HH:MM:SS or D-HH:MM:SS.",
    Notation.TIME: "Such as now+2hours, 18:00 or 2026-01-31T08:00.",
}
EXAMPLES = """\
Examples:
  acme submit -N 2 --gpus-per-node 8 -t 1-12:00:00 --kind pretrain train.sh --lr 3e-4
  acme submit -J nap --gpus-per-node 1 -t 10 --wrap 'python -c "import torch; print(torch.cuda.device_count())"'

Then follow the job with: acme watch ID"""
HELP_WIDTH = 120
LONGEST_OPTION = 34  # longer ones have their description on the next line


def option_groups() -> dict[str, list[tuple[str, str]]]:
    """Return the options of each group: the option with its value, and its description."""
    titles = dict.fromkeys([*FIELD_GROUPS, *OTHER_OPTIONS])
    return {title: [*_field_options(title), *OTHER_OPTIONS.get(title, ())] for title in titles}


def _field_options(title: str) -> Iterator[tuple[str, str]]:
    for field in FIELD_GROUPS.get(title, {}).values():
        if field.option and not field.option.gres:
            sentences = (field.option.help or field.help, WRITTEN_IN_OPTIONS.get(field.value.notation, ""))
            yield field.option.usage.rpartition(", ")[2], " ".join(filter(None, sentences))


def submit_help() -> str:
    """Return the whole help text."""
    groups = ("\n".join([f"{title}:", *map(_option_line, options)]) for title, options in option_groups().items())
    return "\n\n".join(["Usage: acme submit [OPTIONS] SCRIPT [ARGS]", DESCRIPTION, *groups, _ignored_text(), EXAMPLES])


def _option_line(option: tuple[str, str]) -> str:
    usage, description = option
    name = usage.partition(" ")[0]
    short = next((short for short, long in script.SHORT_OPTIONS.items() if long == name), "")
    left = f"  {f'{short},' if short else '':<3} {usage}"
    indent = " " * (LONGEST_OPTION + 4)
    lines = textwrap.wrap(description, HELP_WIDTH, initial_indent=indent, subsequent_indent=indent)
    if len(left) > LONGEST_OPTION + 2:
        return "\n".join([left, *lines])
    return "\n".join([left + lines[0][len(left) :], *lines[1:]])


def _ignored_text() -> str:
    lines: list[str] = ["Accepted and ignored, so that scripts for sbatch run unchanged:"]
    line = " "
    for name in sorted(script.IGNORED_OPTIONS):
        if len(line) + len(name) > 90:
            lines.append(line)
            line = " "
        line += f" {name}"
    return "\n".join([*lines, line])


class SubmitCommand(TyperCommand):
    """A command with the help of this module instead of typer's."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(f"{submit_help()}\n")
