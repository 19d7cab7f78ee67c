"""The users that jobs on this machine run as.

If root runs the server, the jobs of each team have their own user id and home: a job can then neither read nor signal
the jobs of other teams, the server, or anything else that is closed to others. A team keeps its id forever, so that
files left by its jobs never belong to another team. The ids have no entry in /etc/passwd.
"""

from __future__ import annotations

import json
import os
import pwd
import stat
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from scheduling.simulation.machines.values import SimulatedJob

DEFAULT_UIDS = range(60_616, 61_100)


class NoAccountAvailable(Exception):
    """A job cannot start because no user id is available; the message is a sentence without a period."""


@dataclass(frozen=True, kw_only=True)
class UnixAccount:
    """A user that jobs run as. Without `ids`, jobs run as the user of the server."""

    name: str
    home: str
    ids: tuple[int, int] | None = None


class AccountProvider(Protocol):
    separate: bool  # whether jobs run as other users than the server's

    def of(self, job: SimulatedJob) -> UnixAccount: ...


class SharedAccount:
    """Every job runs as the user of the server."""

    separate = False

    def of(self, job: SimulatedJob) -> UnixAccount:
        return current_account()


def current_account() -> UnixAccount:
    me = pwd.getpwuid(os.geteuid())
    return UnixAccount(name=me.pw_name, home=me.pw_dir)


class TeamAccounts:
    """One user id per team, which is the account that a job was submitted to. The table is a JSON file."""

    separate = True

    def __init__(self, path: Path, uids: Sequence[int], temporary: Path | None = None) -> None:
        self._path, self._uids = path, uids
        self._temporary = temporary or Path(tempfile.gettempdir())
        self._rows: dict[str, dict[str, str | int]] = json.loads(path.read_text()) if path.exists() else {}

    def of(self, job: SimulatedJob) -> UnixAccount:
        team = job.request.account
        row = self._rows.get(team, {})
        stored_uid = int(row.get("uid", 0))
        uid = stored_uid if stored_uid in self._uids else self._unused_uid()  # the range may have changed
        home = str(row.get("home", ""))
        if not _is_private_directory(home, uid):
            home = self._make_home(uid)
            self._store_account(team, uid, home)
        return UnixAccount(name=job.request.user, home=home, ids=(uid, uid))

    def _unused_uid(self) -> int:
        used = {row["uid"] for row in self._rows.values()}
        for uid in self._uids:
            if uid not in used and not _has_passwd_entry(uid):
                return uid
        raise NoAccountAvailable(f"all {len(self._uids)} user ids for teams are in use; add more with --job-uids")

    def _make_home(self, uid: int) -> str:
        """Create a home with a random name, because another user could create a predictable one first."""
        home = tempfile.mkdtemp(prefix=f"acme-job-{uid}-", dir=self._temporary)
        os.chown(home, uid, uid)
        return home

    def _store_account(self, team: str, uid: int, home: str) -> None:
        """Store the account durably; called before the first job runs as this user."""
        self._rows[team] = {"uid": uid, "home": home}
        new_file = self._path.with_suffix(".new")
        with new_file.open("w") as file:
            json.dump(self._rows, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        new_file.replace(self._path)


def _is_private_directory(home: str, uid: int) -> bool:
    """Whether the directory still exists and belongs to this user only: /tmp may have been emptied meanwhile."""
    try:
        status = os.lstat(home)
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == uid


def _has_passwd_entry(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True
