"""The short storm: what `make chaos` does for ten minutes, with faults that take seconds."""

from __future__ import annotations

import os

import pytest

from tests.chaos.storm import Settings, chaos


@pytest.mark.chaos
@pytest.mark.timeout(1500)
def test_nothing_is_lost_run_twice_or_held_twice_in_a_storm(tmp_path):
    seed = int(os.environ.get("CHAOS_SEED", "1"))
    settings = Settings(seed=seed, storm_s=45, jobs=300, most_unfinished=40, trainings=0, quick=True)

    line, broken = chaos(tmp_path / "var", settings)

    print(line)
    assert broken == [], line
