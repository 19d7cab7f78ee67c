"""Base of the commands that register the bundled cluster of `make up`: simulated, or this machine."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from jobs.core.preemption_contract import CheckpointClause
from jobs.models import Cluster, ClusterMode
from jobs.models.cluster import SubmitIdentity

# What jobs may ask for, so that the form's fields can be tried
CONTRACTS = {
    "max_exempt_minutes": 60,
    "checkpoint_clause": CheckpointClause.OPTIONAL,
    "min_preemptions_per_day": 1,
}


class SeedCommand(BaseCommand):
    """The common arguments and the cluster's row. Subclasses add what a first start needs."""

    def add_arguments(self, parser: CommandParser) -> None:
        logs = str(settings.VAR / "cluster" / "logs")
        parser.add_argument("--address", default=settings.OWN_CLUSTER_URL, help="address of its slurmrestd")
        parser.add_argument("--log-root", default=logs, help="directory of the job logs")
        parser.add_argument(
            "--token-file", default=settings.OWN_CLUSTER_TOKEN_FILE, help="file with the token for slurmrestd"
        )

    def upsert_cluster(self, name: str, title: str, options: dict[str, Any]) -> tuple[Cluster, bool]:
        """Create or update the cluster's row. The connection is updated at each start, because the port may change."""
        connection = {
            "address": options["address"],
            "metrics_address": f"{options['address']}/metrics",
            "log_root": options["log_root"],
            "token_file": options["token_file"],
            "api_user": settings.OWN_CLUSTER_USER,
            "is_bundled": True,
            "product": "",  # read again, because a new version may report another one
            "submit_as": SubmitIdentity.USER_HEADER,
        }
        first = {"title": title, "mode": ClusterMode.DRIVE, **CONTRACTS}  # no other program submits jobs here
        rows = Cluster.objects
        if other := rows.filter(is_bundled=True).exclude(name=name).first():
            raise CommandError(
                f"This Acme already runs the cluster {other.name} and cannot run {name} too. "
                "Use another directory: ACME_VAR=DIRECTORY make up"
            )
        return rows.update_or_create(name=name, defaults=connection, create_defaults={**connection, **first})
