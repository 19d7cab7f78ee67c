"""Bodies in protobuf: what kubectl sends, and what nobody should send."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.simulation.kubernetes.api.errors import ApiError
from scheduling.simulation.kubernetes.api.protobuf import KINDS, MAGIC, read_object


def varint(number: int) -> bytes:
    parts = []
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def field(number: int, value: int | str | bytes) -> bytes:
    """One field, written as the published wire format says."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def body(kind: str, raw: bytes, version: str = "v1") -> bytes:
    return MAGIC + field(1, field(1, version) + field(2, kind)) + field(2, raw) + field(3, "") + field(4, "")


def named(name: str, *more: bytes) -> bytes:
    """Metadata with the empty fields that clients written in Go add."""
    empty = [field(2, ""), field(3, ""), field(4, ""), field(7, 0), field(8, b"")]
    return field(1, b"".join([field(1, name), *empty, *more]))


def test_config_map_with_its_maps():
    labels = field(11, field(1, "team") + field(2, "nlp"))
    raw = (
        named("settings", labels)
        + field(2, field(1, "a") + field(2, "1"))
        + field(3, field(1, "b") + field(2, b"\xff"))
    )

    assert read_object(body("ConfigMap", raw)) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "settings", "labels": {"team": "nlp"}},
        "data": {"a": "1"},
        "binaryData": {"b": "/w=="},
    }


def test_job_with_its_container():
    limits = field(8, field(1, field(1, "nvidia.com/gpu") + field(2, field(1, "8"))))
    container = field(1, "main") + field(2, "image:1") + field(3, "sleep") + field(3, "5") + limits
    pod = field(2, container) + field(3, "Never") + field(11, 0) + field(12, 0)
    raw = named("sweep") + field(2, field(6, field(2, pod)) + field(7, 3)) + field(3, field(4, 0))

    assert read_object(body("Job", raw, "batch/v1"))["spec"] == {
        "backoffLimit": 3,
        "template": {
            "spec": {
                "restartPolicy": "Never",
                "containers": [
                    {
                        "name": "main",
                        "image": "image:1",
                        "command": ["sleep", "5"],
                        "resources": {"limits": {"nvidia.com/gpu": "8"}},
                    }
                ],
            }
        },
    }


@pytest.mark.parametrize(("value", "shown"), [(field(1, 0) + field(2, 2), 2), (field(1, 1) + field(3, "50%"), "50%")])
def test_count_or_percentage_of_a_budget(value, shown):
    raw = named("web") + field(2, field(1, value))

    assert read_object(body("PodDisruptionBudget", raw, "policy/v1"))["spec"]["minAvailable"] == shown


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        (b"{}", 400, "not an object in protobuf"),
        (body("Gadget", b""), 415, "application/json"),
        (body("Job", field(2, field(11, "policy"))), 415, "field 11 is not read from protobuf"),
        (MAGIC + b"\x0a\xff", 400, "not valid protobuf"),
        (MAGIC + b"\xff" * 12, 400, "not valid protobuf"),
        (body("ConfigMap", field(1, field(1, b"\xff"))), 400, "not valid protobuf"),
        (body("ConfigMap", field(1, 5)), 400, "not valid protobuf"),
    ],
    ids=["json", "unknown kind", "unknown field", "cut off", "endless number", "no text", "no message"],
)
def test_what_cannot_be_read_is_refused(content, code, message):
    with pytest.raises(ApiError, match=message) as caught:
        read_object(content)
    assert caught.value.code == code


@given(st.sampled_from(sorted(KINDS)), st.binary(max_size=60))
def test_arbitrary_bytes_are_read_or_refused(kind, raw):
    try:
        assert isinstance(read_object(body(kind, raw)), dict)
    except ApiError as error:
        assert error.code in (400, 415)
