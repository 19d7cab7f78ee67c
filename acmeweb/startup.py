"""What a program does before it serves anything."""

import gc

from django.conf import settings

from acmeweb.common.env import with_timeouts

GC_THRESHOLD = 10_000  # Python's 700 has a request of thousands of jobs looked through for garbage many times over


def require_secret_key() -> None:
    if not settings.SECRET_KEY_GIVEN:
        raise SystemExit("SECRET_KEY is not set: start with `make up`, or give a long random value of your own")


def apply_role_timeouts(name: str) -> None:
    """Apply the database timeouts of a role, in a process that was forked before its first connection."""
    options = settings.DATABASES["default"]["OPTIONS"]
    options["options"] = with_timeouts(options.get("options", ""), name)


def freeze_loaded_modules() -> None:
    """What is loaded by now stays: to look through it for garbage was a quarter of a large turn or request."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
