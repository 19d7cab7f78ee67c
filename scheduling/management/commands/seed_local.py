"""Make this very machine known as a cluster of one node. Run at each start; it only adds what is missing."""

from __future__ import annotations

import re
import socket
from typing import Any

from jobs.models import Team
from scheduling.bundled.seed import SeedCommand


class Command(SeedCommand):
    help = __doc__

    def handle(self, **given: Any) -> None:
        self.upsert_cluster(local_name(socket.gethostname()), "This machine", given)
        Team.objects.get_or_create(name="default", defaults={"title": "Everybody"})


def local_name(hostname: str) -> str:
    """A host name as the name of a cluster: small letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", hostname.split(".")[0].lower()).strip("-")[:40] or "local"
