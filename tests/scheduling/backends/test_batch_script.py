"""The batch script records how the job's own script ended, for any script."""

import os
import signal
import subprocess

import pytest

from scheduling.backends.attempt_record import STARTED_BEFORE, read_record, record_directory
from scheduling.backends.batch_script import batch_script
from tests.patience import PATIENCE_S, until


@pytest.fixture
def record(tmp_path):
    return tmp_path / "job.log.acme"


def start(tmp_path, record, script, forward=()):
    file = tmp_path / "slurm_script"
    file.write_text(batch_script(script, record=str(record), forward=forward))
    file.chmod(0o755)
    environment = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "12", "HOSTNAME": "n1"}
    return subprocess.Popen(
        [str(file)], env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def run(tmp_path, record, script):
    process = start(tmp_path, record, script)
    said, _ = process.communicate(timeout=PATIENCE_S)
    return process.returncode, said


def read(record):
    return read_record(
        *((record / name).read_text() if (record / name).exists() else None for name in ("start", "exit"))
    )


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("echo hello", 0, "hello\n"),
        ("#!/bin/sh\nexit 3\n", 3, ""),
        ("#!/bin/bash\nexec sh -c 'echo replaced; exit 4'\n", 4, "replaced\n"),
        ("#!/bin/bash\ntrap 'echo bye; exit 5' EXIT\nexit 1\n", 5, "bye\n"),
        ("#!/bin/bash\nset -e\nfalse\necho never\n", 1, ""),
        ("#!/usr/bin/env python3\nimport sys\nprint('snake')\nsys.exit(6)\n", 6, "snake\n"),
        ("#!/bin/bash\nkill -KILL $$\n", 128 + 9, ""),
        ("#!/bin/bash -e\ncat <<EOF\nACME_END_OF_SCRIPT_0\nEOF\n", 0, "ACME_END_OF_SCRIPT_0\n"),
        ("echo '${HOME} {braces} %s $(date)' \"it's\"", 0, "${HOME} {braces} %s $(date) it's\n"),
    ],
)
def test_exit_code_is_recorded_for_any_script(tmp_path, record, script, code, said):
    assert run(tmp_path, record, script) == (code, said)

    found = read(record)
    assert (found.started, found.exit_code) == (True, code)
    assert found.started_at <= found.ended_at


def test_a_second_start_of_the_same_attempt_runs_nothing(tmp_path, record):
    run(tmp_path, record, "echo once >> ran")

    code, said = run(tmp_path, record, "echo once >> ran")

    assert code == STARTED_BEFORE
    assert "started before" in said
    assert (tmp_path / "ran").read_text() == "once\n"
    assert read(record).exit_code == 0


def test_command_runs_without_a_writable_record(tmp_path):
    assert run(tmp_path, tmp_path / "missing" / "job.log.acme", "echo ran; exit 2") == (2, "ran\n")


def test_script_without_a_record_is_unchanged():
    assert batch_script("echo x", record=record_directory("")) == "echo x"


def test_a_signal_to_the_whole_job_is_recorded(tmp_path, record):
    process = start(tmp_path, record, "#!/bin/bash\ntouch ready\nexec sleep 600\n")
    until((tmp_path / "ready").exists, what="the script did not start")
    until(lambda: signaled(process, signal.SIGTERM), what="the child did not end")

    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.SIGTERM
    assert read(record).exit_code == 128 + signal.SIGTERM


def signaled(process, number):
    """To the children and to the batch shell, as Slurm does."""
    if process.poll() is not None:
        return True
    subprocess.run(["pkill", f"-{number}", "-P", str(process.pid)], check=False)
    process.send_signal(number)
    return False


def test_a_signal_for_the_batch_shell_reaches_the_script(tmp_path, record):
    script = "#!/bin/bash\ntrap 'echo saved; exit 7' USR1\ntouch ready\nwhile :; do sleep 0.05; done\n"
    process = start(tmp_path, record, script, forward=["USR1"])
    until((tmp_path / "ready").exists, what="the script did not start")

    process.send_signal(signal.SIGUSR1)

    assert process.communicate(timeout=PATIENCE_S)[0] == "saved\n"
    assert read(record).exit_code == 7


def test_the_exit_code_is_right_after_a_forwarded_signal_and_one_to_the_whole_job(tmp_path, record):
    script = "#!/bin/bash\ntrap 'touch saved' USR1\ntouch ready\nwhile :; do sleep 0.05; done\n"
    process = start(tmp_path, record, script, forward=["USR1"])
    until((tmp_path / "ready").exists, what="the script did not start")
    process.send_signal(signal.SIGUSR1)
    until((tmp_path / "saved").exists, what="the script did not get the signal")

    until(lambda: signaled(process, signal.SIGTERM), what="the child did not end")

    process.communicate(timeout=PATIENCE_S)
    assert read(record).exit_code == process.returncode == 128 + signal.SIGTERM


def test_a_python_script_can_be_interrupted(tmp_path, record):
    """Bash starts background processes with SIGINT ignored; the script must not notice."""
    script = (
        "#!/usr/bin/env python3\nimport signal\nprint(signal.getsignal(signal.SIGINT) is signal.default_int_handler)\n"
    )

    assert run(tmp_path, record, script) == (0, "True\n")


@pytest.mark.parametrize(
    ("start_line", "exit_line", "started", "exit_code"),
    [
        (None, None, False, None),
        ("12 n1 1795403401", None, True, None),
        ("12 n1 1795403401", "0 1795403402", True, 0),
        ("", "", True, None),
        ("12 n1 1795403401", "zero 1795403402", True, None),
        ("12 n1 1795403401", "0", True, None),
        ("12 n1 1795403401", "0 99999999999999999999", True, None),
        ("12 n1 \N{ARABIC-INDIC DIGIT ONE}", "\N{ARABIC-INDIC DIGIT ONE} 1", True, None),
    ],
)
def test_a_record_is_read(start_line, exit_line, started, exit_code):
    found = read_record(start_line, exit_line)

    assert (found.started, found.exit_code) == (started, exit_code)
