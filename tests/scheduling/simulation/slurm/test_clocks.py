"""Clocks of the GPUs of a simulated cluster: power, telemetry, jobs, boots, restarts, and requests."""

from __future__ import annotations

import json

import pytest

from scheduling.backends import telemetry
from scheduling.power.rules.clock_curves import model_speed
from scheduling.simulation.machines import dcgm_exporter
from scheduling.simulation.machines.clocks import lowered_clocks
from scheduling.simulation.machines.database import job_from_json, node_from_json, to_json
from scheduling.simulation.machines.requests import InvalidSimulatorRequest, parse_clocks
from scheduling.simulation.machines.scripts.play import SimulatedExecutor
from scheduling.simulation.slurm.values import SlurmError
from tests.scheduling.simulation.machines.make import NODES, NOW, request

from .make import after, controller

FIRST, SECOND = NODES[:2]


def page(cluster, now):
    samples = dcgm_exporter.simulated_samples(cluster, SimulatedExecutor().run_of_job, seed=3, now=now)
    return dcgm_exporter.exporter_page(samples)


def test_lower_clocks_lower_power_and_sm_clock_of_their_node_only():
    cluster = controller()
    cluster.submit(request(FIRST, SECOND, seconds=10_000, gpus_per_node=8), NOW)
    cluster.advance_to(NOW + 100)
    before = telemetry.parse(page(cluster, NOW + 100)).by_place

    cluster.set_clocks({FIRST: 1110}, NOW + 100)

    text = page(cluster, NOW + 100)
    after_change = telemetry.parse(text).by_place
    assert after_change[FIRST, 0].power_w == pytest.approx(0.8 * before[FIRST, 0].power_w, rel=0.03)
    assert after_change[SECOND, 0].power_w == before[SECOND, 0].power_w
    assert after_change[FIRST, 0].counted.get("slowed", 0) == 0, "chosen clocks are no fault"
    clocks = [line for line in text.splitlines() if line.startswith("DCGM_FI_DEV_SM_CLOCK") and 'gpu="0"' in line]
    assert clocks[0].endswith(" 1110") and clocks[1].endswith(" 1410")


def test_idle_gpus_draw_the_same_at_any_clock():
    cluster = controller()
    before = page(cluster, NOW)

    cluster.set_clocks(dict.fromkeys(NODES, 288), NOW)

    assert [gpu.power_w for gpu in telemetry.parse(page(cluster, NOW)).gpus] == [
        gpu.power_w for gpu in telemetry.parse(before).gpus
    ]


def test_job_runs_at_the_speed_of_its_slowest_node_until_the_release():
    cluster = controller()
    job = cluster.submit(request(FIRST, SECOND, seconds=100), NOW)
    began = after(cluster, 10, job).began_at
    cluster.set_clocks({FIRST: 288}, began + 50)
    cluster.set_clocks({FIRST: None}, began + 70)

    ends = began + 70 + (100 - 50 - 20 * model_speed(288, "a100"))
    assert after(cluster, ends - NOW - 0.1, job).state == "RUNNING"
    assert after(cluster, ends - NOW + 0.1, job).state == "COMPLETED"


def test_job_that_starts_on_a_capped_node_is_slow_from_its_start():
    cluster = controller()
    cluster.set_clocks({FIRST: 288}, NOW)
    job = cluster.submit(request(FIRST, seconds=100), NOW)

    running = after(cluster, 10, job)
    lasts = 100 / model_speed(288, "a100")
    assert [change.at for change in running.speeds] == [running.began_at]
    assert after(cluster, running.began_at - NOW + lasts - 0.1, job).state == "RUNNING"
    assert after(cluster, running.began_at - NOW + lasts + 0.1, job).state == "COMPLETED"


def test_job_without_gpus_is_not_slower():
    cluster = controller()
    job = cluster.submit(request(FIRST, seconds=100, gpus_per_node=0), NOW)
    cluster.advance_to(NOW + 10)

    cluster.set_clocks({FIRST: 288}, NOW + 10)

    assert cluster.jobs[job.id].speeds == ()


def test_boot_restores_the_highest_clock():
    cluster = controller()
    cluster.set_clocks(dict.fromkeys(NODES[:3], 288), NOW)

    cluster.set_down(FIRST, "test", "ada", NOW)
    cluster.resume(FIRST, NOW + 10)
    cluster.power_down(SECOND, NOW + 10)
    cluster.advance_to(NOW + 100)
    cluster.power_up(SECOND, NOW + 100)
    cluster.advance_to(NOW + 1000)

    assert lowered_clocks(cluster.nodes.values()) == {NODES[2]: 288}


@pytest.mark.parametrize(("nodes", "sentence"), [(("stranger",), "Invalid node name"), ((SECOND,), "does not respond")])
def test_clocks_are_set_on_all_nodes_or_on_none(nodes, sentence):
    cluster = controller()
    cluster.set_down(SECOND, "test", "ada", NOW)

    with pytest.raises(SlurmError, match=sentence):
        cluster.set_clocks({FIRST: 288, **dict.fromkeys(nodes, 288)}, NOW)

    assert lowered_clocks(cluster.nodes.values()) == {}


def test_clocks_and_speeds_survive_a_restart():
    cluster = controller()
    job = cluster.submit(request(FIRST, seconds=1000), NOW)
    cluster.advance_to(NOW + 10)
    cluster.set_clocks({FIRST: 1110}, NOW + 10)

    node, changed = cluster.nodes[FIRST], cluster.jobs[job.id]
    assert node_from_json(json.loads(to_json(node))) == node
    assert job_from_json(json.loads(to_json(changed))) == changed
    old = {key: value for key, value in json.loads(to_json(changed)).items() if key != "speeds"}
    assert job_from_json(old).speeds == ()


@pytest.mark.parametrize(
    "body", [None, {}, {"clocks": []}, *({"clocks": {FIRST: mhz}} for mhz in (0, -1, "288", True, 1e9))]
)
def test_request_that_is_no_clock_is_refused(body):
    with pytest.raises(InvalidSimulatorRequest):
        parse_clocks(body)


def test_clocks_of_a_request():
    assert parse_clocks({"clocks": {FIRST: 1110, SECOND: None}}) == {FIRST: 1110, SECOND: None}
