"""Reads kubeconfig files. Pure: the text in, one value out.

Supported are tokens, token files and client certificates, and the cluster's CA. Everything that would start a program
or weaken TLS is refused with one sentence. Sentences never contain values of the file: they may be secrets.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import yaml

from acmeweb.common.errors import InvalidInput

from ..fields import NOTHING, mapping_at, mappings_at

MAX_ENTRIES = 1000
REFUSED_IN_USER = {
    "exec": "exec plugins are not supported, because they run programs on this machine; use a service account token",
    "auth-provider": "auth-provider plugins are not supported; use a service account token",
    "username": "passwords are not supported, and Kubernetes removed them; use a service account token",
    "password": "passwords are not supported, and Kubernetes removed them; use a service account token",
    **dict.fromkeys(
        ("as", "as-uid", "as-groups", "as-user-extra"), "impersonation is not supported; use the user's own token"
    ),
}
REFUSED_IN_CLUSTER = {
    "insecure-skip-tls-verify": "insecure-skip-tls-verify is not supported; add the cluster's CA instead",
    "proxy-url": "proxy-url is not supported; enter an address that this machine reaches directly",
}


@dataclass(frozen=True, kw_only=True)
class Secret:
    """A credential: the value itself, or the path of its file. Both empty: none."""

    value: str = ""
    path: str = ""

    def __repr__(self) -> str:
        return f"Secret(path={self.path!r})"

    def __bool__(self) -> bool:
        return bool(self.value or self.path)


@dataclass(frozen=True, kw_only=True)
class ClusterAccess:
    """How an API server is reached and what is sent to it. Without a CA the system's are used."""

    server: str
    server_name: str = ""  # expected in the certificate, if it differs from the address
    ca: Secret = Secret()
    token: Secret = Secret()  # a file is read again before each request, because tokens rotate
    certificate: Secret = Secret()
    key: Secret = Secret()


@lru_cache(maxsize=64)  # the file is read for each look at a cluster, and YAML takes 20 ms
def parse_kubeconfig(text: str, context: str = "") -> ClusterAccess:
    """The access that this context describes; empty: the current one. Raises InvalidInput."""
    config = _load_yaml(text)
    name = context or config.get("current-context")
    if not isinstance(name, str) or not name:
        raise InvalidInput("has no current-context; add ?context=NAME to the address")
    chosen = _entry_by_name(config, "contexts", "context", name)
    cluster = _entry_by_name(config, "clusters", "cluster", chosen.get("cluster"))
    user = _entry_by_name(config, "users", "user", chosen["user"]) if chosen.get("user") else NOTHING
    _refuse(cluster, REFUSED_IN_CLUSTER)
    _refuse(user, REFUSED_IN_USER)
    return ClusterAccess(
        server=_server(cluster),
        server_name=_text(cluster, "tls-server-name"),
        ca=_secret(cluster, "certificate-authority-data", "certificate-authority", encoded=True),
        token=_secret(user, "token", "tokenFile"),
        certificate=_secret(user, "client-certificate-data", "client-certificate", encoded=True),
        key=_secret(user, "client-key-data", "client-key", encoded=True),
    )


def _load_yaml(text: str) -> Mapping[str, Any]:
    try:
        config = yaml.load(text, Loader=_PlainLoader)  # noqa: S506  a subclass of SafeLoader
    except (yaml.YAMLError, RecursionError, ValueError):
        raise InvalidInput("is not a kubeconfig: it is not valid YAML, or it contains aliases") from None
    if not isinstance(config, Mapping) or config.get("kind", "Config") != "Config":
        raise InvalidInput("is not a kubeconfig: it must be an object of kind Config")
    return config


class _PlainLoader(yaml.SafeLoader):  # type: ignore[misc]
    """Without aliases: a few lines of them would expand to gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError("aliases are not allowed")
        return super().compose_node(parent, index)


def _entry_by_name(config: Mapping[str, Any], section: str, part: str, name: object) -> Mapping[str, Any]:
    entries = mappings_at(config, section)[:MAX_ENTRIES]
    for entry in entries:
        if isinstance(name, str) and entry.get("name") == name:
            return mapping_at(entry, part)
    raise InvalidInput(f"does not contain the {part} {str(name)[:100]!r}")


def _refuse(place: Mapping[str, Any], refused: Mapping[str, str]) -> None:
    for name in refused:
        if place.get(name):
            raise InvalidInput(f"cannot be used: {refused[name]}")


def _server(cluster: Mapping[str, Any]) -> str:
    server = _text(cluster, "server").rstrip("/")
    try:
        parts = urlsplit(server)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or "@" in server or "?" in server or "#" in server:
        raise InvalidInput("has a server that is not an address such as https://host:6443")
    return server


def _text(place: Mapping[str, Any], name: str) -> str:
    value = place.get(name, "")
    if not isinstance(value, str) or any(map(_is_control, value)):
        raise InvalidInput(f"has an invalid {name}: it must be one line of text")
    return value


def _is_control(character: str) -> bool:
    return ord(character) < 32 or ord(character) == 127


def _secret(place: Mapping[str, Any], data: str, path: str, *, encoded: bool = False) -> Secret:
    """The value if there is one, otherwise the path, as kubectl does."""
    value = _text(place, data)
    if encoded and value:
        try:
            value = base64.b64decode(value, validate=True).decode("ascii")
        except (binascii.Error, ValueError):
            raise InvalidInput(f"has an invalid {data}: it must be base64") from None
    return Secret(value=value) if value else Secret(path=_text(place, path))


def secret_paths(access: ClusterAccess) -> Iterator[str]:
    """The files that the kubeconfig refers to."""
    secrets = (access.ca, access.token, access.certificate, access.key)
    return (secret.path for secret in secrets if secret.path)
