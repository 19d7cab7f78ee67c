"""The schedule of the loops: one claim at a time, requests that never pile up, and processes that end."""

import os
import signal
import subprocess
import sys
from datetime import timedelta
from urllib.parse import urlsplit

import pytest
from django.db import connection

from jobs.actions import wake
from jobs.models import Loop, LoopFailure, LoopTimes, clock
from tests import make
from tests.patience import until

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
HOLDER = """
import django, signal
from datetime import timedelta
django.setup()
from jobs.models import Loop, LoopTimes
hour = timedelta(hours=1)
print(Loop.claim_due({"x": LoopTimes(every=hour, limit=hour)}, "doomed").term, flush=True)
signal.pause()
"""


def claim(*names):
    return Loop.claim_due(dict.fromkeys(names or ("x",), LoopTimes(every=HOUR, limit=HOUR)), "me")


@pytest.fixture
def loop(db):
    Loop.request("x")
    return Loop.objects.get()


@pytest.fixture
def holder(transactional_db):
    """A process of its own that runs the loop "x"."""
    Loop.request("x")
    address = urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{connection.settings_dict['NAME']}").geturl()
    here = {**os.environ, "DATABASE_URL": address, "DJANGO_SETTINGS_MODULE": "acmeweb.settings"}
    with subprocess.Popen([sys.executable, "-c", HOLDER], env=here, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().strip() == "1"
        yield process
        process.kill()


def test_a_running_loop_is_not_claimed_again(loop):
    assert claim().term == 1
    assert claim() is None


def test_a_finished_loop_is_due_one_interval_after_its_start(loop):
    run = claim()

    assert Loop.finish(run, HOUR)

    row = Loop.objects.get()
    assert row.due_at == run.began_at + HOUR and row.finished_at and not row.began_at
    assert claim() is None


def test_a_loop_that_takes_longer_than_its_interval_pauses_between_two_runs(loop):
    run = claim()
    Loop.objects.update(began_at=clock.now() - HOUR, requested_at=None)

    Loop.finish(run, 4 * SECOND)

    assert SECOND / 2 < Loop.objects.get().due_at - clock.now() <= SECOND


def test_requests_during_a_run_become_one_more_run(loop):
    run = claim()
    for _ in range(3):
        Loop.request("x")
    Loop.finish(run, HOUR)

    again = claim()
    Loop.finish(again, HOUR)

    assert again.term == 2 and claim() is None


def test_a_request_makes_a_loop_due_that_has_just_run(loop):
    Loop.finish(claim(), HOUR)

    Loop.request("x")

    assert claim() is not None


def test_the_loop_that_has_been_due_longest_is_claimed_first(db):
    for name, age in (("young", 1), ("old", 3), ("middle", 2)):
        Loop.request(name)
        Loop.objects.filter(name=name).update(due_at=clock.now() - age * HOUR)

    assert [claim("young", "old", "middle").name for _ in range(3)] == ["old", "middle", "young"]


def test_a_loop_of_another_group_is_not_claimed(loop):
    assert claim("y") is None


def test_a_failed_run_keeps_the_time_of_the_last_good_one(loop):
    Loop.finish(claim(), timedelta(0))
    good = Loop.objects.get().finished_at

    Loop.finish(claim(), timedelta(0), "ValueError: x")

    row = Loop.objects.get()
    assert row.finished_at == good and row.failed_at > good and row.last_error == "ValueError: x"


def test_a_loop_whose_process_dies_in_each_run_does_not_always_come_first(db):
    for name, age in (("deadly", 2), ("other", 1)):
        Loop.request(name)
        Loop.objects.filter(name=name).update(due_at=clock.now() - age * HOUR)
    claim("deadly", "other")
    Loop.objects.update(session_began=clock.now() - HOUR)

    assert claim("deadly", "other").name == "other"


def test_a_process_that_lost_its_claim_does_not_store_its_end(loop):
    late = claim()
    Loop.objects.update(limit_at=clock.now(), due_at=clock.now())
    other = claim()

    assert not Loop.finish(late, HOUR)
    assert Loop.finish(other, HOUR)


def test_loop_of_a_killed_process_is_claimed_at_once(holder):
    assert claim() is None

    Loop.request("x")
    holder.send_signal(signal.SIGKILL)

    taken = until(claim)
    assert taken.term == 2 and taken.abandoned_at is not None


def test_suspended_process_keeps_its_loop_until_the_time_limit(holder):
    holder.send_signal(signal.SIGSTOP)
    assert claim() is None

    Loop.objects.update(limit_at=clock.now(), due_at=clock.now())

    assert claim().term == 2


def test_missing_loops_are_added_once_per_cluster(db):
    clusters = [make.cluster(), make.cluster(name="kalos")]

    for _ in range(2):
        Loop.add_missing(of_clusters=["turn"], global_=["recovery"])

    assert sorted(Loop.objects.values_list("key", flat=True)) == ["recovery", *(f"turn:{one.pk}" for one in clusters)]


def test_failures_with_one_signature_are_counted_in_one_row(loop):
    for number in range(3):
        LoopFailure.count_one(loop.pk, "KeyError in x.py:f", f"{number}")

    row = LoopFailure.objects.get()
    assert (row.count, row.message) == (3, "2") and row.first_at < row.last_at
    assert LoopFailure.delete_old(clock.now()) == 0
    assert LoopFailure.delete_old(clock.now() + timedelta(days=31)) == 1


def test_turns_are_requested_after_the_commit(django_capture_on_commit_callbacks, db):
    cluster = make.cluster()

    with django_capture_on_commit_callbacks(execute=True):
        wake.request_turn(cluster.pk)
        assert not Loop.objects.exists()

    assert Loop.objects.get().key == f"turn:{cluster.pk}"
