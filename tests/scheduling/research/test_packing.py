"""Jobs on the GPUs of others: speeds, ends, resources and accounts, compared with a walk through time."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.zoo_systems.lucid import SlowPartners
from scheduling.whatif.replay import report
from scheduling.whatif.replay.job_profiles import ProfileRow, ProfileTable
from scheduling.whatif.replay.kernel import Outage
from scheduling.whatif.replay.run import ReplaySetting, run_policy
from tests.properties import examples
from tests.scheduling.whatif.replay.replaying import SMALL, trace, watched

TABLE = ProfileTable(
    rows=(
        ProfileRow(name="small", gpu_percent=20, memory_mb=4_000, score=0),
        ProfileRow(name="medium", gpu_percent=60, memory_mb=9_000, score=1),
        ProfileRow(name="large", gpu_percent=100, memory_mb=16_000, score=2),
    ),
    pairs={("small", "large"): (0.5, 0.8), ("medium", "medium"): (0.75, 0.5)},
)
KNOWN = {"run_times": "known"}
ONE_NODE = ReplaySetting(nodes=1, gpus_per_node=4, profiles=TABLE, policy_settings=KNOWN)


def ran(history, setting=ONE_NODE, policy="lucid"):
    done = run_policy(history, policy, setting)
    return list(zip(done.started_s.tolist(), done.ended_s.tolist(), strict=True))


def test_a_pair_runs_at_its_measured_speeds_and_alone_again_at_full_speed():
    history = trace((0, 100, 4), (10, 80, 4), names=["small", "large"])

    # From 10 to 110 the first job does 50 s of work, then it is alone with 40 s left
    assert ran(history) == [(0, 150), (10, 110)]


def test_the_order_of_a_measured_pair_does_not_matter():
    history = trace((0, 100, 4), (10, 50, 4), names=["large", "small"])

    assert ran(history) == [(0, 120), (10, 110)]


def test_jobs_that_were_not_measured_together_share_the_utilization():
    history = trace((0, 90, 4), (0, 60, 4), names=["small", "medium"])

    assert ran(history) == [(0, 90), (0, 60)]


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["medium", "large"], "classes 1 and 2"),
        (["large", "large"], "classes 2 and 2"),
        (["small", "unknown"], "no profile"),
    ],
)
def test_jobs_that_do_not_tolerate_each_other_wait(names, why):
    assert ran(trace((0, 100, 4), (10, 50, 4), names=names)) == [(0, 100), (100, 150)], why


def test_memory_of_the_gpu_limits_sharing():
    history = trace((0, 100, 4), (10, 50, 4), names=["small", "medium"])
    tight = dataclasses.replace(ONE_NODE, policy_settings=KNOWN | {"gpu_memory_mb": 13_000})

    assert ran(history, tight) == [(0, 100), (100, 150)]


def test_a_job_with_more_than_twice_the_gpu_time_does_not_join():
    assert ran(trace((0, 20, 4), (10, 50, 4), names=["small", "small"])) == [(0, 20), (20, 70)]


def test_jobs_of_different_sizes_do_not_share():
    assert ran(trace((0, 100, 4), (10, 50, 2), names=["small", "small"])) == [(0, 100), (100, 150)]


def test_a_third_job_waits_until_one_of_two_ends():
    history = trace((0, 100, 4), (0, 50, 4), (0, 60, 4), names=["small"] * 3)

    # The shortest two start; the third takes the place of the one that ends first
    assert ran(history) == [(50, 150), (0, 50), (0, 60)]


def test_gpus_are_free_again_only_after_the_last_job_on_them():
    history = trace((0, 100, 4), (10, 80, 4), (20, 10, 4), names=["small", "large", "unknown"])

    assert ran(history)[2] == (150, 160)


def test_without_profiles_no_job_shares():
    history = trace((0, 100, 4), (10, 80, 4), names=["small", "large"])

    assert ran(history, dataclasses.replace(ONE_NODE, profiles=None)) == [(0, 100), (100, 180)]


def test_names_that_differ_only_in_numbers_have_the_same_profile():
    history = trace((0, 100, 4), (10, 80, 4), names=["run-17", "run-4"])
    table = ProfileTable(rows=(ProfileRow(name="run-1", gpu_percent=10, memory_mb=10),))

    assert ran(history, dataclasses.replace(ONE_NODE, profiles=table)) == [(0, 100), (10, 90)]


def test_cpus_of_the_nodes_limit_sharing():
    history = trace((0, 100, 4), (0, 50, 4), (0, 60, 4), names=["small"] * 3, cpus=[8, 6, 4])
    counted = dataclasses.replace(ONE_NODE, cpus_per_node=10)

    assert ran(history, counted) == [(60, 160), (0, 50), (0, 60)]


def test_each_gpu_hour_is_counted_once():
    history = trace((0, 7_200, 4), (0, 7_200, 4), names=["medium", "medium"])
    found = report.summary(run_policy(history, "lucid", ONE_NODE), wall_s=1, peak_rss_mb=1)

    # At 0.75 and 0.5 of the speed: together until 9,600 s, then the second job does its last 2,400 s alone
    assert found["makespan_s"] == 12_000
    assert found["utilisation"] == pytest.approx(1)
    assert found["gpu_hours"]["productive"] == pytest.approx(4 * 12_000 / 3600)
    assert found["gpu_hours"]["recovery"] == pytest.approx(0)
    assert found["packing"] == {
        "profiled_jobs": 2,
        "profiles_are_drawn": False,
        "packed_jobs": 2,
        "slowed_h": pytest.approx((2_400 + 4_800) / 3600),
    }


def test_a_node_failure_stops_both_jobs_of_a_pair():
    history = trace((0, 100, 4), (0, 100, 4), names=["small", "small"])
    two_nodes = dataclasses.replace(ONE_NODE, nodes=2)

    done = watched(history, "lucid", two_nodes, lambda engine, now: None, outages=[Outage(at=50, until=60, node=0)])

    assert done.stops == [1, 1]
    assert done.ended == [100, 100]


def test_a_pair_that_a_node_failure_stops_keeps_the_progress_that_it_made_at_its_speed():
    history = trace((0, 100, 4), (0, 100, 4), names=["medium", "medium"])

    done = watched(history, "lucid", ONE_NODE, lambda engine, now: None, outages=[Outage(at=40, until=60, node=0)])

    # 30 s and 20 s of work were done: 70 s and 80 s are left, the shorter goes first and gets the 0.75 again
    assert done.ended[0] == pytest.approx(60 + 70 / 0.75)
    assert done.ended[1] == pytest.approx(60 + 70 / 0.75 + 80 - 0.5 * 70 / 0.75)


PLAIN = dataclasses.replace(ONE_NODE, policy_settings={})


def test_gandiva_packs_only_if_both_jobs_together_are_faster_than_one_after_the_other():
    table = ProfileTable(
        rows=tuple(ProfileRow(name=name, gpu_percent=50, memory_mb=1_000) for name in ("good", "bad")),
        pairs={("good", "good"): (0.75, 0.75), ("good", "bad"): (0.5, 0.5), ("bad", "bad"): (0.25, 0.25)},
    )
    gandiva = dataclasses.replace(PLAIN, profiles=table)

    assert ran(trace((0, 75, 4), (0, 75, 4), names=["good", "good"]), gandiva, "gandiva") == [(0, 100), (0, 100)]
    assert ran(trace((0, 75, 4), (0, 75, 4), names=["good", "bad"]), gandiva, "gandiva") == [(0, 75), (75, 150)]


def test_gandiva_prefers_free_gpus_and_then_the_least_utilized_ones():
    history = trace((0, 100, 4), (0, 100, 4), (10, 10, 4), names=["medium", "small", "large"])
    run = run_policy(history, "gandiva", dataclasses.replace(PLAIN, nodes=2))

    assert run.started_s.tolist() == [0, 0, 10]
    assert run.packed.slowed_s.tolist() == pytest.approx([0, 6.25, 2.5])  # with the small job, at 0.5 and 0.8


def test_salus_packs_as_many_jobs_as_the_memory_holds():
    history = trace(*[(0, 100, 4)] * 7, names=["small"] * 7)  # 4,000 of 24,576 MB each

    # Six fit and use 120 % of a GPU
    assert ran(history, PLAIN, "salus") == [(0, 120)] * 6 + [(120, 220)]


def test_salus_divides_the_time_of_a_gpu():
    history = trace((0, 100, 4), (0, 50, 4), names=["medium", "medium"])

    # 120 % of a GPU: both run at 5/6; the second ends at 60, the first then has 50 s left
    assert ran(history, PLAIN, "salus") == [(0, 110), (0, 60)]


def test_antman_slows_down_opportunistic_jobs_only():
    history = trace((0, 100, 4), (10, 60, 4), names=["medium", "medium"], kinds=["pretrain", "evaluation"])

    # The opportunistic job gets 40 % of the GPU for its 60 %: 2/3 of its speed
    assert ran(history, PLAIN, "antman") == [(0, 100), (10, 100)]


def test_antman_starts_a_guaranteed_job_on_the_gpus_of_an_opportunistic_one_and_lets_that_wait():
    history = trace((0, 100, 4), (10, 60, 4), names=["small", "large"], kinds=["evaluation", "pretrain"])

    assert ran(history, PLAIN, "antman") == [(0, 160), (10, 70)]


def test_antman_never_lets_two_guaranteed_jobs_share():
    history = trace((0, 100, 4), (10, 60, 4), names=["small", "small"], kinds=["pretrain", "pretrain"])

    assert ran(history, PLAIN, "antman") == [(0, 100), (100, 160)]


def test_antman_starts_guaranteed_jobs_before_opportunistic_ones_that_came_earlier():
    history = trace((0, 100, 4), (1, 10, 4), (2, 10, 4), names=[""] * 3, kinds=["pretrain", "evaluation", "pretrain"])

    assert ran(history, PLAIN, "antman") == [(0, 100), (110, 120), (100, 110)]


# A walk in half seconds, with halves as speeds so that all ends are exact

HALVES = ProfileTable(
    rows=tuple(ProfileRow(name=name, gpu_percent=50, memory_mb=1_000, score=1) for name in "ab"),
    pairs={("a", "a"): (0.5, 0.5), ("a", "b"): (1.0, 0.5), ("b", "b"): (1.0, 1.0)},
)


def naive_lucid(jobs, gpus):
    """Every half second: ends, then all waiting jobs in order of GPU time. GPUs are counted."""
    left = [job[1] for job in jobs]
    start, end, sets, now = {}, {}, [], 0.0

    def key(n):
        return jobs[n][1] * jobs[n][2], n

    def speed(n, together):
        other = next((m for m in together if m != n), None)
        if other is None:
            return 1.0
        pair = jobs[n][3], jobs[other][3]
        return {"aa": 0.5, "ab": 1.0, "ba": 0.5, "bb": 1.0}["".join(pair)]

    while len(end) < len(jobs):
        for together in sets:
            for n in [n for n in together if left[n] <= 0]:
                together.remove(n)
                end[n] = now
        sets = [together for together in sets if together]
        moved = True
        while moved:
            moved = False
            for n in sorted((n for n in range(len(jobs)) if n not in start and jobs[n][0] <= now), key=key):
                hosts = [
                    together
                    for together in sets
                    if len(together) == 1
                    and jobs[together[0]][2] == jobs[n][2] <= 8
                    and key(n)[0] <= 2 * key(together[0])[0]
                ]
                if hosts:
                    min(hosts, key=lambda together: start[together[0]]).append(n)
                elif sum(jobs[together[0]][2] for together in sets) + jobs[n][2] <= gpus:
                    sets.append([n])
                else:
                    continue
                start[n] = now
                moved = True
        for together in sets:
            for n, fast in [(n, speed(n, together)) for n in together]:
                left[n] -= fast / 2
        now += 0.5
    return [(start[n], end[n]) for n in range(len(jobs))]


lucid_jobs = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 9), st.sampled_from([1, 2, 4, 12]), st.sampled_from("ab")),
    min_size=1,
    max_size=15,
)


@given(jobs=lucid_jobs)
@examples(150)
def test_a_replay_equals_a_walk_in_half_seconds(jobs):
    jobs = sorted(jobs, key=lambda job: job[0])
    jobs = [(job[0] - jobs[0][0], *job[1:]) for job in jobs]
    history = trace(*(job[:3] for job in jobs), names=[job[3] for job in jobs])
    count = dataclasses.replace(SMALL, placement="count", profiles=HALVES, policy_settings=KNOWN)

    done = run_policy(history, "lucid", count)

    found = list(zip(done.started_s.tolist(), done.ended_s.tolist(), strict=True))
    assert found == naive_lucid(jobs, 12)


@given(jobs=lucid_jobs)
@examples(100)
def test_gpus_are_neither_lost_nor_given_twice(jobs):
    jobs = sorted(jobs, key=lambda job: job[0])
    history = trace(*(job[:3] for job in jobs), names=[job[3] for job in jobs])
    setting = dataclasses.replace(SMALL, profiles=HALVES, policy_settings=KNOWN)

    def look(engine, now):
        held = np.zeros(len(engine.resources.nodes), dtype=int)
        sets = {id(holders): holders for holders in engine._holders.values()}
        for holders in sets.values():
            assert 1 <= len(holders.jobs) <= 2
            for node, gpus in holders.places:
                held[node] += gpus
        assert (held + engine.resources.free == 4).all()

    run = watched(history, "lucid", setting, look)

    assert not np.isnan(run.ended).any()


# The rule of the authors' simulator, which explains a difference to their figures


def test_simulator_of_the_authors_leaves_a_job_slow_whose_partner_ends_first():
    history = trace((0, 40, 4), (10, 60, 4), (50, 5, 4), names=["medium"] * 3)
    policy = f"{SlowPartners.__module__}:{SlowPartners.__name__}"

    # Ours: the second job is alone from 50, and the third joins it. Theirs: it stays at half its speed, and alone
    assert ran(history) == [(0, 50), (10, 92.5), (50, 60)]
    assert ran(history, policy=policy) == [(0, 50), (10, 130), (130, 135)]
