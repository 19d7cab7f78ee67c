"""Register the demo datacenter: its clusters, teams and users. Run at each start; existing rows are kept."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser

from jobs.models import Cluster
from scheduling.simulation.demo import kalos, users
from scheduling.simulation.demo.history import write
from scheduling.simulation.demo.seed import SeedCommand
from scheduling.simulation.demo.sites import DEMO_SITES


class Command(SeedCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--kubeconfig", default=settings.OWN_KUBECONFIG, help="of the cluster kalos; empty: none")

    def handle(self, **options: Any) -> None:
        self.refuse_other_clusters(DEMO_SITES)
        known = set(Cluster.objects.values_list("name", flat=True))
        if not known and settings.DEMO_HISTORY_DAYS:
            write.reserve_keys()  # first: the next lines write Events
        if new := [cluster for cluster in self._clusters(options) if cluster.name not in known]:
            users.create_teams_and_users()
        for cluster in new:
            users.enable_automatic_recovery(cluster)

    def _clusters(self, options: dict[str, Any]) -> list[Cluster]:
        rows = []
        if "seren" in settings.DEMO_CLUSTERS:
            rows.append(self.upsert_slurm("seren", DEMO_SITES["seren"].title, options))
        if "kalos" in settings.DEMO_CLUSTERS and options["kubeconfig"]:
            telemetry = f"{settings.OWN_KUBERNETES_URL}/metrics" if settings.OWN_KUBERNETES_URL else ""
            connection = {
                "address": f"kubernetes://{options['kubeconfig']}",
                "metrics_address": telemetry,
                "workload_owners": kalos.WORKLOAD_OWNERS,
                "pod_template": kalos.POD_TEMPLATE,
            }
            rows.append(self.upsert_cluster("kalos", DEMO_SITES["kalos"].title, connection))
        return rows
