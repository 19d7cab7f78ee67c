"""Two transactions at once never over-allocate a GPU that is shared, whichever commits first."""

from threading import Thread

import pytest
from django.db import IntegrityError, connection, transaction

from jobs.actions import jobs as job_actions
from jobs.core.attempt_end import AttemptEnd
from jobs.core.lifecycle import State
from jobs.models import Allocation, Cluster, Node, clock
from tests import make
from tests.patience import until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def seren():
    cluster = make.cluster(gpu_share_kinds=["evaluation"])
    Node.objects.filter(cluster=cluster).update(shards_per_gpu=10)
    return Cluster.objects.get(pk=cluster.pk)


def share(seren, gpus):
    return make.attempt(make.job(cluster=seren, kind="evaluation", gpus_per_node=gpus), gpus=(0,))


def a_session_waits():
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return cursor.fetchone()[0] > 0


def while_ending(attempt, act):
    """Call `act` in another session while a transaction that ends the attempt is open. Return the error, or None."""
    errors = [None]

    def run():
        try:
            act()
        except IntegrityError as error:
            errors[0] = error
        finally:
            connection.close()

    other = Thread(target=run)
    with transaction.atomic():
        ended = AttemptEnd(state=State.COMPLETED, at=clock.now(), exit_code=0)
        job_actions.finish(attempt, ended, author=make.author())
        other.start()
        until(a_session_waits, what="the other session waits for this one")
    other.join()
    return errors[0]


def allocate(attempt, **fields):
    node = Node.objects.earliest("name")
    return lambda: Allocation.objects.create(attempt=attempt, node=node, gpu=0, **fields)


def live():
    return list(Allocation.objects.live().order_by("share_begin").values_list("gpu", "share_begin", "share"))


def test_whole_gpu_is_refused_while_the_first_of_two_shares_ends(seren):
    first, second = share(seren, 0.5), share(seren, 0.3)

    refused = while_ending(first, allocate(second))

    assert "one_live_holder_per_gpu" in str(refused)
    assert live() == [(0, 0, 300)]


def test_whole_gpu_is_allocated_after_its_only_share_has_ended(seren):
    first = share(seren, 0.5)

    refused = while_ending(first, allocate(first))

    assert refused is None
    assert live() == [(0, 0, 1000)]


def test_share_behind_one_that_ends_meanwhile_is_refused(seren):
    first = share(seren, 0.5)

    refused = while_ending(first, allocate(first, share=300, share_begin=500))

    assert "one_live_holder_per_gpu" in str(refused)
    assert live() == []
