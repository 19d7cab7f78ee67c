"""The loop that asks a model: about whom, once, and never instead of the verdict."""

from __future__ import annotations

import json
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from failures.actions import incidents as incident_actions
from failures.actions import rules as rule_actions
from failures.agent.model_client import ModelEndpoint
from failures.loops.consult import consult_once
from failures.loops.diagnose import diagnose_once
from failures.loops.learn import learn_once
from failures.models import Diagnosis, LearnedRule, ModelOpinion
from jobs.models import clock
from tests import make as rows
from tests.failures import make
from tests.failures.learning.test_agent import said, serving, verdict

pytestmark = pytest.mark.django_db

VAGUE = "step 4\nflux capacitor of rack 7 lost its phase lock, shutting down lane 3\n"


def kept(tmp_path, text=VAGUE) -> Diagnosis:
    row = make.diagnosed(tmp_path, text)
    diagnose_once(clock.now())
    learn_once(clock.now())
    row.refresh_from_db()
    return row


def asked_about(row, answer=None, now=None):
    line = row.lines
    with serving(answer or (lambda *_: (200, said(verdict(lines=[line]))))) as (url, asked):
        done = consult_once(now or clock.now(), ModelEndpoint(url=url, model="small", votes=1))
    return done, asked


def test_an_unsure_verdict_gets_an_opinion_beside_it_and_stays(tmp_path):
    row = kept(tmp_path)
    before = row.root_cause

    done, _ = asked_about(row)

    row.refresh_from_db()
    assert (done, row.opinion.root_cause, row.opinion.votes) == (1, "NodeFailure", 1)
    assert row.root_cause == before


def test_a_sure_verdict_is_nothing_to_ask_about(tmp_path):
    row = kept(tmp_path, make.XID)

    assert asked_about(row) == (0, [])


def test_what_a_person_judged_is_nothing_to_ask_about(tmp_path):
    row = kept(tmp_path)
    incident_actions.correct_verdict(row, "NodeFailure", author=rows.author(), now=clock.now())

    assert asked_about(row)[0] == 0


def test_nobody_is_asked_twice(tmp_path):
    row = kept(tmp_path)
    asked_about(row)

    assert asked_about(row)[0] == 0


def test_who_died_while_asking_is_replaced_after_a_while(tmp_path):
    row = kept(tmp_path)
    assert rule_actions.claim_model_request(row, "small", clock.now())
    assert asked_about(row)[0] == 0

    ModelOpinion.objects.update(asked_at=clock.now() - timedelta(minutes=11))

    assert asked_about(row)[0] == 1


def test_a_model_that_talks_nonsense_leaves_an_abstention_with_its_reason(tmp_path):
    row = kept(tmp_path)

    asked_about(row, lambda *_: (200, said("the cause is ECCError!")))

    opinion = ModelOpinion.objects.get()
    assert (opinion.root_cause, opinion.troubles) == ("", ["The answer is no JSON."])


def test_confirmed_cases_of_its_team_go_along(tmp_path):
    past = kept(tmp_path, VAGUE.replace("7", "9"))
    incident_actions.correct_verdict(
        past, "NodeFailure", author=rows.author(), now=clock.now(), note="the rack was swapped"
    )
    row = kept(tmp_path)

    _, asked = asked_about(row)

    assert "cured by: the rack was swapped" in asked[0]["messages"][1]["content"]


def test_without_an_endpoint_nothing_happens(tmp_path):
    kept(tmp_path)

    assert consult_once(clock.now()) == 0


def test_the_test_command_says_what_the_model_answered(settings):
    with serving(lambda *_: (200, said(verdict("ECCError", [2])))) as (url, _):
        settings.ACME_AGENT_URL, settings.ACME_AGENT_MODEL = url, "small"
        out = StringIO()
        call_command("agent_test", stdout=out)

    assert out.getvalue().startswith("small answers: ECCError, 3 of 3 votes, lines 2, in ")


def test_the_test_command_without_a_model_names_the_settings():
    with pytest.raises(CommandError, match="set ACME_AGENT_URL and ACME_AGENT_MODEL"):
        call_command("agent_test")


def test_the_test_command_says_when_nobody_answers(settings):
    settings.ACME_AGENT_URL, settings.ACME_AGENT_MODEL = "http://127.0.0.1:1/v1", "small"

    with pytest.raises(CommandError, match="no usable answer"):
        call_command("agent_test", stdout=StringIO())


def test_the_log_agent_proposes_filters_and_none_for_lines_of_trouble(tmp_path):
    row = kept(tmp_path, "".join(f"worker {n % 7} renewed its lease for {n} seconds\n" for n in range(900)) + VAGUE)
    rules = [
        {"pattern": "renewed its lease", "example": "worker 1 renewed its lease"},
        {"pattern": "out of memory", "example": "CUDA out of memory. Tried to allocate 1 GiB"},
        {"pattern": "(?=x)", "example": "x"},
    ]
    answers = [said(verdict(lines=[row.lines])), said(json.dumps({"rules": rules}))]

    asked_about(row, lambda _, n: (200, answers[n - 1]))

    assert [one.pattern for one in LearnedRule.objects.filter(origin="model")] == ["renewed its lease"]
