"""Giving files of an instance to the user whose program uses them, as root."""

from __future__ import annotations

import os
from pathlib import Path

from acmeweb.services import leash
from acmeweb.services.place import Place
from acmeweb.services.users import Users

ROOT_USER = "0"


def give(path: Path, user: str, *, group: str = "") -> None:
    """The whole tree to this user, unless its top is already: the top changes last, so a cut-off pass is repeated."""
    uid, gid = leash.ids_of(user)
    gid = leash.ids_of(group)[1] if group else gid
    top = path.stat()
    if (top.st_uid, top.st_gid) == (uid, gid):
        return
    for directory, names, files in os.walk(path, topdown=False):
        for name in (*names, *files):
            os.chown(Path(directory) / name, uid, gid, follow_symlinks=False)
    os.chown(path, uid, gid)


def divide(place: Place, users: Users, *, runs_jobs: bool) -> None:
    """Each program's files to the user it runs as, also those that an earlier version ran as somebody else."""
    give(place.valkey, users.valkey)
    for directory in (place.work, place.static):
        give(directory, users.acme)
    _share_with_acme(place.secrets, 0o750, users)
    _share_with_acme(place.cluster_token, 0o640, users)
    place.cluster.mkdir(mode=0o750, exist_ok=True)
    give(place.cluster, ROOT_USER if runs_jobs else users.acme, group=users.acme)
    if runs_jobs:
        # What is made beneath it takes its group, so Acme reads the logs that jobs write as their own users
        place.cluster_logs.mkdir(exist_ok=True)
        _share_with_acme(place.cluster_logs, 0o2750, users)


def _share_with_acme(path: Path, mode: int, users: Users) -> None:
    """Root's own, and open to Acme by its group."""
    os.chown(path, 0, leash.ids_of(users.acme)[1])
    path.chmod(mode)
