"""Quotas for a GPU model: they keep a team from further GPUs of this model, and not from others."""

from dataclasses import replace
from datetime import timedelta

import pytest

from jobs.core.lifecycle import JobKind
from scheduling.engine.cluster import ClusterSnapshot, QuotaView, ResourceRequest, RunningJob
from scheduling.engine.counterfactual import smallest_changes
from scheduling.engine.policies import LIVE_POLICIES, POLICY_RULES
from scheduling.whatif.replay.start_estimates import binding_quotas, start_estimates
from tests.make import NOON
from tests.scheduling.engine.test_engine import node, waiting

NODES = [node(number, gpu_model="h100") for number in (1, 2, 3)] + [node(11, gpu_model="a100")]
POLICIES = sorted(LIVE_POLICIES)


def quota(gpus, *, team="nlp", kind=None, model="h100"):
    return QuotaView(team=team, kind=kind, gpus=gpus, gpu_model=model)


def job(number, model="h100", team="nlp", **fields):
    return waiting(number, team=team, need=ResourceRequest(gpus=8, cpus=1, gpu_model=model), **fields)


def running(number, on, *, team="nlp", **fields):
    return RunningJob(
        id=number, name=f"r{number}", team=team, kind=JobKind.OTHER, gpus=8, priority=0, places={on: 8},
        started_at=NOON, time_limit=timedelta(hours=2), **fields,
    )  # fmt: skip


def snapshot(*jobs, quotas, held=(), **fields):
    taken = {node_id for one in held for node_id in one.places}
    nodes = tuple(replace(one, free_gpus=()) if one.id in taken else one for one in NODES)
    return ClusterSnapshot(now=NOON, nodes=nodes, waiting=jobs, running=tuple(held), quotas=quotas, **fields)


def places(policy, picture):
    return {start.job_id: sorted(start.places) for start in LIVE_POLICIES[policy](picture).starts}


@pytest.mark.parametrize("policy", POLICIES)
def test_team_gets_no_more_gpus_of_a_model_than_its_quota(policy):
    picture = snapshot(*(job(number) for number in (1, 2, 3)), quotas=(quota(16),))

    assert sorted(places(policy, picture)) == [1, 2]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("model", ["h100|a100", ""], ids=["two", "any"])
def test_job_that_accepts_another_model_starts_there(policy, model):
    picture = snapshot(job(1, model), quotas=(quota(8),), held=(running(901, 1),))

    assert places(policy, picture) == {1: [11]}


@pytest.mark.parametrize("policy", POLICIES)
def test_job_for_a_model_that_no_open_node_has_waits_beside_a_full_quota_for_another(policy):
    picture = snapshot(job(1, "a100"), quotas=(quota(0),))
    picture = replace(picture, nodes=tuple(one for one in NODES if one.gpu_model == "h100"))

    decisions = LIVE_POLICIES[policy](picture)

    assert not decisions.starts
    assert [wait.job_id for wait in decisions.waits] == [1]
    assert "h100" not in decisions.waits[0].why


def test_other_teams_and_preemptible_jobs_are_not_limited():
    jobs = job(1), job(2, team="vision"), job(3, preemptible=True)

    for policy in POLICIES:
        assert sorted(places(policy, snapshot(*jobs, quotas=(quota(0),)))) == [2, 3]


def test_quota_for_a_kind_limits_only_this_kind():
    jobs = job(1, kind=JobKind.SFT), job(2, kind=JobKind.DEBUG)

    assert sorted(places("fifo-skip", snapshot(*jobs, quotas=(quota(0, kind=JobKind.SFT),)))) == [2]


def test_groups_of_one_team_that_differ_in_size_kind_or_contract_are_barred_apart():
    """A start leaves 4 H100 of the quota: enough for the small job, and the kind with its own quota has none."""
    small = replace(job(3).need, gpus=4)
    jobs = (
        job(1),
        job(2),
        replace(job(3), need=small, kind=JobKind.SFT),
        replace(job(4), need=small),
        job(5, preemptible=True),
    )
    quotas = quota(12), quota(0, kind=JobKind.SFT)

    assert sorted(places("fifo-skip", snapshot(*jobs, quotas=quotas))) == [1, 4, 5]


def test_quota_for_all_models_counts_beside_it():
    quotas = (quota(24), quota(8, model=""))
    jobs = job(1), job(2)

    assert sorted(places("fifo-skip", snapshot(*jobs, quotas=quotas))) == [1]


def test_equal_requests_of_teams_with_and_without_the_quota_do_not_share_their_result():
    """With equal requests, a turn tries only one of two queues if it found no place for the other."""
    jobs = job(1, priority=5), job(2, team="vision")

    for policy in ("fifo-skip", "easy", "fair", "drf", "conservative"):
        assert sorted(places(policy, snapshot(*jobs, quotas=(quota(0), quota(99, model="a100"))))) == [2]


def test_wait_reason_names_the_model_of_the_quota():
    (wait,) = LIVE_POLICIES["fifo"](
        snapshot(job(1), quotas=(quota(16),), held=(running(901, 1), running(902, 2)))
    ).waits

    assert wait.reason == "AssocGrpGRES"
    assert wait.why == "Team nlp holds 16 of its 16 h100 GPUs; this job needs 8."


def test_job_that_may_use_another_model_names_the_quota_and_what_is_free_elsewhere():
    held = running(901, 1), running(902, 11, team="vision")

    (wait,) = LIVE_POLICIES["fifo"](snapshot(job(1, "h100|a100"), quotas=(quota(8),), held=held)).waits

    assert [blocker.why for blocker in wait.blockers] == [
        "Team nlp holds 8 of its 8 h100 GPUs; this job needs 8.",
        "It needs 8 h100 or a100 GPUs; no node has 8 a100 free (0 GPUs free in total).",
    ]


def test_job_larger_than_the_quota_can_never_start():
    (wait,) = LIVE_POLICIES["fifo"](snapshot(job(1), quotas=(quota(4, kind=JobKind.OTHER),))).waits

    assert wait.why == (
        "Team nlp holds 0 of its 4 h100 GPUs for other; this job needs 8. It can never start under this quota."
    )


def test_higher_quota_is_proposed_with_its_model():
    picture = snapshot(job(1), quotas=(quota(8),), held=(running(901, 1),))

    changes = smallest_changes(picture, POLICY_RULES["fifo-skip"], 1)

    phrase = "the quota of team nlp on h100 were 8 GPUs higher (16 instead of 8)"
    assert any(phrase in change.why for change in changes)


def test_start_estimate_waits_for_the_quota():
    picture = snapshot(job(1, time_limit=timedelta(hours=1)), quotas=(quota(8),), held=(running(901, 1),))

    assert start_estimates(picture, POLICY_RULES["fifo-skip"], draws=2)[1].p50 > NOON
    assert binding_quotas(picture, ()) == picture.quotas


def test_reservation_of_a_plan_respects_the_quota():
    """Two jobs of the team are planned on two H100 nodes that come free together; the quota is for one."""
    held = [running(900 + number, number, team="vision") for number in (1, 2, 3)]
    picture = snapshot(job(1), job(2), quotas=(quota(8),), held=held)
    free = replace(picture, running=(), nodes=tuple(NODES))

    assert places("conservative", picture) == {}
    assert len(places("conservative", free)) == 1
