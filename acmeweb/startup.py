"""What a process does before it serves requests or runs loops and tasks, and after it was interrupted."""

import gc

from django.conf import settings
from django.db import connections

from acmeweb.common.env import with_timeouts

GC_THRESHOLD = 10_000  # with Python's 700, a request of thousands of jobs triggers many collections


def require_secret_key() -> None:
    """Exit unless SECRET_KEY is set."""
    if not settings.SECRET_KEY_GIVEN:
        raise SystemExit("SECRET_KEY is not set. Start with `make up`, or set it to a long random value.")


def apply_role_timeouts(name: str) -> None:
    """Apply the database timeouts of a role, in a process that was forked before its first connection. It works in one
    thread, so it needs no second connection for long."""
    options = settings.DATABASES["default"]["OPTIONS"]
    options["options"] = with_timeouts(options.get("options", ""), name)
    options["pool"] |= {"max_idle": 10, "num_workers": 1}


def freeze_loaded_modules() -> None:
    """Exclude loaded modules from garbage collection: scanning them took a quarter of a large turn or request."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)


def discard_connections() -> None:
    """Close this thread's connections and forget their transactions: one that was interrupted inside `atomic()` refuses
    to be used again."""
    for connection in connections.all(initialized_only=True):
        connection.close()
        connection.connection = None
        connection.closed_in_transaction = connection.in_atomic_block = connection.needs_rollback = False
        connection.savepoint_ids, connection.atomic_blocks = [], []
