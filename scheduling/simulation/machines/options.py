"""The options that the servers of all simulated clusters have, and messages for invalid ones."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class SimulatorOptions:
    """What the simulators of Slurm and Kubernetes have in common."""

    state: Path
    port: int
    name: str
    bind: str = "127.0.0.1"
    nodes: int = 32
    gpus_per_node: int = 8
    gpu_model: str = "a100"
    seed: int = 0
    speed: float = 60.0
    trial_speed: float = 1.0
    faults: float = 0.0
    token: str = ""
    log_root: Path = Path()


def add_simulator_options(parser: argparse.ArgumentParser, name: str) -> None:
    add = parser.add_argument
    add("--state", type=Path, required=True, help="directory for the persistent state")
    add("--port", type=int, required=True, help="port; 0 selects a free one and prints it")
    add("--bind", default="127.0.0.1")
    add("--name", default=name, help="name of the cluster and prefix of its nodes")
    add("--nodes", type=int, default=32)
    add("--gpus-per-node", type=int, default=8)
    add("--gpu-model", default="a100")
    add("--seed", type=int, default=0)
    add("--speed", type=float, default=60.0, help="divides the durations that the cluster draws")
    add("--trial-speed", type=float, default=1.0, help="divides the durations of campaign jobs")
    add("--faults", type=float, default=0.0, help="faults per node and day, before --speed")
    add("--token-file", type=Path, help="file with the token that requests need; without it, none")
    add("--log-root", type=Path, help="directory of the logs of jobs (default: STATE/logs)")


def simulator_values(values: argparse.Namespace) -> dict[str, Any]:
    """The checked values of the common options, for `SimulatorOptions`."""
    state = values.state.absolute()
    as_given = ("port", "bind", "name", "nodes", "gpus_per_node", "gpu_model", "seed", "faults")
    return {
        **{name: getattr(values, name) for name in as_given},
        "state": state,
        "speed": positive_number("--speed", values.speed),
        "trial_speed": positive_number("--trial-speed", values.trial_speed),
        "token": read_token_file(values.token_file),
        "log_root": (values.log_root or state / "logs").absolute(),
    }


def positive_number(name: str, value: float) -> float:
    if not value > 0:
        raise SystemExit(f"{name}: {value} is not greater than 0")
    return value


def read_token_file(path: Path | None) -> str:
    """The token in the file. An empty file is an error, because it would disable authentication."""
    if path is None:
        return ""
    try:
        token = path.read_text().strip()
    except OSError as error:
        raise SystemExit(f"--token-file: {path} cannot be read ({error.strerror})") from None
    if not token:
        raise SystemExit(f"--token-file: {path} is empty")
    return token
