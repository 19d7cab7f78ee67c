"""The loop that asks a model: which verdicts, once each, and without changing them."""

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
from tests.failures.learning.test_agent import response_body, serving, verdict

pytestmark = pytest.mark.django_db

VAGUE = "step 4\nflux capacitor of rack 7 lost its phase lock, shutting down lane 3\n"


def stored_diagnosis(tmp_path, text=VAGUE) -> Diagnosis:
    row = make.diagnosed(tmp_path, text)
    diagnose_once(clock.now())
    learn_once(clock.now())
    row.refresh_from_db()
    return row


def consult_about(row, answer=None, now=None):
    line = row.lines
    with serving(answer or (lambda *_: (200, response_body(verdict(lines=[line]))))) as (url, requests):
        done = consult_once(now or clock.now(), ModelEndpoint(url=url, model="small", votes=1))
    return done, requests


def test_uncertain_verdict_gets_an_opinion_and_does_not_change(tmp_path):
    row = stored_diagnosis(tmp_path)
    before = row.root_cause

    done, _ = consult_about(row)

    row.refresh_from_db()
    assert (done, row.opinion.root_cause, row.opinion.votes) == (1, "NodeFailure", 1)
    assert row.root_cause == before


def test_certain_verdict_is_not_sent_to_the_model(tmp_path):
    row = stored_diagnosis(tmp_path, make.XID)

    assert consult_about(row) == (0, [])


def test_verdict_corrected_by_a_user_is_not_sent_to_the_model(tmp_path):
    row = stored_diagnosis(tmp_path)
    incident_actions.correct_verdict(row, "NodeFailure", author=rows.author(), now=clock.now())

    assert consult_about(row)[0] == 0


def test_model_is_asked_once_per_verdict(tmp_path):
    row = stored_diagnosis(tmp_path)
    consult_about(row)

    assert consult_about(row)[0] == 0


def test_request_of_a_dead_worker_is_repeated_after_its_timeout(tmp_path):
    row = stored_diagnosis(tmp_path)
    assert rule_actions.claim_model_request(row, "small", clock.now())
    assert consult_about(row)[0] == 0

    ModelOpinion.objects.update(requested_at=clock.now() - timedelta(minutes=11))

    assert consult_about(row)[0] == 1


def test_invalid_answer_is_stored_as_an_abstention_with_its_reason(tmp_path):
    row = stored_diagnosis(tmp_path)

    consult_about(row, lambda *_: (200, response_body("the cause is ECCError!")))

    opinion = ModelOpinion.objects.get()
    assert (opinion.root_cause, opinion.errors) == ("", ["The answer is not valid JSON."])


def test_prompt_contains_confirmed_cases_of_the_same_team(tmp_path):
    past = stored_diagnosis(tmp_path, VAGUE.replace("7", "9"))
    incident_actions.correct_verdict(
        past, "NodeFailure", author=rows.author(), now=clock.now(), note="the rack was swapped"
    )
    row = stored_diagnosis(tmp_path)

    _, requests = consult_about(row)

    assert "cured by: the rack was swapped" in requests[0]["messages"][1]["content"]


def test_loop_does_nothing_without_an_endpoint(tmp_path):
    stored_diagnosis(tmp_path)

    assert consult_once(clock.now()) == 0


def test_agent_test_command_prints_the_answer(settings):
    with serving(lambda *_: (200, response_body(verdict("ECCError", [2])))) as (url, _):
        settings.ACME_AGENT_URL, settings.ACME_AGENT_MODEL = url, "small"
        out = StringIO()
        call_command("agent_test", stdout=out)

    assert out.getvalue().startswith("small answered ECCError, 3 of 3 votes, lines 2, in ")


def test_agent_test_command_without_a_model_names_the_settings():
    with pytest.raises(CommandError, match="Set ACME_AGENT_URL and ACME_AGENT_MODEL"):
        call_command("agent_test")


def test_agent_test_command_fails_for_an_unreachable_server(settings):
    settings.ACME_AGENT_URL, settings.ACME_AGENT_MODEL = "http://127.0.0.1:1/v1", "small"

    with pytest.raises(CommandError, match="no usable answer"):
        call_command("agent_test", stdout=StringIO())


def test_model_proposes_filters_but_not_for_lines_of_a_failure(tmp_path):
    row = stored_diagnosis(
        tmp_path, "".join(f"worker {n % 7} renewed its lease for {n} seconds\n" for n in range(900)) + VAGUE
    )
    rules = [
        {"pattern": "renewed its lease", "example": "worker 1 renewed its lease"},
        {"pattern": "out of memory", "example": "CUDA out of memory. Tried to allocate 1 GiB"},
        {"pattern": "(?=x)", "example": "x"},
    ]
    answers = [response_body(verdict(lines=[row.lines])), response_body(json.dumps({"rules": rules}))]

    consult_about(row, lambda _, n: (200, answers[n - 1]))

    assert [one.pattern for one in LearnedRule.objects.filter(origin="model")] == ["renewed its lease"]
