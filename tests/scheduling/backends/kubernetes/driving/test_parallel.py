"""Commands over parallel connections: chains overlap, keep their order, and stop with the cluster."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from acmeweb.common.http_client import RequestDeadline
from scheduling.backends.base import ClusterUnreachable, RequestRejected, RequestTimedOut
from scheduling.backends.kubernetes.driving.parallel import CONNECTIONS, ParallelCommands
from tests.patience import PATIENCE_S


@pytest.fixture
def commands():
    with closing(ParallelCommands()) as commands:
        yield commands


def run(commands, chains, seconds=PATIENCE_S):
    return commands.run(chains, RequestDeadline(seconds))


def failing(error):
    def call():
        raise error

    return call


def test_results_are_in_the_order_of_the_chains(commands):
    last_has_ended = threading.Event()

    def first():
        assert last_has_ended.wait(PATIENCE_S)
        return "first", []

    results = run(commands, [first, lambda: ("last", [last_has_ended.set])])

    assert [result.first for result in results] == ["first", "last"]


def test_later_command_of_a_chain_is_sent_while_another_chain_waits_for_its_first(commands):
    follows = threading.Event()

    def slow():
        return follows.wait(PATIENCE_S), []

    results = run(commands, [lambda: (True, [follows.set]), slow])

    assert [result.first for result in results] == [True, True]


def test_nothing_follows_a_first_command_that_failed(commands):
    made, refusal = [], RequestRejected("no")

    def chain(number):
        if number == 1:
            raise refusal
        return number, [lambda: made.append(number)]

    results = run(commands, [lambda number=number: chain(number) for number in range(3)])

    assert [result.first for result in results] == [0, refusal, 2]
    assert sorted(made) == [0, 2] and results[1].errors == [refusal]


def test_refused_later_command_does_not_stop_the_others(commands):
    made, refusal = [], RequestRejected("no")

    (result,) = run(commands, [lambda: ("owner", [failing(refusal), lambda: made.append(1)])])

    assert (result.first, result.later_errors, made) == ("owner", [refusal], [1])


@pytest.mark.parametrize("error", [ClusterUnreachable("gone"), RequestTimedOut("late")], ids=["unreachable", "late"])
def test_nothing_is_sent_after_the_cluster_stopped_responding(commands, error):
    all_wait, made = threading.Barrier(CONNECTIONS), []

    def stops():
        all_wait.wait(PATIENCE_S)
        raise error

    results = run(commands, [*[stops] * CONNECTIONS, *[lambda: (made.append(1), [])] * 5])

    assert [result.first for result in results[:CONNECTIONS]] == [error] * CONNECTIONS
    assert all(type(result.first) is ClusterUnreachable for result in results[CONNECTIONS:])
    assert made == []


def test_nothing_is_sent_after_the_deadline(commands):
    made = []

    (result,) = run(commands, [lambda: (made.append(1), [])], seconds=0)

    assert isinstance(result.first, ClusterUnreachable) and made == []


def test_close_in_the_middle_of_an_operation_is_an_error_of_what_was_not_sent(commands):
    closed, last = threading.Event(), threading.Event()

    def waiting():
        last.set()
        return closed.wait(PATIENCE_S), [failing(AssertionError("sent after the end"))]

    started = commands.start([waiting] * CONNECTIONS + [lambda: ("late", [])], RequestDeadline(PATIENCE_S))
    assert last.wait(PATIENCE_S)
    commands.close()
    closed.set()
    *sent, late = started.results()

    assert [result.first for result in sent] == [True] * CONNECTIONS
    assert isinstance(late.first, ClusterUnreachable)
