"""The command-line options of a simulated Kubernetes cluster. An invalid option ends the program with one sentence."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field

from scheduling.slurmsim.options import (
    InvalidOption,
    SimulatorOptions,
    add_simulator_options,
    positive_number,
    simulator_values,
)

from .api.served import STANDARD, VERSIONS, ServedApi
from .values import ClusterTiming


@dataclass(frozen=True, kw_only=True)
class ServerOptions(SimulatorOptions):
    name: str = "kalos"
    tls: bool = False
    api: ServedApi = STANDARD
    timing: ClusterTiming = field(default_factory=ClusterTiming)


def parse_options(arguments: list[str]) -> ServerOptions:
    values = _parser().parse_args(arguments)
    timing = ClusterTiming(
        lease_s=positive_number("--lease-s", values.lease_s),
        node_grace_s=positive_number("--node-grace-s", values.node_grace_s),
        node_check_s=positive_number("--node-check-s", values.node_check_s),
        container_start_s=positive_number("--container-start-s", values.container_start_s),
    )
    return ServerOptions(
        **simulator_values(values), tls=values.tls, timing=timing, api=ServedApi(values.kubernetes, values.job_sets)
    )


def _parser() -> argparse.ArgumentParser:
    default = ClusterTiming()
    parser = argparse.ArgumentParser(
        prog="python -m scheduling.kubesim.server", description="Run a simulated Kubernetes cluster."
    )
    add_simulator_options(parser, ServerOptions.name)
    parser.add_argument("--tls", action="store_true", help="serve HTTPS with a certificate of the cluster's own CA")
    parser.add_argument(
        "--kubernetes", choices=VERSIONS, default=STANDARD.version, help="version whose API the cluster shows"
    )
    parser.add_argument("--job-sets", action="store_true", help="serve JobSets, as where their CRD is installed")
    parser.add_argument("--lease-s", type=float, default=default.lease_s, help="between renewals of a node's lease")
    parser.add_argument("--node-grace-s", type=float, default=default.node_grace_s, help="until a node is NotReady")
    parser.add_argument("--node-check-s", type=float, default=default.node_check_s, help="between checks of the leases")
    parser.add_argument(
        "--container-start-s", type=float, default=default.container_start_s, help="from placement to a running pod"
    )
    return parser


__all__ = ["InvalidOption", "ServerOptions", "parse_options"]
