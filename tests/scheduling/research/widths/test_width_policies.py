from itertools import product

import numpy as np
import pytest

from scheduling.research.widths.afs import PairwiseGains
from scheduling.research.widths.optimus import MarginalGains
from scheduling.research.widths.pollux import HarmonicSpeedups, best_widths, widths_up_to
from scheduling.research.widths.tiresias import FIRST_QUEUE_GPU_S, TwoQueues
from scheduling.research.widths.values import width
from tests.scheduling.research.widths.widths_make import job, view


def widths(places):
    return {number: width(taken) for number, taken in places.items() if taken}


# Tiresias


def test_job_that_has_used_many_gpu_hours_waits_behind_a_new_one():
    old = job(0, requested=8, used=FIRST_QUEUE_GPU_S, places=((0, 4), (1, 4)))

    assert widths(TwoQueues().places(view(old, job(1, requested=4)))) == {1: 4}


def test_smaller_job_runs_next_to_one_that_does_not_fit():
    jobs = job(0, requested=6), job(1, requested=4), job(2, requested=2)

    assert widths(TwoQueues().places(view(*jobs))) == {0: 6, 2: 2}


def test_job_that_moved_to_the_second_queue_first_goes_first():
    policy = TwoQueues()
    late, early = job(0, requested=8), job(1, requested=8, used=FIRST_QUEUE_GPU_S)
    policy.places(view(late, early, now=60.0))

    late = job(0, requested=8, used=FIRST_QUEUE_GPU_S)

    assert widths(policy.places(view(late, early, now=120.0))) == {1: 8}


def test_running_job_stays_where_it_is():
    running = job(0, requested=2, places=((1, 2),))

    assert TwoQueues().places(view(running, job(1, requested=4)))[0] == ((1, 2),)


# Optimus


def test_longest_job_gets_most_gpus():
    short, long = job(0, work=100.0), job(1, work=900.0)

    assert widths(MarginalGains().places(view(short, long))) == {0: 2, 1: 6}


def test_no_job_gets_gpus_that_do_not_make_it_faster():
    assert widths(MarginalGains().places(view(job(0, exponent=-0.5), job(1, widest=3)))) == {0: 1, 1: 3}


def test_jobs_that_came_last_wait_if_there_are_more_jobs_than_gpus():
    assert set(widths(MarginalGains().places(view(*map(job, range(10)))))) == set(range(8))


# AFS


def test_equal_speeds_favor_the_job_that_ends_first():
    short, long = job(0, work=100.0), job(1, work=900.0)

    found = widths(PairwiseGains().places(view(short, long)))

    assert found[0] > found[1] > 0


def test_longer_job_gets_the_gpu_if_the_shorter_one_hardly_gains():
    short, long = job(0, work=100.0, exponent=0.1), job(1, work=900.0)

    assert widths(PairwiseGains().places(view(short, long))) == {0: 1, 1: 7}


def test_shortest_jobs_start_if_there_are_more_jobs_than_gpus():
    jobs = [job(number, work=100.0 - number) for number in range(10)]

    assert set(widths(PairwiseGains().places(view(*jobs)))) == set(range(2, 10))


def test_gpu_that_makes_no_job_faster_stays_free():
    assert widths(PairwiseGains().places(view(job(0, exponent=-0.5), job(1, widest=3)))) == {0: 1, 1: 3}


@pytest.mark.parametrize("exponents", [(0.9, 0.5), (0.5, 0.9), (0.7, 0.7)])
def test_pair_shares_gpus_almost_as_well_as_any_split(exponents):
    """Of all splits until the first of the two ends, with all GPUs for the other afterwards."""
    works = 300.0, 500.0
    chosen = widths(PairwiseGains().places(view(*(job(at, work=works[at], exponent=exponents[at]) for at in (0, 1)))))

    def total_s(gpus):
        ends = [work / count**power for work, count, power in zip(works, gpus, exponents, strict=True)]
        first = ends.index(min(ends))
        left = works[1 - first] * (1 - min(ends) / max(ends))
        return 2 * min(ends) + left / 8 ** exponents[1 - first]

    best = min(total_s((gpus, 8 - gpus)) for gpus in range(1, 8))
    assert total_s((chosen[0], chosen[1])) <= 1.1 * best


# Pollux


def test_widths_are_parts_of_a_node_or_whole_nodes():
    assert widths_up_to(13, 4).tolist() == [1, 2, 3, 4, 8, 12]


def test_best_widths_are_those_of_an_exhaustive_search():
    random = np.random.default_rng(3)
    for _ in range(20):
        costs = [dict(zip((0, 1, 2, 4), random.random(4).tolist(), strict=True)) for _ in range(3)]
        sums = {
            combined: sum(cost[wide] for cost, wide in zip(costs, combined, strict=True))
            for combined in product((0, 1, 2, 4), repeat=3)
            if sum(combined) <= 5
        }

        chosen = best_widths(costs, 5)

        assert sums[tuple(chosen)] == pytest.approx(min(sums.values()))


def test_job_that_scales_gets_more_gpus_than_one_that_does_not():
    scaling, flat = job(0, exponent=1.0), job(1, exponent=0.05)

    found = widths(HarmonicSpeedups().places(view(scaling, flat, nodes=4)))

    assert found[0] > found[1] > 0


def test_every_job_gets_a_gpu_before_one_gets_two():
    """The harmonic mean is near 0 if one job waits."""
    assert widths(HarmonicSpeedups().places(view(*map(job, range(8))))) == dict.fromkeys(range(8), 1)


def test_young_job_does_not_restart_for_a_small_gain():
    running = job(0, places=((0, 4),), age_s=60.0, exponent=0.1)

    assert HarmonicSpeedups().places(view(running)) == {0: ((0, 4),)}


def test_old_job_takes_nodes_that_become_free():
    running = job(0, places=((0, 4),), age_s=36_000.0)

    assert widths(HarmonicSpeedups().places(view(running))) == {0: 8}


def test_small_jobs_move_together_if_that_frees_a_node():
    small = [job(number, places=((number, 2),), widest=2, age_s=1e6) for number in range(2)]

    places = HarmonicSpeedups().places(view(*small, job(2, widest=4)))

    assert widths(places) == {0: 2, 1: 2, 2: 4}
    assert len({node for number in range(2) for node, _ in places[number]}) == 1


def test_no_node_is_shared_by_two_jobs_that_span_nodes():
    jobs = [job(number, widest=12) for number in range(3)]

    places = HarmonicSpeedups().places(view(*jobs, nodes=5))

    spanning = [node for taken in places.values() if len(taken) > 1 for node, _ in taken]
    assert len(spanning) == len(set(spanning)) > 0


def test_empty_cluster_has_nothing_to_place():
    assert HarmonicSpeedups().places(view()) == {}
