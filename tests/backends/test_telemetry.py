from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduling.backends import telemetry
from scheduling.backends.base import Unreachable

LABELS = 'gpu="3",UUID="GPU-1",pci_bus_id="00000000:1B:00.0",device="nvidia3",modelName="NVIDIA A100"'
PAGE = f"""# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{{{LABELS},hostname="n1"}} 97
DCGM_FI_DEV_FB_USED{{{LABELS},hostname="n1"}} 70451
DCGM_FI_DEV_GPU_TEMP{{{LABELS},hostname="n1"}} 61 1700000000000
DCGM_FI_DEV_POWER_USAGE{{{LABELS},hostname="n1"}} 385.25
DCGM_FI_DEV_XID_ERRORS{{{LABELS},hostname="n1"}} 79
DCGM_FI_PROF_SM_ACTIVE{{{LABELS},hostname="n1"}} 0.81
go_goroutines 12
"""


def test_a_page_becomes_one_value_per_gpu():
    (gpu,) = telemetry.parse(PAGE).gpus

    assert (gpu.node, gpu.gpu, gpu.uuid, gpu.model) == ("n1", 3, "GPU-1", "NVIDIA A100")
    assert gpu.pci_bus_id == "00000000:1B:00.0"
    assert (gpu.util_percent, gpu.memory_used_mib, gpu.temperature_c) == (97, 70451, 61)
    assert (gpu.power_w, gpu.sm_active_ratio, gpu.last_xid) == (385.25, 0.81, 79)


def test_the_old_spelling_of_the_host_is_understood():
    (gpu,) = telemetry.parse(PAGE.replace("hostname", "Hostname")).gpus

    assert gpu.node == "n1"


@pytest.mark.parametrize(
    "line",
    [
        'DCGM_FI_DEV_GPU_UTIL{gpu="0",hostname="n1"} lots',
        'DCGM_FI_DEV_GPU_UTIL{gpu="0",hostname="n1"',
        'DCGM_FI_DEV_GPU_UTIL{gpu="zero",hostname="n1"} 1',
        'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 1',
        "DCGM_FI_DEV_GPU_UTIL{gpu=0} 1",
        'DCGM_FI_DEV_XID_ERRORS{gpu="0",hostname="n1"} +Inf',
        "%&/()",
    ],
)
def test_a_line_that_makes_no_sense_is_skipped_and_counted(line):
    reading = telemetry.parse(f"{line}\n{PAGE}")

    assert (len(reading.gpus), reading.skipped) == (1, 1)


def test_what_is_not_measured_is_none():
    (gpu,) = telemetry.parse(
        'DCGM_FI_DEV_GPU_UTIL{gpu="0",hostname="n1"} 5\nDCGM_FI_DEV_GPU_TEMP{gpu="0",hostname="n1"} NaN\n'
    ).gpus

    assert (gpu.util_percent, gpu.temperature_c, gpu.sm_active_ratio) == (5, None, None)


def test_escapes_in_labels_are_undone():
    (gpu,) = telemetry.parse(r'DCGM_FI_DEV_GPU_UTIL{gpu="0",hostname="n1",modelName="a \"b\", \\c"} 5').gpus

    assert gpu.model == r'a "b", \c'


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.text())
def test_no_page_makes_it_fall_over(page):
    telemetry.parse(page)


def test_an_exporter_that_does_not_answer_is_unreachable():
    with pytest.raises(Unreachable):
        telemetry.read("http://127.0.0.1:9/metrics", timeout_s=0.5)
