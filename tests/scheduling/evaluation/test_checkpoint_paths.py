"""Run and step of checkpoint paths, and the default names of campaigns."""

from __future__ import annotations

import pytest

from scheduling.evaluation.rules.checkpoint_paths import (
    MAX_CAMPAIGN_NAME,
    checkpoint_place,
    default_campaign_name,
)


@pytest.mark.parametrize(
    ("path", "run", "step"),
    [
        ("/c/run/step-1000", "/c/run", 1000),
        ("/c/run/step-1000/", "/c/run", 1000),
        ("/c/run/iter_0002000", "/c/run", 2000),
        ("/c/run/global_step300", "/c/run", 300),
        ("/c/run/checkpoint-40/hf", "/c/run", 40),
        ("/c/run/epoch=2-step=1000.ckpt", "/c/run", 1000),
        ("/c/run/5000", "/c/run", 5000),
        ("/c/step-2-layers/final", "/c/step-2-layers", None),
        ("/c/step-2-layers/step-7", "/c/step-2-layers", 7),
        ("/c/run/final", "/c/run", None),
        ("/model", "/", None),
        ("/c/llama-7b", "/c", None),
    ],
)
def test_a_path_names_its_run_and_its_step(path, run, step):
    place = checkpoint_place(path)

    assert (place.run, place.step) == (run, step)


@pytest.mark.parametrize(
    ("checkpoints", "name"),
    [
        (["/c/run/step-1000"], "run, step 1,000, core v1"),
        (["/c/run/step-2000", "/c/run/step-1000"], "run, 2 checkpoints of steps 1,000 to 2,000, core v1"),
        (["/c/one/step-1", "/c/two/step-1"], "2 runs, core v1"),
        (["/models/llama-7b"], "llama-7b, core v1"),
        (["/models/llama-7b", "/models/llama-13b"], "models, core v1"),
        (["/"], "model, core v1"),
        (["/c/ru\x07n/step-1"], "ru\ufffdn, step 1, core v1"),
    ],
)
def test_a_campaign_without_a_name_gets_one_from_its_run_and_suite(checkpoints, name):
    assert default_campaign_name(checkpoints, "core v1") == name


def test_a_default_name_fits_into_its_column():
    name = default_campaign_name([f"/c/{'x' * 300}/step-1"], "core v1")

    assert len(name) == MAX_CAMPAIGN_NAME and name.endswith("x, step 1, core v1")
