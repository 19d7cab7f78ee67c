"""Trying how a cluster is reached, before or after its row is written: step by step, and what to do where one fails.

Nothing is written and nothing on the cluster is changed. A step whose ground is missing is not tried. No Django.
"""

from __future__ import annotations

import base64
import json
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from scheduling.backends.base import Backend, BackendError, SeenNode, Unreachable
from scheduling.backends.opening import open_backend
from scheduling.backends.telemetry import Reading, read

TIMEOUT_S = 5.0
MOST_NAMED = 4
LARGEST_TOKEN = 16 << 10

Open = Callable[..., Backend]
Read = Callable[[str], Reading]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """As the columns of a cluster's row."""

    address: str
    api_user: str = ""
    token_file: str = ""
    metrics_address: str = ""
    log_root: str = ""


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
    asked: Asked, now: datetime, *, open_: Open = open_backend, read_: Read = read, timeout_s: float = TIMEOUT_S
) -> list[Step]:
    """Each answer is waited for at most `timeout_s`."""
    steps = [_tried("Address", lambda: _reached(asked.address, timeout_s))]
    steps.append(_tried("Token", lambda: _token_says(asked.token_file, now)))
    nodes: list[SeenNode] = []
    if all(step.good is not False for step in steps):
        steps += _asked_slurm(asked, nodes, open_, timeout_s)
    else:
        steps += [Step(name=name, good=None, says="Not tried.") for name in ("Slurm", "Nodes")]
    steps.append(_tried("Telemetry", lambda: _telemetry(asked.metrics_address, nodes, read_)))
    steps.append(_tried("Job logs", lambda: _logs(asked.log_root)))
    return steps


def works(steps: Sequence[Step]) -> bool:
    return all(step.good is not False for step in steps)


def _tried(name: str, look: Callable[[], tuple[bool | None, str]]) -> Step:
    try:
        good, says = look()
    except Failed as failed:
        says, advice = failed.args
        return Step(name=name, good=False, says=says, advice=advice)
    return Step(name=name, good=good, says=says)


# --- the way there


def _reached(address: str, timeout_s: float) -> tuple[bool, str]:
    if address.startswith("unix://"):
        return _socket(address.removeprefix("unix://"), timeout_s)
    try:
        parts = urlsplit(address)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        raise Failed("This is no address.", "Write http://host:6820 or unix:///run/slurmrestd.sock.") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Failed(
            "It begins with none of http://, https://, unix://.", "Write http://host:6820, as slurmrestd listens."
        )
    return _connected(parts.hostname, port, timeout_s)


def _socket(path: str, timeout_s: float) -> tuple[bool, str]:
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


def _connected(host: str, port: int, timeout_s: float) -> tuple[bool, str]:
    try:
        found = sorted({str(one[4][0]) for one in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)})
    except (OSError, UnicodeError):
        raise Failed(f"No name server knows {host}.", "Check the spelling, or write the address as numbers.") from None
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


# --- the token


def _token_says(path: str, now: datetime) -> tuple[bool | None, str]:
    if not path:
        return None, "None is sent."
    text = _token_text(path)
    if not text:
        raise Failed(f"{path} is empty.", "Write a token into it: scontrol token username=… lifespan=…")
    if not (text.isascii() and text.isprintable()) or " " in text:
        raise Failed(f"{path} holds more than one word.", "It must hold the token alone, without SLURM_JWT= before it.")
    ends = _expiry(text)
    if ends and ends <= now:
        raise Failed(f"The token ended {ends:%Y-%m-%d %H:%M} UTC.", "Renew it: scontrol token username=… lifespan=…")
    return True, f"It ends {ends:%Y-%m-%d %H:%M} UTC." if ends else "It can be read."


def _token_text(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return file.read(LARGEST_TOKEN).decode().strip()
    except UnicodeDecodeError:
        raise Failed(f"{path} holds no text.", "It must hold the token and nothing else.") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", "") or str(error)
        raise Failed(f"{path} cannot be read ({why}).", f"Let uid {os.getuid()} of this machine read it.") from None


def _expiry(token: str) -> datetime | None:
    """Of a JWT; nobody's signature is checked here, the cluster does that."""
    try:
        part = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        return datetime.fromtimestamp(int(claims["exp"]), UTC)
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, OSError):
        return None


# --- what it says


def _asked_slurm(asked: Asked, nodes: list[SeenNode], open_: Open, timeout_s: float) -> Iterator[Step]:
    token = _token_text(asked.token_file) if asked.token_file else ""
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


# --- beside it


def _telemetry(address: str, nodes: Sequence[SeenNode], read_: Read) -> tuple[bool | None, str]:
    if not address:
        return None, "None is asked for: utilisation, temperatures and Xids stay unknown."
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


def _logs(path: str) -> tuple[bool | None, str]:
    if not path:
        return None, "None is named: logs are not shown, and failures are judged without them."
    found = Path(path)
    if not found.is_absolute():
        raise Failed(f"{path} does not begin with /.", "Name the directory as it is mounted on this machine.")
    if not found.is_dir():
        raise Failed(f"{path} is no directory on this machine.", "Mount the file system that jobs write to.")
    if not os.access(found, os.R_OK | os.X_OK):
        raise Failed(f"{path} is closed to us.", f"Let uid {os.getuid()} of this machine read it.")
    return True, "The directory can be read."
