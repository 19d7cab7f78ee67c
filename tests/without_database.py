"""A plugin for pytest, `-p tests.without_database`: leaves out the tests that use the database."""

from __future__ import annotations

import pytest

DATABASE = {"db", "transactional_db", "django_db"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if DATABASE.isdisjoint([*getattr(item, "fixturenames", ()), *item.keywords])]
