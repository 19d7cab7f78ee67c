"""One table of verbs behind three doors: each role gets the same answer at every one of them."""

from __future__ import annotations

import pytest

from jobs.actions import job_verbs
from jobs.actions.job_verbs import JOB_ACTIONS, JobActionDenied, JobActionRequest, perform_job_action
from jobs.admin.job_verbs import JOB_ADMIN_ACTIONS
from jobs.api.jobs import JOB_ACTION_ENDPOINTS as ENDPOINTS
from jobs.models import HoldKind, TeamRole, Token, TokenScope
from jobs.models.permissions import Caller
from tests import make

pytestmark = pytest.mark.django_db


def caller(name, role=None, scope=None):
    if role:
        make.team(**{name: role})
    token = Token(user=make.user(name), scope=scope) if scope else None
    return Caller(user=make.user(name), token=token, scope=TokenScope(scope or TokenScope.ADMIN))


def wish(name="ada", **fields):
    return JobActionRequest(author=make.author(name), **fields)


def test_api_and_console_offer_the_verbs_of_the_table_and_no_others():
    assert list(ENDPOINTS) == list(JOB_ACTIONS) == [verb.name for verb in JOB_ADMIN_ACTIONS]


@pytest.mark.parametrize("name", JOB_ACTIONS)
def test_a_viewer_is_told_that_they_change_nothing(name):
    mine = make.job(by="ada")
    viewer = caller("ada", TeamRole.VIEWER)

    with pytest.raises(JobActionDenied, match="researcher"):
        perform_job_action(JOB_ACTIONS[name], mine, wish(), viewer)


@pytest.mark.parametrize("name", JOB_ACTIONS)
def test_a_colleague_of_the_team_may_not_touch_anothers_job(name):
    theirs = make.job(by="grace")

    with pytest.raises(JobActionDenied, match="somebody else's"):
        perform_job_action(JOB_ACTIONS[name], theirs, wish(), caller("ada", TeamRole.RESEARCHER))


def test_an_operator_with_a_token_of_scope_submit_is_no_operator():
    theirs = make.job(by="grace")
    olga = caller("olga", TeamRole.OPERATOR, scope=TokenScope.SUBMIT)

    with pytest.raises(JobActionDenied, match="scope operate"):
        perform_job_action(JOB_ACTIONS["cancel"], theirs, wish("olga"), olga)


def test_an_operator_holds_their_own_job_as_its_owner_and_anothers_as_an_operator():
    olga = caller("olga", TeamRole.OPERATOR)
    mine, theirs = make.job(by="olga"), make.job(by="grace")

    for job in (mine, theirs):
        perform_job_action(JOB_ACTIONS["hold"], job, wish("olga"), olga)

    assert (mine.hold, theirs.hold) == (HoldKind.USER, HoldKind.ADMIN)


def test_everybody_may_step_back_in_the_queue_and_only_operators_push_ahead():
    mine = make.job(by="ada")
    ada = caller("ada", TeamRole.RESEARCHER)

    perform_job_action(JOB_ACTIONS["priority"], mine, wish(priority=-5), ada)
    with pytest.raises(JobActionDenied, match="above 0"):
        perform_job_action(JOB_ACTIONS["priority"], mine, wish(priority=5), ada)

    assert mine.priority == -5


def test_every_verb_says_what_comes_of_it():
    assert all(verb.effect.endswith(".") and verb.says and verb.label for verb in job_verbs.JOB_ACTIONS.values())
