"""Telemetry: one row per node, rolled up, deleted after the retention time; gaps stay gaps."""

from datetime import timedelta

from jobs.core.telemetry_math import aggregate_per_gpu, interval_start
from jobs.models import Node, Resolution, Sample
from scheduling.backends.telemetry import ExporterPage, GpuReading
from scheduling.loops.telemetry import roll_up_and_expire_once, write_samples_once
from tests import make


def reading(*gpus, node="seren-001", **fields):
    return ExporterPage(gpus=tuple(GpuReading(node=node, gpu=gpu, **fields) for gpu in gpus))


def test_reading_writes_one_row_per_node(cluster):
    both = ExporterPage(gpus=reading(0, 1, util_percent=50.0).gpus + reading(0, node="seren-002").gpus)

    assert write_samples_once(cluster, both, make.NOON) == 2

    row = Sample.objects.get(node__name="seren-001")
    assert (row.gpu_util, row.gpu_power_w) == ([50.0, 50.0], [None, None])


def test_gpu_without_values_is_a_gap_not_a_zero(cluster):
    write_samples_once(cluster, reading(0, 2, util_percent=1.0), make.NOON)

    assert Sample.objects.get().gpu_util == [1.0, None, 1.0]


def test_the_same_interval_is_written_once(cluster):
    write_samples_once(cluster, reading(0, util_percent=1.0), make.NOON)
    write_samples_once(cluster, reading(0, util_percent=2.0), make.NOON + timedelta(seconds=3))

    assert Sample.objects.get().gpu_util == [1.0]


def test_unknown_nodes_are_skipped(cluster):
    assert write_samples_once(cluster, reading(0, node="stranger"), make.NOON) == 0


def test_gpu_ids_are_recorded_for_repair_tickets(cluster):
    write_samples_once(cluster, reading(0, uuid="GPU-1", pci_bus_id="0000:07:00.0"), make.NOON)

    node = Node.objects.get(name="seren-001")
    assert (node.gpu_uuids, node.gpu_pci) == (["GPU-1"], ["0000:07:00.0"])


def test_pods_that_hold_gpus_are_recorded_until_they_are_gone(cluster):
    write_samples_once(cluster, reading(0, 1, pod="research/llm-0"), make.NOON)
    held = Node.objects.get(name="seren-001").gpu_pods
    write_samples_once(cluster, reading(0, 1), make.NOON + timedelta(seconds=15))

    assert held == {"0": "research/llm-0", "1": "research/llm-0"}
    assert Node.objects.get(name="seren-001").gpu_pods == {}


def test_finished_intervals_are_rolled_up_once(cluster):
    for n, util in enumerate((10.0, 30.0)):
        write_samples_once(
            cluster, reading(0, util_percent=util, temperature_c=40.0 + util), make.NOON + n * timedelta(minutes=1)
        )

    written = (
        roll_up_and_expire_once(make.NOON + timedelta(minutes=6)),
        roll_up_and_expire_once(make.NOON + timedelta(minutes=7)),
    )

    row = Sample.objects.get(resolution=Resolution.FIVE_MINUTES)
    assert written == (1, 0)
    assert (row.at, row.gpu_util, row.gpu_temperature_c) == (make.NOON, [20.0], [70.0])


def test_unfinished_interval_is_not_rolled_up(cluster):
    write_samples_once(cluster, reading(0, util_percent=1.0), make.NOON)

    assert roll_up_and_expire_once(make.NOON + timedelta(minutes=4)) == 0


def test_old_samples_are_deleted(cluster):
    write_samples_once(cluster, reading(0, util_percent=1.0), make.NOON)

    roll_up_and_expire_once(make.NOON + timedelta(days=2, minutes=1))

    assert not Sample.objects.filter(resolution=Resolution.RAW).exists()


def test_aggregation_ignores_gaps():
    assert aggregate_per_gpu("gpu_util", [[1.0, None], [3.0, None, 5.0]]) == [2.0, None, 5.0]
    assert aggregate_per_gpu("gpu_util", []) == []


def test_interval_starts_at_a_round_time():
    assert interval_start(make.NOON + timedelta(minutes=7, seconds=3), 300) == make.NOON + timedelta(minutes=5)


def test_zero_counters_are_omitted_and_missing_counters_are_marked(cluster):
    counts = {"ecc_dbe": 0.0, "nvlink_crc": 3.0}
    first = reading(0, counted=counts).gpus + reading(1, counted={"ecc_dbe": 0.0}).gpus
    write_samples_once(cluster, ExporterPage(gpus=first, nics_down={"seren-001": ("mlx5_0:1",)}), make.NOON)
    write_samples_once(cluster, reading(0, node="seren-002"), make.NOON)

    assert Sample.objects.get(node__name="seren-001").counted == {"nvlink_crc": [3.0, None], "nics_down": ["mlx5_0:1"]}
    assert Sample.objects.get(node__name="seren-002").counted == {"unmeasured": True}
