"""The command as people and programs call it; a process of its own proves that it needs no server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from tests.failures.diagnosis.samples import HEALTHY, SAMPLES
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[3]
KEYS = {
    "file", "root_cause", "category", "confidence", "evidence", "chain", "suspect_nodes", "suspect_gpus",
    "restart_helps", "action", "alternatives", "engine", "rules_version",
}  # fmt: skip


@pytest.fixture
def logs(tmp_path: Path) -> list[str]:
    for at, sample in enumerate(SAMPLES):
        (tmp_path / f"{at:03d}.log").write_text(sample.log, encoding="utf-8")
    return [str(path) for path in sorted(tmp_path.glob("*.log"))]


def told(*words: str) -> list[dict[str, Any]]:
    out = StringIO()
    call_command("diagnose", *words, "--json", stdout=out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def alone(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """With nothing in the environment that would lead to a server."""
    return subprocess.run(
        [sys.executable, "manage.py", "diagnose", *words], cwd=ROOT, input=stdin, capture_output=True, check=False,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"}, timeout=PATIENCE_S,
    )  # fmt: skip


def test_json_output_has_one_object_per_file_in_order(logs: list[str]) -> None:
    answers = told(*reversed(logs))

    assert [answer["file"] for answer in answers] == list(reversed(logs))
    assert [answer["root_cause"] for answer in reversed(answers)] == [sample.label for sample in SAMPLES]


def test_json_object_has_all_keys(logs: list[str]) -> None:
    (answer,) = told(logs[0])

    assert set(answer) >= KEYS
    assert answer["engine"] == "signature"
    assert answer["evidence"][0].keys() >= {"line", "text", "rank", "time"}


def test_command_reads_standard_input_without_a_server() -> None:
    done = alone("-", "--json", stdin=SAMPLES[0].log.encode())

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["root_cause"] == "ECCError"


def test_text_output_has_cause_line_and_restart_advice(logs: list[str]) -> None:
    out = StringIO()

    call_command("diagnose", logs[0], stdout=out)

    text = out.getvalue()
    assert "ECCError (Infrastructure" in text
    assert "line 6: [rank5]: torch.AcceleratorError" in text
    assert "restart helps: yes" in text


def test_text_output_reports_that_nothing_failed(tmp_path: Path) -> None:
    path, out = tmp_path / "fine.log", StringIO()
    path.write_text(HEALTHY["optional libraries"])

    call_command("diagnose", str(path), stdout=out)

    assert "nothing failed" in out.getvalue()


def test_control_characters_of_a_log_are_not_printed(tmp_path: Path) -> None:
    path, out = tmp_path / "rude.log", StringIO()
    path.write_bytes(b"ValueError: \x08\x08\x9b2J boo\n")

    call_command("diagnose", str(path), stdout=out)

    assert "\x08" not in out.getvalue()


@pytest.mark.parametrize(
    "words", [["--exit-code", "137"], ["--signal", "9"], ["--signal", "KILL"], ["--signal", "sigkill"]]
)
def test_exit_code_and_signal_are_evidence(words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "silent.log"
    path.write_text("step 1 loss 2.0\n")

    assert told(str(path), *words)[0]["root_cause"] == "HostOOMKilled"


def test_unknown_signal_is_rejected(logs: list[str]) -> None:
    with pytest.raises(CommandError, match="signal"):
        call_command("diagnose", logs[0], "--signal", "LOUD")


def test_missing_file_gets_a_sentence_and_the_others_a_diagnosis(logs: list[str], tmp_path: Path) -> None:
    out = StringIO()

    with pytest.raises(CommandError, match="1 of 2 files could not be read"):
        call_command("diagnose", str(tmp_path / "none.log"), logs[0], "--json", stdout=out)

    missing, found = (json.loads(line) for line in out.getvalue().splitlines())
    assert "cannot be read" in missing["notes"][0]
    assert missing["root_cause"] == "Unknown"
    assert found["root_cause"] == "ECCError"


def test_directory_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(CommandError):
        call_command("diagnose", str(tmp_path), stdout=StringIO())


def test_thousand_files_are_diagnosed_in_order(logs: list[str]) -> None:
    many = (logs * 40)[:1000]
    answers = told(*many)

    assert [one["file"] for one in answers] == many
