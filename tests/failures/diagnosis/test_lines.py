"""Prefixes of launchers, loggers and kernels, peeled one by one."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from failures.diagnosis import lines
from tests.failures.diagnosis.samples import SAMPLES

TABLE = [
    ("[rank12]: boom", {"rank": 12, "message": "boom"}),
    ("[default3]:[rank11]: boom", {"rank": 11, "gpu": 3, "message": "boom"}),
    ("7: boom", {"rank": 7, "message": "boom"}),
    ("[1,4]<stderr>:boom", {"rank": 4, "message": "boom"}),
    ("(RayTrainWorker pid=311, ip=10.9.0.5) boom", {"host": "10.9.0.5", "message": "boom"}),
    ("(Worker rank=3 pid=99) boom", {"rank": 3, "message": "boom"}),
    ("heron-2:81:95 [3] transport/net.cc:10 NCCL WARN boom", {"host": "heron-2", "gpu": 3, "level": "WARNING"}),
    ("Mar  1 04:10:00 tern-3 kernel: [88100.120000] boom", {"host": "tern-3", "time": "Mar  1 04:10:00"}),
    ("[88100.120000] boom", {"time": "88100.120000", "message": "boom"}),
    ("2025-03-01 04:00:01,120 ERROR boom", {"time": "2025-03-01 04:00:01,120", "level": "ERROR", "message": "boom"}),
    ("2025-03-01 04:00:01,120 - run9 - INFO - [rank7]: boom", {"rank": 7, "level": "INFO", "message": "boom"}),
    ("2025-03-01 04:00:01.120: W xla/alloc.cc:88] boom", {"level": "WARNING", "message": "boom"}),
    ("04:00:01.120 [rank7]: boom", {"rank": 7, "time": "04:00:01.120", "message": "boom"}),
    ("trainer-run-1  | [rank7]: boom", {"rank": 7, "message": "boom"}),
    ("[2025-03-01T04:00:01.1Z] [INFO] [x.py:3:f] boom", {"level": "INFO", "message": "boom"}),
    ("W0301 04:00:12.0 88 a/b.py:900] boom", {"level": "WARNING", "time": "04:00:12.0", "message": "boom"}),
    ("[rank2]:[E301 04:30:02.2 P.cpp:607] [Rank 2] boom", {"rank": 2, "level": "ERROR", "message": "boom"}),
    ("tern-4: boom", {"host": "tern-4", "message": "boom"}),
    ("2025-03-01T04:00:12.123456789Z stderr F   boom", {"time": "2025-03-01T04:00:12.123456789Z", "message": "  boom"}),
    ("Mar  1 04:10:00 tern-3 python3[811]:   boom", {"host": "tern-3", "message": "  boom"}),
    ("[1,mpirank:9,algo-2]<stderr>:  boom", {"rank": 9, "message": " boom"}),
    ("[pod/run9-worker-3/trainer]   boom", {"message": "  boom"}),
    ("[local_rank 3] boom", {"gpu": 3, "message": "boom"}),
    ('{"log":"[rank4]: boom', {"rank": 4, "message": "boom"}),
    ("1740801612345 boom", {"message": "boom"}),
    ("7:   boom", {"rank": 7, "message": "  boom"}),
    ("tern-4:   boom", {"host": "tern-4", "message": "  boom"}),
    ("@120 x40 | [rank2]: boom", {"rank": 2, "message": "boom"}),
    ("boom on rank 5 of 8", {"rank": 5}),
    ("    indented", {"message": "    indented"}),
    ("", {"message": "", "text": ""}),
]


@pytest.mark.parametrize(("text", "wanted"), TABLE, ids=[row[0][:30] for row in TABLE])
def test_line_is_parsed_into_rank_time_and_message(text: str, wanted: dict[str, object]) -> None:
    line = lines.parse(1, text)

    assert {name: getattr(line, name) for name in wanted} == wanted


def test_outermost_rank_wins() -> None:
    assert lines.parse(1, "[rank1]: rank 7 did not answer").rank == 1


def test_number_of_removed_prefixes_is_limited() -> None:
    assert lines.parse(1, "[1,0]:" * 50 + "boom").message.endswith("boom")


@given(st.text(max_size=300))
def test_any_text_can_be_parsed(text: str) -> None:
    line = lines.parse(3, text)

    assert line.number == 3
    assert len(line.text) <= lines.MAX_LINE_CHARS


def every_prefix(bare: str) -> re.Match[str] | None:
    """What `lines` would do if it did not look at the first character."""
    return next((match for _, pattern in lines.PREFIXES if (match := re.match(pattern, bare))), None)


ROWS = [text for text, _ in TABLE] + [row for sample in SAMPLES for row in sample.log.splitlines()]


@given(st.one_of(st.sampled_from(ROWS), st.text(alphabet="@[]()|-:., 019aIkNrRWE/\\t", max_size=40)))
def test_prefix_lookup_by_first_character_finds_the_same_prefix(bare: str) -> None:
    bare = bare.lstrip()
    found, meant = lines._match_prefix(bare), every_prefix(bare)

    assert (found and found.re.pattern, found and found.span()) == (meant and meant.re.pattern, meant and meant.span())
