"""The lease of one who is dead is taken over at once, with what he had in hand; a sleeper keeps it until it ends."""

import os
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from urllib.parse import urlsplit

import pytest
from django.db import connection, connections

from jobs.models import ClusterCommandKind, Deed, clock
from scheduling import tasks
from scheduling.loops.commands.claims import LATE_ARRIVAL_WINDOW, claim
from scheduling.loops.turn import LeaseLost, TurnLease, run_turns
from scheduling.models import Lease
from scheduling.models.lease import AcquiredLease
from tests import make
from tests.patience import PATIENCE_S, until
from tests.scheduling.campaigns.campaign_make import campaign

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


def test_who_was_killed_is_succeeded_at_once(holder):
    assert Lease.take("x", "next", HOUR) is None

    holder.send_signal(signal.SIGKILL)

    assert until(lambda: Lease.take("x", "next", HOUR)) == AcquiredLease(term=2, alone=True)


def test_who_only_sleeps_keeps_it_until_it_runs_out_and_may_wake_up_then(holder):
    holder.send_signal(signal.SIGSTOP)
    assert Lease.take("x", "next", HOUR) is None

    Lease.objects.update(expires_at=clock.now())

    assert Lease.take("x", "next", HOUR) == AcquiredLease(term=2, alone=False)


def test_who_gave_it_back_leaves_nothing_in_hand(db):
    first = Lease.take("x", "a", HOUR)
    Lease.release("x", first.term)

    assert Lease.take("x", "b", HOUR) == AcquiredLease(term=2, alone=True)


def test_the_first_one_is_alone(db):
    assert Lease.take("x", "a", HOUR) == AcquiredLease(term=1, alone=True)


def test_a_session_whose_number_was_given_again_is_not_the_holders(transactional_db):
    taken = Lease.take("x", "before the restart", HOUR)
    Lease.objects.update(session_began=clock.now() - HOUR)

    assert Lease.take("x", "after it", HOUR) == AcquiredLease(term=taken.term + 1, alone=True)


def test_a_holder_who_lost_his_session_and_lives_is_fenced_by_the_term(transactional_db):
    """Its connection broke, and it made a new one."""
    held = TurnLease(name="x", term=Lease.take("x", "a", HOUR).term)
    Lease.objects.update(session_began=clock.now() - HOUR)
    assert Lease.take("x", "b", HOUR)

    for verb in (held.check_held, held.renew):
        with pytest.raises(LeaseLost, match="term 1 is over"):
            verb()


# what it had in hand


@pytest.fixture
def in_hand(cluster):
    """A submission and a drain, claimed by a worker that has the cluster's lease."""
    make.attempt()
    Deed.objects.create(
        cluster=cluster, kind=ClusterCommandKind.DRAIN, node=cluster.nodes.first(), reason="loose cable"
    )
    Lease.take(f"cluster:{cluster.pk}", "gone", HOUR)
    claim(cluster, clock.now())
    return f"cluster:{cluster.pk}"


def due(kind):
    return Deed.objects.get(kind=kind).due_at


def test_what_a_dead_worker_had_in_hand_is_done_by_the_next_turn(cluster, slurm, in_hand):
    Lease.objects.update(session_began=clock.now() - HOUR)

    assert run_turns(cluster.pk, "next", lambda _: slurm) == 1

    assert slurm.drained == {"seren-001": "loose cable"}
    assert not Deed.objects.filter(in_hand=True).exists()


def test_a_submission_he_may_just_have_sent_is_given_the_time_to_arrive(cluster, slurm, in_hand):
    Lease.objects.update(session_began=clock.now() - HOUR)

    run_turns(cluster.pk, "next", lambda _: slurm)

    assert slurm.sent == []
    assert due(ClusterCommandKind.SUBMIT) <= clock.now() + LATE_ARRIVAL_WINDOW


def test_what_arrived_after_all_is_found_by_its_key(cluster, slurm, in_hand):
    attempt = Deed.objects.get(kind=ClusterCommandKind.SUBMIT).attempt
    Lease.objects.update(session_began=clock.now() - HOUR)
    run_turns(cluster.pk, "next", lambda _: slurm)
    slurm.adopt(type(attempt)(**{**vars_of(attempt), "backend_id": "77"}))

    Deed.objects.update(due_at=clock.now())
    run_turns(cluster.pk, "next", lambda _: slurm)

    assert slurm.sent == []
    attempt.refresh_from_db()
    assert attempt.backend_id == "77"


def vars_of(attempt):
    return {"job": attempt.job, "key": attempt.key, "confirmed_at": clock.now()}


def test_what_is_in_the_hands_of_a_sleeper_is_left_to_him(cluster, slurm, in_hand):
    before = due(ClusterCommandKind.DRAIN)
    Lease.objects.update(expires_at=clock.now())

    run_turns(cluster.pk, "next", lambda _: slurm)

    assert slurm.drained == {}
    assert due(ClusterCommandKind.DRAIN) == before


@pytest.mark.django_db(transaction=True)
def test_a_session_that_the_server_ended_is_as_good_as_a_death():
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


# the shims that take one


def test_the_coordinators_task_gives_its_lease_back(cluster):
    campaign(cluster)

    tasks.campaigns()

    assert Lease.objects.get(name="campaigns").term == 1
    assert Lease.take("campaigns", "next", HOUR) == AcquiredLease(term=2, alone=True)


def test_two_coordinators_do_not_work_at_once(cluster):
    asked = campaign(cluster)
    Lease.take("campaigns", "another", HOUR)

    assert tasks.campaigns() == 0

    asked.refresh_from_db()
    assert asked.state == "PENDING"
