"""The table of job actions: each role gets the same answer on pages, in the API and in the admin console."""

from __future__ import annotations

import pytest

from acmeweb.common.errors import NotAllowed, StateConflict
from jobs.actions import job_verbs
from jobs.actions.job_verbs import JOB_ACTIONS, JobActionRequest, perform_job_action
from jobs.admin.job_verbs import JOB_ADMIN_ACTIONS
from jobs.api.jobs import JOB_ACTION_ENDPOINTS as ENDPOINTS
from jobs.models import HoldKind, Job, TeamRole, Token, TokenScope
from jobs.models.permissions import Caller
from tests import make

pytestmark = pytest.mark.django_db


def caller(name, role=None, scope=None):
    if role:
        make.team(**{name: role})
    token = Token(user=make.user(name), scope=scope) if scope else None
    return Caller(user=make.user(name), token=token, scope=TokenScope(scope or TokenScope.ADMIN))


def action_request(name="ada", **fields):
    return JobActionRequest(author=make.author(name), **fields)


def test_api_and_admin_offer_exactly_the_actions_of_the_table():
    assert list(ENDPOINTS) == list(JOB_ACTIONS) == [verb.name for verb in JOB_ADMIN_ACTIONS]


@pytest.mark.parametrize("name", JOB_ACTIONS)
def test_viewer_is_told_that_viewers_cannot_make_changes(name):
    own_job = make.job(by="ada")
    viewer = caller("ada", TeamRole.VIEWER)

    with pytest.raises(NotAllowed, match="researcher"):
        perform_job_action(JOB_ACTIONS[name], own_job, action_request(), viewer)


@pytest.mark.parametrize("name", JOB_ACTIONS)
def test_researcher_may_not_change_the_job_of_another_member(name):
    other_job = make.job(by="grace")

    with pytest.raises(NotAllowed, match="belongs to another user"):
        perform_job_action(JOB_ACTIONS[name], other_job, action_request(), caller("ada", TeamRole.RESEARCHER))


def test_operator_with_a_submit_token_has_no_operator_rights():
    other_job = make.job(by="grace")
    olga = caller("olga", TeamRole.OPERATOR, scope=TokenScope.SUBMIT)

    with pytest.raises(NotAllowed, match="scope operate"):
        perform_job_action(JOB_ACTIONS["cancel"], other_job, action_request("olga"), olga)


def test_operator_holds_own_jobs_as_owner_and_others_as_operator():
    olga = caller("olga", TeamRole.OPERATOR)
    own_job, other_job = make.job(by="olga"), make.job(by="grace")

    for job in (own_job, other_job):
        perform_job_action(JOB_ACTIONS["hold"], job, action_request("olga"), olga)

    assert (own_job.hold, other_job.hold) == (HoldKind.USER, HoldKind.ADMIN)


def test_owners_may_lower_the_priority_and_only_operators_raise_it_above_0():
    own_job = make.job(by="ada")
    ada = caller("ada", TeamRole.RESEARCHER)

    perform_job_action(JOB_ACTIONS["priority"], own_job, action_request(priority=-5), ada)
    with pytest.raises(NotAllowed, match="above 0"):
        perform_job_action(JOB_ACTIONS["priority"], own_job, action_request(priority=5), ada)

    assert own_job.priority == -5


def test_every_action_has_texts():
    assert all(verb.effect.endswith(".") and verb.summary and verb.label for verb in job_verbs.JOB_ACTIONS.values())


def test_cancel_of_a_job_that_started_meanwhile_stops_its_attempt():
    job = make.job(by="ada")
    started = make.attempt(job)

    perform_job_action(JOB_ACTIONS["cancel"], read_before_start(job), action_request(), caller("ada"))

    started.refresh_from_db()
    assert started.stop_state == "CANCELLED"


def test_hold_of_a_job_that_started_meanwhile_is_refused_by_its_present_state():
    job = make.job(by="ada")
    make.attempt(job)

    with pytest.raises(StateConflict, match="is RUNNING; hold needs a waiting job"):
        perform_job_action(JOB_ACTIONS["hold"], read_before_start(job), action_request(), caller("ada"))


def test_release_keeps_the_hold_of_another_operator_that_the_caller_has_not_seen():
    job = make.job(by="ada")
    seen_by_ada = held(job, "ada")
    Job.objects.filter(pk=job.pk).update(hold=HoldKind.ADMIN)

    with pytest.raises(StateConflict):
        perform_job_action(
            JOB_ACTIONS["release"], seen_by_ada, action_request("olga"), caller("olga", TeamRole.OPERATOR)
        )

    job.refresh_from_db()
    assert job.hold == HoldKind.ADMIN


def held(job, name):
    perform_job_action(JOB_ACTIONS["hold"], job, action_request(name), caller(name))
    return Job.objects.get(pk=job.pk)


def read_before_start(job):
    """The job as a request saw it that read it before its start."""
    row = Job.objects.get(pk=job.pk)
    row.state, row.flags = "PENDING", []
    return row
