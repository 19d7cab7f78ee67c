"""Learned rules and similar failures: the page, the programs' door, and who may do what."""

from __future__ import annotations

import pytest

from failures.actions import incidents as incident_actions
from failures.actions import rules as rule_actions
from failures.learning import embedding
from failures.models import Diagnosis, LearnedRule, RuleState
from jobs.models import clock
from tests import make as rows
from tests.failures import make
from tests.failures.learning.test_learn_loop import ALSO_ODD, ODD, corrected, kept, turn
from tests.jobs.api.api_make import Caller

pytestmark = pytest.mark.django_db


@pytest.fixture
def rule(tmp_path) -> LearnedRule:
    corrected(tmp_path)
    turn()
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


def test_the_page_shows_what_a_rule_finds_and_how_it_did(operator, rule):
    text = operator.get("/failures/rules/").content.decode()

    assert "NodeFailure" in text and "flux capacitor" in text
    assert "Adopt" in text and "Retire" in text


def test_another_team_sees_no_line_of_somebodys_log(ben, rule):
    assert "flux" not in ben.get("/failures/rules/").content.decode()


def test_one_click_adopts_and_one_retires(operator, rule):
    operator.post(f"/failures/rules/{rule.name}/adopt/")
    rule.refresh_from_db()
    assert (rule.state, rule.adopted_by) == (RuleState.ADOPTED, "olga")

    operator.post(f"/failures/rules/{rule.name}/retire/")
    rule.refresh_from_db()
    assert (rule.state, rule.retired_by) == (RuleState.RETIRED, "olga")
    shown = f'id="rule-{rule.pk}"'
    assert shown not in operator.get("/failures/rules/").content.decode()
    assert shown in operator.get("/failures/rules/?state=retired").content.decode()


def test_whose_failure_taught_it_may_look_and_not_adopt(client, rule):
    client.force_login(rows.user("ada"))

    assert "Adopt" not in client.get("/failures/rules/").content.decode()
    client.post(f"/failures/rules/{rule.name}/adopt/")
    rule.refresh_from_db()
    assert rule.state == RuleState.SHADOW


def test_a_verb_that_is_none_and_a_rule_that_is_none_are_not_found(operator, rule):
    assert operator.post(f"/failures/rules/{rule.name}/explode/").status_code == 404
    assert operator.post("/failures/rules/learned-none/adopt/").status_code == 404


def test_the_page_costs_the_same_for_many_rules(operator, rule, django_assert_max_num_queries):
    for at in range(5):
        rule_actions.propose_filter(rule.source, f"filter-{at}", "x{9}", "x" * 9, "frequency")

    with django_assert_max_num_queries(10):
        operator.get("/failures/rules/")


def test_the_fragment_alone_is_one_section(operator, rule):
    text = operator.get(
        "/failures/rules/", headers={"HX-Request": "true", "HX-Target": "section#rules"}
    ).content.decode()

    assert text.strip().startswith('<section id="rules"') and "<html" not in text


def test_the_console_lists_and_shows_a_rule(operator, rule):
    operator.force_login(rows.user("root", is_superuser=True, is_staff=True))

    assert rule.name in operator.get("/admin/failures/learnedrule/").content.decode()
    assert "1, 1, 0" in operator.get(f"/admin/failures/learnedrule/{rule.pk}/change/").content.decode()


# --- the programs' door


def test_programs_read_hits_and_precision(rule):
    api = Caller(rows.user("ada"))

    (told,) = api.get("rules/").json()["results"]

    assert (told["id"], told["hits"], told["right"], told["precision"], told["owner"]) == (rule.name, 1, 1, 1.0, "ada")
    assert api.get(f"rules/{rule.name}/").json()["label"] == "NodeFailure"


def test_programs_of_operators_adopt_and_retire_once(rule):
    api = Caller(rows.user("olga", is_superuser=True))

    assert api.post(f"rules/{rule.name}/adopt/", {"reason": "it holds"}).json()["state"] == "adopted"
    assert api.post(f"rules/{rule.name}/adopt/", {}).status_code == 409
    assert api.post(f"rules/{rule.name}/retire/", {}).json()["state"] == "retired"


def test_programs_of_others_may_not(rule):
    assert Caller(rows.user("ada")).post(f"rules/{rule.name}/adopt/", {}).status_code == 403


def test_what_was_seen_before_is_told_with_its_cure(tmp_path):
    past = corrected(tmp_path)
    now = kept(tmp_path, ALSO_ODD)
    turn()

    found = Caller(rows.user("ada")).get(f"diagnoses/{now.attempt.key}/similar/").json()["results"]

    assert [(one["id"], one["root_cause"], one["cured_by"]) for one in found] == [
        (past.attempt.key, "NodeFailure", "the rack was swapped")
    ]
    assert found[0]["likeness"] > 0.9


def test_what_another_team_met_is_not_told(tmp_path):
    corrected(tmp_path)
    mine = make.diagnosed(tmp_path, ODD, by="ben")
    rule_actions.save_case(mine, embedding.embed_bundle(ODD))

    assert Caller(rows.user("ben")).get(f"diagnoses/{mine.attempt.key}/similar/").json()["results"] == []


def test_the_page_of_a_job_shows_what_was_seen_before(client, tmp_path):
    corrected(tmp_path)
    now = kept(tmp_path, ALSO_ODD)
    turn()
    client.force_login(rows.user("ada"))

    text = client.get(f"/jobs/{now.attempt.job.public_id}/diagnosis/").content.decode()

    assert "Seen before" in text and "the rack was swapped" in text


def test_the_page_of_a_job_shows_a_models_opinion_as_one(client, tmp_path):
    row = kept(tmp_path, ODD)
    actions_now = clock.now()
    rule_actions.claim_model_request(row, "small", actions_now)
    from failures.agent.answers import VoteResult

    rule_actions.record_opinion(
        row, VoteResult(root_cause="ECCError", lines=(2,), why="<b>flux</b>", votes=2, asked=3), actions_now
    )
    client.force_login(rows.user("ada"))

    text = client.get(f"/jobs/{row.attempt.job.public_id}/diagnosis/").content.decode()

    assert "small" in text and "2 of 3" in text and "&lt;b&gt;flux" in text
    assert Diagnosis.objects.get(pk=row.pk).root_cause == row.root_cause


def test_a_correction_by_nobody_is_impossible(tmp_path):
    row = make.diagnosed(tmp_path, ODD)

    with pytest.raises(KeyError):
        incident_actions.correct_verdict(row, "Sabotage", author=rows.author(), now=clock.now())
