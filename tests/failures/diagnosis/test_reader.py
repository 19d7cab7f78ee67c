"""Any bytes at all, in pieces of any size: one reading, bounded memory, never an exception."""

from __future__ import annotations

import io
import random
import tracemalloc
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from failures.diagnosis import cleaning, engine, reader
from failures.diagnosis.labels import LABELS, NONE, UNKNOWN
from failures.diagnosis.values import ExitStatus
from tests.failures.diagnosis.samples import SAMPLES
from tests.properties import examples

ECC = b"[rank3]: RuntimeError: CUDA error: uncorrectable ECC error\n"


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(data[at : at + size])
        at += size
    return [*pieces, data[at:]]


@given(sizes=st.lists(st.integers(0, 400), max_size=12), index=st.integers(0, len(SAMPLES) - 1))
def test_reading_does_not_depend_on_the_chunks(sizes: list[int], index: int) -> None:
    data = SAMPLES[index].log.encode()

    assert reader.read_log(cut(data, sizes)) == reader.read_log([data])


@examples(200)
@given(st.binary(max_size=3000))
def test_any_bytes_get_a_diagnosis(data: bytes) -> None:
    diagnosis = engine.diagnose([data])

    assert diagnosis.root_cause in LABELS
    assert 0 <= diagnosis.confidence <= 1


@given(st.text(max_size=2000), st.integers(-200, 300), st.integers(0, 64))
def test_any_text_and_exit_status_get_a_diagnosis(text: str, code: int, signal: int) -> None:
    diagnosis = engine.diagnose_text(text, ExitStatus(exit_code=code, signal=signal or None))

    assert diagnosis.root_cause in LABELS


@given(st.lists(st.sampled_from([sample.log for sample in SAMPLES]), max_size=4))
def test_same_log_gives_the_same_diagnosis(parts: list[str]) -> None:
    text = "".join(parts)

    assert engine.diagnose_text(text) == engine.diagnose_text(text)


def test_line_numbers_match_those_of_an_editor() -> None:
    data = b"one\r\ntwo\n\n" + ECC

    assert engine.diagnose([data]).evidence[0].line == 4
    assert engine.diagnose([data]).lines == 4


def test_line_numbers_are_correct_over_many_blocks() -> None:
    calm = b"".join(b"[rank%d]: step %d loss 2.0\n" % (at % 40, at) for at in range(120_000))

    found = engine.diagnose([calm, ECC, calm[:0]]).evidence[0]

    assert (found.line, found.rank) == (120_001, 3)


def test_last_line_without_newline_is_read() -> None:
    assert engine.diagnose([b"fine\n" + ECC.rstrip()]).root_cause == "ECCError"


def test_colors_and_nuls_are_removed() -> None:
    data = b"\x1b[31mRuntime\x00Error\x1b[0m: CUDA err\x1b[1mor: uncorrectable EC\x00C error\n"

    assert engine.diagnose([data]).root_cause == "ECCError"


def test_utf16_is_read() -> None:
    assert engine.diagnose([ECC.decode().encode("utf-16")]).root_cause == "ECCError"


def test_progress_bar_is_read_as_separate_lines() -> None:
    bar = b"\r".join(b" %d%%|###   | %d/100 [00:10<01:10]" % (at, at) for at in range(5000))

    found = engine.diagnose([b"start\n" + bar + b"\r" + ECC]).evidence[0]

    assert found.line == 2
    assert found.text.startswith("[rank3]: RuntimeError")


def test_traceback_is_assembled_from_between_lines_of_other_ranks() -> None:
    data = (
        b"[rank1]: Traceback (most recent call last):\n[rank0]: step 4\n"
        b'[rank1]:   File "/opt/x.py", line 4, in load\n[rank2]: step 4\n[rank1]: ValueError: no\n'
    )

    (found,) = reader.read_log([data]).findings[-1:]

    assert found.frames == ("/opt/x.py:load",)


def test_ranks_are_located_by_nccl_lines() -> None:
    data = b"heron-5:20:61 [1] NCCL INFO comm 0x55d0 rank 9 nranks 16 cudaDev 1 nvmlDev 1 busId 3b000 - Init COMPLETE\n"

    assert reader.read_log([data]).places == (reader.RankLocation(rank=9, host="heron-5", pci="3b000"),)


def _zip() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("job.log", ECC * 50)
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"\n\n  \n", "empty"),
        (_zip(), "zip archive"),
        (b"\x1f\x8b\x08" + bytes(90), "gzip"),
        (b"\x7fELF" + bytes(range(256)) * 40, "program"),
        (random.Random(1).randbytes(50_000), "binary"),
    ],
    ids=["empty", "blank", "zip", "gzip", "program", "noise"],
)
def test_file_that_is_not_a_log_gets_a_sentence(data: bytes, words: str) -> None:
    diagnosis = engine.diagnose([data])

    assert diagnosis.root_cause == UNKNOWN
    assert words in diagnosis.notes[0]


def test_empty_log_with_a_good_exit_status_has_no_failure() -> None:
    assert engine.diagnose([b""], ExitStatus(exit_code=0)).root_cause == NONE


def test_log_in_another_script_is_text() -> None:
    assert cleaning.non_text_message("训练开始 第一轮 损失".encode() * 500) == ""


@given(st.lists(st.sampled_from([b"step", b"\n", b"\r\n", b"\n\n", "損失".encode()]), max_size=60))
def test_line_count_matches_that_of_python(parts: list[bytes]) -> None:
    block = b"".join(parts)
    assert cleaning.count_newlines(block) == block.count(b"\n")


def test_broken_utf8_is_text() -> None:
    assert engine.diagnose([b"caf\xe9 \xff\xfe ok\n" * 50 + ECC]).root_cause == "ECCError"


def test_line_of_many_megabytes_uses_bounded_memory() -> None:
    piece = b"x" * (1 << 20)
    tracemalloc.start()

    diagnosis = engine.diagnose([*([piece] * 48), ECC])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert diagnosis.root_cause == "ECCError"
    assert peak < 32 << 20


def test_flood_of_errors_uses_bounded_memory() -> None:
    rows = b"".join(b"[rank%d]: ValueError: bad value %d\n" % (at, at) for at in range(20_000))
    tracemalloc.start()

    diagnosis = engine.diagnose([rows] * 4)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert diagnosis.root_cause == "ValueError"
    assert diagnosis.evidence[0].line == 1
    assert peak < 32 << 20


def test_threads_share_the_compiled_rules() -> None:
    logs = [sample.log * 20 for sample in SAMPLES] * 4

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(engine.diagnose_text, logs))

    assert together == [engine.diagnose_text(log) for log in logs]
