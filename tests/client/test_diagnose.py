"""`acme diagnose`: the server's engine in the client's wheel, without a server and without Django."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from acme_client.cli import app
from typer.testing import CliRunner

ROOT = Path(__file__).resolve().parents[2]
ECC = "[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"


def diagnosed(*words: str, stdin: str = "") -> tuple[int, str]:
    result = CliRunner().invoke(app, ["diagnose", *words], input=stdin)
    return result.exit_code, result.output


def test_json_output_is_one_object_per_line_in_order(tmp_path: Path) -> None:
    sick, well = tmp_path / "sick.log", tmp_path / "well.log"
    sick.write_text(ECC)
    well.write_text("step 1 loss 2.0\nstep 2 loss 1.9\n")

    code, out = diagnosed("--json", str(sick), str(well))

    answers = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [(one["file"], one["root_cause"]) for one in answers] == [(str(sick), "ECCError"), (str(well), "None")]


def test_missing_file_is_named_and_the_others_are_diagnosed(tmp_path: Path) -> None:
    sick = tmp_path / "sick.log"
    sick.write_text(ECC)

    code, out = diagnosed("/no/such.log", str(sick))

    assert code == 2
    assert out.startswith("/no/such.log cannot be read: No such file or directory.\n")
    assert "ECCError" in out


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (bytes(range(128, 256)) * 40, "This is binary data, not a text file. Use the log itself."),
        (b"\x7fELF" + bytes(200), "This is a program, not a text file. Unpack it, or use the log itself."),
        (b"PK\x03\x04" + bytes(200), "This is a zip archive, not a text file. Unpack it, or use the log itself."),
    ],
)
def test_binary_file_gets_one_sentence_and_no_diagnosis(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "what.log"
    path.write_bytes(content)

    code, out = diagnosed(str(path))

    assert code == 2
    assert out.splitlines() == [f"{path}: {sentence}", "acme: 1 of 1 files could not be read."]


def test_empty_log_is_diagnosed(tmp_path: Path) -> None:
    path = tmp_path / "silent.log"
    path.touch()

    code, out = diagnosed(str(path))

    assert code == 0
    assert "the cause is not in this log (0 lines)" in out
    assert "The log is empty." in out


@pytest.mark.parametrize("signal", ["9", "KILL", "SIGKILL"])
def test_a_signal_is_a_number_or_a_name(tmp_path: Path, signal: str) -> None:
    empty = tmp_path / "empty.log"
    empty.touch()

    _, out = diagnosed("--signal", signal, str(empty))

    assert "HostOOMKilled" in out


def test_unknown_signal_is_wrong_usage() -> None:
    code, out = diagnosed("--signal", "LOUD", "-")

    assert code == 2
    assert "'LOUD' is not a signal" in out


def test_the_wheel_carries_the_whole_engine_and_the_table_of_request_fields(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT / "client", check=True, capture_output=True)

    carried = set(zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist())

    engine = ROOT / "failures" / "diagnosis"
    wanted = {path.relative_to(engine) for kind in ("*.py", "*.csv") for path in engine.rglob(kind)}
    assert {f"acme_client/diagnosis/{path.as_posix()}" for path in wanted} <= carried
    assert "acme_client/request_fields.py" in carried


def test_the_engine_needs_neither_django_nor_the_server(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['django'] = sys.modules['failures'] = None\n"
        "from acme_client.diagnosis import engine\n"
        f"print(engine.diagnose_text({ECC!r}).root_cause)"
    )

    out = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT / "client", check=True, capture_output=True, text=True
    )

    assert out.stdout.strip() == "ECCError"
