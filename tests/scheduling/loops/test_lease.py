"""The lease of a dead worker is taken over at once with its commands; a suspended worker keeps it until it expires."""

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from urllib.parse import urlsplit

import pytest
from django.db import connection, connections

from acmeweb.common.http_client import prepare_call
from jobs.models import ClusterCommand, ClusterCommandKind, clock
from scheduling.loops.commands.claims import LATE_ARRIVAL_WINDOW, claim
from scheduling.loops.turn import LeaseLost, TurnLease, run_turn
from scheduling.models import Lease
from scheduling.models.lease import AcquiredLease
from tests import make
from tests.patience import PATIENCE_S, until

HOUR = timedelta(hours=1)  # so that none runs out while a test runs

HOLDER = """
import django, signal, sys
from datetime import timedelta
django.setup()
from scheduling.models import Lease
print(Lease.take("x", "doomed", timedelta(hours=1)).term, flush=True)
signal.pause()
"""


@pytest.fixture
def holder(transactional_db):
    """A process of its own that has the lease "x"."""
    address = urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{connection.settings_dict['NAME']}").geturl()
    here = {**os.environ, "DATABASE_URL": address, "DJANGO_SETTINGS_MODULE": "acmeweb.settings"}
    with subprocess.Popen([sys.executable, "-c", HOLDER], env=here, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().strip() == "1"
        yield process
        process.kill()


def test_lease_of_a_killed_worker_is_taken_over_at_once(holder):
    assert Lease.take("x", "next", HOUR) is None

    holder.send_signal(signal.SIGKILL)

    assert until(lambda: Lease.take("x", "next", HOUR)) == AcquiredLease(term=2, alone=True)


def test_suspended_worker_keeps_its_lease_until_it_expires(holder):
    holder.send_signal(signal.SIGSTOP)
    assert Lease.take("x", "next", HOUR) is None

    Lease.objects.update(expires_at=clock.now())

    assert Lease.take("x", "next", HOUR) == AcquiredLease(term=2, alone=False)


def test_released_lease_is_acquired_as_alone(db):
    first = Lease.take("x", "a", HOUR)
    Lease.release("x", first.term)

    assert Lease.take("x", "b", HOUR) == AcquiredLease(term=2, alone=True)


def test_first_holder_is_alone(db):
    assert Lease.take("x", "a", HOUR) == AcquiredLease(term=1, alone=True)


def test_reused_session_pid_does_not_count_as_the_holder(transactional_db):
    taken = Lease.take("x", "before the restart", HOUR)
    Lease.objects.update(session_began=clock.now() - HOUR)

    assert Lease.take("x", "after it", HOUR) == AcquiredLease(term=taken.term + 1, alone=True)


def test_live_holder_without_its_session_is_fenced_by_the_term(transactional_db):
    """Its connection broke, and it made a new one."""
    held = TurnLease(name="x", term=Lease.take("x", "a", HOUR).term)
    Lease.objects.update(session_began=clock.now() - HOUR)
    assert Lease.take("x", "b", HOUR)

    for verb in (held.check_held, held.renew):
        with pytest.raises(LeaseLost, match="term 1 has ended"):
            verb()


# what it had in hand


@pytest.fixture
def is_being_sent(cluster):
    """A submission and a drain, claimed by a worker that has the cluster's lease."""
    make.attempt()
    ClusterCommand.objects.create(
        cluster=cluster, kind=ClusterCommandKind.DRAIN, node=cluster.nodes.first(), reason="loose cable"
    )
    Lease.take(f"cluster:{cluster.pk}", "gone", HOUR)
    claim(cluster, clock.now())
    return f"cluster:{cluster.pk}"


def due(kind):
    return ClusterCommand.objects.get(kind=kind).due_at


def test_commands_of_a_dead_worker_are_sent_in_the_next_turn(cluster, slurm, is_being_sent):
    Lease.objects.update(session_began=clock.now() - HOUR)

    assert run_turn(cluster.pk, "next", lambda _: slurm) == 1

    assert slurm.drained == {"seren-001": "loose cable"}
    assert not ClusterCommand.objects.filter(is_being_sent=True).exists()


def test_submission_of_a_dead_worker_waits_for_a_late_arrival(cluster, slurm, is_being_sent):
    Lease.objects.update(session_began=clock.now() - HOUR)

    run_turn(cluster.pk, "next", lambda _: slurm)

    assert slurm.sent == []
    assert due(ClusterCommandKind.SUBMIT) <= clock.now() + LATE_ARRIVAL_WINDOW


def test_submission_that_arrived_late_is_found_by_its_key(cluster, slurm, is_being_sent):
    attempt = ClusterCommand.objects.get(kind=ClusterCommandKind.SUBMIT).attempt
    Lease.objects.update(session_began=clock.now() - HOUR)
    run_turn(cluster.pk, "next", lambda _: slurm)
    slurm.adopt(type(attempt)(**{**vars_of(attempt), "backend_id": "77"}))

    ClusterCommand.objects.update(due_at=clock.now())
    run_turn(cluster.pk, "next", lambda _: slurm)

    assert slurm.sent == []
    attempt.refresh_from_db()
    assert attempt.backend_id == "77"


def vars_of(attempt):
    return {"job": attempt.job, "key": attempt.key, "confirmed_at": clock.now()}


def test_commands_of_a_suspended_worker_stay_claimed(cluster, slurm, is_being_sent):
    before = due(ClusterCommandKind.DRAIN)
    Lease.objects.update(expires_at=clock.now())

    run_turn(cluster.pk, "next", lambda _: slurm)

    assert slurm.drained == {}
    assert due(ClusterCommandKind.DRAIN) == before


@pytest.mark.django_db(transaction=True)
def test_session_ended_by_the_server_counts_as_a_dead_holder():
    """As a restart of the server ends them all. The holder is a thread with a connection of its own."""
    taken, over = threading.Event(), threading.Event()
    sessions = []

    def hold():
        Lease.take("x", "thread", HOUR)
        sessions.append(Lease.objects.get().session)
        taken.set()
        over.wait(PATIENCE_S)
        connections.close_all()

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(PATIENCE_S)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, %s)", [sessions[0], int(PATIENCE_S * 1000)])

    assert Lease.take("x", "next", HOUR) == AcquiredLease(term=2, alone=True)

    over.set()
    thread.join()


@pytest.mark.django_db(transaction=True)
def test_holder_keeps_its_session_during_calls_and_returns_its_connection_afterwards():
    def work():
        lease = Lease.take("x", "me", HOUR)
        before = Lease.objects.get().session
        prepare_call()
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            during = cursor.fetchone()[0]
        Lease.release("x", lease.term)
        prepare_call()
        return before, during, connection.connection

    with ThreadPoolExecutor(1) as executor:
        before, during, after = executor.submit(work).result()

    assert before == during
    assert after is None
