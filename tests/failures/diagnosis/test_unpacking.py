"""Logs come packed. They are read as if they were not, and a bomb or a stump gets a sentence."""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
import tracemalloc
from collections.abc import Callable

import pytest

from failures.diagnosis import engine
from failures.diagnosis.unpacking import PIECE_BYTES, DecompressedLog

LOG = b"step 1 loss 2.0\n" * 400 + b"[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"


def _zstd(data: bytes) -> bytes:
    packed: bytes = pytest.importorskip("backports.zstd").compress(data)
    return packed


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress, "zstd": _zstd,
}  # fmt: skip


@pytest.mark.parametrize("name", PACKERS)
def test_compressed_log_gets_the_diagnosis_of_its_text(name: str) -> None:
    assert engine.diagnose([PACKERS[name](LOG)]) == engine.diagnose([LOG])


@pytest.mark.parametrize("name", PACKERS)
def test_unpacking_byte_by_byte_gives_the_same_text(name: str) -> None:
    packed = PACKERS[name](LOG)

    assert b"".join(DecompressedLog(bytes([one]) for one in packed)) == LOG


@pytest.mark.parametrize("name", ["gzip", "bzip2", "xz"])
def test_concatenated_files_are_one_log(name: str) -> None:
    packed = PACKERS[name](LOG) + PACKERS[name](b"the second\n")

    assert b"".join(DecompressedLog([packed])) == LOG + b"the second\n"


@pytest.mark.parametrize("name", PACKERS)
def test_truncated_file_is_read_up_to_its_end(name: str) -> None:
    noise = random.Random(1).randbytes(4000).hex().encode()
    packed = PACKERS[name](LOG + noise)

    answer = engine.diagnose([packed[: len(packed) - 900]])

    assert any("cut short" in note for note in answer.notes)


def test_damaged_file_is_read_up_to_the_damage() -> None:
    packed = bytearray(gzip.compress(random.Random(1).randbytes(2 * PIECE_BYTES).hex().encode()))
    packed[PIECE_BYTES + 5000 : PIECE_BYTES + 5100] = b"\xff" * 100

    text = DecompressedLog([bytes(packed)])
    got = b"".join(text)

    assert got and "damaged" in text.sentence


def test_padding_after_the_end_is_ignored() -> None:
    text = DecompressedLog([gzip.compress(LOG) + b"\0" * 512])

    assert b"".join(text) == LOG
    assert text.sentence == ""


@pytest.mark.parametrize("name", PACKERS)
def test_decompression_bomb_is_stopped_with_bounded_memory(name: str) -> None:
    bomb = PACKERS[name](bytes(128 * PIECE_BYTES))
    text = DecompressedLog([bomb], most=64 * PIECE_BYTES)

    tracemalloc.start()
    total = sum(len(piece) for piece in text)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert total == 64 * PIECE_BYTES
    assert "larger than 16 MiB" in text.sentence
    assert peak < 48 * PIECE_BYTES  # xz and bzip2 look back over 8 MiB; the text would be 64 pieces


def test_plain_text_is_unchanged() -> None:
    chunks = [b"a", b"", b"bc", b"defghijkl"]

    assert b"".join(DecompressedLog(chunks)) == b"abcdefghijkl"
