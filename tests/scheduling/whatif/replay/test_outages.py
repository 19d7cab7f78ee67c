"""Replays with node failures and wrong run time estimates, and the accounting of every GPU-hour."""

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmeweb.common.errors import InvalidField, InvalidInput
from scheduling.whatif.replay import fairness, plots, report, run_time_errors
from scheduling.whatif.replay.gpu_hours import gpu_hours
from scheduling.whatif.replay.kernel import Outage
from scheduling.whatif.replay.outages import FaultRates, RandomOutages
from scheduling.whatif.replay.policies import REPLAY_POLICIES
from scheduling.whatif.replay.requests import parse_policies, parse_virtual_clusters, replay_setting
from scheduling.whatif.replay.run import ReplaySetting, run_policy
from tests.properties import examples
from tests.scheduling.whatif.replay.replaying import COUNT, SMALL, job_lists, trace, watched

HARSH = FaultRates(per_1000_node_days=5e6, repair_s=20, restart_s=2, checkpoint_s=5, stall_s=1)  # a failure every 17 s


class FixedOutages:
    """A fixed list of outages, and none after that."""

    def __init__(self, storms, *outages):
        self._storms, self._outages = storms, list(outages)
        self.failure_cost_s = storms.failure_cost_s

    def outage(self, node, since):
        later = [outage for outage in self._outages if outage.node == node and outage.at >= since]
        return later[0] if later else Outage(at=math.inf, until=math.inf, node=node)


def one_job(runtime, *outages, saves=True, rates=HARSH, nodes=1):
    storms = RandomOutages(rates, [saves], seed=0)
    history = trace((0, runtime, 4))
    setting = dataclasses.replace(SMALL, nodes=nodes)
    outcome = watched(history, "fifo", setting, lambda engine, now: None, outage_model=FixedOutages(storms, *outages))
    return outcome, storms


# cost of a failure


def test_job_continues_from_its_last_checkpoint_after_a_restart():
    """Failure at 8, saved at 6 (five of work, one of saving): restarts at 18, two of restart delay, and 14 of
    20 left.
    """
    outcome, storms = one_job(20, Outage(at=8, until=18, node=0))

    assert outcome.ended == [18 + 2 + 14]
    assert storms.lost_s == [2]
    assert outcome.held_s == [8 + 2 + 14]
    assert (outcome.stops, outcome.faults) == ([1], [1])


def test_job_without_checkpoints_restarts_from_zero():
    outcome, storms = one_job(20, Outage(at=8, until=18, node=0), saves=False)

    assert outcome.ended == [18 + 2 + 20]
    assert storms.lost_s == [8]


def test_failure_during_a_restart_costs_another_restart_and_no_work():
    outcome, storms = one_job(20, Outage(at=8, until=18, node=0), Outage(at=19, until=30, node=0))

    assert outcome.ended == [30 + 2 + 14]
    assert storms.lost_s == [2]


def test_job_of_a_failed_node_moves_to_another_at_once():
    outcome, _ = one_job(20, Outage(at=8, until=500, node=0), nodes=2)

    assert outcome.ended == [8 + 2 + 14]
    assert outcome.held_s == [8 + 2 + 14]


@pytest.mark.parametrize(("runtime", "stalls"), [(4, 0), (5, 0), (6, 1), (10, 1), (11, 2), (0, 0)])
def test_last_checkpoint_before_the_end_is_not_written(runtime, stalls):
    assert HARSH.stalls_s(runtime) == stalls


@pytest.mark.parametrize("policy", REPLAY_POLICIES)
@given(jobs=job_lists, seed=st.integers(0, 5))
@examples(8)
def test_all_jobs_end_despite_node_failures_and_every_hour_is_counted(policy, jobs, seed):
    jobs = [(submit, runtime, min(gpus, 8)) for submit, runtime, gpus in jobs]
    rates = dataclasses.replace(HARSH, per_1000_node_days=1e6)
    stormy = dataclasses.replace(SMALL, faults=rates, seed=seed, preemption_cost="helios")

    first, second = (run_policy(trace(*jobs), policy, stormy) for _ in range(2))

    assert np.isfinite(first.ended_s).all()
    assert first.ended_s.tolist() == second.ended_s.tolist()
    result = report.summary(first, wall_s=1, peak_rss_mb=1)
    assert math.fsum(result["gpu_hours"].values()) == pytest.approx(12 * result["makespan_s"] / 3600, rel=1e-12)
    assert all(hours >= -1e-9 for hours in result["gpu_hours"].values()), result["gpu_hours"]
    assert result["gpu_hours"]["productive"] == pytest.approx(sum(r * g for _, r, g in jobs) / 3600)


def test_rate_of_zero_means_no_outages():
    calm = dataclasses.replace(SMALL, faults=FaultRates(per_1000_node_days=0, stall_s=0))

    assert run_policy(trace((0, 5, 4), (1, 5, 12)), "fifo", calm).ended_s.tolist() == [5, 10]


def test_nodes_fail_at_the_given_rate():
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
        ("lightning=1", "'lightning' is not one of checkpoint_s"),
        ("repair_s=soon", "repair_s=soon is not a number"),
        ("repair_s=0", "must be above 0"),
        ("restart_s=-1", "at least 0"),
        ("restart_s=nan", "at least 0"),
    ],
)
def test_invalid_rates_are_rejected(text, sentence):
    with pytest.raises(InvalidField, match=sentence):
        FaultRates.parse(text)


def test_unspecified_rates_keep_their_defaults():
    assert FaultRates.parse("rates") == FaultRates()
    assert FaultRates.parse("repair_s=60, restart_s=1") == FaultRates(repair_s=60, restart_s=1)


# GPU-hours


def test_buckets_show_why_gpus_were_free():
    """Eight of twelve GPUs run for 100 s while a job for twelve waits, so four are kept free for it."""
    done = run_policy(trace((0, 100, 8), (1, 10, 12), (1, 1, 1)), "fifo", SMALL)

    hours = gpu_hours(done, 111)

    assert hours["productive"] * 3600 == pytest.approx(800 + 120 + 1)
    assert hours["reserved_idle"] + hours["fragmented"] == pytest.approx(400 / 3600, rel=0.1)
    assert hours["down"] == hours["lost_work"] == 0


def test_free_gpus_unusable_for_typical_jobs_are_fragmented():
    """All jobs need a whole node of four GPUs, and each node has a job of three."""
    jobs = [(0, 100, 3)] * 3 + [(1, 10, 4)] * 30

    done = run_policy(trace(*jobs), "fifo", SMALL)

    assert report.summary(done, wall_s=1, peak_rss_mb=1)["fragmentation"] > 0.5


# fairness


def shares(*jobs, users):
    return fairness.fairness(run_policy(trace(*jobs, users=users), "fifo", COUNT))


def test_single_user_is_treated_fairly():
    shares_by_user = shares((0, 100, 12), users=["a"])

    assert (shares_by_user["finish_time_ratio_mean"], shares_by_user["jain"], shares_by_user["finish_time_jain"]) == (
        1,
        1,
        1,
    )


def test_finish_time_ratio_compares_with_an_own_share_of_the_cluster():
    """Two users, one of them present half the time: a share is eight GPUs of twelve, on which each job would take 150
    s.
    """
    shares_by_user = shares((0, 100, 12), (0, 100, 12), users=["a", "b"])

    assert shares_by_user["finish_time_ratio_max"] == pytest.approx(200 / 150)
    assert shares_by_user["finish_time_ratio_mean"] == pytest.approx((100 / 150 + 200 / 150) / 2)
    assert shares_by_user["worst_user_slowdown"] == 2


# estimates


def test_helios_errors_have_the_published_distribution():
    true = np.full(50_000, 100.0)

    guessed = run_time_errors.expected_run_times(true, "helios", 1)

    off = np.maximum(guessed / true, true / guessed) - 1
    for within, share in ((0.1, 10), (0.5, 50), (1.0, 70), (10.0, 90), (100.1, 100)):
        assert (off <= within).mean() * 100 == pytest.approx(share, abs=1)
    assert (guessed > true).mean() == pytest.approx(0.5, abs=0.02)


def test_no_noise_gives_true_run_times_and_a_seed_is_reproducible():
    true = np.array([1.0, 2.0])

    assert run_time_errors.expected_run_times(true, "none", 1).tolist() == [1, 2]
    assert (
        run_time_errors.expected_run_times(true, "0.5", 1).tolist()
        == run_time_errors.expected_run_times(true, "0.5", 1).tolist()
        != [1, 2]
    )


def test_wrong_estimates_delay_jobs_but_do_not_change_run_times():
    jobs = trace(*[(n, 1 + n * 37 % 90, 1 + n * 5 % 12) for n in range(80)])
    wrong = dataclasses.replace(COUNT, noise="helios")

    def mean_jct(policy, told):
        done = run_policy(jobs, policy, told)
        assert done.held_s == pytest.approx(done.trace.runtime_s)
        return (done.ended_s - done.trace.submit_s).mean()

    assert mean_jct("sjf", wrong) > mean_jct("sjf", COUNT)
    assert mean_jct("easy", wrong) != mean_jct("easy", COUNT)


@pytest.mark.parametrize("policy", REPLAY_POLICIES)
@given(jobs=job_lists, seed=st.integers(0, 5))
@examples(10)
def test_all_jobs_end_with_arbitrarily_wrong_estimates(policy, jobs, seed):
    done = run_policy(trace(*jobs), policy, dataclasses.replace(SMALL, noise="helios", seed=seed))

    assert np.isfinite(done.ended_s).all()
    assert done.held_s == pytest.approx(done.trace.runtime_s)


# settings


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
def test_invalid_setting_is_rejected_by_field(given, field):
    with pytest.raises(InvalidField) as refused:
        replay_setting(**given)

    assert refused.value.field == field


def test_duplicate_policies_are_removed():
    assert parse_policies(" fifo,easy ,fifo") == ["fifo", "easy"]


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (["a,2", "a,3"], "line 3: duplicate entry 'a'"),
        (["a,two"], "line 2: 'a' with 'two' nodes"),
        (["a,0"], "is not a virtual cluster"),
        ([",4"], "is not a virtual cluster"),
        (["a"], "line 2: expected 2 values, found 1"),
        (["a,²"], "is not a virtual cluster"),
        ([], "contains no virtual cluster"),
    ],
)
def test_invalid_virtual_cluster_table_is_rejected_by_line(rows, why):
    with pytest.raises(InvalidField, match=why):
        parse_virtual_clusters(["vc,nodes\n", *(f"{row}\n" for row in rows)], "vcs.csv")


# virtual clusters that share


def test_cells_let_a_virtual_cluster_use_any_free_nodes():
    jobs = trace((0, 10, 4), (0, 10, 4), (0, 10, 4), pools=["a", "b", "a"])
    setting = ReplaySetting(nodes=3, gpus_per_node=4, placement="cells", pools={"a": 1, "b": 1})

    done = run_policy(jobs, "fifo-skip", setting)

    assert done.started_s.tolist() == [0, 0, 10]  # one node of three is neither guaranteed nor requested
    assert done.setting.gpus == 12


# plots


def test_plots_are_reproducible_svg_and_png(tmp_path):
    pytest.importorskip("matplotlib")
    done = run_policy(trace(*[(n, 50, 4) for n in range(20)]), "fifo", SMALL)
    plots.check_plots(str(tmp_path / "new"))

    files = plots.draw([done, done], tmp_path / "new")

    assert sorted(path.name for path in files) == [
        *("queue-delay.png", "queue-delay.svg", "utilisation.png", "utilisation.svg"),
    ]
    assert all(path.read_bytes()[:4] in (b"\x89PNG", b"<?xm") for path in files)


def test_invalid_plot_directory_is_rejected_before_the_replay(tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "file").write_text("")

    with pytest.raises(InvalidInput, match="plots: "):
        plots.check_plots(str(tmp_path / "file/dir"))


def test_report_is_always_valid_json():
    empty = run_policy(trace(), "fifo", SMALL)
    result = report.summary(empty, wall_s=0, peak_rss_mb=0)

    assert json.loads(json.dumps(result, allow_nan=False))["jobs"] == 0
