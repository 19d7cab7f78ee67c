"""Set-up of every process that runs tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pytest_django import DjangoDbBlocker

from acmeweb.startup import freeze_loaded_modules
from tests import empty_database, schema_template

pytest.register_assert_rewrite("tests.scheduling.backends.contract")  # so that failed assertions show their values


empty_database.use_delete_rows()
LONG_S = 600  # what a test may take that states no timeout of its own


def pytest_xdist_auto_num_workers() -> int:
    """Two a core: while one waits for a server or a process that it started, another one computes."""
    return 2 * (os.cpu_count() or 1)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest tests at the beginning of each worker's share of the run, so that none comes last."""
    long = sorted((item for item in items if _timeout_s(item) > LONG_S), key=_timeout_s, reverse=True)
    others = [item for item in items if _timeout_s(item) <= LONG_S]
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    ends = [number * len(others) // workers for number in range(workers + 1)]
    items[:] = [item for n in range(workers) for item in (*long[n::workers], *others[ends[n] : ends[n + 1]])]


def _timeout_s(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker else 0.0


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
