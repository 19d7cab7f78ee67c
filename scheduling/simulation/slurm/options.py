"""The command-line options of a Slurm cluster's server. An invalid option ends the program with one sentence."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

from scheduling.simulation.machines.execution.accounts import DEFAULT_UIDS, AccountProvider, SharedAccount, TeamAccounts
from scheduling.simulation.machines.options import (
    SimulatorOptions,
    add_simulator_options,
    positive_number,
    simulator_values,
)


@dataclass(frozen=True, kw_only=True)
class ServerOptions(SimulatorOptions):
    name: str = "seren"
    configure_s: float = 1.0
    min_job_age_s: int = 300
    suspend_s: float = 10.0
    boot_s: float = 60.0
    resume_timeout_s: float = 300.0
    accounting: bool = True
    shards_per_gpu: int = 0
    mps_nodes: frozenset[str] = frozenset()
    execute: bool = False
    accounts: AccountProvider | None = None  # the users that jobs run as; None for simulated jobs


def parse_options(arguments: list[str]) -> ServerOptions:
    parser = argparse.ArgumentParser(
        prog="python -m scheduling.simulation.slurm.server", description="Run a cluster server."
    )
    add_simulator_options(parser, ServerOptions.name)
    parser.add_argument("--configure-s", type=float, default=1.0, help="seconds from allocation to start")
    parser.add_argument("--min-job-age", default="300", help="seconds after which an ended job is forgotten")
    parser.add_argument("--suspend-s", type=float, default=10.0, help="seconds until a node is powered down")
    parser.add_argument("--boot-s", type=float, default=60.0, help="seconds in which a powered-down node boots")
    parser.add_argument("--resume-timeout-s", type=float, default=300.0, help="then a node that boots is down")
    parser.add_argument("--no-accounting", action="store_true", help="respond to /slurmdb with 404")
    parser.add_argument("--shards-per-gpu", type=int, default=0, help="parts of a GPU that jobs may hold; 0: none")
    parser.add_argument(
        "--mps-nodes",
        default="",
        metavar="NODE,…",
        help="nodes that offer gres/mps instead of shards, 100 for each GPU",
    )
    parser.add_argument("--execute", action="store_true", help="run jobs on this machine; needs --token-file")
    parser.add_argument(
        "--job-uids",
        default=f"{DEFAULT_UIDS[0]}-{DEFAULT_UIDS[-1]}",
        help="FIRST-LAST: unused user ids; each team gets one if root runs the server",
    )
    values = parser.parse_args(arguments)
    if values.execute and values.token_file is None:
        raise SystemExit("--execute: everyone who can reach the port could run commands here; add --token-file")
    common = simulator_values(values)
    return ServerOptions(
        **common,
        configure_s=values.configure_s,
        min_job_age_s=_whole_seconds("--min-job-age", values.min_job_age, 1, 86_400),
        suspend_s=positive_number("--suspend-s", values.suspend_s),
        boot_s=positive_number("--boot-s", values.boot_s),
        resume_timeout_s=positive_number("--resume-timeout-s", values.resume_timeout_s),
        accounting=not values.no_accounting,
        shards_per_gpu=values.shards_per_gpu,
        mps_nodes=frozenset(filter(None, values.mps_nodes.split(","))),
        execute=values.execute,
        accounts=_job_accounts(common["state"], values.job_uids) if values.execute else None,
    )


def _whole_seconds(name: str, text: str, low: int, high: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and low <= int(text) <= high):
        raise SystemExit(f"{name}: {text!r:.40} is not a whole number of seconds from {low} to {high}")
    return int(text)


def _job_accounts(state: Path, uids: str) -> AccountProvider:
    if os.geteuid() != 0:
        return SharedAccount()
    first, _, last = uids.partition("-")
    if not (first.isdigit() and last.isdigit() and 0 < int(first) <= int(last)):
        raise SystemExit(f"--job-uids: {uids!r} is not FIRST-LAST with FIRST greater than 0")
    return TeamAccounts(state / "accounts.json", range(int(first), int(last) + 1))
