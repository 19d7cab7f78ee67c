"""Break a simulated datacenter for a day and see who comes back: Acme, "always requeue", and nothing at all.

manage.py drill --hours 24 --seed 1
manage.py drill --rates llama3 --json

302 nodes, a training on 2,048 GPUs and the mix of Kalos beside it; faults at the rates of Llama 3 (llama3), as often as
that run met them (dense), and of the Acme study (acme). Needs no database and no server; the time is virtual.
"""

from __future__ import annotations

import json
from argparse import RawDescriptionHelpFormatter
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from scheduling.drill import report
from scheduling.drill.faults import SCENARIOS
from scheduling.drill.run import STRATEGIES, run_drill
from scheduling.drill.values import DrillPlan

MAX_DRILL_HOURS = 24 * 14


class Command(BaseCommand):
    help = __doc__ or ""
    requires_system_checks: list[str] = []

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(prog_name, subcommand, formatter_class=RawDescriptionHelpFormatter, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--hours", type=float, default=24.0, help="of virtual time (24)")
        parser.add_argument("--seed", type=int, default=1, help="of everything that is drawn")
        parser.add_argument("--rates", default=",".join(SCENARIOS), help="which, by commas: %(default)s")
        parser.add_argument("--json", action="store_true", dest="as_json")

    def handle(self, *, hours: float, seed: int, rates: str, as_json: bool, **_: Any) -> None:
        if not 0.5 <= hours <= MAX_DRILL_HOURS:
            raise CommandError(f"--hours: {hours:g} is not between 0.5 and {MAX_DRILL_HOURS}.")
        plan = DrillPlan(hours=hours, seed=seed)
        runs = {
            name: {answer: run_drill(SCENARIOS[name], plan, answer) for answer in STRATEGIES}
            for name in _parse_scenarios(rates)
        }
        told = report.drill_document(plan, runs)
        if as_json:
            self.stdout.write(json.dumps(told, indent=2, allow_nan=False))
            return
        for line in report.report_lines(told):
            self.stdout.write(line)


def _parse_scenarios(rates: str) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in rates.split(",")))
    for name in names:
        if name not in SCENARIOS:
            raise CommandError(f"--rates: {name!r} is none of {', '.join(SCENARIOS)}.")
    return names
