"""Power budgets are listed for everybody and changed by operators: API, settings page, admin and metrics."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission
from django.test import Client

from acmeweb.common.errors import InvalidField
from jobs.models import Cluster, Event, Node, clock
from scheduling.core.policy_choice import PolicyChoice
from scheduling.engine.policies import LIVE_POLICIES
from scheduling.loops.schedule import schedule_once
from scheduling.models import PowerBudget
from scheduling.queries.policy_choices import check_for_cluster
from tests import make
from tests.jobs.api import api_make
from tests.jobs.api.api_make import Caller

pytestmark = pytest.mark.django_db
PATH = "clusters/seren/power-budgets/"
PAGE = "/settings/clusters/of/seren/"


@pytest.fixture(autouse=True)
def seren():
    row = make.cluster()
    Node.objects.filter(name="seren-004").update(rack="r02")
    return row


def olga():
    return Caller(api_make.operator("olga"))


def browser(name="olga", *permissions):
    client, user = Client(), make.user(name)
    user.user_permissions.add(*Permission.objects.filter(codename__in=permissions or ["operate_cluster"]))
    client.force_login(user)
    return client


def text(answer):
    return " ".join(answer.content.decode().split())


def said(client):
    """What the settings page says after a redirect."""
    return text(client.get(PAGE))


# --- API ---


def test_budget_is_added_listed_changed_and_removed():
    caller = olga()
    added = caller.post(PATH, {"limit_kw": 40, "reason": "new feed"})
    budget = added.json()

    assert (added.status_code, added["Location"]) == (201, f"http://testserver/api/v1/{PATH}{budget['id']}/")
    assert (budget["scope"], budget["place"], budget["limit_kw"], budget["nodes"]) == ("cluster", "", 40.0, 4)
    assert (budget["idle_kw"], budget["predicted_kw"]) == (6.08, 6.08)
    assert caller.get(PATH).json()["results"] == [budget]

    changed = caller.patch(f"{PATH}{budget['id']}/", {"limit_kw": 50.5})
    assert (changed.status_code, changed.json()["limit_kw"]) == (200, 50.5)
    assert caller.get(f"{PATH}{budget['id']}/").json() == changed.json()

    assert caller.post(f"{PATH}{budget['id']}/remove/", {}).json()["limit_kw"] == 50.5
    assert caller.get(f"{PATH}{budget['id']}/").status_code == 404
    changes = [event.detail["changes"] for event in Event.objects.filter(type="cluster.changed").order_by("id")]
    assert changes == [
        [["power budget", None, "40 kW"]],
        [["power budget", "40 kW", "50.5 kW"]],
        [["power budget", "50.5 kW", None]],
    ]
    first = Event.objects.filter(type="cluster.changed").order_by("id").first()
    assert (first.by, first.why, first.cluster.name) == ("olga", "new feed", "seren")


def test_running_jobs_are_in_the_predicted_power_of_their_rack():
    make.running(make.job(gpus_per_node=8), on=["seren-004"])
    caller = olga()

    rack = caller.post(PATH, {"scope": "rack", "place": "r02", "limit_kw": 9}).json()

    assert (rack["nodes"], rack["idle_kw"], rack["predicted_kw"]) == (1, 1.52, 4.92)
    assert caller.get(PATH, {"scope": "rack"}).json()["results"][0]["place"] == "r02"
    assert caller.get(PATH, {"fields": "id,limit_kw"}).json()["results"] == [{"id": rack["id"], "limit_kw": 9.0}]


REFUSALS = {
    "no limit": ({}, 400, {"limit_kw": ["is required"]}),
    "text": ({"limit_kw": "many"}, 400, {"limit_kw": ["is text, not a number"]}),
    "zero": ({"limit_kw": 0}, 400, {"limit_kw": ["0 is not between 0.001 and 1000000"]}),
    "idle nodes draw more": (
        {"limit_kw": 6.08},
        400,
        {"limit_kw": ["6.1 kW is not above the 6.1 kW that its nodes draw when idle"]},
    ),
    "unknown scope": ({"limit_kw": 9, "scope": "row"}, 400, None),
    "rack without a name": ({"limit_kw": 9, "scope": "rack"}, 400, {"place": ["is required for the scope rack"]}),
    "unknown rack": (
        {"limit_kw": 9, "scope": "rack", "place": "r9"},
        400,
        {"place": ["no node of seren is in rack r9; there are r01, r02"]},
    ),
    "no pods": (
        {"limit_kw": 9, "scope": "pod", "place": "p1"},
        400,
        {"place": ["no node of seren is in pod p1; its nodes have no pod"]},
    ),
    "place of a cluster": ({"limit_kw": 9, "place": "r01"}, 400, {"place": ["must be empty for the scope cluster"]}),
    "unknown field": ({"limit_kw": 9, "watts": 1}, 400, {"watts": ["is not a field of a power budget"]}),
}


@pytest.mark.parametrize(("body", "status", "errors"), REFUSALS.values(), ids=REFUSALS)
def test_invalid_budget_is_refused_with_the_field(body, status, errors):
    answer = olga().post(PATH, body)

    assert answer.status_code == status
    assert errors is None or answer.json() == errors
    assert not PowerBudget.objects.exists()


def test_second_budget_of_a_place_and_an_unchanged_limit_conflict():
    caller = olga()
    first = caller.post(PATH, {"limit_kw": 40}).json()

    again = caller.post(PATH, {"limit_kw": 50})
    same = caller.patch(f"{PATH}{first['id']}/", {"limit_kw": 40})

    assert (again.status_code, same.status_code) == (409, 409)
    assert again.json()["detail"] == "The cluster already has a power budget. Change that one."
    assert same.json()["detail"] == "The power budget of the cluster is 40.0 kW already."


def test_placements_that_count_no_power_and_budgets_exclude_each_other(seren):
    Cluster.objects.update(placement="exact")
    refused = olga().post(PATH, {"limit_kw": 40})
    assert (refused.status_code, refused.json()["detail"]) == (
        409,
        "The placement exact of seren does not support power budgets.",
    )

    PowerBudget.objects.create(cluster=seren, scope="cluster", limit_w=40_000)
    with pytest.raises(InvalidField, match="placement: tune does not support power budgets, and seren has"):
        check_for_cluster(seren, PolicyChoice(policy="fifo", placement="tune", settings={}))


def test_everybody_reads_and_only_operators_change():
    budget = olga().post(PATH, {"limit_kw": 40}).json()
    ada, one = Caller(api_make.person("ada")), f"{PATH}{budget['id']}/"

    assert ada.get(PATH).json()["results"] == [budget]
    assert ada.post(PATH, {"scope": "rack", "place": "r01", "limit_kw": 40}).status_code == 403
    assert ada.patch(one, {"limit_kw": 41}).status_code == 403
    assert ada.post(f"{one}remove/", {}).status_code == 403
    assert PowerBudget.objects.get().limit_w == 40_000


def test_budget_of_another_cluster_is_not_found():
    make.cluster("kalos")
    number = olga().post(PATH, {"limit_kw": 40}).json()["id"]

    assert olga().get(f"clusters/kalos/power-budgets/{number}/").status_code == 404
    assert olga().get("clusters/nowhere/power-budgets/").status_code == 404


# --- The settings page ---


def test_operator_manages_budgets_on_the_settings_page():
    client = browser()
    client.post(f"{PAGE}power-budgets/", {"place": "cluster", "limit_kw": "40"})
    client.post(f"{PAGE}power-budgets/", {"place": "rack:r02", "limit_kw": "9.5"})
    page = said(client)

    assert "Rack r02: the power budget was added." in page
    assert "6.1 kW" in page and "40.0 kW" in page and 'value="9.5"' in page
    assert "power budget of rack r02" in page

    rack = PowerBudget.objects.get(scope="rack")
    client.post(f"{PAGE}power-budgets/{rack.pk}/", {"limit_kw": "12"})
    assert "Rack r02: the power budget was changed." in said(client)
    assert PowerBudget.objects.get(scope="rack").limit_w == 12_000
    client.post(f"{PAGE}power-budgets/{rack.pk}/", {"limit_kw": "12", "do": "remove"})
    assert "Rack r02: the power budget was removed." in said(client)


def test_operator_sets_the_mode_of_caps_on_the_settings_page(seren):
    row = PowerBudget.objects.create(cluster=seren, scope="cluster", limit_w=40_000)
    client = browser()

    client.post(f"{PAGE}power-budgets/{row.pk}/", {"limit_kw": "40", "cap_mode": "observe"})
    assert "The cluster: the power budget was changed." in said(client)
    row.refresh_from_db()
    assert (row.mode, row.limit_w) == ("observe", 40_000)
    client.post(f"{PAGE}power-budgets/{row.pk}/", {"limit_kw": "40", "cap_mode": "observe"})
    assert "is 40.0 kW with caps observe already." in said(client)
    client.post(f"{PAGE}power-budgets/{row.pk}/", {"limit_kw": "41", "cap_mode": "all"})
    assert "Nothing was changed. cap_mode: &#x27;all&#x27; is not one of off, observe, act." in said(client)
    row.refresh_from_db()
    assert (row.mode, row.limit_w) == ("observe", 40_000)


def test_page_says_that_caps_wait_for_the_product_of_a_new_cluster(seren):
    row = PowerBudget.objects.create(cluster=seren, scope="cluster", limit_w=40_000)
    client = browser()

    client.post(f"{PAGE}power-budgets/{row.pk}/", {"limit_kw": "40", "cap_mode": "act"})

    row.refresh_from_db()
    assert row.mode == "act"
    assert "Clocks are not capped yet: the cluster seren has not reported its product yet" in said(client)


def test_operator_sets_the_thresholds_of_caps_on_the_settings_page(seren):
    row = PowerBudget.objects.create(cluster=seren, scope="cluster", limit_w=40_000)
    client = browser()
    assert 'value="80, 89, 100"' in said(client)

    client.post(f"{PAGE}power-budgets/{row.pk}/", {"limit_kw": "40", "cap_percents": "70 85,100"})
    assert "The cluster: the power budget was changed." in said(client)
    row.refresh_from_db()
    assert row.cap_percents == (70, 85, 100)
    for wrong in ("70, 85", "a, b, c", "90, 80, 100", "1e9, 3, 4"):
        client.post(f"{PAGE}power-budgets/{row.pk}/", {"limit_kw": "40", "cap_percents": wrong})
        assert "Nothing was changed. cap_percents: must be three percentages from 50 to 100" in said(client)
    row.refresh_from_db()
    assert row.cap_percents == (70, 85, 100)


def test_page_counts_the_jobs_that_wait_because_of_a_budget(seren):
    PowerBudget.objects.create(cluster=seren, scope="cluster", limit_w=7_000)
    make.job(gpus_per_node=8)
    schedule_once(seren, LIVE_POLICIES["fifo"], clock.now(), lambda: None)

    assert 'data-label="Jobs waiting">1<' in said(browser())
    assert olga().get(PATH).json()["results"][0]["jobs_waiting"] == 1


def test_power_above_a_budget_is_marked(seren):
    PowerBudget.objects.create(cluster=seren, scope="cluster", limit_w=9_000)
    make.running(make.job(gpus_per_node=8))

    assert "above the budget" in said(browser())


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"place": "cluster", "limit_kw": "lots"}, "limit_kw: &#x27;lots&#x27; is not a number of kW, such as 1200."),
        ({"place": "cluster", "limit_kw": "nan"}, "limit_kw: nan is not between 0.001 and 1000000."),
        ({"place": "rack:r9", "limit_kw": "9"}, "place: no node of seren is in rack r9; there are r01, r02."),
        ({"place": "", "limit_kw": "9"}, "scope: &#x27;&#x27; is not one of cluster, rack, leaf, pod."),
    ],
    ids=["text", "nan", "place", "nothing chosen"],
)
def test_page_names_the_field_that_is_wrong(fields, sentence):
    client = browser()
    client.post(f"{PAGE}power-budgets/", fields)

    assert f"Nothing was changed. {sentence}" in said(client)


def test_page_of_a_user_who_only_changes_settings_has_no_forms_for_budgets(seren):
    row = PowerBudget.objects.create(cluster=seren, scope="cluster", limit_w=40_000)
    client = browser("carl", "change_cluster")

    assert "40.0 kW" in said(client) and "Add budget" not in said(client)
    assert client.post(f"{PAGE}power-budgets/", {"place": "cluster", "limit_kw": "50"}).status_code == 403
    assert client.post(f"{PAGE}power-budgets/{row.pk}/", {"do": "remove"}).status_code == 403
    assert client.get(f"{PAGE}power-budgets/").status_code == 405


def test_page_without_budgets_says_what_one_does():
    assert "jobs start only while the predicted peak of all jobs stays below it" in said(browser())


# --- Metrics and admin ---


def test_metrics_have_the_budget_and_the_predicted_power(seren, settings):
    settings.ACME_METRICS_NETWORKS = ["127.0.0.0/8"]
    assert "acme_power_budget_watts{" not in Client().get("/metrics").content.decode()
    PowerBudget.objects.create(cluster=seren, scope="rack", place="r02", limit_w=9_000)

    lines = Client().get("/metrics").content.decode().splitlines()

    assert 'acme_power_budget_watts{cluster="seren",place="r02",scope="rack"} 9000.0' in lines
    assert 'acme_power_predicted_watts{cluster="seren",place="r02",scope="rack"} 1520.0' in lines


def test_admin_lists_budgets_and_changes_none(seren, admin_client):
    PowerBudget.objects.create(cluster=seren, scope="rack", place="r02", limit_w=9_000)

    assert "9.0 kW" in text(admin_client.get("/admin/scheduling/powerbudget/"))
    assert admin_client.get("/admin/scheduling/powerbudget/add/").status_code == 403
