"""Prepares the database and the static directory: schema, static files, initial contents.

Every step can be repeated and run by two processes at once: an advisory lock in the database admits one at a time, and
the second finds nothing to do. `make up` and the one-shot container `migrate` make the same call.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.staticfiles.finders import get_finders
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

ADMINISTRATOR = "admin"
FIRST_MIGRATION = ("jobs", "0001_squashed_0069_runs_of_name")
PREPARE_LOCK_ID = 0x41636D65  # "Acme"
LOCK_RETRY_S = 0.2

PASSWORD_AS_GENERATED = "administrator: password as generated"  # noqa: S105 - a label
PASSWORD_AS_CHANGED = "administrator: password as you set it"  # noqa: S105 - a label


def prepare_instance(password: str, demo: bool, say: Callable[[str], None]) -> str:
    """Prepare everything; return whether the administrator has the generated password or another one."""
    with prepare_lock():
        _run_timed_step("schema", _apply_migrations, say)
        _run_timed_step("static files", collect_static, say)
        _run_timed_step("administrator", lambda: _create_administrator(password), say)
        # At every start: the address of the bundled cluster may have changed. Existing rows are kept
        _run_timed_step("own cluster", lambda: call_command("seed_demo" if demo else "seed_local"), say)
    return _password_state(password)


@contextmanager
def prepare_lock(sleep: Callable[[float], None] = time.sleep) -> Iterator[None]:
    while not _try_prepare_lock():
        sleep(LOCK_RETRY_S)
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [PREPARE_LOCK_ID])


def _try_prepare_lock() -> bool:
    """Try the lock; the caller polls. A statement that waits for it would hold a snapshot, and a concurrent index build
    waits for all snapshots to end: the two would wait for each other."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [PREPARE_LOCK_ID])
        return bool(cursor.fetchone()[0])


def _run_timed_step(name: str, step: Callable[[], None], say: Callable[[str], None]) -> None:
    began = time.monotonic()
    step()
    say(f"{time.monotonic() - began:.2f} s {name}")


def _apply_migrations() -> None:
    executor = MigrationExecutor(connection)
    refuse_old_database({name for app, name in executor.loader.applied_migrations if app == FIRST_MIGRATION[0]})
    if executor.migration_plan(executor.loader.graph.leaf_nodes()):
        call_command("migrate", interactive=False, verbosity=1)


def refuse_old_database(applied: set[str]) -> None:
    """Refuse a database whose schema was made by migrations that no longer exist."""
    if applied and FIRST_MIGRATION[1] not in applied:
        raise CommandError(
            "This database is too old for this version of Acme. Upgrade it first with the last commit before"
            ' "Delete migrations that squashed ones replace", then with this one.'
        )


def collect_static() -> None:
    """Collect the static files if a source changed. Hashing 200 files costs a tenth of collecting them."""
    mark, now = settings.STATIC_ROOT / ".fingerprint", files_fingerprint(_static_sources())
    if mark.exists() and mark.read_text() == now:
        return
    mark.unlink(missing_ok=True)
    call_command("collectstatic", interactive=False, verbosity=0)
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.write_text(now)


def _static_sources() -> Iterator[tuple[str, Path]]:
    for finder in get_finders():
        for name, storage in finder.list(None):
            yield name, Path(storage.path(name))


def files_fingerprint(files: Iterator[tuple[str, Path]]) -> str:
    whole = hashlib.sha256(settings.STORAGES["staticfiles"]["BACKEND"].encode())
    for name, path in sorted(files):
        whole.update(f"\0{name}\0".encode())
        whole.update(path.read_bytes())
    return whole.hexdigest()


def _create_administrator(password: str) -> None:
    """Create the administrator if there are no users at all, so that a renamed or deleted one does not come back."""
    if password and not get_user_model().objects.exists():
        get_user_model().objects.create_superuser(username=ADMINISTRATOR, email="", password=password)


def _password_state(password: str) -> str:
    user = get_user_model().objects.filter(username=ADMINISTRATOR).first()
    return PASSWORD_AS_GENERATED if user and user.check_password(password) else PASSWORD_AS_CHANGED
