"""The pages of clusters: who may enter and change them, what is written down, and that a test writes nothing."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import Permission
from django.test import Client

from jobs.models import Cluster, Event, clock
from scheduling.actions import clusters as cluster_actions
from scheduling.actions.clusters import ClusterError
from scheduling.clusters import circuit_breaker
from scheduling.models import ClusterEndpoint, OpenCircuit
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

    page = browser("change_cluster").post(SEREN, form(address="unix:///nonexistent/s", do="test")).content.decode()

    assert "It does not work yet" in page and "There is no /nonexistent/s" in page
    assert 'value="unix:///nonexistent/s"' in page  # what was typed is still there to be corrected
    assert Cluster.objects.get().address == "http://127.0.0.1:1"


def test_operators_test_what_is_written_down_and_nothing_of_their_own():
    make.cluster(address="unix:///nonexistent/of-the-row")

    page = browser("operate_cluster").post(SEREN, form(address="http://169.254.169.254", do="test")).content.decode()

    assert "/nonexistent/of-the-row" in page and "169.254" not in page


def test_a_new_cluster_is_observed_unless_somebody_says_otherwise():
    assert Cluster.objects.create(name="kalos", address="http://127.0.0.1:1").mode == "observe"
    assert 'value="observe" selected' in browser("add_cluster").get("/settings/clusters/add/").content.decode()


def test_driving_a_cluster_is_explained_and_confirmed_before_it_is_saved():
    make.cluster(mode="observe")
    olga = browser("change_cluster")

    asked = olga.post(SEREN, form(mode="drive")).content.decode()
    assert "start, stop and requeue jobs" in asked and 'name="confirm_drive"' in asked
    assert Cluster.objects.get().mode == "observe"

    olga.post(SEREN, form(mode="drive", confirm_drive="on"))
    assert Cluster.objects.get().mode == "drive"
    assert 'name="confirm_drive"' not in olga.get(SEREN).content.decode()


def test_a_cluster_that_is_driven_already_needs_no_confirmation():
    make.cluster(mode="drive")

    browser("change_cluster").post(SEREN, form(mode="drive", title="Seren"))

    assert Cluster.objects.get().title == "Seren"


def test_a_new_address_for_the_same_token_is_confirmed(settings, tmp_path):
    settings.ACME_TOKEN_DIRS = [str(tmp_path)]
    make.cluster(token_file=f"{tmp_path}/seren")
    asked = form(address="http://127.0.0.1:2", token_file=f"{tmp_path}/seren", mode="observe")
    olga = browser("change_cluster")

    page = olga.post(SEREN, asked).content.decode()
    assert "would be sent to http://127.0.0.1:2" in page
    assert Cluster.objects.get().address == "http://127.0.0.1:1"

    olga.post(SEREN, asked | {"confirm_address": "on"})
    assert Cluster.objects.get().address == "http://127.0.0.1:2"


def test_nobody_changes_how_the_bundled_cluster_is_reached():
    row = make.cluster(is_bundled=True, token_file="/run/secrets/cluster", log_root="/logs")

    browser("change_cluster").post(SEREN, form(address="http://127.0.0.1:2", title="Demo"))
    with pytest.raises(ClusterError, match="Acme sets this itself"):
        cluster_actions.change(row, {"address": "http://127.0.0.1:2"}, author=make.author())

    row.refresh_from_db()
    assert (row.title, row.address, row.token_file) == ("Demo", "http://127.0.0.1:1", "/run/secrets/cluster")


def test_connection_tests_of_one_person_are_counted():
    make.cluster()
    olga = browser("change_cluster")

    # Twice as many, because a minute may end in between
    pages = [olga.post(SEREN, form(address="unix:///nonexistent/s", do="test")).content.decode() for _ in range(62)]

    assert "It does not work yet" in pages[0]
    assert any("At most 30 connection tests per minute" in page for page in pages)


@pytest.mark.parametrize(("method", "warned"), [("service", True), ("user_header", False)])
def test_page_warns_where_jobs_of_different_people_are_not_isolated(method, warned):
    make.cluster(submit_as=method, api_user="acme")

    page = browser("operate_cluster").get(SEREN).content.decode()

    assert ("run as its user acme" in page) is warned


def test_the_page_says_since_when_a_cluster_is_asked_less_often_and_a_test_ends_that():
    row = make.cluster()
    circuit_breaker.record_timeout(row, ClusterEndpoint.CONTROL, "no answer within 10 s")
    client = browser("operate_cluster")

    page = client.get(SEREN).content.decode()
    assert "slurmrestd is asked less often" in page and "no answer within 10 s. Next try in" in page

    client.post(SEREN, form(do="test"))
    assert not OpenCircuit.objects.exists()


def test_a_test_that_was_refused_leaves_a_silent_cluster_alone():
    row = make.cluster()
    circuit_breaker.record_timeout(row, ClusterEndpoint.CONTROL, "no answer within 10 s")

    browser("change_cluster").post(SEREN, form(address="", do="test"))

    assert OpenCircuit.objects.exists()


def test_an_address_that_cannot_be_called_is_explained_on_the_form():
    page = browser("add_cluster").post("/settings/clusters/add/", form(name="kalos", address="ftp://x"))

    assert page.status_code == 422 and not Cluster.objects.exists()
    assert "address must begin with http://, https:// or unix:///" in page.content.decode()


def test_the_page_says_that_turns_fail_although_the_cluster_answers():
    now = clock.now()
    make.cluster()
    Cluster.objects.update(heard_at=now, trouble="a bug", trouble_since=now - timedelta(minutes=5))

    assert "Its scheduling turns fail" in browser("operate_cluster").get(SEREN).content.decode()
