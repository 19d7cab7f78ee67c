"""Two schedulers on one cluster: both read before either writes, and the database decides which was first."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from django.db import connection

from jobs.core.lifecycle import State
from jobs.models import Allocation, Attempt, ClusterCommand, Event, Job, clock
from scheduling.engine.policies import LIVE_POLICIES
from scheduling.loops.schedule import schedule_once
from scheduling.loops.turn import TURN_LEASE, LeaseLost, TurnLease
from scheduling.models import Lease
from tests import make
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.django_db(transaction=True)


def together(*works: Callable[[], object]) -> list[object]:
    """Run both, each in a thread with its own database session. Return what each returned or raised."""
    results: list[object] = [None] * len(works)

    def run(place: int, work: Callable[[], object]) -> None:
        try:
            results[place] = work()
        except Exception as error:
            results[place] = error
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(place, work)) for place, work in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=PATIENCE_S)
    return results


def waiting_for_the_other(barrier: threading.Barrier):
    """The cluster's policy, but no scheduler writes before all have decided."""

    def policy(picture):
        decided = LIVE_POLICIES["fifo"](picture)
        barrier.wait(timeout=PATIENCE_S)
        return decided

    return policy


def one_live_holder_each() -> bool:
    held = list(Allocation.objects.live().values_list("node", "gpu"))
    return len(held) == len(set(held))


@pytest.mark.parametrize("gpus", [1, 8])
def test_two_schedulers_with_equal_decisions_start_each_job_once(gpus):
    cluster = make.cluster()
    make.jobs(*[{"gpus_per_node": gpus} for _ in range(12)], cluster=cluster)
    policy = waiting_for_the_other(threading.Barrier(2))

    started = together(*[lambda: schedule_once(cluster, policy, clock.now(), lambda: None)] * 2)

    room = min(12, 32 // gpus)
    assert sum(started) == room == Attempt.objects.count() == ClusterCommand.objects.count()
    assert Job.objects.filter(state=State.RUNNING).count() == room
    assert Event.objects.filter(type="job.state_changed").count() == room
    assert one_live_holder_each()


def test_schedulers_with_different_decisions_never_share_a_gpu():
    cluster = make.cluster(nodes=1)
    make.jobs(*[{"gpus_per_node": 4} for _ in range(4)], cluster=cluster)
    barrier = threading.Barrier(2)

    def youngest_first(picture):
        decided = LIVE_POLICIES["fifo"](picture)
        turned = [job.id for job in reversed(picture.waiting)][: len(decided.starts)]
        starts = tuple(
            type(start)(**{**vars(start), "job_id": job}) for start, job in zip(decided.starts, turned, strict=True)
        )
        barrier.wait(timeout=PATIENCE_S)
        return type(decided)(starts=starts, waits=())

    oldest_first = waiting_for_the_other(barrier)
    started = together(
        lambda: schedule_once(cluster, oldest_first, clock.now(), lambda: None),
        lambda: schedule_once(cluster, youngest_first, clock.now(), lambda: None),
    )

    assert sum(started) == Attempt.objects.filter(ended_at=None).count() <= 2
    assert one_live_holder_each()


def test_scheduler_that_lost_its_lease_decides_nothing():
    cluster = make.cluster()
    make.jobs(*[{"gpus_per_node": 1} for _ in range(4)], cluster=cluster)
    name = f"cluster:{cluster.pk}"
    stale = TurnLease(name=name, term=Lease.take(name, "sleeper", -TURN_LEASE).term)
    fresh = TurnLease(name=name, term=Lease.take(name, "other", TURN_LEASE).term)
    policy = waiting_for_the_other(threading.Barrier(2))

    slept, worked = together(
        lambda: schedule_once(cluster, policy, clock.now(), stale.check_held),
        lambda: schedule_once(cluster, policy, clock.now(), fresh.check_held),
    )

    assert isinstance(slept, LeaseLost)
    assert worked == 4 == Attempt.objects.count()


def test_only_one_of_many_schedulers_gets_the_lease():
    make.cluster()
    barrier = threading.Barrier(6)

    def take(holder: str) -> int | None:
        barrier.wait(timeout=PATIENCE_S)
        taken = Lease.take("cluster:1", holder, TURN_LEASE)
        barrier.wait(timeout=PATIENCE_S)  # the end of a session also releases its lease
        return taken and taken.term

    terms = together(*[lambda holder=f"w{n}": take(holder) for n in range(6)])

    assert sorted(terms, key=str) == [1, None, None, None, None, None]
