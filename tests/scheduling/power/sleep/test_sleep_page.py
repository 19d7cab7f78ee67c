"""The page of sleeping nodes: readable by everybody, decided by operators."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission
from django.test import Client

from jobs.models import Cluster, Event, Node, clock
from scheduling.models import NodeSleep, NodeSleepState
from scheduling.power.actions import sleeps as sleep_actions
from scheduling.power.loops.sleep import manage_sleep_once
from scheduling.power.loops.sleep_webhooks import sleep_webhook_secret
from tests import make
from tests.scheduling.power.sleep.test_sleep_loop import add_quiet_hour

pytestmark = pytest.mark.django_db
PAGE = "/sleeping/seren/"


@pytest.fixture(autouse=True)
def cluster():
    row = make.cluster(sleep_mode="propose")
    add_quiet_hour(row)
    manage_sleep_once(row, clock.now())
    return row


def browser(name="ada", *permissions):
    client, user = Client(), make.user(name)
    user.user_permissions.add(*Permission.objects.filter(codename__in=permissions))
    client.force_login(user)
    return client


def text(answer):
    return " ".join(answer.content.decode().split())


def proposal(name="seren-001"):
    return NodeSleep.objects.get(node__name=name)


def test_page_shows_what_is_needed_and_proposals_without_buttons_for_readers():
    page = text(browser().get(PAGE))

    assert "<strong>1</strong> of 4 nodes are needed, 4 are awake" in page
    assert page.count("PROPOSED") >= 3
    assert "Approve" not in page


def test_only_operators_decide():
    ada = browser()
    for verb in ("approve/", f"{proposal().pk}/approve/", f"{proposal().pk}/wake/"):
        assert ada.post(f"{PAGE}{verb}").status_code == 403
    assert proposal().state == NodeSleepState.PROPOSED


def test_operator_approves_declines_and_wakes():
    olga = browser("olga", "operate_cluster")

    assert "seren-001: approved." in text(olga.post(f"{PAGE}{proposal().pk}/approve/", follow=True))
    olga.post(f"{PAGE}{proposal('seren-002').pk}/decline/")
    assert [proposal(name).state for name in ("seren-001", "seren-002")] == ["requested", "declined"]
    assert "wake-up requested" in text(olga.post(f"{PAGE}{proposal().pk}/wake/", follow=True))
    assert proposal().state == NodeSleepState.WAKING
    assert Event.objects.get(type="node.wake_requested").by == "olga"
    again = text(olga.post(f"{PAGE}{proposal().pk}/approve/", follow=True))
    assert "Nothing was changed: seren-001 is not proposed for sleep any more." in again
    assert olga.post(f"{PAGE}{proposal().pk}/burn/").status_code == 404
    assert olga.post(f"{PAGE}999999/wake/").status_code == 404


def test_all_proposals_that_still_fit_are_approved():
    make.attempt(make.job(gpus_per_node=1), on=["seren-002"])
    olga = browser("olga", "operate_cluster")

    page = text(olga.post(f"{PAGE}approve/", follow=True))

    assert "2 approved. 1 did not fit any more." in page
    assert proposal("seren-002").state == NodeSleepState.PROPOSED


def test_page_says_why_nodes_stay_awake():
    Cluster.objects.update(mode="observe")

    assert "Sleeping nodes need the mode drive" in text(browser().get(PAGE))


def test_incident_of_a_node_that_did_not_wake_up_has_a_page(client):
    sleep_actions.let_sleep(Node.objects.get(name="seren-001"), author=make.author(), why="idle", now=clock.now())
    sleep_actions.record_failed_wake(proposal(), "seren-001 did not wake up within 31 min.", clock.now())
    olga = browser("olga", "operate_cluster")

    incident = Node.objects.get(name="seren-001").incidents.get()
    page = text(olga.get(f"/failures/{incident.pk}/"))

    assert "NodeDidNotWake" in page and "seren-001" in page
    assert "NodeDidNotWake" in text(olga.get("/failures/"))
    assert "FAILED" in text(olga.get(PAGE))
    assert Event.objects.filter(type="incident.opened", detail__incident=incident.pk).count() == 1


def test_node_page_and_list_say_that_a_node_sleeps():
    Node.objects.filter(name="seren-001").update(flags=["POWERED_DOWN"])
    olga = browser("olga", "operate_cluster")

    node = text(olga.get("/nodes/seren/seren-001/"))
    assert "POWERED_DOWN" in node and "A job that starts here waits for its boot." in node
    listed = text(olga.get("/nodes/?state=asleep"))
    assert "seren-001" in listed and "seren-002" not in listed
    assert "seren-001" not in text(olga.get("/nodes/?state=idle"))


def test_secret_of_the_webhook_is_shown_to_those_who_may_change_it():
    Cluster.objects.update(sleep_webhook="https://power.example.com/")
    secret = sleep_webhook_secret(Cluster.objects.get())

    assert secret in text(browser("rita", "change_cluster").get("/settings/clusters/of/seren/"))
    assert secret not in text(browser("olga", "operate_cluster").get("/settings/clusters/of/seren/"))


def test_number_of_queries_does_not_grow_with_the_nodes(django_assert_max_num_queries):
    ada = browser()
    with django_assert_max_num_queries(30):
        ada.get(PAGE)
