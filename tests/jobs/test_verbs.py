"""One table of verbs behind three doors: each role gets the same answer at every one of them."""

from __future__ import annotations

import pytest

from jobs import verbs
from jobs.admin.job_verbs import JOB_VERBS
from jobs.api.jobs import VERBS as ENDPOINTS
from jobs.models import Hold, Role, Scope, Token
from jobs.rights import Caller
from jobs.verbs import VERBS, NotAllowed, Wish, carry_out
from tests import make

pytestmark = pytest.mark.django_db


def caller(name, role=None, scope=None):
    if role:
        make.team(**{name: role})
    token = Token(user=make.user(name), scope=scope) if scope else None
    return Caller(user=make.user(name), token=token, scope=Scope(scope or Scope.ADMIN))


def wish(name="ada", **fields):
    return Wish(author=make.author(name), **fields)


def test_api_and_console_offer_the_verbs_of_the_table_and_no_others():
    assert list(ENDPOINTS) == list(VERBS) == [verb.name for verb in JOB_VERBS]


@pytest.mark.parametrize("name", VERBS)
def test_a_viewer_is_told_that_they_change_nothing(name):
    mine = make.job(by="ada")
    viewer = caller("ada", Role.VIEWER)

    with pytest.raises(NotAllowed, match="researcher"):
        carry_out(VERBS[name], mine, wish(), viewer)


@pytest.mark.parametrize("name", VERBS)
def test_a_colleague_of_the_team_may_not_touch_anothers_job(name):
    theirs = make.job(by="grace")

    with pytest.raises(NotAllowed, match="somebody else's"):
        carry_out(VERBS[name], theirs, wish(), caller("ada", Role.RESEARCHER))


def test_an_operator_with_a_token_of_scope_submit_is_no_operator():
    theirs = make.job(by="grace")
    olga = caller("olga", Role.OPERATOR, scope=Scope.SUBMIT)

    with pytest.raises(NotAllowed, match="scope operate"):
        carry_out(VERBS["cancel"], theirs, wish("olga"), olga)


def test_an_operator_holds_their_own_job_as_its_owner_and_anothers_as_an_operator():
    olga = caller("olga", Role.OPERATOR)
    mine, theirs = make.job(by="olga"), make.job(by="grace")

    for job in (mine, theirs):
        carry_out(VERBS["hold"], job, wish("olga"), olga)

    assert (mine.hold, theirs.hold) == (Hold.USER, Hold.ADMIN)


def test_everybody_may_step_back_in_the_queue_and_only_operators_push_ahead():
    mine = make.job(by="ada")
    ada = caller("ada", Role.RESEARCHER)

    carry_out(VERBS["priority"], mine, wish(priority=-5), ada)
    with pytest.raises(NotAllowed, match="above 0"):
        carry_out(VERBS["priority"], mine, wish(priority=5), ada)

    assert mine.priority == -5


def test_every_verb_says_what_comes_of_it():
    assert all(verb.effect.endswith(".") and verb.says and verb.label for verb in verbs.VERBS.values())
