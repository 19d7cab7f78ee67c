"""Jobs that share GPUs, under every policy: no GPU is over-allocated, and nothing changes for jobs with whole GPUs."""

import dataclasses
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.core.gpu_shares import WHOLE_GPU
from scheduling.whatif.replay.policies import REPLAY_POLICIES
from tests.properties import examples
from tests.scheduling.whatif.replay.replaying import SMALL, trace, watched

# submission, run time, limit, thousandths of a GPU; a multiple of 1000 is a job with whole GPUs
sizes = st.sampled_from([100, 250, 300, 500, 500, 700, 1000, 2000, 4000, 8000])
job_rows = st.lists(
    st.tuples(st.integers(0, 12), st.integers(1, 20), st.sampled_from([5, 25, float("nan")]), sizes),
    min_size=4,
    max_size=25,
)
LIVE = dataclasses.replace(SMALL, as_live=True)


def history(rows):
    jobs = [(submit, runtime, size // WHOLE_GPU) for submit, runtime, _, size in rows]
    return trace(*jobs, gpu_milli=[size % WHOLE_GPU for *_, size in rows], limit_s=[row[2] for row in rows])


def held_on_gpus(engine):
    """Thousandths held by (node, position) for shares, and whole GPUs by node."""
    shares, whole = Counter(), Counter()
    for job in engine.running.values():
        for node, place in job.places:
            if milli := job.group.need.gpu_milli:
                shares[node, place] += milli
            else:
                whole[node] += place
    return shares, whole


def assert_no_gpu_is_over_allocated(engine, now):
    shares, whole = held_on_gpus(engine)
    opened = Counter(node for node, _ in shares)

    assert all(milli <= WHOLE_GPU for milli in shares.values())
    for number, node in enumerate(engine.resources.nodes):
        assert engine.resources.free[number] == node.gpus - whole[number] - opened[number] >= 0
        for position, left in enumerate(engine.resources.shared.get(number, ())):
            assert left == WHOLE_GPU - shares[number, position]


@pytest.mark.parametrize("setting", [SMALL, LIVE], ids=["replay", "as-live"])
@pytest.mark.parametrize("policy", REPLAY_POLICIES)
@given(rows=job_rows)
@examples(15)
def test_no_gpu_is_over_allocated_and_all_jobs_end(policy, setting, rows):
    outcome = watched(
        history(rows), policy, setting, assert_no_gpu_is_over_allocated, victims_stop_first=setting.as_live
    )

    assert all(end == end for end in outcome.ended)  # not nan


@pytest.mark.parametrize("policy", ["easy", "conservative"])
def test_share_beside_others_starts_while_a_wide_job_waits(policy):
    jobs = history([(0, 10, 10, 12_000), (0, 10, 10, 500), (1, 5, 5, 12_000), (2, 3, 3, 500)])

    done = watched(jobs, policy, SMALL, assert_no_gpu_is_over_allocated)

    assert done.started == [0, 10, 20, 10]


@pytest.mark.parametrize("policy", ["easy", "conservative"])
def test_share_does_not_delay_the_reserved_start_of_a_wide_job(policy):
    # The share that arrives last fits beside the other one, but would hold the GPU longer than until the reserved start
    jobs = history([(0, 10, 10, 500), (1, 5, 5, 12_000), (2, 30, 30, 500)])

    done = watched(jobs, policy, SMALL, assert_no_gpu_is_over_allocated)

    assert done.started == [0, 10, 15]


@pytest.mark.parametrize("policy", ["easy", "conservative"])
def test_share_that_needs_a_gpu_gets_a_reservation_like_other_jobs(policy):
    jobs = history([(0, 10, 10, 12_000), (1, 5, 5, 600), (2, 100, 100, 12_000), (3, 5, 5, 600)])

    done = watched(jobs, policy, SMALL, assert_no_gpu_is_over_allocated)

    assert done.started == [0, 10, 15, 10]
