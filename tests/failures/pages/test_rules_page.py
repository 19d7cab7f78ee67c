"""Learned rules and similar failures: the page, the API, and access."""

from __future__ import annotations

import pytest

from failures.actions import incidents as incident_actions
from failures.actions import rules as rule_actions
from failures.learning import embedding
from failures.models import Diagnosis, LearnedRule, RuleState
from jobs.models import clock
from tests import make as rows
from tests.failures import make
from tests.failures.learning.test_learn_loop import ALSO_ODD, ODD, corrected_diagnosis, run_learn_loop, stored_diagnosis
from tests.jobs.api.api_make import Caller

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module", autouse=True)
def learned(rows_for_module, tmp_path_factory) -> None:
    corrected_diagnosis(tmp_path_factory.mktemp("logs"))
    run_learn_loop()


@pytest.fixture
def rule(learned) -> LearnedRule:
    return LearnedRule.objects.get()


@pytest.fixture
def operator(client):
    person = rows.user("olga", is_superuser=True)
    client.force_login(person)
    return client


@pytest.fixture
def ben(client):
    rows.team("alignment", ben="researcher")
    client.force_login(rows.user("ben"))
    return client


def test_page_shows_what_a_rule_matches_and_its_hits(operator, rule):
    text = operator.get("/failures/rules/").content.decode()

    assert "NodeFailure" in text and "flux capacitor" in text
    assert "Adopt" in text and "Retire" in text


def test_other_teams_see_no_log_lines_of_a_rule(ben, rule):
    assert "flux" not in ben.get("/failures/rules/").content.decode()


def test_rule_is_adopted_and_retired_on_the_page(operator, rule):
    operator.post(f"/failures/rules/{rule.name}/adopt/")
    rule.refresh_from_db()
    assert (rule.state, rule.adopted_by) == (RuleState.ADOPTED, "olga")

    operator.post(f"/failures/rules/{rule.name}/retire/")
    rule.refresh_from_db()
    assert (rule.state, rule.retired_by) == (RuleState.RETIRED, "olga")
    shown = f'id="rule-{rule.pk}"'
    assert shown not in operator.get("/failures/rules/").content.decode()
    assert shown in operator.get("/failures/rules/?state=retired").content.decode()


def test_team_of_the_source_failure_sees_the_rule_but_cannot_adopt_it(client, rule):
    client.force_login(rows.user("ada"))

    assert "Adopt" not in client.get("/failures/rules/").content.decode()
    client.post(f"/failures/rules/{rule.name}/adopt/")
    rule.refresh_from_db()
    assert rule.state == RuleState.SHADOW


def test_unknown_action_and_unknown_rule_are_not_found(operator, rule):
    assert operator.post(f"/failures/rules/{rule.name}/explode/").status_code == 404
    assert operator.post("/failures/rules/learned-none/adopt/").status_code == 404


def test_page_makes_the_same_number_of_queries_for_many_rules(operator, rule, django_assert_max_num_queries):
    for at in range(5):
        rule_actions.propose_filter(rule.source, f"filter-{at}", "x{9}", "x" * 9, "frequency")

    with django_assert_max_num_queries(10):
        operator.get("/failures/rules/")


def test_fragment_contains_one_section(operator, rule):
    text = operator.get(
        "/failures/rules/", headers={"HX-Request": "true", "HX-Target": "section#rules"}
    ).content.decode()

    assert text.strip().startswith('<section id="rules"') and "<html" not in text


def test_admin_lists_and_shows_a_rule(operator, rule):
    operator.force_login(rows.user("root", is_superuser=True, is_staff=True))

    assert rule.name in operator.get("/admin/failures/learnedrule/").content.decode()
    assert "1, 1, 0" in operator.get(f"/admin/failures/learnedrule/{rule.pk}/change/").content.decode()


# --- the API


def test_api_returns_hits_and_precision(rule):
    api = Caller(rows.user("ada"))

    (body,) = api.get("rules/").json()["results"]

    assert (body["id"], body["hits"], body["right"], body["precision"], body["owner"]) == (rule.name, 1, 1, 1.0, "ada")
    assert api.get(f"rules/{rule.name}/").json()["label"] == "NodeFailure"


def test_api_adopts_and_retires_a_rule_once_for_operators(rule):
    api = Caller(rows.user("olga", is_superuser=True))

    assert api.post(f"rules/{rule.name}/adopt/", {"reason": "it holds"}).json()["state"] == "adopted"
    assert api.post(f"rules/{rule.name}/adopt/", {}).status_code == 409
    assert api.post(f"rules/{rule.name}/retire/", {}).json()["state"] == "retired"


def test_api_does_not_adopt_rules_for_other_users(rule):
    assert Caller(rows.user("ada")).post(f"rules/{rule.name}/adopt/", {}).status_code == 403


def test_similar_failures_are_returned_with_their_resolution(tmp_path, rule):
    now = stored_diagnosis(tmp_path, ALSO_ODD)
    run_learn_loop()

    similar = Caller(rows.user("ada")).get(f"diagnoses/{now.attempt.key}/similar/").json()["results"]

    assert [(one["id"], one["root_cause"], one["cured_by"]) for one in similar] == [
        (rule.source.attempt.key, "NodeFailure", "the rack was swapped")
    ]
    assert similar[0]["similarity"] > 0.9


def test_similar_failures_of_other_teams_are_not_returned(tmp_path):
    own = make.diagnosed(tmp_path, ODD, by="ben")
    rule_actions.save_past_failure(own, embedding.embed_bundle(ODD))

    assert Caller(rows.user("ben")).get(f"diagnoses/{own.attempt.key}/similar/").json()["results"] == []


def test_job_page_shows_similar_failures(client, tmp_path):
    now = stored_diagnosis(tmp_path, ALSO_ODD)
    run_learn_loop()
    client.force_login(rows.user("ada"))

    text = client.get(f"/jobs/{now.attempt.job.public_id}/diagnosis/").content.decode()

    assert "Similar failures" in text and "the rack was swapped" in text


def test_job_page_shows_the_model_opinion(client, tmp_path):
    row = stored_diagnosis(tmp_path, ODD)
    actions_now = clock.now()
    rule_actions.claim_model_request(row, "small", actions_now)
    from failures.agent.answers import VoteResult

    rule_actions.record_opinion(
        row, VoteResult(root_cause="ECCError", lines=(2,), why="<b>flux</b>", votes=2, calls=3), actions_now
    )
    client.force_login(rows.user("ada"))

    text = client.get(f"/jobs/{row.attempt.job.public_id}/diagnosis/").content.decode()

    assert "small" in text and "2 of 3" in text and "&lt;b&gt;flux" in text
    assert Diagnosis.objects.get(pk=row.pk).root_cause == row.root_cause


def test_correction_requires_a_user(tmp_path):
    row = make.diagnosed(tmp_path, ODD)

    with pytest.raises(KeyError):
        incident_actions.correct_verdict(row, "Sabotage", author=rows.author(), now=clock.now())
