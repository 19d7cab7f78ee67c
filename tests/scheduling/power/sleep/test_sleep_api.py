"""Sleeping nodes in the API: everybody reads, operators decide."""

from __future__ import annotations

import pytest

from jobs.models import clock
from scheduling.models import NodeSleep
from scheduling.power.loops.sleep import manage_sleep_once
from tests import make as rows
from tests.jobs.api import api_make as make
from tests.jobs.api.api_make import Caller
from tests.scheduling.power.sleep.test_sleep_loop import add_quiet_hour

pytestmark = pytest.mark.django_db
PATH = "clusters/seren/sleeps/"


@pytest.fixture(autouse=True)
def cluster():
    row = rows.cluster(sleep_mode="propose")
    add_quiet_hour(row)
    manage_sleep_once(row, clock.now())
    return row


def test_proposals_are_listed_and_filtered():
    ada = Caller(make.person("ada"))

    listed = ada.get(PATH, {"state": "proposed", "open": "true"}).json()["results"]

    assert [(row["node"], row["why"]) for row in reversed(listed)] == [
        (f"seren-00{number}", "1 of 4 nodes are needed, 4 are awake.") for number in (1, 2, 3)
    ]
    assert ada.get(PATH, {"node": "seren-002"}).json()["results"][0]["state"] == "proposed"
    assert ada.get(PATH, {"open": "false"}).json()["results"] == []
    assert ada.get("clusters/nowhere/sleeps/").status_code == 404


def test_operator_approves_declines_and_wakes():
    olga = Caller(make.operator("olga"))
    first, second = NodeSleep.objects.order_by("pk")[:2]

    approved = olga.post(f"{PATH}{first.pk}/approve/", {}).json()
    declined = olga.post(f"{PATH}{second.pk}/decline/", {}).json()
    woken = olga.post(f"{PATH}{first.pk}/wake/", {}).json()
    late = olga.post(f"{PATH}{first.pk}/approve/", {})

    assert (approved["state"], approved["requested_by"]) == ("requested", "olga")
    assert (declined["state"], woken["state"]) == ("declined", "waking")
    assert late.status_code == 409
    assert "seren-001 is not proposed for sleep any more." in late.json()["detail"]


@pytest.mark.parametrize("verb", ["approve", "decline", "wake"])
def test_only_operators_change_sleeps(verb):
    sleep = NodeSleep.objects.first()

    assert Caller(make.person("ada")).post(f"{PATH}{sleep.pk}/{verb}/", {}).status_code == 403
    assert Caller(make.operator("olga")).post(f"{PATH}999999/{verb}/", {}).status_code == 404
    sleep.refresh_from_db()
    assert sleep.state == "proposed"
