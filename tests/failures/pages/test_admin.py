"""Diagnoses and incidents in the Django admin: shown, reviewed with a reason, never edited."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from failures.loops.diagnose import diagnose_once
from failures.models import Channel, Decision, Diagnosis, Incident, LogReadState, ManualOverride, Notice, StackDump
from failures.recovery import decisions, steps
from jobs.models import Event, clock
from tests import make as rows
from tests.failures import make
from tests.failures.make import decide_and_recover_once

pytestmark = pytest.mark.django_db


@pytest.fixture
def died(tmp_path):
    return make.diagnosed(tmp_path)


@pytest.fixture
def root(died):
    return rows.browser("root", is_staff=True, is_superuser=True)


def page(model, name="changelist", *args):
    return reverse(f"admin:failures_{model._meta.model_name}_{name}", args=args)


@pytest.mark.parametrize("model", [Diagnosis, Incident])
def test_list_and_detail_page_open_and_every_filter_works(root, model):
    shown = root.get(page(model))
    row = root.get(page(model, "change", model.objects.get().pk))

    assert (shown.status_code, row.status_code) == (200, 200)
    assert "TypeError" in shown.content.decode()
    for query in ("?q=Type", "?open=yes", "?open=no", "?cluster__id__exact=1", "?category=Script"):
        assert root.get(page(model) + query).status_code == 200


@pytest.mark.parametrize("model", [Diagnosis, Incident])
def test_records_cannot_be_added_changed_or_deleted(root, model):
    pk = model.objects.get().pk

    answers = [
        root.post(page(model, "add")),
        root.post(page(model, "change", pk)),
        root.post(page(model, "delete", pk)),
    ]

    assert [answer.status_code for answer in answers] == [403, 403, 403]


def use(root, model, verb, **more):
    keys = {"_selected_action": [model.objects.get().pk]}
    return root.post(page(model, "verb", verb), {**keys, "why": "seen it", **more})


def test_diagnosis_is_corrected_with_a_reason(root, died):
    assert use(root, Diagnosis, "correct", value="KeyError").status_code == 302

    row = make.of(died.attempt)
    assert (row.root_cause, row.review, row.review_note, row.reviewed_by.username) == (
        "KeyError",
        "corrected",
        "seen it",
        "root",
    )
    assert Event.objects.get(type="diagnosis.corrected").by == "root"


def test_unknown_cause_is_rejected(root, died):
    assert use(root, Diagnosis, "correct", value="Gremlins").status_code == 200
    assert make.of(died.attempt).review == ""


def test_incident_is_resolved_once(root):
    use(root, Incident, "acknowledge")
    use(root, Incident, "resolve")
    again = root.post(
        page(Incident, "verb", "resolve"), {"_selected_action": [Incident.objects.get().pk], "why": "x"}, follow=True
    )

    assert Incident.objects.get().state == "resolved"
    assert "refused" in again.content.decode()


def test_user_with_view_permission_changes_nothing(died):
    client = Client()
    client.force_login(rows.user("sam", is_staff=True))

    assert client.get(page(Diagnosis)).status_code == 403
    assert use(client, Diagnosis, "confirm").status_code == 403


def test_decisions_and_channels_are_shown_but_not_editable(tmp_path):
    attempt = make.running(tmp_path, kind="pretrain")
    make.end(tmp_path, attempt, "step 1\n")
    diagnose_once(clock.now())
    decide_and_recover_once(clock.now())
    decision = Decision.objects.get()
    decisions.approve(decision, author=rows.author(), now=clock.now())
    steps.undo(decision, author=rows.author(), now=clock.now())
    channel = Channel.objects.create(kind="webhook", target="https://hooks.example.org", secret="hush")
    Notice.objects.create(channel=channel, incident=decision.incident, wanted="x")
    LogReadState.objects.create(attempt=attempt, looked_at=clock.now())
    StackDump.objects.create(attempt=attempt, incident=decision.incident, until=clock.now())
    root = Client()
    root.force_login(rows.user("root", is_staff=True, is_superuser=True))

    for model in (Decision, ManualOverride, Channel, Notice, StackDump, LogReadState):
        shown = root.get(page(model))
        row = root.get(page(model, "change", model.objects.get().pk))
        assert (shown.status_code, row.status_code) == (200, 200), model
        assert "hush" not in shown.content.decode() + row.content.decode()
        assert root.post(page(model, "change", model.objects.get().pk)).status_code == 403
