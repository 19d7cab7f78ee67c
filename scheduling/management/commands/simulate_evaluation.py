"""Compare methods to evaluate one 7B model on 63 datasets, as in the Acme study. Needs no database and no server.

manage.py simulate_evaluation
manage.py simulate_evaluation --nodes 1,2,4,8 --json
"""

from __future__ import annotations

import json
from argparse import RawDescriptionHelpFormatter
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from scheduling.evaluation.rules.study import study


class Command(BaseCommand):
    help = __doc__ or ""
    requires_system_checks: list[str] = []

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(prog_name, subcommand, formatter_class=RawDescriptionHelpFormatter, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--nodes", default="1,4", help="numbers of nodes with 8 GPUs, separated by commas")
        parser.add_argument(
            "--sharing",
            type=int,
            default=8,
            help="trials of a node that loaded together in the published profile (the study does not state it)",
        )
        parser.add_argument("--seeds", type=int, default=20, help="number of samples of wrong estimates")
        parser.add_argument("--json", action="store_true", help="write only the report, as JSON, to stdout")

    def handle(self, *, nodes: str, sharing: int, seeds: int, **options: Any) -> None:
        if not 1 <= sharing <= 8:
            raise CommandError(f"sharing: {sharing} is not between 1 and 8")
        if not 0 <= seeds <= 10_000:
            raise CommandError(f"seeds: {seeds} is not between 0 and 10000")
        report = study(_parse_node_counts(nodes), sharing, seeds=seeds)
        if options["json"]:
            self.stdout.write(json.dumps(report, indent=2, allow_nan=False))
            return
        for setting in report["settings"]:
            self.stdout.write("\n".join(_comparison_lines(setting)) + "\n")


def _parse_node_counts(text: str) -> list[int]:
    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError:
        raise CommandError(f"nodes: {text!r} is not a list of whole numbers") from None
    if wrong := [number for number in numbers if not 1 <= number <= 1000]:
        raise CommandError(f"nodes: {wrong[0]} is not between 1 and 1000")
    return numbers


def _comparison_lines(setting: dict[str, Any]) -> list[str]:
    published = setting["published_speedup"]
    beside = f"; the study reports a speedup of {published} over its baseline" if published else ""
    acme_s = next(row["makespan_s"] for row in setting["rows"] if row["method"] == "acme")
    whole_s = setting["whole_bound_s"]
    lines = [
        f"{setting['nodes']} x 8 GPUs: lower bound {setting['lower_bound_s']:,.0f} s, "
        f"longest dataset {setting['longest_dataset_s']:,.0f} s on one GPU{beside}",
        f"lower bound without splitting datasets, as in the baseline: {whole_s:,.0f} s; "
        f"acme is {whole_s / acme_s:.2f}x faster",
        f"{'method':<17}{'makespan_s':>12}{'speedup':>9}{'of bound':>10}{'gpu_idle_s':>12}{'trials':>8}{'slices':>8}",
    ]
    for row in setting["rows"]:
        lines.append(
            f"{row['method']:<17}{row['makespan_s']:>12,.0f}{row['speedup']:>8.2f}x{row['over_bound']:>10.3f}"
            f"{row['gpu_idle_s']:>12,.0f}{row['trials']:>8}{row['slices']:>8}"
        )
    for wrong in setting["wrong_priors"]:
        lines.append(
            f"acme, estimates wrong by up to {wrong['error']:.0%}, {wrong['seeds']} seeds: "
            f"median {wrong['median_s']:,.0f} s, worst {wrong['worst_s']:,.0f} s "
            f"({wrong['worst_speedup']:.2f}x, {wrong['worst_over_bound']:.3f} of the bound)"
        )
    for far in setting["far_off"]:
        lines.append(
            f"acme, one estimate {far['factor']:g} times the cost, for each dataset: median {far['median_s']:,.0f} s, "
            f"worst {far['worst_s']:,.0f} s with {far['worst_dataset']} "
            f"({far['worst_speedup']:.2f}x, {far['worst_over_bound']:.3f} of the bound)"
        )
    return lines
