"""The parent guard: programs end with their parent, and give up root."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from acmeweb.services import locks, parent_guard
from tests.patience import PATIENCE_S, until

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


def run(words, **options):
    return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, **options)


def test_guard_becomes_the_program_and_keeps_its_pid():
    words = parent_guard.guarded_command([sys.executable, "-c", "import os; print(os.getpid())"])

    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    said, _ = process.communicate(timeout=PATIENCE_S)

    assert int(said) == process.pid


def test_missing_program_is_reported_in_one_sentence():
    done = run(parent_guard.guarded_command(["/no/such/program"]))

    assert done.returncode == 1
    assert done.stderr == "/no/such/program: No such file or directory\n"


def test_guard_imports_no_django():
    done = run([sys.executable, "-X", "importtime", "-I", "-S", parent_guard.__file__, "--", "true"])

    assert "django" not in done.stderr


def test_signals_that_a_background_shell_ignores_work_again():
    ignore = "import signal,os,sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    ask = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"

    done = run([sys.executable, "-c", ignore, *parent_guard.guarded_command([sys.executable, "-c", ask])])

    assert done.stdout == "True\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent died")
class TestDeathOfTheParent:
    PARENT = """if True:
        import json, subprocess, sys, time
        print(subprocess.Popen(json.loads(sys.argv[1])).pid, flush=True)
        time.sleep(600)
    """

    def start(self, words):
        """Start a parent that starts the command and then sleeps."""
        words = [sys.executable, "-c", self.PARENT, json.dumps(words)]
        parent = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        with parent.stdout:
            parent.stdout.readline()
        return parent

    def test_kill_9_of_the_parent_ends_the_program(self, tmp_path):
        held = tmp_path / "alive"
        parent = self.start(parent_guard.guarded_command(["sleep", "600"], hold=held))
        until(lambda: held.exists() and not locks.no_process_left(held))

        parent.kill()
        parent.wait()

        until(lambda: locks.no_process_left(held))

    def test_program_gets_the_requested_signal(self, tmp_path):
        note, ready = tmp_path / "note", tmp_path / "ready"
        script = f"trap 'echo INT > {note}; exit' INT; touch {ready}; while :; do sleep 0.05; done"
        parent = self.start(parent_guard.guarded_command(["sh", "-c", script], stop="INT"))
        until(ready.exists)

        parent.kill()
        parent.wait()

        until(note.exists)

    @as_root
    def test_program_also_ends_after_a_change_of_user(self, tmp_path):
        held = tmp_path / "alive"
        parent = self.start(parent_guard.guarded_command(["sleep", "600"], user="nobody", hold=held))
        until(lambda: held.exists() and not locks.no_process_left(held))

        parent.kill()
        parent.wait()

        until(lambda: locks.no_process_left(held))

    def test_guard_exits_if_the_parent_is_already_gone(self):
        done = run(parent_guard.guarded_command(["echo", "still here"], parent=1 if os.getpid() != 1 else 2))

        assert (done.returncode, done.stdout) == (1, "")


class TestHold:
    def test_the_lock_lasts_until_the_last_child_is_gone(self, tmp_path):
        held = tmp_path / "alive"
        script = "sleep 600 >/dev/null 2>&1 & echo $!"
        done = run(parent_guard.guarded_command(["sh", "-c", script], hold=held))
        child = int(done.stdout)

        assert not locks.no_process_left(held)
        os.kill(child, signal.SIGKILL)

        until(lambda: locks.no_process_left(held))

    def test_lock_holders_are_found_and_killed(self, tmp_path):
        held = tmp_path / "alive"
        process = subprocess.Popen(parent_guard.guarded_command(["sleep", "600"], hold=held))
        until(lambda: process.pid in locks.lock_holders(held))

        locks.kill_holders(held)

        assert process.wait(timeout=PATIENCE_S) == -signal.SIGKILL


@as_root
class TestRootGivenUp:
    def capabilities(self, reach):
        done = run(parent_guard.guarded_command(["cat", "/proc/self/status"], user="nobody", reach=[reach]), cwd="/")
        rows = dict(line.split(":\t", 1) for line in done.stdout.splitlines() if ":\t" in line)
        return {name: int(rows[name], 16) for name in ("CapEff", "CapPrm", "CapAmb", "CapInh")}

    def test_user_and_groups_change_to_nobody(self):
        done = run(parent_guard.guarded_command(["sh", "-c", "id -u; id -g; id -G"], user="nobody"), cwd="/")

        uid, gid, groups = done.stdout.splitlines()
        assert "0" not in (uid, gid) and groups == gid

    def test_secrets_of_the_environment_are_removed(self):
        done = run(
            parent_guard.guarded_command(["env"], user="nobody"), cwd="/", env={**os.environ, "SECRET_KEY": "hidden"}
        )

        assert "PATH=" in done.stdout and "hidden" not in done.stdout

    def test_an_open_directory_needs_no_capability(self):
        assert set(self.capabilities(Path("/usr")).values()) == {0}

    def test_closed_directory_needs_only_the_read_capability(self, tmp_path):
        tmp_path.chmod(0o700)

        assert set(self.capabilities(tmp_path).values()) == {1 << parent_guard.CAP_DAC_READ_SEARCH}

    def test_closed_program_needs_the_override_capability(self, tmp_path):
        (tmp_path / "program").touch(mode=0o700)

        assert set(self.capabilities(tmp_path / "program").values()) == {1 << parent_guard.CAP_DAC_OVERRIDE}

    def test_numeric_user_needs_no_passwd_entry(self):
        done = run(parent_guard.guarded_command(["sh", "-c", "id -u; id -g; id -G"], user="60600"), cwd="/")

        assert done.stdout == "60600\n60600\n60600\n"

    def test_a_program_with_a_home_keeps_its_environment(self, tmp_path):
        words = parent_guard.guarded_command(["env"], user="60600", home=tmp_path)

        done = run(words, cwd="/", env={**os.environ, "SECRET_KEY": "hidden"})

        assert {"SECRET_KEY=hidden", f"HOME={tmp_path}", "USER=acme"} <= set(done.stdout.splitlines())

    def test_home_below_a_closed_directory_is_reached(self, tmp_path):
        (tmp_path / "closed").mkdir(mode=0o700)
        home = tmp_path / "closed" / "home"
        home.mkdir()
        (home / "file").write_text("found")

        done = run(parent_guard.guarded_command(["cat", str(home / "file")], user="60600", home=home), cwd="/")

        assert done.stdout == "found"

    def test_low_port_is_a_separate_capability(self):
        done = run(
            parent_guard.guarded_command(["grep", "Cap", "/proc/self/status"], user="60600", low_port=True), cwd="/"
        )

        assert f"CapEff:\t{1 << parent_guard.CAP_NET_BIND_SERVICE:016x}\n" in done.stdout

    def test_read_capability_opens_files_in_a_closed_directory(self, tmp_path):
        tmp_path.chmod(0o700)
        (tmp_path / "file").write_text("found")

        look = f"test -r {tmp_path}/file && cat {tmp_path}/file"  # test asks access(2), as initdb does
        done = run(parent_guard.guarded_command(["sh", "-c", look], user="nobody", reach=[tmp_path]), cwd="/")

        assert done.stdout == "found"


@pytest.mark.parametrize(
    ("mode", "uid", "reachable"),
    [(0o755, 4242, True), (0o700, 4242, False), (0o700, os.getuid(), True), (0o750, 4242, False)],
)
def test_may_reach_reads_the_permission_bits(tmp_path, mode, uid, reachable):
    directory = tmp_path / "place"
    directory.mkdir()
    directory.chmod(mode)

    assert parent_guard._permits(directory, uid, 4242, 0o5) is reachable
