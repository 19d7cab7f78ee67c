"""Durations aggregated in Valkey."""

from __future__ import annotations

import uuid

import pytest
import redis
from django.conf import settings as configured

from acmeweb.common import metrics_store

needs_valkey = pytest.mark.skipif(not configured.VALKEY_URL, reason="no Valkey")


@pytest.fixture
def what():
    name = f"test-{uuid.uuid4().hex}"
    yield name
    with redis.Redis.from_url(configured.VALKEY_URL) as server:
        server.delete(f"acme:tally:{name}")


@needs_valkey
def test_each_bound_counts_all_shorter_durations(what):
    for seconds in (0.001, 0.005, 0.02, 0.3, 99.0):
        metrics_store.record_duration(what, "seren", seconds)
    metrics_store.record_duration(what, "kalos", 1.0)

    found = metrics_store.read_durations(what)

    assert set(found) == {"seren", "kalos"}
    assert found["seren"].count == 5 and round(found["seren"].total_s, 3) == 99.326
    assert found["seren"].within == [2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 4]


@needs_valkey
def test_failing_calls_are_measured_too(what):
    with pytest.raises(ZeroDivisionError), metrics_store.measure_duration(what, "seren"):
        1 / 0  # noqa: B018

    assert metrics_store.read_durations(what)["seren"].count == 1


def test_measuring_without_valkey_does_nothing(settings):
    settings.VALKEY_URL = ""
    metrics_store.record_duration("x", "seren", 1.0)

    assert metrics_store.read_durations("x") == {}


def test_unavailable_valkey_is_not_called_for_a_while(settings):
    settings.VALKEY_URL = "redis://127.0.0.1:1/0"
    valkey = metrics_store.ValkeyConnection()

    first, retry_at = valkey.ask([("PING",)]), valkey.retry_at
    second = valkey.ask([("PING",)])

    assert (first, second) == (None, None)
    assert 0 < retry_at == valkey.retry_at


@needs_valkey
def test_figures_are_kept_until_the_next_ones(what):
    metrics_store.store_figures(what, "seren", {"goodput": 0.5}, 600)
    metrics_store.store_figures(what, "seren", {"goodput": 0.7, "causes": {"a": 1}}, 600)

    found = metrics_store.read_figures(what, ["kalos", "seren"])

    assert found == {"seren": {"goodput": 0.7, "causes": {"a": 1}}}
    with redis.Redis.from_url(configured.VALKEY_URL) as server:
        assert 0 < server.ttl(f"acme:figures:{what}:seren") <= 600
        server.delete(f"acme:figures:{what}:seren")


def test_without_valkey_there_are_no_figures(settings):
    settings.VALKEY_URL = ""
    metrics_store.store_figures("x", "seren", {"goodput": 0.5}, 600)

    assert metrics_store.read_figures("x", ["seren"]) == {}
