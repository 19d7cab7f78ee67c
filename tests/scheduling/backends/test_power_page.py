"""The power of a page of telemetry: of an exporter, and of Prometheus' federation, also where it is damaged."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest

from scheduling.backends.power_page import parse_power, power_address

PAGE = """
# HELP DCGM_FI_DEV_POWER_USAGE Power draw (in W).
DCGM_FI_DEV_GPU_UTIL{gpu="0",hostname="n1"} 98
DCGM_FI_DEV_POWER_USAGE{gpu="0",hostname="n1"} 301.5
DCGM_FI_DEV_POWER_USAGE{gpu="1",hostname="n1"} 64
DCGM_FI_DEV_POWER_USAGE_OTHER{gpu="1",hostname="n1"} 9
DCGM_FI_DEV_POWER_USAGE{gpu="0",Hostname="n2"} NaN
DCGM_FI_DEV_POWER_USAGE{gpu="one",hostname="n2"} 100
DCGM_FI_DEV_POWER_USAGE{gpu="1",hostname="n2" 100
ipmi_dcmi_power_consumption_watts{hostname="n1"} 1490
redfish_chassis_power_average_consumed_watts{instance="n2:9610"} -4
"""


def test_page_has_the_power_of_gpus_and_nodes_and_nothing_else():
    found = parse_power(PAGE)

    assert found.keys() == {"n1"}
    assert (found["n1"].gpu_w, found["n1"].node_w, found["n1"].at_s) == ({0: 301.5, 1: 64.0}, 1490.0, None)


def test_values_of_prometheus_have_the_time_of_their_scrape():
    (row,) = parse_power('DCGM_FI_DEV_POWER_USAGE{gpu="0",hostname="n1"} 300 1700000000500').values()

    assert row.at_s == 1_700_000_000.5


@pytest.mark.parametrize(("lag_s", "used"), [(4, 1490.0), (30, None)])
def test_power_of_a_node_that_is_older_than_that_of_its_gpus_is_not_used(lag_s, used):
    lines = (
        'DCGM_FI_DEV_POWER_USAGE{gpu="0",hostname="n1"} 300 100000',
        f'ipmi_dcmi_power_consumption_watts{{hostname="n1"}} 1490 {100_000 - 1000 * lag_s}',
    )

    assert parse_power("\n".join(lines))["n1"].current_node_w == used


def test_times_that_no_clock_has_are_no_error():
    (row,) = parse_power(f'DCGM_FI_DEV_POWER_USAGE{{gpu="0",hostname="n1"}} 300 {"9" * 400}').values()

    assert row.at_s == float("inf")


FEDERATION = "http://prometheus:9090/federate?match[]=%7Bjob%3D%22dcgm%22%2Ccluster%3D%22seren%22%7D&x=1"


def test_federation_is_asked_for_the_power_of_the_same_series():
    query = parse_qs(urlsplit(power_address(FEDERATION)).query)

    assert query["x"] == ["1"]
    assert query["match[]"] == [
        '{job="dcgm",cluster="seren",__name__=~"DCGM_FI_DEV_POWER_USAGE|ipmi_dcmi_power_consumption_watts|'
        'redfish_chassis_power_average_consumed_watts"}'
    ]


def test_selectors_of_other_metrics_are_left_out():
    address = 'http://p/federate?match[]=DCGM_FI_DEV_POWER_USAGE{cluster="a"}&match[]=DCGM_FI_DEV_GPU_UTIL'

    assert parse_qs(urlsplit(power_address(address)).query) == {"match[]": ['DCGM_FI_DEV_POWER_USAGE{cluster="a"}']}


@pytest.mark.parametrize(
    "address", ["http://host:9400/metrics", "http://p/federate?match[]=up", "https://h/metrics?collect=gpu"]
)
def test_other_addresses_are_read_as_they_are(address):
    assert power_address(address) == address
