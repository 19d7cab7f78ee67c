"""The energy loop: samples of a simulated exporter become energy of attempts that adds up to its counters."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.db import IntegrityError, connection, transaction

from jobs.core.lifecycle import State
from jobs.models import (
    Allocation,
    Attempt,
    Cluster,
    EnergyClock,
    EnergyHour,
    EnergyPrice,
    Job,
    Node,
    Resolution,
    Sample,
)  # fmt: skip
from scheduling.backends import telemetry
from scheduling.loops.telemetry import write_samples_once
from scheduling.power.loops.energy import clusters_with_telemetry, count_energy_once, delete_old_energy
from scheduling.power.reads import energy
from scheduling.simulation.machines import dcgm_exporter
from scheduling.simulation.machines.power_meters import PowerMeters, node_power_w
from scheduling.simulation.machines.scripts.play import SimulatedExecutor
from tests import make
from tests.scheduling.simulation.machines.make import NODES, NOW, request
from tests.scheduling.simulation.slurm.make import controller

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


@pytest.fixture
def seren(db):
    return make.cluster(metrics_address="http://127.0.0.1:9400/metrics")


def at(seconds):
    return make.NOON + seconds * SECOND


def write(cluster, seconds, energy_j=(), power_w=(), util=(), node_power_w=None, node="seren-001"):
    row = Node.objects.get(cluster=cluster, name=node)
    counters = [None if one is None else one * 1000 for one in energy_j]
    Sample.objects.create(
        node=row, at=at(seconds), gpu_energy_mj=counters, gpu_power_w=list(power_w), gpu_util=list(util),
        node_power_w=node_power_w,
    )  # fmt: skip


def hold(cluster, start, end, gpus=(0,), node="seren-001", **fields):
    attempt = make.running(make.job(cluster=cluster, gpus_per_node=len(gpus), **fields), on=[node], gpus=gpus)
    Allocation.objects.filter(attempt=attempt).update(held_at=at(start), released_at=at(end))
    Attempt.objects.filter(pk=attempt.pk).update(promised_at=at(start), ended_at=at(end), state=State.COMPLETED)
    Job.objects.filter(pk=attempt.job_id).update(state=State.COMPLETED, ended_at=at(end))
    return attempt


def joules(**where):
    rows = EnergyHour.objects.filter(**where)
    return sum(row.counter_j + row.power_j + row.estimate_j for row in rows)


class SimulatedPages:
    """The exporter of a simulated cluster whose time the test advances. The nodes have the names of `seren`."""

    def __init__(self):
        self.cluster, self.meters, self.executor = controller(), PowerMeters(), SimulatedExecutor()

    def read(self, now):
        """One reading of the meters, as the cluster's clock does it, and the page of the exporter."""
        self.cluster.advance_to(now)
        samples = dcgm_exporter.simulated_samples(self.cluster, self.executor.run_of_job, seed=3, now=now)
        boots = {node.name: node.boot_at for node in self.cluster.nodes.values()}
        metered = self.meters.read(samples, boots, now)
        return telemetry.parse(dcgm_exporter.exporter_page(metered, (), node_power_w(metered)))


def test_simulated_counters_agree_with_the_power_of_their_exporter():
    pages = SimulatedPages()
    pages.cluster.submit(request(NODES[0], environment={"ACME_KIND": "pretrain", "SIM_DURATION_S": "9000"}), NOW)
    integral, before = 0.0, pages.read(NOW)
    for step in range(1, 121):
        after = pages.read(NOW + 5 * step)
        integral += 5 * sum(gpu.power_w for gpu in before.gpus)
        before = after

    counted = sum(gpu.energy_mj for gpu in before.gpus) / 1000

    assert counted == pytest.approx(integral, rel=1e-3)
    assert before.node_power_w[NODES[0]] > sum(gpu.power_w for gpu in before.gpus if gpu.node == NODES[0])


def test_simulated_counter_restarts_when_its_node_boots():
    pages = SimulatedPages()
    pages.read(NOW)
    before = pages.read(NOW + 600).by_place[NODES[0], 0].energy_mj
    pages.cluster.set_down(NODES[0], "reboot", "ada", NOW + 610)
    pages.cluster.resume(NODES[0], NOW + 620)

    after = pages.read(NOW + 630).by_place

    assert before > 0 and after[NODES[0], 0].energy_mj == 0
    assert after[NODES[1], 0].energy_mj > 0


def test_energy_of_attempts_adds_up_to_the_counters_of_a_simulated_exporter(seren):
    """Forty minutes with missing samples, and jobs that start and end between samples."""
    pages, names = SimulatedPages(), {row.name: row for row in Node.objects.filter(cluster=seren)}
    pages.cluster.submit(request(NODES[0], environment={"ACME_KIND": "pretrain", "SIM_DURATION_S": "9000"}), NOW)
    began = pages.read(NOW)
    attempts = [
        hold(seren, 60.5, 1500.25, range(8), on) for on in sorted({gpu.node for gpu in began.gpus} & set(names))
    ]
    for step in range(161):
        page = pages.read(NOW + 15 * step)
        if step % 7 or step in (0, 160):
            write_samples_once(seren, page, at(15 * step))

    steps = count_energy_once(seren, at(15 * 160 + 75))

    moved = sum(gpu.energy_mj - began.by_place[gpu.node, gpu.gpu].energy_mj for gpu in page.gpus if gpu.node in names)
    assert steps >= 4 and attempts
    assert joules() == pytest.approx(moved / 1000, rel=0.01)
    assert joules(attempt__in=attempts) == pytest.approx(moved / 1000 * 1439.75 / 2400, rel=0.2)
    (total,) = energy.grouped(energy.energy_rows([seren], at(-3600), at(9000)), lambda row: "all").values()
    assert total.basis == "measured"
    assert total.kwh == pytest.approx((joules() + sum(row.host_j for row in EnergyHour.objects.all())) / 3.6e6)


def test_free_slices_count_the_part_of_a_gpu_that_they_are(seren):
    Node.objects.filter(name="seren-001").update(gpus=4, mig_slices={"1g.10gb": 3})
    for seconds in (0, 100):
        write(seren, seconds, power_w=[100.0, 14.2, 14.2, 14.2])

    count_energy_once(seren, at(200))

    assert EnergyHour.objects.get().gpu_s == pytest.approx(100 * (1 + 3 * 0.142))


def test_turns_at_other_times_give_the_same_sums(seren):
    attempt = hold(seren, 100, 1900)
    for step in range(241):
        write(seren, 15 * step, [step * 3000.0])
    for now in (90, 91, 400, 1000, 1000, 3700):
        count_energy_once(seren, at(now))
    in_pieces = joules(), joules(attempt=attempt)

    EnergyHour.objects.all().delete()
    EnergyClock.objects.all().delete()
    count_energy_once(seren, at(3700))

    assert in_pieces == pytest.approx((240 * 3000, 1800 * 200))
    assert (joules(), joules(attempt=attempt)) == pytest.approx(in_pieces)


def test_turn_that_fails_before_its_end_is_repeated_completely(seren):
    write(seren, 0, [0.0])
    write(seren, 15, [3000.0])
    with connection.cursor() as cursor:
        cursor.execute(
            "ALTER TABLE jobs_energyclock ADD CONSTRAINT stops CHECK (counted_until < %s) NOT VALID", [at(10)]
        )
    with pytest.raises(IntegrityError), transaction.atomic():
        count_energy_once(seren, at(100))
    assert joules() == 0

    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE; ALTER TABLE jobs_energyclock DROP CONSTRAINT stops")
    count_energy_once(seren, at(100))

    assert joules() == 3000


@pytest.mark.django_db(transaction=True)
def test_two_turns_at_once_count_each_sample_once():
    cluster = make.cluster(metrics_address="http://127.0.0.1:9400/metrics")
    for step in range(121):
        write(cluster, 15 * step, [step * 3000.0])

    def turn():
        count_energy_once(cluster, at(2000))
        connection.close()

    threads = [threading.Thread(target=turn) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert joules() == pytest.approx(120 * 3000)


def test_clusters_with_telemetry_are_counted(seren):
    make.cluster("without", metrics_address="")

    assert clusters_with_telemetry() == {seren.pk}


def test_other_clusters_are_not_counted(seren):
    other = make.cluster("kalos", metrics_address="http://127.0.0.1:9401/metrics")
    for row in (seren, other):
        write(row, 0, [0.0], node=f"{row.name}-001")
        write(row, 15, [3000.0], node=f"{row.name}-001")

    count_energy_once(seren, at(100))

    assert joules(cluster=seren) == 3000
    assert not EnergyHour.objects.filter(cluster=other).exists()


def test_rows_older_than_the_retention_time_are_deleted(seren):
    for days in (399, 401):
        EnergyHour.objects.create(cluster=seren, start=make.NOON - timedelta(days=days))

    assert delete_old_energy(make.NOON) == 1


# --- reading


def hour(cluster, number, attempt=None, **sums):
    EnergyClock.objects.update_or_create(cluster=cluster, defaults={"counted_until": make.NOON + 100 * HOUR})
    return EnergyHour.objects.create(cluster=cluster, start=make.NOON + number * HOUR, attempt=attempt, **sums)


def all_of(cluster, since, until):
    return energy.grouped(energy.energy_rows([cluster], since, until), lambda row: "all").get("all")


def test_hour_that_is_partly_in_the_period_counts_in_proportion(seren):
    hour(seren, 0, counter_j=3.6e6)
    hour(seren, 1, counter_j=3.6e6)

    assert all_of(seren, at(1800), at(7200)).kwh == pytest.approx(1.5)
    assert all_of(seren, at(0), at(4500)).kwh == pytest.approx(1.25)
    assert all_of(seren, at(7200), at(9000)) is None


def test_current_hour_counts_as_far_as_it_is_counted(seren):
    hour(seren, 0, counter_j=3.6e6)
    EnergyClock.objects.update(counted_until=at(600))

    assert all_of(seren, at(0), at(900)).kwh == pytest.approx(1)
    assert all_of(seren, at(300), at(900)).kwh == pytest.approx(0.5)


def test_price_of_the_hour_counts_and_the_constant_elsewhere(seren):
    hour(seren, 0, counter_j=3.6e6)
    hour(seren, 1, counter_j=3.6e6, host_j=3.6e6)
    Cluster.objects.update(kwh_price=0.2, co2_g_per_kwh=400)
    EnergyPrice.objects.create(cluster=seren, start=make.NOON, kwh_price=-0.05)
    EnergyPrice.objects.create(cluster=seren, start=make.NOON + HOUR, co2_g_per_kwh=100)

    use = all_of(seren, at(0), at(7200))

    assert (use.cost, use.co2_kg) == (pytest.approx(-0.05 + 2 * 0.2), pytest.approx(0.4 + 0.2))


def test_cost_is_unknown_if_one_hour_has_no_price(seren):
    hour(seren, 0, counter_j=3.6e6)
    hour(seren, 1, counter_j=3.6e6)
    EnergyPrice.objects.create(cluster=seren, start=make.NOON, kwh_price=0.3)

    assert (all_of(seren, at(0), at(3600)).cost, all_of(seren, at(0), at(7200)).cost) == (pytest.approx(0.3), None)


def test_energy_of_an_attempt_covers_its_whole_life_and_names_its_basis(seren):
    attempt, other = hold(seren, 0, 5000), hold(seren, 0, 5000, (1,))
    hour(seren, 0, attempt, counter_j=1.8e6, estimate_j=1.8e6)
    hour(seren, 1, attempt, counter_j=3.6e6)
    hour(seren, 1, other, estimate_j=3.6e6)

    found = energy.attempt_energy([attempt.pk, other.pk, 0])

    assert {pk: use.kwh for pk, use in found.items()} == pytest.approx({attempt.pk: 2.0, other.pk: 1.0})
    assert found[attempt.pk].basis.startswith("partly estimated")
    assert found[other.pk].basis.startswith("estimated")
    assert found[attempt.pk].estimated_kwh == 0.5


def test_raw_sample_has_counters_and_node_power_and_rollups_do_not(seren):
    page = telemetry.parse(
        'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0",hostname="seren-001"} 123456789012\n'
        'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="1",hostname="seren-001"} 9223372036854775792\n'
        'ipmi_dcmi_power_consumption_watts{instance="seren-001:9290"} 2930\n'
        'redfish_chassis_power_average_consumed_watts{hostname="seren-001",chassis_id="hgx"} 2100\n'
        'ipmi_dcmi_power_consumption_watts{instance="seren-002:9290"} -1\n'
    )

    write_samples_once(seren, page, make.NOON)

    row = Sample.objects.get(resolution=Resolution.RAW)
    assert (row.gpu_energy_mj, row.node_power_w) == ([123456789012.0, None], 2930.0)
    assert page.unreadable_lines == 1
