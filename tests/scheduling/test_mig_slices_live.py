"""MIG slices through a live cluster: from the request to the allocation, the cluster and back."""

from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction

from jobs.core.lifecycle import State
from jobs.models import Allocation, Attempt, Cluster, Event, Job, Node, Quota, Sample, TeamRole, clock
from scheduling.backends.kubernetes.pod_objects import attempt_name
from scheduling.backends.telemetry import ExporterPage, GpuReading
from scheduling.loops.telemetry import write_samples_once
from scheduling.loops.turn import run_turn
from tests import make
from tests.jobs.api import api_make

pytestmark = pytest.mark.django_db
SLICES = {"1g.10gb": 2, "3g.40gb": 1}


@pytest.fixture
def seren(cluster, slurm):
    """A cluster with one node of two whole GPUs and three slices."""
    machine = slurm.machines["seren-001"]
    slurm.machines = {"seren-001": replace(machine, gpus=5, mig_slices=SLICES)}
    Node.objects.exclude(name="seren-001").delete()
    Cluster.objects.update(gpu_share_kinds=["evaluation"])
    turn(cluster, slurm)
    return Cluster.objects.get()


def turn(cluster, slurm):
    run_turn(cluster.pk, "me", lambda _: slurm)


def slice_job(cluster, profile="1g.10gb", **fields):
    return make.job(cluster=cluster, kind="evaluation", gpus_per_node=0, mig_profile=profile, **fields)


def held(job):
    return list(Allocation.objects.filter(attempt__job=job).values_list("gpu", "share_begin", "share"))


def test_jobs_get_slices_of_their_profile(seren, slurm):
    jobs = [slice_job(seren, profile) for profile in ("1g.10gb", "3g.40gb", "1g.10gb")]
    whole = make.job(cluster=seren, gpus_per_node=2)

    turn(seren, slurm)

    assert [held(job) for job in jobs] == [[(2, 0, 1000)], [(4, 0, 1000)], [(3, 0, 1000)]]
    assert held(whole) == [(0, 0, 1000), (1, 0, 1000)]
    sent = sorted((request.mig_profile, request.gpus_per_node, request.gpu_shards) for request in slurm.sent)
    assert sent == [("", 2, 0), ("1g.10gb", 0, 0), ("1g.10gb", 0, 0), ("3g.40gb", 0, 0)]
    assert [job.gpus for job in Job.objects.order_by("pk")] == [0.142, 0.428, 0.142, 2]


def test_job_waits_until_a_slice_of_its_profile_is_free(seren, slurm):
    first, second, late = (slice_job(seren) for _ in range(3))
    turn(seren, slurm)
    late.refresh_from_db()
    assert late.why == "It needs a MIG slice 1g.10gb; no node has one free (0 of 2 slices 1g.10gb free in total)."
    slurm.end(second.attempts.get().key, State.COMPLETED, clock.now(), exit_code=0)

    turn(seren, slurm)

    assert (held(first), held(late)) == ([(2, 0, 1000)], [(3, 0, 1000)])


def test_slices_that_others_hold_are_not_allocated(seren, slurm):
    """The cluster says how many slices a job outside Acme holds, and not which ones."""
    mine = slice_job(seren)
    turn(seren, slurm)
    slurm.foreign(
        nodes=("seren-001",), gpu_counts={"seren-001": 2}, mig_counts={"seren-001": {"1g.10gb": 1}}
    )  # and one whole GPU
    turn(seren, slurm)
    assert Node.objects.get().foreign_gpus == [1, 3]

    other, late = slice_job(seren, "3g.40gb"), slice_job(seren)
    whole = make.job(cluster=seren, gpus_per_node=2)
    turn(seren, slurm)

    assert held(mine) == [(2, 0, 1000)]
    assert (held(late), held(other), held(whole)) == ([], [(4, 0, 1000)], [])


def test_slice_that_others_seem_to_hold_is_free_while_its_number_is_right(seren, slurm):
    """Our job holds the slice that was assumed to be theirs, so theirs must be the other one."""
    first, second = slice_job(seren), slice_job(seren)
    turn(seren, slurm)
    slurm.end(first.attempts.get().key, State.COMPLETED, clock.now(), exit_code=0)
    slurm.foreign(nodes=("seren-001",), gpu_counts={"seren-001": 1}, mig_counts={"seren-001": {"1g.10gb": 1}})

    turn(seren, slurm)
    late = slice_job(seren)
    turn(seren, slurm)

    assert held(second) == [(3, 0, 1000)]
    assert held(late) == []


def test_database_refuses_a_second_holder_of_a_slice(seren, slurm):
    one, two = slice_job(seren), slice_job(seren, "3g.40gb")
    turn(seren, slurm)

    for begin, share in ((0, 1000), (142, 142)):
        with pytest.raises(IntegrityError), transaction.atomic():
            Allocation.objects.filter(attempt__job=two).update(gpu=held(one)[0][0], share_begin=begin, share=share)


def test_job_whose_slice_is_gone_keeps_turns_going(seren, slurm):
    """An operator divided the GPUs anew while the job runs."""
    old = slice_job(seren, "3g.40gb")
    turn(seren, slurm)
    slurm.machines = {"seren-001": replace(slurm.machines["seren-001"], gpus=3, mig_slices={"1g.10gb": 1})}
    turn(seren, slurm)
    new = slice_job(seren)

    turn(seren, slurm)

    assert (held(old), held(new)) == ([(4, 0, 1000)], [(2, 0, 1000)])


def test_api_accepts_a_slice_and_reports_it(seren, slurm):
    make.team("pretraining", ada=TeamRole.RESEARCHER)
    api = api_make.Caller(make.user("ada"))
    request = {"command": "evaluate", "kind": "evaluation", "mig_profile": "nvidia.com/mig-1g.10gb"}

    made = api.post("jobs/", request)
    refused = api.post("jobs/", {**request, "kind": "sft"})

    assert made.status_code == 201, made.content
    job = api.get(f"jobs/{made.json()['id']}/").json()
    assert (job["mig_profile"], job["gpus_per_node"], job["gpus"]) == ("1g.10gb", 0, 0.142)
    assert refused.status_code == 400 and "only jobs of kind evaluation may" in refused.content.decode()
    assert api.get("nodes/").json()["results"][0]["mig_slices"] == SLICES


def test_quota_of_a_model_counts_the_part_of_a_gpu_that_a_slice_is(seren, slurm):
    team = make.team("pretraining", ada=TeamRole.RESEARCHER)
    Quota.objects.create(team=team, cluster=seren, gpus=1, gpu_model=Node.objects.get().gpu_model)
    slice_job(seren)
    turn(seren, slurm)

    (row,) = api_make.Caller(make.user("ada")).get("quotas/").json()["results"]

    assert (row["used"], row["remaining"]) == (0.142, 0.858)


def test_pages_name_slices_by_their_profile(seren, slurm, client):
    job = slice_job(seren, name="score")
    turn(seren, slurm)
    client.force_login(make.user("root", is_superuser=True))

    node_page = client.get("/nodes/seren/seren-001/").content.decode()
    job_page = client.get(f"/jobs/{job.public_id}/").content.decode()
    cells = client.get("/map/seren/data/").json()

    assert "MIG 1g.10gb" in node_page and "MIG: 2 × 1g.10gb" in node_page
    assert "MIG slice 1g.10gb" in job_page
    assert cells["slices"] == {"1g.10gb": [2, 3], "3g.40gb": [4]}
    assert cells["who"][2] >= 0 and cells["who"][3] < 0


def readings(*slices):
    """What the exporter measures: (instance, profile, activity, pod)."""
    return ExporterPage(
        gpus=tuple(
            GpuReading(
                node="seren-001", gpu=2, instance=number, mig_profile=profile, engine_active_ratio=active, pod=pod,
                memory_used_mib=1000.0, power_w=300.0,
            )
            for number, (profile, active, pod) in enumerate(slices)
        )
    )  # fmt: skip


def test_job_page_shows_the_telemetry_of_its_slice(seren, slurm, client):
    job = slice_job(seren)
    turn(seren, slurm)
    began = clock.now() - timedelta(minutes=1)
    Allocation.objects.update(held_at=began)
    Attempt.objects.update(promised_at=began)
    client.force_login(make.user("root", is_superuser=True))
    before = client.get(f"/jobs/{job.public_id}/gpus/").content.decode()
    pod = f"acme-jobs/{attempt_name(job.attempts.get().key)}-0-x7k2p"

    write_samples_once(seren, readings(("1g.10gb", 0.2, ""), ("1g.10gb", 0.8, pod)), clock.now())

    sample = Sample.objects.get()
    assert sample.gpu_util == [None, None, 80, 20, None]
    assert sample.gpu_power_w == [None, None, pytest.approx(42.6), pytest.approx(42.6), None]
    assert "the exporter provides no values for this MIG slice" in before
    after = client.get(f"/jobs/{job.public_id}/gpus/").content.decode()
    assert "80%" in after and "MIG slice 2 (1g.10gb): 80% utilized" in after and "no values" not in after


def test_event_of_the_start_names_the_slice(seren, slurm):
    job = slice_job(seren)
    turn(seren, slurm)

    event = Event.objects.get(job=job, to_state=State.RUNNING)
    assert (event.why, event.detail) == ("A MIG slice 1g.10gb was free.", {"gpus": {"seren-001": [2]}})
