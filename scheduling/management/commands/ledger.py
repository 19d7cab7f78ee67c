"""Where the GPU-hours of a period went: every one in exactly one bucket.

manage.py ledger --from 2026-11-01 --to 2026-11-08 --by team
manage.py ledger --json
"""

from __future__ import annotations

import json
from argparse import RawDescriptionHelpFormatter
from datetime import UTC, datetime, timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.dateparse import parse_date, parse_datetime

from jobs.models import clock
from scheduling.ledger.buckets import Bucket
from scheduling.queries import ledger_table

DEFAULT_PERIOD = timedelta(days=1)


class Command(BaseCommand):
    help = __doc__ or ""

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(prog_name, subcommand, formatter_class=RawDescriptionHelpFormatter, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--from", dest="since", help="a day or a moment (UTC where none is named); else a day before"
        )
        parser.add_argument("--to", dest="until", help="and before it; else now")
        parser.add_argument("--by", choices=ledger_table.GROUPINGS, default="cluster")
        parser.add_argument("--json", action="store_true", dest="as_json")

    def handle(self, *, since: str | None, until: str | None, by: str, as_json: bool, **_: Any) -> None:
        over = _parse_time("--to", until) or clock.now()
        began = _parse_time("--from", since) or over - DEFAULT_PERIOD
        if began >= over:
            raise CommandError("--from is not before --to.")
        found = ledger_table.ledger_document(ledger_table.table(by, began, over), by, began, over)
        if as_json:
            self.stdout.write(json.dumps(found, indent=2))
            return
        for line in _lines(found):
            self.stdout.write(line)


def _parse_time(name: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        day = parse_date(text)
        moment = datetime(day.year, day.month, day.day) if day else parse_datetime(text)  # noqa: DTZ001 - see below
    except ValueError:
        moment = None
    if moment is None:
        raise CommandError(f"{name}: {text!r} is neither a day (2026-11-01) nor a moment (2026-11-01T12:00Z).")
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _lines(found: dict[str, Any]) -> list[str]:
    rows = found["rows"]
    names = [row["name"] or "(nobody)" for row in rows]
    lines = ["GPU-hours".ljust(18) + "".join(f"{name[:14]:>15}" for name in names) + f"{'all':>15}"]
    for bucket in Bucket:
        parts = [row["gpu_hours"][bucket] for row in rows]
        lines.append(f"{bucket:<18}" + "".join(f"{part:>15,.2f}" for part in (*parts, found["gpu_hours"][bucket])))
    lines.append("goodput".ljust(18) + "".join(_percent_cell(row["goodput"]) for row in (*rows, found)))
    if found["cost"] is not None:
        lines.append("cost".ljust(18) + "".join(f"{row['cost'] or 0:>15,.2f}" for row in (*rows, found)))
    lines.append(f"capacity {found['capacity_gpu_hours']:,.2f} GPU-hours, ETTR {_percent_cell(found['ettr']).strip()}")
    lines.append(
        "Goodput and ETTR are upper bounds: stalls of saves count as far as trainers report them, slow spells and idle "
        "GPUs of jobs are not seen yet."
    )
    mean = found["mttf"]
    lines.append(
        f"{mean['failures']} failures; GPU-hours to the next: {_number_text(mean['mean'])}"
        f" (90 % between {_number_text(mean['low'])} and {_number_text(mean['high'])})"
    )
    return [
        *lines,
        *(
            f"GPUs of model {_mttf_text(one['model'] or 'unknown', one)}"
            for one in found["mttf_by_model"]
            if one["failures"]
        ),
        *(f"node {_mttf_text(one['node'], one)}" for one in found["mttf_by_node"][:10]),
        *(f"lost to {ledger_table.cause_label(one['cause'])}: {one['gpu_hours']:,.2f}" for one in found["lost"]),
    ]


def _mttf_text(name: str, one: dict[str, Any]) -> str:
    between = f"{_number_text(one['low'])} and {_number_text(one['high'])}"
    return f"{name}: {one['failures']} faults of machines, one in {_number_text(one['mean'])} GPU-hours ({between})"


def _percent_cell(value: float | None) -> str:
    return f"{'-' if value is None else format(value, '.1%'):>15}"


def _number_text(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.1f}"
