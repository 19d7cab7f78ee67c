"""Settings from the environment, read once and strictly.

A value that cannot be what it should be stops the process with one sentence that names the variable and the value.
`make up` writes what it found (ports, passwords) to `var/run/env`, so that a `manage.py` beside it speaks to the same
servers; the real environment always wins over that file.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent

T = TypeVar("T")

TRUE = frozenset({"1", "true", "yes", "on"})
FALSE = frozenset({"0", "false", "no", "off", ""})


class BadSetting(SystemExit):
    """A setting nobody can start with. It is a SystemExit so that the sentence is all a person sees."""

    def __init__(self, name: str, value: str, why: str) -> None:
        self.name, self.value = name, value
        super().__init__(f"{name}={value!r}: {why}")


def read_file(path: Path) -> dict[str, str]:
    """NAME=value lines; blank lines and # comments are skipped. A file that is not there says nothing."""
    try:
        lines = path.read_text().splitlines()
    except (FileNotFoundError, PermissionError):
        return {}
    pairs = (line.split("=", 1) for line in lines if "=" in line and not line.lstrip().startswith("#"))
    return {name.strip(): value.strip() for name, value in pairs}


@dataclass(frozen=True, kw_only=True)
class OidcSettings:
    issuer: str
    client_id: str
    client_secret: str = ""
    scopes: str = "openid profile email"
    username_claim: str = "preferred_username"
    groups_claim: str = "groups"
    new_users: str = "refuse"
    teams: tuple[tuple[str, str, str], ...] = ()  # group, team, role
    label: str = "single sign-on"


ROLES = ("viewer", "researcher", "operator", "admin")


def _group(word: str) -> tuple[str, str, str]:
    group, sign, place = word.partition("=")
    team, _, role = place.partition(":")
    if not (sign and group.strip() and team.strip() and role.strip() in ROLES):
        raise BadSetting("OIDC_TEAMS", word, f"is no GROUP=TEAM:ROLE; a role is one of {', '.join(ROLES)}")
    return group.strip(), team.strip(), role.strip()


class Env:
    """The environment over the file of the running instance."""

    def __init__(self, environ: Mapping[str, str], beneath: Mapping[str, str] | None = None) -> None:
        self._layers = (environ, beneath or {})

    def text(self, name: str, default: str = "") -> str:
        """The value, or the content of the file that NAME_FILE points to (Docker and systemd secrets)."""
        found = (self._look(layer, name) for layer in self._layers)
        return next((value for value in found if value is not None), default)

    def _look(self, layer: Mapping[str, str], name: str) -> str | None:
        if name in layer:
            return layer[name]
        if path := layer.get(f"{name}_FILE"):
            try:
                return Path(path).read_text().strip()
            except OSError as error:
                raise BadSetting(f"{name}_FILE", path, f"cannot be read ({error.strerror})") from None
        return None

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name, "1" if default else "0").lower()
        if value not in TRUE | FALSE:
            raise BadSetting(name, value, "is neither 1 nor 0")
        return value in TRUE

    def number(self, name: str, default: int, low: int, high: int) -> int:
        return self._parse(
            name, str(default), lambda v: _between(int(v), low, high), f"is no number from {low} to {high}"
        )

    def words(self, name: str, default: str = "") -> list[str]:
        return [word.strip() for word in self.text(name, default).split(",") if word.strip()]

    def networks(self, name: str) -> list[str]:
        for word in (found := self.words(name)):
            try:
                ipaddress.ip_network(word)
            except ValueError as error:
                raise BadSetting(name, word, f"is no network ({error})") from None
        return found

    def oidc(self) -> OidcSettings | None:
        """The provider of sign-ins, if one is named."""
        issuer = self.url(("OIDC_ISSUER",), ("https", "http"))
        if issuer is None:
            return None
        if issuer.scheme == "http" and issuer.hostname not in ("127.0.0.1", "localhost", "::1"):
            raise BadSetting("OIDC_ISSUER", issuer.geturl(), "must be https; who listens could sign in as anybody")
        if not self.text("OIDC_CLIENT_ID"):
            raise BadSetting("OIDC_CLIENT_ID", "", "is needed with OIDC_ISSUER")
        new_users = self.text("OIDC_NEW_USERS", "refuse")
        if new_users not in ("refuse", "create"):
            raise BadSetting("OIDC_NEW_USERS", new_users, "is neither refuse nor create")
        return OidcSettings(
            issuer=issuer.geturl(),
            client_id=self.text("OIDC_CLIENT_ID"),
            client_secret=self.text("OIDC_CLIENT_SECRET"),
            scopes=self.text("OIDC_SCOPES", "openid profile email"),
            username_claim=self.text("OIDC_USERNAME_CLAIM", "preferred_username"),
            groups_claim=self.text("OIDC_GROUPS_CLAIM", "groups"),
            new_users=new_users,
            teams=tuple(_group(word) for word in self.words("OIDC_TEAMS")),
            label=self.text("OIDC_LABEL", "single sign-on"),
        )

    def url(self, names: tuple[str, ...], schemes: tuple[str, ...]) -> SplitResult | None:
        """The first of the names that is set (an alias counts as the name it stands for, also over the file)."""
        for layer in self._layers:
            for name in names:
                if value := self._look(layer, name):
                    return _checked(name, urlsplit(value), schemes)
        return None

    def _parse(self, name: str, default: str, parse: Callable[[str], T], why: str) -> T:
        value = self.text(name, default)
        try:
            return parse(value)
        except ValueError:
            raise BadSetting(name, value, why) from None


def _between(value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise ValueError
    return value


def _checked(name: str, parts: SplitResult, schemes: tuple[str, ...]) -> SplitResult:
    if parts.scheme not in schemes:
        raise BadSetting(name, _masked(parts), f"is no URL that begins with {' or '.join(schemes)}")
    return parts


def _masked(parts: SplitResult) -> str:
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def with_password(parts: SplitResult, password: str) -> SplitResult:
    """A URL without a password can be shown and committed; the password has a variable or a file of its own."""
    if parts.password or not password:
        return parts
    user, _, place = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{user.rstrip(':')}:{quote(password, safe='')}@{place}")


def database(parts: SplitResult) -> dict[str, object]:
    """Django's description of the server that a postgresql:// URL points to."""
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": unquote(parts.hostname or ""),
        "PORT": str(parts.port or ""),
        "OPTIONS": dict(parse_qsl(parts.query)),
    }


def web_processes(env: Env) -> int:
    """One for each core: each is one interpreter, and more than four are more than our pages ask for."""
    return env.number("ACME_WEB_PROCESSES", min(4, os.cpu_count() or 1), 1, 32)


def load() -> Env:
    return Env(os.environ, read_file(Path(os.environ.get("ACME_VAR", ROOT / "var")) / "run" / "env"))
