"""The program that runs on a node, as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scheduling.evaluation.rules.job_output import JobOutput, parse_job_output
from scheduling.evaluation.rules.orders import PROGRAM_PATH

WITHIN_S = 600


def ran(what: dict[str, Any], expect: int = 0) -> JobOutput:
    environment = {**os.environ, "ACME_EVALUATION": json.dumps({"nonce": "word", **what})}
    done = subprocess.run(
        [sys.executable, str(PROGRAM_PATH)], env=environment, capture_output=True, text=True, timeout=WITHIN_S
    )
    assert done.returncode == expect, done.stdout + done.stderr
    return parse_job_output(done.stdout.splitlines(), "word")


def part(output: Path, number: int = 1, command: int = 0, scores: bool = False, **more: Any) -> dict[str, Any]:
    plain = {"dataset": "alpha", "start": 10, "samples": 5, "whole": False, "output": str(output / str(number))}
    plain["expected_s"] = 1.0
    return {"id": number, "command": command, "scores": scores, **plain, **more}


def run(tmp_path: Path, *commands: str, expect: int = 0, serve: str = "", scores: bool = False) -> JobOutput:
    parts = [part(tmp_path, number + 1, number, scores) for number in range(len(commands))]
    what = {
        "do": "run",
        "checkpoint": "/origin",
        "model": str(tmp_path),
        "serve": serve,
        "commands": list(commands),
        "parts": parts,
    }
    return ran(what, expect)


def test_part_gets_its_parameters_as_variables(tmp_path):
    run(
        tmp_path,
        'echo "$ACME_CHECKPOINT $ACME_MODEL $ACME_DATASET $ACME_START $ACME_END $ACME_SAMPLES $ACME_ALL_SAMPLES" '
        '> "$ACME_OUTPUT/said"',
    )

    assert (tmp_path / "1" / "said").read_text() == f"/origin {tmp_path} alpha 10 15 5 \n"


def test_failed_part_does_not_stop_the_others(tmp_path):
    said = run(tmp_path, "exit 3", "true", expect=1)

    assert [(one.part, one.code) for one in said.parts] == [(1, 3), (2, 0)]


def test_the_result_is_what_the_command_wrote(tmp_path):
    said = run(tmp_path, """echo '{"accuracy": 0.25}' > "$ACME_RESULT" """, scores=True)

    assert said.parts[0].scores == {"accuracy": 0.25}


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("true", "the command wrote no $ACME_RESULT"),
        ("head -c 70000 /dev/zero > $ACME_RESULT", "$ACME_RESULT is larger than 65536 bytes"),
        ("echo '[1]' > $ACME_RESULT", "$ACME_RESULT is not a JSON object"),
        ("mkdir $ACME_RESULT", "the command wrote no $ACME_RESULT"),
    ],
)
def test_invalid_result_is_reported(tmp_path, command, why):
    (one,) = run(tmp_path, command, expect=1, scores=True).parts

    assert one.code
    assert one.why == why


def test_result_of_an_earlier_try_is_ignored(tmp_path):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "result.json").write_text('{"accuracy": 1}')

    (one,) = run(tmp_path, "true", expect=1, scores=True).parts

    assert one.scores is None


def test_output_of_a_command_is_not_a_report(tmp_path):
    said = run(tmp_path, """echo 'acme:other {"part": 1, "code": 0, "took": 1, "at": 1}'; exit 1""", expect=1)

    assert [one.code for one in said.parts] == [1]


def test_server_runs_from_the_first_part_to_the_last(tmp_path):
    serve = f"echo $$ > {tmp_path}/pid; exec {sys.executable} -m http.server --bind 127.0.0.1 $ACME_PORT"
    program = "import os, socket; socket.create_connection(('127.0.0.1', int(os.environ['ACME_PORT']))).close()"
    ask = f'{sys.executable} -c "{program}"'

    said = run(tmp_path, ask, ask, serve=serve)

    assert [one.code for one in said.parts] == [0, 0]
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_server_that_does_not_start_is_reported(tmp_path):
    said = run(tmp_path, "true", serve="exit 7", expect=1)

    assert said.failed == "the model server ended with exit code 7"
    assert not said.parts


def told_to_give_way(tmp_path: Path, after: str = "true", serve: str = "", expected_s: float = 1.0) -> JobOutput:
    """The command of its first part sends it the signal, and goes on with `after`."""
    tell = f"kill -USR1 $(cat {tmp_path}/pid)"
    parts = [part(tmp_path, 1, 0, expected_s=expected_s), part(tmp_path, 2, 1)]
    commands = [f"{tell}; {after}", "true"]
    what = {
        "do": "run",
        "nonce": "word",
        "checkpoint": "/origin",
        "model": str(tmp_path),
        "commands": commands,
        "parts": parts,
        "serve": serve,
    }
    program = ["/bin/sh", "-c", f'echo $$ > {tmp_path}/pid; exec "$@"', "sh", sys.executable, str(PROGRAM_PATH)]
    environment = {**os.environ, "ACME_EVALUATION": json.dumps(what | {"grace_s": 100})}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=WITHIN_S)
    assert done.returncode == 0
    return parse_job_output(done.stdout.splitlines(), "word")


def test_usr1_stops_the_program_after_the_current_part(tmp_path):
    assert [one.part for one in told_to_give_way(tmp_path).parts] == [1]


def test_long_part_is_stopped_at_once(tmp_path):
    """Its command would go on for ever: the program ends without it."""
    assert not told_to_give_way(tmp_path, f"exec sleep {2 * WITHIN_S} >&- 2>&-", expected_s=1000.0).parts


def test_program_waiting_for_its_model_stops_at_once(tmp_path):
    serve = f"kill -USR1 $(cat {tmp_path}/pid); exec sleep {2 * WITHIN_S} >&- 2>&-"
    said = told_to_give_way(tmp_path, serve=serve)

    assert not said.parts
    assert not said.ready


# --- copies


def test_copy_gets_its_name_when_it_is_complete(tmp_path):
    source = tmp_path / "model"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "weights").write_bytes(b"x" * 1000)
    target = tmp_path / "node" / "copy"
    (tmp_path / "node" / "copy.part").mkdir(parents=True)  # somebody was killed at it

    said = ran({"do": "stage", "from": str(source), "to": str(target)})

    assert (target / "deep" / "weights").read_bytes() == b"x" * 1000
    assert not (tmp_path / "node" / "copy.part").exists()
    assert said.gb == 0.0


def test_existing_copy_is_not_made_again(tmp_path):
    target = tmp_path / "copy"
    target.mkdir()

    assert ran({"do": "stage", "from": str(tmp_path / "gone"), "to": str(target)}).gb is not None


def test_missing_model_is_reported(tmp_path):
    said = ran({"do": "stage", "from": "/nowhere/model", "to": str(tmp_path / "copy")}, expect=1)

    assert said.failed == "/nowhere/model does not exist"


def test_copy_that_does_not_fit_is_not_started(tmp_path):
    large = tmp_path / "large"
    large.mkdir()
    for number in range(64):
        with (large / str(number)).open("wb") as file:
            file.truncate(1 << 40)  # a hole: it takes no room here, and would there

    said = ran({"do": "stage", "from": str(large), "to": str(tmp_path / "copy")}, expect=1)

    assert said.failed.startswith(f"{large} needs 70368.7 GB, but ")
    assert not (tmp_path / "copy.part").exists()


def test_removal_deletes_complete_and_partial_copies(tmp_path):
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy.part").write_text("half")

    said = ran({"do": "remove", "to": str(tmp_path / "copy")})

    assert said.removed
    assert not list(tmp_path.iterdir())
