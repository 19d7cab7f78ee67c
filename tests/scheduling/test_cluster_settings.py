"""The pages of clusters: who may enter and change them, what is written down, and that a test writes nothing."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission
from django.test import Client

from jobs.models import Cluster, Event
from scheduling import cluster_actions
from scheduling.cluster_actions import ClusterError
from tests import make

pytestmark = pytest.mark.django_db
SEREN = "/settings/clusters/of/seren/"


def browser(*codenames, name="olga"):
    person = make.user(name)
    person.user_permissions.add(*Permission.objects.filter(codename__in=codenames))
    client = Client()
    client.force_login(person)
    return client


def form(**fields):
    usual = {"title": "", "address": "http://127.0.0.1:1", "api_user": "", "token_file": "", "metrics_address": ""}
    return usual | {"log_root": "", "mode": "observe", "checkpoint_signal": ""} | fields


def test_pages_are_for_those_who_operate_or_configure():
    make.cluster()

    for path in ("/settings/clusters/", SEREN, "/settings/clusters/add/"):
        assert browser(name="ada").get(path).status_code == 403
    assert browser("operate_cluster").get(SEREN).status_code == 200
    assert browser("operate_cluster").get("/settings/clusters/add/").status_code == 403


def test_a_cluster_is_entered_with_its_event():
    answer = browser("add_cluster", "operate_cluster").post("/settings/clusters/add/", form(name="kalos"), follow=True)

    assert "is entered" in answer.content.decode()
    row = Cluster.objects.get(name="kalos")
    assert (row.mode, row.wanted_at is not None) == ("observe", True)
    told = Event.objects.get(what="cluster.added")
    assert (told.by, told.cluster, told.detail["columns"]["address"]) == ("olga", row, "http://127.0.0.1:1")


@pytest.mark.parametrize(
    "fields", [{"name": "seren"}, {"name": "Big One"}, {"name": "x", "address": ""}, {"name": "x", "address": "a\x00b"}]
)
def test_what_is_no_cluster_is_explained_and_not_entered(fields):
    make.cluster()

    answer = browser("add_cluster").post("/settings/clusters/add/", form(**fields))

    assert answer.status_code == 422
    assert Cluster.objects.count() == 1


def test_a_change_tells_what_was_and_what_is():
    make.cluster()

    browser("change_cluster").post(SEREN, form(address="http://127.0.0.1:2", log_root="/logs"))

    changes = Event.objects.get(what="cluster.changed").detail["changes"]
    assert ["address", "http://127.0.0.1:1", "http://127.0.0.1:2"] in changes
    assert ["log_root", "/nonexistent", "/logs"] in changes
    assert Cluster.objects.get().address == "http://127.0.0.1:2"


def test_operators_change_nothing():
    make.cluster()

    assert browser("operate_cluster").post(SEREN, form(address="http://evil")).status_code == 403
    assert Cluster.objects.get().address == "http://127.0.0.1:1"


def test_a_change_of_somebody_else_in_between_is_not_overwritten():
    row = make.cluster()
    Cluster.objects.filter(pk=row.pk).update(address="http://127.0.0.1:9")

    with pytest.raises(ClusterError, match="in the meantime"):
        cluster_actions.change(row, {"address": "http://127.0.0.1:2"}, author=make.author())

    assert Cluster.objects.get().address == "http://127.0.0.1:9"
    assert not Event.objects.filter(what="cluster.changed").exists()


def test_a_test_explains_and_writes_nothing():
    make.cluster()

    page = browser("change_cluster").post(SEREN, form(address="tcp://nowhere", do="test")).content.decode()

    assert "It does not work yet" in page and "begins with none of" in page
    assert 'value="tcp://nowhere"' in page  # what was typed is still there to be corrected
    assert Cluster.objects.get().address == "http://127.0.0.1:1"


def test_operators_test_what_is_written_down_and_nothing_of_their_own():
    make.cluster(address="unix:///nonexistent/of-the-row")

    page = browser("operate_cluster").post(SEREN, form(address="http://169.254.169.254", do="test")).content.decode()

    assert "/nonexistent/of-the-row" in page and "169.254" not in page
