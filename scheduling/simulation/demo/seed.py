"""Base of the commands that register the bundled clusters of `make up`: the simulated ones, or this machine."""

from __future__ import annotations

from collections.abc import Collection
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

    def upsert_slurm(self, name: str, title: str, options: dict[str, Any]) -> Cluster:
        """Create or update the row of a cluster with slurmrestd."""
        connection = {
            "address": options["address"],
            "metrics_address": f"{options['address']}/metrics",
            "log_root": options["log_root"],
            "token_file": options["token_file"],
            "api_user": settings.OWN_CLUSTER_USER,
            "submit_as": SubmitIdentity.USER_HEADER,
        }
        return self.upsert_cluster(name, title, connection)

    def upsert_cluster(self, name: str, title: str, connection: dict[str, Any]) -> Cluster:
        """Create or update the row. The connection is updated at each start, because the port may change."""
        # The product is read again, because a new version may report another one
        connection = {**connection, "is_bundled": True, "product": ""}
        # No other program decides about these nodes, so Acme may
        first = {"title": title, "mode": ClusterMode.DRIVE, **CONTRACTS}
        row, _ = Cluster.objects.update_or_create(
            name=name, defaults=connection, create_defaults={**connection, **first}
        )
        return row

    def refuse_other_clusters(self, names: Collection[str]) -> None:
        """A directory belongs to the demo or to this machine, because the clusters keep their state there."""
        if other := Cluster.objects.filter(is_bundled=True).exclude(name__in=names).first():
            raise CommandError(
                f"This Acme already runs the cluster {other.name} and cannot run {' and '.join(names)} too. "
                "Use another directory: ACME_VAR=DIRECTORY make up"
            )
