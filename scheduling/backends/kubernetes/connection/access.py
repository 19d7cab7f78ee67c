"""Where the API server is and what is sent to it: from a kubeconfig file, or from the pod that Acme runs in.

Addresses are `kubernetes:///path/to/kubeconfig`, with `?context=NAME` for another than the current context, and
`kubernetes://in-cluster`. All files are read again before each call, so rotated tokens and certificates are used at
once. `read_file` decides which files may be read; the kubeconfig is somebody else's, so this covers the files that it
names. Only the pod's own service account has fixed paths and needs no permission.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from acmeweb.common.errors import InvalidInput
from jobs.core.cluster_kinds import KUBERNETES_EXAMPLE

from ...base import ClusterUnreachable
from .kubeconfig import ClusterAccess, Secret, parse_kubeconfig

SCHEME = "kubernetes://"
IN_CLUSTER = "in-cluster"
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
HOST_VARIABLE, PORT_VARIABLE = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"

ReadFile = Callable[[str], str]


@dataclass(frozen=True, kw_only=True)
class KubernetesAddress:
    """A parsed address. `kubeconfig` is empty for in-cluster."""

    kubeconfig: str
    context: str = ""


@dataclass(frozen=True, kw_only=True)
class Connection:
    """An API server with everything that is needed to call it, as values."""

    server: str
    server_name: str
    ca: str = field(repr=False)
    token: str = field(repr=False)
    certificate: str = field(repr=False)
    key: str = field(repr=False)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def with_token(self, token: str) -> Connection:
        return Connection(**{**vars(self), "token": token})

    def ssl_context(self) -> ssl.SSLContext:
        """Raises ClusterUnreachable if the certificates are not usable."""
        try:
            context = ssl.create_default_context(cadata=self.ca or None)
            # The default since Python 3.13. It refuses certificates without a key identifier, which many API servers
            # have, and which kubectl accepts. Signature, name, validity and purpose are checked all the same
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            if self.certificate:
                with _as_file(self.certificate) as certificate, _as_file(self.key) as key:
                    context.load_cert_chain(certificate, key, password=lambda: "")
        except (ssl.SSLError, ValueError, OSError):
            raise ClusterUnreachable(
                f"{self.server}: the certificates in the kubeconfig are not usable; they must be in PEM format, and the"
                " key must be that of the certificate and not be encrypted"
            ) from None
        return context


@contextmanager
def _as_file(text: str) -> Iterator[str]:
    """A path from which OpenSSL can read the text, which is only in memory."""
    descriptor = os.memfd_create("acme-tls", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, text.encode("ascii"))
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def parse_address(address: str) -> KubernetesAddress:
    """Raises ValueError with one sentence that begins with the field's name."""
    try:
        parts, query = urlsplit(address), parse_qs(urlsplit(address).query, strict_parsing=True, max_num_fields=1)
    except ValueError:
        parts, query = urlsplit(SCHEME), {}
        if "?" not in address:
            parts = urlsplit(address)
    if parts.netloc == IN_CLUSTER and not parts.path.strip("/") and not query:
        return KubernetesAddress(kubeconfig="")
    if parts.netloc or not parts.path.strip("/") or parts.fragment or set(query) - {"context"}:
        raise ValueError(
            f"address must be {SCHEME}/PATH of a kubeconfig file, with ?context=NAME if needed, or"
            f" {SCHEME}{IN_CLUSTER}; for example {KUBERNETES_EXAMPLE}."
        )
    return KubernetesAddress(kubeconfig=parts.path, context=query.get("context", [""])[0])


def load_connection(
    address: KubernetesAddress,
    read_file: ReadFile,
    environment: Mapping[str, str] = os.environ,
    *,
    plain_http: bool = False,
) -> Connection:
    """Read all files. Raises ClusterUnreachable with one sentence. `plain_http`: a token may be sent unencrypted to
    another machine, as to the bundled cluster in a network of containers."""
    if not address.kubeconfig:
        return _in_cluster_connection(environment)
    text = _read(address.kubeconfig, read_file)
    try:
        access = parse_kubeconfig(text, address.context)
    except InvalidInput as error:
        raise ClusterUnreachable(f"{address.kubeconfig} {error}") from None
    folder = os.path.dirname(address.kubeconfig)
    connection = _connection(access, lambda path: _read(os.path.join(folder, path), read_file))
    if connection.token and not plain_http and not _is_private(connection.server):
        raise ClusterUnreachable(
            f"{address.kubeconfig} has a token and the server {connection.server}, which would get it unencrypted; use"
            " https:// (http:// is allowed on the loopback address only)"
        )
    return connection


def _is_private(server: str) -> bool:
    """Whether nobody else can read what is sent to the server."""
    parts = urlsplit(server)
    if parts.scheme == "https" or parts.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False


def _read(path: str, read_file: ReadFile) -> str:
    try:
        return read_file(path)
    except ValueError as error:
        raise ClusterUnreachable(f"{path} {error}") from None


def _connection(access: ClusterAccess, read: ReadFile) -> Connection:
    def value(secret: Secret) -> str:
        return secret.value or (read(secret.path) if secret.path else "")

    return Connection(
        server=access.server,
        server_name=access.server_name,
        ca=value(access.ca),
        token=_one_word(value(access.token), access.token.path or "the token"),
        certificate=value(access.certificate),
        key=value(access.key),
    )


def _one_word(token: str, name: str) -> str:
    """The token without spaces around it. It becomes a header, so anything else is refused."""
    word = token.strip()
    if word and not (word.isascii() and word.isprintable() and " " not in word):
        raise ClusterUnreachable(f"{name} must contain only a token")
    return word


def _in_cluster_connection(environment: Mapping[str, str]) -> Connection:
    host, port = environment.get(HOST_VARIABLE, ""), environment.get(PORT_VARIABLE, "443")
    if not host or not port.isdigit():
        raise ClusterUnreachable(
            f"{SCHEME}{IN_CLUSTER} works only in a pod: {HOST_VARIABLE} is not set; use a kubeconfig file instead"
        )
    access = ClusterAccess(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        ca=Secret(path=str(SERVICE_ACCOUNT / "ca.crt")),
        token=Secret(path=str(SERVICE_ACCOUNT / "token")),
    )
    return _connection(access, lambda path: _read(path, _read_own_file))


def _read_own_file(path: str) -> str:
    try:
        return Path(path).read_text("ascii")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", "") or "it is not a text file"
        raise ValueError(f"cannot be read ({reason}); set automountServiceAccountToken for this pod") from None
