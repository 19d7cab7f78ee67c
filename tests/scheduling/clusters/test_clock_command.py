"""The site's program that sets clocks: what it gets, and how its failures are reported."""

from __future__ import annotations

import json
import stat
import subprocess
import sys

import pytest

from acmeweb.common.env import ROOT, EnvReader, InvalidEnvSetting
from scheduling.clusters.clock_command import TAIL_BYTES, ClocksNotSet, run_clock_command
from tests.patience import until

CLOCKS = {"seren-001": 1110, "seren-002": None}


@pytest.fixture
def program(tmp_path):
    def write(script: str) -> tuple[str, ...]:
        path = tmp_path / "set-clocks"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path), "--fast"

    return write


def run(command, timeout_s=60.0):
    run_clock_command(command, "seren", CLOCKS, timeout_s=timeout_s)


def test_program_gets_its_arguments_and_one_json_object(program, tmp_path):
    run(program(f'cat > {tmp_path}/input; echo "$@" > {tmp_path}/arguments'))

    assert json.loads((tmp_path / "input").read_text()) == {"cluster": "seren", "clocks": CLOCKS}
    assert (tmp_path / "arguments").read_text() == "--fast\n"


def test_program_gets_no_secret_of_the_environment(program, tmp_path, monkeypatch):
    monkeypatch.setenv("DATABASE_PASSWORD", "hidden")

    run(program(f"env > {tmp_path}/environment"))

    assert "hidden" not in (tmp_path / "environment").read_text()
    assert "PATH=" in (tmp_path / "environment").read_text()


def test_words_of_node_names_are_never_run_by_a_shell(program, tmp_path):
    command = program("cat > /dev/null")

    run_clock_command(command, "seren", {f"$(touch {tmp_path}/bad)": 288}, timeout_s=60)

    assert not (tmp_path / "bad").exists()


def test_exit_status_and_the_end_of_the_output_are_reported(program):
    command = program(
        f"head -c {3 * TAIL_BYTES} /dev/zero | tr '\\0' x; echo; echo seren-002: no route to host >&2; exit 3"
    )

    with pytest.raises(ClocksNotSet) as caught:
        run(command)

    text = str(caught.value)
    assert text.startswith("The power cap command ended with exit status 3. Its output ends with: x")
    assert text.endswith("seren-002: no route to host") and len(text) < TAIL_BYTES + 100


@pytest.mark.parametrize(
    ("line", "nodes"),
    [
        ('{"failed": ["seren-002"]}', {"seren-002"}),
        ('{"failed": []}', None),
        ('{"failed": "seren-002"}', None),
        ("[1]", None),
        ("seren-002 failed", None),
    ],
)
def test_last_line_may_name_the_nodes_that_failed(program, line, nodes):
    with pytest.raises(ClocksNotSet) as caught:
        run(program(f"echo working; echo '{line}'; exit 1"))

    assert caught.value.nodes == nodes
    assert caught.value.concerns("seren-001") == (nodes is None)


def test_program_that_hangs_is_killed_with_its_children(program, tmp_path):
    command = program(f"sleep 1000 & echo $! > {tmp_path}/child; wait")

    with pytest.raises(ClocksNotSet, match=r"did not end within 2 s\.$"):
        run(command, timeout_s=2)

    child = int((tmp_path / "child").read_text())
    until(lambda: not is_running(child), what="the end of the child")


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_program_that_does_not_read_its_input_is_no_failure(program):
    clocks = {f"seren-{number:05d}": 1110 for number in range(20_000)}  # more than a pipe holds

    run_clock_command(program("exit 0"), "seren", clocks, timeout_s=60)


def test_missing_program_is_reported():
    with pytest.raises(ClocksNotSet, match="/nonexistent/set-clocks cannot be started: No such file"):
        run(("/nonexistent/set-clocks",))


def test_program_outlives_a_killed_worker_by_no_more_than_its_time(program, tmp_path):
    (command, *_) = program(f"echo $$ > {tmp_path}/pid; exec sleep 1000")
    worker = (
        "import sys; from scheduling.clusters.clock_command import run_clock_command;"
        f"run_clock_command([{command!r}], 'seren', {{}}, timeout_s=2)"
    )
    process = subprocess.Popen([sys.executable, "-c", worker], cwd=ROOT)
    pid = until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip(), what="the program")
    process.kill()
    process.wait()

    until(lambda: not is_running(int(pid)), what="the end of the program")


def test_program_killed_by_a_signal_is_reported(program):
    with pytest.raises(ClocksNotSet, match="was killed by signal 9"):
        run(program("kill -9 $$"))


def test_setting_is_divided_as_in_a_shell():
    env = EnvReader({"ACME_POWER_CAP_COMMAND": "/opt/site/clocks --group 'all nodes'"})

    assert env.command("ACME_POWER_CAP_COMMAND") == ("/opt/site/clocks", "--group", "all nodes")
    assert EnvReader({}).command("ACME_POWER_CAP_COMMAND") == ()


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("clocks.sh", "does not begin with the absolute path of a program"),
        ("/opt/clocks 'a", "cannot be divided into words; check its quotes"),
    ],
)
def test_invalid_setting_is_refused(value, sentence):
    with pytest.raises(InvalidEnvSetting, match=sentence):
        EnvReader({"ACME_POWER_CAP_COMMAND": value}).command("ACME_POWER_CAP_COMMAND")
