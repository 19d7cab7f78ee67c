"""The executor of real processes, and the shim next to each of them."""

from __future__ import annotations

import json
import os
import pwd
import signal
import time
from pathlib import Path

import pytest

from jobs.core.lifecycle import State
from scheduling.simulation.machines.effects import EFFECTS_FILE_NAME, EffectsFile
from scheduling.simulation.machines.execution import stepd
from scheduling.simulation.machines.execution.accounts import SharedAccount, TeamAccounts
from scheduling.simulation.machines.execution.attempt_records import ALREADY_STARTED_MESSAGE
from scheduling.simulation.machines.execution.runner import ProcessExecutor
from scheduling.simulation.machines.values import SignalTarget, SimulatedJob, SimulatedJobRequest, SimulatedNode
from scheduling.simulation.slurm.controller import ClusterController
from scheduling.simulation.slurm.values import ControllerTiming, SimulatorSnapshot
from tests.patience import until
from tests.scheduling.backends.test_dialect import submission

from .running import ClusterProcess, is_alive

UIDS = range(60_616, 60_618)


class Machine:
    """A controller of one node that runs real processes, advanced by the test.

    A second machine on the same directories is a restarted controller.
    """

    def __init__(self, home: Path, snapshot: SimulatorSnapshot | None = None, gpus: int = 4, accounts=None) -> None:
        self.home, self.logs = home, home / "logs"
        self.logs.mkdir(exist_ok=True)
        node = SimulatedNode(name="here", cpus=4, memory_mb=1000, gpus=gpus, gpu_model="a100")
        effects = EffectsFile(home)
        self.executor = ProcessExecutor(state=home / "jobs", log_root=self.logs, accounts=accounts, effects=effects)
        timing = ControllerTiming(configure_s=0.05, complete_s=0.05, kill_wait_s=0.5)
        self.controller = ClusterController(
            snapshot or SimulatorSnapshot(nodes=(node,)), self.executor, time.time(), timing=timing
        )

    def submit(self, command: str, **changed) -> SimulatedJob:
        plain = {
            "name": "t",
            "user": "ada",
            "workdir": "/tmp",
            "required_nodes": ("here",),
            "script": f"#!/bin/bash\n{command}\n",
        }
        return self.controller.submit(SimulatedJobRequest(**{**plain, **changed}), time.time())

    def submit_attempt(self, command: str, **changed) -> SimulatedJob:
        """Submit a job whose record belongs next to its log, `a.log`."""
        log = str(self.logs / "a.log")
        environment = {"ACME_ATTEMPT_RECORD": f"{log}.acme"}
        return self.submit(command, stdout=log, environment=environment, comment="acme:here:a.1", **changed)

    @property
    def effects(self) -> list[tuple[str, str, int | None, int | None]]:
        lines = (json.loads(line) for line in (self.home / EFFECTS_FILE_NAME).read_text().splitlines())
        return [(line["event"], line["key"], line["exit_code"], line["signal"]) for line in lines]

    def now(self, job: SimulatedJob) -> SimulatedJob:
        self.controller.advance_to(time.time())
        return self.controller.jobs[job.id]

    def until_ended(self, job: SimulatedJob) -> SimulatedJob:
        until(lambda: self.now(job).ended_at and not self.now(job).flags, what=str(job.id))
        return self.now(job)

    def wait_for_output(self, job: SimulatedJob, word: str) -> str:
        until(lambda: self.now(job) and word in self.output(job), what=word)
        return self.output(job)

    def output(self, job: SimulatedJob) -> str:
        path = self.logs / f"slurm-{job.id}.out"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def machine(tmp_path):
    (tmp_path / "jobs").mkdir()
    machine = Machine(tmp_path)
    yield machine
    for job in machine.controller.jobs.values():
        machine.executor.signal(job, 9, time.time())
    until(lambda: machine.executor.poll_ends(time.time()) is not None and machine.executor.idle)


def test_job_runs_in_its_directory_with_its_environment_and_its_gpus(machine, tmp_path):
    script = 'echo "$PWD|$GREETING|$CUDA_VISIBLE_DEVICES|$SLURM_JOB_ID|$0|$(env | grep -c PYTEST)"; echo oops >&2'
    job = machine.submit(script, workdir=str(tmp_path), environment={"GREETING": "a = b"}, gpus_per_node=2)

    ended = machine.until_ended(job)

    assert (ended.state, ended.exit.code) == (State.COMPLETED, 0)
    output = machine.output(job)
    assert output.startswith(f"{tmp_path}|a = b|0,1|{job.id}|")
    assert output.splitlines()[0].endswith("|0") and output.endswith("oops\n")


@pytest.mark.parametrize(
    ("script", "state", "code", "signal"),
    [("exit 3", State.FAILED, 3, 0), ("kill -9 $$", State.FAILED, 0, 9), ("kill -SEGV $$", State.FAILED, 0, 11)],
)
def test_exit_status_is_reported(machine, script, state, code, signal):
    ended = machine.until_ended(machine.submit(script))

    assert (ended.state, ended.exit.code, ended.exit.signal) == (state, code, signal)


def test_job_is_pinned_to_its_requested_cpus(machine):
    job = machine.submit("nproc")

    machine.until_ended(job)

    assert machine.output(job).strip() == "1"


def test_script_can_use_another_interpreter(machine):
    job = machine.submit("", script="#!/usr/bin/env python3\nprint(6 * 7)\n")

    machine.until_ended(job)

    assert machine.output(job) == "42\n"


@pytest.mark.parametrize(
    ("changed", "word"), [({"workdir": "/no/such"}, "cannot start"), ({"script": "#!/no/such\n"}, "cannot start")]
)
def test_job_that_cannot_start_has_the_reason_in_its_log(machine, changed, word):
    job = machine.submit("true", **changed)

    assert machine.until_ended(job).exit.code == stepd.CANNOT_START_EXIT_CODE
    assert word in machine.output(job)


@pytest.fixture
def others(tmp_path):
    """A machine run by root, on which jobs run as other users."""
    if os.geteuid() != 0:
        pytest.skip("only root can give jobs another user")
    (tmp_path / "jobs").mkdir(mode=0o700)
    (tmp_path / "secret").write_text("s3cret")
    (tmp_path / "secret").chmod(0o600)
    return Machine(tmp_path, accounts=TeamAccounts(tmp_path / "accounts.json", UIDS))


def test_job_run_by_root_has_its_teams_user_without_groups(others):
    job = others.submit('echo "$(id -u) $(id -g) $(id -G | wc -w) $USER"; stat -c "%u %a" $HOME; umask')
    own = others.submit('echo "$HOME"', environment={"HOME": "/home/ada"})

    uid = UIDS[0]
    assert others.until_ended(job).state == State.COMPLETED
    assert others.output(job) == f"{uid} {uid} 1 ada\n{uid} 700\n0022\n"
    assert (others.logs / f"slurm-{job.id}.out").stat().st_uid == uid
    others.until_ended(own)
    assert others.output(own) == "/home/ada\n"


def test_job_log_keeps_the_group_of_its_directory(others):
    os.chown(others.logs, -1, 4242)
    others.logs.chmod(0o2750)

    job = others.submit("true")

    others.until_ended(job)
    assert (others.logs / f"slurm-{job.id}.out").stat().st_gid == 4242


def test_job_of_a_team_without_a_free_user_id_is_rejected(others):
    for team in ("vision", "speech"):
        assert others.until_ended(others.submit("true", account=team)).state == State.COMPLETED

    ended = others.until_ended(others.submit("true", account="nlp"))

    assert (ended.state, ended.reason) == (State.FAILED, "JobLaunchFailure")


def test_removed_home_is_created_again_under_another_name(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can give jobs another user")
    job = SimulatedJob(id=1, request=SimulatedJobRequest(name="t", user="ada", account="vision"), submitted_at=0.0)
    accounts = TeamAccounts(tmp_path / "accounts.json", UIDS, tmp_path)
    first = accounts.of(job)
    Path(first.home).rename(tmp_path / "elsewhere")
    Path(first.home).symlink_to("/root")

    again = TeamAccounts(tmp_path / "accounts.json", UIDS, tmp_path).of(job)

    assert again.ids == first.ids
    assert again.home != first.home and Path(again.home).stat().st_uid == UIDS[0]


def test_job_of_another_user_cannot_read_secrets_or_change_records(others):
    job = others.submit(f"cat {others.home}/secret; ls {others.home}/jobs; kill -9 $PPID; echo on >> /dev/stdout")

    assert others.until_ended(job).state == State.COMPLETED
    output = others.output(job)
    assert "s3cret" not in output and "job-1" not in output
    assert output.count("ermission denied") == 2 and "not permitted" in output and output.endswith("on\n")


def test_inaccessible_working_directory_is_reported_in_the_log(others):
    (others.home / "closed").mkdir(mode=0o700)
    job = others.submit("true", workdir=str(others.home / "closed"))

    ended = others.until_ended(job)

    assert (ended.state, ended.exit.code) == (State.FAILED, stepd.CANNOT_START_EXIT_CODE)
    assert f"ada cannot enter the working directory {others.home}/closed (Permission denied)" in others.output(job)


def test_team_gets_a_new_user_id_if_its_own_is_outside_the_range(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can give jobs another user")
    job = SimulatedJob(id=1, request=SimulatedJobRequest(name="t", user="ada", account="vision"), submitted_at=0.0)
    path = tmp_path / "accounts.json"
    TeamAccounts(path, UIDS, tmp_path).of(job)

    again = TeamAccounts(path, range(70_000, 70_002), tmp_path).of(job)

    assert again.ids == (70_000, 70_000) and Path(again.home).stat().st_uid == 70_000


def test_shared_account_is_the_user_of_the_server():
    me = pwd.getpwuid(os.geteuid())

    account = SharedAccount().of(
        SimulatedJob(id=1, request=SimulatedJobRequest(name="t", user="ada"), submitted_at=0.0)
    )

    assert (account.name, account.home, account.ids) == (me.pw_name, me.pw_dir, None)


def test_invalid_output_path_ends_the_job_with_signal_53(machine, tmp_path):
    job = machine.submit("true", stdout=str(tmp_path / "elsewhere.log"))

    ended = machine.until_ended(job)

    assert (ended.state, ended.exit.signal) == (State.FAILED, 53)
    assert not (tmp_path / "elsewhere.log").exists()


def test_time_limit_is_enforced(machine):
    job = machine.submit("sleep 60", limit_s=1.5)

    ended = machine.until_ended(job)

    assert (ended.state, ended.ended_at - ended.started_at < 50) == (State.TIMEOUT, True)


def test_term_can_be_handled_and_kill_cannot(machine):
    job = machine.submit("trap 'echo heard' TERM; echo $$; while true; do sleep 0.1; done")
    pid = int(machine.wait_for_output(job, "\n"))

    machine.controller.cancel(job.id, time.time())

    ended = machine.until_ended(job)
    assert "heard" in machine.output(job)
    assert (ended.state, is_alive(pid)) == (State.CANCELLED, False)


def test_processes_that_left_the_session_end_with_the_job(machine):
    job = machine.submit("setsid sleep 300 & echo $!; exit 0")

    machine.until_ended(job)

    assert not is_alive(int(machine.output(job)))


def test_restarted_controller_adopts_running_jobs(machine):
    job = machine.submit("echo $$; sleep 2; exit 4")
    pid = int(machine.wait_for_output(job, "\n"))

    successor = Machine(machine.home, machine.controller.take_snapshot())

    assert successor.now(job).state == State.RUNNING
    assert successor.controller.used_gpus("here") == machine.controller.used_gpus("here")
    assert is_alive(pid)
    assert successor.until_ended(job).exit.code == 4


def test_unobserved_end_is_read_from_the_record(machine):
    job = machine.submit("exit 5")
    machine.wait_for_output(job, "") and machine.now(job)
    until(
        lambda: machine.controller.advance_to(time.time()) or (machine.home / "jobs" / "job-1" / "exit.json").exists()
    )
    snapshot = SimulatorSnapshot(
        nodes=machine.controller.take_snapshot().nodes, jobs=(machine.controller.jobs[job.id],)
    )

    assert Machine(machine.home, snapshot).until_ended(job).exit.code == 5


def test_job_that_is_started_twice_runs_once(machine):
    job = machine.submit("echo once; sleep 1")
    machine.wait_for_output(job, "once")

    machine.executor.start(machine.now(job), time.time())
    ProcessExecutor(state=machine.home / "jobs", log_root=machine.logs).start(machine.now(job), time.time())

    machine.until_ended(job)
    assert machine.output(job) == "once\n"


def test_killed_shim_counts_as_a_node_failure_and_its_processes_are_killed(machine):
    job = machine.submit("echo $$ $PPID; sleep 60")
    pid, shim = map(int, machine.wait_for_output(job, "\n").split())
    until((machine.home / "jobs" / f"job-{job.id}" / "running.json").exists)  # written after the job has started

    os.kill(shim, 9)

    assert machine.until_ended(job).state == State.NODE_FAIL
    until(lambda: not is_alive(pid))


def test_shim_killed_before_it_wrote_the_record_leaves_no_process(tmp_path):
    """The child waits for a byte that never arrives; it neither runs the command nor stays."""
    marker, (go, may_go) = tmp_path / "ran", os.pipe()
    ready, is_ready = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(may_go)
        stepd.wait_for_go(is_ready, go)
        marker.touch()
        os._exit(0)
    os.close(is_ready)
    assert os.read(ready, 1) == b"" and os.getsid(child) == child

    os.close(may_go)  # as the kernel does when the shim is killed

    _, status = os.waitpid(child, 0)
    assert (os.WEXITSTATUS(status), marker.exists()) == (stepd.CANNOT_START_EXIT_CODE, False)


def test_record_is_written_before_the_command_runs(machine):
    job = machine.submit('cat "$RECORD"', environment={"RECORD": str(machine.home / "jobs/job-1/running.json")})

    machine.until_ended(job)

    assert '"pid"' in machine.output(job)


def test_signal_reaches_only_the_shell_or_all_other_processes(machine):
    inner = "trap 'echo inner heard; exit 0' USR1; echo up; while true; do sleep 0.05; done"
    job = machine.submit(f"trap 'echo shell heard' USR1\nbash -c \"{inner}\" &\nwhile ! wait; do :; done; sleep 60")
    machine.wait_for_output(job, "up")

    machine.controller.signal(job.id, signal.SIGUSR1, time.time(), SignalTarget.SHELL)
    assert "inner" not in machine.wait_for_output(job, "shell heard")

    machine.controller.signal(job.id, signal.SIGUSR1, time.time(), SignalTarget.STEPS)
    assert machine.wait_for_output(job, "inner heard").count("shell heard") == 1
    assert machine.now(job).state == State.RUNNING


WRAPPED = """
trap '[ -z "$child" ] || kill -s USR1 "$child"' USR1
child=
/bin/bash /dev/fd/3 3<<'SCRIPT' &
trap 'echo script heard' USR1
bash -c "trap 'echo program heard; exit 0' USR1; echo up; while true; do sleep 0.05; done" &
while ! wait; do :; done
sleep 60
SCRIPT
child=$!
while kill -0 "$child" 2>/dev/null; do wait "$child"; done
"""


def test_script_below_a_wrapper_is_part_of_the_batch_shell(machine):
    job = machine.submit(WRAPPED)
    machine.wait_for_output(job, "up")

    machine.controller.signal(job.id, signal.SIGUSR1, time.time(), SignalTarget.SHELL)
    assert "program heard" not in machine.wait_for_output(job, "script heard")

    machine.controller.signal(job.id, signal.SIGUSR1, time.time(), SignalTarget.STEPS)
    assert machine.wait_for_output(job, "program heard").count("script heard") == 1
    assert machine.now(job).state == State.RUNNING


def test_subshell_of_the_script_is_not_a_batch_shell(machine):
    subshell = "( trap 'echo subshell heard; exit 0' USR1; echo up; while true; do sleep 0.05; done )"
    job = machine.submit(f"trap 'echo shell heard' USR1\n{subshell} &\nwhile ! wait; do :; done; sleep 60")
    machine.wait_for_output(job, "up")

    machine.controller.signal(job.id, signal.SIGUSR1, time.time(), SignalTarget.STEPS)

    assert "shell heard" not in machine.wait_for_output(job, "subshell heard").replace("subshell heard", "")


@pytest.mark.parametrize(
    ("command", "code", "number"), [("true", 0, None), ("exit 3", 3, None), ("kill -9 $$", None, 9)]
)
def test_effects_file_has_the_start_and_the_end_of_a_process(machine, command, code, number):
    machine.until_ended(machine.submit_attempt(command))

    assert machine.effects == [("start", "here:a.1", None, None), ("end", "here:a.1", code, number)]


def test_job_whose_log_cannot_be_opened_has_no_effects(machine):
    machine.until_ended(machine.submit("true", stdout="/etc/acme.log"))

    assert machine.effects == []


def test_effect_of_a_job_whose_shim_was_killed_is_a_kill(machine):
    job = machine.submit_attempt("echo $PPID > pid; mv pid ready; sleep 60", workdir=str(machine.home))
    until(lambda: machine.now(job) and (machine.home / "ready").exists())
    until((machine.home / "jobs" / f"job-{job.id}" / "running.json").exists)

    os.kill(int((machine.home / "ready").read_text()), signal.SIGKILL)

    assert machine.until_ended(job).state == State.NODE_FAIL
    assert machine.effects[-1] == ("end", "here:a.1", None, 9)


RECORDING = 'mkdir "$ACME_ATTEMPT_RECORD" && echo "$SLURM_JOB_ID here 1" > "$ACME_ATTEMPT_RECORD/start"'


def test_attempt_with_a_record_is_not_started_again(machine):
    machine.until_ended(machine.submit_attempt(f"{RECORDING}; echo once"))

    again = machine.until_ended(machine.submit_attempt(f"{RECORDING}; echo twice"))

    assert (again.state, again.exit.code) == (State.FAILED, 97)
    assert (machine.logs / "a.log").read_text() == f"once\n{ALREADY_STARTED_MESSAGE}\n"
    assert [event for event, *_ in machine.effects] == ["start", "end"]


def test_attempt_that_runs_without_a_record_is_not_started_twice(machine):
    first = machine.submit_attempt("echo up; sleep 60")
    until(lambda: machine.now(first) and (machine.logs / "a.log").exists())

    again = machine.until_ended(machine.submit_attempt("echo twice"))

    assert again.exit.code == 97
    assert machine.now(first).state == State.RUNNING


@pytest.mark.parametrize(
    ("command", "exit_line"), [("exit 3", "3"), ("exit 0", "0"), ("exit 143", "143"), ("kill -9 $$", None)]
)
def test_record_of_another_users_job_is_written_by_the_server(others, command, exit_line):
    job = others.submit_attempt(f"{RECORDING}; {command}")

    others.until_ended(job)

    record = others.logs / "a.log.acme"
    assert (record / "start").read_text().startswith(f"{job.id} here ")
    assert (record / "exit").read_text().split()[0] == exit_line if exit_line else not (record / "exit").exists()
    assert {path.stat().st_uid for path in (record, *record.iterdir())} == {os.geteuid()}


def test_another_user_cannot_create_change_or_remove_a_record(others):
    record = others.logs / "a.log.acme"
    others.until_ended(others.submit_attempt("exit 3"))
    attempts = f"mkdir {others.logs}/b.log.acme; echo 0 > {record}/exit; rm -r {record}; mv {record} {record}.old"

    attacker = others.submit(attempts)

    others.until_ended(attacker)
    assert others.output(attacker).count("ermission denied") >= 4
    assert (record / "exit").read_text().startswith("3 ")
    assert not (others.logs / "b.log.acme").exists()


def test_job_that_names_another_jobs_record_writes_none(others):
    named = {"ACME_ATTEMPT_RECORD": str(others.logs / "b.log.acme")}

    others.until_ended(others.submit("true", environment=named))

    assert not (others.logs / "b.log.acme").exists()


def test_record_of_another_boot_is_a_node_failure_and_no_process_is_signaled(machine):
    directory = machine.home / "jobs" / "job-1"
    directory.mkdir()
    stranger = os.getpid()
    stepd.write(str(directory), "running.json", {"pid": stranger, "start": stepd.start_time(stranger), "boot": "old"})
    job = machine.submit("true")

    assert machine.until_ended(job).state == State.NODE_FAIL


def test_reused_pid_is_not_signaled(machine):
    directory = machine.home / "jobs" / "job-1"
    directory.mkdir()
    record = {"pid": os.getpid(), "start": 1, "boot": stepd.boot_id()}
    stepd.write(str(directory), "running.json", record)
    job = machine.submit("true")

    assert machine.until_ended(job).state == State.NODE_FAIL  # this process was not killed


def test_jobs_survive_a_kill_of_the_server(tmp_path):
    with ClusterProcess(tmp_path, "--execute") as cluster:
        backend = cluster.backend()
        node = backend.nodes()[0].name
        plain = {"nodes": (node,), "gpus_per_node": 0, "cpus_per_node": 1, "memory_per_node_mb": 10, "workdir": "/tmp"}
        log = cluster.log_root / "a.log"
        backend.submit(submission(key="a", script="echo one; sleep 2; echo two; exit 6", stdout=str(log), **plain))
        until(lambda: log.exists() and "one" in log.read_text())

        backend.close()
        cluster.kill()
        until(lambda: "two" in log.read_text())
        cluster.start()

        backend = cluster.backend()
        ended = until(lambda: (job := backend.find("a")) and job.ended_at and job)
        assert (ended.state, ended.exit_code) == (State.FAILED, 6)
        assert log.read_text() == "one\ntwo\n"
        backend.close()


def submit_here(backend, key: str, script: str, log: Path):
    (node,) = backend.nodes()
    plain = {"gpus_per_node": 0, "cpus_per_node": 1, "memory_per_node_mb": 10, "workdir": "/tmp"}
    return backend.submit(submission(key=key, script=script, stdout=str(log), nodes=(node.name,), **plain))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_clean_stop_leaves_no_process_and_reports_why_the_jobs_ended(tmp_path, number):
    with ClusterProcess(tmp_path, "--execute") as cluster:
        backend, polite, deaf = cluster.backend(), cluster.log_root / "polite.log", cluster.log_root / "deaf.log"
        hears = "trap 'echo bye; exit 0' TERM; echo $$ $PPID; while true; do sleep 0.1; done"
        submit_here(backend, "polite", hears, polite)
        submit_here(backend, "deaf", "trap '' TERM; (setsid sleep 300 & echo $$ $PPID $!); sleep 300", deaf)
        pids = [int(pid) for log in (polite, deaf) for pid in until(lambda log=log: whole_line(log)).split()]
        backend.close()

        assert cluster.end(number) == 0

        until(lambda: not any(map(is_alive, pids)))
        assert "bye" in polite.read_text()
        cluster.start()
        backend = cluster.backend()
        for key in ("polite", "deaf"):
            ended = backend.find(key)
            assert (ended.state, ended.ended_at is not None) == (State.NODE_FAIL, True)
            assert "the machine was shut down" in ended.reason
        backend.close()


def whole_line(log: Path) -> str:
    text = log.read_text() if log.exists() else ""
    return text if text.endswith("\n") else ""


def test_pending_job_does_not_start_during_a_shutdown(machine):
    running = machine.submit("echo $$; sleep 60", gpus_per_node=4)
    waiting = machine.submit("true", gpus_per_node=4)
    machine.wait_for_output(running, "\n")

    machine.controller.shut_down("down", time.time())

    assert machine.until_ended(running).state == State.NODE_FAIL
    assert machine.controller.empty and machine.now(waiting).state == State.PENDING
