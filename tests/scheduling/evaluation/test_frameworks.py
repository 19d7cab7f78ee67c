"""The commands of frameworks, run as in a trial: their arguments, and the parsing of their results."""

import json
import os
import subprocess

import pytest

from scheduling.evaluation.rules.frameworks import (
    LM_EVAL,
    LM_EVAL_RESULT,
    OPENCOMPASS,
    OPENCOMPASS_RESULT,
)

ASKED = {"ACME_MODEL": "/ckpt/a b", "ACME_DATASET": "arc_easy"}
ALL = 20
# In the shape that lm-evaluation-harness 0.4.13 writes
ANSWER = {
    "n-samples": {"arc_easy": {"original": 20, "effective": 5}},
    "results": {
        "arc_easy": {
            "alias": "arc_easy",
            "sample_len": 5,
            "acc,none": 0.4,
            "acc_stderr,none": 0.1,
            "exact_match,strict": 0.2,
        }
    },
}


@pytest.fixture
def trial(tmp_path):
    """Runs a command as for the samples from `start` to `end`; programs beside it stand for the frameworks' own."""
    (tmp_path / "bin").mkdir()
    for name in ("lm_eval", "opencompass"):
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\nfor word in "$@"; do echo "$word"; done > {tmp_path}/asked\n')
        program.chmod(0o755)

    def run(command, start, end):
        own = {"ACME_OUTPUT": str(tmp_path), "ACME_RESULT": str(tmp_path / "result.json")}
        own |= {"ACME_START": str(start), "ACME_END": str(end), "ACME_SAMPLES": str(end - start)}
        own |= {"ACME_ALL_SAMPLES": "1" if end - start == ALL else "", "PATH": f"{program.parent}:{os.environ['PATH']}"}
        return subprocess.run(["sh", "-c", command], env=ASKED | own, capture_output=True, text=True, check=False)

    return run


def test_part_of_a_dataset_is_requested_by_samples(trial, tmp_path):
    assert trial(LM_EVAL, 5, 8).returncode == 0

    words = (tmp_path / "asked").read_text().splitlines()
    assert words[words.index("--samples") + 1] == str(tmp_path / "samples.json")
    assert words[words.index("--model_args") + 1] == "pretrained=/ckpt/a b"
    assert json.loads((tmp_path / "samples.json").read_text()) == {"arc_easy": [5, 6, 7]}


def test_whole_dataset_is_requested_by_name_so_groups_work(trial, tmp_path):
    assert trial(LM_EVAL, 0, ALL).returncode == 0

    assert "--samples" not in (tmp_path / "asked").read_text().splitlines()


def test_scores_of_lm_eval_are_read_without_standard_errors(trial, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "results_2026-01-01.json").write_text(json.dumps(ANSWER))

    assert trial(LM_EVAL_RESULT, 0, 5).returncode == 0

    assert json.loads((tmp_path / "result.json").read_text()) == {"acc": 0.4, "exact_match strict": 0.2}


def test_split_group_fails_with_advice(trial, tmp_path):
    whole = {"arc_easy": {"original": 20, "effective": 20}}
    (tmp_path / "results_2026-01-01.json").write_text(json.dumps(ANSWER | {"n-samples": whole}))

    ended = trial(LM_EVAL_RESULT, 0, 5)

    assert ended.returncode == 1
    assert "processed 20 samples instead of 5" in ended.stderr and "parts: 1" in ended.stderr
    assert not (tmp_path / "result.json").exists()


def left(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(("name", "code"), [("gsm8k.json", 0), ("tmp_gsm8k.json", 1)])
def test_opencompass_without_predictions_fails(trial, tmp_path, name, code):
    left(tmp_path / "work" / "20260101_000000" / "predictions" / "model" / name, {})

    ended = trial(OPENCOMPASS, 0, ALL)

    assert (ended.returncode, "wrote no predictions" in ended.stderr) == (code, bool(code))


def test_newest_run_of_opencompass_counts(trial, tmp_path):
    left(tmp_path / "work" / "20260101_000000" / "results" / "model" / "math.json", {"accuracy": 1.0})
    left(tmp_path / "work" / "20260102_000000" / "results" / "model" / "gsm8k.json", {"accuracy": 55.5, "details": {}})

    assert trial(OPENCOMPASS_RESULT, 0, ALL).returncode == 0

    assert json.loads((tmp_path / "result.json").read_text()) == {"gsm8k accuracy": 55.5}
