"""Inject faults into a simulated datacenter and compare three strategies: Acme, always requeue, and no recovery.

manage.py drill --hours 24 --seed 1
manage.py drill --rates llama3 --json

The datacenter has 302 nodes, a training job on 2,048 GPUs and the job mix of Kalos. Fault rates: those of Llama 3
(llama3), scaled to the number of faults of that run (dense), and those of the Acme study (acme). The time is virtual.
The command needs no database and no server.
"""

from __future__ import annotations

import json
from argparse import RawDescriptionHelpFormatter
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from scheduling.simulation.drill import report
from scheduling.simulation.drill.faults import SCENARIOS
from scheduling.simulation.drill.run import STRATEGIES, run_drill
from scheduling.simulation.drill.values import DrillPlan

MAX_DRILL_HOURS = 24 * 14


class Command(BaseCommand):
    help = __doc__ or ""
    requires_system_checks: list[str] = []

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(prog_name, subcommand, formatter_class=RawDescriptionHelpFormatter, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--hours", type=float, default=24.0, help="virtual time in hours (default: 24)")
        parser.add_argument("--seed", type=int, default=1, help="seed of the random numbers (default: 1)")
        parser.add_argument(
            "--rates", default=",".join(SCENARIOS), help="fault rates, separated by commas (default: %(default)s)"
        )
        parser.add_argument("--json", action="store_true", dest="as_json", help="write the report as JSON")

    def handle(self, *, hours: float, seed: int, rates: str, as_json: bool, **_: Any) -> None:
        if not 0.5 <= hours <= MAX_DRILL_HOURS:
            raise CommandError(f"--hours: {hours:g} is not between 0.5 and {MAX_DRILL_HOURS}.")
        plan = DrillPlan(hours=hours, seed=seed)
        runs = {
            name: {answer: run_drill(SCENARIOS[name], plan, answer) for answer in STRATEGIES}
            for name in _parse_scenarios(rates)
        }
        document = report.drill_document(plan, runs)
        if as_json:
            self.stdout.write(json.dumps(document, indent=2, allow_nan=False))
            return
        for line in report.report_lines(document):
            self.stdout.write(line)


def _parse_scenarios(rates: str) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in rates.split(",")))
    for name in names:
        if name not in SCENARIOS:
            raise CommandError(f"--rates: {name!r} is not one of {', '.join(SCENARIOS)}.")
    return names
