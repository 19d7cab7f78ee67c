"""The wrapper in a pod runs any script, tells its launchers where they are, and ends all its processes in order."""

import os
import signal
import subprocess
from datetime import timedelta

import pytest

from scheduling.backends.base import SubmitRequest
from scheduling.backends.kubernetes.pod_script import escape_references, grace_seconds, launcher_environment, pod_script
from tests.patience import PATIENCE_S, until

HOSTS = ("acme-k-0.acme-k", "acme-k-1.acme-k")
# A process that handles USR1: it says so, and when it gets the signal it writes a file and ends
SAVES = """\
import os, signal, sys, time
def save(*_):
    open(sys.argv[1] + ".saved", "w").close()
    os._exit(0)
signal.signal(signal.SIGUSR1, save)
open(sys.argv[1] + ".ready", "w").close()
while True:
    time.sleep(60)
"""
# A process that writes a file at TERM, a while after it
ENDS = """\
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: None)
open(sys.argv[1] + ".ready", "w").close()
signal.pause()
open(sys.argv[1] + ".ended", "w").close()
"""


def request(script, key="01k3v9q2m7t_7.1", nodes=2, gpus=8, **more):
    values = {
        "name": "train",
        "user": "ada",
        "account": "nlp",
        "workdir": "/",
        "environment": {},
        "stdout": "",
        "gpu_model": "",
        "cpus_per_node": 1,
        "memory_per_node_mb": 0,
        "time_limit": timedelta(hours=1),
        "nodes": tuple(f"n{number}" for number in range(1, nodes + 1)),
        "gpus_per_node": gpus,
    }
    return SubmitRequest(key=key, script=script, **{**values, **more})


@pytest.fixture
def start(tmp_path):
    """Start the wrapper of a script as a pod does, and end what is left of it."""
    processes = []
    (tmp_path / "saves.py").write_text(SAVES)
    (tmp_path / "ends.py").write_text(ENDS)

    def start_one(script, index=1, **more):
        job = request(script, key=f"t{os.getpid()}_{len(processes)}.1", **more)
        variables = launcher_environment(job, HOSTS, 29500)
        environment = {**os.environ, **variables, "JOB_COMPLETION_INDEX": str(index), "TMPDIR": str(tmp_path)}
        command = ["/bin/bash", "-c", pod_script(job)]
        process = subprocess.Popen(
            command, env=environment, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        processes.append(process)
        process.key = job.key
        return process

    yield start_one
    for process in processes:
        for pid in pids_of(process.key):
            os.kill(pid, signal.SIGKILL)
        process.kill()
        process.communicate()


def pids_of(key):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                variables = file.read().split(b"\0")
        except OSError:
            continue
        if f"ACME_PROCESS_OF={key}".encode() in variables:
            found.append(int(pid))
    return found


def run(start, script, **more):
    process = start(script, **more)
    said, _ = process.communicate(timeout=PATIENCE_S)
    return process.returncode, said


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("echo hello", 0, "hello\n"),
        ("#!/bin/sh\nexit 3\n", 3, ""),
        ("#!/bin/bash\nexec sh -c 'echo replaced; exit 4'\n", 4, "replaced\n"),
        ("#!/bin/bash\ntrap 'echo bye; exit 5' EXIT\nexit 1\n", 5, "bye\n"),
        ("#!/usr/bin/env python3\nimport sys\nprint('snake')\nsys.exit(6)\n", 6, "snake\n"),
        ("#!/bin/bash\nkill -KILL $$\n", 128 + 9, None),  # bash reports it if it notices before it waits
        ("#!/bin/bash -e\ncat <<EOF\nACME_END_OF_SCRIPT_0\nEOF\n", 0, "ACME_END_OF_SCRIPT_0\n"),
        ("echo '${HOME} {braces} %s $(date)' \"it's\"", 0, "${HOME} {braces} %s $(date) it's\n"),
    ],
    ids=range(8),
)
def test_exit_code_of_any_script_is_that_of_the_pod(start, script, code, said):
    ended, output = run(start, script)

    assert ended == code
    assert output == said or said is None


def test_script_of_the_largest_size_runs(start):
    comment = "# ${x}" + "y" * 94 + "\n"
    script = f"#!/bin/bash\n{comment * 640}echo end\n"

    assert 63_000 < len(script) < 65_536
    assert run(start, script) == (0, "end\n")


def test_launchers_find_their_variables_and_a_hostfile(start):
    names = ["MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "NNODES", "NODE_RANK", "PET_NNODES", "PET_NODE_RANK"]
    names += ["PET_NPROC_PER_NODE", "PET_MASTER_ADDR", "PET_MASTER_PORT", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES"]
    names += ["SLURM_NODEID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_GPUS_ON_NODE"]
    code, said = run(start, f'cat "$ACME_HOSTFILE"\nfor name in {" ".join(names)}; do echo "${{!name}}"; done')

    lines = said.splitlines()
    assert code == 0
    assert lines[:2] == ["acme-k-0.acme-k slots=8", "acme-k-1.acme-k slots=8"]
    assert dict(zip(names, lines[2:], strict=True)) == {
        **dict.fromkeys(("MASTER_ADDR", "PET_MASTER_ADDR"), "acme-k-0.acme-k"),
        **dict.fromkeys(("MASTER_PORT", "PET_MASTER_PORT"), "29500"),
        **dict.fromkeys(("NNODES", "PET_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS"), "2"),
        **dict.fromkeys(("NODE_RANK", "PET_NODE_RANK", "SLURM_NODEID", "SLURM_PROCID"), "1"),
        "WORLD_SIZE": "16",
        "PET_NPROC_PER_NODE": "8",
        "SLURM_GPUS_ON_NODE": "8",
        "SLURM_JOB_NODELIST": "acme-k-0.acme-k,acme-k-1.acme-k",
    }


def test_files_of_the_wrapper_are_removed_at_the_end(start, tmp_path):
    run(start, "exit 1")

    assert list(tmp_path.glob("acme-*")) == []


def test_pid_file_names_the_process_of_the_script(start, tmp_path):
    process = start("trap 'echo passed on; exit 8' USR1\ntouch ready\nwhile :; do sleep 0.05; done")
    until((tmp_path / "ready").exists, what="the script did not start")

    os.kill(int((tmp_path / f"acme-{process.key}-1.pid").read_text()), signal.SIGUSR1)

    assert process.communicate(timeout=PATIENCE_S)[0] == "passed on\n"
    assert process.returncode == 8


def test_term_requests_a_checkpoint_first_and_then_ends_the_script(start, tmp_path):
    """The shell of the script does not handle the signal; it would die of it and the pod with it."""
    script = "echo begins\npython3 saves.py a\ntouch next.ready\nsleep 600 & wait"
    process = start(script, checkpoint_signal="USR1@600")
    until((tmp_path / "a.ready").exists, what="the trainer did not start")

    process.terminate()

    until((tmp_path / "a.saved").exists, what="the trainer got no checkpoint signal")
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, said) == (128 + signal.SIGTERM, "begins\n")


def test_script_that_is_stopped_and_ends_with_zero_has_not_succeeded(start, tmp_path):
    process = start("#!/bin/bash\ntrap 'echo saved; exit 0' TERM\ntouch ready\nwhile :; do sleep 0.1; done\n")
    until((tmp_path / "ready").exists, what="the script did not start")

    process.terminate()

    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.SIGTERM
    assert said.endswith("saved\n")


def test_term_ends_a_script_that_goes_on_starting_processes(start, tmp_path):
    process = start("for number in {1..2000}; do sleep 600 & [ $number != 20 ] || touch ready; done; wait")
    until((tmp_path / "ready").exists, what="the script started no processes")

    process.terminate()

    process.communicate(timeout=PATIENCE_S)
    assert pids_of(process.key) == []


def test_checkpoint_signal_reaches_process_groups_of_their_own(start, tmp_path):
    script = "setsid python3 saves.py a &\nsetsid python3 saves.py b &\nwait\nexit 7"
    process = start(script, checkpoint_signal="USR1@600")
    for name in "ab":
        until((tmp_path / f"{name}.ready").exists, what=f"trainer {name} did not start")

    process.terminate()

    process.communicate(timeout=PATIENCE_S)
    assert all((tmp_path / f"{name}.saved").exists() for name in "ab")


def test_signals_of_a_stop_reach_no_process_of_another_pod(start, tmp_path):
    """In a cluster for tests, all pods see the processes of the host."""
    other = start("exec python3 saves.py other", checkpoint_signal="USR1@600")
    process = start("exec python3 saves.py own", checkpoint_signal="USR1@600")
    outside = subprocess.Popen(["python3", "saves.py", "outside"], cwd=tmp_path)
    for name in ("other", "own", "outside"):
        until((tmp_path / f"{name}.ready").exists, what=f"{name} did not start")

    process.terminate()
    process.communicate(timeout=PATIENCE_S)

    assert (tmp_path / "own.saved").exists()
    assert (other.poll(), outside.poll()) == (None, None)
    outside.kill()
    outside.wait()


def test_key_that_begins_like_another_key_is_another_job(tmp_path):
    """Attempt 1 and attempt 12 of a job differ in the last digit only."""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "SLURM_JOB_NODELIST": "localhost"}
    pods = {}
    for number in (1, 12):
        script = pod_script(request(f"exec python3 saves.py a{number}", key=f"k{os.getpid()}.{number}"))
        (tmp_path / "saves.py").write_text(SAVES)
        pods[number] = subprocess.Popen(["/bin/bash", "-c", script], env=environment, cwd=tmp_path)
    for number in pods:
        until((tmp_path / f"a{number}.ready").exists, what=f"attempt {number} did not start")

    pods[1].terminate()
    pods[1].wait(timeout=PATIENCE_S)

    assert pods[12].poll() is None
    pods[12].terminate()
    assert pods[12].wait(timeout=PATIENCE_S) == 128 + signal.SIGTERM


def test_pod_ends_after_all_its_processes(start, tmp_path):
    """A trainer that saves at TERM is not cut off because the shell of the script has ended before."""
    process = start("setsid python3 ends.py a &\nwait")
    until((tmp_path / "a.ready").exists, what="the trainer did not start")

    process.terminate()

    process.communicate(timeout=PATIENCE_S)
    assert (tmp_path / "a.ended").exists()


def test_stop_without_a_process_that_handles_the_checkpoint_signal_does_not_wait(start, tmp_path):
    process = start("touch ready; exec sleep 600", checkpoint_signal="USR1@99999")
    until((tmp_path / "ready").exists, what="the script did not start")

    process.terminate()

    assert process.wait(timeout=PATIENCE_S) == 128 + signal.SIGTERM


def test_trainer_that_goes_on_after_its_checkpoint_gets_term_in_the_end(start, tmp_path):
    script = "trap 'touch saved' USR1\ntouch ready\nwhile :; do sleep 0.05; done"
    process = start(script, checkpoint_signal="USR1@1")
    until((tmp_path / "ready").exists, what="the script did not start")

    process.terminate()

    assert process.wait(timeout=PATIENCE_S) == 128 + signal.SIGTERM
    assert (tmp_path / "saved").exists()


def test_signal_for_the_shell_reaches_only_the_script(start, tmp_path):
    script = "trap 'touch shell; kill $!; exit 9' USR1\npython3 saves.py a &\nwait"
    process = start(script, checkpoint_signal="USR1@600", shell_signals=("USR1",))
    until((tmp_path / "a.ready").exists, what="the trainer did not start")

    process.terminate()

    assert process.wait(timeout=PATIENCE_S) == 9
    assert (tmp_path / "shell").exists()
    assert not (tmp_path / "a.saved").exists()


def test_a_python_script_can_be_interrupted(start):
    """Bash starts background processes with SIGINT ignored; the script must not notice."""
    script = (
        "#!/usr/bin/env python3\nimport signal\nprint(signal.getsignal(signal.SIGINT) is signal.default_int_handler)\n"
    )

    assert run(start, script) == (0, "True\n")


@pytest.mark.parametrize(
    ("asked", "least", "seconds"), [("", 30, 30), ("USR1@120", 30, 150), ("USR1@10", 300, 300)], ids=range(3)
)
def test_grace_period_contains_the_checkpoint(asked, least, seconds):
    assert grace_seconds(request("x", checkpoint_signal=asked), least) == seconds


def test_references_to_variables_are_escaped():
    assert escape_references("kill $$; echo $(NAME) ${x}") == "kill $$$$; echo $$(NAME) $${x}"
