"""Replays in which nodes break, run times are guessed wrong, and every GPU-hour is accounted for."""

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.engine.policies import POLICY_RULES
from scheduling.replay import fairness, plots, report, run_time_errors
from scheduling.replay.gpu_hours import gpu_hours
from scheduling.replay.kernel import Outage
from scheduling.replay.outages import FaultRates, InvalidFaultRates, RandomOutages
from scheduling.replay.requests import InvalidReplaySetting, parse_policies, parse_virtual_clusters, replay_setting
from scheduling.replay.run import ReplaySetting, run_policy
from tests.scheduling.replay.replaying import COUNT, SMALL, examples, job_lists, trace, watched

HARSH = FaultRates(per_1000_node_days=5e6, repair_s=20, restart_s=2, checkpoint_s=5, stall_s=1)  # a break every 17 s


class Told:
    """Weather that is written down: these outages, and for the rest of time none."""

    def __init__(self, storms, *outages):
        self._storms, self._outages = storms, list(outages)
        self.cost_s = storms.cost_s

    def outage(self, node, since):
        mine = [one for one in self._outages if one.node == node and one.at >= since]
        return mine[0] if mine else Outage(at=math.inf, until=math.inf, node=node)


def one_job(runtime, *outages, saves=True, rates=HARSH, nodes=1):
    storms = RandomOutages(rates, [saves], seed=0)
    history = trace((0, runtime, 4))
    told = dataclasses.replace(SMALL, nodes=nodes)
    outcome = watched(history, "fifo", told, lambda engine, now: None, weather=Told(storms, *outages))
    return outcome, storms


# what a break costs


def test_a_job_goes_on_from_its_last_checkpoint_after_a_restart():
    """Broken at 8, saved at 6 (five of work, one of saving): back at 18, two of restart, and 14 left of 20."""
    outcome, storms = one_job(20, Outage(at=8, until=18, node=0))

    assert outcome.ended == [18 + 2 + 14]
    assert storms.lost_s == [2]
    assert outcome.held_s == [8 + 2 + 14]
    assert (outcome.stops, outcome.faults) == ([1], [1])


def test_work_that_saves_nothing_starts_from_nothing():
    outcome, storms = one_job(20, Outage(at=8, until=18, node=0), saves=False)

    assert outcome.ended == [18 + 2 + 20]
    assert storms.lost_s == [8]


def test_a_break_during_the_restart_costs_the_restart_again_and_no_work():
    outcome, storms = one_job(20, Outage(at=8, until=18, node=0), Outage(at=19, until=30, node=0))

    assert outcome.ended == [30 + 2 + 14]
    assert storms.lost_s == [2]


def test_another_node_takes_it_at_once():
    outcome, _ = one_job(20, Outage(at=8, until=500, node=0), nodes=2)

    assert outcome.ended == [8 + 2 + 14]
    assert outcome.held_s == [8 + 2 + 14]


@pytest.mark.parametrize(("runtime", "stalls"), [(4, 0), (5, 0), (6, 1), (10, 1), (11, 2), (0, 0)])
def test_the_last_checkpoint_before_the_end_is_not_written(runtime, stalls):
    assert HARSH.stalls_s(runtime) == stalls


@pytest.mark.parametrize("policy", POLICY_RULES)
@given(jobs=job_lists, seed=st.integers(0, 5))
@examples(8)
def test_everybody_ends_though_nodes_break_and_every_hour_is_accounted_for(policy, jobs, seed):
    jobs = [(submit, runtime, min(gpus, 8)) for submit, runtime, gpus in jobs]
    rates = dataclasses.replace(HARSH, per_1000_node_days=1e6)
    stormy = dataclasses.replace(SMALL, faults=rates, seed=seed, preemption_cost="helios")

    first, second = (run_policy(trace(*jobs), policy, stormy) for _ in range(2))

    assert np.isfinite(first.ended_s).all()
    assert first.ended_s.tolist() == second.ended_s.tolist()
    told = report.summary(first, wall_s=1, peak_rss_mb=1)
    assert math.fsum(told["gpu_hours"].values()) == pytest.approx(12 * told["makespan_s"] / 3600, rel=1e-12)
    assert all(hours >= -1e-9 for hours in told["gpu_hours"].values()), told["gpu_hours"]
    assert told["gpu_hours"]["productive"] == pytest.approx(sum(r * g for _, r, g in jobs) / 3600)


def test_no_rate_is_no_weather():
    calm = dataclasses.replace(SMALL, faults=FaultRates(per_1000_node_days=0, stall_s=0))

    assert run_policy(trace((0, 5, 4), (1, 5, 12)), "fifo", calm).ended_s.tolist() == [5, 10]


def test_nodes_break_as_often_as_the_rate_says():
    storms = RandomOutages(FaultRates(per_1000_node_days=100, repair_s=3600), [], seed=3)
    at, outages = 0.0, []
    for _ in range(3000):
        outages.append(storms.outage(0, at))
        at = outages[-1].until

    assert 3000 / (sum(one.until - one.at for one in outages) / 3600) == pytest.approx(1, rel=0.1)
    assert at / 86_400 / 3000 == pytest.approx(10 + 1 / 24, rel=0.1)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("lightning=1", "'lightning' is none of checkpoint_s"),
        ("repair_s=soon", "repair_s=soon is not a number"),
        ("repair_s=0", "must be above 0"),
        ("restart_s=-1", "at least 0"),
        ("restart_s=nan", "at least 0"),
    ],
)
def test_rates_that_are_none_are_refused(text, sentence):
    with pytest.raises(InvalidFaultRates, match=sentence):
        FaultRates.parse(text)


def test_some_rates_are_given_and_the_others_stay():
    assert FaultRates.parse("rates") == FaultRates()
    assert FaultRates.parse("repair_s=60, restart_s=1") == FaultRates(repair_s=60, restart_s=1)


# where the hours go


def test_the_buckets_say_why_gpus_were_free():
    """Eight of twelve GPUs run for 100 s, and all that time somebody who wants twelve waits: four are kept for him."""
    done = run_policy(trace((0, 100, 8), (1, 10, 12), (1, 1, 1)), "fifo", SMALL)

    hours = gpu_hours(done, 111)

    assert hours["productive"] * 3600 == pytest.approx(800 + 120 + 1)
    assert hours["reserved_idle"] + hours["fragmented"] == pytest.approx(400 / 3600, rel=0.1)
    assert hours["down"] == hours["lost_work"] == 0


def test_free_gpus_that_no_typical_job_can_use_are_fragments():
    """Everybody wants a whole node of four, and each node is held by a job of three."""
    jobs = [(0, 100, 3)] * 3 + [(1, 10, 4)] * 30

    done = run_policy(trace(*jobs), "fifo", SMALL)

    assert report.summary(done, wall_s=1, peak_rss_mb=1)["fragmentation"] > 0.5


# fairness


def shares(*jobs, users):
    return fairness.fairness(run_policy(trace(*jobs, users=users), "fifo", COUNT))


def test_who_has_the_cluster_alone_is_treated_fairly():
    told = shares((0, 100, 12), users=["a"])

    assert (told["finish_time_ratio_mean"], told["jain"], told["finish_time_jain"]) == (1, 1, 1)


def test_the_finish_time_ratio_is_what_a_part_of_ones_own_would_take():
    """Two users, one of them half the time: a part is eight GPUs of twelve, on which each job would take 150 s."""
    told = shares((0, 100, 12), (0, 100, 12), users=["a", "b"])

    assert told["finish_time_ratio_max"] == pytest.approx(200 / 150)
    assert told["finish_time_ratio_mean"] == pytest.approx((100 / 150 + 200 / 150) / 2)
    assert told["worst_user_slowdown"] == 2


# guesses


def test_guesses_are_off_as_often_as_helios_says():
    true = np.full(50_000, 100.0)

    guessed = run_time_errors.expected_run_times(true, "helios", 1)

    off = np.maximum(guessed / true, true / guessed) - 1
    for within, share in ((0.1, 10), (0.5, 50), (1.0, 70), (10.0, 90), (100.1, 100)):
        assert (off <= within).mean() * 100 == pytest.approx(share, abs=1)
    assert (guessed > true).mean() == pytest.approx(0.5, abs=0.02)


def test_no_noise_is_the_truth_and_a_seed_repeats_it():
    true = np.array([1.0, 2.0])

    assert run_time_errors.expected_run_times(true, "none", 1).tolist() == [1, 2]
    assert (
        run_time_errors.expected_run_times(true, "0.5", 1).tolist()
        == run_time_errors.expected_run_times(true, "0.5", 1).tolist()
        != [1, 2]
    )


def test_wrong_guesses_cost_sjf_and_backfilling_but_nobody_his_run_time():
    jobs = trace(*[(n, 1 + n * 37 % 90, 1 + n * 5 % 12) for n in range(80)])
    wrong = dataclasses.replace(COUNT, noise="helios")

    def mean_jct(policy, told):
        done = run_policy(jobs, policy, told)
        assert done.held_s == pytest.approx(done.trace.runtime_s)
        return (done.ended_s - done.trace.submit_s).mean()

    assert mean_jct("sjf", wrong) > mean_jct("sjf", COUNT)
    assert mean_jct("easy", wrong) != mean_jct("easy", COUNT)


@pytest.mark.parametrize("policy", POLICY_RULES)
@given(jobs=job_lists, seed=st.integers(0, 5))
@examples(10)
def test_everybody_ends_however_wrong_the_guesses_are(policy, jobs, seed):
    done = run_policy(trace(*jobs), policy, dataclasses.replace(SMALL, noise="helios", seed=seed))

    assert np.isfinite(done.ended_s).all()
    assert done.held_s == pytest.approx(done.trace.runtime_s)


# what may be asked


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "nodes"),
        ({"nodes": 0}, "nodes"),
        ({"nodes": 10**7}, "nodes"),
        ({"nodes": 1, "gpus_per_node": 0}, "gpus_per_node"),
        ({"nodes": 1, "placement": "best"}, "placement"),
        ({"nodes": 1, "placement": "cells"}, "placement"),
        ({"nodes": 1, "placement": "cells", "vcs": {"a": 2}}, "vcs"),
        ({"nodes": 1, "preemption_cost": "much"}, "preemption_cost"),
        ({"nodes": 1, "noise": "11"}, "noise"),
        ({"nodes": 1, "noise": "nan"}, "noise"),
        ({"nodes": 1, "faults": "x=1"}, "faults"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_its_field(given, field):
    with pytest.raises(InvalidReplaySetting) as refused:
        replay_setting(**given)

    assert refused.value.field == field


def test_policies_are_named_once_each():
    assert parse_policies(" fifo,easy ,fifo") == ["fifo", "easy"]


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (["a,2", "a,3"], "line 3: 'a' is there twice"),
        (["a,two"], "line 2: 'a' with 'two' nodes"),
        (["a,0"], "is no virtual cluster"),
        ([",4"], "is no virtual cluster"),
        (["a"], "is no virtual cluster"),
        ([], "names no virtual cluster"),
    ],
)
def test_a_table_of_virtual_clusters_is_refused_by_its_line(rows, why):
    with pytest.raises(InvalidReplaySetting, match=why):
        parse_virtual_clusters(["vc,nodes\n", *(f"{row}\n" for row in rows)], "vcs.csv")


# virtual clusters that share


def test_cells_let_a_virtual_cluster_use_whichever_nodes_are_free():
    jobs = trace((0, 10, 4), (0, 10, 4), (0, 10, 4), pools=["a", "b", "a"])
    told = ReplaySetting(nodes=3, gpus_per_node=4, placement="cells", pools={"a": 1, "b": 1})

    done = run_policy(jobs, "fifo-skip", told)

    assert done.started_s.tolist() == [0, 0, 10]  # one node of three is promised to nobody and asked for by nobody
    assert done.setting.gpus == 12


# pictures


def test_pictures_are_drawn_as_svg_and_png_and_repeat(tmp_path):
    pytest.importorskip("matplotlib")
    done = run_policy(trace(*[(n, 50, 4) for n in range(20)]), "fifo", SMALL)
    plots.check_plots(str(tmp_path / "new"))

    files = plots.draw([done, done], tmp_path / "new")

    assert sorted(path.name for path in files) == [
        *("queue-delay.png", "queue-delay.svg", "utilisation.png", "utilisation.svg"),
    ]
    assert all(path.read_bytes()[:4] in (b"\x89PNG", b"<?xm") for path in files)


def test_a_directory_that_cannot_be_is_refused_before_the_replay(tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "file").write_text("")

    with pytest.raises(plots.PlotsUnavailable, match="plots: "):
        plots.check_plots(str(tmp_path / "file/dir"))


def test_a_report_is_json_whatever_came_out():
    empty = run_policy(trace(), "fifo", SMALL)
    told = report.summary(empty, wall_s=0, peak_rss_mb=0)

    assert json.loads(json.dumps(told, allow_nan=False))["jobs"] == 0
