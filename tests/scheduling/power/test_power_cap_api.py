"""Power caps in the API, in /metrics and on the page Now."""

from __future__ import annotations

from datetime import timedelta

import pytest

from acmeweb.metrics import AcmeCollector
from acmeweb.pages.attention import attention_items
from jobs.models import Event, Job, clock
from jobs.models.permissions import Caller as PageCaller
from scheduling.models import PowerBudget
from tests import make as rows
from tests.jobs.api import api_make as make
from tests.jobs.api.api_make import Caller
from tests.scheduling.power.cap_make import LIMIT_W, Site, budget

pytestmark = pytest.mark.django_db


@pytest.fixture
def site(settings):
    settings.ACME_POWER_CAP_COMMAND = ("/usr/local/bin/set-clocks",)
    site = Site(rows.cluster())
    site.now = clock.now() - timedelta(seconds=15)
    return site


def path(row):
    return f"clusters/seren/power-budgets/{row.pk}/"


def test_state_of_a_budget(site):
    row = budget()
    site.read(0.9)
    ada = Caller(make.person("ada"))

    state = ada.get(path(row)).json()

    assert (state["cap_mode"], state["cap_level"], state["limit_kw"]) == ("act", 2, LIMIT_W / 1000)
    assert state["measured_kw"] == pytest.approx(0.9 * LIMIT_W / 1000)
    assert state["cap_status"] == "Clocks are capped: level 2 of 4."


def test_operators_change_the_mode_and_others_do_not(site):
    row = budget("off")

    refused = Caller(make.person("ada")).patch(path(row), {"cap_mode": "act"})
    done = Caller(make.operator()).patch(path(row), {"cap_mode": "act"})

    assert (refused.status_code, done.status_code) == (403, 200)
    assert PowerBudget.objects.get().mode == done.json()["cap_mode"] == "act"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"cap_mode": "act"}, "ACME_POWER_CAP_COMMAND is not set, so Acme cannot cap clocks of the cluster seren"),
        ({"cap_mode": "full"}, "'full' is not one of off, observe, act"),
        ({}, "is required, or cap_mode or cap_percents"),
        ({"cap_percents": [80, 89]}, "three percentages from 50 to 100, none below the one before, such as 80"),
        ({"cap_percents": [80, 70, 100]}, "must be three percentages"),
        ({"cap_percents": [80, 89, 101]}, "101 is not between 50 and 100"),
        ({"cap_percents": "80"}, "is text, not a list"),
        ({"cap_mode": "off", "cap_level": 0}, "is not a field of a power budget"),
    ],
)
def test_mode_that_cannot_be_set_is_refused(site, settings, body, sentence):
    settings.ACME_POWER_CAP_COMMAND = ()
    row = budget("off", cluster=rows.cluster(product="slurm"))

    answer = Caller(make.operator()).patch(path(row), body)

    assert answer.status_code == 400 and sentence in str(answer.json())
    assert PowerBudget.objects.get().mode == "off"


def test_thresholds_are_changed_and_recorded(site):
    row = budget()
    olga = Caller(make.operator())

    state = olga.patch(path(row), {"cap_percents": [70, 80, 95], "reason": "small breaker"}).json()
    again = olga.patch(path(row), {"cap_percents": [70, 80, 95]})

    assert state["cap_percents"] == [70, 80, 95]
    event = Event.objects.get(type="cluster.changed")
    assert event.detail["changes"] == [["cap thresholds", "80, 89, 100%", "70, 80, 95%"]]
    assert (again.status_code, again.json()["detail"]) == (
        409,
        "The power budget of the cluster is 20.0 kW at 70, 80, 95% already.",
    )


def test_caps_are_listed_and_filtered(site):
    row = budget()
    site.read(0.85)
    site.read(1.05)
    ada = Caller(make.person("ada"))

    caps = ada.get("clusters/seren/power-caps/").json()["results"]

    assert [(cap["level"], cap["low_mhz"], cap["ended_at"] is None) for cap in caps] == [
        (4, 288, True),
        (1, 1275, False),
    ]
    assert caps[1]["peak_share"] == pytest.approx(0.85)
    assert len(ada.get("clusters/seren/power-caps/", {"open": "true", "budget": row.pk}).json()["results"]) == 1
    assert ada.get("clusters/nowhere/power-caps/").status_code == 404


def test_metrics_have_level_and_share(site):
    budget()
    budget("off", scope="rack", place="r01", limit_w=5000)
    site.read(0.9)

    found = {
        (sample.name, sample.labels["scope"]): sample.value
        for metric in AcmeCollector(clock.now(), Job.objects.none()).collect()
        for sample in metric.samples
        if sample.name.startswith("acme_power") and sample.name != "acme_power_predicted_watts"
    }

    assert found == {
        ("acme_power_budget_watts", "cluster"): LIMIT_W,
        ("acme_power_budget_watts", "rack"): 5000,
        ("acme_power_share", "cluster"): pytest.approx(0.9),
        ("acme_power_cap_level", "cluster"): 2,
    }


def test_page_now_shows_caps_and_failed_commands(site):
    budget()
    site.read(0.9)
    (capped,) = attention()
    site.fails = True
    site.read(1.1)
    (failing,) = attention()

    assert (capped.badge.label, capped.text) == ("CAPPED", "the cluster: Clocks are capped: level 2 of 4.")
    assert failing.badge.label == "NOT CAPPED" and "no route to host" in failing.detail


def test_page_now_says_why_clocks_are_not_capped(site, settings):
    settings.ACME_POWER_CAP_COMMAND = ()
    budget()
    site.read(0.9)

    (waiting,) = attention()

    assert (waiting.badge.label, site.commands) == ("NOT CAPPED", [])
    assert waiting.detail.startswith("the cluster seren has not reported its product yet")


@pytest.mark.parametrize("mode", ["off", "observe"])
def test_page_now_shows_nothing_where_no_clock_is_capped(site, mode):
    budget(mode)
    site.read(0.9)

    assert attention() == []


def attention():
    rows_found = attention_items(PageCaller(user=rows.user("ada")), clock.now()).rows
    return [row for row in rows_found if row.id.startswith("power-")]
