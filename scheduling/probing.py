"""Trying how a cluster is reached, before or after its row is written: step by step, and what to do where one fails.

Nothing is written and nothing on the cluster is changed. A step whose ground is missing is not tried. No Django.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jobs import log_files, outbound, storage
from jobs.allowed_paths import AllowedPaths, PathRefused, configured, read_program_token
from jobs.models.cluster import SubmitAs
from jobs.outbound import Resolve
from jobs.storage import StorageSilent
from scheduling.backends.base import Backend, BackendError, Refused, SeenNode, Unreachable
from scheduling.backends.opening import open_backend
from scheduling.backends.senders import TokenSenders, expiry, token_user
from scheduling.backends.telemetry import Reading, read

TIMEOUT_S = 5.0
MOST_NAMED = 4
SOMEBODY_ELSE = "nobody"  # a name that every machine knows, and in which a ping changes nothing

Open = Callable[..., Backend]
Read = Callable[[str], Reading]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """As the columns of a cluster's row."""

    address: str
    api_user: str = ""
    token_file: str = ""
    submit_as: str = str(SubmitAs.SERVICE)
    user_token_directory: str = ""
    metrics_address: str = ""
    log_root: str = ""
    is_bundled: bool = False

    @property
    def tokens(self) -> dict[str, str]:
        return {"token_file": self.token_file, "user_token_directory": self.user_token_directory}

    @classmethod
    def of(cls, row: Any) -> Asked:
        """As a cluster is saved."""
        return cls(**{column.name: getattr(row, column.name) for column in fields(cls)})


@dataclass(frozen=True, kw_only=True)
class Step:
    """`good` is None where it was not tried, or there was nothing to try. `advice` is empty where nothing is wrong."""

    name: str
    good: bool | None
    says: str
    advice: str = ""


class Failed(Exception):
    """(what is wrong, what to do)"""


def probe(
    asked: Asked,
    now: datetime,
    *,
    open_: Open = open_backend,
    read_: Read = read,
    resolve: Resolve = outbound.resolve,
    allowed: AllowedPaths | None = None,
    timeout_s: float = TIMEOUT_S,
) -> list[Step]:
    """Each answer is waited for at most `timeout_s`."""
    allowed = allowed or configured()
    steps = [_tried("Address", lambda: _reached(asked.address, allowed, resolve, timeout_s))]
    steps.append(_tried("Token", lambda: _token_says(_token(asked, allowed), now)))
    nodes: list[SeenNode] = []
    if all(step.good is not False for step in steps):
        token = _token(asked, allowed)
        steps += _asked_slurm(asked, token, nodes, open_, timeout_s)
        tried = steps[-1].good is not None
        users = partial(_users, asked, token, allowed, now, partial(open_, timeout_s=timeout_s))
        steps.append(_tried("Users", users) if tried else Step(name="Users", good=None, says="Not tried."))
    else:
        steps += [Step(name=name, good=None, says="Not tried.") for name in ("Slurm", "Nodes", "Users")]
    steps.append(_tried("Telemetry", lambda: _telemetry(asked.metrics_address, nodes, read_, resolve)))
    steps.append(_tried("Job logs", lambda: _logs(asked, allowed)))
    return steps


def works(steps: Sequence[Step]) -> bool:
    return all(step.good is not False for step in steps)


def _failed(path: str, refused: PathRefused) -> Failed:
    what, _, advice = str(refused).partition("; ")
    return Failed(f"{path} {what}.", f"{advice[:1].upper()}{advice[1:]}." if advice else "Choose another path.")


def _tried(name: str, look: Callable[[], tuple[bool | None, str] | tuple[bool | None, str, str]]) -> Step:
    try:
        good, says, *advice = look()
    except Failed as failed:
        says, advised = failed.args
        return Step(name=name, good=False, says=says, advice=advised)
    return Step(name=name, good=good, says=says, advice="".join(advice))


# --- the way there


def _reached(address: str, allowed: AllowedPaths, resolve: Resolve, timeout_s: float) -> tuple[bool, str]:
    if address.startswith("unix://"):
        return _socket(address.removeprefix("unix://"), allowed, timeout_s)
    try:
        parts = urlsplit(address)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        raise Failed("This is no address.", "Write http://host:6820 or unix:///run/slurmrestd.sock.") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Failed(
            "It begins with none of http://, https://, unix://.", "Write http://host:6820, as slurmrestd listens."
        )
    return _connected(parts.hostname, port, resolve, timeout_s)


def _socket(path: str, allowed: AllowedPaths, timeout_s: float) -> tuple[bool, str]:
    try:
        allowed.check_socket(path)
    except PathRefused as refused:
        raise _failed(path, refused) from None
    if not Path(path).exists():
        raise Failed(f"There is no {path} on this machine.", "Is slurmrestd started with it, and is it mounted here?")
    with closing(socket.socket(socket.AF_UNIX)) as tried:
        tried.settimeout(timeout_s)
        try:
            tried.connect(path)
        except PermissionError:
            raise Failed(
                f"{path} is closed to us.",
                f"Let the user of this process (uid {os.getuid()}) write to it: the group of the socket decides.",
            ) from None
        except OSError as error:
            raise Failed(
                f"Nobody listens on {path} ({error.strerror or error}).", "Start slurmrestd, or look at its log."
            ) from None
    return True, "The socket answers."


def _connected(host: str, port: int, resolve: Resolve, timeout_s: float) -> tuple[bool, str]:
    try:
        found = sorted(set(resolve(host, port)))
    except (OSError, UnicodeError):
        raise Failed(f"No name server knows {host}.", "Check the spelling, or write the address as numbers.") from None
    _refuse_metadata_service(host, found)
    try:
        socket.create_connection((host, port), timeout_s).close()
    except ConnectionRefusedError:
        raise Failed(
            f"{host} is there, but nobody listens on port {port}.",
            "Start slurmrestd there with this port (-a 0.0.0.0:6820), or correct the port.",
        ) from None
    except TimeoutError:
        raise Failed(
            f"{host}:{port} does not answer within {timeout_s:.0f} s.", "A firewall between here and there drops it."
        ) from None
    except OSError as error:
        raise Failed(f"{host}:{port} cannot be reached ({error.strerror or error}).", "Is there a route?") from None
    return True, f"{host} is {', '.join(found[:MOST_NAMED])}, and port {port} is open."


def _refuse_metadata_service(host: str, found: Sequence[str]) -> None:
    """A test must not become a way to the credentials that clouds hand out to this machine."""
    if any(map(outbound.is_metadata_service, found)):
        raise Failed(
            f"{host} is an address for this machine's own metadata.", "Name the host on which slurmrestd runs."
        )


# --- the token


def _token(asked: Asked, allowed: AllowedPaths) -> str:
    if not asked.token_file:
        return ""
    try:
        return read_program_token(asked.token_file) if asked.is_bundled else allowed.read_token(asked.token_file)
    except PathRefused as refused:
        raise _failed(asked.token_file, refused) from None


def _token_says(token: str, now: datetime) -> tuple[bool | None, str]:
    if not token:
        return None, "None is sent."
    ends = expiry(token)
    if ends and ends <= now:
        raise Failed(f"The token ended {ends:%Y-%m-%d %H:%M} UTC.", "Renew it: scontrol token username=… lifespan=…")
    return True, f"It ends {ends:%Y-%m-%d %H:%M} UTC." if ends else "It can be read."


# --- what it says


def _asked_slurm(asked: Asked, token: str, nodes: list[SeenNode], open_: Open, timeout_s: float) -> Iterator[Step]:
    try:
        backend = open_(asked.address, user=asked.api_user, token=token, timeout_s=timeout_s)
    except ValueError as error:
        yield Step(name="Slurm", good=False, says=str(error), advice="Write http://host:6820, as slurmrestd listens.")
        yield Step(name="Nodes", good=None, says="Not tried.")
        return
    with closing(backend):
        hello = _tried("Slurm", lambda: _greeted(backend))
        yield hello
        if hello.good:
            yield _tried("Nodes", lambda: _counted(backend, nodes))
        else:
            yield Step(name="Nodes", good=None, says="Not tried.")


def _greeted(backend: Backend) -> tuple[bool, str]:
    try:
        hello = backend.ping()
    except BackendError as error:
        raise Failed(str(error), _why_not(str(error))) from None
    return True, f"{hello.product} answers, by {hello.api}."


def _why_not(said: str) -> str:
    """What usually stands behind such an answer."""
    words = said.lower()
    if "401" in words or "403" in words or "authenticat" in words or "token" in words:
        return "It does not take the token: is AuthAltTypes=auth/jwt set, is the key the same, is the user known there?"
    if "speaks none of" in words:
        return "Start slurmrestd with the plugins openapi/slurmctld and data_parser of 22.05 or newer."
    if "controller" in words:
        return "slurmrestd runs and slurmctld does not: look there, or at SlurmctldHost in its slurm.conf."
    if "json" in words or "html" in words or "404" in words:
        return "Something else listens there: compare the port with that of slurmrestd."
    return "Look into the log of slurmrestd; the same question by hand: curl …/slurm/v0.0.40/ping"


def _counted(backend: Backend, nodes: list[SeenNode]) -> tuple[bool, str]:
    try:
        nodes += backend.nodes()
    except BackendError as error:
        raise Failed(str(error), "It greets us but does not name its nodes: may this user read them?") from None
    if not nodes:
        raise Failed("It has no node.", "Enter nodes in slurm.conf; there is nothing to run on.")
    gpus = sum(node.gpus for node in nodes)
    if not gpus:
        raise Failed(
            f"{len(nodes)} nodes, and none with a GPU.",
            "Enter GresTypes=gpu, and Gres=gpu:… of the nodes.",
        )
    return True, f"{len(nodes)} nodes with {gpus} GPUs."


# --- as whom jobs run


def _users(
    asked: Asked, token: str, allowed: AllowedPaths, now: datetime, open_: Open
) -> tuple[bool | None, str, str] | tuple[bool | None, str]:
    service = asked.api_user or token_user(token) or "of slurmrestd"
    if asked.submit_as == SubmitAs.USER_HEADER:
        return _acts_for_others(asked, token, service, open_)
    if asked.submit_as == SubmitAs.USER_TOKENS:
        return _user_tokens(asked.user_token_directory, service, allowed, now)
    return (
        None,
        f"Every job runs as the user {service}, whoever submitted it. People and teams are not isolated on this"
        " cluster: each job can read and change the files of all jobs, and signal them.",
        "Choose user_header or user_tokens to run jobs as the person who submitted them.",
    )


def _acts_for_others(asked: Asked, token: str, service: str, open_: Open) -> tuple[bool, str]:
    """Asked as somebody else: only a token of root or of the SlurmUser may."""
    if not token:
        raise Failed(
            "The names of users are only believed together with a token, and no token file is given.",
            "Name a file with a token of the SlurmUser: scontrol token username=slurm lifespan=…",
        )
    with closing(open_(asked.address, user=SOMEBODY_ELSE, token=token)) as backend:
        try:
            backend.ping()
        except BackendError as error:
            raise Failed(
                f"The token of user {service} may not act for other users ({error}).",
                "Use a token of root or of the SlurmUser (scontrol show config), or choose user_tokens.",
            ) from None
    return True, (
        f"Jobs run as the person who submitted them, by the name they have in Acme; user {service} may act for others."
        " A user whom the cluster does not know is refused when their first job is submitted."
    )


def _user_tokens(directory: str, service: str, allowed: AllowedPaths, now: datetime) -> tuple[bool, str]:
    try:
        allowed.check_token_directory(directory)
        names = sorted(name for name in os.listdir(directory) if not name.startswith("."))
    except PathRefused as refused:
        raise _failed(directory, refused) from None
    except OSError as error:
        raise Failed(f"{directory} cannot be read ({error.strerror}).", f"Let uid {os.getuid()} read it.") from None
    senders = TokenSenders(service_user=service, directory=directory, read=allowed.read_token, now=lambda: now)
    wrong = [said for name in names if (said := _refusal(senders, name))]
    if wrong:
        raise Failed(f"{len(wrong)} of {len(names)} token files cannot be used: {wrong[0]}.", "Renew or remove them.")
    if not names:
        raise Failed(f"{directory} is empty.", "Write a token for each user: scontrol token username=… lifespan=…")
    return True, (
        f"Jobs run as the person who submitted them; {len(names)} users have a token, jobs of others are held. User"
        f" {service} cancels jobs and drains nodes, so it must be a Slurm operator."
    )


def _refusal(senders: TokenSenders, name: str) -> str:
    try:
        senders.of(name)
    except Refused as refused:
        return str(refused)
    return ""


# --- beside it


def _telemetry(address: str, nodes: Sequence[SeenNode], read_: Read, resolve: Resolve) -> tuple[bool | None, str]:
    if not address:
        return None, "None is asked for: utilisation, temperatures and Xids stay unknown."
    _refuse_metadata_service(address, _addresses(address, resolve))
    try:
        found = read_(address)
    except Unreachable as error:
        raise Failed(str(error), "Name a page of a DCGM exporter, as http://host:9400/metrics.") from None
    if not found.gpus:
        raise Failed("The page names no GPU.", "Is it the page of a DCGM exporter, with host names (-k or Hostname)?")
    hosts = {gpu.node for gpu in found.gpus}
    strange = sorted(hosts - {node.name for node in nodes}) if nodes else []
    if strange:
        named = ", ".join(strange[:MOST_NAMED])
        raise Failed(f"It names hosts that the cluster does not: {named}.", "Host names must be those of slurm.conf.")
    return True, f"{len(found.gpus)} GPUs of {len(hosts)} nodes are measured."


def _addresses(url: str, resolve: Resolve) -> Sequence[str]:
    """None where it is no address; whoever reads it says so."""
    try:
        host = urlsplit(url).hostname
        return resolve(host, 80) if host else []
    except (OSError, ValueError):
        return []


def _logs(asked: Asked, allowed: AllowedPaths) -> tuple[bool | None, str]:
    path = asked.log_root
    if not path:
        return None, "None is named: logs are not shown, and failures are judged without them."
    try:
        if not asked.is_bundled:
            allowed.check_shared_directory(path)
    except PathRefused as refused:
        raise _failed(path, refused) from None
    try:
        is_directory, is_readable = storage.call(path, log_files.access, path)
    except StorageSilent as silent:
        raise Failed(str(silent), "Does the server of this mount run? See dmesg on this machine.") from None
    if not is_directory:
        raise Failed(f"{path} is no directory on this machine.", "Mount the file system that jobs write to.")
    if not is_readable:
        raise Failed(f"{path} is closed to us.", f"Let uid {os.getuid()} of this machine read it.")
    return True, "The directory can be read."
