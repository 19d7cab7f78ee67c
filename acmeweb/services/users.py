"""The user id that each program runs as.

Root gives PostgreSQL, Valkey, Acme itself and the jobs of each team numeric user ids of their own, so that none of them
can signal another, read its memory or environment, or change its files. The ids need no entry in /etc/passwd. An
ordinary user cannot do this: then everything runs as that user, and `shared_user_warning` says what that means.
"""

from __future__ import annotations

import grp
import os
import pwd
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

from acmeweb.common.env import EnvReader
from acmeweb.services.preflight import CannotStart

UID_BASE_VARIABLE = "ACME_UID_BASE"
DEFAULT_BASE = 60_600  # between the ids that systemd assigns: up to 60577 and from 61184
UID_RANGE_SIZE = 500
FIRST_JOB_UID_OFFSET = 16


@dataclass(frozen=True, kw_only=True)
class ServiceUsers:
    """User ids in decimal digits. Empty: the user who runs `make up`."""

    acme: str = ""
    postgres: str = ""
    valkey: str = ""
    jobs: str = ""  # FIRST-LAST; the cluster server assigns one of these to each team

    @property
    def are_separate(self) -> bool:
        return bool(self.acme)


def from_base(base: int) -> ServiceUsers:
    return ServiceUsers(
        acme=str(base),
        postgres=str(base + 1),
        valkey=str(base + 2),
        jobs=f"{base + FIRST_JOB_UID_OFFSET}-{base + UID_RANGE_SIZE - 1}",
    )


def default() -> ServiceUsers:
    return from_base(DEFAULT_BASE) if os.geteuid() == 0 else ServiceUsers()


def choose(env: EnvReader) -> ServiceUsers:
    if os.geteuid() != 0:
        return ServiceUsers()
    base = env.number(UID_BASE_VARIABLE, DEFAULT_BASE, 1000, 2**31 - UID_RANGE_SIZE)
    check_free(base, {entry.pw_uid: entry.pw_name for entry in pwd.getpwall()}, "user")
    check_free(base, {entry.gr_gid: entry.gr_name for entry in grp.getgrall()}, "group")
    check_available((base, base + UID_RANGE_SIZE - 1))
    return from_base(base)


def check_free(base: int, names: dict[int, str], kind: str) -> None:
    last = base + UID_RANGE_SIZE - 1
    for number in sorted(number for number in names if base <= number <= last):
        raise CannotStart(
            f"{UID_BASE_VARIABLE}={base}: the ids {base} to {last} must be unused, and {number} is the {kind}"
            f" {names[number]}. Choose another base."
        )


def check_available(ids: Iterable[int]) -> None:
    """Check that root can run programs as these ids: a container may map only some, or forbid changing the user."""
    for number in ids:
        try:
            subprocess.run(["/bin/true"], user=number, group=number, extra_groups=[], cwd="/", check=True)
        except OSError as error:
            raise CannotStart(
                f"Root cannot run programs as user id {number} here ({error.strerror}), so jobs could not be separated"
                f" from Acme and its database. Choose another {UID_BASE_VARIABLE}, or start Acme as an ordinary user."
            ) from None


def shared_user_warning(users: ServiceUsers, runs_jobs: bool) -> str:
    """Return a one-line warning about what is not isolated; empty if nothing is shared."""
    if users.are_separate or not runs_jobs:
        return ""
    name = _user_name(os.geteuid())
    return (
        f"Not isolated: jobs, Acme and its database all run as the user {name}. Every job can read Acme's secrets and"
        " change its database, and can read and signal the jobs of all teams. Start Acme as root to separate them."
    )


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
