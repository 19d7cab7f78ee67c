"""A process that runs loops: errors are counted, time limits end it, and the next run starts clean."""

import logging
import time
from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import OperationalError, connection, transaction

from acmeweb.common.errors import TimeLimitExceeded
from acmeweb.loops import process
from acmeweb.loops.process import LoopProcess
from acmeweb.loops.table import ALL_LOOPS, GROUPS, LoopGroup, PeriodicLoop
from acmeweb.services.workers import REQUESTS, all_work
from jobs.models import Loop, LoopFailure
from tests import make

HOUR = timedelta(hours=1)


def one_loop(run=None, **fields):
    row = {"name": "x", "every": HOUR, "bound": HOUR, "effect": "nothing works", "run": run, **fields}
    return LoopGroup(name="group", processes=1, loops=(PeriodicLoop(**row),))


def run_once(group, cluster=None):
    """Run the loop of the group once; return whether the process goes on."""
    Loop.request("x", cluster)
    runner = LoopProcess(group, wait=lambda seconds: None)
    logging.getLogger().addHandler(runner.errors)
    try:
        return runner.run(Loop.claim_due(runner.times, "me"))
    finally:
        logging.getLogger().removeHandler(runner.errors)


def hang_in_a_transaction(now):
    with transaction.atomic():
        while True:
            time.sleep(0.01)


def test_every_loop_says_what_it_means_that_it_is_late():
    for loop in ALL_LOOPS.values():
        assert loop.effect[0].islower() and not loop.effect.endswith(".")
        assert loop.bound > loop.every and (loop.run is None) != (loop.run_of_cluster is None)


def test_loop_names_are_unique():
    assert len(ALL_LOOPS) == sum(len(group.loops) for group in GROUPS)


def test_urgent_loops_share_no_process_with_work_that_can_wait():
    alone = {"turns": {"turn"}, "recovery": {"recovery"}, "logs": {"pod logs"}}
    groups = {group.name: set(group.names) for group in GROUPS}

    assert {name: groups[name] for name in alone} == alone
    assert groups["outcomes"] == {"outcomes", "unknown outcomes"}
    assert groups["diagnosis"] == {"diagnosis", "followed logs", "late diagnoses"}
    assert all(group.niceness > 0 for group in GROUPS if group.name in ("background", "learning", "notices"))


@pytest.mark.parametrize("group", GROUPS, ids=[group.name for group in GROUPS])
@pytest.mark.django_db
def test_every_loop_of_an_empty_installation_runs(group):
    make.cluster(metrics_address="", address="http://127.0.0.1:9")
    for loop in group.loops:
        if loop.name != "turn":
            process.run_loop(loop, make.cluster().pk)


@pytest.mark.django_db
def test_a_run_without_error_lets_the_process_go_on():
    seen = []

    assert run_once(one_loop(seen.append))

    assert len(seen) == 1 and Loop.objects.get().last_error == ""


@pytest.mark.django_db
def test_an_error_is_shown_and_counted_and_the_process_goes_on():
    def broken(now):
        raise KeyError("node")

    assert run_once(one_loop(broken))

    assert Loop.objects.get().last_error == "KeyError: 'node'"
    assert LoopFailure.objects.get().signature == "KeyError in test_process.py:broken"


@pytest.mark.django_db
def test_an_error_of_one_row_is_counted_although_the_loop_goes_on():
    def partly(now):
        logging.getLogger("x").error("row %s was skipped", 7)

    run_once(one_loop(partly))

    assert Loop.objects.get().last_error == ""
    assert (LoopFailure.objects.get().signature, LoopFailure.objects.get().message) == (
        "x: row %s was skipped",
        "row 7 was skipped",
    )


@pytest.mark.django_db(transaction=True)
def test_a_time_limit_inside_a_transaction_ends_the_process_and_the_next_run_starts_clean():
    slow = one_loop(hang_in_a_transaction, limit=timedelta(milliseconds=50))

    assert not run_once(slow)

    row = Loop.objects.get()
    assert row.last_error == "It took longer than 0.05 s and was stopped."
    assert LoopFailure.objects.get().signature == "time limit"
    with transaction.atomic():
        assert Loop.objects.count() == 1


@pytest.mark.parametrize("group", GROUPS, ids=[group.name for group in GROUPS])
@pytest.mark.django_db(transaction=True)
def test_a_time_limit_inside_a_transaction_leaves_no_process_of_any_group_broken(group):
    run = {"run": lambda now: raise_inside_a_transaction(), "run_of_cluster": None, "clusters": None}
    broken = replace(group, loops=tuple(replace(loop, **run) for loop in group.loops))
    for loop in broken.loops:
        Loop.request(loop.name)

        runner = LoopProcess(broken, wait=lambda seconds: None)

        assert not runner.run(Loop.claim_due(runner.times, "me"))
        assert Loop.objects.get(name=loop.name).last_error and not connection.in_atomic_block


@pytest.mark.django_db(transaction=True)
def test_a_time_limit_ends_the_process_although_another_error_hides_it():
    def hidden(now):
        try:
            hang_in_a_transaction(now)
        finally:
            raise OperationalError("the connection is unusable")

    assert not run_once(one_loop(hidden, limit=timedelta(milliseconds=50)))

    assert LoopFailure.objects.get().signature == "time limit"


@pytest.mark.django_db(transaction=True)
def test_a_loop_that_was_deleted_during_its_run_stores_nothing():
    def vanish(now):
        Loop.objects.all().delete()
        logging.getLogger("x").error("too late")

    group = one_loop(vanish)

    assert run_once(group) and not LoopFailure.objects.exists()


@pytest.mark.django_db
def test_an_abandoned_run_is_counted_before_the_next_one():
    Loop.request("x")
    Loop.objects.update(began_at=Loop.objects.get().created_at, session=1, session_began=Loop.objects.get().created_at)
    seen = []

    run_once(one_loop(lambda now: seen.append(LoopFailure.objects.get().signature)))

    assert seen == ["abandoned"]


def test_every_process_of_every_group_runs():
    work = all_work()

    assert {group.name: len(work[group.name]) for group in GROUPS} == {group.name: group.processes for group in GROUPS}
    assert set(work) == {REQUESTS, *(group.name for group in GROUPS)}


def raise_inside_a_transaction():
    transaction.atomic().__enter__()
    raise TimeLimitExceeded


@pytest.mark.django_db(transaction=True)
def test_a_run_that_leaves_a_transaction_open_ends_the_process():
    def careless(now):
        transaction.atomic().__enter__()

    assert not run_once(one_loop(careless))

    assert not connection.in_atomic_block


@pytest.mark.django_db(transaction=True)
def test_a_lost_connection_is_replaced_before_the_next_run():
    def cut(now):
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    assert run_once(one_loop(cut))

    assert Loop.objects.get().last_error.startswith(OperationalError.__name__)


@pytest.mark.django_db
def test_a_loop_of_clusters_runs_for_clusters_with_work_only():
    idle, busy = make.cluster(), make.cluster(name="kalos")
    seen = []
    group = one_loop(run_of_cluster=lambda cluster, now: seen.append(cluster.name), clusters=lambda: [busy.pk])

    run_once(group, idle.pk)
    run_once(group, busy.pk)

    assert seen == ["kalos"]


def test_a_cluster_without_work_is_looked_at_less_often():
    second = timedelta(seconds=1)
    intervals = [(row.every / second, row.next_interval(has_run=False) / second) for row in ALL_LOOPS.values()]

    assert (1, 5) in intervals and all(every <= idle <= max(every, 10) for every, idle in intervals)
