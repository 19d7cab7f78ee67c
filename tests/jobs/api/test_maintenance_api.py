"""Maintenance in the API."""

from datetime import timedelta

import pytest

from jobs.models import Cluster, Maintenance, Node, clock
from jobs.models.maintenance import DEFAULT_RUN_TIME
from tests import make as rows
from tests.jobs.api import api_make as make
from tests.jobs.api.api_make import Caller

pytestmark = pytest.mark.django_db
AT = "clusters/seren/maintenance/"
HOUR = timedelta(hours=1)


@pytest.fixture
def olga():
    rows.cluster()
    return Caller(make.operator("olga", in_team="speech"))


def asked(**fields):
    now = clock.now()
    times = {"start_at": (now + 2 * HOUR).isoformat(), "end_at": (now + 6 * HOUR).isoformat()}
    return {"name": "cooling", "reason": "new pumps", **times, **fields}


def test_a_dry_run_of_maintenance_returns_its_effect_and_changes_nothing(olga):
    rows.running(rows.job(gpus_per_node=4, time_limit=24 * 3600))

    said = olga.post(AT, asked(dry_run=True, mode="now")).json()

    assert (said["id"], said["nodes"], said["gpus"], said["waiting"]) == (None, 4, 32, 0)
    assert [one["gpus"] for one in said["running"]] == [4]
    assert "signaled to save a checkpoint and then requeued" in said["effect"]
    assert not Maintenance.objects.exists()


def test_maintenance_is_scheduled_read_prolonged_and_cancelled(olga):
    number = olga.post(AT, asked(nodes="seren-[001-002]", lead_time="12:00:00")).json()["id"]

    seen = olga.get(f"{AT}{number}/").json()
    assert (seen["phase"], seen["nodes"], seen["lead_time"]) == ("planned", ["seren-001", "seren-002"], 12 * 3600)
    assert [one["id"] for one in olga.get(f"{AT}?open=true").json()["results"]] == [number]

    later = (clock.now() + 9 * HOUR).isoformat()
    moved = olga.patch(f"{AT}{number}/", {"end_at": later, "reason": "late"})
    assert moved.status_code == 200 and moved.json()["end_at"][:16] == later[:16]
    assert olga.patch(f"{AT}{number}/", {"end_at": later}).json() == {"end_at": ["cooling already ends at that time"]}

    assert olga.post(f"{AT}{number}/cancel/", {"reason": "not today"}).json()["phase"] == "cancelled"
    again = olga.post(f"{AT}{number}/cancel/", {})
    assert again.status_code == 409
    assert "is already cancelled" in again.json()["detail"]


def test_maintenance_defaults_to_the_whole_cluster_from_now_on(olga):
    number = olga.post(AT, {"name": "x", "reason": "y", "end_at": (clock.now() + HOUR).isoformat()}).json()["id"]

    window = Maintenance.objects.get(pk=number)
    assert (window.whole_cluster, window.mode, window.lead_time) == (True, "finish", DEFAULT_RUN_TIME)
    assert window.phase(clock.now()) == "going on"
    assert window.affected_nodes().count() == Node.objects.count()


@pytest.mark.parametrize(
    ("fields", "field", "why"),
    [
        ({"name": " "}, "name", "is empty"),
        ({"end_at": "2020-01-01T00:00:00Z"}, "end_at", "is in the past"),
        ({"end_at": "tomorrow"}, "end_at", "not an ISO 8601 time"),
        ({"nodes": "gpu[1-99999999]"}, "nodes", "more than 100000 nodes"),
        ({"nodes": "x\x00"}, "nodes", "NUL"),
        ({"lead_time": "UNLIMITED"}, "lead_time", "must not be UNLIMITED"),
        ({"mode": "explode"}, "mode", "is not one of"),
        ({"who": "me"}, "who", "not a field"),
    ],
)
def test_invalid_maintenance_fields_are_refused_by_name(olga, fields, field, why):
    answer = olga.post(AT, asked(**fields))

    assert answer.status_code == 400
    assert why in str(answer.json()[field])
    assert not Maintenance.objects.exists()


@pytest.mark.parametrize("missing", ["name", "reason", "end_at"])
def test_missing_maintenance_fields_are_named(olga, missing):
    body = asked()
    del body[missing]

    assert olga.post(AT, body).json() == {missing: ["is required"]}


def test_only_operators_change_maintenance_and_every_user_can_read_it(olga):
    number = olga.post(AT, asked()).json()["id"]
    ada = Caller(make.person("ada"))

    assert ada.get(f"{AT}{number}/").json()["name"] == "cooling"
    assert ada.post(AT, asked(name="mine")).status_code == 403
    assert ada.post(f"{AT}{number}/cancel/", {}).status_code == 403
    assert ada.patch(f"{AT}{number}/", {"end_at": asked()["end_at"]}).status_code == 403
    assert ada.get("clusters/seren/maintenance/99999999999999999999999/").status_code == 404
    assert ada.get("clusters/nowhere/maintenance/").status_code == 404


def test_a_change_of_maintenance_with_an_old_etag_is_refused(olga):
    number = olga.post(AT, asked()).json()["id"]
    seen = olga.get(f"{AT}{number}/").headers["ETag"]
    olga.patch(f"{AT}{number}/", {"end_at": (clock.now() + 9 * HOUR).isoformat()})

    assert olga.post(f"{AT}{number}/cancel/", {}, If_Match=seen).status_code == 412
    assert Maintenance.objects.get().cancelled_at is None


def test_a_response_of_the_cluster_in_the_meantime_does_not_invalidate_the_etag(olga):
    seen = olga.get("clusters/seren/").headers["ETag"]
    Cluster.objects.update(last_contact_at=clock.now(), last_error="It was away.")
    assert olga.post(AT, asked(dry_run=True), If_Match=seen).status_code == 200

    Cluster.objects.update(title="Another")
    assert olga.post(AT, asked(dry_run=True), If_Match=seen).status_code == 412
