"""Shares of GPUs through a live cluster: from the request to the allocation, the cluster and back."""

from dataclasses import replace

import pytest

from jobs.core.lifecycle import NodeState, State
from jobs.models import Allocation, Attempt, Cluster, Job, Node, TeamRole, clock
from scheduling.loops.turn import run_turn
from tests import make
from tests.jobs.api import api_make

pytestmark = pytest.mark.django_db


@pytest.fixture
def seren(cluster, slurm):
    """A cluster whose nodes have 8 shards per GPU, as its first report says."""
    slurm.machines = {name: replace(node, gpu_shards=64) for name, node in slurm.machines.items()}
    Cluster.objects.update(gpu_share_kinds=["evaluation"])
    run_turn(cluster.pk, "me", lambda _: slurm)
    return Cluster.objects.get()


def turn(seren, slurm):
    run_turn(seren.pk, "me", lambda _: slurm)


def started(job, slurm, gpu):
    """Let the cluster run the job on this GPU."""
    slurm.start(key := job.attempts.get().key, clock.now())
    slurm.change(key, gpus=dict.fromkeys(slurm.sent[-1].nodes, (gpu,)))


def held(job):
    return list(Allocation.objects.filter(attempt__job=job).values_list("gpu", "share_begin", "share"))


def test_report_of_the_cluster_says_how_its_gpus_can_be_shared(seren):
    assert set(Node.objects.values_list("shards_per_gpu", flat=True)) == {8}


def test_jobs_share_a_gpu_and_are_submitted_with_their_shards(seren, slurm):
    jobs = [make.job(cluster=seren, kind="evaluation", gpus_per_node=part) for part in (0.5, 0.25, 0.5)]

    turn(seren, slurm)

    assert [(sent.gpu_shards, sent.gpus_per_node) for sent in slurm.sent] == [(4, 0), (2, 0), (4, 0)]
    assert [held(job) for job in jobs] == [[(0, 0, 500)], [(0, 500, 250)], [(1, 0, 500)]]


def test_whole_gpu_job_does_not_start_on_a_shared_gpu(seren, slurm):
    Node.objects.exclude(name="seren-001").update(state=NodeState.DOWN)
    slurm.machines = {"seren-001": slurm.machines["seren-001"]}
    make.job(cluster=seren, kind="evaluation", gpus_per_node=0.125)
    turn(seren, slurm)
    narrow, wide = make.job(cluster=seren, gpus_per_node=7), make.job(cluster=seren, gpus_per_node=8)

    turn(seren, slurm)

    assert held(narrow) == [(gpu, 0, 1000) for gpu in range(1, 8)]
    assert Job.objects.get(pk=wide.pk).state == State.PENDING


def test_gpu_that_the_cluster_chose_replaces_the_planned_one(seren, slurm):
    one = make.job(cluster=seren, kind="evaluation", gpus_per_node=0.5)
    turn(seren, slurm)
    started(one, slurm, gpu=5)

    turn(seren, slurm)

    assert held(one) == [(5, 0, 500)]
    two = make.job(cluster=seren, kind="evaluation", gpus_per_node=0.5)
    turn(seren, slurm)
    assert held(two) == [(5, 500, 500)]


def test_next_share_gets_what_an_ended_one_has_released(seren, slurm):
    one, two = (make.job(cluster=seren, kind="evaluation", gpus_per_node=0.5) for _ in range(2))
    turn(seren, slurm)
    slurm.end(one.attempts.get().key, State.COMPLETED, clock.now(), exit_code=0)
    three = make.job(cluster=seren, kind="evaluation", gpus_per_node=0.5)

    turn(seren, slurm)

    assert (held(two), held(three)) == ([(0, 0, 500)], [(0, 500, 500)])


def test_waiting_share_says_what_it_lacks(seren, slurm):
    slurm.machines = {"seren-001": slurm.machines["seren-001"]}
    Node.objects.exclude(name="seren-001").delete()
    make.job(cluster=seren, gpus_per_node=8)
    late = make.job(cluster=seren, kind="evaluation", gpus_per_node=0.5)

    turn(seren, slurm)

    late.refresh_from_db()
    assert late.why == "It needs 0.5 GPUs; no node has 0.5 free on one GPU (0 GPUs free in total)."


def test_share_of_a_job_outside_acme_closes_its_gpu_for_others(seren, slurm):
    slurm.foreign(nodes=("seren-001",), gpus={"seren-001": (0,)})
    turn(seren, slurm)

    job = make.job(cluster=seren, kind="evaluation", gpus_per_node=0.5)
    turn(seren, slurm)

    assert held(job) == [(1, 0, 500)]


def test_api_accepts_shares_and_reports_them(seren):
    make.team("pretraining", ada=TeamRole.RESEARCHER)
    api = api_make.Caller(make.user("ada"))
    request = {"command": "evaluate", "kind": "evaluation"}

    by_shards = api.post("jobs/", {**request, "gpu_shards": 2})
    refused = api.post("jobs/", {**request, "kind": "sft", "gpus_per_node": 0.5})

    assert by_shards.status_code == 201, by_shards.content
    job = api.get(f"jobs/{by_shards.json()['id']}/").json()
    assert (job["gpus_per_node"], job["gpus"]) == (0.25, 0.25)
    assert refused.status_code == 400 and "only jobs of kind evaluation may" in refused.content.decode()
    assert not Attempt.objects.exists()


def test_api_and_settings_page_set_the_kinds_that_may_share(cluster, client):
    admin = api_make.Caller(root := make.user("root", is_superuser=True), "admin")
    tag = admin.get("clusters/seren/").headers["ETag"]

    changed = admin.patch("clusters/seren/", {"gpu_share_kinds": ["debug"]}, If_Match=tag)
    wrong = admin.patch("clusters/seren/", {"gpu_share_kinds": ["games"]}, If_Match=changed.headers["ETag"])

    assert changed.json()["gpu_share_kinds"] == ["debug"]
    assert wrong.status_code == 400 and "games" in wrong.content.decode()
    client.force_login(root)
    page = client.get("/settings/clusters/of/seren/").content.decode()
    assert 'name="gpu_share_kinds" value="debug"' in page


def test_share_that_requests_mps_waits_for_a_node_with_mps(seren, slurm):
    """Shards of the other nodes do not isolate jobs."""
    slurm.machines["seren-001"] = replace(slurm.machines["seren-001"], gpu_shards=800, share_gres="mps")
    turn(seren, slurm)
    api = api_make.Caller(make.user("root", is_superuser=True))
    make.team("pretraining", root=TeamRole.RESEARCHER)

    made = [api.post("jobs/", {"command": "x", "kind": "evaluation", "gpu_mps": 50}) for _ in range(3)]
    turn(seren, slurm)

    assert [one.status_code for one in made] == [201] * 3
    assert [(sent.share_gres, sent.gpu_shards) for sent in slurm.sent] == [("mps", 50), ("mps", 50)]
    assert Job.objects.get(state=State.PENDING).share_gres == "mps"


def test_share_on_a_node_with_mps_is_submitted_as_mps(seren, slurm):
    """A hundred units are a GPU, and Slurm uses one GPU of a node with MPS at a time."""
    machine = replace(slurm.machines["seren-001"], gpu_shards=800, share_gres="mps")
    slurm.machines = {"seren-001": machine}
    Node.objects.exclude(name="seren-001").delete()
    turn(seren, slurm)
    api = api_make.Caller(make.user("root", is_superuser=True))
    make.team("pretraining", root=TeamRole.RESEARCHER)

    made = [api.post("jobs/", {"command": "x", "kind": "evaluation", "gpu_mps": units}) for units in (60, 40, 30)]
    turn(seren, slurm)

    jobs = [Job.objects.get(public_id=one.json()["id"]) for one in made]
    assert [(sent.share_gres, sent.gpu_shards) for sent in slurm.sent] == [("mps", 60), ("mps", 40)]
    assert [held(job) for job in jobs] == [[(0, 0, 600)], [(0, 600, 400)], []]
    assert jobs[2].why == "It needs 0.3 GPUs; no node has 0.3 free on one GPU (7 GPUs free in total)."


@pytest.mark.parametrize(("field", "gres", "units"), [("gpu_mps", "mps", 50), ("gpu_shards", "shard", 4)])
def test_part_of_a_gpu_is_submitted_again_with_the_same_units(seren, slurm, client, field, gres, units):
    slurm.machines["seren-001"] = replace(slurm.machines["seren-001"], gpu_shards=800, share_gres="mps")
    turn(seren, slurm)
    root = make.user("root", is_superuser=True)
    make.team("pretraining", root=TeamRole.RESEARCHER)
    api_make.Caller(root).post("jobs/", {"command": "x", "kind": "evaluation", field: units})
    job = Job.objects.get()
    client.force_login(root)

    form = client.get(f"/jobs/new/?from={job}").context["form"]
    client.post("/jobs/new/", {field.html_name: field.value() or "" for field in form})
    client.post(f"/jobs/{job}/resubmit/", {"time_limit": "1:00:00"})

    assert [(one.share_gres, one.gpu_milli) for one in Job.objects.all()] == [(gres, 500)] * 3
    assert Job.objects.get(pk=job.pk).state == State.CANCELLED

    changed = client.get(f"/jobs/new/?from={job}&gpus_per_node=1").context["form"]
    Node.objects.update(shards_per_gpu=0)
    without = client.get(f"/jobs/new/?from={job}").context["form"]
    assert (changed["gpus_per_node"].value(), changed[field].value()) == ("1", "")
    assert (without["gpus_per_node"].value(), without[field].value()) == ("", 1)
