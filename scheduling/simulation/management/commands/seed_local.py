"""Register this machine as a cluster with one node. Run at each start; existing rows are kept."""

from __future__ import annotations

import re
import socket
from typing import Any

from jobs.models import Team
from scheduling.simulation.demo.seed import SeedCommand


class Command(SeedCommand):
    help = __doc__

    def handle(self, **options: Any) -> None:
        name = local_name(socket.gethostname())
        self.refuse_other_clusters([name])
        self.upsert_slurm(name, "This machine", options)
        Team.objects.get_or_create(name="default", defaults={"title": "Everybody"})


def local_name(hostname: str) -> str:
    """Return a cluster name for the host name: lowercase letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", hostname.split(".")[0].lower()).strip("-")[:40] or "local"
