"""Reading a log in chunks: correct offsets, no lost lines between chunks, literal search."""

from __future__ import annotations

import random

import pytest

from jobs.logs import log_chunks, log_search
from jobs.logs.log_search import LineFilter
from jobs.logs.log_source import LogSource
from jobs.models import TeamRole
from tests import make


@pytest.fixture
def log(tmp_path):
    def written(content: bytes):
        (tmp_path / "job.log").write_bytes(content)
        return LogSource(str(tmp_path), "job.log")

    return written


class InMemory:
    def __init__(self, content: bytes):
        self.content = content

    def pread(self, count, at):
        return self.content[at : at + count]


def searched(content: bytes, at=0, **wanted):
    return log_search._search_open_log(InMemory(content), LineFilter(**wanted), at, len(content))


def texts(result):
    return [row.text for row in result.rows]


def test_consecutive_chunks_contain_every_line_once(log):
    content = b"".join(b"line %d %s\n" % (number, b"x" * (number % 4000)) for number in range(900))
    where, at, lines = log(content), 0, []

    while at is not None:
        part = log_chunks.chunk_at(where, at)
        lines += part.lines
        at = part.later

    assert [text for _, text in lines] == content.decode().splitlines()
    assert all(content[at:].startswith(text.encode()) for at, text in lines)


def test_offset_within_a_line_is_moved_to_its_start(log):
    part = log_chunks.chunk_at(log(b"first\nsecond\nthird"), 8)

    assert part.lines == [(6, "second"), (13, "third")]
    assert (part.start, part.earlier, part.later) == (6, 0, None)


@pytest.mark.parametrize("content", [b"", b"\n", b"x" * 300_000, b"\xff\xfe\x00\n\x1b[31mred\x1b[0m"])
def test_unusual_logs_are_read(log, content):
    part = log_chunks.chunk_at(log(content), 10**14)

    assert part.stop <= part.size == len(content)
    assert not any("\x1b" in text for _, text in part.lines)


def test_search_ignores_case_and_reports_each_line_once():
    result = searched(b"Error: error\nfine\nan ERROR\n", text="error")

    assert [(row.number, row.at, row.text) for row in result.rows] == [(1, 0, "Error: error"), (3, 18, "an ERROR")]
    assert not result.more


@pytest.mark.parametrize("text", ["(a+)+$", ".*", "[rank", "\\"])
def test_search_text_is_not_a_pattern(text):
    assert texts(searched(b"plain\n" + text.encode() + b"\n", text=text)) == [text]


def test_rank_search_matches_only_that_rank():
    content = b"[rank3]: a\n[rank13]: b\nrank=3 c\n3: d\n33: e\nstep 3: f\n"

    assert [text[-1] for text in texts(searched(content, rank=3))] == ["a", "c", "d"]


@pytest.mark.parametrize("seed", range(40))
def test_search_finds_every_line_wherever_chunks_begin(seed):
    dice = random.Random(seed)
    lines = dice.choices([b"needle", b"hay", b"x" * dice.randrange(4_000, 300_000), b""], k=seed)
    content = b"\n".join(lines)

    result = searched(content, text="needle")

    assert [row.number for row in result.rows] == [n for n, line in enumerate(lines, 1) if line == b"needle"]
    assert all(content[row.at :].startswith(b"needle") for row in result.rows)


def test_long_search_continues_where_it_stopped():
    content = b"needle\n" * 450
    offsets, at = [], 0

    while at < len(content):
        result = searched(content, at, text="needle")
        offsets += [row.at for row in result.rows]
        at = result.until

    assert offsets == [7 * number for number in range(450)]


def test_level_search_finds_errors_and_optionally_warnings():
    content = b"step 1\nUserWarning: slow\nValueError: x\nTraceback (most recent call last):\nFATAL\n"

    assert texts(searched(content, level="error")) == ["ValueError: x", "Traceback (most recent call last):", "FATAL"]
    assert texts(searched(content, level="warning"))[0] == "UserWarning: slow"


def test_conditions_are_combined():
    content = b"[rank3]: ok\n[rank1]: NCCL error\n[rank3]: NCCL error\n[rank3]: CUDA error\n"

    assert texts(searched(content, text="nccl", rank=3, level="error")) == ["[rank3]: NCCL error"]


def test_context_lines_are_shown_once_and_grouped(log):
    content = b"".join(b"needle %d\n" % n if n in (5, 7, 20) else b"line %d\n" % n for n in range(1, 21))

    result = log_search.search(log(content), LineFilter(text="needle"), 0, context=2)

    assert [[row.number for row in group] for group in result.groups] == [[*range(3, 10)], [18, 19, 20]]
    assert [row.text for row in result.rows] == [content.decode().splitlines()[row.number - 1] for row in result.rows]
    assert result.count == 3


def test_a_long_line_beside_a_hit_is_left_out_of_the_context(log):
    result = log_search.search(log(b"x" * 9000 + b"\nneedle\n" + b"y" * 9000), LineFilter(text="needle"), 0, context=2)

    assert [(row.number, row.text) for row in result.rows] == [(2, "needle")]


@pytest.mark.parametrize(("line", "first", "last"), [(1, 1, 500), (50_000, 49_960, 50_499), (100_000, 99_960, 100_000)])
def test_lines_around_a_line_have_their_numbers(log, line, first, last):
    rows = log_chunks.chunk_around_line(log(b"".join(b"line %d\n" % n for n in range(1, 100_001))), line).rows

    assert [(number, text) for number, _, text in (rows[0], rows[-1])] == [
        (first, f"line {first}"),
        (last, f"line {last}"),
    ]


@pytest.mark.parametrize("content", [b"one\ntwo", b"one\ntwo\n"])
def test_a_line_beyond_the_end_shows_the_last_line(log, content):
    number, _, text = log_chunks.chunk_around_line(log(content), 10**15).rows[-1]

    assert (number, text) == (2, "two")


def test_a_requested_line_is_shown_below_many_long_lines(log):
    content = b"".join(b"%d %s\n" % (n, b"x" * 5000) for n in range(1, 100))

    rows = log_chunks.chunk_around_line(log(content), 60).rows

    assert (60, "60") in [(number, text.split()[0]) for number, _, text in rows]


@pytest.mark.parametrize("at", [0, 6, 7, 12, 17])
def test_line_numbers_at_offsets(log, at):
    content = b"first\nsecond\nthird"
    source = log(content)

    chunk = log_chunks.number_lines(source, log_chunks.chunk_at(source, at))

    assert chunk.number == content.count(b"\n", 0, at) + 1


# --- the page


@pytest.fixture
def attempt(db, tmp_path):
    (tmp_path / "a.log").write_text("[rank0]: start\n<b>needle</b>\n[rank1]: end\n")
    make.team("pretraining", ada=TeamRole.RESEARCHER)
    make.team("speech", ben=TeamRole.RESEARCHER)
    make.cluster(log_root=str(tmp_path))
    return make.running(make.job(by="ada", gpus_per_node=1), log_path=str(tmp_path / "a.log"))


def page(attempt, name="ada", **query):
    return make.browser(name).get(f"/jobs/{attempt.job}/log/", query)


def test_search_results_link_to_their_line(attempt):
    text = page(attempt, find="NEEDLE").content.decode()

    assert "&lt;b&gt;<mark>needle</mark\n      >&lt;/b&gt;" in text and "<b>needle" not in text
    assert f'href="/jobs/{attempt.job}/log/?attempt=1&amp;line=2"' in text
    assert 'class="hit"' in page(attempt, line="2").content.decode()
    assert "[rank1]: end" in page(attempt, at="15").content.decode()
    assert "start" not in page(attempt, rank="1").content.decode().split("<pre")[1]


@pytest.mark.parametrize(
    "query", [{"at": "-1"}, {"at": "9" * 30}, {"rank": "x"}, {"at": "²"}, {"level": "loud"}, {"context": "7"}]
)
def test_invalid_offset_is_reported_above_the_end_of_the_log(attempt, query):
    answer = page(attempt, **query)

    assert answer.status_code == 400
    assert f"{next(iter(query))}: " in answer.content.decode() and "end" in answer.content.decode().split("<pre")[1]


def test_search_without_match_reports_nothing_found(attempt):
    assert page(attempt, find="\x00").status_code == 200


def test_other_teams_cannot_search_the_log(attempt):
    assert page(attempt, "ben", find="needle").status_code == 404


# --- pieces for a page that shows a log of any length


def pieces_back(source):
    """Return all chunks of the log, read from the end as by scrolling up."""
    result = [log_chunks.chunk_before(source)]
    while result[0].start:
        result.insert(0, log_chunks.chunk_before(source, result[0].start))
    return result


def test_scrolling_up_shows_every_line_once(log):
    text = b"".join(b"line %d %s\n" % (n, b"x" * (n % 500)) for n in range(900)) + b"\n\nno end"

    result = pieces_back(log(text))

    assert b"".join(b"%s\n" % line.encode() for piece in result for _, line in piece.lines) == text + b"\n"
    assert [piece.stop for piece in result[:-1]] == [piece.start for piece in result[1:]]
    assert all(piece.whole for piece in result)


def test_parts_of_a_long_line_are_shown_once_each(log):
    result = pieces_back(log(b"first\n" + b"x" * 200_000 + b"\nlast\n"))

    assert "".join(line for piece in result for _, line in piece.lines).count("x") == 200_000
    assert [piece.whole for piece in result][-2:] == [False, True] or not result[-1].whole


def test_chunk_has_a_maximum_number_of_lines(log):
    where = log(b"\n" * 100_000)

    there, back = log_chunks.chunk_at(where, 0), log_chunks.chunk_before(where)

    assert len(there.lines) == len(back.lines) == log_chunks.MAX_CHUNK_LINES
    assert log_chunks.chunk_at(where, there.stop).start == there.stop
    assert back.stop == back.size and back.start == back.size - log_chunks.MAX_CHUNK_LINES


def lines(attempt, name="ada", **query):
    return make.browser(name).get(f"/jobs/{attempt.job}/log/lines/", query)


def test_page_loads_chunks_before_and_after_its_position(attempt):
    end = lines(attempt).json()
    middle = lines(attempt, at=end["lines"][1][0]).json()
    above = lines(attempt, before=middle["start"]).json()

    assert end["stop"] == end["size"] and end["whole"] and end["number"] is None
    assert lines(attempt, at=15, numbered="").json()["number"] == 2
    assert above["lines"] + middle["lines"] == end["lines"]
    assert lines(attempt, "ben").status_code == 404
    assert lines(attempt, before="9" * 15).json() == end
    for wrong in ({"at": "x"}, {"before": "9" * 30}):
        refused = lines(attempt, **wrong)
        assert (refused.status_code, "is not a whole number of up to 15 digits" in refused.content.decode()) == (
            400,
            True,
        )
