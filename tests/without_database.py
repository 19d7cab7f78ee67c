"""A plugin for pytest, `-p tests.without_database`: leaves out the tests that use the database, starts no servers.

With `--parameters=2` each test function runs with its first two sets of parameters only.
"""

from __future__ import annotations

import sys
from collections import Counter

import pytest

DATABASE = {"db", "transactional_db", "django_db"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--parameters", type=int, default=sys.maxsize, help="sets of parameters of each test function")


@pytest.hookimpl(tryfirst=True)  # before the order becomes random
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    most: int = config.getoption("parameters")
    sets: Counter[str] = Counter()
    kept, left_out = [], []
    for item in items:
        function = item.nodeid.partition("[")[0]
        sets[function] += 1
        (left_out if uses_database(item) or sets[function] > most else kept).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)


def uses_database(item: pytest.Item) -> bool:
    return not DATABASE.isdisjoint([*getattr(item, "fixturenames", ()), *item.keywords])
