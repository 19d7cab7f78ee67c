"""The arithmetic of the accuracy bench: a wrong bench would praise a wrong engine."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from tests.failures.diagnosis.samples import HEALTHY, SAMPLES

PATH = Path(__file__).resolve().parents[3] / "bench" / "diagnosis.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_diagnosis", PATH)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_macro_f1_weighs_each_label_equally(bench: ModuleType) -> None:
    assert bench.macro_f1(["a", "a", "a", "b"], ["a", "a", "a", "a"]) == pytest.approx((6 / 7 + 0) / 2)
    assert bench.macro_f1(["a", "b"], ["a", "b"]) == 1


def test_naive_answer_is_the_last_error_word(bench: ModuleType) -> None:
    assert bench.last_error_name("KeyError: x\ntorch.DistBackendError: y") == "DistBackendError"
    assert bench.last_error_name("fine") == "None"


def test_halves_are_disjoint_complete_and_reproducible(bench: ModuleType) -> None:
    rows = [{"id": at, "root_cause": "abc"[at % 3], "log": ""} for at in range(31)]

    develop, report = (bench.select_half(rows, half, 7) for half in ("develop", "report"))

    assert sorted(row["id"] for row in develop + report) == list(range(31))
    assert develop == bench.select_half(rows, "develop", 7)


def test_report_prints_f1_and_healthy_logs(
    bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.jsonl"
    rows = [{"log": one.log, "root_cause": one.label, "evidence_line": one.shows, "cascade": True} for one in SAMPLES]
    rows += [{"log": log, "root_cause": "None", "acceptable": []} for log in HEALTHY.values()]
    path.write_text("\n".join(json.dumps(row) for row in rows))

    bench.print_accuracy(bench.read_labeled_logs(path), misses=True)

    said = capsys.readouterr().out
    assert "macro F1                   1.000" in said
    assert f"healthy called a failure   0 of {len(HEALTHY)}" in said


def test_generated_log_ends_with_its_failure(bench: ModuleType) -> None:
    text = b"".join(bench.generate_log(300_000)).decode()

    assert 250_000 < len(text) < 400_000
    assert "[rank39]" in text
    assert "uncorrectable ECC" in text[-12_000:]


def test_leave_one_out_prints_verdicts_without_the_deciding_signature(capsys: pytest.CaptureFixture[str]) -> None:
    from bench.logs import variants

    torn = {"id": "torn", "root_cause": "CheckpointCorrupt", "log": "RuntimeError: PytorchStreamReader failed"}
    silent = {"id": "silent", "root_cause": "NodeFailure", "log": "Warning  NodeNotReady  pod/llm-7b-worker-3"}
    named = {"id": "named", "root_cause": "KeyError", "log": "KeyError: 'loss'"}

    variants.print_leave_one_out([torn, silent, named])

    first, blamed, *rows = capsys.readouterr().out.splitlines()
    assert first == "2 depend on a signature; without it 0 stay right, 1 unknown"
    assert blamed.startswith("0 infrastructure failures")
    assert [row.split(": ")[1] for row in rows] == [
        "torn CheckpointCorrupt → RuntimeError",
        "silent NodeFailure → None",
    ]


def test_variants_that_change_the_label_are_counted() -> None:
    from bench.logs import variants

    row = {"id": "one", "root_cause": "KeyError", "evidence_line": "KeyError: 'loss'"}
    row["log"] = "Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\nKeyError: 'loss'"

    assert [variants.find_flips(name, change, [row]) for name, change in variants.log_variants().items()] == [
        [] for _ in variants.log_variants()
    ]
    assert variants.find_flips("emptied", lambda row, lines: [""], [row]) == [("emptied", row, "Unknown")]
    assert variants.find_flips("not possible", lambda row, lines: None, [row]) == []
