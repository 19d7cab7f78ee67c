"""Show the GPU-hours of a period by use. Each GPU-hour is in exactly one bucket.

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
from scheduling.core.number_texts import duration_text
from scheduling.ledger.reads import table as ledger_table
from scheduling.ledger.rules.buckets import Bucket

DEFAULT_PERIOD = timedelta(days=1)


class Command(BaseCommand):
    help = __doc__ or ""

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(prog_name, subcommand, formatter_class=RawDescriptionHelpFormatter, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--from", dest="since", help="start: a date or a time (UTC by default). Default: one day before --to"
        )
        parser.add_argument("--to", dest="until", help="end (exclusive). Default: now")
        parser.add_argument(
            "--by",
            choices=ledger_table.GROUPINGS,
            default="cluster",
            help="grouping of the rows (default: %(default)s)",
        )
        parser.add_argument("--json", action="store_true", dest="as_json", help="write the ledger as JSON")

    def handle(self, *, since: str | None, until: str | None, by: str, as_json: bool, **_: Any) -> None:
        until_at = _parse_time("--to", until) or clock.now()
        since_at = _parse_time("--from", since) or until_at - DEFAULT_PERIOD
        if since_at >= until_at:
            raise CommandError("--from must be before --to.")
        document = ledger_table.ledger_document(ledger_table.table(by, since_at, until_at), by, since_at, until_at)
        if as_json:
            self.stdout.write(json.dumps(document, indent=2))
            return
        for line in _lines(document):
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
        raise CommandError(f"{name}: {text!r} is not a date (2026-11-01) or a time (2026-11-01T12:00Z).")
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _lines(document: dict[str, Any]) -> list[str]:
    rows = document["rows"]
    names = [row["name"] or "(unallocated)" for row in rows]
    lines = ["GPU-hours".ljust(18) + "".join(f"{name[:14]:>15}" for name in names) + f"{'all':>15}"]
    for bucket in Bucket:
        parts = [row["gpu_hours"][bucket] for row in rows]
        lines.append(f"{bucket:<18}" + "".join(f"{part:>15,.2f}" for part in (*parts, document["gpu_hours"][bucket])))
    lines.append("goodput".ljust(18) + "".join(_percent_cell(row["goodput"]) for row in (*rows, document)))
    if document["cost"] is not None:
        lines.append("cost".ljust(18) + "".join(f"{row['cost'] or 0:>15,.2f}" for row in (*rows, document)))
    if document["kwh"] is not None:
        lines.append("kWh".ljust(18) + "".join(f"{row['kwh'] or 0:>15,.2f}" for row in (*rows, document)))
        lines.append(_energy_line(document))
    lines.append(
        f"capacity {document['capacity_gpu_hours']:,.2f} GPU-hours, ETTR {_percent_cell(document['ettr']).strip()}"
    )
    lines.append(
        "Goodput and ETTR are upper bounds: checkpoint stalls and slowdowns that no trainer reported, and idle "
        "GPUs of jobs, count as productive."
    )
    lines += _incompleteness_lines(document)
    mean = document["mttf"]
    lines.append(
        f"{mean['failures']} failures; GPU-hours per failure: {_number_text(mean['mean'])}"
        f" (90% confidence interval: {_number_text(mean['low'])} to {_number_text(mean['high'])})"
    )
    return [
        *lines,
        *(
            f"GPUs of model {_mttf_text(row['model'] or 'unknown', row)}"
            for row in document["mttf_by_model"]
            if row["failures"]
        ),
        *(f"node {_mttf_text(row['node'], row)}" for row in document["mttf_by_node"][:10]),
        *(f"lost to {ledger_table.cause_label(row['cause'])}: {row['gpu_hours']:,.2f}" for row in document["lost"]),
        *(
            f"drained or down, {ledger_table.reason_label(row['reason'])}: {row['gpu_hours']:,.2f}"
            for row in document["closed"]
        ),
    ]


def _energy_line(document: dict[str, Any]) -> str:
    cost, co2 = document["energy_cost"], document["co2_kg"]
    known = [f"cost {cost:,.2f}" if cost is not None else "", f"{co2:,.1f} kg CO2" if co2 is not None else ""]
    return ", ".join([f"energy {document['energy_basis']}", *filter(None, known)])


def _incompleteness_lines(document: dict[str, Any]) -> list[str]:
    lines = []
    if document["left_out_s"]:
        lines.append(f"Not included, because not computed yet: {duration_text(document['left_out_s'])} of this period.")
    if document["outdated_s"]:
        lines.append(f"About to change, because rows changed: {duration_text(document['outdated_s'])} of this period.")
    return lines


def _mttf_text(name: str, row: dict[str, Any]) -> str:
    interval = f"{_number_text(row['low'])} to {_number_text(row['high'])}"
    return f"{name}: {row['failures']} hardware failures, one per {_number_text(row['mean'])} GPU-hours ({interval})"


def _percent_cell(value: float | None) -> str:
    return f"{'-' if value is None else format(value, '.1%'):>15}"


def _number_text(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.1f}"
