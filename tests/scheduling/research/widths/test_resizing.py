"""Policies that resize jobs without knowing how fast they are: Gandiva and Dorm."""

from scheduling.research.widths.dorm import EqualParts, equal_parts
from scheduling.research.widths.gandiva import GrowToIdleGpus
from scheduling.research.widths.values import width
from tests.scheduling.research.widths.widths_make import job, view


def widths(places):
    return {number: width(taken) for number, taken in places.items() if taken}


# Gandiva


def test_jobs_double_their_width_while_gpus_are_idle():
    assert widths(GrowToIdleGpus().places(view(job(0)))) == {0: 8}
    assert widths(GrowToIdleGpus().places(view(job(0), job(1, requested=2)))) == {0: 4, 1: 4}


def test_job_grows_to_its_widest_useful_width_only():
    assert widths(GrowToIdleGpus().places(view(job(0, widest=3), job(1, widest=1)))) == {0: 2, 1: 1}


def test_job_that_does_not_fit_twice_lets_a_narrower_one_grow():
    assert widths(GrowToIdleGpus().places(view(job(0, requested=3), job(1), nodes=1, node_gpus=5))) == {0: 3, 1: 2}


def test_jobs_shrink_when_another_one_comes_and_run_in_turns_when_not_all_fit():
    grown = job(0, places=((0, 4), (1, 4)))

    assert widths(GrowToIdleGpus().places(view(grown, job(1, requested=7)))) == {0: 1, 1: 7}
    assert widths(GrowToIdleGpus().places(view(grown, job(1, requested=8)))) == {0: 1}


# Dorm


def test_gpus_are_divided_equally_up_to_the_useful_widths():
    assert equal_parts(view(job(0), job(1, widest=1), job(2))) == {0: 4, 1: 1, 2: 3}
    assert equal_parts(view(job(0, widest=2))) == {0: 2}


def test_jobs_that_came_last_wait_if_there_are_more_jobs_than_gpus():
    assert equal_parts(view(*map(job, range(10)))) == dict.fromkeys(range(8), 1)


def test_running_job_near_its_part_is_not_resized():
    running = job(0, places=((0, 3),))

    assert widths(EqualParts().places(view(running, job(1)))) == {0: 3, 1: 4}


def test_running_job_far_from_its_part_is_resized():
    assert widths(EqualParts().places(view(job(0, places=((0, 4), (1, 2))), job(1)))) == {0: 4, 1: 4}


def test_jobs_above_their_parts_are_resized_if_others_would_find_no_gpus():
    """Their part is 2 of 8 GPUs each, and two jobs have one more."""
    above = job(0, places=((0, 3),)), job(1, places=((1, 3),))

    assert widths(EqualParts().places(view(*above, job(2), job(3)))) == {0: 2, 1: 2, 2: 2, 3: 2}
    assert widths(EqualParts().places(view(*above, job(2, widest=1), job(3, widest=1)))) == {0: 3, 1: 3, 2: 1, 3: 1}


def test_jobs_that_all_run_leave_no_gpu_twice():
    jobs = job(0, places=((0, 4),)), job(1, places=((1, 4),)), job(2)

    found = widths(EqualParts().places(view(*jobs)))

    assert sum(found.values()) <= 8 and found[2] >= 2
