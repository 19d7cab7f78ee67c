"""Maintenance pages: preview before scheduling, operators only, and no names of other teams' jobs."""

from datetime import timedelta

import pytest
from django.contrib.auth.models import Permission
from django.test import Client

from jobs.actions import maintenance as maintenance_actions
from jobs.actions.maintenance import MaintenanceRequest
from jobs.models import Event, Job, Maintenance, Node, clock
from scheduling.loops.maintenance import apply_maintenances_once
from tests import make

pytestmark = pytest.mark.django_db
FORM = "/queue/seren/maintenance/"
HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def cluster():
    return make.cluster()


def browser(name="ada"):
    client = Client()
    client.force_login(make.user(name))
    return client


def operator(name="olga"):
    make.user(name).user_permissions.add(Permission.objects.get(codename="operate_cluster"))
    return browser(name)


def asked(**fields):
    now = clock.now()
    times = {"start_at": f"{now + 2 * HOUR:%Y-%m-%dT%H:%M}", "end_at": f"{now + 6 * HOUR:%Y-%m-%dT%H:%M}"}
    return {"name": "cooling", "reason": "new pumps", "mode": "finish", "lead_time": "1-00:00:00", **times, **fields}


def text(answer):
    return " ".join(answer.content.decode().split())


def declared(**fields):
    now = clock.now()
    whole = {"name": "cooling", "reason": "new pumps", "start_at": now + 2 * HOUR, "end_at": now + 6 * HOUR, **fields}
    cluster = make.cluster()
    return maintenance_actions.schedule_maintenance(
        cluster, MaintenanceRequest(**whole), author=make.author("olga"), now=now
    )


def test_preview_says_how_many_jobs_are_expected_to_end_before_the_maintenance():
    for name, predicted_s in (("short", 1800.0), ("endless", 400_000.0)):
        job = make.job(name=name, gpus_per_node=4, time_limit=24 * 3600)
        make.running(job, on=["seren-001" if name == "short" else "seren-002"])
        Job.objects.filter(pk=job.pk).update(predicted_s=predicted_s)

    page = text(operator("ada").post(FORM, asked(nodes="seren-[001-002]")))

    assert "By predicted run times, 1 of 2 running jobs will have ended by then." in page
    assert page.count("expected to end") == 2


def test_maintenance_is_previewed_before_it_is_scheduled():
    make.running(make.job(name="long", gpus_per_node=4, time_limit=None))
    make.job(name="queued", nodes=2, gpus_per_node=8, time_limit=5 * 3600)
    olga = operator()

    form = asked(nodes="seren-[001-002]")
    page = olga.post(FORM, form)

    assert "2 nodes with 16 GPUs take no jobs from" in text(page)
    assert "1 job may still be running at the start and would be left to finish." in text(page)
    assert "1 waiting job (16 GPUs) cannot start on these nodes before the maintenance ends." in text(page)
    assert not Maintenance.objects.exists()

    done = olga.post(FORM, {**form, "confirm": page.context["mark"]})

    window = Maintenance.objects.get()
    assert done.status_code == 302 and done.headers["Location"].endswith(f"{FORM}{window.pk}/")
    assert sorted(window.nodes.values_list("name", flat=True)) == ["seren-001", "seren-002"]
    assert Event.objects.get(type="maintenance.created").by == "olga"


def test_nul_characters_are_removed_from_a_reason():
    window = declared()

    assert operator().post(f"{FORM}{window.pk}/cancel/", {"why": "a\0b"}).status_code == 302

    assert Event.objects.get(type="maintenance.cancelled").why == "a\ufffdb"


def test_nodes_drained_for_maintenance_need_no_attention():
    apply_maintenances_once(declared(nodes="seren-001", start_at=clock.now()).cluster, clock.now())
    assert Node.objects.get(name="seren-001").drain_requested

    page = operator().get("/")

    assert not page.context["attention"]()


def test_changed_field_after_the_preview_shows_a_new_preview():
    olga = operator()
    mark = olga.post(FORM, asked(nodes="seren-001")).context["mark"]

    again = olga.post(FORM, {**asked(), "confirm": mark})

    assert "4 nodes with 32 GPUs" in text(again)
    assert not Maintenance.objects.exists()


@pytest.mark.parametrize(
    ("fields", "field", "why"),
    [
        ({"nodes": "gpu7"}, "nodes", "Seren has no node gpu7."),
        ({"end_at": "2020-01-01T00:00"}, "end_at", "Is in the past."),
        ({"lead_time": "soon"}, "lead_time", "soon"),
        ({"lead_time": "UNLIMITED"}, "lead_time", "jobs of unknown length would never start"),
        ({"name": ""}, "name", "required"),
        ({"mode": "explode"}, "mode", "valid choice"),
    ],
)
def test_invalid_value_is_explained_beside_its_field(fields, field, why):
    page = operator().post(FORM, asked(**fields))

    assert page.status_code == 400
    assert why in " ".join(page.context["form"].errors[field])
    assert not Maintenance.objects.exists()


@pytest.mark.parametrize("path", ["", "{}/end/", "{}/cancel/"])
def test_maintenance_pages_are_for_operators_only(path):
    window = declared()

    answer = browser("ada").post(FORM + path.format(window.pk), asked())

    assert answer.status_code == 403
    window.refresh_from_db()
    assert window.cancelled_at is None and Maintenance.objects.count() == 1


def test_all_users_see_a_maintenance_without_names_of_other_teams_jobs():
    make.running(make.job(by="ben", name="secret", gpus_per_node=1))
    window = declared()

    page = text(browser("ada").get(f"{FORM}{window.pk}/"))

    assert "new pumps" in page and "secret" not in page
    assert "1 more in other teams" in page
    assert "Cancel maintenance" not in page


def test_end_of_a_maintenance_is_changed_and_it_is_cancelled():
    window, olga = declared(), operator()
    later = f"{window.end_at + HOUR:%Y-%m-%dT%H:%M}"

    olga.post(f"{FORM}{window.pk}/end/", {"end_at": later, "why": "late"})
    window.refresh_from_db()
    assert f"{window.end_at:%Y-%m-%dT%H:%M}" == later

    told = olga.post(f"{FORM}{window.pk}/end/", {"end_at": "2020-01-01T00:00"}, follow=True)
    assert "Nothing was changed: the end is in the past." in text(told)

    olga.post(f"{FORM}{window.pk}/cancel/", {"why": "not today"})
    window.refresh_from_db()
    assert window.cancelled_at
    assert "already cancelled" in text(olga.post(f"{FORM}{window.pk}/cancel/", follow=True))


def test_queue_page_lists_planned_and_current_maintenances(cluster):
    declared(name="later")
    now = declared(name="at-once", start_at=clock.now(), nodes="seren-001")
    apply_maintenances_once(cluster, now.start_at)

    page = text(operator().get("/queue/"))

    assert "planned" in page and "going on" in page and "1, 1 closed" in page
    assert Node.objects.get(name="seren-001").reason in page


def test_unknown_maintenance_is_not_found():
    assert browser().get(f"{FORM}{10**30}/").status_code == 404
    assert browser().get(f"{FORM}7/").status_code == 404
