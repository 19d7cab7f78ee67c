"""A plugin for pytest, `-p tests.two_parameters`: runs each test function with its first two sets of parameters."""

from __future__ import annotations

from collections import Counter

import pytest

SETS = 2


@pytest.hookimpl(tryfirst=True)  # before the order becomes random
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    sets: Counter[str] = Counter()
    kept, left_out = [], []
    for item in items:
        function = item.nodeid.partition("[")[0]
        sets[function] += 1
        (kept if sets[function] <= SETS else left_out).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)
