"""Give a cluster a memory of the jobs that ran before Acme: their run times and the usage of the teams.

manage.py import_history sacct.txt --cluster seren
manage.py import_history trace.csv.gz --cluster seren

Users and teams are matched by name. In a table of sacct the team is the account, or the partition if there is no column
Account. The time limits, states and nodes of the jobs are not used.
"""

from __future__ import annotations

from argparse import RawDescriptionHelpFormatter
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from acmeweb.common.errors import InvalidInput
from jobs.models import Cluster, clock
from jobs.traces.files import read_trace
from scheduling.actions.history_import import import_history


class Command(BaseCommand):
    help = __doc__ or ""

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(prog_name, subcommand, formatter_class=RawDescriptionHelpFormatter, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("trace", help="a trace file (CSV, SWF, sacct, JSON, Parquet; also gz, zst)")
        parser.add_argument("--cluster", required=True, help="name of the cluster on which the jobs ran")

    def handle(self, *, trace: str, cluster: str, **options: Any) -> None:
        row = Cluster.objects.filter(name=cluster).first()
        if row is None:
            raise CommandError(f"cluster: {cluster} is not a cluster of this installation")
        try:
            imported = import_history(row, read_trace(trace), clock.now())
        except InvalidInput as error:
            raise CommandError(f"trace: {error}") from error
        self.stdout.write(f"Imported {imported.jobs:,} jobs; {imported.skipped:,} were skipped as already known.")
        if imported.unknown_users:
            self.stdout.write(f"{imported.unknown_users:,} jobs count for all users, because their user is unknown.")
        if imported.unknown_teams:
            self.stdout.write(f"{imported.unknown_teams:,} jobs count for no team, because their team is unknown.")
