"""Assigns the files of an instance to the user whose program uses them. Requires root."""

from __future__ import annotations

import os
from pathlib import Path

from acmeweb.services import parent_guard
from acmeweb.services.directories import InstanceDirectories
from acmeweb.services.users import ServiceUsers

ROOT_USER = "0"


def change_owner(path: Path, user: str, *, group: str = "") -> None:
    """Assign a whole tree to a user. The top changes last, so an interrupted run is repeated; skip if it is done."""
    uid, gid = parent_guard.ids_of(user)
    gid = parent_guard.ids_of(group)[1] if group else gid
    top = path.stat()
    if (top.st_uid, top.st_gid) == (uid, gid):
        return
    for directory, names, files in os.walk(path, topdown=False):
        for name in (*names, *files):
            os.chown(Path(directory) / name, uid, gid, follow_symlinks=False)
    os.chown(path, uid, gid)


def assign_files_to_users(place: InstanceDirectories, users: ServiceUsers, *, runs_jobs: bool) -> None:
    """Assign each program's files to the user it runs as, also files that an earlier version created as another."""
    change_owner(place.valkey, users.valkey)
    for directory in (place.work, place.static, place.pod_logs):
        change_owner(directory, users.acme)
    _share_with_acme(place.secrets, 0o750, users)
    _share_with_acme(place.cluster_token, 0o640, users)
    place.cluster.mkdir(mode=0o750, exist_ok=True)
    change_owner(place.cluster, ROOT_USER if runs_jobs else users.acme, group=users.acme)
    if runs_jobs:
        # New files inherit the group (setgid), so Acme can read the logs that jobs write as their own users
        place.cluster_logs.mkdir(exist_ok=True)
        _share_with_acme(place.cluster_logs, 0o2750, users)


def _share_with_acme(path: Path, mode: int, users: ServiceUsers) -> None:
    """Make root the owner and give Acme access through its group."""
    os.chown(path, 0, parent_guard.ids_of(users.acme)[1])
    path.chmod(mode)
