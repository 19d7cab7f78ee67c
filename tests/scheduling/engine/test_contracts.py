"""Owners preempt borrowers only within their contracts."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.core.preemption_contract import Preemptability, PreemptionContract, PreemptionFacts
from scheduling.engine.cluster import ClusterSnapshot, ResourceRequest
from scheduling.engine.policies.acme import AcmeRules
from scheduling.engine.run_time_estimates import RunTimeEstimates
from scheduling.whatif.replay.start_estimates import start_estimates
from tests.make import NOON
from tests.scheduling.engine.test_acme_policy import MINUTE, decide, examples, fits, runs, started, stopped
from tests.scheduling.engine.test_engine import node, waiting


def under_contract(number, places, facts=None, **terms):
    """A running borrower with these terms, and minutes ago for each fact."""
    times = {name: NOON - ago * MINUTE for name, ago in (facts or {}).items()}
    known = PreemptionFacts(**times)
    return runs(
        number,
        places,
        started_at=times.get("started_at", NOON - 60 * MINUTE),
        saved_at=known.saved_at,
        standing=PreemptionContract(**terms).standing(known, NOON),
        asked_at=known.asked_at if known.has_open_request else None,
    )


def asked(decisions):
    return [ask.job_id for ask in decisions.asks]


def test_protected_borrower_keeps_its_gpus_although_it_loses_least():
    protected = under_contract(8, {1: 8}, {"started_at": 10}, exempt_time=30 * MINUTE)

    decisions = decide([node(1, free=0), node(2, free=0)], waiting(1, gpus=8), running=[protected, runs(9, {2: 8})])

    assert stopped(decisions) == [9]


def test_owner_waits_if_all_borrowers_are_protected():
    protected = under_contract(8, {1: 8}, per_day=0)

    decisions = decide([node(1, free=0)], waiting(1, gpus=8), running=[protected])

    assert (stopped(decisions), asked(decisions), started(decisions)) == ([], [], [])


def test_borrower_is_asked_for_a_checkpoint_and_stopped_when_it_has_saved():
    def turn(facts):
        borrower = under_contract(8, {1: 8}, facts, at_checkpoint=True)
        return decide([node(1, free=0)], waiting(1, gpus=8), running=[borrower])

    first = turn({"saved_at": 20})
    assert (stopped(first), asked(first)) == ([], [8])
    assert first.asks[0].why == "After its next checkpoint, it is preempted by a job of another team."
    assert first.waits[0].why == "Starts when a job of another team has saved a checkpoint and been preempted."

    while_saving = turn({"saved_at": 20, "asked_at": 1})
    assert (stopped(while_saving), asked(while_saving), started(while_saving)) == ([], [], [])

    saved = turn({"saved_at": 0.5, "asked_at": 1})
    assert (stopped(saved), asked(saved)) == ([8], [])


def test_borrower_that_saves_stays_the_victim_while_its_unsaved_work_grows():
    """Another borrower that loses a little more is not stopped meanwhile."""
    saving = under_contract(8, {1: 8}, {"saved_at": 20, "asked_at": 14}, at_checkpoint=True)
    other = runs(9, {2: 8}, saved_at=NOON - 10 * MINUTE)

    decisions = decide([node(1, free=0), node(2, free=0)], waiting(1, gpus=8), running=[saving, other])

    assert (stopped(decisions), asked(decisions)) == ([], [])


def test_borrower_that_does_not_answer_is_replaced_by_another_victim():
    silent = under_contract(8, {1: 8}, {"saved_at": 20, "asked_at": 16}, at_checkpoint=True)

    decisions = decide([node(1, free=0), node(2, free=0)], waiting(1, gpus=8), running=[silent, runs(9, {2: 8})])

    assert stopped(decisions) == [9]


TERMS = st.fixed_dictionaries(
    {
        "exempt_time": st.sampled_from([timedelta(0), 30 * MINUTE]),
        "at_checkpoint": st.booleans(),
        "per_day": st.sampled_from([None, 0, 1]),
    }
)
FACTS = st.fixed_dictionaries(
    {}, optional={"started_at": st.integers(0, 59), "saved_at": st.integers(0, 59), "asked_at": st.integers(0, 59)}
)
LAYOUTS = st.lists(st.lists(st.tuples(st.integers(1, 4), TERMS, FACTS), max_size=4), min_size=1, max_size=4)
NEEDS = st.builds(ResourceRequest, nodes=st.integers(1, 3), gpus=st.integers(1, 8), rest=st.just(0))


@given(layout=LAYOUTS, needs=st.lists(NEEDS, min_size=1, max_size=3))
@examples(300)
def test_no_victim_is_outside_its_contract(layout, needs):
    nodes, running = [], []
    for number, held in enumerate(layout):
        gpus = 0
        for width, terms, facts in held:
            if gpus + width <= 8:
                gpus += width
                running.append(under_contract(100 + len(running), {number: width}, facts, **terms))
        nodes.append(node(number, free=8 - gpus))

    decisions = decide(nodes, *(waiting(n, need=need) for n, need in enumerate(needs)), running=running)

    may = {job.id: job.standing.may for job in running}
    saving = {job.id for job in running if job.asked_at}
    assert {may[job] for job in stopped(decisions)} <= {Preemptability.NOW}
    assert {may[job] for job in asked(decisions)} <= {Preemptability.AFTER_CHECKPOINT}
    assert not saving.intersection(asked(decisions))
    if not (started(decisions) or stopped(decisions) or asked(decisions) or saving):
        claimable = [job for job in running if may[job.id] != Preemptability.PROTECTED]
        assert not fits(nodes, needs[0], claimable)


@pytest.mark.parametrize(("minutes", "starts_after"), [(40, 10), (None, None)])
def test_start_estimate_knows_when_a_protection_ends(minutes, starts_after):
    terms = {"exempt_time": minutes * MINUTE} if minutes else {"per_day": 0}
    protected = under_contract(8, {1: 8}, {"started_at": 30}, **terms)
    picture = ClusterSnapshot(now=NOON, nodes=(node(1, free=0),), waiting=(waiting(1, gpus=8),), running=(protected,))

    estimate = start_estimates(picture, AcmeRules, durations=RunTimeEstimates(), draws=4)[1]

    if starts_after:
        assert estimate.p90 == NOON + starts_after * MINUTE
    else:
        assert estimate.p90 > NOON + 60 * MINUTE
