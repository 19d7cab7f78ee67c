"""Short public ids that sort by time and never repeat: eleven characters, such as `01k3v9q2m7t`.

The upper bits are milliseconds since 2025, the lower ones a number from a database sequence. Two ids are equal only if
the sequence wrapped around (16,384) within one millisecond; the unique column would refuse even that.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no i, l, o, u to misread
EPOCH = datetime(2025, 1, 1, tzinfo=UTC)
SEQUENCE_BITS = 14
ID_CHARACTERS = 11


def public_id(at: datetime, number: int) -> str:
    """`number` comes from a sequence that only counts up."""
    milliseconds = (at - EPOCH) // timedelta(milliseconds=1)  # whole numbers: two moments never share one by rounding
    value = (milliseconds << SEQUENCE_BITS) | (number % (1 << SEQUENCE_BITS))
    return "".join(ALPHABET[(value >> shift) & 31] for shift in range(5 * (ID_CHARACTERS - 1), -1, -5))


def task_id(array_id: str, index: int) -> str:
    """One task of an array, written as Slurm writes it."""
    return f"{array_id}_{index}"
