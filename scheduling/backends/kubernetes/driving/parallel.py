"""Sends commands over parallel connections, and stops when the cluster stops responding.

A chain is a first command and those that may only follow it, such as an owner and the pods of it. The chains of one
call overlap: a chain does not wait for the first commands of others. Commands are sent in the order in which they
become possible, so with many chains most first commands precede the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from acmeweb.common.http_client import RequestDeadline

from ...base import BackendError, ClusterUnreachable, RequestTimedOut

T = TypeVar("T")

CONNECTIONS = 16  # the API server lets one user have dozens of requests in flight

Call = Callable[[], object]
Chain = Callable[[], tuple[T, Sequence[Call]]]  # makes the first command, and returns its result and what follows


@dataclass(frozen=True)
class ChainResult(Generic[T]):
    """The result of the first command, and the errors of those that followed it. If it failed, none did."""

    first: T | BackendError
    later_errors: Sequence[BackendError] = ()

    @property
    def errors(self) -> list[BackendError]:
        return [*([self.first] if isinstance(self.first, BackendError) else []), *self.later_errors]


class ParallelCommands:
    """Threads that are kept. Each call sends its own request.

    Once the cluster stops responding, or the time of the operation is over, the remaining calls are not made.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="kubernetes")

    def start(self, chains: Iterable[Chain[T]], deadline: RequestDeadline) -> StartedChains[T]:
        """Start the chains without waiting for them."""
        guard = _Guard(deadline)
        return StartedChains([self._pool.submit(self._run_chain, guard, chain) for chain in chains])

    def run(self, chains: Iterable[Chain[T]], deadline: RequestDeadline) -> list[ChainResult[T]]:
        """The results in the order of the chains."""
        return self.start(chains, deadline).results()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run_chain(self, guard: _Guard, chain: Chain[T]) -> _Begun[T]:
        begun = guard.run(chain)
        if isinstance(begun, BackendError):
            return begun, []
        first, calls = begun
        with suppress(RuntimeError):  # closed meanwhile: `advance_jobs` makes the rest
            return first, [self._pool.submit(guard.run, call) for call in calls]
        return first, []


_Begun = tuple[T | BackendError, Sequence["Future[object]"]]


class StartedChains(Generic[T]):
    def __init__(self, begun: Sequence[Future[_Begun[T]]]) -> None:
        self._begun = begun

    def results(self) -> list[ChainResult[T]]:
        """Wait for all of them. In the order of the chains."""
        return [_chain_result(future) for future in self._begun]


def _chain_result(chain: Future[_Begun[T]]) -> ChainResult[T]:
    begun = _result(chain)
    if isinstance(begun, BackendError):
        return ChainResult(begun)
    first, later = begun
    results = [_result(future) for future in later]
    return ChainResult(first, [result for result in results if isinstance(result, BackendError)])


def _result(future: Future[T]) -> T | ClusterUnreachable:
    try:
        return future.result()
    except CancelledError:
        return ClusterUnreachable("the connections to the cluster were closed")


class _Guard:
    """What the calls of one operation know of each other. Several threads use it."""

    def __init__(self, deadline: RequestDeadline) -> None:
        self._deadline = deadline
        self._unreachable: ClusterUnreachable | None = None

    def run(self, call: Callable[[], T]) -> T | BackendError:
        if self._unreachable:
            return self._unreachable
        if self._deadline.over:
            seconds = self._deadline.seconds
            return ClusterUnreachable(f"the cluster did not carry out all commands within {seconds:g} s")
        try:
            return call()
        except ClusterUnreachable as error:
            self._unreachable = error
            return error
        except RequestTimedOut as error:
            self._unreachable = ClusterUnreachable(f"the cluster did not respond to the previous command: {error}")
            return error
        except BackendError as error:
            return error
