"""A copied log: nothing is lost or repeated, wherever its writer is killed, and one writer at a time."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from acmeweb.common.env import ROOT
from jobs.logs import copied_log, storage
from jobs.logs.allowed_paths import AllowedPaths
from jobs.logs.copied_log import CopyPosition, LogPositionChanged
from jobs.logs.log_files import LogReadError
from tests.patience import until

NOTHING = CopyPosition()


@pytest.fixture
def allowed(tmp_path):
    return AllowedPaths(var=str(tmp_path / "var"), token_dirs=(), pod_logs=str(tmp_path / "var" / "pod-logs"))


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    return str(folder)


def add(root, allowed, before, text, **parts):
    return copied_log.append(root, f"{root}/a.log", before, text.encode(), parts, allowed)


def content(root):
    return (Path(root) / "a.log").read_text()


def test_text_is_added_and_the_position_is_read_again(root, allowed):
    first = add(root, allowed, NOTHING, "one\n", pod="1")
    second = add(root, allowed, first, "two\n", pod="2")

    assert content(root) == "one\ntwo\n"
    assert (
        copied_log.read_position(root, f"{root}/a.log", allowed) == second == CopyPosition(size=8, parts={"pod": "2"})
    )


def test_log_without_a_position_begins_at_its_start(root, allowed):
    assert copied_log.read_position(root, f"{root}/a.log", allowed) == NOTHING


def test_what_was_written_without_its_position_is_cut_off(root, allowed):
    first = add(root, allowed, NOTHING, "one\n", pod="1")
    with (Path(root) / "a.log").open("a") as log:
        log.write("two\nthr")

    add(root, allowed, first, "two\nthree\n", pod="2")

    assert content(root) == "one\ntwo\nthree\n"


def test_log_that_is_shorter_than_recorded_goes_on_at_its_end_and_says_so(root, allowed):
    first = add(root, allowed, NOTHING, "one\ntwo\n", pod="1")
    os.truncate(f"{root}/a.log", 4)

    after = add(root, allowed, first, "three\n", pod="2")

    remark = copied_log.CONTINUED.decode()
    assert (content(root), after.size) == (f"one\n{remark}three\n", len(remark) + 10)


def test_writer_with_an_old_position_is_refused(root, allowed):
    first = add(root, allowed, NOTHING, "one\n", pod="1")
    add(root, allowed, first, "two\n", pod="2")

    with pytest.raises(LogPositionChanged):
        add(root, allowed, first, "two\n", pod="2")

    assert content(root) == "one\ntwo\n"


def test_second_writer_is_refused_while_the_first_one_writes(root, allowed):
    first = add(root, allowed, NOTHING, "one\n", pod="1")
    with (Path(root) / "a.log").open("r+") as other:
        fcntl.flock(other, fcntl.LOCK_EX)

        with pytest.raises(LogPositionChanged):
            add(root, allowed, first, "two\n", pod="2")

    assert content(root) == "one\n"


def test_full_storage_changes_nothing(root, allowed):
    """The limit on file sizes is reached as a full disk is: in the middle of a write."""
    first = add(root, allowed, NOTHING, "one\n", pod="1")
    program = f"""
import resource, signal, sys
sys.path.insert(0, {str(ROOT)!r})
from jobs.logs import copied_log
from jobs.logs.allowed_paths import AllowedPaths
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
before, allowed = copied_log.CopyPosition(size=4, parts={{"pod": "1"}}), AllowedPaths(var="/none", token_dirs=())
try:
    copied_log.append({root!r}, {root!r} + "/a.log", before, b"x" * 5000, {{}}, allowed)
except copied_log.LogReadError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert "The log directory of this cluster is full" in done.stdout
    assert content(root) == "one\n"
    assert copied_log.read_position(root, f"{root}/a.log", allowed) == first


@pytest.mark.parametrize("raw", ["", "{", "[]", '{"size":-1,"parts":{}}', '{"size":1,"parts":{"a":1}}', "[" * 90_000])
def test_log_without_a_readable_position_is_kept_and_goes_on_at_its_end(root, allowed, raw):
    add(root, allowed, NOTHING, "one\n", pod="1")
    (Path(root) / "a.log.position").write_text(raw)

    before = copied_log.read_position(root, f"{root}/a.log", allowed)
    after = add(root, allowed, before, "one\ntwo\n", pod="2")

    assert before.parts == {} and content(root) == f"one\n{copied_log.CONTINUED.decode()}one\ntwo\n"
    assert copied_log.read_position(root, f"{root}/a.log", allowed) == after


@pytest.mark.parametrize("name", ["a.log", "a.log.position", "a.log.position.new"])
def test_links_are_not_followed(root, allowed, tmp_path, name):
    target = tmp_path / "secret"
    target.write_text("secret")
    (Path(root) / name).symlink_to(target)

    with pytest.raises(LogReadError):
        add(root, allowed, NOTHING, "one\n")

    assert target.read_text() == "secret"


@pytest.mark.parametrize("path", ["/etc/a.log", "{root}/../a.log", "{root}", ""])
def test_paths_outside_the_directory_are_refused(root, allowed, path):
    with pytest.raises(LogReadError):
        copied_log.append(root, path.format(root=root), NOTHING, b"x", {}, allowed)


def test_directory_in_acme_var_is_created_for_its_owner_only(tmp_path, allowed):
    root = f"{allowed.pod_logs}/kalos"

    copied_log.append(root, f"{root}/a.log", NOTHING, b"one\n", {}, allowed)

    assert (Path(root) / "a.log").read_text() == "one\n"
    assert Path(root).stat().st_mode & 0o7 == 0 and (Path(root) / "a.log").stat().st_mode & 0o7 == 0


def test_other_directories_are_not_created(tmp_path, allowed):
    with pytest.raises(LogReadError):
        copied_log.append(f"{tmp_path}/none", f"{tmp_path}/none/a.log", NOTHING, b"x", {}, allowed)

    assert not (tmp_path / "none").exists()


WRITER = """
import sys
sys.path.insert(0, {place!r})
from jobs.logs import copied_log
from jobs.logs.allowed_paths import AllowedPaths
root, allowed = {root!r}, AllowedPaths(var="/none", token_dirs=())
position = copied_log.read_position(root, root + "/a.log", allowed)
number = int(position.parts.get("next", "0"))
print("started", flush=True)
while True:
    text = "".join(f"{{line}}\\n" for line in range(number, number + 100)).encode()
    number += 100
    position = copied_log.append(root, root + "/a.log", position, text, {{"next": str(number)}}, allowed)
"""


def test_writer_that_is_killed_anywhere_neither_loses_nor_repeats_a_line(root, allowed):
    for round_ in range(4):
        program = WRITER.format(place=str(ROOT), root=root)
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as writer:
            writer.stdout.readline()
            until(partial(_has_grown, root, round_), what="the log has grown")
            writer.send_signal(signal.SIGKILL)
    position = copied_log.read_position(root, f"{root}/a.log", allowed)
    number = int(position.parts.get("next", "0"))
    copied_log.append(root, f"{root}/a.log", position, b"", {"next": str(number)}, allowed)

    assert content(root).split() == [str(line) for line in range(number)]


def _has_grown(root, rounds):
    """Each round ends a little later in the work of its writer."""
    log = Path(root) / "a.log"
    return log.exists() and log.stat().st_size > 3000 * rounds**3


def test_text_larger_than_a_pipe_passes_through_the_reader_process(root, allowed):
    text = b"x" * (5 << 20)

    after = storage.call(root, copied_log.append, root, f"{root}/a.log", NOTHING, text, {}, allowed)

    assert after.size == len(text) == os.path.getsize(f"{root}/a.log")


def test_old_logs_are_deleted_with_their_positions_up_to_a_number(tmp_path):
    for cluster in ("kalos", "gone"):
        (tmp_path / cluster).mkdir()
        for name in ("old.log", "old.log.position", "new.log"):
            (tmp_path / cluster / name).write_text("x")
        for name in ("old.log", "old.log.position"):
            os.utime(tmp_path / cluster / name, (1000, 1000))

    assert copied_log.delete_old_logs(str(tmp_path), 2000, 3) == 3
    assert copied_log.delete_old_logs(str(tmp_path), 2000, 3) == 1
    assert sorted(path.name for path in tmp_path.glob("*/*")) == ["new.log", "new.log"]
    assert copied_log.delete_old_logs(str(tmp_path / "none"), 2000, 3) == 0


def test_position_is_json_that_operators_can_read(root, allowed):
    add(root, allowed, NOTHING, "one\n", pod="1")

    assert json.loads((Path(root) / "a.log.position").read_text()) == {"size": 4, "parts": {"pod": "1"}}


def test_directory_of_a_cluster_is_made_with_its_first_log(tmp_path):
    allowed = AllowedPaths(var=str(tmp_path), token_dirs=(), pod_logs=str(tmp_path / "pod-logs"))
    root = str(tmp_path / "pod-logs" / "kalos")

    before = copied_log.read_position(root, f"{root}/a.log", allowed)
    copied_log.append(root, f"{root}/a.log", before, b"step 1\n", {"pod": "1"}, allowed)

    assert before == NOTHING
    assert (tmp_path / "pod-logs" / "kalos" / "a.log").read_bytes() == b"step 1\n"
