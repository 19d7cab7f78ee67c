"""The user that a job is submitted as on a Slurm cluster.

slurmrestd expects the user's name in X-SLURM-USER-NAME and a token in X-SLURM-USER-TOKEN. With a token of root or of
the SlurmUser the name may be any user's; with any other token it must be the token's own user. Slurm 22.05 accepts an
unknown name and gives the job to the user id 99, so the backend checks the first job of each user.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from .base import RequestRejected

# Acme must never submit as these users: they own the cluster or its keys.
PRIVILEGED_USERS = frozenset({"root", "slurm", "munge", "nobody"})


@dataclass(frozen=True, kw_only=True)
class SlurmIdentity:
    """A user's name on the cluster, and the token sent with it."""

    user: str
    token: str

    @property
    def headers(self) -> dict[str, str]:
        headers = {"X-SLURM-USER-TOKEN": self.token, "X-SLURM-USER-NAME": self.user}
        return {name: value for name, value in headers.items() if value}


NO_IDENTITY = SlurmIdentity(user="", token="")


class IdentityProvider(Protocol):
    def of(self, user: str) -> SlurmIdentity:
        """The identity of an Acme user. Raises RequestRejected, with what to do, if their jobs cannot be submitted."""
        ...


@dataclass(frozen=True, kw_only=True)
class ServiceTokenIdentities:
    """One token that may act for other users; the name on the cluster is the Acme user's name."""

    service_user: str
    token: str

    def of(self, user: str) -> SlurmIdentity:
        _refuse_privileged(user, self.service_user)
        return SlurmIdentity(user=user, token=self.token)


@dataclass(frozen=True, kw_only=True)
class UserTokenIdentities:
    """One token per user, in a file named after the user. The token itself names the user on the cluster."""

    service_user: str
    directory: str
    read: Callable[[str], str]  # the token in a file; raises ValueError with what is wrong and what to do
    now: Callable[[], datetime]

    def of(self, user: str) -> SlurmIdentity:
        if not user or "/" in user or user.startswith("."):
            raise RequestRejected(f"the user name {user!r} cannot be the name of a token file")
        try:
            token = self.read(f"{self.directory}/{user}")
        except ValueError as error:
            raise RequestRejected(
                f"no Slurm token for user {user}: {self.directory}/{user} {error}. An operator creates one with"
                f" scontrol token username={user} lifespan=…, then the job can be released"
            ) from None
        expires_at = token_expiry(token)
        if expires_at and expires_at <= self.now():
            raise RequestRejected(
                f"the Slurm token of user {user} expired on {expires_at:%Y-%m-%d %H:%M} UTC. An operator renews"
                f" {self.directory}/{user} with scontrol token username={user} lifespan=…, then the job can be released"
            )
        cluster_user = token_user(token) or user
        _refuse_privileged(cluster_user, self.service_user)
        return SlurmIdentity(user=cluster_user, token=token)


def _refuse_privileged(user: str, service_user: str) -> None:
    if user in PRIVILEGED_USERS or user == service_user:
        raise RequestRejected(
            f"jobs are not submitted as the cluster's user {user}, which has rights over other users' jobs; submit as"
            " another user"
        )


def jwt_claims(token: str) -> Mapping[str, Any]:
    """The claims of a JWT, without checking its signature (the cluster does that); empty if the token is not a JWT."""
    try:
        part = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, IndexError):
        return {}
    return claims if isinstance(claims, dict) else {}


def token_expiry(token: str) -> datetime | None:
    try:
        return datetime.fromtimestamp(int(jwt_claims(token)["exp"]), UTC)
    except (ValueError, KeyError, TypeError, OverflowError, OSError):
        return None


def token_user(token: str) -> str:
    """The user in Slurm's own claim, or in the generic one that Slurm reads too."""
    claims = jwt_claims(token)
    name = claims.get("sun") or claims.get("username") or ""
    return name if isinstance(name, str) else ""
