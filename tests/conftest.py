"""Set-up of every process that runs tests."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import pytest
from pytest_django import DjangoDbBlocker

from acmeweb.startup import freeze_loaded_modules
from tests import empty_database, schema_template

pytest.register_assert_rewrite("tests.backends.contract")  # so that failed assertions show their values
empty_database.use_delete_rows()


def pytest_xdist_auto_num_workers() -> int:
    """Two a core: while one waits for a server or a process that it started, another one computes."""
    return 2 * (os.cpu_count() or 1)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the tests that start whole instances over each worker's share of the run, so that none comes last and the
    other workers compute while one of them waits for its instance."""
    long = [item for item in items if item.get_closest_marker("chaos")]
    long.sort(key=_timeout_s, reverse=True)
    others = [item for item in items if not item.get_closest_marker("chaos")]
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    shares = [
        spread_out(long[n::workers], others[n * len(others) // workers : (n + 1) * len(others) // workers], n / workers)
        for n in range(workers)
    ]
    items[:] = [item for share in shares for item in share]


def _timeout_s(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker else 0.0


LONG_TESTS_END = 0.6  # of a worker's tests; the remaining ones fill the gaps at the end of the run


def spread_out(long: Sequence[pytest.Item], others: Sequence[pytest.Item], phase: float) -> list[pytest.Item]:
    """The tests of one worker: the long ones in their order, at equal distances. The phase (0 to 1) moves them within
    the distance, so that workers do not start their instances at the same time."""
    distance = LONG_TESTS_END * len(others) / max(len(long), 1)
    found, taken = list[pytest.Item](), 0
    for number, item in enumerate(long):
        until = int((number + phase) * distance)
        found += [*others[taken:until], item]
        taken = until
    return [*found, *others[taken:]]


def pytest_collection_finish() -> None:
    """Exclude the tests and their imports from garbage collection, which took a fifth of the time."""
    freeze_loaded_modules()


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings: None) -> None:
    """Create the test databases from the template, if tests/servers.py has one for them."""
    from django.conf import settings

    settings.DATABASES["default"]["TEST"]["TEMPLATE"] = os.environ.get(schema_template.VARIABLE)


@pytest.fixture(scope="module")
def rows_for_module(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Keep the rows that module fixtures create until the last test. Each test's own changes are undone after it."""
    from django.db import transaction

    with django_db_blocker.unblock(), transaction.atomic():
        yield
        transaction.set_rollback(True)
