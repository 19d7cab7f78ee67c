"""With what a cluster server is started, and the sentence for what it cannot be started with."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

from .execution.accounts import DEFAULT_UIDS, AccountProvider, SharedAccount, TeamAccounts


class InvalidOption(SystemExit):
    """An option nobody can start with: one sentence."""


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    state: Path
    port: int
    bind: str = "127.0.0.1"
    name: str = "seren"
    nodes: int = 32
    gpus_per_node: int = 8
    gpu_model: str = "a100"
    seed: int = 0
    speed: float = 60.0
    trial_speed: float = 1.0
    faults: float = 0.0
    configure_s: float = 1.0
    min_job_age_s: int = 300
    accounting: bool = True
    token: str = ""
    execute: bool = False
    log_root: Path = Path()
    accounts: AccountProvider | None = None  # the users that jobs run as; none where jobs are played


def parse_options(arguments: list[str]) -> ServerOptions:
    parser = argparse.ArgumentParser(prog="python -m scheduling.slurmsim.server", description="A cluster as a process.")
    parser.add_argument("--state", type=Path, required=True, help="directory that outlives the process")
    parser.add_argument("--port", type=int, required=True, help="0 takes a free one and prints it")
    parser.add_argument("--bind", default="127.0.0.1")
    parser.add_argument("--name", default="seren", help="of the cluster, and the beginning of its nodes' names")
    parser.add_argument("--nodes", type=int, default=32)
    parser.add_argument("--gpus-per-node", type=int, default=8)
    parser.add_argument("--gpu-model", default="a100")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--speed", type=float, default=60.0, help="divides durations that the cluster draws itself")
    parser.add_argument("--trial-speed", type=float, default=1.0, help="divides what jobs of campaigns take")
    parser.add_argument("--faults", type=float, default=0.0, help="what breaks per node and day, before --speed")
    parser.add_argument("--configure-s", type=float, default=1.0, help="from allocation to the start of the command")
    parser.add_argument("--min-job-age", default="300", help="seconds after which an ended job is forgotten")
    parser.add_argument("--no-accounting", action="store_true", help="answer /slurmdb with 404, as without slurmdbd")
    parser.add_argument("--token-file", type=Path, help="only who sends what it holds is answered; needed to --execute")
    parser.add_argument("--execute", action="store_true", help="run jobs on this machine")
    parser.add_argument(
        "--job-uids",
        default=f"{DEFAULT_UIDS[0]}-{DEFAULT_UIDS[-1]}",
        help="FIRST-LAST: unused user ids, of which each team gets one when root runs the server",
    )
    parser.add_argument("--log-root", type=Path, help="jobs may write their output beneath it (default STATE/logs)")
    given = parser.parse_args(arguments)
    if given.execute and given.token_file is None:
        raise InvalidOption("--execute: whoever reaches the port could run commands here; name a --token-file")
    state = given.state.absolute()
    return ServerOptions(
        state=state,
        port=given.port,
        bind=given.bind,
        name=given.name,
        nodes=given.nodes,
        gpus_per_node=given.gpus_per_node,
        gpu_model=given.gpu_model,
        seed=given.seed,
        speed=_positive_number("--speed", given.speed),
        trial_speed=_positive_number("--trial-speed", given.trial_speed),
        faults=given.faults,
        configure_s=given.configure_s,
        min_job_age_s=_whole_seconds("--min-job-age", given.min_job_age, 1, 86_400),
        accounting=not given.no_accounting,
        token=_read_token_file(given.token_file),
        execute=given.execute,
        accounts=_job_accounts(state, given.job_uids) if given.execute else None,
        log_root=(given.log_root or state / "logs").absolute(),
    )


def _positive_number(name: str, value: float) -> float:
    if not value > 0:
        raise InvalidOption(f"{name}: {value} is not above 0")
    return value


def _whole_seconds(name: str, text: str, low: int, high: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and low <= int(text) <= high):
        raise InvalidOption(f"{name}: {text!r:.40} is not a whole number of seconds from {low} to {high}")
    return int(text)


def _read_token_file(path: Path | None) -> str:
    """An empty token file would open the door to everyone, so it is an error."""
    if path is None:
        return ""
    try:
        token = path.read_text().strip()
    except OSError as error:
        raise InvalidOption(f"--token-file: {path} cannot be read ({error.strerror})") from None
    if not token:
        raise InvalidOption(f"--token-file: {path} is empty")
    return token


def _job_accounts(state: Path, uids: str) -> AccountProvider:
    if os.geteuid() != 0:
        return SharedAccount()
    first, _, last = uids.partition("-")
    if not (first.isdigit() and last.isdigit() and 0 < int(first) <= int(last)):
        raise InvalidOption(f"--job-uids: {uids!r} is not FIRST-LAST with FIRST above 0")
    return TeamAccounts(state / "accounts.json", range(int(first), int(last) + 1))
