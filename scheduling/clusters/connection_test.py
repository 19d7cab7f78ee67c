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

from acmeweb.common import outbound_http
from acmeweb.common.outbound_http import Resolve
from jobs.logs import log_files, storage
from jobs.logs.allowed_paths import AllowedPaths, PathNotAllowed, load_allowed_paths, read_program_token
from jobs.logs.storage import StorageUnresponsive
from jobs.models.cluster import SubmitIdentity
from scheduling.backends.base import Backend, BackendError, BackendNode, ClusterUnreachable, RequestRejected
from scheduling.backends.opening import open_backend
from scheduling.backends.senders import UserTokenIdentities, token_expiry, token_user
from scheduling.backends.telemetry import ExporterPage, read_exporter

CONNECTION_TEST_TIMEOUT_S = 5.0
MAX_NAMED_HOSTS = 4
OTHER_USER = "nobody"  # a name that every machine knows, and in which a ping changes nothing

OpenBackend = Callable[..., Backend]
ReadTelemetry = Callable[[str], ExporterPage]


@dataclass(frozen=True, kw_only=True)
class ConnectionSettings:
    """As the columns of a cluster's row."""

    address: str
    api_user: str = ""
    token_file: str = ""
    submit_as: str = str(SubmitIdentity.SERVICE)
    user_token_directory: str = ""
    metrics_address: str = ""
    log_root: str = ""
    is_bundled: bool = False

    @property
    def tokens(self) -> dict[str, str]:
        return {"token_file": self.token_file, "user_token_directory": self.user_token_directory}

    @classmethod
    def of(cls, row: Any) -> ConnectionSettings:
        """As a cluster is saved."""
        return cls(**{column.name: getattr(row, column.name) for column in fields(cls)})


@dataclass(frozen=True, kw_only=True)
class ConnectionTestStep:
    """`good` is None where it was not tried, or there was nothing to try. `advice` is empty where nothing is wrong."""

    name: str
    good: bool | None
    says: str
    advice: str = ""


class ConnectionTestFailure(Exception):
    """(what is wrong, what to do)"""


def run_test_steps(
    asked: ConnectionSettings,
    now: datetime,
    *,
    open_: OpenBackend = open_backend,
    read_: ReadTelemetry = read_exporter,
    resolve: Resolve = outbound_http.resolve,
    allowed: AllowedPaths | None = None,
    timeout_s: float = CONNECTION_TEST_TIMEOUT_S,
) -> list[ConnectionTestStep]:
    """Each answer is waited for at most `timeout_s`."""
    allowed = allowed or load_allowed_paths()
    steps = [_run_step("Address", lambda: _check_address(asked.address, allowed, resolve, timeout_s))]
    steps.append(_run_step("Token", lambda: _check_token_expiry(_read_token(asked, allowed), now)))
    nodes: list[BackendNode] = []
    if all(step.good is not False for step in steps):
        token = _read_token(asked, allowed)
        steps += _slurm_steps(asked, token, nodes, open_, timeout_s)
        tried = steps[-1].good is not None
        users = partial(_check_submit_as, asked, token, allowed, now, partial(open_, timeout_s=timeout_s))
        steps.append(
            _run_step("Users", users) if tried else ConnectionTestStep(name="Users", good=None, says="Not tried.")
        )
    else:
        steps += [ConnectionTestStep(name=name, good=None, says="Not tried.") for name in ("Slurm", "Nodes", "Users")]
    steps.append(_run_step("Telemetry", lambda: _telemetry(asked.metrics_address, nodes, read_, resolve)))
    steps.append(_run_step("Job logs", lambda: _logs(asked, allowed)))
    return steps


def all_steps_passed(steps: Sequence[ConnectionTestStep]) -> bool:
    return all(step.good is not False for step in steps)


def _path_failure(path: str, refused: PathNotAllowed) -> ConnectionTestFailure:
    what, _, advice = str(refused).partition("; ")
    return ConnectionTestFailure(
        f"{path} {what}.", f"{advice[:1].upper()}{advice[1:]}." if advice else "Choose another path."
    )


def _run_step(
    name: str, look: Callable[[], tuple[bool | None, str] | tuple[bool | None, str, str]]
) -> ConnectionTestStep:
    try:
        good, says, *advice = look()
    except ConnectionTestFailure as failed:
        says, advised = failed.args
        return ConnectionTestStep(name=name, good=False, says=says, advice=advised)
    return ConnectionTestStep(name=name, good=good, says=says, advice="".join(advice))


# --- the way there


def _check_address(address: str, allowed: AllowedPaths, resolve: Resolve, timeout_s: float) -> tuple[bool, str]:
    if address.startswith("unix://"):
        return _check_unix_socket(address.removeprefix("unix://"), allowed, timeout_s)
    try:
        parts = urlsplit(address)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        raise ConnectionTestFailure(
            "This is no address.", "Write http://host:6820 or unix:///run/slurmrestd.sock."
        ) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConnectionTestFailure(
            "It begins with none of http://, https://, unix://.", "Write http://host:6820, as slurmrestd listens."
        )
    return _check_tcp(parts.hostname, port, resolve, timeout_s)


def _check_unix_socket(path: str, allowed: AllowedPaths, timeout_s: float) -> tuple[bool, str]:
    try:
        allowed.check_socket(path)
    except PathNotAllowed as refused:
        raise _path_failure(path, refused) from None
    if not Path(path).exists():
        raise ConnectionTestFailure(
            f"There is no {path} on this machine.", "Is slurmrestd started with it, and is it mounted here?"
        )
    with closing(socket.socket(socket.AF_UNIX)) as tried:
        tried.settimeout(timeout_s)
        try:
            tried.connect(path)
        except PermissionError:
            raise ConnectionTestFailure(
                f"{path} is closed to us.",
                f"Let the user of this process (uid {os.getuid()}) write to it: the group of the socket decides.",
            ) from None
        except OSError as error:
            raise ConnectionTestFailure(
                f"Nobody listens on {path} ({error.strerror or error}).", "Start slurmrestd, or look at its log."
            ) from None
    return True, "The socket answers."


def _check_tcp(host: str, port: int, resolve: Resolve, timeout_s: float) -> tuple[bool, str]:
    try:
        found = sorted(set(resolve(host, port)))
    except (OSError, UnicodeError):
        raise ConnectionTestFailure(
            f"No name server knows {host}.", "Check the spelling, or write the address as numbers."
        ) from None
    _refuse_metadata_service(host, found)
    try:
        socket.create_connection((host, port), timeout_s).close()
    except ConnectionRefusedError:
        raise ConnectionTestFailure(
            f"{host} is there, but nobody listens on port {port}.",
            "Start slurmrestd there with this port (-a 0.0.0.0:6820), or correct the port.",
        ) from None
    except TimeoutError:
        raise ConnectionTestFailure(
            f"{host}:{port} does not answer within {timeout_s:.0f} s.", "A firewall between here and there drops it."
        ) from None
    except OSError as error:
        raise ConnectionTestFailure(
            f"{host}:{port} cannot be reached ({error.strerror or error}).", "Is there a route?"
        ) from None
    return True, f"{host} is {', '.join(found[:MAX_NAMED_HOSTS])}, and port {port} is open."


def _refuse_metadata_service(host: str, found: Sequence[str]) -> None:
    """A test must not become a way to the credentials that clouds hand out to this machine."""
    if any(map(outbound_http.is_metadata_service, found)):
        raise ConnectionTestFailure(
            f"{host} is an address for this machine's own metadata.", "Name the host on which slurmrestd runs."
        )


# --- the token


def _read_token(asked: ConnectionSettings, allowed: AllowedPaths) -> str:
    if not asked.token_file:
        return ""
    try:
        return read_program_token(asked.token_file) if asked.is_bundled else allowed.read_token(asked.token_file)
    except PathNotAllowed as refused:
        raise _path_failure(asked.token_file, refused) from None


def _check_token_expiry(token: str, now: datetime) -> tuple[bool | None, str]:
    if not token:
        return None, "None is sent."
    ends = token_expiry(token)
    if ends and ends <= now:
        raise ConnectionTestFailure(
            f"The token ended {ends:%Y-%m-%d %H:%M} UTC.", "Renew it: scontrol token username=… lifespan=…"
        )
    return True, f"It ends {ends:%Y-%m-%d %H:%M} UTC." if ends else "It can be read."


# --- what it says


def _slurm_steps(
    asked: ConnectionSettings, token: str, nodes: list[BackendNode], open_: OpenBackend, timeout_s: float
) -> Iterator[ConnectionTestStep]:
    try:
        backend = open_(asked.address, user=asked.api_user, token=token, timeout_s=timeout_s)
    except ValueError as error:
        yield ConnectionTestStep(
            name="Slurm", good=False, says=str(error), advice="Write http://host:6820, as slurmrestd listens."
        )
        yield ConnectionTestStep(name="Nodes", good=None, says="Not tried.")
        return
    with closing(backend):
        hello = _run_step("Slurm", lambda: _check_ping(backend))
        yield hello
        if hello.good:
            yield _run_step("Nodes", lambda: _check_nodes(backend, nodes))
        else:
            yield ConnectionTestStep(name="Nodes", good=None, says="Not tried.")


def _check_ping(backend: Backend) -> tuple[bool, str]:
    try:
        hello = backend.ping()
    except BackendError as error:
        raise ConnectionTestFailure(str(error), _backend_error_advice(str(error))) from None
    return True, f"{hello.product} answers, by {hello.api}."


def _backend_error_advice(said: str) -> str:
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


def _check_nodes(backend: Backend, nodes: list[BackendNode]) -> tuple[bool, str]:
    try:
        nodes += backend.nodes()
    except BackendError as error:
        raise ConnectionTestFailure(
            str(error), "It greets us but does not name its nodes: may this user read them?"
        ) from None
    if not nodes:
        raise ConnectionTestFailure("It has no node.", "Enter nodes in slurm.conf; there is nothing to run on.")
    gpus = sum(node.gpus for node in nodes)
    if not gpus:
        raise ConnectionTestFailure(
            f"{len(nodes)} nodes, and none with a GPU.",
            "Enter GresTypes=gpu, and Gres=gpu:… of the nodes.",
        )
    return True, f"{len(nodes)} nodes with {gpus} GPUs."


# --- as whom jobs run


def _check_submit_as(
    asked: ConnectionSettings, token: str, allowed: AllowedPaths, now: datetime, open_: OpenBackend
) -> tuple[bool | None, str, str] | tuple[bool | None, str]:
    service = asked.api_user or token_user(token) or "of slurmrestd"
    if asked.submit_as == SubmitIdentity.USER_HEADER:
        return _check_user_header(asked, token, service, open_)
    if asked.submit_as == SubmitIdentity.USER_TOKENS:
        return _check_user_tokens(asked.user_token_directory, service, allowed, now)
    return (
        None,
        f"Every job runs as the user {service}, whoever submitted it. People and teams are not isolated on this"
        " cluster: each job can read and change the files of all jobs, and signal them.",
        "Choose user_header or user_tokens to run jobs as the person who submitted them.",
    )


def _check_user_header(asked: ConnectionSettings, token: str, service: str, open_: OpenBackend) -> tuple[bool, str]:
    """Asked as somebody else: only a token of root or of the SlurmUser may."""
    if not token:
        raise ConnectionTestFailure(
            "The names of users are only believed together with a token, and no token file is given.",
            "Name a file with a token of the SlurmUser: scontrol token username=slurm lifespan=…",
        )
    with closing(open_(asked.address, user=OTHER_USER, token=token)) as backend:
        try:
            backend.ping()
        except BackendError as error:
            raise ConnectionTestFailure(
                f"The token of user {service} may not act for other users ({error}).",
                "Use a token of root or of the SlurmUser (scontrol show config), or choose user_tokens.",
            ) from None
    return True, (
        f"Jobs run as the person who submitted them, by the name they have in Acme; user {service} may act for others."
        " A user whom the cluster does not know is refused when their first job is submitted."
    )


def _check_user_tokens(directory: str, service: str, allowed: AllowedPaths, now: datetime) -> tuple[bool, str]:
    try:
        allowed.check_token_directory(directory)
        names = sorted(name for name in os.listdir(directory) if not name.startswith("."))
    except PathNotAllowed as refused:
        raise _path_failure(directory, refused) from None
    except OSError as error:
        raise ConnectionTestFailure(
            f"{directory} cannot be read ({error.strerror}).", f"Let uid {os.getuid()} read it."
        ) from None
    senders = UserTokenIdentities(service_user=service, directory=directory, read=allowed.read_token, now=lambda: now)
    wrong = [said for name in names if (said := _token_refusal(senders, name))]
    if wrong:
        raise ConnectionTestFailure(
            f"{len(wrong)} of {len(names)} token files cannot be used: {wrong[0]}.", "Renew or remove them."
        )
    if not names:
        raise ConnectionTestFailure(
            f"{directory} is empty.", "Write a token for each user: scontrol token username=… lifespan=…"
        )
    return True, (
        f"Jobs run as the person who submitted them; {len(names)} users have a token, jobs of others are held. User"
        f" {service} cancels jobs and drains nodes, so it must be a Slurm operator."
    )


def _token_refusal(senders: UserTokenIdentities, name: str) -> str:
    try:
        senders.of(name)
    except RequestRejected as refused:
        return str(refused)
    return ""


# --- beside it


def _telemetry(
    address: str, nodes: Sequence[BackendNode], read_: ReadTelemetry, resolve: Resolve
) -> tuple[bool | None, str]:
    if not address:
        return None, "None is asked for: utilisation, temperatures and Xids stay unknown."
    _refuse_metadata_service(address, _resolve_url(address, resolve))
    try:
        found = read_(address)
    except ClusterUnreachable as error:
        raise ConnectionTestFailure(
            str(error), "Name a page of a DCGM exporter, as http://host:9400/metrics."
        ) from None
    if not found.gpus:
        raise ConnectionTestFailure(
            "The page names no GPU.", "Is it the page of a DCGM exporter, with host names (-k or Hostname)?"
        )
    hosts = {gpu.node for gpu in found.gpus}
    strange = sorted(hosts - {node.name for node in nodes}) if nodes else []
    if strange:
        named = ", ".join(strange[:MAX_NAMED_HOSTS])
        raise ConnectionTestFailure(
            f"It names hosts that the cluster does not: {named}.", "Host names must be those of slurm.conf."
        )
    return True, f"{len(found.gpus)} GPUs of {len(hosts)} nodes are measured."


def _resolve_url(url: str, resolve: Resolve) -> Sequence[str]:
    """None where it is no address; whoever reads it says so."""
    try:
        host = urlsplit(url).hostname
        return resolve(host, 80) if host else []
    except (OSError, ValueError):
        return []


def _logs(asked: ConnectionSettings, allowed: AllowedPaths) -> tuple[bool | None, str]:
    path = asked.log_root
    if not path:
        return None, "None is named: logs are not shown, and failures are judged without them."
    try:
        if not asked.is_bundled:
            allowed.check_shared_directory(path)
    except PathNotAllowed as refused:
        raise _path_failure(path, refused) from None
    try:
        is_directory, is_readable = storage.call(path, log_files.directory_access, path)
    except StorageUnresponsive as silent:
        raise ConnectionTestFailure(
            str(silent), "Does the server of this mount run? See dmesg on this machine."
        ) from None
    if not is_directory:
        raise ConnectionTestFailure(
            f"{path} is no directory on this machine.", "Mount the file system that jobs write to."
        )
    if not is_readable:
        raise ConnectionTestFailure(f"{path} is closed to us.", f"Let uid {os.getuid()} of this machine read it.")
    return True, "The directory can be read."
