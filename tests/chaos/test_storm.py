"""The short storm: like `make chaos`, but with short faults and fewer jobs."""

from __future__ import annotations

import os

import pytest

from tests.chaos.storm import KINDS, Settings, chaos


@pytest.mark.system
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("kind", KINDS)
def test_storm_loses_no_job_and_runs_or_allocates_nothing_twice(kind, tmp_path):
    seed = int(os.environ.get("CHAOS_SEED", "1"))
    settings = Settings(
        seed=seed, storm_s=45, jobs=300, most_unfinished=40, trainings=0, quick=True, only_kinds=(kind,)
    )

    line, broken = chaos(tmp_path / "var", settings)

    print(line)
    assert broken == [], line
