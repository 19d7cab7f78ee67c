"""Replays: invariants under every policy and placement, and agreement with naive simulators."""

import dataclasses
import math
from bisect import bisect_right

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.traces.trace import trace_from_columns
from scheduling.engine.cluster import ResourceRequest
from scheduling.engine.engine import Engine
from scheduling.engine.job import EngineJob
from scheduling.engine.placements import PLACEMENTS
from scheduling.engine.policies.fair import FairRules
from scheduling.engine.policies.qssf import QssfRules
from scheduling.engine.predicting import Predictor
from scheduling.engine.resources import NodeResources
from scheduling.research.queue.gittins import gittins_index
from scheduling.whatif.replay.kernel import Outage, replay
from scheduling.whatif.replay.policies import REPLAY_POLICIES, policy_rules
from scheduling.whatif.replay.run import ReplaySetting, arrivals, replay_nodes, run_policy
from tests.properties import examples
from tests.scheduling.whatif.replay.replaying import (
    COUNT,
    SMALL,
    job_lists,
    naive_easy,
    naive_queue,
    naive_srtf,
    outcome,
    trace,
    watched,
)

PLACES = (*PLACEMENTS, "count")
# Every policy with the placement where it matters most, and every placement with one policy per turn
PAIRS = [
    (p, where)
    for p in REPLAY_POLICIES
    for where in PLACES
    if where in ("consolidate", "count") or p in ("fifo", "srtf")
]
every = pytest.mark.parametrize(("policy", "placement"), PAIRS)


def setting_of(placement):
    return dataclasses.replace(SMALL, placement=placement)


# invariants under every policy and placement


@every
@given(jobs=job_lists)
@examples(25)
def test_no_node_is_overcommitted_and_every_gang_is_whole(policy, placement, jobs):
    def look(engine, now):
        held = [0] * len(engine.resources.nodes)
        for job in engine.running.values():
            assert sum(gpus for _, gpus in job.places) == job.gpus
            assert len({node for node, _ in job.places}) == len(job.places)
            for node, gpus in job.places:
                held[node] += gpus
        for node, free in enumerate(engine.resources.free):
            assert free >= 0
            assert held[node] + free == engine.resources.nodes[node].gpus

    watched(trace(*jobs), policy, setting_of(placement), look)


@every
@given(jobs=job_lists)
@examples(25)
def test_every_job_runs_its_exact_time_and_starts_after_submission(policy, placement, jobs):
    done = run_policy(trace(*jobs), policy, setting_of(placement))

    assert np.isfinite(done.ended_s).all()
    assert (done.started_s >= done.trace.submit_s).all()
    assert done.held_s == pytest.approx(done.trace.runtime_s)
    assert (done.ended_s >= done.started_s + done.trace.runtime_s - 1e-9).all()


@every
@given(jobs=job_lists)
@examples(10)
def test_replay_repeats_exactly(policy, placement, jobs):
    first, second = (run_policy(trace(*jobs), policy, setting_of(placement)) for _ in range(2))

    assert first.started_s.tolist() == second.started_s.tolist()
    assert first.ended_s.tolist() == second.ended_s.tolist()
    assert first.events == second.events


@pytest.mark.parametrize("policy", [name for name in REPLAY_POLICIES if not policy_rules(name).single_queue])
@given(jobs=job_lists)
@examples(50)
def test_no_job_waits_for_free_gpus_if_gpus_are_only_counted(policy, jobs):
    def look(engine, now):
        for group in engine.waiting_groups:
            if engine.rules.plans:
                continue  # it may have to wait for the first job
            assert group.gpus > engine.resources.free_gpus

    watched(trace(*jobs), policy, COUNT, look)


@pytest.mark.parametrize("policy", REPLAY_POLICIES)
@given(jobs=job_lists, node=st.integers(0, 2), at=st.integers(0, 20), long=st.integers(1, 20))
@examples(25)
def test_down_node_runs_nothing_and_no_work_is_lost_twice(policy, jobs, node, at, long):
    jobs = [(submit, runtime, min(gpus, 8)) for submit, runtime, gpus in jobs]

    def look(engine, now):
        if at <= now < at + long:
            assert all(node not in dict(job.places) for job in engine.running.values())

    done = watched(trace(*jobs), policy, SMALL, look, outages=[Outage(at=at, until=at + long, node=node)])

    assert all(math.isfinite(end) for end in done.ended)


# comparison with naive simulators


@given(jobs=job_lists)
@examples(150)
def test_fifo_equals_the_naive_fifo(jobs):
    history = trace(*jobs)

    assert outcome(history, "fifo", COUNT) == naive_queue(history, 12, key=lambda submit, *_: submit)


@given(jobs=job_lists)
@examples(150)
def test_fifo_skip_equals_the_naive_fifo_skip(jobs):
    history = trace(*jobs)

    assert outcome(history, "fifo-skip", COUNT) == naive_queue(
        history, 12, key=lambda submit, *_: submit, skipping=True
    )


@given(jobs=job_lists)
@examples(150)
def test_sjf_equals_the_naive_sjf(jobs):
    history = trace(*jobs)

    assert outcome(history, "sjf", COUNT) == naive_queue(history, 12, key=lambda _, runtime, __: runtime)


@given(jobs=job_lists)
@examples(200)
def test_srtf_equals_the_naive_walk(jobs):
    history = trace(*jobs)

    assert run_policy(history, "srtf", COUNT).ended_s.tolist() == naive_srtf(history, 12)


# backfilling


@pytest.mark.parametrize("placement", PLACES)
@given(jobs=job_lists)
@examples(60)
def test_backfilling_never_delays_a_reservation(placement, jobs):
    promised = {}

    def look(engine, now):
        if engine.reservation.current:
            number, at = engine.reservation.current.job.number, engine.reservation.current.at
            assert now <= at <= promised.get(number, math.inf)
            promised[number] = at

    done = watched(trace(*jobs), "easy", setting_of(placement), look)

    assert all(done.started[number] <= at for number, at in promised.items())


@given(jobs=job_lists)
@examples(60)
def test_backfilling_equals_fifo_for_jobs_of_equal_width(jobs):
    """All jobs have the same width, so backfilling changes nothing."""
    history = trace(*((submit, runtime, 4) for submit, runtime, _ in jobs))

    assert outcome(history, "easy", COUNT) == outcome(history, "fifo", COUNT)


def test_short_job_passes_and_long_job_does_not():
    # 12 GPUs: 8 busy until 10; the second needs all, reserved at 10
    history = trace((0, 10, 8), (1, 5, 12), (2, 8, 4), (3, 9, 4))

    assert outcome(history, "easy", COUNT) == [(0, 10), (10, 15), (2, 10), (15, 24)]


def test_short_job_that_arrives_while_no_gpus_are_free_passes_when_gpus_come_free():
    # 4 GPUs come free at 20, too late for the fourth job. The last job arrives behind it while they are used again
    history = trace((0, 100, 8), (0, 20, 4), (1, 10, 12), (2, 500, 4), (21, 9, 4), (22, 30, 4))

    assert outcome(history, "easy", COUNT)[-1] == (30, 60)


@given(jobs=job_lists)
@examples(200)
def test_backfilling_equals_a_naive_one_that_reserves_again_at_every_event(jobs):
    history = trace(*((submit, runtime + 1, gpus) for submit, runtime, gpus in jobs))

    assert outcome(history, "easy", COUNT) == naive_easy(history, 12)


def test_long_job_passes_on_spare_gpus():
    history = trace((0, 10, 8), (1, 5, 8), (2, 100, 4), (3, 100, 4))

    assert outcome(history, "easy", COUNT) == [(0, 10), (10, 15), (2, 102), (15, 115)]


def test_long_job_passes_on_nodes_that_are_not_reserved():
    # Nodes of 4: a whole node is reserved at 5; another node always has free GPUs
    history = trace((0, 5, 3), (0, 50, 3), (0, 60, 3), (1, 9, 4), (2, 40, 1), (2, 40, 1))

    starts = [start for start, _ in outcome(history, "easy")]

    assert starts == [0, 0, 0, 5, 2, 2]


# policies


def test_preempted_job_keeps_its_progress():
    done = run_policy(trace((0, 100, 12), (10, 5, 12)), "srtf", COUNT)

    assert done.ended_s.tolist() == [105, 15]
    assert done.stops.tolist() == [1, 0]


def test_preemption_cost_depends_on_width():
    setting = dataclasses.replace(COUNT, preemption_cost="helios")

    assert run_policy(trace((0, 100, 12), (10, 5, 12)), "srtf", setting).ended_s.tolist() == [165, 15]
    assert run_policy(trace((0, 100, 8), (10, 5, 8)), "srtf", setting).ended_s.tolist() == [135, 15]


def test_fewest_jobs_are_preempted_the_longest_first():
    history = trace((0, 50, 4), (0, 60, 4), (0, 70, 4), (1, 5, 4))

    assert run_policy(history, "srtf", COUNT).stops.tolist() == [0, 0, 1, 0]


def test_tiresias_lets_a_new_job_preempt_one_with_much_service():
    # The first has had 4000 GPU-seconds when the second arrives
    done = run_policy(trace((0, 10_000, 4), (1000, 100, 12)), "tiresias", COUNT)

    assert done.ended_s.tolist() == [10_100, 1100]


def test_tiresias_does_not_preempt_within_a_queue():
    done = run_policy(trace((0, 200, 12), (10, 100, 12)), "tiresias", COUNT)

    assert done.stops.tolist() == [0, 0]


def test_tiresias_preempts_at_the_moment_of_demotion():
    # 12 GPUs x 270.83 s = 3250 GPU-seconds
    done = run_policy(trace((0, 1000, 12), (10, 100, 12)), "tiresias", COUNT)

    assert done.started_s[1] == pytest.approx(3250 / 12)


def test_starved_job_returns_to_the_first_queue():
    """It ran 300 s of its 3600 GPU-seconds, then new jobs keep all GPUs busy. It is promoted after 300 s more."""
    stream = [(300 + 100 * n, 100, 12) for n in range(60)]
    starved, patient = (
        run_policy(trace((0, 600, 12), *stream), "tiresias", dataclasses.replace(COUNT, policy_settings=settings))
        for settings in ({}, {"promote": 1})
    )

    assert starved.ended_s[0] > 6000
    assert patient.ended_s[0] < 1500


def test_gittins_index_is_high_where_most_jobs_end():
    """Half of the jobs take 10, the others 1000: a job that has passed 10 is unlikely to end soon."""
    index = gittins_index(np.array([10.0] * 50 + [1000.0] * 50), np.array([0.0, 20.0, 900.0]))

    assert index[0] > index[2] > index[1]
    assert index[0] == pytest.approx(50 / (50 * 10 + 50 * 20))
    assert index[2] == pytest.approx(1 / 100)


def test_gittins_prefers_nearly_finished_jobs_to_new_ones():
    """All jobs took 12,000 GPU-seconds. A job with 8,000 ends sooner than a new one, which LAS would prefer."""
    past = [(2000 * n, 1000, 12) for n in range(120)]
    late = 2000 * 120

    done = run_policy(trace(*past, (late, 1000, 12), (late + 700, 1000, 12)), "gittins", COUNT)

    assert done.stops[-2] == 0
    assert run_policy(trace((0, 1000, 12), (700, 1000, 12)), "gittins", COUNT).stops[0] == 1


def test_themis_prefers_the_job_slowed_most_after_the_lease():
    """At 1200 the short job would take 13 times as long as alone, the long one less than twice."""
    done = run_policy(trace((0, 5000, 12), (10, 100, 12)), "themis", COUNT)

    assert done.started_s[1] == 1200
    assert done.ended_s.tolist() == [5100, 1300]


def test_themis_preempts_no_job_within_its_lease():
    done = run_policy(trace((0, 1100, 12), (10, 1, 12)), "themis", COUNT)

    assert done.stops.tolist() == [0, 0]


def test_qssf_learns_from_jobs_of_the_same_user():
    long, short = [(n * 1000, 500, 12) for n in range(3)], [(n * 1000 + 600, 10, 12) for n in range(3)]
    contest = [(10_000, 50, 12), (10_001, 500, 12), (10_002, 10, 12)]
    users = ["slow"] * 3 + ["quick"] * 3 + ["new", "slow", "quick"]

    done = run_policy(trace(*long, *short, *contest, users=users), "qssf", COUNT)

    assert done.started_s[-2:].tolist() == [10_060, 10_050]
    assert done.prediction_error_s is not None


def test_trees_learn_what_the_rolling_estimate_cannot():
    """Widths determine run times, but every user and name is new, so the rolling mean cannot know them."""
    widths = [1, 2] * 800
    jobs = [(10 * n, 5 if gpus == 1 else 500, gpus) for n, gpus in enumerate(widths)]
    users = [f"u{n}" for n in range(len(jobs))]
    history = trace(*jobs, users=users, names=users)

    rolling, blended = (run_policy(history, policy, ReplaySetting(nodes=50)) for policy in ("qssf", "qssf-ml"))

    assert blended.prediction_error_s < 0.75 * rolling.prediction_error_s
    assert blended.prediction_error_s == run_policy(history, "qssf-ml", ReplaySetting(nodes=50)).prediction_error_s


def test_trees_are_trained_only_with_enough_jobs():
    done = run_policy(trace((0, 10, 4), (1, 10, 4)), "qssf-ml", COUNT)

    assert done.prediction_error_s == run_policy(trace((0, 10, 4), (1, 10, 4)), "qssf", COUNT).prediction_error_s


def test_any_predictor_can_order_the_queue():
    class LastComesFirst(Predictor):
        def predict(self, job):
            return -job.number

        def learn(self, job, ran_s):
            pass

    engine = Engine(NodeResources(replay_nodes(COUNT, 3)), QssfRules(LastComesFirst()))
    history = trace((0, 10, 12), (1, 10, 12), (2, 10, 12))

    assert replay(engine, arrivals(history, engine, COUNT)).started == [0, 20, 10]


def test_drf_prefers_the_account_that_holds_least():
    # a holds 8 of 12 GPUs; a's third job arrives before b's first, and b's starts
    history = trace((0, 50, 4), (0, 50, 4), (0, 10, 4), (1, 10, 4), (2, 10, 4), users=["a", "a", "c", "a", "b"])

    assert outcome(history, "drf", COUNT)[3:] == [(20, 30), (10, 20)]


def test_drf_compares_dominant_resources():
    setting = dataclasses.replace(COUNT, cpus_per_node=8)
    # a holds 2 of 12 GPUs but 20 of 24 CPUs; b holds 4 GPUs and few CPUs
    history = trace(
        *((0, 50, 2), (0, 50, 4), (0, 10, 6), (1, 9, 6), (2, 9, 6)),
        users=["a", "b", "c", "a", "b"],
        cpus=[20, 1, 1, 1, 1],
    )

    assert outcome(history, "drf", setting)[3:] == [(19, 28), (10, 19)]


def test_fair_share_counts_past_usage():
    # a used the cluster for 100 s, b not at all; then both wait, a first
    history = trace((0, 100, 12), (50, 10, 12), (60, 10, 12), users=["a", "a", "b"])

    assert outcome(history, "fair", COUNT)[1:] == [(110, 120), (100, 110)]


def test_fair_share_usage_halves_per_half_life():
    rules = FairRules(half_life_s=100)
    engine = Engine(NodeResources(replay_nodes(COUNT, 3)), rules)
    group = engine.request_group(ResourceRequest(gpus=12), account="a")
    job = EngineJob(0, group, 0.0, 10.0, 10.0)
    rules.on_job_start(job, 0.0)
    rules.on_job_release(job, 10.0)

    used = rules.share(group, engine, 10.0)

    assert 110 < used < 120
    assert rules.share(group, engine, 110.0) == pytest.approx(used / 2)


def test_account_with_more_weight_may_use_more():
    heavy, light = FairRules({"a": 10.0}), FairRules()
    for rules in (heavy, light):
        engine = Engine(NodeResources(replay_nodes(COUNT, 3)), rules)
        job = EngineJob(0, engine.request_group(ResourceRequest(gpus=12), account="a"), 0.0, 10.0, 10.0)
        rules.on_job_start(job, 0.0)
        job.places = ()

    assert heavy.share(job.group, engine, 50.0) == pytest.approx(light.share(job.group, engine, 50.0) / 10)


# queueing theory


@pytest.mark.parametrize(("servers", "load"), [(1, 0.6), (4, 0.7), (12, 0.8)])
def test_mean_wait_agrees_with_erlang_c(servers, load):
    dice = np.random.default_rng(7)
    count = 120_000
    arrive, serve = dice.exponential(1 / (load * servers), count), dice.exponential(1.0, count)
    history = trace_from_columns("mmk", submit_s=np.cumsum(arrive), runtime_s=serve, gpus=np.ones(count))

    done = run_policy(history, "fifo", ReplaySetting(nodes=servers, gpus_per_node=1))

    waited = (done.started_s - done.trace.submit_s).mean()
    assert waited == pytest.approx(erlang_c(servers, load) / (servers * (1 - load)), rel=0.08)


def erlang_c(servers, load):
    """The probability that all servers are busy."""
    offered = servers * load
    terms = [offered**n / math.factorial(n) for n in range(servers)]
    last = offered**servers / math.factorial(servers) / (1 - load)
    return last / (sum(terms) + last)


@pytest.mark.parametrize("policy", REPLAY_POLICIES)
def test_littles_law_holds(policy):
    dice = np.random.default_rng(3)
    jobs = [
        (int(at), int(1 + dice.exponential(20)), int(dice.integers(1, 9))) for at in np.sort(dice.uniform(0, 900, 150))
    ]
    history, seen, last = trace(*jobs), 0.0, [0.0, 0]

    def look(engine, now):
        nonlocal seen
        seen += last[1] * (now - last[0])
        come = int((history.submit_s <= now).sum())
        ended = come - len(engine.running) - waiting(engine)
        last[:] = [now, come - ended]

    done = watched(history, policy, SMALL, look)

    assert seen == pytest.approx(sum(done.ended) - history.submit_s.sum())


def waiting(engine):
    lines = [engine.queue] if engine.rules.single_queue else [group.queue for group in engine.groups.values()]
    return sum(len(line) for line in lines)


# pools and excluded jobs


def test_virtual_clusters_are_replayed_separately():
    jobs = [(0, 10, 4), (0, 10, 4), (1, 10, 4), (2, 5, 8)]
    history = trace(*jobs, pools=["a", "b", "a", "b"])

    done = run_policy(history, "fifo", dataclasses.replace(SMALL, pools={"a": 1, "b": 2}))

    assert list(done.trace.pools) == ["a", "b", "a", "b"]
    assert done.started_s.tolist() == [0, 0, 10, 10]


def test_jobs_that_cannot_be_replayed_are_counted():
    history = trace((0, 10, 4), (0, 10, 13), (0, 10, 0), (0, 1, 1), pools=["a", "a", "a", "elsewhere"])

    done = run_policy(history, "fifo", SMALL)
    apart = run_policy(history, "fifo", dataclasses.replace(SMALL, pools={"a": 3, "empty": 1}))

    assert (done.too_wide, done.no_gpus, len(done.trace)) == (1, 1, 2)
    assert (apart.too_wide, apart.no_gpus, apart.homeless, len(apart.trace)) == (1, 1, 1, 1)


def test_jobs_without_gpus_run_if_cpus_are_counted():
    setting = dataclasses.replace(SMALL, nodes=1, cpus_per_node=16)

    done = run_policy(trace((0, 10, 0), (0, 10, 0), cpus=[10, 10]), "fifo", setting)

    assert done.started_s.tolist() == [0, 10]


@given(jobs=job_lists)
@examples(100)
def test_conservative_backfilling_never_delays_a_reservation(jobs):
    promised = {}

    def look(engine, now):
        for job, (at, _) in engine.reservation.current.starts.items() if engine.reservation.current else ():
            assert now <= at <= promised.get(job.number, math.inf) + 0.01
            promised[job.number] = at

    done = watched(trace(*jobs), "conservative", SMALL, look)

    assert all(done.started[number] <= at + 0.01 for number, at in promised.items())


@given(jobs=job_lists, noise=st.sampled_from(["none", "0.5", "helios"]))
@examples(100)
def test_conservative_plan_matches_the_free_resources_while_it_holds(jobs, noise):
    def look(engine, now):
        if plan := engine.reservation.current:
            due = [plan.starts[job][1] for job in plan.due(now)]
            assert plan.timeline.equals(max(0, bisect_right(plan.times, now) - 1), engine.resources, due)

    watched(trace(*jobs), "conservative", dataclasses.replace(SMALL, noise=noise), look)


@given(jobs=job_lists)
@examples(100)
def test_conservative_backfilling_starts_no_job_later_than_fifo(jobs):
    """All jobs have the same width: without anything to backfill it equals FIFO, like EASY."""
    history = trace(*((submit, max(1, runtime), 4) for submit, runtime, _ in jobs))

    assert outcome(history, "conservative", COUNT) == outcome(history, "fifo", COUNT)


def test_conservative_backfilling_keeps_the_second_reservation():
    # 12 GPUs, 8 busy until 10; all are reserved from 10 to 15 and from 15 to 20. Four for 6 delay no job; four for 30
    # would delay both
    history = trace((0, 10, 8), (1, 5, 12), (2, 5, 12), (3, 30, 4), (4, 6, 4))

    assert outcome(history, "conservative", COUNT) == [(0, 10), (10, 15), (15, 20), (20, 50), (4, 10)]


@given(jobs=job_lists)
@examples(40)
def test_all_jobs_end_under_acme_with_conservative_backfilling(jobs):
    history = trace(*jobs, kinds=["evaluation" if n % 3 == 0 else "pretrain" for n in range(len(jobs))])

    done = run_policy(history, "acme", dataclasses.replace(SMALL, policy_settings={"backfill": "conservative"}))

    assert (done.ended_s >= done.trace.submit_s + done.trace.runtime_s).all()


def test_job_whose_planned_node_was_claimed_is_planned_again():
    history = trace((0, 51, 1), (3, 36, 11), (6, 2, 9), (13, 33, 2), kinds=["evaluation", *["pretrain"] * 3])

    done = run_policy(history, "acme", dataclasses.replace(SMALL, policy_settings={"backfill": "conservative"}))

    assert (done.ended_s >= done.trace.submit_s + done.trace.runtime_s).all()
