"""The pages of clusters: permissions, Events, and connection tests that change nothing."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import Permission
from django.test import Client

from acmeweb.common.errors import InvalidField, StateConflict
from jobs.models import Cluster, Event, clock
from scheduling.actions import clusters as cluster_actions
from scheduling.clusters import circuit_breaker
from scheduling.models import ClusterEndpoint, OpenCircuit
from tests import make
from tests.page_text import page_text

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


def test_cluster_pages_require_a_cluster_permission():
    make.cluster()

    for path in ("/settings/clusters/", SEREN, "/settings/clusters/add/"):
        assert browser(name="ada").get(path).status_code == 403
    assert browser("operate_cluster").get(SEREN).status_code == 200
    assert browser("operate_cluster").get("/settings/clusters/add/").status_code == 403


def test_cluster_is_added_with_its_event():
    answer = browser("add_cluster", "operate_cluster").post("/settings/clusters/add/", form(name="kalos"), follow=True)

    assert "was added" in page_text(answer)
    row = Cluster.objects.get(name="kalos")
    assert row.mode == "observe"
    told = Event.objects.get(type="cluster.added")
    assert (told.by, told.cluster, told.detail["columns"]["address"]) == ("olga", row, "http://127.0.0.1:1")


@pytest.mark.parametrize(
    "fields", [{"name": "seren"}, {"name": "Big One"}, {"name": "x", "address": ""}, {"name": "x", "address": "a\x00b"}]
)
def test_invalid_cluster_is_explained_and_not_added(fields):
    make.cluster()

    answer = browser("add_cluster").post("/settings/clusters/add/", form(**fields))

    assert answer.status_code == 422
    assert Cluster.objects.count() == 1


def test_change_event_contains_old_and_new_values():
    make.cluster()

    browser("change_cluster").post(SEREN, form(address="http://127.0.0.1:2", log_root="/logs"))

    changes = Event.objects.get(type="cluster.changed").detail["changes"]
    assert ["address", "http://127.0.0.1:1", "http://127.0.0.1:2"] in changes
    assert ["log_root", "/nonexistent", "/logs"] in changes
    assert Cluster.objects.get().address == "http://127.0.0.1:2"


def test_operators_cannot_change_clusters():
    make.cluster()

    assert browser("operate_cluster").post(SEREN, form(address="http://evil")).status_code == 403
    assert Cluster.objects.get().address == "http://127.0.0.1:1"


def test_concurrent_change_is_not_overwritten():
    row = make.cluster()
    Cluster.objects.filter(pk=row.pk).update(address="http://127.0.0.1:9")

    with pytest.raises(StateConflict, match="in the meantime"):
        cluster_actions.change(row, {"address": "http://127.0.0.1:2"}, author=make.author())

    assert Cluster.objects.get().address == "http://127.0.0.1:9"
    assert not Event.objects.filter(type="cluster.changed").exists()


def test_connection_test_explains_failures_and_changes_nothing():
    make.cluster()

    page = page_text(browser("change_cluster").post(SEREN, form(address="unix:///nonexistent/s", do="test")))

    assert "Connection test failed" in page and "/nonexistent/s does not exist" in page
    assert 'value="unix:///nonexistent/s"' in page  # what was typed is still there to be corrected
    assert Cluster.objects.get().address == "http://127.0.0.1:1"


def test_operators_may_only_test_the_saved_connection():
    make.cluster(address="unix:///nonexistent/of-the-row")

    page = page_text(browser("operate_cluster").post(SEREN, form(address="http://169.254.169.254", do="test")))

    assert "/nonexistent/of-the-row" in page and "169.254" not in page


def test_new_cluster_is_in_mode_observe_by_default():
    assert Cluster.objects.create(name="kalos", address="http://127.0.0.1:1").mode == "observe"
    assert 'value="observe" selected' in page_text(browser("add_cluster").get("/settings/clusters/add/"))


def test_mode_drive_requires_a_confirmation():
    make.cluster(mode="observe")
    olga = browser("change_cluster")

    asked = page_text(olga.post(SEREN, form(mode="drive")))
    assert "start, stop and requeue jobs" in asked and 'name="confirm_drive"' in asked
    assert Cluster.objects.get().mode == "observe"

    olga.post(SEREN, form(mode="drive", confirm_drive="on"))
    assert Cluster.objects.get().mode == "drive"
    assert 'name="confirm_drive"' not in page_text(olga.get(SEREN))


def test_cluster_already_in_mode_drive_requires_no_confirmation():
    make.cluster(mode="drive")

    browser("change_cluster").post(SEREN, form(mode="drive", title="Seren"))

    assert Cluster.objects.get().title == "Seren"


def test_new_address_for_the_same_token_requires_a_confirmation(settings, tmp_path):
    settings.ACME_TOKEN_DIRS = [str(tmp_path)]
    make.cluster(token_file=f"{tmp_path}/seren")
    asked = form(address="http://127.0.0.1:2", token_file=f"{tmp_path}/seren", mode="observe")
    olga = browser("change_cluster")

    page = page_text(olga.post(SEREN, asked))
    assert "would be sent to http://127.0.0.1:2" in page
    assert Cluster.objects.get().address == "http://127.0.0.1:1"

    olga.post(SEREN, asked | {"confirm_address": "on"})
    assert Cluster.objects.get().address == "http://127.0.0.1:2"


def test_connection_of_the_bundled_cluster_is_read_only():
    row = make.cluster(is_bundled=True, token_file="/run/secrets/cluster", log_root="/logs")

    browser("change_cluster").post(SEREN, form(address="http://127.0.0.1:2", title="Demo"))
    with pytest.raises(InvalidField, match="Set by Acme each time"):
        cluster_actions.change(row, {"address": "http://127.0.0.1:2"}, author=make.author())

    row.refresh_from_db()
    assert (row.title, row.address, row.token_file) == ("Demo", "http://127.0.0.1:1", "/run/secrets/cluster")


def test_connection_tests_of_a_user_are_limited():
    make.cluster()
    olga = browser("change_cluster")

    # Twice as many, because a minute may end in between
    pages = [page_text(olga.post(SEREN, form(address="unix:///nonexistent/s", do="test"))) for _ in range(62)]

    assert "Connection test failed" in pages[0]
    assert any("At most 30 connection tests per minute" in page for page in pages)


@pytest.mark.parametrize(("method", "warned"), [("service", True), ("user_header", False)])
def test_page_warns_if_jobs_of_different_users_are_not_isolated(method, warned):
    make.cluster(submit_as=method, api_user="acme")

    page = page_text(browser("operate_cluster").get(SEREN))

    assert ("run as the same user, acme" in page) is warned


def test_page_shows_an_open_circuit_and_a_connection_test_resets_it():
    row = make.cluster()
    circuit_breaker.record_timeout(row, ClusterEndpoint.CONTROL, "no answer within 10 s")
    client = browser("operate_cluster")

    page = page_text(client.get(SEREN))
    assert "Requests to slurmrestd are reduced" in page and "no answer within 10 s. Next retry in" in page

    client.post(SEREN, form(do="test"))
    assert not OpenCircuit.objects.exists()


def test_refused_connection_test_does_not_reset_the_circuit():
    row = make.cluster()
    circuit_breaker.record_timeout(row, ClusterEndpoint.CONTROL, "no answer within 10 s")

    browser("change_cluster").post(SEREN, form(address="", do="test"))

    assert OpenCircuit.objects.exists()


def test_unusable_address_is_explained_on_the_form():
    page = browser("add_cluster").post("/settings/clusters/add/", form(name="kalos", address="ftp://x"))

    assert page.status_code == 422 and not Cluster.objects.exists()
    assert "address must begin with http://, https://, unix:/// or kubernetes://" in page_text(page)


def test_page_shows_failing_turns_of_a_reachable_cluster():
    now = clock.now()
    make.cluster()
    Cluster.objects.update(last_contact_at=now, last_error="a bug", error_since=now - timedelta(minutes=5))

    assert "Scheduling turns are failing" in page_text(browser("operate_cluster").get(SEREN))
