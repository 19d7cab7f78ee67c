"""On live clusters, jobs of higher rank stop running jobs of lower rank that agreed to be preempted."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmeweb.common.errors import InvalidField
from jobs.core.preemption_contract import Preemptability
from scheduling.engine.cluster import ClusterSnapshot, QuotaView
from scheduling.engine.history import SchedulingHistory
from scheduling.engine.policies import LIVE_POLICIES, POLICY_RULES, configured_policy
from scheduling.engine.run_time_estimates import RunTimeEstimates
from scheduling.whatif.replay.start_estimates import start_estimates
from tests.make import NOON
from tests.scheduling.engine.test_acme_policy import MINUTE, examples, fits, runs, started, stopped
from tests.scheduling.engine.test_contracts import LAYOUTS, NEEDS, asked, under_contract
from tests.scheduling.engine.test_engine import node, waiting


def picture(nodes, *jobs, running=(), attained=None, predicted_s=None, **fields):
    history = SchedulingHistory(half_life_s=1.0, usage={}, attained=attained or {}, predicted_s=predicted_s or {})
    return ClusterSnapshot(
        now=NOON, nodes=tuple(nodes), waiting=jobs, running=tuple(running), history=history, **fields
    )


def tiresias(nodes, *jobs, **fields):
    """All running jobs have run for an hour, so new jobs go before them."""
    return LIVE_POLICIES["tiresias"](picture(nodes, *jobs, **fields))


def test_new_job_preempts_a_job_that_has_received_much_service():
    decisions = tiresias([node(1, free=0)], waiting(1, gpus=8), running=[runs(9, {1: 8})])

    (stop,), (wait,) = decisions.stops, decisions.waits
    assert (stop.job_id, stop.for_job, started(decisions)) == (9, 1, [])
    assert stop.why == "It is preempted by a job of another team; the last 1:00:00 of its work are not saved."
    assert (wait.reason, wait.why) == ("Resources", "Starts when a job of another team has been preempted.")


def test_job_that_did_not_agree_is_never_preempted():
    decisions = tiresias([node(1, free=0)], waiting(1, gpus=8), running=[runs(9, {1: 8}, preemptible=False)])

    assert (stopped(decisions), asked(decisions), started(decisions)) == ([], [], [])


def test_job_of_the_same_queue_is_not_preempted():
    fresh = runs(9, {1: 8}, started_at=NOON - MINUTE)

    assert stopped(tiresias([node(1, free=0)], waiting(1, gpus=8), running=[fresh])) == []


def test_service_of_earlier_attempts_counts():
    again = runs(9, {1: 8}, started_at=NOON - MINUTE)

    assert stopped(tiresias([node(1, free=0)], waiting(1, gpus=8), running=[again], attained={9: 5000.0})) == [9]
    both = {9: 5000.0, 1: 5000.0}
    assert stopped(tiresias([node(1, free=0)], waiting(1, gpus=8), running=[again], attained=both)) == []


def test_job_is_not_preempted_for_a_gang_that_finds_no_place():
    nodes = [node(n, free=4) for n in (1, 2)]
    running = [runs(9, {1: 4}), runs(10, {2: 4}, preemptible=False)]

    assert stopped(tiresias(nodes, waiting(1, nodes=2, gpus=8), running=running)) == []


def test_job_that_loses_least_is_preempted():
    running = [runs(8, {1: 8}, saved_at=NOON - 30 * MINUTE), runs(9, {2: 8}, saved_at=NOON - 5 * MINUTE)]

    assert stopped(tiresias([node(1, free=0), node(2, free=0)], waiting(1, gpus=8), running=running)) == [9]


def test_contract_is_kept():
    protected = under_contract(8, {1: 8}, {"started_at": 59}, exempt_time=60 * MINUTE)
    saving = under_contract(9, {2: 8}, {"saved_at": 30}, at_checkpoint=True)
    nodes = [node(1, free=0), node(2, free=0)]

    assert tiresias(nodes[:1], waiting(1, gpus=8), running=[protected]).stops == ()
    decisions = tiresias(nodes, waiting(1, gpus=8), running=[protected, saving])
    assert (stopped(decisions), asked(decisions)) == ([], [9])


def test_quota_holds_for_jobs_that_did_not_agree_to_be_preempted():
    quotas = (QuotaView(team="vision", kind=None, gpus=4),)
    owner = replace(waiting(1, gpus=8), team="vision")

    decisions = tiresias([node(1, free=0)], owner, running=[runs(9, {1: 8})], quotas=quotas)

    assert stopped(decisions) == []
    assert decisions.waits[0].reason == "AssocGrpGRES"


def test_shorter_remaining_time_goes_first_as_predicted():
    def decide(predicted_s):
        known = picture([node(1, free=0)], waiting(1, gpus=8), running=[runs(9, {1: 8})], predicted_s=predicted_s)
        return stopped(LIVE_POLICIES["srtf-predicted"](known))

    assert decide({1: 600.0, 9: 3600.0 + 700.0}) == [9]
    assert decide({1: 600.0, 9: 3600.0 + 500.0}) == []
    assert decide({1: 600.0, 9: 1800.0}) == []  # it has outrun its prediction and is expected to end at any moment


def test_setting_that_only_replays_know_is_refused():
    with pytest.raises(InvalidField, match="promote: is only available in replays"):
        configured_policy("tiresias", {"promote": 8})


RANKING = sorted(policy for policy in LIVE_POLICIES if POLICY_RULES[policy].preempts)


@pytest.mark.parametrize("policy", RANKING)
@given(layout=LAYOUTS, agrees=st.lists(st.booleans(), min_size=16, max_size=16), need=NEEDS)
@examples(200)
def test_only_jobs_that_agreed_are_preempted_and_only_if_it_helps(policy, layout, agrees, need):
    nodes, running = [], []
    for number, held in enumerate(layout):
        gpus = 0
        for width, terms, facts in held:
            if gpus + width <= 8:
                gpus += width
                job = under_contract(100 + len(running), {number: width}, facts, **terms)
                running.append(replace(job, preemptible=agrees[len(running)]))
        nodes.append(node(number, free=8 - gpus))

    known = picture(nodes, waiting(1, need=need), running=running, predicted_s={1: 0.0})
    decisions = LIVE_POLICIES[policy](known)

    victims = {job.id: job for job in running if job.id in {*stopped(decisions), *asked(decisions)}}
    assert all(job.preemptible for job in victims.values())
    assert {victims[job].standing.may for job in stopped(decisions)} <= {Preemptability.NOW}
    assert {victims[job].standing.may for job in asked(decisions)} <= {Preemptability.AFTER_CHECKPOINT}
    if stopped(decisions):
        saving = [job for job in running if job.preemptible and job.asked_at]
        assert fits(nodes, need, list({**victims, **{job.id: job for job in saving}}.values()))
        assert not started(decisions)


@pytest.mark.parametrize("policy", RANKING)
def test_start_of_every_waiting_job_is_estimated(policy):
    known = picture([node(1, free=0)], waiting(1, gpus=8), waiting(2, gpus=4), running=[runs(9, {1: 8})])

    estimates = start_estimates(known, POLICY_RULES[policy], durations=RunTimeEstimates(), draws=4)

    assert set(estimates) == {1, 2}
