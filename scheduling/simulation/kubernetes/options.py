"""The command-line options of a simulated Kubernetes cluster. An invalid option ends the program with one sentence."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field

from jobs.core.gpu_shares import MIG_PROFILE, WHOLE_GPU, profile_milli
from scheduling.simulation.machines.options import (
    SimulatorOptions,
    add_simulator_options,
    positive_number,
    simulator_values,
)

from .api.served import STANDARD, VERSIONS, ServedApi
from .values import ClusterTiming

MAX_CLOCK_OFFSET_S = 86_400.0
MAX_SLICES = 512  # of one profile on a node


@dataclass(frozen=True, kw_only=True)
class ServerOptions(SimulatorOptions):
    name: str = "kalos"
    tls: bool = False
    execute: bool = False
    clock_offset_s: float = 0.0
    mig_slices: Mapping[str, int] = field(default_factory=dict)  # of each of the last `mig_nodes` nodes, by profile
    mig_nodes: int = 0
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
    if values.execute and values.token_file is None:
        raise SystemExit("--execute: everyone who can reach the port could run commands here; add --token-file")
    return ServerOptions(
        **simulator_values(values),
        tls=values.tls,
        execute=values.execute,
        clock_offset_s=_clock_offset(values.clock_offset_s),
        mig_slices=_mig_slices(values.mig_slices, values.gpus_per_node),
        mig_nodes=values.mig_nodes,
        timing=timing,
        api=ServedApi(values.kubernetes, values.job_sets),
    )


def _clock_offset(seconds: float) -> float:
    if not abs(seconds) <= MAX_CLOCK_OFFSET_S:
        raise SystemExit(f"--clock-offset-s: {seconds} is not between -86400 and 86400")
    return seconds


def _mig_slices(text: str, gpus: int) -> dict[str, int]:
    slices: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        profile, _, count = part.partition("=")
        if not MIG_PROFILE.fullmatch(profile) or not (
            count.isascii() and count.isdigit() and 0 < int(count[:4]) <= MAX_SLICES
        ):
            raise SystemExit(f"--mig-slices: {part!r:.40} is not like 1g.10gb=7")
        slices[profile] = int(count)
    if divided_gpus(slices) > gpus:
        raise SystemExit(f"--mig-slices: a node has only {gpus} GPUs to divide")
    return slices


def divided_gpus(slices: Mapping[str, int]) -> int:
    """The fewest GPUs that have these slices."""
    return -(-sum(count * profile_milli(profile) for profile, count in slices.items()) // WHOLE_GPU)


def _parser() -> argparse.ArgumentParser:
    default = ClusterTiming()
    parser = argparse.ArgumentParser(
        prog="python -m scheduling.simulation.kubernetes.server", description="Run a simulated Kubernetes cluster."
    )
    add_simulator_options(parser, ServerOptions.name)
    parser.add_argument("--tls", action="store_true", help="serve HTTPS with a certificate of the cluster's own CA")
    parser.add_argument(
        "--kubernetes", choices=VERSIONS, default=STANDARD.version, help="version whose API the cluster shows"
    )
    parser.add_argument(
        "--execute", action="store_true", help="run the commands of pods on this machine; needs --token-file"
    )
    parser.add_argument(
        "--clock-offset-s",
        type=float,
        default=0.0,
        help="seconds that the cluster's clock is ahead; keep it at restarts",
    )
    parser.add_argument(
        "--mig-slices", default="", metavar="PROFILE=N,…", help="MIG slices of some nodes, instead of GPUs: 1g.10gb=7"
    )
    parser.add_argument("--mig-nodes", type=int, default=1, help="number of nodes that have them, the last ones")
    parser.add_argument("--job-sets", action="store_true", help="serve JobSets, as where their CRD is installed")
    parser.add_argument("--lease-s", type=float, default=default.lease_s, help="between renewals of a node's lease")
    parser.add_argument("--node-grace-s", type=float, default=default.node_grace_s, help="until a node is NotReady")
    parser.add_argument("--node-check-s", type=float, default=default.node_check_s, help="between checks of the leases")
    parser.add_argument(
        "--container-start-s", type=float, default=default.container_start_s, help="from placement to a running pod"
    )
    return parser


__all__ = ["ServerOptions", "parse_options"]
