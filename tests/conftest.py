"""Set-up of every process that runs tests."""

from __future__ import annotations

from acmeweb.startup import freeze_loaded_modules


def pytest_collection_finish() -> None:
    """Exclude the tests and their imports from garbage collection, which took a fifth of the time."""
    freeze_loaded_modules()
