"""Sia: types and widths of all jobs together, and places on the nodes of each type."""

from itertools import product
from random import Random

import pytest

from scheduling.research.widths.placing import pack_places
from scheduling.research.widths.sia import (
    WAITING_COST,
    Choice,
    GoodputByType,
    Option,
    cheapest,
    options_of,
)
from scheduling.research.widths.values import width
from tests.scheduling.research.widths.widths_make import job, view

pytest.importorskip("scipy")


def decided(*views):
    """The widths on each type."""
    found = GoodputByType().places_by_type(views)
    return [{number: width(places) for number, places in of_type.items()} for of_type in found]


def test_each_job_gets_the_type_on_which_it_gains_most():
    slow = view(job(0, speed=1.0), job(1, speed=1.0), nodes=1)
    fast = view(job(0, speed=1.5), job(1, speed=9.0), nodes=1)

    assert decided(slow, fast) == [{0: 4}, {1: 4}]


def test_widths_are_powers_of_two_or_whole_nodes():
    assert [option.gpus for option in options_of(0, view(nodes=3, node_gpus=8))] == [1, 2, 4, 8, 16, 24]
    assert decided(view(job(0, widest=7), nodes=2, node_gpus=8)) == [{0: 4}]


def test_job_waits_for_others_that_use_a_second_gpu_well():
    """A waiting job costs 1.1, one on a GPU 1, and one on two GPUs its speed to the power -0.5."""
    for exponent, gpus in ((0.25, {0: 1, 1: 1}), (0.35, {0: 2})):
        (found,) = decided(view(*(job(number, exponent=exponent) for number in range(2)), nodes=1, node_gpus=2))
        assert sorted(found.values()) == sorted(gpus.values())


def test_restarting_job_keeps_its_gpus():
    both = [job(0, places=((0, 1),), restarting=True), job(1, exponent=0.0)]

    assert decided(view(*both, nodes=1))[0][0] == 1
    assert decided(view(job(0, places=((0, 1),)), both[1], nodes=1))[0][0] > 1


def test_job_that_has_restarted_often_stays():
    """On eight GPUs it would be 41 % faster, but half of its age was lost by restarts."""
    for restarts, gpus in ((0, 8), (60, 4)):
        running = job(0, exponent=0.5, places=((0, 4),), restarts=restarts)
        assert decided(view(running)) == [{0: gpus}]


def test_job_on_another_type_has_no_present_width_there():
    here = view(job(0, places=((0, 2),), restarts=60), nodes=1)
    there = view(job(0, restarts=60, speed=1.2), nodes=1)

    assert decided(here, there) == [{}, {0: 4}] or decided(here, there) == [{0: 4}, {}]


def test_program_finds_the_smallest_sum():
    dice = Random(5)
    options = [*options_of(0, view(nodes=1)), *options_of(1, view(nodes=2, node_gpus=2))]
    choices = [Choice(at, option, dice.uniform(0.0, 1.0), False) for at in range(4) for option in options]

    def total(chosen):
        fits = all(sum(one.option.gpus for one in chosen if one.option.gpu_type == kind) <= 4 for kind in (0, 1))
        return sum(one.cost - WAITING_COST for one in chosen) if fits else 0.0

    by_job = [[None, *(one for one in choices if one.job == at)] for at in range(4)]
    best = min(total([one for one in chosen if one]) for chosen in product(*by_job))
    assert total(cheapest(choices, [4, 4])) == pytest.approx(best, rel=1e-3)


def test_fixed_choice_is_kept_at_any_cost():
    choices = [Choice(0, Option(0, 4, 1), 99.0, True), Choice(1, Option(0, 1, 1), 0.1, False)]

    assert cheapest(choices, [4]) == choices[:1]
    assert cheapest([], [4]) == []


def test_jobs_keep_their_places_beside_new_ones():
    running = job(0, places=((1, 2),))

    assert pack_places(view(running, job(1)), {0: 2, 1: 4}) == {0: ((1, 2),), 1: ((0, 4),)}


def test_only_jobs_in_the_way_of_a_whole_node_move():
    spread = job(0, places=((0, 1),)), job(1, places=((1, 1),))

    placed = pack_places(view(*spread, job(2)), {0: 1, 1: 1, 2: 4})

    assert placed == {2: ((0, 4),), 0: ((1, 1),), 1: ((1, 1),)}


def test_one_type_is_a_special_case():
    assert GoodputByType().places(view(job(0, widest=2), nodes=1)) == {0: ((0, 2),)}
    assert GoodputByType().places(view()) == {}
