"""The admin: every page opens, records are read-only, and actions require a reason."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.db.models import CompositePrimaryKey
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from jobs.admin.job import JobAdmin
from jobs.admin.record import CappedPaginator
from jobs.admin.verbs import MAX_ROWS
from jobs.core.lifecycle import NodeFlag, State
from jobs.models import (
    Allocation,
    Attempt,
    Cluster,
    ClusterCommand,
    Dependency,
    Event,
    HoldKind,
    Job,
    Membership,
    Node,
    Sample,
    Team,
    TeamRole,
    Token,
    TokenScope,
)
from tests.jobs.pages import admin_make as make
from tests.statements import failing_statement

pytestmark = pytest.mark.django_db

RECORD_MODELS = sorted(
    # The admin console cannot show a model whose key is made of several columns
    (one for one in apps.get_app_config("jobs").get_models() if not isinstance(one._meta.pk, CompositePrimaryKey)),
    key=lambda model: model.__name__,
)
READ_ONLY = [Job, Attempt, Allocation, Event, ClusterCommand, Sample, Dependency]


def page(model: type, name: str = "changelist", *args: object) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{name}", args=args)


@pytest.fixture
def root(client: Client) -> Client:
    client.force_login(make.make_superuser())
    return client


def signed_in(user: object) -> Client:
    client = Client()
    client.force_login(user)
    return client


# --- every page


def test_a_nul_byte_in_the_address_is_a_bad_request(root: Client):
    assert root.get("/admin/jobs/job/?state__exact=%00").status_code == 400


def test_every_model_is_registered_in_the_admin():
    assert [model.__name__ for model in RECORD_MODELS if not admin.site.is_registered(model)] == []


@pytest.mark.parametrize("model", RECORD_MODELS, ids=lambda model: model.__name__)
def test_the_list_and_the_page_of_every_model_open(root: Client, model: type):
    make.make_everything()

    rows = root.get(page(model))
    row = root.get(page(model, "change", model.objects.first().pk))

    assert (rows.status_code, row.status_code) == (200, 200)
    assert b"admin-acme.css" in rows.content


@pytest.mark.parametrize("model", RECORD_MODELS, ids=lambda model: model.__name__)
def test_every_list_can_be_searched_and_every_filter_be_used(root: Client, model: type):
    make.make_everything()
    rows = root.get(page(model))

    links = {
        choice["query_string"]
        for spec in rows.context["cl"].filter_specs
        for choice in spec.choices(rows.context["cl"])
    }
    answers = {root.get(page(model) + link).status_code for link in links}
    found = root.get(page(model), {"q": "0j0"})

    assert answers | {found.status_code} == {200}


@pytest.mark.parametrize("model", [Job, Event, Attempt, ClusterCommand, Token], ids=lambda model: model.__name__)
def test_dates_are_drilled_down_to_the_day(root: Client, model: type):
    make.make_everything()
    field = admin.site.get_model_admin(model).date_hierarchy
    at = getattr(model.objects.first(), field)

    for parts in [("year",), ("year", "month"), ("year", "month", "day")]:
        rows = root.get(page(model), {f"{field}__{part}": getattr(at, part) for part in parts})
        assert rows.status_code == 200
        assert rows.context["cl"].result_count >= 1


def test_users_are_shown_with_their_teams(root: Client):
    make.make_member(make.make_user("ada"), TeamRole.OPERATOR)

    rows = root.get(reverse("admin:auth_user_changelist"))

    assert "language (operator)" in rows.content.decode()


def test_users_without_staff_access_are_redirected_to_the_login():
    answer = signed_in(make.make_user()).get(page(Job))

    assert answer.status_code == 302
    assert answer.url.startswith(reverse("admin:login"))


# --- the record stays as it is


@pytest.mark.parametrize("model", READ_ONLY, ids=lambda model: model.__name__)
def test_record_rows_cannot_be_added_changed_or_deleted(root: Client, model: type):
    make.make_everything()
    row = model.objects.first()

    answers = [root.post(page(model, "add")), *(root.post(page(model, what, row.pk)) for what in ("change", "delete"))]

    assert [answer.status_code for answer in answers] == [403, 403, 403]
    assert model.objects.filter(pk=row.pk).exists()


def test_only_the_topology_of_a_node_can_be_edited(root: Client):
    node = make.make_node()
    empty = {"events-TOTAL_FORMS": 0, "events-INITIAL_FORMS": 0}

    root.post(page(Node, "change", node.pk), {"rack": "r1", "nic_count": 4, "gpus": 99, "state": "DOWN"} | empty)

    node.refresh_from_db()
    assert (node.rack, node.nic_count, node.gpus, node.state) == ("r1", 4, 8, "IDLE")


def test_cluster_configuration_is_editable_and_reported_values_are_read_only(root: Client):
    cluster = make.make_cluster()
    form = {
        "name": "seren",
        "mode": "observe",
        "submit_as": "service",
        "policy": "fifo-skip",
        "placement": "cells",
        "address": "http://h:1",
        "last_error": "x",
        "product": "y",
    }

    root.post(page(Cluster, "change", cluster.pk), form)

    cluster.refresh_from_db()
    assert (cluster.mode, cluster.last_error, cluster.product) == ("observe", "", "")
    assert (cluster.policy, cluster.placement) == ("acme", "consolidate")  # the page of the queue changes and tells it


def test_the_admin_cannot_change_tokens_or_the_bundled_clusters_connection(root: Client, settings, tmp_path):
    settings.ACME_TOKEN_DIRS = [str(tmp_path)]
    make.make_cluster("kalos", address="http://localhost:1", token_file=f"{tmp_path}/kalos")
    seren = make.make_cluster()
    asked = {"name": "seren", "address": seren.address, "mode": "drive", "burn_in_minutes": "60"}

    for token in (f"{tmp_path}/kalos", "/etc/hostname"):
        assert root.post(page(Cluster, "change", seren.pk), asked | {"token_file": token}).status_code == 200  # refused
    Cluster.objects.filter(pk=seren.pk).update(is_bundled=True)
    root.post(page(Cluster, "change", seren.pk), asked | {"address": "http://localhost:2", "title": "Seren"})

    seren.refresh_from_db()
    assert (seren.token_file, seren.address, seren.title) == ("", "http://localhost:6820", "Seren")


def test_the_admin_does_not_send_a_saved_token_to_a_new_address(root: Client, settings, tmp_path):
    settings.ACME_TOKEN_DIRS = [str(tmp_path)]
    token = str(tmp_path / "seren")
    seren = make.make_cluster(token_file=token)
    asked = {"name": "seren", "mode": "drive", "submit_as": "service", "burn_in_minutes": "60", "token_file": token}

    answer = root.post(page(Cluster, "change", seren.pk), asked | {"address": "http://localhost:2"})

    seren.refresh_from_db()
    assert seren.address == "http://localhost:6820"
    assert "/settings/clusters/of/seren/" in answer.content.decode()
    root.post(page(Cluster, "change", seren.pk), asked | {"address": "http://localhost:2", "token_file": ""})
    seren.refresh_from_db()
    assert (seren.address, seren.token_file) == ("http://localhost:2", "")


@pytest.mark.parametrize("model", [Cluster, Team], ids=lambda model: model.__name__)
def test_a_row_with_history_is_not_deleted(root: Client, model: type):
    make.make_running()
    row = model.objects.get()

    answer = root.post(page(model, "delete", row.pk), {"post": "yes"})

    assert "which must be kept" in answer.content.decode()
    assert model.objects.filter(pk=row.pk).exists()


def test_a_team_made_by_mistake_can_be_deleted(root: Client):
    team = make.make_team("typo")

    root.post(page(Team, "delete", team.pk), {"post": "yes"})

    assert not Team.objects.exists()


def test_the_history_of_a_job_is_its_events(root: Client):
    job = make.make_running()

    answer = root.get(page(Job, "history", job.pk), follow=True)

    assert answer.context["cl"].result_count == job.events.count()


def test_times_are_relative_with_the_exact_utc_time_as_tooltip(root: Client):
    job = make.make_running()
    exact = f"{job.started_at:%Y-%m-%d %H:%M:%S} UTC"

    row = root.get(page(Job)).content.decode()
    alone = root.get(page(Job, "change", job.pk)).content.decode()

    assert "01:00:0" in row
    assert f"{exact} (<time" in alone
    assert f'title="{exact}">1h ago' in alone


def test_secrets_in_the_environment_of_a_job_are_hidden(root: Client):
    job = make.make_job(environment={"WANDB_API_KEY": "hush", "RANKS": "8"})

    shown = root.get(page(Job, "change", job.pk)).content.decode()

    assert "RANKS=8" in shown
    assert "hush" not in shown


# --- lists stay quick


def test_the_number_of_queries_of_the_job_list_does_not_depend_on_its_length(root: Client, django_assert_num_queries):
    for number in range(30):
        make.make_running(make.make_node(f"gpu{number:03d}"), user=make.make_user(f"user{number}"))

    # session, user, count, page, where the calendar begins, and the choices of the filters (clusters, teams)
    with django_assert_num_queries(7):
        rows = root.get(page(Job))

    assert rows.context["cl"].result_count == 30


class TwoRowsPaginator(CappedPaginator):
    cap = 2


class TwoRowsAdmin(JobAdmin):
    paginator = TwoRowsPaginator


def test_a_list_counts_rows_only_up_to_its_cap(rf):
    for _ in range(4):
        make.make_job()
    request = rf.get(page(Job))
    request.user = make.make_superuser()

    answer = TwoRowsAdmin(Job, admin.site).changelist_view(request).render()

    assert "more than 2 jobs" in " ".join(answer.content.decode().split())


@pytest.mark.parametrize("term", ["0j", "777", "nightly", "ad"])
def test_a_job_is_found_by_its_ids_its_name_and_its_user(root: Client, term: str):
    job = make.make_running(name="nightly-eval")
    job.attempts.update(backend_id="777")

    found = root.get(page(Job), {"q": term})

    assert [row.pk for row in found.context["cl"].result_list] == [job.pk]


@pytest.mark.parametrize(
    ("stage", "expected"), [("waiting", {"w", "h"}), ("held", {"h"}), ("live", {"r"}), ("finished", {"f"})]
)
def test_jobs_are_filtered_by_stage(root: Client, stage: str, expected: set[str]):
    make.make_job(name="w")
    make.make_job(name="h", hold=HoldKind.USER)
    make.make_running(make.make_node("gpu001"), name="r")
    make.make_finished(node=make.make_node("gpu002"), name="f")

    rows = root.get(page(Job), {"stage": stage}).context["cl"].result_list

    assert {job.name for job in rows} == expected


# --- verbs


def choose(client: Client, verb: str, *rows: Job | Node | Token):
    """The form data of a click on "Go"."""
    keys = [row.pk for row in rows]
    return client.post(page(type(rows[0])), {"action": verb, "_selected_action": keys})


def answer(client: Client, verb: str, *rows: Job | Node | Token, **form: object):
    """The form data of the confirmation page."""
    url = page(type(rows[0]), "verb", verb)
    fields = {"_selected_action": [row.pk for row in rows]} | form
    return client.post(url, fields, headers={"X-Request-ID": "night-1"}, follow=True)


def waiting() -> Job:
    return make.make_job()


def held() -> Job:
    return make.make_job(hold=HoldKind.ADMIN)


JOB_CASES = [
    ("hold", waiting, {}, "job.held", {"hold": HoldKind.ADMIN}),
    ("release", held, {}, "job.released", {"hold": HoldKind.NONE}),
    ("cancel", waiting, {}, "job.state_changed", {"state": State.CANCELLED}),
    ("cancel", make.make_running, {}, "job.cancel_requested", {"flags": ["SIGNALING"]}),
    ("requeue", make.make_running, {}, "job.requeue_requested", {"flags": ["SIGNALING"]}),
    ("priority", waiting, {"value": 7}, "job.priority_changed", {"priority": 7}),
]


@pytest.mark.parametrize(("verb", "make_it", "more", "what", "becomes"), JOB_CASES)
def test_an_action_asks_for_a_reason_changes_the_job_and_leaves_an_event(verb, make_it, more, what, becomes):
    operator = make.make_staff("op", "change_job")
    client, job = signed_in(operator), make_it()

    asked = choose(client, verb, job)
    answer(client, verb, job, why="pager at 3", **more)

    job.refresh_from_db()
    event = job.events.first()
    assert verb.replace("-", " ") in asked.context["effect"]
    assert {field: getattr(job, field) for field in becomes} == becomes
    assert (event.type, event.why, event.user, event.request_id) == (what, "pager at 3", operator, "night-1")


@pytest.mark.parametrize(("verb", "flag"), [("drain", True), ("resume", False)])
def test_a_node_is_drained_and_resumed_with_a_reason(verb: str, flag: bool):
    operator = make.make_staff("op", "operate_cluster")
    client, node = signed_in(operator), make.make_node(drain_requested=not flag)

    choose(client, verb, node)
    answer(client, verb, node, why="ECC errors")

    node.refresh_from_db()
    event = Event.objects.get(node=node)
    assert (NodeFlag.DRAIN in node.all_flags) is flag
    assert (event.type, event.why, event.by, event.request_id) == (
        f"node.{verb}{'d' if flag is False else 'ed'}",
        "ECC errors",
        "op",
        "night-1",
    )


def test_the_drain_confirmation_shows_the_running_jobs_and_requires_a_reason(root: Client):
    node = make.make_node()
    make.make_running(node, gpus_per_node=4)

    asked = choose(root, "drain", node)
    again = answer(root, "drain", node, why=" ")

    node.refresh_from_db()
    assert "1 running job finishes" in asked.context["effect"]
    assert again.context["form"].errors["why"]
    assert not node.drain_requested


def test_one_refused_job_does_not_stop_the_others(root: Client):
    jobs = [make.make_job(), make.make_finished(), make.make_job()]

    page_after = answer(root, "hold", *jobs, why="storage is down")

    said = [str(message) for message in page_after.context["messages"]]
    assert Job.objects.filter(hold=HoldKind.ADMIN).count() == 2
    assert said == ["Hold: done for 2 jobs.", f"Hold refused: {jobs[1]} is COMPLETED; hold needs a waiting job."]


def test_an_internal_error_in_one_row_does_not_stop_the_others(root: Client):
    jobs = [make.make_job(), make.make_job(flags=[], state=State.SUSPENDED), make.make_job()]
    with failing_statement('"jobs_attempt"."job_id" IN', "FOR UPDATE", jobs[1].pk, error=ZeroDivisionError()):
        page_after = answer(root, "cancel", *jobs)

    assert Job.objects.filter(state=State.CANCELLED).count() == 2
    assert "internal error. See the log entry of request night-1" in str(list(page_after.context["messages"])[1])


def test_the_admin_page_of_a_job_offers_the_actions_for_its_state(root: Client):
    offered = {
        stage: [label for label, _ in root.get(page(Job, "change", job.pk)).context["verb_buttons"]]
        for stage, job in {"waits": make.make_job(), "runs": make.make_running(), "held": held()}.items()
    }

    assert offered["waits"] == ["Hold", "Change priority", "Cancel"]
    assert offered["runs"] == ["Requeue", "Cancel"]
    assert offered["held"] == ["Release", "Change priority", "Cancel"]


def test_an_action_button_leads_to_a_confirmation_and_back_to_the_job(root: Client):
    job = make.make_job()

    asked = root.get(page(Job, "verb", "hold"), {"id": job.pk})
    after = answer(root, "hold", job, alone="1")

    assert "Hold: 1 job" in asked.content.decode()
    assert after.redirect_chain == [(page(Job, "change", job.pk), 302)]


@pytest.mark.parametrize("verb", ["hold", "release", "cancel", "requeue", "priority"])
def test_staff_without_the_permission_may_not_use_a_verb_on_a_job(verb: str):
    client, job = signed_in(make.make_staff("op", "view_job", "operate_cluster")), make.make_job()

    assert answer(client, verb, job, why="x", number=1).status_code == 403
    assert "verb_buttons" not in client.get(page(Job, "change", job.pk)).context
    assert not Event.objects.exists()


@pytest.mark.parametrize("verb", ["drain", "resume"])
def test_staff_without_the_permission_may_not_use_a_verb_on_a_node(verb: str):
    client, node = signed_in(make.make_staff("op", "change_node", "change_job")), make.make_node()

    assert answer(client, verb, node, why="x").status_code == 403
    assert not Event.objects.exists()


def test_a_verb_that_does_not_exist_is_not_found(root: Client):
    assert answer(root, "explode", make.make_job()).status_code == 404


def test_an_action_on_too_many_rows_is_refused(root: Client):
    make.make_job()
    values = Job.objects.values().get() | {"id": None}
    Job.objects.bulk_create(Job(**values | {"public_id": f"0k{number:09d}"}) for number in range(MAX_ROWS))

    answered = choose(root, "cancel", *Job.objects.all())

    assert answered.status_code == 302
    assert Job.objects.filter(state=State.PENDING).count() == MAX_ROWS + 1


# --- roles


def staff_member(role: TeamRole) -> Client:
    staff = make.make_staff(
        "lead", "add_membership", "change_membership", "delete_membership", "view_team", "change_team"
    )
    make.make_member(staff, role)
    return signed_in(staff)


@pytest.mark.parametrize(("role", "granted"), [(TeamRole.OPERATOR, True), (TeamRole.ADMIN, False)])
def test_users_cannot_grant_a_role_above_their_own(role: TeamRole, granted: bool):
    client, ada = staff_member(TeamRole.OPERATOR), make.make_user("ada")

    client.post(page(Membership, "add"), {"team": make.make_team().pk, "user": ada.pk, "role": role})

    assert Membership.objects.filter(user=ada).exists() is granted


def test_users_cannot_grant_a_role_in_another_team():
    client, ada = staff_member(TeamRole.ADMIN), make.make_user("ada")

    client.post(page(Membership, "add"), {"team": make.make_team("vision").pk, "user": ada.pk, "role": TeamRole.VIEWER})

    assert not Membership.objects.filter(user=ada).exists()


def test_users_cannot_remove_a_role_above_their_own():
    client, above = staff_member(TeamRole.OPERATOR), make.make_member(make.make_user("ada"), TeamRole.ADMIN)

    client.post(page(Membership, "change", above.pk), {"role": TeamRole.VIEWER})
    client.post(page(Membership, "delete", above.pk), {"post": "yes"})

    above.refresh_from_db()
    assert above.role == TeamRole.ADMIN


def test_the_team_page_checks_roles_too():
    client, ada, team = staff_member(TeamRole.OPERATOR), make.make_user("ada"), make.make_team()
    forms = {
        "memberships-TOTAL_FORMS": 1,
        "memberships-INITIAL_FORMS": 0,
        "quotas-TOTAL_FORMS": 0,
        "quotas-INITIAL_FORMS": 0,
    }
    row = {"memberships-0-user": ada.pk, "memberships-0-team": team.pk, "memberships-0-role": TeamRole.ADMIN}

    client.post(page(Team, "change", team.pk), {"name": team.name} | forms | row)

    assert not Membership.objects.filter(user=ada).exists()


def test_a_membership_with_a_higher_role_cannot_be_moved_to_another_team():
    client = staff_member(TeamRole.OPERATOR)
    theirs = make.make_member(make.make_user("ada"), TeamRole.ADMIN, make.make_team("vision"))
    ada = theirs.user
    make.make_user("lead", "change_user", "view_user")
    forms = {"memberships-TOTAL_FORMS": 1, "memberships-INITIAL_FORMS": 1, "memberships-0-id": theirs.pk}
    row = {
        "memberships-0-user": ada.pk,
        "memberships-0-team": make.make_team().pk,
        "memberships-0-role": TeamRole.VIEWER,
    }
    joined = {"date_joined_0": "2025-01-01", "date_joined_1": "00:00:00", "username": "ada"}

    answered = client.post(reverse("admin:auth_user_change", args=[ada.pk]), joined | forms | row)

    theirs.refresh_from_db()
    assert answered.status_code == 200
    assert (theirs.team.name, theirs.role) == ("vision", TeamRole.ADMIN)


def test_a_superuser_can_grant_any_role(root: Client):
    ada = make.make_user("ada")

    root.post(page(Membership, "add"), {"team": make.make_team().pk, "user": ada.pk, "role": TeamRole.ADMIN})

    assert Membership.objects.get(user=ada).role == TeamRole.ADMIN


def test_staff_cannot_grant_superuser_access():
    client, ada = signed_in(make.make_staff("op", "change_user", "view_user")), make.make_user("ada")
    forms = {"memberships-TOTAL_FORMS": 0, "memberships-INITIAL_FORMS": 0}
    joined = {"date_joined_0": "2025-01-01", "date_joined_1": "00:00:00"}

    client.post(
        reverse("admin:auth_user_change", args=[ada.pk]), {"username": "ada2", "is_superuser": "on"} | joined | forms
    )

    ada.refresh_from_db()
    assert (ada.username, ada.is_superuser) == ("ada2", False)


# --- tokens


def make_one(client: Client, **form: object):
    until = timezone.now() + timedelta(days=30)
    expiry = {"expires_at_0": f"{until:%Y-%m-%d}", "expires_at_1": "12:00:00"}
    fields = {"name": "ci", "scope": TokenScope.READ, "networks": ""} | expiry | form
    return client.post(page(Token, "add"), fields)


def test_the_secret_of_a_token_is_shown_once_and_only_its_hash_is_kept(root: Client):
    answered = make_one(root, user=make.make_user().pk)

    token, secret = Token.objects.get(), answered.context["secret"]
    later = root.get(page(Token, "change", token.pk)).content.decode()
    assert Token.secret_digest(secret) == token.digest
    assert answered.content.decode().count(secret) == 1
    assert "no-store" in answered["Cache-Control"]
    assert secret not in later + str(LogEntry.objects.values_list()) + str(root.cookies)
    assert token.digest not in later


@pytest.mark.parametrize(
    ("networks", "kept"),
    [("10.0.0.0/8, 2001:db8::/32", ["10.0.0.0/8", "2001:db8::/32"]), ("10.0.0.1/8", None), ("home", None)],
)
def test_invalid_token_networks_are_refused(root: Client, networks: str, kept: list[str] | None):
    make_one(root, user=make.make_user().pk, networks=networks)

    assert [token.networks for token in Token.objects.all()] == ([kept] if kept else [])


@pytest.mark.parametrize(("scope", "made"), [(TokenScope.SUBMIT, True), (TokenScope.OPERATE, False)])
def test_staff_cannot_create_a_token_with_more_access_than_their_own(scope: TokenScope, made: bool):
    staff = make.make_staff("lead", "add_token")
    make.make_member(staff, TeamRole.RESEARCHER)

    make_one(signed_in(staff), user=staff.pk, team=make.make_team().pk, scope=scope)

    assert Token.objects.filter(user=staff).exists() is made


def test_staff_create_and_see_only_their_own_tokens():
    staff, theirs = make.make_staff("lead", "add_token", "change_token"), make.make_token()
    client = signed_in(staff)

    make_one(client, user=theirs.user_id)

    assert Token.objects.count() == 1
    assert client.get(page(Token)).context["cl"].result_count == 0
    assert answer(client, "revoke", theirs).status_code == 404


def test_the_admin_refuses_a_token_lifetime_beyond_the_site_limit(root: Client, settings):
    settings.ACME_TOKEN_MAX_DAYS = 10

    refused = make_one(root, user=make.make_user().pk)
    endless = make_one(root, user=make.make_user().pk, expires_at_0="", expires_at_1="")

    assert not Token.objects.exists()
    for answered in (refused, endless):
        assert "at most 10 days (ACME_TOKEN_MAX_DAYS)" in answered.content.decode()


def test_a_token_cannot_be_extended_beyond_the_longest_life(root: Client, settings):
    settings.ACME_TOKEN_MAX_DAYS = 40
    make_one(root, user=make.make_user().pk)
    token = Token.objects.get()
    Token.objects.update(created_at=token.created_at - timedelta(days=20))
    later = timezone.now() + timedelta(days=35)

    form = {"name": "ci", "networks": "", "expires_at_0": f"{later:%Y-%m-%d}", "expires_at_1": "12:00:00"}
    answered = root.post(page(Token, "change", token.pk), form)

    assert "at most 40 days" in answered.content.decode()


def reset(client: Client, user: object, **fields: str):
    fresh = {"usable_password": "true", "password1": "a sentence nobody guesses"}
    fresh |= {"password2": "a sentence nobody guesses", "set-password": "1"}
    return client.post(reverse("admin:auth_user_password_change", args=[user.pk]), fresh | fields)


def test_a_reset_password_revokes_the_tokens_and_ends_the_sessions_of_its_user(root: Client):
    ada = make.make_user("ada")
    ada.set_password("before")
    ada.save()
    session, token = signed_in(ada), make.make_token(user=ada)
    shown = root.get(reverse("admin:auth_user_password_change", args=[ada.pk])).content.decode()

    assert reset(root, ada, revoke_tokens="on").status_code == 302

    token.refresh_from_db()
    assert re.search(r'<input type="checkbox" name="revoke_tokens"[^>]* checked', shown)
    assert token.revoked_at and session.get("/account/").status_code == 302
    told = Event.objects.get(type="token.revoked")
    assert (told.by, told.why) == ("root", "An administrator reset the password.")


@pytest.mark.parametrize("fields", [{}, {"revoke_tokens": "on", "password2": "another one"}])
def test_a_reset_leaves_tokens_alone_if_unchecked_or_refused(root: Client, fields: dict[str, str]):
    ada = make.make_user("ada")
    token = make.make_token(user=ada)

    reset(root, ada, **fields)

    token.refresh_from_db()
    assert token.revoked_at is None


def test_a_token_is_revoked_with_a_reason_once(root: Client):
    token = make.make_token()

    answer(root, "revoke", token, why="leaked")
    again = answer(root, "revoke", token, why="leaked")

    token.refresh_from_db()
    assert token.revoked_at
    assert "leaked" in LogEntry.objects.get().change_message
    assert "is already revoked" in str(*again.context["messages"])
