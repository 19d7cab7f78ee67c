"""The help of `acme submit`. Its options are those of sbatch and are parsed in `script`, not by typer."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from acme_client import script

DESCRIPTION = """\
Submit a script with #SBATCH and #ACME lines, or a command with --wrap.

SCRIPT - reads the script from standard input. Options on the command line take precedence over those in the script.
Prints the job's id as sbatch does, and its URL on standard error."""

# Title of a group → (option with its value, description)
OPTION_GROUPS: dict[str, tuple[tuple[str, str], ...]] = {
    "What runs": (
        ("--wrap COMMAND", "Run this command line instead of a script."),
        ("--job-name NAME", "Default: the script's file name."),
        ("--kind KIND", "pretrain, sft, mllm, evaluation, debug or other. Policies use it."),
        ("--image IMAGE", "Container image, on clusters that run images."),
        ("--container-image IMAGE", "The same, as in sbatch with Pyxis."),
        ("--mount NAME", "Volume that the cluster offers to containers. Can be repeated."),
        ("--chdir PATH", "Working directory, absolute."),
        ("--export NAME[=VALUE],…", "Environment variables. NAME alone takes its value from here."),
        ("--env NAME=VALUE", "One environment variable; the value may contain commas. Can be repeated."),
        ("--array INDEXES", "One task per index: 0-99, or 0-99%10 for at most ten at once."),
        ("--label NAME=VALUE", "Label for filters and reports. Can be repeated."),
        ("--comment TEXT", "Free text, shown on the job's page."),
    ),
    "Where, and with what": (
        ("--account TEAM", "Team that owns the job. Required if you are in several."),
        ("--team TEAM", "The same as --account."),
        ("--clusters CLUSTER", "Required if there are several."),
        ("--cluster CLUSTER", "The same as --clusters."),
        ("--nodes N", "Number of nodes. Default: 1."),
        ("--gpus-per-node [MODEL:]N", "GPUs of each node: 8, or h100:8."),
        ("--gpus [MODEL:]N", "Total number of GPUs, distributed evenly over the nodes. 0.5: a part of one GPU."),
        ("--gres gpu[:MODEL][:N]", "As in Slurm. Parts of one GPU: shard:N, mps:N, nvidia.com/mig-1g.10gb."),
        ("--gpu-model MODEL", "Only nodes with this GPU."),
        ("--nic-type TYPE", "Only nodes with this network card."),
        ("--cpus-per-task N", "CPUs of each task. Default: a share of the node for its GPUs."),
        ("--ntasks-per-node N", "Multiplies --cpus-per-task. Default: 1."),
        ("--mem SIZE", "Memory of each node: 512G. Default: a share of the node."),
    ),
    "When": (
        ("--time LIMIT", "Time limit: minutes, HH:MM:SS or D-HH:MM:SS. Short limits start earlier."),
        ("--begin TIME", "Do not start before: now+2hours, or 2026-01-31T08:00."),
        (
            "--deadline TIME",
            "When it should have ended: 18:00, now+6hours, or 2026-01-31T08:00.",
        ),
        ("--deadline-action ACTION", "continue (default), or cancel: the job ends at its deadline, as in sbatch."),
        ("--dependency LIST", "afterok:ID, afterany:ID or afternotok:ID, separated by commas."),
        ("--hold", "Submit held. Release it with acme release."),
        ("--priority N", "Jobs with a higher number start first."),
    ),
    "Preemption": (
        ("--preemptible", "May be stopped for other jobs, and may borrow unused quota."),
        ("--preempt-exempt-time TIME", "Not preempted for this long after each start: 30 (minutes)."),
        ("--preempt-at-checkpoint", "Preempted only right after a checkpoint."),
        ("--preemptions-per-day N", "Preempted at most N times within 24 hours."),
    ),
    "Failures and checkpoints": (
        ("--requeue", "Requeue up to 3 times after failures of the platform."),
        ("--no-requeue", "Never requeue."),
        ("--requeue-limit N", "Requeue at most N times."),
        ("--checkpoint-dir PATH", "Directory in which the job saves checkpoints."),
        ("--checkpoint-interval TIME", "How often the job saves one: 30 (minutes), 00:30:00."),
        ("--signal [B:]SIGNAL[@SECONDS]", "Signal that makes the job save before it is stopped."),
    ),
    "Output": (
        ("--parsable", "Print only the id."),
        ("--dry-run", "Submit nothing. Show when the job would start, why it would wait, and its cost."),
        ("--test-only", "The same as --dry-run, as in sbatch."),
        ("--help", "Show this help."),
    ),
}
EXAMPLES = """\
Examples:
  acme submit -N 2 --gpus-per-node 8 -t 1-12:00:00 --kind pretrain train.sh --lr 3e-4
  acme submit -J nap --gpus-per-node 1 -t 10 --wrap 'python -c "import torch; print(torch.cuda.device_count())"'

Then follow the job with: acme watch ID"""
LONGEST_OPTION = 34  # longer ones have their description on the next line


def submit_help() -> str:
    """Return the whole help text."""
    groups = ("\n".join([f"{title}:", *map(_option_line, options)]) for title, options in OPTION_GROUPS.items())
    return "\n\n".join(["Usage: acme submit [OPTIONS] SCRIPT [ARGS]", DESCRIPTION, *groups, _ignored_text(), EXAMPLES])


def _option_line(option: tuple[str, str]) -> str:
    usage, description = option
    name = usage.partition(" ")[0]
    short = next((short for short, long in script.SHORT_OPTIONS.items() if long == name), "")
    left = f"  {f'{short},' if short else '':<3} {usage}"
    gap = "\n" + " " * (LONGEST_OPTION + 4) if len(left) > LONGEST_OPTION + 2 else ""
    return f"{left:<{LONGEST_OPTION + 4}}{description}" if not gap else f"{left}{gap}{description}"


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
