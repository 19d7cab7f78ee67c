"""Sets the clocks of the GPUs of nodes: through the site's program, or in the machine room of a simulated cluster.

Acme changes no clock itself, because that needs root on the nodes. A simulated cluster has no nodes that a program
could reach, so it gets the same clocks over HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from django.conf import settings
from django.utils.module_loading import import_string
from django.utils.text import capfirst

from jobs.models import Cluster
from scheduling.clusters.clock_command import ClocksNotSet, run_clock_command

SetClocks = Callable[[Cluster, Mapping[str, int | None]], None]


def set_clocks(cluster: Cluster, clocks: Mapping[str, int | None]) -> None:
    """Set the clocks in MHz by node; None is the highest. Raises ClocksNotSet if that may have failed on any node."""
    if missing := missing_means(cluster):
        raise ClocksNotSet(f"{capfirst(missing)}.")
    if not cluster.is_simulated:
        timeout_s = settings.ACME_POWER_CAP_TIMEOUT_S
        run_clock_command(settings.ACME_POWER_CAP_COMMAND, cluster.name, clocks, timeout_s=timeout_s)
        return
    import_string(settings.SIMULATED_CLOCKS)(cluster, clocks)


def missing_means(cluster: Cluster) -> str:
    """Why clocks of this cluster cannot be set; empty if they can. A sentence without its period."""
    if cluster.is_simulated or settings.ACME_POWER_CAP_COMMAND:
        return ""
    if not cluster.product:
        return f"the cluster {cluster} has not reported its product yet, which takes up to a minute"
    return f"ACME_POWER_CAP_COMMAND is not set, so Acme cannot cap clocks of the cluster {cluster}"
