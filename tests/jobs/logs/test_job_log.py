"""The log reader with files that a hostile program may leave behind."""

import os

import pytest

from jobs.logs import job_log, storage
from jobs.logs.job_log import LogReadError, LogStream, decode_log_text, tail
from jobs.logs.log_source import LogSource


@pytest.fixture
def root(tmp_path):
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs"


def write(path, content=b"one\ntwo\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return str(path)


def test_short_log_is_shown_completely(root):
    result = tail(LogSource(str(root), write(root / "a.log")))

    assert result.text == "one\ntwo\n"
    assert not result.is_cut


def test_path_may_be_relative_to_the_root(root):
    write(root / "job" / "a.log")

    assert tail(LogSource(str(root), "job/a.log")).text == "one\ntwo\n"


def test_tail_of_a_long_log_starts_with_a_whole_line(root):
    result = tail(LogSource(str(root), write(root / "a.log", b"".join(b"line %d\n" % i for i in range(100)))), most=20)

    assert result.text == "line 98\nline 99\n"
    assert result.is_cut
    assert result.size == 790


def test_tail_of_one_long_line_starts_within_the_line(root):
    assert tail(LogSource(str(root), write(root / "a.log", b"x" * 100)), most=10).text == "x" * 10


@pytest.mark.parametrize("path", ["/etc/passwd", "../secret", "a/../../secret", "", "/", "a\x00b"])
def test_path_outside_the_root_is_rejected(root, path):
    write(root.parent / "secret")

    with pytest.raises(LogReadError):
        tail(LogSource(str(root), path))


def test_link_in_place_of_the_log_is_not_followed(root):
    (root / "a.log").symlink_to(write(root.parent / "secret"))

    with pytest.raises(LogReadError, match="symbolic link"):
        tail(LogSource(str(root), "a.log"))


def test_linked_directory_is_not_followed(root):
    write(root.parent / "elsewhere" / "a.log")
    (root / "job").symlink_to(root.parent / "elsewhere")

    with pytest.raises(LogReadError, match="symbolic link"):
        tail(LogSource(str(root), "job/a.log"))


def test_fifo_does_not_block_the_reader(root):
    os.mkfifo(root / "a.log")

    with pytest.raises(LogReadError, match="not a regular file"):
        tail(LogSource(str(root), "a.log"))


def test_missing_log_is_reported(root):
    with pytest.raises(LogReadError, match="No output yet"):
        tail(LogSource(str(root), "a.log"))


def test_cluster_without_log_directory_is_reported():
    with pytest.raises(LogReadError, match="has no log directory"):
        tail(LogSource("", "a.log"))


def test_reader_leaves_no_descriptor_open(root):
    write(root / "job" / "a.log")
    (root / "b.log").symlink_to("nowhere")
    before = storage.call(str(root), os.listdir, "/proc/self/fd")

    tail(LogSource(str(root), "job/a.log"))
    for path in ("b.log", "job", "missing/a.log", "job/a.log/x"):
        with pytest.raises(LogReadError):
            tail(LogSource(str(root), path))

    assert storage.call(str(root), os.listdir, "/proc/self/fd") == before


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"\x1b[31mred\x1b[0m", "red"),
        (b"\x1b]0;title\x07text", "text"),
        (b"\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        (b"\x1bcreset", "reset"),
        (b"10%\r50%\r100%\ndone\r\n", "100%\ndone\n"),
        (b"a\x00b\x07c", "a\ufffdb\ufffdc"),
        (b"tab\tstays", "tab\tstays"),
        (b"bad \xff utf-8 \xc3", "bad \ufffd utf-8 \ufffd"),
        ("mirror \u202e txt".encode(), "mirror \ufffd txt"),
    ],
)
def test_terminal_sequences_are_removed(raw, shown):
    assert decode_log_text(raw) == shown


async def test_stream_returns_the_raw_file_up_to_its_initial_size(root):
    content_at_first = b"\x1b[31m" + b"x" * 3 * job_log.CHUNK_BYTES
    path = write(root / "a.log", content_at_first)
    stream = LogStream(LogSource(str(root), path))
    with open(path, "ab") as log:
        log.write(b"later")

    content = b"".join([chunk async for chunk in stream])

    assert content == content_at_first


def test_attempt_without_log_is_reported(root):
    with pytest.raises(LogReadError, match="This attempt has no log"):
        tail(LogSource(str(root), ""))
