import numpy as np
import pytest

from scheduling.research.widths.phases import Phase, PhasedJob
from scheduling.research.widths.replay import ElasticJob, ElasticSetting, NodeGroup, replay_elastic
from scheduling.research.widths.turns import TakeTurns

PHASES = [Phase(100.0, 2.0, 10), Phase(50.0, 1.0, 80)]


class AllTheTime(TakeTurns):
    name = "all"

    def fractions(self, view):
        return {job.number: 1.0 for job in view.jobs}


def model(*, knows_phases=True, gpus=1):
    return PhasedJob(PHASES, gpus, knows_phases=knows_phases)


def test_job_runs_as_long_as_its_phases():
    setting = ElasticSetting(groups=(NodeGroup(1, 1),), round_s=120.0, restart_s=20.0)

    outcome = replay_elastic([ElasticJob(submit_s=0.0, gpus=1, models=(model(),))], AllTheTime(), setting)

    assert outcome.ended_s.tolist() == [pytest.approx(20 + 150)]


def test_time_left_counts_later_phases_if_they_are_known():
    assert model().forecast(30.0).seconds_left(1, 1) == pytest.approx(120)


def test_unknown_phases_are_believed_to_go_on_at_the_present_speed():
    """4,000 examples at 80 per second later are 200 s at 20 per second."""
    assert model(knows_phases=False).forecast(30.0).seconds_left(1, 1) == pytest.approx(70 + 200)


def test_speed_is_that_of_the_present_phase():
    speeds = [model().forecast(at).speeds(np.array([1]), np.array([1])).tolist() for at in (0.0, 99.0, 100.0, 150.0)]

    assert speeds == [[2.0], [2.0], [1.0], [1.0]]
