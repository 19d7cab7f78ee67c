"""Who a job is submitted as on a Slurm cluster.

slurmrestd takes the user's name in X-SLURM-USER-NAME and a token in X-SLURM-USER-TOKEN. With a token of root or of the
SlurmUser the name may be anybody's; with any other token it must be the token's own user. Slurm 22.05 accepts a name
that it does not know and gives the job to the user id 99, so the backend reads the first job of each user back.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from .base import RequestRejected

# Acme must not hand out these, whoever may name its users: they own the cluster or its keys.
PRIVILEGED_USERS = frozenset({"root", "slurm", "munge", "nobody"})


@dataclass(frozen=True, kw_only=True)
class SlurmIdentity:
    """A user as the cluster knows them, and the token sent with their name."""

    user: str
    token: str

    @property
    def headers(self) -> dict[str, str]:
        given = {"X-SLURM-USER-TOKEN": self.token, "X-SLURM-USER-NAME": self.user}
        return {name: value for name, value in given.items() if value}


class IdentityProvider(Protocol):
    def of(self, user: str) -> SlurmIdentity:
        """Of a user of Acme. Raises Refused with what to do where their jobs cannot be submitted."""
        ...


@dataclass(frozen=True, kw_only=True)
class ServiceTokenIdentities:
    """One token that may act for others; the name on the cluster is that of Acme's user."""

    service_user: str
    token: str

    def of(self, user: str) -> SlurmIdentity:
        _refuse_privileged(user, self.service_user)
        return SlurmIdentity(user=user, token=self.token)


@dataclass(frozen=True, kw_only=True)
class UserTokenIdentities:
    """A token for each user, in a file of their name. The token itself says who that is on the cluster."""

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
        ends = token_expiry(token)
        if ends and ends <= self.now():
            raise RequestRejected(
                f"the Slurm token of user {user} ended {ends:%Y-%m-%d %H:%M} UTC. An operator renews"
                f" {self.directory}/{user} with scontrol token username={user} lifespan=…, then the job can be released"
            )
        named = token_user(token) or user
        _refuse_privileged(named, self.service_user)
        return SlurmIdentity(user=named, token=token)


def _refuse_privileged(user: str, service_user: str) -> None:
    if user in PRIVILEGED_USERS or user == service_user:
        raise RequestRejected(
            f"jobs are not submitted as the cluster's user {user}, which has rights over other users' jobs; submit as"
            " another user"
        )


def jwt_claims(token: str) -> Mapping[str, Any]:
    """What a JWT says. Nobody's signature is checked here, the cluster does that. Empty where it is none."""
    try:
        part = token.split(".")[1]
        found = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, IndexError):
        return {}
    return found if isinstance(found, dict) else {}


def token_expiry(token: str) -> datetime | None:
    try:
        return datetime.fromtimestamp(int(jwt_claims(token)["exp"]), UTC)
    except (ValueError, KeyError, TypeError, OverflowError, OSError):
        return None


def token_user(token: str) -> str:
    """Slurm's own claim, or the one that is usual elsewhere and that Slurm reads too."""
    said = jwt_claims(token)
    name = said.get("sun") or said.get("username") or ""
    return name if isinstance(name, str) else ""
