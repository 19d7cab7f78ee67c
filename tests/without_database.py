"""A plugin for pytest, `-p tests.without_database`: leaves out the tests that use the database, starts no servers."""

from __future__ import annotations

import pytest

DATABASE = {"db", "transactional_db", "django_db"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    using = [item for item in items if not DATABASE.isdisjoint([*getattr(item, "fixturenames", ()), *item.keywords])]
    left_out = set(using)
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=using)
