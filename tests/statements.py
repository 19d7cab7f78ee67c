"""What happens at the database: a failure or a change by somebody else between two statements, and a later time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection


@contextmanager
def before_statement(*parts: object, act: Callable[[], object], every: bool = False) -> Iterator[None]:
    """Call `act` before the first statement, or every one, that has all parts: text of its SQL, or parameters.

    There must be such a statement.
    """
    is_due, calls = [True], []

    def execute(run: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        if is_due[0] and all(_has_part(str(sql), params, part) for part in parts):
            is_due[0] = False  # `act` may use the database itself
            calls.append(sql)
            try:
                act()
            finally:
                is_due[0] = every
        return run(sql, params, many, context)

    with connection.execute_wrapper(execute):
        yield
    assert calls, f"no statement has {parts}"


@contextmanager
def failing_statement(*parts: object, error: BaseException) -> Iterator[None]:
    """Raise the error instead of every statement that has all parts."""

    def fail() -> None:
        raise error

    with before_statement(*parts, act=fail, every=True):
        yield


@contextmanager
def before_transaction(number: int, *, act: Callable[[], object]) -> Iterator[None]:
    """Call `act` before the n-th transaction begins. Savepoints inside a transaction do not count."""
    depth, begun = len(connection.savepoint_ids), [0]

    def execute(run: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        if str(sql).startswith("SAVEPOINT") and len(connection.savepoint_ids) == depth:
            begun[0] += 1
            if begun[0] == number:
                act()
        return run(sql, params, many, context)

    with connection.execute_wrapper(execute):
        yield
    assert begun[0] >= number, f"there were {begun[0]} transactions"


class DatabaseClock:
    """Lets the statements of this connection read a later time than the database has."""

    def __init__(self) -> None:
        self.ahead_s = 0

    def __call__(self, run: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        if isinstance(sql, str):
            sql = sql.replace("clock_timestamp()", f"(clock_timestamp() + interval '{self.ahead_s} s')")
        return run(sql, params, many, context)


def _has_part(sql: str, params: Any, part: object) -> bool:
    return (isinstance(part, str) and part in sql) or part in tuple(params or ())
