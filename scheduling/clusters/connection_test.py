"""Connection test of a saved or unsaved cluster. Each step reports what is wrong and what to do.

The test changes nothing in the database and nothing on the cluster. A step is skipped if a step that it depends on
failed. No Django.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from acmeweb.common import http_client
from acmeweb.common.errors import InvalidInput
from acmeweb.common.http_client import Resolve
from acmeweb.common.special_addresses import is_metadata_service
from jobs.core.cluster_kinds import ClusterKind, cluster_kind
from jobs.logs import log_files, storage
from jobs.logs.allowed_paths import AllowedPaths, load_allowed_paths, read_program_secret, read_program_token
from jobs.logs.storage import StorageUnresponsive
from jobs.models.cluster import SubmitIdentity
from scheduling.backends.base import Backend, BackendError, BackendNode, ClusterUnreachable, RequestRejected
from scheduling.backends.kubernetes.connection.access import ReadFile
from scheduling.backends.opening import check_address, open_backend, server_address
from scheduling.backends.senders import UserTokenIdentities, token_expiry, token_user
from scheduling.backends.telemetry import ExporterPage, read_exporter

CONNECTION_TEST_TIMEOUT_S = 5.0
MAX_NAMED_HOSTS = 4
OTHER_USER = "nobody"  # exists on every machine; a ping on its behalf changes nothing

OpenBackend = Callable[..., Backend]
ReadTelemetry = Callable[[str], ExporterPage]


@dataclass(frozen=True, kw_only=True)
class ConnectionSettings:
    """The connection settings, named like the columns of a cluster's row."""

    address: str
    api_user: str = ""
    token_file: str = ""
    submit_as: str = str(SubmitIdentity.SERVICE)
    user_token_directory: str = ""
    metrics_address: str = ""
    log_root: str = ""
    workload_owners: Mapping[str, Any] = field(default_factory=dict)
    pod_template: Mapping[str, Any] = field(default_factory=dict)
    is_bundled: bool = False

    @property
    def tokens(self) -> dict[str, str]:
        return {"token_file": self.token_file, "user_token_directory": self.user_token_directory}

    @classmethod
    def of(cls, row: Any) -> ConnectionSettings:
        """Return the settings of a saved cluster."""
        return cls(**{column.name: getattr(row, column.name) for column in fields(cls)})


@dataclass(frozen=True, kw_only=True)
class ConnectionTestStep:
    """The result of one step. `ok` is None for a skipped step; `advice` is empty if nothing is wrong."""

    name: str
    ok: bool | None
    message: str
    advice: str = ""


class ConnectionTestFailure(Exception):
    """(what is wrong, what to do)"""


def run_test_steps(
    settings: ConnectionSettings,
    now: datetime,
    *,
    open_: OpenBackend = open_backend,
    read_: ReadTelemetry = read_exporter,
    resolve: Resolve = http_client.resolve,
    allowed: AllowedPaths | None = None,
    timeout_s: float = CONNECTION_TEST_TIMEOUT_S,
) -> list[ConnectionTestStep]:
    """Run all steps. Each waits at most `timeout_s` for a response."""
    allowed = allowed or load_allowed_paths()
    kind = cluster_kind(settings.address)
    steps = [_run_step("Address", lambda: _check_address(settings, kind, allowed, resolve, timeout_s))]
    if "token_file" not in kind.unused_settings:
        steps.append(_run_step("Token", lambda: _check_token_expiry(_read_token(settings, allowed), now)))
    nodes: list[BackendNode] = []
    if all(step.ok is not False for step in steps):
        token = _read_token(settings, allowed)
        options = {
            "read_file": _secret_reader(settings, allowed),
            "plain_http": settings.is_bundled,
            "workload_owners": settings.workload_owners,
            "pod_template": settings.pod_template,
            "timeout_s": timeout_s,
        }
        open_kind = partial(open_, **options)
        steps += _cluster_steps(settings, kind, token, nodes, open_kind)
        is_connected = steps[-1].ok is not None
        users = partial(_check_submit_as, settings, token, allowed, now, open_kind)
        if not kind.runs_as_service:
            steps.append(_run_step("Users", users) if is_connected else _skipped("Users"))
    else:
        steps += [_skipped(name) for name in (kind.name, "Nodes", *(() if kind.runs_as_service else ("Users",)))]
    steps.append(_run_step("Telemetry", lambda: _telemetry(settings.metrics_address, nodes, read_, resolve)))
    steps.append(_run_step("Job logs", lambda: _logs(settings, allowed)))
    return steps


def _skipped(name: str) -> ConnectionTestStep:
    return ConnectionTestStep(name=name, ok=None, message="Skipped.")


def all_steps_passed(steps: Sequence[ConnectionTestStep]) -> bool:
    return all(step.ok is not False for step in steps)


def _path_failure(path: str, error: InvalidInput) -> ConnectionTestFailure:
    what, _, advice = str(error).partition("; ")
    return ConnectionTestFailure(
        f"{path} {what}.", f"{advice[:1].upper()}{advice[1:]}." if advice else "Choose another path."
    )


def _run_step(
    name: str, look: Callable[[], tuple[bool | None, str] | tuple[bool | None, str, str]]
) -> ConnectionTestStep:
    try:
        ok, message, *advice = look()
    except ConnectionTestFailure as failure:
        problem, remedy = failure.args
        return ConnectionTestStep(name=name, ok=False, message=problem, advice=remedy)
    return ConnectionTestStep(name=name, ok=ok, message=message, advice="".join(advice))


# --- address


def _check_address(
    settings: ConnectionSettings, kind: ClusterKind, allowed: AllowedPaths, resolve: Resolve, timeout_s: float
) -> tuple[bool, str]:
    try:
        check_address(settings.address)
        server = server_address(settings.address, _secret_reader(settings, allowed))
    except ValueError as error:
        raise ConnectionTestFailure(f"The {error}", kind.bad_address_advice) from None
    except ClusterUnreachable as error:
        raise ConnectionTestFailure(f"{error}.", "Correct this file on the server that runs Acme.") from None
    if server.startswith("unix://"):
        return _check_unix_socket(server.removeprefix("unix://"), allowed, timeout_s)
    try:
        parts = urlsplit(server)
        port = parts.port or (80 if parts.scheme == "http" else 443)
    except ValueError:
        raise ConnectionTestFailure("The address is invalid.", kind.bad_address_advice) from None
    if not parts.hostname:
        raise ConnectionTestFailure("The address has no host name.", kind.bad_address_advice)
    return _check_tcp(parts.hostname, port, kind, resolve, timeout_s)


def _check_unix_socket(path: str, allowed: AllowedPaths, timeout_s: float) -> tuple[bool, str]:
    try:
        allowed.check_socket(path)
    except InvalidInput as error:
        raise _path_failure(path, error) from None
    if not Path(path).exists():
        raise ConnectionTestFailure(
            f"{path} does not exist on this machine.",
            "Check that slurmrestd creates this socket and that it is mounted here.",
        )
    with closing(socket.socket(socket.AF_UNIX)) as client:
        client.settimeout(timeout_s)
        try:
            client.connect(path)
        except PermissionError:
            raise ConnectionTestFailure(
                f"Acme has no permission to connect to {path}.",
                f"Give the user of this process (uid {os.getuid()}) write access, for example by the socket's group.",
            ) from None
        except OSError as error:
            raise ConnectionTestFailure(
                f"No process listens on {path} ({error.strerror or error}).", "Start slurmrestd, or check its log."
            ) from None
    return True, "The socket accepts connections."


def _check_tcp(host: str, port: int, kind: ClusterKind, resolve: Resolve, timeout_s: float) -> tuple[bool, str]:
    try:
        addresses = sorted(set(resolve(host, port)))
    except (OSError, UnicodeError):
        raise ConnectionTestFailure(
            f"The host name {host} cannot be resolved.", "Check the spelling, or use the IP address."
        ) from None
    _refuse_metadata_service(host, addresses)
    try:
        socket.create_connection((host, port), timeout_s).close()
    except ConnectionRefusedError:
        raise ConnectionTestFailure(
            f"{host} is reachable, but no process listens on port {port}.",
            kind.no_listener_advice,
        ) from None
    except TimeoutError:
        raise ConnectionTestFailure(
            f"{host}:{port} did not respond within {timeout_s:.0f} s.",
            "Check the firewalls between this machine and the host.",
        ) from None
    except OSError as error:
        raise ConnectionTestFailure(
            f"{host}:{port} cannot be reached ({error.strerror or error}).", "Check the route to this host."
        ) from None
    return True, f"{host} resolves to {', '.join(addresses[:MAX_NAMED_HOSTS])}; port {port} is open."


def _refuse_metadata_service(host: str, addresses: Sequence[str]) -> None:
    """Refuse addresses of a cloud's metadata service, which would hand out this machine's credentials."""
    if any(map(is_metadata_service, addresses)):
        raise ConnectionTestFailure(
            f"{host} is the metadata service of this machine.", "Use the host on which slurmrestd runs."
        )


def _secret_reader(settings: ConnectionSettings, allowed: AllowedPaths) -> ReadFile:
    return read_program_secret if settings.is_bundled else allowed.read_secret


# --- token


def _read_token(settings: ConnectionSettings, allowed: AllowedPaths) -> str:
    if not settings.token_file:
        return ""
    try:
        return (
            read_program_token(settings.token_file) if settings.is_bundled else allowed.read_token(settings.token_file)
        )
    except InvalidInput as error:
        raise _path_failure(settings.token_file, error) from None


def _check_token_expiry(token: str, now: datetime) -> tuple[bool | None, str]:
    if not token:
        return None, "No token is sent."
    ends = token_expiry(token)
    if ends and ends <= now:
        raise ConnectionTestFailure(
            f"The token expired at {ends:%Y-%m-%d %H:%M} UTC.", "Renew it: scontrol token username=… lifespan=…"
        )
    return True, f"The token expires at {ends:%Y-%m-%d %H:%M} UTC." if ends else "The token is readable."


# --- cluster


def _cluster_steps(
    settings: ConnectionSettings, kind: ClusterKind, token: str, nodes: list[BackendNode], open_: OpenBackend
) -> Iterator[ConnectionTestStep]:
    try:
        backend = open_(settings.address, user=settings.api_user, token=token)
    except (ValueError, ClusterUnreachable) as error:
        yield ConnectionTestStep(name=kind.name, ok=False, message=str(error), advice=kind.bad_address_advice)
        yield _skipped("Nodes")
        return
    with closing(backend):
        hello = _run_step(kind.name, lambda: _check_ping(backend))
        yield hello
        if hello.ok:
            yield _run_step("Nodes", lambda: _check_nodes(backend, kind, nodes))
        else:
            yield _skipped("Nodes")


def _check_ping(backend: Backend) -> tuple[bool, str]:
    try:
        hello = backend.ping()
    except BackendError as error:
        raise ConnectionTestFailure(str(error), backend.traits.connection_advice(str(error))) from None
    return True, f"Connected to {hello.product}, API {hello.api}."


def _check_nodes(backend: Backend, kind: ClusterKind, nodes: list[BackendNode]) -> tuple[bool, str]:
    try:
        nodes += backend.nodes()
        jobs = backend.jobs() if kind.runs_as_service else ()
    except BackendError as error:
        raise ConnectionTestFailure(str(error), kind.forbidden_nodes_advice) from None
    if not nodes:
        raise ConnectionTestFailure("The cluster has no nodes.", kind.no_nodes_advice)
    gpus = sum(node.gpus for node in nodes)
    if not gpus:
        raise ConnectionTestFailure(f"{len(nodes)} nodes, none of them with GPUs.", kind.no_gpus_advice)
    return True, f"{len(nodes)} nodes with {gpus} GPUs{f', {len(jobs)} jobs' if jobs else ''}."


# --- user of the jobs


def _check_submit_as(
    settings: ConnectionSettings, token: str, allowed: AllowedPaths, now: datetime, open_: OpenBackend
) -> tuple[bool | None, str, str] | tuple[bool | None, str]:
    service = settings.api_user or token_user(token) or "of slurmrestd"
    if settings.submit_as == SubmitIdentity.USER_HEADER:
        return _check_user_header(settings, token, service, open_)
    if settings.submit_as == SubmitIdentity.USER_TOKENS:
        return _check_user_tokens(settings.user_token_directory, service, allowed, now)
    return (
        None,
        f"All jobs run as the user {service}. Users and teams are not isolated on this cluster: each job can read and"
        " change the files of all jobs, and signal them.",
        "Choose user_header or user_tokens to run jobs as the user who submitted them.",
    )


def _check_user_header(settings: ConnectionSettings, token: str, service: str, open_: OpenBackend) -> tuple[bool, str]:
    """Check that the token may act on behalf of another user, as only tokens of root and the SlurmUser may."""
    if not token:
        raise ConnectionTestFailure(
            "user_header requires a token, but no token file is set.",
            "Set the path of a file with a token of the SlurmUser: scontrol token username=slurm lifespan=…",
        )
    with closing(open_(settings.address, user=OTHER_USER, token=token)) as backend:
        try:
            backend.ping()
        except BackendError as error:
            raise ConnectionTestFailure(
                f"The token of user {service} cannot act on behalf of other users ({error}).",
                "Use a token of root or the SlurmUser (see scontrol show config), or choose user_tokens.",
            ) from None
    return True, (
        f"Jobs run as the user who submitted them, under the user name in Acme; user {service} may act on behalf of"
        " others. If a user does not exist on the cluster, their jobs are rejected."
    )


def _check_user_tokens(directory: str, service: str, allowed: AllowedPaths, now: datetime) -> tuple[bool, str]:
    try:
        allowed.check_token_directory(directory)
        names = sorted(name for name in os.listdir(directory) if not name.startswith("."))
    except InvalidInput as error:
        raise _path_failure(directory, error) from None
    except OSError as error:
        raise ConnectionTestFailure(
            f"{directory} is not readable ({error.strerror}).", f"Give uid {os.getuid()} read access."
        ) from None
    senders = UserTokenIdentities(service_user=service, directory=directory, read=allowed.read_token, now=lambda: now)
    problems = [problem for name in names if (problem := _token_refusal(senders, name))]
    if problems:
        raise ConnectionTestFailure(
            f"{len(problems)} of {len(names)} token files are not usable: {problems[0]}.",
            "Renew or remove these files.",
        )
    if not names:
        raise ConnectionTestFailure(
            f"{directory} is empty.", "Create a token file for each user: scontrol token username=… lifespan=…"
        )
    return True, (
        f"Jobs run as the user who submitted them. {len(names)} users have a token; jobs of other users are held. User"
        f" {service} cancels jobs and drains nodes, so it must be a Slurm operator."
    )


def _token_refusal(senders: UserTokenIdentities, name: str) -> str:
    try:
        senders.of(name)
    except RequestRejected as error:
        return str(error)
    return ""


# --- telemetry and logs


def _telemetry(
    address: str, nodes: Sequence[BackendNode], read_: ReadTelemetry, resolve: Resolve
) -> tuple[bool | None, str]:
    if not address:
        return None, "Not configured. Utilization, temperatures and Xids are not available."
    _refuse_metadata_service(address, _resolve_url(address, resolve))
    try:
        page = read_(address)
    except ClusterUnreachable as error:
        raise ConnectionTestFailure(
            str(error), "Use the address of a DCGM exporter: http://host:9400/metrics."
        ) from None
    if not page.gpus:
        raise ConnectionTestFailure(
            "The page contains no GPUs.", "Check that it is a DCGM exporter that reports host names (-k or Hostname)."
        )
    hosts = {gpu.node for gpu in page.gpus}
    unknown = sorted(hosts - {node.name for node in nodes}) if nodes else []
    if unknown:
        names = ", ".join(unknown[:MAX_NAMED_HOSTS])
        raise ConnectionTestFailure(
            f"The page contains hosts that are not nodes of the cluster: {names}.",
            "Host names must match the names of the nodes.",
        )
    return True, f"{len(page.gpus)} GPUs on {len(hosts)} nodes report telemetry."


def _resolve_url(url: str, resolve: Resolve) -> Sequence[str]:
    """Return the IP addresses of the host, or none if the URL is invalid: reading it then fails with the reason."""
    try:
        host = urlsplit(url).hostname
        return resolve(host, 80) if host else []
    except (OSError, ValueError):
        return []


def _logs(settings: ConnectionSettings, allowed: AllowedPaths) -> tuple[bool | None, str]:
    path, copies_logs = settings.log_root, not cluster_kind(settings.address).writes_logs
    if not path and copies_logs:
        return None, "Not configured. Acme copies the output of its jobs to its own directory."
    if not path:
        return None, "Not configured. Logs are not shown, and failures are diagnosed without them."
    try:
        if not settings.is_bundled:
            allowed.check_shared_directory(path)
    except InvalidInput as error:
        raise _path_failure(path, error) from None
    try:
        is_directory, is_usable = storage.call(path, log_files.directory_access, path, copies_logs)
    except StorageUnresponsive as error:
        raise ConnectionTestFailure(
            str(error), "Check the file server of this mount, and dmesg on this machine."
        ) from None
    if not is_directory:
        raise ConnectionTestFailure(
            f"{path} is not a directory on this machine.", "Mount the file system that jobs write to."
        )
    if not is_usable:
        verb, access = ("write to", "write") if copies_logs else ("read", "read")
        raise ConnectionTestFailure(
            f"Acme has no permission to {verb} {path}.", f"Give uid {os.getuid()} on this machine {access} access."
        )
    return True, f"The directory is {'writable' if copies_logs else 'readable'}."
