"""Evaluation rules on the page and in the API."""

from __future__ import annotations

import pytest
from django.urls import reverse

from jobs.models import clock
from scheduling.models import EvaluationRule
from tests import make as people
from tests.jobs.api import api_make as make
from tests.jobs.api.api_make import Caller
from tests.scheduling.evaluation.campaign_make import suite
from tests.statements import before_statement

pytestmark = pytest.mark.django_db

WISH = {"directory": "/ckpt/run", "suite": "core", "which": "newest"}


@pytest.fixture
def of():
    people.cluster(checkpoint_root="/ckpt")
    return suite(team=people.team(ada="researcher"))


@pytest.fixture
def ada(client, of):
    client.force_login(people.user("ada"))
    return client


def page(client):
    answer = client.get(reverse("evaluation-rules"))
    assert answer.status_code == 200
    return answer.content.decode()


def wish(of, **more):
    return WISH | {"suite": f"{of.team.name}/{of.name}", "cluster": "seren"} | more


def rule(of, name: str = "ada", **fields) -> EvaluationRule:
    first = {"team": of.team, "user": people.user(name), "cluster": people.cluster(), "suite": of.name}
    return EvaluationRule.objects.create(**first | {"directory": "/ckpt/run"} | fields)


def test_form_creates_a_rule_that_is_listed(ada, of):
    answer = ada.post(reverse("evaluation-rules"), wish(of, interval="1:00:00", pattern="step-*", per_day="3"))

    assert answer.url == reverse("evaluation-rules")
    made = EvaluationRule.objects.get()
    assert (made.directory, made.interval.total_seconds(), made.per_day, made.user.username) == (
        *("/ckpt/run", 3600, 3),
        "ada",
    )
    shown = page(ada)
    assert "/ckpt/run" in shown and "step-*" in shown and "≤ 3 per day" in shown and "not yet" in shown


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"directory": "relative"}, "&#x27;relative&#x27; is not an absolute path without .."),
        ({"directory": "/elsewhere"}, "is not inside /ckpt, the checkpoint directory of seren"),
        ({"interval": "soon"}, "soon"),
    ],
)
def test_invalid_value_is_explained_beside_its_field(ada, of, wrong, sentence):
    answer = ada.post(reverse("evaluation-rules"), wish(of, **wrong))

    assert answer.status_code == 400
    assert sentence in answer.content.decode()
    assert not EvaluationRule.objects.exists()


def test_rule_is_disabled_enabled_and_removed(ada, of):
    row = rule(of)
    for verb, is_enabled in (("off", False), ("on", True)):
        ada.post(reverse("evaluation-rule-verb", args=[row.pk, verb]))
        assert EvaluationRule.objects.get().is_enabled is is_enabled

    answer = ada.post(reverse("evaluation-rule-verb", args=[row.pk, "remove"]), follow=True)

    assert "was removed. Its campaigns are kept." in answer.content.decode()
    assert not EvaluationRule.objects.exists()


def test_rule_is_visible_to_its_team_and_changed_by_its_owner_only(client, of):
    row = rule(of)
    people.team("speech", ben="admin")
    people.team(carl="researcher")

    client.force_login(people.user("ben"))
    assert "/ckpt/run" not in page(client)
    assert client.post(reverse("evaluation-rule-verb", args=[row.pk, "off"])).status_code == 404
    client.force_login(people.user("carl"))
    assert "/ckpt/run" in page(client) and "Disable" not in page(client)
    client.post(reverse("evaluation-rule-verb", args=[row.pk, "off"]))

    assert EvaluationRule.objects.get().is_enabled


def test_names_in_rules_are_escaped(ada, of):
    rule(of, directory="/ckpt/<script>alert(1)</script>", why='"><script>alert(2)</script>')

    assert "<script>alert" not in page(ada)


def test_the_fragment_alone_answers_htmx(ada, of):
    rule(of)
    headers = {"HX-Request": "true", "HX-Target": "section#evaluation-rules"}

    shown = ada.get(reverse("evaluation-rules"), headers=headers).content.decode()

    assert shown.startswith('<section id="evaluation-rules"')


def test_rule_list_queries_do_not_grow_with_rules(ada, of, django_assert_max_num_queries):
    for number in range(8):
        rule(of, directory=f"/ckpt/{number}")

    with django_assert_max_num_queries(10):
        assert page(ada).count("evaluation-rule-") >= 8


# --- the door


@pytest.fixture
def caller():
    make.cluster()
    person = Caller(make.person("ada"))
    asked = {"name": "core", "output_root": "/out", "infer": "answer", "datasets": [{"name": "a", "samples": 9}]}
    assert person.post("suites/", asked).status_code == 201
    return person


def test_api_creates_reads_changes_and_removes_a_rule(caller):
    made = caller.post("evaluation-rules/", {"directory": "/ckpt/run", "suite": "core", "interval": 600})
    assert made.status_code == 201
    told = made.json()
    assert (told["which"], told["interval_s"], told["per_day"], told["is_enabled"]) == ("newest", 600, 24, True)
    address = f"evaluation-rules/{told['id']}/"

    changed = caller.patch(address, {"which": "every", "is_enabled": False}).json()
    assert (changed["which"], changed["is_enabled"]) == ("every", False)
    assert caller.get(address).json() == changed
    assert caller.post(f"{address}remove/", {}).status_code == 200

    assert caller.get(address).status_code == 404


def tagged(caller):
    """The address of a rule, and the version that was read there."""
    made = caller.post("evaluation-rules/", {"directory": "/ckpt/run", "suite": "core"}).json()
    address = f"evaluation-rules/{made['id']}/"
    return address, caller.get(address)["ETag"]


def test_check_by_the_loop_does_not_refuse_a_change(caller):
    address, tag = tagged(caller)
    EvaluationRule.objects.update(looked_at=clock.now(), why="It waits.", started=1)

    assert caller.get(address, If_None_Match=tag).status_code == 200
    assert caller.patch(address, {"per_day": 3}, If_Match=tag).status_code == 200
    assert caller.patch(address, {"per_day": 4}, If_Match=tag).status_code == 412
    assert caller.post(f"{address}remove/", {}, If_Match=tag).status_code == 412
    assert caller.post(f"{address}remove/", {}, If_Match=f'"x", {caller.get(address)["ETag"]}').status_code == 200


@pytest.mark.parametrize("command", ["patch", "remove"])
def test_change_while_waiting_for_the_row_lock_is_not_overwritten(caller, command):
    address, tag = tagged(caller)

    with before_statement(
        'FROM "scheduling_evaluationrule"', "FOR UPDATE", act=lambda: EvaluationRule.objects.update(per_day=9)
    ):
        if command == "patch":
            answer = caller.patch(address, {"per_day": 3}, If_Match=tag)
        else:
            answer = caller.post(f"{address}remove/", {}, If_Match=tag)

    assert answer.status_code == 412
    assert EvaluationRule.objects.get().per_day != 3


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"directory": "/elsewhere"}, "directory"),
        ({"which": "all"}, "which"),
        ({"color": 1}, "color"),
        ({}, "is_enabled"),
    ],
)
def test_invalid_rule_change_is_refused_with_its_field(caller, body, field):
    made = caller.post("evaluation-rules/", {"directory": "/ckpt/run", "suite": "core"}).json()

    refused = caller.patch(f"evaluation-rules/{made['id']}/", body)

    assert refused.status_code == 400
    assert field in refused.json()


def test_a_suite_that_the_team_does_not_have_is_refused(caller):
    refused = caller.post("evaluation-rules/", {"directory": "/ckpt/run", "suite": "nope"})

    assert refused.json() == {"suite": ["vision has no suite 'nope'; available: core"]}


def test_colleague_reads_a_rule_but_cannot_change_it(caller):
    made = caller.post("evaluation-rules/", {"directory": "/ckpt/run", "suite": "core"}).json()
    colleague = Caller(make.person("carl"))

    assert colleague.get(f"evaluation-rules/{made['id']}/").status_code == 200
    assert colleague.patch(f"evaluation-rules/{made['id']}/", {"is_enabled": False}).status_code == 403
