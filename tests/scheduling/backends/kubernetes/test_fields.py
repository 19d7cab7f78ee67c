"""Values of API objects."""

from datetime import UTC, datetime

import pytest

from scheduling.backends.kubernetes.fields import parse_quantity, text_at, time_at
from scheduling.backends.kubernetes.resources import PodResources, gpu_counts, is_gpu
from tests.scheduling.backends.kubernetes.objects import template


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8),
        (8, 8),
        ("1500m", 1.5),
        ("512Gi", 512 * 2**30),
        ("1Ti", 2**40),
        ("2k", 2000),
        ("1e3", 1000),
        ("1.5", 1.5),
        ("", 0),
        ("8 GPUs", 0),
        ("9" * 5000, 0),
        ("1e999999", 0),
        (True, 0),
        (None, 0),
        ({}, 0),
    ],
    ids=lambda value: str(value)[:12],
)
def test_quantity_is_parsed_or_counts_as_zero(text, value):
    assert parse_quantity(text) == pytest.approx(value)


def test_long_text_is_cut_and_put_in_one_line():
    assert text_at({"message": "a\n b" + "c" * 10_000}, "message", largest=5) == "a bcc"


@pytest.mark.parametrize("text", ["yesterday", "2026-13-45T00:00:00Z", 5, None])
def test_malformed_time_counts_as_missing(text):
    assert time_at({"at": text}, "at") is None


def test_time_may_have_microseconds():
    assert time_at({"at": "2026-03-01T10:00:00.123456Z"}, "at") == datetime(2026, 3, 1, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        ("nvidia.com/gpu", True),
        ("amd.com/gpu", True),
        ("example.org/gpu", True),
        ("nvidia.com/mig-3g.20gb", True),
        ("habana.ai/gaudi", True),
        ("gpu", False),
        ("cpu", False),
        ("rdma/hca", False),
        ("nvidia.com/gpumem", False),
    ],
)
def test_gpus_of_any_vendor_are_recognized(resource, expected):
    assert is_gpu(resource) == expected


def test_absurd_number_of_gpus_is_limited():
    assert gpu_counts({"nvidia.com/gpu": "999999999999999999"}) == {"nvidia.com/gpu": 4096}


def test_pod_requests_the_sum_of_its_containers_or_the_largest_init_container():
    spec = {"containers": [*template(2)["containers"], *template(1)["containers"]]}

    assert PodResources(spec).gpus == 3
    assert PodResources({**spec, "initContainers": template(4)["containers"]}).gpus == 4


def test_template_without_requests_counts_with_its_limits():
    container = {"resources": {"limits": {"amd.com/gpu": 4, "cpu": "3"}}}

    resources = PodResources({"containers": [container]})

    assert (resources.gpus, resources.cpus) == (4, 3)
