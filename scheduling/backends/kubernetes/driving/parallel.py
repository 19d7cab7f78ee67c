"""Sends several commands over parallel connections, and stops when the cluster stops responding."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ...base import BackendError, ClusterUnreachable, RequestTimedOut
from ...http_client import RequestDeadline

T = TypeVar("T")

CONNECTIONS = 16  # the API server lets one user have dozens of requests in flight


class ParallelCommands:
    """Threads that are kept. Each call sends its own request."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="kubernetes")

    def run(self, calls: Iterable[Callable[[], T]], deadline: RequestDeadline) -> list[T | BackendError]:
        """The results in the order of the calls. Once the cluster stops responding, or the time of the operation is
        over, the remaining ones are not made.
        """
        unreachable: list[ClusterUnreachable] = []

        def run_one(call: Callable[[], T]) -> T | BackendError:
            if unreachable:
                return unreachable[0]
            if deadline.over:
                return ClusterUnreachable(f"the cluster did not carry out all commands within {deadline.seconds:g} s")
            try:
                return call()
            except ClusterUnreachable as error:
                unreachable.append(error)
                return error
            except RequestTimedOut as error:
                unreachable.append(ClusterUnreachable(f"the cluster did not respond to the previous command: {error}"))
                return error
            except BackendError as error:
                return error

        waiting = list(calls)
        if len(waiting) < 2:
            return [run_one(call) for call in waiting]
        return list(self._pool.map(run_one, waiting))

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
