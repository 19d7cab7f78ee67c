"""Settings from the environment, read once and validated.

An invalid value stops the process with one sentence that names the variable and the value. `make up` writes the ports
and passwords that it chose to `var/run/env`, so that a `manage.py` in another shell connects to the same servers; the
real environment always takes precedence over that file.
"""

from __future__ import annotations

import ipaddress
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

ROOT = Path(__file__).resolve().parents[2]

T = TypeVar("T")

TRUE_WORDS = frozenset({"1", "true", "yes", "on"})
FALSE_WORDS = frozenset({"0", "false", "no", "off", ""})


class InvalidEnvSetting(SystemExit):
    """An invalid setting. It is a SystemExit so that the sentence is all that is printed, without a traceback."""

    def __init__(self, name: str, value: str, why: str) -> None:
        self.name, self.value = name, value
        super().__init__(f"{name}={value!r}: {why}")


def read_file(path: Path) -> dict[str, str]:
    """Return the NAME=value lines of a file, without blank lines and comments; empty if the file is missing."""
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


def _parse_team_group(word: str) -> tuple[str, str, str]:
    group, sign, place = word.partition("=")
    team, _, role = place.partition(":")
    if not (sign and group.strip() and team.strip() and role.strip() in ROLES):
        raise InvalidEnvSetting("OIDC_TEAMS", word, f"is not GROUP=TEAM:ROLE; roles are {', '.join(ROLES)}")
    return group.strip(), team.strip(), role.strip()


class EnvReader:
    """Reads the environment, with the file of the running instance as a fallback."""

    def __init__(self, environ: Mapping[str, str], beneath: Mapping[str, str] | None = None) -> None:
        self._layers = (environ, beneath or {})

    def text(self, name: str, default: str = "") -> str:
        """Return the value, or the content of the file that NAME_FILE names (Docker and systemd secrets)."""
        values = (self._find_value(layer, name) for layer in self._layers)
        return next((value for value in values if value is not None), default)

    def _find_value(self, layer: Mapping[str, str], name: str) -> str | None:
        if name in layer:
            return layer[name]
        if path := layer.get(f"{name}_FILE"):
            try:
                return Path(path).read_text().strip()
            except OSError as error:
                raise InvalidEnvSetting(f"{name}_FILE", path, f"cannot be read ({error.strerror})") from None
        return None

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name, "1" if default else "0").lower()
        if value not in TRUE_WORDS | FALSE_WORDS:
            raise InvalidEnvSetting(name, value, "is not 1 or 0")
        return value in TRUE_WORDS

    def number(self, name: str, default: int, low: int, high: int) -> int:
        return self._parse_setting(
            name, str(default), lambda v: _check_between(int(v), low, high), f"is not a number from {low} to {high}"
        )

    def words(self, name: str, default: str = "") -> list[str]:
        return _split_list(self.text(name, default))

    def choices(self, name: str, allowed: Sequence[str]) -> list[str]:
        for word in (words := self.words(name)):
            if word not in allowed:
                raise InvalidEnvSetting(name, word, f"is not one of {', '.join(allowed)}")
        return words

    def directories(self, name: str, default: str = "") -> list[str]:
        """Return absolute directories. An empty value means the default."""
        for word in (words := _split_list(self.text(name) or default)):
            if not word.startswith("/") or not word.strip("/"):
                raise InvalidEnvSetting(name, word, "is not an absolute path of a directory below /")
        return words

    def command(self, name: str) -> tuple[str, ...]:
        """Return a program and its arguments, quoted as in a shell; empty if it is not set."""
        words = self._parse_setting(name, "", shlex.split, "cannot be divided into words; check its quotes")
        if words and not words[0].startswith("/"):
            raise InvalidEnvSetting(name, self.text(name), "does not begin with the absolute path of a program")
        return tuple(words)

    def networks(self, name: str) -> list[str]:
        """Return IP networks in CIDR notation, checked."""
        for word in (words := self.words(name)):
            try:
                ipaddress.ip_network(word)
            except ValueError as error:
                raise InvalidEnvSetting(name, word, f"is not a network ({error})") from None
        return words

    def oidc(self) -> OidcSettings | None:
        """Return the settings of the OIDC provider; None if none is configured."""
        issuer = self.url(("OIDC_ISSUER",), ("https", "http"))
        if issuer is None:
            return None
        if issuer.scheme == "http" and issuer.hostname not in ("127.0.0.1", "localhost", "::1"):
            raise InvalidEnvSetting(
                "OIDC_ISSUER", issuer.geturl(), "must be https; an eavesdropper could sign in as any user"
            )
        if not self.text("OIDC_CLIENT_ID"):
            raise InvalidEnvSetting("OIDC_CLIENT_ID", "", "is needed with OIDC_ISSUER")
        new_users = self.text("OIDC_NEW_USERS", "refuse")
        if new_users not in ("refuse", "create"):
            raise InvalidEnvSetting("OIDC_NEW_USERS", new_users, "is not refuse or create")
        return OidcSettings(
            issuer=issuer.geturl(),
            client_id=self.text("OIDC_CLIENT_ID"),
            client_secret=self.text("OIDC_CLIENT_SECRET"),
            scopes=self.text("OIDC_SCOPES", "openid profile email"),
            username_claim=self.text("OIDC_USERNAME_CLAIM", "preferred_username"),
            groups_claim=self.text("OIDC_GROUPS_CLAIM", "groups"),
            new_users=new_users,
            teams=tuple(_parse_team_group(word) for word in self.words("OIDC_TEAMS")),
            label=self.text("OIDC_LABEL", "single sign-on"),
        )

    def url(self, names: tuple[str, ...], schemes: tuple[str, ...]) -> SplitResult | None:
        """Return the URL of the first name that is set. An alias in the environment beats the name in the file."""
        for layer in self._layers:
            for name in names:
                if value := self._find_value(layer, name):
                    return _check_scheme(name, _split_url(name, value), schemes)
        return None

    def _parse_setting(self, name: str, default: str, parse: Callable[[str], T], why: str) -> T:
        value = self.text(name, default)
        try:
            return parse(value)
        except ValueError:
            raise InvalidEnvSetting(name, value, why) from None


def _split_list(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _check_between(value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise ValueError
    return value


def _split_url(name: str, value: str) -> SplitResult:
    try:
        return urlsplit(value)
    except ValueError:
        shown = value.rpartition("@")[2]  # the part before @ may contain a password, and the error is logged
        raise InvalidEnvSetting(name, shown, "is not a URL") from None


def _check_scheme(name: str, parts: SplitResult, schemes: tuple[str, ...]) -> SplitResult:
    if parts.scheme not in schemes:
        why = f"is not a URL that starts with {' or '.join(schemes)}"
        raise InvalidEnvSetting(name, _url_without_password(parts), why)
    return parts


def _url_without_password(parts: SplitResult) -> str:
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def with_password(parts: SplitResult, password: str) -> SplitResult:
    """Add the password to a URL without one: such URLs can be shown, the password has its own variable or file."""
    if parts.password or not password:
        return parts
    user, _, place = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{user.rstrip(':')}:{quote(password, safe='')}@{place}")


@dataclass(frozen=True, kw_only=True)
class RoleTimeouts:
    """How long PostgreSQL lets a session wait for a lock, run a statement, or stay idle inside a transaction."""

    lock_s: int
    statement_s: int
    idle_in_transaction_s: int

    @property
    def options(self) -> str:
        """The timeouts as libpq connection options."""
        named = {
            "lock_timeout": self.lock_s,
            "statement_timeout": self.statement_s,
            "idle_in_transaction_session_timeout": self.idle_in_transaction_s,
        }
        return " ".join(f"-c {name}={seconds * 1000}" for name, seconds in named.items())


# A process without a role (migrations, management commands) has no timeouts. Idle sessions outside of a transaction
# hold no lock and belong to the pools, so nothing ends them. Statements of loops end before a run must (50 s).
ROLE_TIMEOUTS = {
    "web": RoleTimeouts(lock_s=5, statement_s=20, idle_in_transaction_s=30),
    "loops": RoleTimeouts(lock_s=10, statement_s=40, idle_in_transaction_s=60),
    "long": RoleTimeouts(lock_s=30, statement_s=300, idle_in_transaction_s=120),
}


def database_role(env: EnvReader) -> str:
    name = env.text("ACME_ROLE")
    if name and name not in ROLE_TIMEOUTS:
        raise InvalidEnvSetting("ACME_ROLE", name, f"is not one of {', '.join(ROLE_TIMEOUTS)}")
    return name


def with_timeouts(options: str, role: str) -> str:
    """Return connection options with the role's timeouts first, so that options from the URL override them."""
    return f"{ROLE_TIMEOUTS[role].options} {options}".strip() if role else options


def database_settings(parts: SplitResult) -> dict[str, object]:
    """Return Django's settings for a postgresql:// URL, which may name several hosts: h1:5432,h2:5432. libpq tries them
    in that order until one matches target_session_attrs."""
    places = [_host_and_port(place, parts) for place in parts.netloc.rpartition("@")[2].split(",")]
    ports = [port for _, port in places]
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": ",".join(host for host, _ in places),
        "PORT": ",".join(ports) if any(ports) else "",
        "OPTIONS": dict(parse_qsl(parts.query)),
    }


def _host_and_port(place: str, parts: SplitResult) -> tuple[str, str]:
    """Split HOST:PORT. IPv6 addresses are in brackets."""
    host, colon, port = place.rpartition(":") if not place.endswith("]") else (place, "", "")
    if not colon:
        host, port = place, ""
    if port and not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536):
        raise InvalidEnvSetting("DATABASE_URL", _url_without_password(parts), f"{port!r} is not a port")
    return unquote(host.strip("[]")), port


def web_processes(env: EnvReader) -> int:
    """Return the number of web processes: one per core, at most four by default, which is enough for our pages."""
    return env.number("ACME_WEB_PROCESSES", min(4, os.cpu_count() or 1), 1, 32)


def cluster_min_job_age_s(env: EnvReader) -> int:
    """How long the bundled cluster keeps ended jobs; the default is that of Slurm."""
    name, error = "ACME_CLUSTER_MIN_JOB_AGE", "is not a whole number of seconds from 1 to 86400"
    value = env.text(name, "300")
    if not (value.isascii() and value.isdigit() and len(value) < 10 and 1 <= int(value) <= 86_400):
        raise InvalidEnvSetting(name, value, error)
    return int(value)


DEMO_CLUSTERS = ("seren", "kalos")


def demo_clusters(env: EnvReader) -> tuple[str, ...]:
    """The clusters of the demo: seren speaks the API of Slurm, kalos that of Kubernetes."""
    name, default = "DEMO_CLUSTERS", ",".join(DEMO_CLUSTERS)
    value = env.text(name, default)
    chosen = {word.strip() for word in value.split(",") if word.strip()}
    if not chosen or not chosen <= set(DEMO_CLUSTERS):
        raise InvalidEnvSetting(name, value, f"is not one of {', '.join(DEMO_CLUSTERS)} or both, comma-separated")
    return tuple(one for one in DEMO_CLUSTERS if one in chosen)


def load() -> EnvReader:
    return EnvReader(os.environ, read_file(Path(os.environ.get("ACME_VAR", ROOT / "var")) / "run" / "env"))
