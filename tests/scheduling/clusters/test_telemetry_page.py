"""Telemetry that fails is logged when it begins and ends, and once a minute in between."""

import pytest

from scheduling.backends.base import ClusterUnreachable
from scheduling.clusters.telemetry_page import telemetry_page

pytestmark = pytest.mark.django_db


def test_exporter_that_refuses_connections_is_logged_once_a_minute(cluster, caplog):
    fails = True

    def read(address, *, timeout_s):
        if fails:
            raise ClusterUnreachable("connection refused")
        return "page"

    for second in range(121):
        assert telemetry_page(cluster, read, lambda second=second: float(second)) is None
    fails = False
    assert [telemetry_page(cluster, read, lambda: 121.0) for _ in range(2)] == ["page", "page"]

    said = [one.getMessage() for one in caplog.records if "telemetry" in one.getMessage()]
    assert said == ["no telemetry of cluster seren: connection refused"] * 3 + ["cluster seren has telemetry again"]
