"""Telemetry of MIG slices: which reading belongs to which device of a node."""

import pytest

from scheduling.backends.telemetry import device_readings, parse

SLICES = {"1g.10gb": 2, "3g.40gb": 1}


def line(metric, value, gpu, *, instance="", profile="", pod=""):
    labels = {"gpu": gpu, "Hostname": "n1"}
    if profile:
        labels |= {"GPU_I_ID": instance, "GPU_I_PROFILE": profile}
    if pod:
        labels |= {"namespace": "acme-jobs", "pod": pod}
    text = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"{metric}{{{text}}} {value}\n"


def of_slice(gpu, instance, profile, active, pod="", power=300):
    about = {"instance": instance, "profile": profile, "pod": pod}
    return "".join(
        [
            line("DCGM_FI_PROF_GR_ENGINE_ACTIVE", active, gpu, **about),
            line("DCGM_FI_DEV_FB_USED", 1000 * active, gpu, **about),
            line("DCGM_FI_DEV_POWER_USAGE", power, gpu, **about),
        ]
    )


def devices(page, held=None, gpus=5):
    return device_readings(gpus, SLICES, parse(page).gpus, held or {})


def utils(page, held=None):
    return [reading and reading.util_percent for reading in devices(page, held)]


WHOLE = line("DCGM_FI_DEV_GPU_UTIL", 90, 0) + line("DCGM_FI_DEV_GPU_UTIL", 10, 3)


def test_slices_follow_the_whole_gpus_in_order():
    page = of_slice(1, 7, "1g.10gb", 0.5) + of_slice(1, 2, "3g.40gb", 0.25) + of_slice(2, 9, "1g.10gb", 0.75) + WHOLE

    assert utils(page) == [90, 10, 50, 75, 25]


def test_pod_of_an_attempt_decides_which_slice_it_has():
    page = of_slice(1, 7, "1g.10gb", 0.5, pod="acme-a-1-0-x7k2p") + of_slice(2, 9, "1g.10gb", 0.75, pod="acme-b-1")

    assert utils(page, {"acme-a-1": 3, "acme-b-1": 2}) == [None, None, 75, 50, None]


def test_slice_of_another_pod_is_not_the_one_of_an_attempt_without_readings():
    page = of_slice(1, 7, "1g.10gb", 0.5, pod="acme-a-12")

    assert utils(page, {"acme-a-1": 2}) == [None, None, None, 50, None]
    assert utils(page, {"acme-a-1": 2, "acme-b-1": 3}) == [None] * 5


def test_slice_has_its_part_of_the_power_of_its_gpu():
    """DCGM measures the power of whole GPUs and repeats it for each slice."""
    reading = devices(of_slice(1, 2, "3g.40gb", 0.25))[4]

    assert (reading.util_percent, reading.memory_used_mib, reading.power_w) == (25, 250, pytest.approx(128.4))


def test_exporter_that_does_not_measure_slices_gives_no_values():
    page = "".join(line("DCGM_FI_DEV_GPU_UTIL", 90, gpu) for gpu in range(4))

    assert utils(page) == [None] * 5


def test_profile_that_the_node_does_not_list_is_left_out():
    assert utils(of_slice(1, 2, "2g.20gb", 0.5)) == [None] * 5


def test_wrong_number_of_an_instance_is_an_unreadable_line():
    read = parse(line("DCGM_FI_DEV_FB_USED", 1, 0, instance="x", profile="1g.10gb"))

    assert (read.gpus, read.unreadable_lines) == ((), 1)
