"""Give a cluster the price and carbon intensity of electricity by the hour.

manage.py import_energy_prices prices.csv --cluster seren

The CSV has the columns time, price (of a kWh, in the server's currency) and co2_g (grams of CO2 per kWh); one of the
last two may be missing. Times without a zone are UTC. Hours that the file contains replace stored ones. Other hours,
and empty cells, have the constants of the cluster's settings. Reports use the new values for past hours, too.
"""

from __future__ import annotations

from argparse import RawDescriptionHelpFormatter
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from acmeweb.common.errors import InvalidInput
from jobs.models import Cluster
from scheduling.management.text_files import open_text
from scheduling.power.actions.energy import import_prices
from scheduling.power.rules.price_file import HourPrice, read_prices


class Command(BaseCommand):
    help = __doc__ or ""

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(prog_name, subcommand, formatter_class=RawDescriptionHelpFormatter, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("prices", metavar="PRICES.csv", help="CSV with the columns time, price and co2_g")
        parser.add_argument("--cluster", required=True, help="name of the cluster that uses this electricity")

    def handle(self, *, prices: str, cluster: str, **options: Any) -> None:
        row = Cluster.objects.filter(name=cluster).first()
        if row is None:
            raise CommandError(f"cluster: {cluster} is not a cluster of this installation")
        stored = import_prices(row, _read_file(prices))
        self.stdout.write(f"Stored {stored:,} hours for {cluster}.")


def _read_file(path: str) -> list[HourPrice]:
    try:
        with open_text(path, "prices") as lines:
            return read_prices(lines, path)
    except InvalidInput as error:
        raise CommandError(str(error)) from error
