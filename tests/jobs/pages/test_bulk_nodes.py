"""Bulk drain and resume: a preview with the cost, then a result per node."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import Permission

from jobs.actions import nodes as node_actions
from jobs.models import Attempt, Cluster, ClusterMode, Event, Node, TeamRole, clock
from tests import make
from tests.page_text import page_text

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def seren():
    make.team("pretraining", ada=TeamRole.RESEARCHER, olga=TeamRole.OPERATOR)
    make.team("evaluation", ben=TeamRole.RESEARCHER)
    return make.cluster()


@pytest.fixture
def olga():
    make.user("olga").user_permissions.add(Permission.objects.get(codename="operate_cluster"))
    return make.browser("olga")


def ids(*numbers):
    return list(Node.objects.filter(name__in=[f"seren-00{n}" for n in numbers]).values_list("pk", flat=True))


def drained():
    return list(Node.objects.filter(drain_requested=True).order_by("name").values_list("name", flat=True))


def test_the_drain_preview_shows_the_running_jobs_and_what_they_would_lose(olga):
    make.running(make.job(by="ada", name="pretrain-7b", nodes=2, gpus_per_node=8), on=["seren-001", "seren-002"])
    Attempt.objects.update(confirmed_at=clock.now() - timedelta(hours=2))

    answer = olga.post("/nodes/many/", {"verb": "drain", "id": ids(1, 2, 3)})

    text = page_text(answer)
    assert "would apply to 3 of 3 nodes" in text and "3 nodes with 24 GPUs" in text
    assert answer.context["running"].count == 1  # it is one job, though it is on two of them
    assert "pretrain-7b" in text and "up to 32.0 GPU-hours since the last checkpoints are lost" in text
    assert drained() == [] and not Event.objects.filter(type="node.drained").exists()


def test_a_confirmed_drain_drains_each_node_although_one_is_drained_already(olga):
    first = Node.objects.get(name="seren-001")
    node_actions.drain(first, author=make.author(), why="fan 3", now=clock.now())

    answer = olga.post("/nodes/many/", {"verb": "drain", "id": ids(1, 2, 3), "confirm": "1", "why": "row 7 warms up"})

    text = page_text(answer)
    assert "requested for 2 of 3 nodes" in text and "seren-001 is already drained by ada: fan 3" in text
    assert drained() == ["seren-001", "seren-002", "seren-003"]
    assert set(Node.objects.filter(pk__in=ids(2, 3)).values_list("reason", "reason_by")) == {("row 7 warms up", "olga")}


def test_a_drain_without_a_reason_changes_nothing_and_keeps_the_selection(olga):
    wish = {"verb": "drain", "id": ids(1, 2), "confirm": "1", "why": "  ", "mode": "now"}
    make.running(make.job(by="ada", nodes=1, gpus_per_node=8), on=["seren-001"])

    answer = olga.post("/nodes/many/", wish)

    text = page_text(answer)
    assert answer.status_code == 422
    assert "Nothing was changed." in text and "Enter a reason." in text
    assert all(f'name="id" value="{one}"' in text for one in ids(1, 2))
    assert 'value="now" checked' in text
    assert drained() == []


@pytest.mark.parametrize("mode", ["checkpoint", "now"])
def test_nodes_are_drained_in_the_selected_mode(olga, mode):
    olga.post("/nodes/many/", {"verb": "drain", "id": ids(1), "confirm": "1", "why": "x", "mode": mode})

    assert Node.objects.get(drain_requested=True).drain_mode == mode


def test_many_nodes_are_resumed_together(olga):
    for node in Node.objects.filter(pk__in=ids(1, 2)).select_related("cluster"):
        node_actions.drain(node, author=make.author(), why="fan 3", now=clock.now())

    text = olga.post("/nodes/many/", {"verb": "resume", "id": ids(1, 2, 3), "confirm": "1"}).content.decode()

    assert drained() == [] and "seren-003 already accepts jobs" in text


def test_the_preview_counts_jobs_of_other_teams_without_naming_them(olga):
    make.running(make.job(by="ben", name="secret-run", gpus_per_node=8), on=["seren-001"])

    text = olga.post("/nodes/many/", {"verb": "drain", "id": ids(1)}).content.decode()

    assert "secret-run" not in text and "1 job of other teams" in text


def test_an_observed_cluster_offers_only_the_drain_mode_finish(olga):
    make.running(make.job(by="ada", gpus_per_node=8), on=["seren-001"])
    Cluster.objects.update(mode=ClusterMode.OBSERVE)

    answer = olga.post("/nodes/many/", {"verb": "drain", "id": ids(1)})

    assert [mode for mode, *_ in answer.context["ways"]] == ["finish"]


def test_bulk_node_actions_need_the_operator_permission(olga):
    asked = {"verb": "drain", "id": ids(1), "confirm": "1", "why": "x"}

    assert make.browser("ada").post("/nodes/many/", asked).status_code == 403
    assert drained() == []
    pages = [client.get("/nodes/").content.decode() for client in (olga, make.browser("ada"))]
    assert ['form="many"' in page for page in pages] == [True, False]


@pytest.mark.parametrize(("asked", "status"), [({"verb": "burn"}, 404), ({"verb": "drain", "mode": "soon"}, 404)])
def test_an_unknown_bulk_node_action_is_a_404(olga, asked, status):
    assert olga.post("/nodes/many/", {"id": ids(1), **asked}).status_code == status


@pytest.mark.parametrize("chosen", [[], ["x"], ["9" * 30], ["999999"], ["\x00"]])
def test_an_empty_node_selection_is_reported(olga, chosen):
    answer = olga.post("/nodes/many/", {"verb": "drain", "id": chosen}, follow=True)

    assert "No nodes selected" in answer.content.decode()
