from datetime import UTC, datetime, timedelta, timezone

import pytest
from django.db import DataError, connection
from django.utils.timezone import is_aware
from psycopg import pq
from psycopg.postgres import types

from acmeweb.database_times import UtcTimeLoader

TIMES = (
    datetime(2026, 11, 26, 20, 4, 59, 123456, tzinfo=UTC),
    datetime(2026, 7, 1, 2, 30, tzinfo=timezone(timedelta(hours=5, minutes=45))),
    datetime(1970, 1, 1, tzinfo=UTC),
)


@pytest.mark.django_db
@pytest.mark.parametrize("time", TIMES, ids=str)
def test_a_time_comes_back_in_utc_with_its_microseconds(time: datetime) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s::timestamptz", [time])
        (read,) = cursor.fetchone()
    assert is_aware(read)
    assert read == time
    assert read.isoformat() == time.astimezone(UTC).isoformat()


@pytest.mark.django_db
def test_cursors_do_not_use_the_loader_of_django() -> None:
    with connection.cursor() as cursor:
        assert cursor.adapters.get_loader(types["timestamptz"].oid, pq.Format.TEXT) is UtcTimeLoader


@pytest.mark.django_db
def test_a_time_that_python_cannot_hold_is_an_error_and_not_another_time() -> None:
    with connection.cursor() as cursor, pytest.raises(DataError, match="after year 10K"):
        cursor.execute("SELECT 'infinity'::timestamptz")
        cursor.fetchone()
