"""Shares of GPUs in the database: it refuses an over-allocation, whatever Acme computes."""

import pytest
from django.db import IntegrityError, transaction

from jobs.actions import jobs as job_actions
from jobs.actions.promise import GpuCorrection
from jobs.api.clusters import add_used_gpus
from jobs.core.attempt_end import AttemptEnd
from jobs.core.lifecycle import State
from jobs.models import Allocation, Attempt, Cluster, Node, Quota, clock
from jobs.queries.cluster_summary import cluster_summaries
from scheduling.queries import snapshot
from tests import make
from tests.page_text import page_text

pytestmark = pytest.mark.django_db


@pytest.fixture
def seren():
    cluster = make.cluster(gpu_share_kinds=["evaluation"])
    Node.objects.filter(cluster=cluster).update(shards_per_gpu=10)
    return Cluster.objects.get(pk=cluster.pk)


def share(seren, gpus, gpu=0):
    """The attempt of a new job with a share of this GPU."""
    return make.attempt(make.job(cluster=seren, kind="evaluation", gpus_per_node=gpus), gpus=(gpu,))


def end(attempt):
    job_actions.finish(attempt, AttemptEnd(state=State.COMPLETED, at=clock.now()), author=make.author())


def ranges(*attempts):
    rows = Allocation.objects.filter(attempt__in=attempts).order_by("attempt_id")
    return list(rows.values_list("gpu", "share_begin", "share"))


def test_shares_of_one_gpu_get_different_thousandths(seren):
    attempts = [share(seren, gpus) for gpus in (0.5, 0.2, 0.3)]

    assert ranges(*attempts) == [(0, 0, 500), (0, 500, 200), (0, 700, 300)]


def test_share_that_does_not_fit_is_refused(seren):
    share(seren, 0.7)

    with pytest.raises(IntegrityError, match="one_live_holder"), transaction.atomic():
        share(seren, 0.4)


def test_gpu_with_a_share_is_not_allocated_as_a_whole_and_the_other_way_round(seren):
    share(seren, 0.1)
    with pytest.raises(IntegrityError, match="one_live_holder"), transaction.atomic():
        make.attempt(make.job(cluster=seren, gpus_per_node=1), gpus=(0,))

    make.attempt(make.job(cluster=seren, gpus_per_node=1), gpus=(1,))
    with pytest.raises(IntegrityError, match="one_live_holder"), transaction.atomic():
        share(seren, 0.1, gpu=1)


@pytest.mark.parametrize(("begin", "milli"), [(900, 200), (-100, 200), (0, 0), (0, 1001)])
def test_database_refuses_thousandths_that_a_gpu_does_not_have(seren, begin, milli):
    row = Allocation.objects.get(attempt=share(seren, 0.5))

    with pytest.raises(IntegrityError, match="share_within_gpu"), transaction.atomic():
        Allocation.objects.filter(pk=row.pk).update(share_begin=begin, share=milli)


def test_scattered_thousandths_are_moved_together_for_a_share_that_needs_them(seren):
    first, second, third = [share(seren, gpus) for gpus in (0.3, 0.4, 0.3)]
    end(first)
    end(third)

    late = share(seren, 0.6)

    assert ranges(second, late) == [(0, 0, 400), (0, 400, 600)]


def test_lowest_gap_that_is_large_enough_is_used(seren):
    attempts = [share(seren, gpus) for gpus in (0.1, 0.2, 0.3, 0.2)]
    end(attempts[2])

    assert ranges(share(seren, 0.2)) == [(0, 300, 200)]


def test_cluster_that_chose_other_gpus_for_shares_is_believed(seren):
    one, two, whole = share(seren, 0.5), share(seren, 0.5, gpu=1), make.attempt(
        make.job(cluster=seren, gpus_per_node=1), gpus=(2,)
    )  # fmt: skip
    node = Node.objects.earliest("name").pk
    moved = [(one, 0, 2), (two, 1, 2), (whole, 2, 0)]

    job_actions.correct_gpus(
        [GpuCorrection(attempt_id=a.pk, node_id=node, promised=old, given=new) for a, old, new in moved]
    )

    assert ranges(one, two, whole) == [(2, 0, 500), (2, 500, 500), (0, 0, 1000)]


def test_snapshot_has_what_is_left_of_shared_gpus(seren):
    attempts = [share(seren, 0.5), share(seren, 0.2), share(seren, 0.4, gpu=3)]

    picture = snapshot.take_snapshot(seren, clock.now())

    node = next(node for node in picture.nodes if node.name == "seren-001")
    assert node.shared_gpus == ((0, 300), (3, 600))
    assert node.free_gpus == (1, 2, 4, 5, 6, 7)
    held = {job.id: (job.gpus, job.gpu_milli, job.shared_gpu, dict(job.places)) for job in picture.running}
    assert held[attempts[2].job_id] == (0, 400, 3, {node.id: 0})


def test_job_page_and_api_show_the_part_of_a_gpu(seren):
    job = share(seren, 0.5).job

    assert (job.gpus, job.requested_gpus_per_node) == (0.5, 0.5)
    assert repr(make.job(cluster=seren, gpus_per_node=2).gpus) == "2"


def test_attempt_restored_from_its_cluster_gets_its_share_beside_others(seren):
    other, lost = share(seren, 0.5), share(seren, 0.3)
    Allocation.objects.filter(attempt=lost).delete()
    Attempt.objects.filter(pk=lost.pk).update(nodelist="")

    job_actions.record_adopted_gpus(lost.pk, seren, {"seren-001": [0]})

    assert ranges(other, lost) == [(0, 0, 500), (0, 500, 300)]


def test_share_whose_gpu_has_lost_its_first_share_stands_for_the_gpu(seren):
    first, second, third = [share(seren, gpus) for gpus in (0.3, 0.2, 0.3)]

    end(first)
    assert ranges(second, third) == [(0, 0, 200), (0, 500, 300)]
    with pytest.raises(IntegrityError, match="one_live_holder_per_gpu"), transaction.atomic():
        make.attempt(make.job(cluster=seren, gpus_per_node=1), gpus=(0,))

    Allocation.objects.filter(attempt=second).delete()
    assert ranges(third) == [(0, 0, 300)]
    end(third)
    make.attempt(make.job(cluster=seren, gpus_per_node=1), gpus=(0,))


def test_share_behind_nothing_is_refused(seren):
    row = Allocation.objects.get(attempt=share(seren, 0.3))
    Allocation.objects.filter(pk=row.pk).update(share_begin=500)  # moved back to the first place

    assert ranges(row.attempt) == [(0, 0, 300)]
    with pytest.raises(IntegrityError, match="one_live_holder_per_gpu"), transaction.atomic():
        Allocation.objects.create(attempt=row.attempt, node=row.node, gpu=1, share=300, share_begin=500)


# --- what users see


def test_node_page_names_the_jobs_of_a_shared_gpu_with_their_parts(seren, client):
    one, two = share(seren, 0.5), share(seren, 0.3)
    client.force_login(make.user("ada"))

    page = page_text(client.get("/nodes/seren/seren-001/"))

    assert ", 0.5 of the GPU" in page and ", 0.3 of the GPU" in page
    assert "0.2 left for shares" in page
    assert one.job.public_id in page and two.job.public_id in page


def test_job_page_shows_its_part_and_whole_jobs_look_as_before(seren, client):
    part, whole = share(seren, 0.5).job, make.attempt(make.job(cluster=seren, gpus_per_node=2), gpus=(1, 2)).job
    client.force_login(make.user("ada"))

    shown, usual = (page_text(client.get(f"/jobs/{job.public_id}/")) for job in (part, whole))

    assert '1 × 0.5 <span class="muted">= 0.5 GPUs' in shown and "0.5 of GPU</span>" in shown
    assert '1 × 2 <span class="muted">= 2 GPUs' in usual and "of GPU</span>" not in usual


def test_map_lists_the_jobs_of_a_shared_gpu(seren, client):
    one, two = share(seren, 0.5).job, share(seren, 0.3).job
    client.force_login(make.user("ada"))

    drawn = client.get("/map/seren/data/").json()

    names = [job[0] for job in drawn["jobs"]]
    (first, *on), *others = drawn["shares"]
    assert not others and first == 0
    assert {names[number]: milli for number, milli in on} == {one.public_id: 500, two.public_id: 300}


def test_quota_counts_parts_of_gpus(seren):
    job = share(seren, 0.5).job
    make.running(make.job(cluster=seren, kind="evaluation", gpus_per_node=2), gpus=(1, 2))
    quota = Quota.objects.create(cluster=seren, team=job.team, gpus=4)

    add_used_gpus([quota])

    assert (quota.used, quota.remaining) == (2.5, 1.5)


def test_shared_gpu_counts_as_in_use_once(seren):
    share(seren, 0.5)
    share(seren, 0.3)
    share(seren, 0.3, gpu=1)

    assert Allocation.objects.held_per_node() == {Node.objects.earliest("name").pk: 2}
    assert [one.capacity.allocated for one in cluster_summaries(clock.now())] == [2]
