from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily

from scheduling.backends import telemetry
from scheduling.backends.base import ClusterUnreachable

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


def test_page_gives_one_reading_per_gpu():
    (gpu,) = telemetry.parse(PAGE).gpus

    assert (gpu.node, gpu.gpu, gpu.uuid, gpu.model) == ("n1", 3, "GPU-1", "NVIDIA A100")
    assert gpu.pci_bus_id == "00000000:1B:00.0"
    assert (gpu.util_percent, gpu.memory_used_mib, gpu.temperature_c) == (97, 70451, 61)
    assert (gpu.power_w, gpu.sm_active_ratio, gpu.last_xid) == (385.25, 0.81, 79)


def test_old_spelling_of_the_hostname_label_is_accepted():
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
def test_malformed_line_is_skipped_and_counted(line):
    reading = telemetry.parse(f"{line}\n{PAGE}")

    assert (len(reading.gpus), reading.unreadable_lines) == (1, 1)


def test_missing_value_is_none():
    (gpu,) = telemetry.parse(
        'DCGM_FI_DEV_GPU_UTIL{gpu="0",hostname="n1"} 5\nDCGM_FI_DEV_GPU_TEMP{gpu="0",hostname="n1"} NaN\n'
    ).gpus

    assert (gpu.util_percent, gpu.temperature_c, gpu.sm_active_ratio) == (5, None, None)


def test_escapes_in_labels_are_decoded():
    (gpu,) = telemetry.parse(r'DCGM_FI_DEV_GPU_UTIL{gpu="0",hostname="n1",modelName="a \"b\", \\c"} 5').gpus

    assert gpu.model == r'a "b", \c'


@given(st.text())
def test_parser_accepts_any_text(page):
    telemetry.parse(page)


@given(
    st.dictionaries(
        st.integers(0, 15),
        st.tuples(st.text(st.characters(codec="utf-8")), st.floats(allow_nan=False, allow_infinity=False)),
        min_size=1,
    )
)
def test_page_written_by_the_prometheus_library_is_read_without_loss(gpus):
    power = GaugeMetricFamily("DCGM_FI_DEV_POWER_USAGE", "Power (in W).", labels=("gpu", "hostname", "modelName"))
    for index, (model, watts) in gpus.items():
        power.add_metric((str(index), "n1", model), watts)

    page = telemetry.parse(generate_latest(SimpleNamespace(collect=lambda: [power])).decode())

    assert page.unreadable_lines == 0
    assert {gpu.gpu: (gpu.model, gpu.power_w) for gpu in page.gpus} == gpus


def test_unreachable_exporter_raises():
    with pytest.raises(ClusterUnreachable):
        telemetry.read_exporter("http://127.0.0.1:9/metrics", timeout_s=0.5)


def counter_values(*lines):
    page = "".join(f'{name}{{gpu="0",hostname="n1"}} {value}\n' for name, value in lines)
    return telemetry.parse(page).by_place["n1", 0].counted


def test_counters_are_read_under_acmes_names():
    values = counter_values(
        ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 2), ("DCGM_FI_DEV_ROW_REMAP_FAILURE", 1), ("DCGM_FI_DEV_RETIRED_PENDING", 3),
        ("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", 7),
    )  # fmt: skip

    assert values == {"ecc_dbe": 2, "remap_failed": 1, "rows_pending": 3, "nvlink_replay": 7}


@pytest.mark.parametrize(
    ("bits", "troubled"), [(0x1, 0), (0x4, 0), (0x2 | 0x40, 0x40), (0x20, 0x20), (0x8 | 0x80, 0x88)]
)
@pytest.mark.parametrize("name", ["CLOCKS_EVENT_REASONS", "CLOCK_THROTTLE_REASONS"])
def test_only_throttle_reasons_that_indicate_a_problem_count(name, bits, troubled):
    assert counter_values((f"DCGM_FI_DEV_{name}", bits)) == {"slowed": troubled}


def test_unsupported_value_is_missing():
    assert counter_values(("DCGM_FI_DEV_GPU_UTIL", 1), ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 0x7FFFFFFFFFFFFFF0)) == {}


def test_inactive_ports_are_down_for_both_ways_of_naming_the_node():
    page = (
        'node_infiniband_state_id{device="mlx5_0",port="1",hostname="n1"} 4\n'
        'node_infiniband_state_id{device="mlx5_1",port="1",hostname="n1"} 1\n'
        'node_infiniband_state_id{device="mlx5_0",port="2",instance="n2:9100"} 2\n'
        'node_infiniband_state_id{device="mlx5_0",port="1"} 1\n'
    )

    page_readings = telemetry.parse(page)

    assert page_readings.nics_down == {"n1": ("mlx5_1:1",), "n2": ("mlx5_0:2",)} and page_readings.unreadable_lines == 1


@pytest.mark.parametrize(
    ("labels", "pod"),
    [
        ('namespace="research",pod="llm-0",container="main"', "research/llm-0"),
        # scraped by Prometheus, which sets `pod` and `namespace` to those of the exporter
        ('namespace="gpu",pod="dcgm-x",exported_namespace="research",exported_pod="llm-0"', "research/llm-0"),
        ('namespace="",pod=""', ""),
        ('pod="llm-0"', ""),
    ],
)
def test_pod_of_a_gpu_is_read_from_its_labels(labels, pod):
    page = telemetry.parse(f'DCGM_FI_DEV_GPU_UTIL{{gpu="0",Hostname="n1",{labels}}} 5\n')

    assert page.gpus[0].pod == pod
