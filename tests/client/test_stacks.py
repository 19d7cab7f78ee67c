"""A program prints its stacks on a signal, and no process below it dies of that signal."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import httpx
import pytest
from acme_client import Run, exec_wrapper, stacks

from failures.detection import stacks as read
from tests.patience import PATIENCE_S, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signals and /proc are Linux'")

CLIENT = Path(stacks.__file__).parent.parent
HANGS = """
import sys, threading
{first}
def waits_for_ever():
    print("ready", flush=True)
    threading.Event().wait()
waits_for_ever()
"""
LISTENS = "from acme_client import stacks; stacks.install_stack_handler()"


def program(tmp_path, first=""):
    path = tmp_path / "train.py"
    path.write_text(HANGS.format(first=first))
    return [sys.executable, str(path)]


class Started:
    """A process with its output in a file, like a job. It is always killed at the end of the test."""

    def __init__(self, tmp_path, command, **environment):
        self.log = tmp_path / "job.log"
        plain = {"PATH": os.environ["PATH"], "PYTHONPATH": str(CLIENT), **environment}
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, env=plain, start_new_session=True)
        until(lambda: "ready" in self.said, what="the program's first word")

    @property
    def said(self):
        return self.log.read_text()

    def end(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)


@pytest.fixture
def start(tmp_path):
    begun = []

    def starts(command, **environment):
        begun.append(Started(tmp_path, command, **environment))
        return begun[-1]

    yield starts
    for one in begun:
        one.end()


def test_the_stacks_of_all_threads_are_in_the_log_with_the_rank_before_each_line(start, tmp_path):
    job = start(program(tmp_path, LISTENS), RANK="3")

    job.process.send_signal(signal.SIGUSR2)
    until(lambda: "waits_for_ever" in job.said, what="the stacks")

    [(rank, place)] = read.rank_positions(read.parse_stacks(job.said)).items()
    assert rank == 3 and place.words(many=False).startswith("is in waits_for_ever, waits_for_ever (")
    assert all(line.startswith("[rank3]: ") for line in job.said.splitlines()[1:])
    assert job.process.poll() is None  # and it is still running


def test_second_signal_prints_the_stacks_again(start, tmp_path):
    job = start(program(tmp_path, LISTENS))

    for times in (1, 2):
        job.process.send_signal(signal.SIGUSR2)
        until(lambda times=times: job.said.count("stacks of rank 0") == times, what="another answer")


def test_forked_child_prints_nothing_and_survives(start, tmp_path):
    forks = LISTENS + "; import os, time; child = os.fork()\nif not child: time.sleep(3600)\nprint(child)"
    job = start(program(tmp_path, forks))
    child = int(job.said.split()[-2])  # before it, Python 3.12 warns about a fork beside a thread

    os.kill(child, signal.SIGUSR2)
    job.process.send_signal(signal.SIGUSR2)
    until(lambda: "waits_for_ever" in job.said, what="the parent's stacks")

    assert job.said.count("stacks of rank") == 1
    assert Path(f"/proc/{child}/status").read_text().split("State:")[1].split()[0] == "S"


def test_programs_own_signal_handler_is_kept(tmp_path):
    said = textwrap.dedent(
        """
        import signal; signal.signal(signal.SIGUSR2, print)
        from acme_client import stacks; print(repr(stacks.install_stack_handler()))
        """
    )

    done = subprocess.run([sys.executable, "-c", said], cwd=CLIENT, capture_output=True, text=True, timeout=PATIENCE_S)

    assert done.stdout.strip() == "''"


# --- acme exec


def wrapped_in_exec(command):
    runs = "import sys; from acme_client import exec_wrapper as e; sys.exit(e.run_wrapped_command(sys.argv[1:]))"
    return [sys.executable, "-c", runs, *command]


def test_exec_prints_stacks_of_an_unmodified_program_and_its_shell_survives(start, tmp_path):
    shell = f"{' '.join(program(tmp_path))} | cat; echo over"
    job = start(wrapped_in_exec(["/bin/sh", "-c", shell]), RANK="1")

    job.process.send_signal(signal.SIGUSR2)
    until(lambda: "waits_for_ever" in job.said, what="the stacks")

    assert read.rank_positions(read.parse_stacks(job.said))[1].name == "waits_for_ever"
    assert "over" not in job.said and job.process.poll() is None


def test_all_processes_below_exec_survive_the_signal_from_the_start(start, tmp_path):
    shell = f"{' '.join(program(tmp_path))} | cat; echo over"
    job = start(wrapped_in_exec(["/bin/sh", "-c", shell]))

    assert all(stacks.catches_or_ignores(pid, signal.SIGUSR2) for pid in stacks.descendants(job.process.pid))
    assert stacks.is_signal_safe("USR2", {"SLURM_TASK_PID": str(job.process.pid), "SLURM_STEP_ID": "0"})


@pytest.mark.parametrize(("command", "code"), [("exit 7", 7), ("kill -TERM $$", 143)])
def test_exec_returns_the_exit_code_of_its_command(command, code):
    done = subprocess.run(wrapped_in_exec(["/bin/sh", "-c", command]), cwd=CLIENT, timeout=PATIENCE_S)

    assert done.returncode == code


def test_exec_forwards_a_termination_signal(start, tmp_path):
    job = start(wrapped_in_exec(program(tmp_path)))

    job.process.terminate()

    assert job.process.wait(PATIENCE_S) == 143


def test_exec_of_a_missing_command_reports_it():
    done = subprocess.run(
        wrapped_in_exec(["/nowhere/train"]), cwd=CLIENT, capture_output=True, text=True, timeout=PATIENCE_S
    )

    assert (done.returncode, done.stderr.strip()) == (127, "acme exec: /nowhere/train: No such file or directory")


@pytest.mark.parametrize(("environment", "said"), [({}, "1"), ({"PYTHONUNBUFFERED": ""}, "")])
def test_output_under_exec_is_unbuffered_unless_configured(environment, said):
    word = "import os; print('<' + os.environ['PYTHONUNBUFFERED'] + '>')"

    done = subprocess.run(
        wrapped_in_exec([sys.executable, "-c", word]), cwd=CLIENT, capture_output=True, text=True,
        timeout=PATIENCE_S, env={"PATH": os.environ["PATH"], **environment},
    )  # fmt: skip

    assert done.stdout.strip() == f"<{said}>"


def test_another_sitecustomize_still_runs(start, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('theirs', flush=True)\n")
    job = start(wrapped_in_exec(program(tmp_path)), PYTHONPATH=f"{CLIENT}:{tmp_path}")

    assert "theirs" in job.said


# --- announcement of stacks


SAFE = {"ACME_URL": "http://acme.test", "ACME_PROGRESS_TOKEN": "acme_run_x.y"}


def told_to(bodies):
    def answers(request):
        bodies.append(json.loads(request.content))
        return httpx.Response(200, json={"stop_state": ""})

    return httpx.MockTransport(answers)


def test_only_the_first_rank_announces_stacks_and_only_if_all_processes_survive(start, tmp_path):
    job = start(wrapped_in_exec(program(tmp_path)))
    step = SAFE | {"SLURM_TASK_PID": str(job.process.pid), "SLURM_STEP_ID": "0"}
    bodies = []

    assert exec_wrapper.announce_stacks("USR2", step, told_to(bodies))
    assert not exec_wrapper.announce_stacks("USR2", step | {"RANK": "1"}, told_to(bodies))
    assert not exec_wrapper.announce_stacks("USR2", SAFE, told_to(bodies))  # the recipients of the signal are unknown
    assert bodies == [{"stacks": "USR2"}]


def test_process_that_would_die_prevents_the_announcement(start, tmp_path):
    shell = f"{' '.join(program(tmp_path, LISTENS))} | cat"
    job = start(["/bin/sh", "-c", shell])

    assert not stacks.is_signal_safe("USR2", {"SLURM_TASK_PID": str(job.process.pid)})


def test_run_announces_stacks_once_after_its_first_step(start, tmp_path):
    bodies, task = [], start(wrapped_in_exec(program(tmp_path)))
    known = SAFE | {"SLURM_TASK_PID": str(task.process.pid), "SLURM_STEP_ID": "0"}
    with Run(every_s=0.01, environment=known, transport=told_to(bodies)) as run:
        run.step(1, loss=2.0)
        until(lambda: {"stacks": "USR2"} in bodies, what="the word")
        run.step(2, loss=2.0)

    assert bodies.count({"stacks": "USR2"}) == 1
