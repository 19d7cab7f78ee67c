"""Builds short public ids that sort by time and are unique: eleven characters, such as `01k3v9q2m7t`.

The upper bits are milliseconds since 2025, the lower bits a number from a database sequence. Two ids are equal only if
the sequence wraps around (16,384 values) within one millisecond; the unique column would reject the second one.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: without i, l, o, u, which are easy to misread
EPOCH = datetime(2025, 1, 1, tzinfo=UTC)
SEQUENCE_BITS = 14
ID_CHARACTERS = 11
# The cluster's own id of a job is opaque text: a number, a UID, or a namespace and a name (63 + 1 + 253 characters)
MAX_BACKEND_ID_LENGTH = 320


def public_id(at: datetime, number: int) -> str:
    """Return the id for this time. `number` comes from a sequence that only increases."""
    milliseconds = (at - EPOCH) // timedelta(milliseconds=1)  # integer division: rounding cannot merge two times
    # Sorting by id is sorting by time, so indexes on the id serve both
    value = (milliseconds << SEQUENCE_BITS) | (number % (1 << SEQUENCE_BITS))
    return "".join(ALPHABET[(value >> shift) & 31] for shift in range(5 * (ID_CHARACTERS - 1), -1, -5))


def task_id(array_id: str, index: int) -> str:
    """Return the id of one array task, in Slurm's notation."""
    return f"{array_id}_{index}"
