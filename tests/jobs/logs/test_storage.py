"""A hanging shared file system: callers wait for one deadline at most, and retries become less frequent."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from acmeweb.common.env import ROOT
from jobs.logs import log_files, storage
from jobs.logs.allowed_paths import AllowedPaths
from jobs.logs.storage import MAX_ABANDONED_READERS, MAX_CONCURRENT_CALLS, ReaderPool, StorageRoot, StorageUnresponsive
from tests.jobs.logs import blocking
from tests.patience import PATIENCE_S, until

SHORT_S = 0.3
ANYWHERE = AllowedPaths(var="/nonexistent", token_dirs=(), log_dirs=("/",))


class Clock:
    def __init__(self):
        self.at = 0.0

    def __call__(self):
        return self.at


@pytest.fixture
def fifo(tmp_path):
    os.mkfifo(tmp_path / "hangs")
    return str(tmp_path / "hangs")


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def readers():
    readers = ReaderPool()
    yield readers
    readers.close()


@pytest.fixture
def mount(clock, readers):
    return StorageRoot("/mount", readers, PATIENCE_S, clock)


def hang(mount, fifo):
    with pytest.raises(StorageUnresponsive, match="/mount does not answer"):
        mount.call(blocking.open_fifo, fifo, deadline_s=SHORT_S)


def test_reader_process_runs_the_function(mount):
    assert mount.call(blocking.double, 21) == 42


def test_exception_of_the_function_is_raised_to_the_caller(mount):
    with pytest.raises(ValueError, match="no such thing"):
        mount.call(blocking.fail, "no such thing")


def test_large_answer_arrives_completely(mount, tmp_path):
    (tmp_path / "log").write_bytes(b"x" * 9_000_000)

    result = mount.call(log_files.read_log_pieces, str(tmp_path), "log", ((9_000_000, 0),), None, ANYWHERE)

    assert result.pieces == [b"x" * 9_000_000]


def test_reader_works_with_more_than_a_thousand_open_files():
    program = """
import os, resource
limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit, 2048), limit))
opened = [os.open(os.devnull, os.O_RDONLY)]
while opened[-1] < 1100:
    opened.append(os.dup(opened[-1]))
from jobs.logs import storage
from tests.jobs.logs import blocking
print(storage.call("/mount", blocking.double, 21))
"""
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)

    assert (ended.stdout, ended.stderr) == ("42\n", "")


def test_hanging_call_is_abandoned_and_others_fail_at_once(mount, fifo):
    hang(mount, fifo)

    with pytest.raises(StorageUnresponsive, match=r"since .* UTC"):
        mount.call(blocking.double, 1)


def test_unresponsive_root_is_retried_at_increasing_intervals(mount, fifo, clock):
    waits = []
    for _ in range(MAX_ABANDONED_READERS):
        hang(mount, fifo)
        waits.append(mount._retry_at - clock.at)
        clock.at = mount._retry_at

    assert waits == [2.0, 4.0, 8.0]


def test_answer_makes_the_root_responsive_again(mount, fifo, clock):
    hang(mount, fifo)
    clock.at = 2.0

    assert [mount.call(blocking.double, 1), mount.call(blocking.double, 2)] == [2, 4]
    assert mount.silent_since is None


def test_hanging_root_does_not_affect_another(fifo, readers):
    hang(StorageRoot("/mount", readers, PATIENCE_S), fifo)

    assert StorageRoot("/other", readers, PATIENCE_S).call(blocking.double, 21) == 42


def test_many_callers_abandon_few_readers(mount, fifo):
    refused = []

    def ask():
        try:
            mount.call(blocking.open_fifo, fifo, deadline_s=SHORT_S)
        except StorageUnresponsive as silent:
            refused.append(silent)

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(refused) == 20
    assert len(mount._left_behind) <= MAX_CONCURRENT_CALLS


def test_abandoned_reader_is_killed(mount, fifo):
    hang(mount, fifo)

    until(lambda: not any(reader.is_alive for reader in mount._left_behind), what="a reader was left running")


def test_dead_idle_reader_is_replaced(mount):
    mount.call(blocking.double, 1)
    for reader in mount._readers._idle:
        reader._process.kill()
        reader._process.wait()

    assert mount.call(blocking.double, 21) == 42


def test_reader_that_dies_during_a_call_does_not_count_as_hanging(mount):
    with pytest.raises(StorageUnresponsive, match="exited without an answer"):
        mount.call(blocking.die, "")

    assert mount.silent_since is None


def test_reader_has_no_environment_variables_of_acme(mount, monkeypatch):
    monkeypatch.setenv("SECRET_KEY_OF_A_TEST", "x")

    assert "SECRET_KEY_OF_A_TEST" not in mount.call(blocking.environment)


def test_replaced_log_is_reported(tmp_path):
    (tmp_path / "log").write_bytes(b"one")
    file = storage.call(str(tmp_path), log_files.read_log_pieces, str(tmp_path), "log", (), None, ANYWHERE).file
    (tmp_path / "new").write_bytes(b"two")
    (tmp_path / "new").rename(tmp_path / "log")

    with pytest.raises(log_files.LogReadError, match="replaced"):
        storage.call(str(tmp_path), log_files.read_log_pieces, str(tmp_path), "log", ((3, 0),), file, ANYWHERE)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_non_regular_file_is_rejected_without_opening_it(tmp_path, make):
    make(tmp_path / "log")

    with pytest.raises(log_files.LogReadError, match="not a regular file"):
        log_files.read_log_pieces(str(tmp_path), "log", (), None, ANYWHERE)


def test_device_is_rejected_without_opening_it():
    with pytest.raises(log_files.LogReadError, match="not a regular file"):
        log_files.read_log_pieces("/dev", "zero", (), None, ANYWHERE)
