"""Every change made in the admin console is an Event with the old and new values."""

from __future__ import annotations

import pytest
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.db import DatabaseError
from django.test import Client
from django.urls import reverse

from jobs.admin.audit import AuditedAdmin
from jobs.models import Event, Membership, Quota, TeamRole, Token, TokenScope
from tests import make
from tests.statements import failing_statement

pytestmark = pytest.mark.django_db
User = get_user_model()
NO_ROWS = {"TOTAL_FORMS": 0, "INITIAL_FORMS": 0}


@pytest.fixture
def root() -> Client:
    client = Client(REMOTE_ADDR="203.0.113.9", headers={"X-Request-ID": "night-1"})
    client.force_login(make.user("root", is_staff=True, is_superuser=True))
    return client


def page(model, name, *args):
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{name}", args=args)


def change(client, row, fields):
    answer = client.post(page(type(row), "change", row.pk), fields)
    assert answer.status_code == 302, answer.context["errors"]


def events():
    return list(Event.objects.filter(type__startswith="admin.").order_by("id"))


@pytest.mark.parametrize("model", admin.site._registry, ids=lambda model: model.__name__)
def test_every_page_of_the_console_records_changes(model):
    assert isinstance(admin.site._registry[model], AuditedAdmin)


def test_change_has_its_author_address_and_values(root):
    quota = Quota.objects.create(team=make.team("vision"), cluster=make.cluster(), gpus=8)
    fields = {"team": quota.team_id, "cluster": quota.cluster_id, "kind": "", "gpu_model": "", "gpus": "64"}

    change(root, quota, fields)

    [event] = events()
    assert (event.type, event.by, event.source, event.request_id) == ("admin.changed", "root", "203.0.113.9", "night-1")
    assert event.detail["model"] == "jobs.quota" and event.detail["id"] == quota.pk
    assert event.detail["fields"] == {"gpus": [8, 64]}


def test_new_membership_and_its_removal_are_recorded(root):
    team, ada = make.team("vision"), make.user("ada")

    root.post(page(Membership, "add"), {"team": team.pk, "user": ada.pk, "role": TeamRole.ADMIN})
    row = Membership.objects.get()
    root.post(page(Membership, "delete", row.pk), {"post": "yes"})

    assert [(event.type, event.detail["name"]) for event in events()] == [
        ("admin.added", "ada is admin in vision"),
        ("admin.deleted", "ada is admin in vision"),
    ]


def test_rows_deleted_together_are_recorded_one_by_one(root):
    rows = [Membership.objects.create(team=make.team("vision"), user=make.user(name)) for name in ("ada", "ben")]
    selected = {"action": "delete_selected", "_selected_action": [row.pk for row in rows], "post": "yes"}

    root.post(page(Membership, "changelist"), selected)

    assert {event.detail["name"] for event in events()} == {
        *("ada is researcher in vision", "ben is researcher in vision")
    }
    assert not Membership.objects.exists()


def test_role_changed_on_the_page_of_its_user_is_recorded(root):
    row = Membership.objects.create(team=make.team("vision"), user=make.user("ada"))
    inline = {"TOTAL_FORMS": 1, "INITIAL_FORMS": 1, "0-id": row.pk, "0-user": row.user_id, "0-team": row.team_id}
    inline["0-role"] = TeamRole.OPERATOR
    fields = {"username": "ada", "is_active": "on", "is_superuser": "on", "date_joined_0": "2026-01-01"}
    fields |= {"date_joined_1": "00:00:00"} | {f"memberships-{name}": value for name, value in inline.items()}

    change(root, row.user, fields)

    [event] = events()
    assert event.detail["fields"]["is_superuser"] == [False, True]
    assert event.detail["related"] == [
        {
            "changed": "ada is operator in vision",
            "model": "jobs.membership",
            "fields": {"role": ["researcher", "operator"]},
        }
    ]


def test_permissions_of_a_group_are_recorded(root):
    group = Group.objects.create(name="night shift")
    permission = group.permissions.model.objects.get(codename="operate_cluster")

    change(root, group, {"name": "night shift", "permissions": [permission.pk]})

    [event] = events()
    assert event.detail["fields"]["permissions"] == [[], [str(permission)]]


def test_new_password_is_recorded_without_its_value(root):
    ada, new = make.user("ada"), "a sentence nobody guesses"

    root.post(reverse("admin:auth_user_password_change", args=[ada.pk]), {"password1": new, "password2": new})

    [event] = events()
    assert event.detail["model"] == "auth.user" and "password" in event.detail["fields"]
    assert new not in str(event.detail) and User.objects.get(pk=ada.pk).password not in str(event.detail)


def test_new_token_is_recorded_without_its_secret(root):
    fields = {"name": "ci", "user": make.user("ada").pk, "scope": TokenScope.READ, "networks": ""}
    fields |= {"expires_at_0": "2027-01-01", "expires_at_1": "00:00:00"}

    answer = root.post(page(Token, "add"), fields)

    [event] = events()
    secret = answer.context["secret"]
    assert event.type == "admin.added" and secret not in str(event.detail)
    assert Token.objects.get().digest not in str(event.detail)


def test_change_without_its_event_does_not_happen(root):
    quota = Quota.objects.create(team=make.team("vision"), cluster=make.cluster(), gpus=8)
    fields = {"team": quota.team_id, "cluster": quota.cluster_id, "kind": "", "gpu_model": "", "gpus": "64"}

    with failing_statement('INSERT INTO "jobs_event"', error=DatabaseError("gone")), pytest.raises(DatabaseError):
        root.post(page(Quota, "change", quota.pk), fields)

    quota.refresh_from_db()
    assert quota.gpus == 8
