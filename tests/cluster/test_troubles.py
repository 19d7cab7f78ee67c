"""What breaks in the simulated machine room, whom it hits, and where it can be seen."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf
from pathlib import Path
from random import Random
from signal import SIGUSR1, SIGUSR2

import pytest

from failures.detect import stacks
from failures.diagnosis import gpu_events, lines
from jobs.lifecycle import Kind, NodeState, State
from scheduling.backends import telemetry
from scheduling.simulator import exporter, kernellog
from scheduling.simulator.logs import KernelBook, LogBook, output_path
from scheduling.simulator.logtext import lines as log_lines
from scheduling.simulator.logtext import script_of
from scheduling.simulator.play import PlayHands
from scheduling.simulator.reasons import Family, draw
from scheduling.simulator.store import Store
from scheduling.simulator.troubles import MIX, Breakage, Faults
from scheduling.simulator.values import Refusal
from scheduling.simulator.world import World

from .make import NODES, NOW, picture, request, world

A, B = NODES[:2]


def busy(*nodes: str, seconds: float = 10_000.0, **changed):
    """A world in which one training job has run for a minute."""
    cluster = world()
    job = cluster.submit(request(*(nodes or (A,)), seconds=seconds, **changed), NOW)
    cluster.advance(NOW + 60)
    return cluster, job.id


def said(cluster: World, job_id: int, until: float = inf) -> list[str]:
    job = cluster.jobs[job_id]
    return log_lines(script_of(job, PlayHands().play(job)), 0, until)


def reading(cluster: World, now: float):
    samples = exporter.simulated(cluster, PlayHands().play, seed=0, now=now)
    return telemetry.parse(exporter.page(samples)).by_place


@pytest.mark.parametrize(
    ("kind", "xid"), [(Breakage.ECC, 48), (Breakage.NVLINK, 74), (Breakage.OFF_BUS, 79), (Breakage.FABRIC, None)]
)
def test_broken_hardware_ends_the_job_and_the_kernel_says_why(kind, xid):
    cluster, job = busy(A, B)

    cluster.befall(kind, NOW + 61, node=A, gpu=1)
    cluster.advance(NOW + 70)

    ended = cluster.jobs[job]
    assert (ended.state, ended.exit.code, ended.reason) == (State.FAILED, 1, "NonZeroExitCode")
    kernel = kernellog.log_of(cluster.nodes[A], cluster.troubles, now=NOW + 100)
    seen = [event.code for line in kernel if (event := gpu_events.read(lines.parse(0, line)))]
    assert (xid in seen) if xid else (seen == [] and "Link DOWN" in kernel[0])
    assert kernellog.log_of(cluster.nodes[B], cluster.troubles, now=NOW + 100) == []


def test_the_telemetry_shows_what_the_kernel_says():
    cluster, _ = busy(A)
    for kind, gpu in ((Breakage.ECC, 0), (Breakage.NVLINK, 1), (Breakage.OFF_BUS, 5)):
        cluster.befall(kind, NOW + 61, node=A, gpu=gpu)

    seen, page = (
        reading(cluster, NOW + 62),
        exporter.page(exporter.simulated(cluster, PlayHands().play, seed=0, now=NOW + 62)),
    )

    assert (seen[A, 0].last_xid, seen[A, 1].last_xid, seen[A, 2].last_xid) == (48, 74, 0)
    assert (A, 5) not in seen
    assert 'DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{gpu="0"' in page and page.count("# TYPE") == len(exporter.METRICS)


def test_a_sick_gpu_fails_the_next_job_too_until_the_node_is_repaired():
    cluster, first = busy(A, gpus_per_node=8)
    cluster.befall(Breakage.NVLINK, NOW + 61, node=A, gpu=3)
    cluster.advance(NOW + 80)

    second = cluster.submit(request(A, gpus_per_node=8, seconds=500), NOW + 81)
    cluster.advance(NOW + 100)
    cluster.drain(A, "sick", "ada", NOW + 101)
    cluster.resume(A, NOW + 102)
    third = cluster.submit(request(A, gpus_per_node=8, seconds=500), NOW + 103)
    cluster.advance(NOW + 130)

    assert [cluster.jobs[job].state for job in (first, second.id)] == [State.FAILED] * 2
    assert cluster.jobs[third.id].state == State.RUNNING
    assert cluster.troubles[0].jobs == (first, second.id)


def test_a_hang_prints_nothing_and_ends_only_by_others():
    cluster, job = busy(A, seconds=100)

    cluster.befall(Breakage.HANG, NOW + 61, node=A)
    cluster.advance(NOW + 5_000)

    assert cluster.jobs[job].state == State.RUNNING
    assert len(said(cluster, job, 70)) == len(said(cluster, job, 5_000))
    spinning = reading(cluster, NOW + 5_000)[A, 0]
    assert spinning.util_percent > 95 and spinning.sm_active_ratio < 0.1
    cluster.cancel(job, NOW + 5_001)
    cluster.advance(NOW + 5_010)
    assert cluster.jobs[job].state == State.CANCELLED


def test_a_slow_gpu_costs_its_job_time_and_shows_a_low_clock():
    cluster, job = busy(A, seconds=1_000)
    before = reading(cluster, NOW + 60)[A, 0]

    cluster.befall(Breakage.SLOW, NOW + 61, node=A, gpu=0)

    hot = reading(cluster, NOW + 90)[A, 0]
    assert hot.temperature_c > before.temperature_c + 20
    cluster.advance(NOW + 1_100)
    assert cluster.jobs[job].state == State.RUNNING
    rates = [float(line.split("tokens/s/gpu ")[1].split()[0]) for line in said(cluster, job, 500) if "tokens/s" in line]
    assert rates[-1] < 0.6 * rates[0]
    cluster.advance(NOW + 2_000)
    assert cluster.jobs[job].state == State.COMPLETED


def test_a_storage_outage_is_many_jobs_with_one_cause():
    cluster = world()
    ids = [cluster.submit(request(node, gpus_per_node=1, seconds=9_000), NOW).id for node in NODES for _ in range(6)]
    cluster.advance(NOW + 60)

    trouble = cluster.befall(Breakage.STORAGE, NOW + 61)
    cluster.advance(NOW + 70)

    failed = {job for job in ids if cluster.jobs[job].state == State.FAILED}
    assert failed == set(trouble.jobs) and len(failed) > len(ids) / 2
    assert all(kernellog.log_of(node, cluster.troubles, now=NOW + 70) for node in cluster.nodes.values())


def test_a_loss_spike_is_seen_in_the_log_and_ends_nothing():
    cluster, job = busy(A, seconds=1_000)

    cluster.befall(Breakage.LOSS, NOW + 300, node=A)

    losses = [float(line.split("loss ")[1].split()[0]) for line in said(cluster, job, 500) if "| loss" in line]
    assert losses[-1] > 2 * min(losses)
    assert cluster.jobs[job].state == State.RUNNING


def test_a_node_dies_is_repaired_and_says_that_it_booted():
    cluster, job = busy(A)

    trouble = cluster.befall(Breakage.DEATH, NOW + 61, node=A)

    assert cluster.jobs[job].state == State.NODE_FAIL
    assert cluster.node_state(A)[0] == NodeState.DOWN
    cluster.advance(trouble.until + 1)
    assert cluster.node_state(A)[0] == NodeState.IDLE
    assert "Linux version" in kernellog.log_of(cluster.nodes[A], cluster.troubles, now=trouble.until + 1)[-1]


@pytest.mark.parametrize(
    ("where", "sentence"),
    [({"node": "nowhere"}, "there is no 'nowhere'"), ({"node": A, "gpu": 8}, "has no GPU 8"), ({"node": B}, "is down")],
)
def test_what_cannot_break_is_named(where, sentence):
    cluster = world()
    cluster.set_down(B, "test", "ada", NOW)

    with pytest.raises(Refusal, match=sentence):
        cluster.befall(Breakage.ECC, NOW, **where)


def test_troubles_and_blows_survive_a_restart():
    store, cluster = Store(":memory:"), World(picture(), PlayHands(), NOW)
    store.begin(picture())
    job = cluster.submit(request(A, B, seconds=10_000), NOW)
    cluster.advance(NOW + 60)
    cluster.befall(Breakage.NVLINK, NOW + 61, node=A, gpu=0)
    store.write(cluster.take_changes())

    again = World(store.load(), PlayHands(), NOW + 62)
    for one in (cluster, again):
        one.advance(NOW + 100)

    assert again.picture() == cluster.picture()
    assert again.jobs[job.id].state == State.FAILED
    store.close()


def test_the_mix_is_drawn_as_often_as_it_says():
    drawn = Counter(Faults(seed=1).kind(number) for number in range(4_000))

    for kind, weight in MIX.items():
        assert drawn[kind] / 4_000 == pytest.approx(weight / sum(MIX.values()), abs=0.02)


def test_a_year_of_faults_leaves_the_world_in_order():
    cluster, states = world(faults=Faults(per_node_day=20, seed=3)), set()
    for hour in range(40):
        for node in NODES:
            cluster.submit(request(node, seconds=3_000), NOW + hour * 3_600)
        cluster.advance(NOW + hour * 3_600 + 3_599)
        changes = cluster.take_changes()
        states |= {job.state for job in (*changes.jobs, *changes.forgotten)}

    assert len({trouble.kind for trouble in cluster.troubles}) > 4
    assert states >= {State.COMPLETED, State.FAILED}


def test_large_jobs_die_of_machines_and_small_ones_of_scripts():
    def families(gpus: int) -> Counter:
        dice = Random(7)
        return Counter(draw(dice, Kind.PRETRAIN, gpus).family for _ in range(500))

    assert families(1)[Family.SCRIPT] > 300
    assert families(1024)[Family.INFRASTRUCTURE] > families(1)[Family.INFRASTRUCTURE]


def test_kernel_logs_are_files_that_are_made_again_after_a_crash(tmp_path):
    cluster, _ = busy(A)
    cluster.befall(Breakage.ECC, NOW + 61, node=A, gpu=0)

    first = KernelBook(tmp_path).write(cluster.nodes.values(), cluster.troubles, NOW + 62)
    kept = (tmp_path / "kernel" / f"{A}.log").read_text()
    again = KernelBook(tmp_path).write(cluster.nodes.values(), cluster.troubles, NOW + 5_000)

    assert (first, again) == (1, 1)
    assert "Xid (PCI:0000:0f:00): 48" in kept
    assert (tmp_path / "kernel" / f"{A}.log").read_text() == kept


# --- asked where it stands


def hung(root, **environment):
    """A gang of eight whose log is a file, and which hangs since a minute."""
    book = LogBook(root)
    cluster = World(picture(), PlayHands(stage=book), NOW)
    asked = request(A, B, seconds=10_000.0, stdout=str(root / "job.log"))
    asked = replace(asked, environment={**asked.environment, **environment})
    job = cluster.submit(asked, NOW)
    cluster.advance(NOW + 60)
    cluster.befall(Breakage.HANG, NOW + 61, node=B)
    cluster.advance(NOW + 120)
    book.write(NOW + 120)
    return cluster, book, cluster.jobs[job.id]


def stood(root, job):
    return stacks.places(stacks.read(Path(output_path(job, root)).read_text()))


def test_the_ranks_of_a_job_that_hangs_say_where_they_stand(tmp_path):
    cluster, _, job = hung(tmp_path, ACME_STACKS="USR2")

    cluster.signal(job.id, SIGUSR2, NOW + 130)

    places = stood(tmp_path, job)
    assert sorted(places) == list(range(8)) and stacks.told(places, 8).sentences
    assert sum(place.name == "all_reduce" for place in places.values()) >= 7
    assert cluster.jobs[job.id].state == State.RUNNING


@pytest.mark.parametrize(("environment", "number"), [({}, SIGUSR2), ({"ACME_STACKS": "USR2"}, SIGUSR1)])
def test_a_played_job_shrugs_at_a_signal_that_it_does_not_expect(tmp_path, environment, number):
    cluster, _, job = hung(tmp_path, **environment)

    cluster.signal(job.id, number, NOW + 130)

    assert stood(tmp_path, job) == {}


def test_stacks_in_a_log_do_not_come_between_its_lines_when_the_cluster_comes_back(tmp_path):
    cluster, _, job = hung(tmp_path, ACME_STACKS="USR2")
    cluster.signal(job.id, SIGUSR2, NOW + 130)
    before = Path(output_path(job, tmp_path)).read_text()

    again = LogBook(tmp_path)
    again.reopen(job, PlayHands().play(job))
    again.write(NOW + 500)

    assert Path(output_path(job, tmp_path)).read_text() == before
