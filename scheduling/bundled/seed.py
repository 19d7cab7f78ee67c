"""The cluster that `make up` brings along, simulated or this very machine: how its row is written down."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from jobs.models import Cluster, ClusterMode
from jobs.models.cluster import SubmitIdentity


class SeedCommand(BaseCommand):
    """What both seeds ask for; what else belongs to a first start is theirs."""

    def add_arguments(self, parser: CommandParser) -> None:
        logs = str(settings.VAR / "cluster" / "logs")
        parser.add_argument("--address", default=settings.OWN_CLUSTER_URL, help="where its slurmrestd answers")
        parser.add_argument("--log-root", default=logs, help="directory of its job logs")
        parser.add_argument("--token-file", default=settings.OWN_CLUSTER_TOKEN_FILE, help="the token it asks for")

    def upsert_cluster(self, name: str, title: str, given: dict[str, Any]) -> tuple[Cluster, bool]:
        """The port may differ from start to start, so how it is reached is always brought up to date."""
        place = {
            "address": given["address"],
            "metrics_address": f"{given['address']}/metrics",
            "log_root": given["log_root"],
            "token_file": given["token_file"],
            "api_user": settings.OWN_CLUSTER_USER,
            "is_bundled": True,
            "submit_as": SubmitIdentity.USER_HEADER,
        }
        first = {"title": title, "mode": ClusterMode.DRIVE}  # nobody else submits jobs here
        rows = Cluster.objects
        if other := rows.filter(is_bundled=True).exclude(name=name).first():
            raise CommandError(
                f"This Acme runs the cluster {other.name}, and was started to run {name}. "
                "Use another directory for it: ACME_VAR=DIRECTORY make up"
            )
        return rows.update_or_create(name=name, defaults=place, create_defaults={**place, **first})
