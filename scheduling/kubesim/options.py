"""The command-line options of a simulated Kubernetes cluster. An invalid option ends the program with one sentence."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path

from scheduling.slurmsim.options import InvalidOption, positive_number, read_token_file

from .values import ClusterTiming


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    state: Path
    port: int
    bind: str = "127.0.0.1"
    name: str = "kalos"
    nodes: int = 32
    gpus_per_node: int = 8
    gpu_model: str = "a100"
    seed: int = 0
    speed: float = 60.0
    trial_speed: float = 1.0
    faults: float = 0.0
    token: str = ""
    tls: bool = False
    log_root: Path = Path()
    timing: ClusterTiming = field(default_factory=ClusterTiming)


def parse_options(arguments: list[str]) -> ServerOptions:
    values = _parser().parse_args(arguments)
    state = values.state.absolute()
    return ServerOptions(
        state=state,
        port=values.port,
        bind=values.bind,
        name=values.name,
        nodes=values.nodes,
        gpus_per_node=values.gpus_per_node,
        gpu_model=values.gpu_model,
        seed=values.seed,
        speed=positive_number("--speed", values.speed),
        trial_speed=positive_number("--trial-speed", values.trial_speed),
        faults=values.faults,
        token=read_token_file(values.token_file),
        tls=values.tls,
        log_root=(values.log_root or state / "logs").absolute(),
        timing=ClusterTiming(
            lease_s=positive_number("--lease-s", values.lease_s),
            node_grace_s=positive_number("--node-grace-s", values.node_grace_s),
            node_check_s=positive_number("--node-check-s", values.node_check_s),
            container_start_s=positive_number("--container-start-s", values.container_start_s),
        ),
    )


def _parser() -> argparse.ArgumentParser:
    default = ClusterTiming()
    parser = argparse.ArgumentParser(
        prog="python -m scheduling.kubesim.server", description="Run a simulated Kubernetes cluster."
    )
    parser.add_argument("--state", type=Path, required=True, help="directory for the persistent state")
    parser.add_argument("--port", type=int, required=True, help="port; 0 selects a free one and prints it")
    parser.add_argument("--bind", default="127.0.0.1")
    parser.add_argument("--name", default="kalos", help="name of the cluster and prefix of its nodes")
    parser.add_argument("--nodes", type=int, default=32)
    parser.add_argument("--gpus-per-node", type=int, default=8)
    parser.add_argument("--gpu-model", default="a100")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--speed", type=float, default=60.0, help="divides the durations that the cluster draws")
    parser.add_argument("--trial-speed", type=float, default=1.0, help="divides the durations of campaign jobs")
    parser.add_argument("--faults", type=float, default=0.0, help="faults per node and day, before --speed")
    parser.add_argument("--token-file", type=Path, help="file with the token of the administrator; without it, none")
    parser.add_argument("--tls", action="store_true", help="serve HTTPS with a certificate of the cluster's own CA")
    parser.add_argument("--log-root", type=Path, help="directory for the logs of containers (default: STATE/logs)")
    parser.add_argument("--lease-s", type=float, default=default.lease_s, help="between renewals of a node's lease")
    parser.add_argument("--node-grace-s", type=float, default=default.node_grace_s, help="until a node is NotReady")
    parser.add_argument("--node-check-s", type=float, default=default.node_check_s, help="between checks of the leases")
    parser.add_argument(
        "--container-start-s", type=float, default=default.container_start_s, help="from placement to a running pod"
    )
    return parser


__all__ = ["InvalidOption", "ServerOptions", "parse_options"]
