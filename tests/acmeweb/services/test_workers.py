"""The parent of the workers: one child per process name, restarted when it dies; no child survives the parent."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from acmeweb.common.env import ROOT
from acmeweb.services.workers import main
from tests.patience import PATIENCE_S, until

# Its children write their process id to a file and wait for a signal
PARENT = """
import os, signal, sys, time
from functools import partial
from pathlib import Path
from acmeweb.services.workers import WorkerParent
def work(name):
    Path(sys.argv[1], name).write_text(str(os.getpid()))
    time.sleep(3600)
work_of = {name: partial(work, name) for name in ("turns", "long")}
sys.exit(WorkerParent(work_of, restart_delay_s=0.01).run())
"""


@pytest.fixture
def parent(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], cwd=ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def pid_of(directory, name):
    file = directory / name
    return int(file.read_text() or 0) if file.exists() else 0


def lives(pid):
    """Whether the process runs; a zombie that is not reaped yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def running(directory):
    return until(
        lambda: (found := (pid_of(directory, "turns"), pid_of(directory, "long"))) and all(found) and found,
        what="the children did not begin",
    )


def test_dead_worker_is_restarted_and_the_other_continues(parent, tmp_path):
    turns, long = running(tmp_path)

    os.kill(turns, signal.SIGKILL)

    until(lambda: pid_of(tmp_path, "turns") not in (0, turns), what="it was not forked again")
    assert pid_of(tmp_path, "long") == long and lives(long)


def test_workers_end_with_a_parent_that_is_killed(parent, tmp_path):
    children = running(tmp_path)

    parent.kill()

    until(lambda: not any(lives(pid) for pid in children), what="a worker outlived its parent")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_parent_ends_everything(parent, tmp_path, number):
    children = running(tmp_path)

    parent.send_signal(number)

    assert parent.wait(timeout=PATIENCE_S) == 0
    assert not any(lives(pid) for pid in children)


def test_an_unknown_group_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--groups", "turns,shorts"])

    assert "--groups: shorts is not one of turns, outcomes" in capsys.readouterr().err
