"""Settings → Notifications and Recovery: who may see and say what, a test that explains, and what was changed."""

from __future__ import annotations

import ipaddress
import socketserver
import threading
from http.server import BaseHTTPRequestHandler

import pytest
from django.core import mail
from django.test import Client

from failures.actions import notices as notice_actions
from failures.models import Channel
from jobs.actions import recovery as recovery_actions
from jobs.models import Event, RecoveryMode, clock
from tests import make
from tests.failures.make import STORAGE, diagnosed

pytestmark = pytest.mark.django_db

OPEN = (ipaddress.ip_network("127.0.0.0/8"),)


def signed_in(name, **fields):
    browser = Client()
    browser.force_login(make.user(name, **fields))
    return browser


@pytest.fixture
def root():
    return signed_in("root", is_superuser=True)


@pytest.fixture
def ada():
    """Administers her team."""
    make.team("pretraining", ada="admin")
    return signed_in("ada")


def channel(team=None, kind="email", target="ops@example.org", **fields):
    return notice_actions.add_channel(kind, target, author=make.LOOP, team_id=team and team.pk, **fields)


@pytest.fixture
def receiver():
    """A webhook's receiver that answers what it is told to, and keeps what it got."""

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self):
            self.server.got.append((self.headers, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(self.server.status)
            self.end_headers()

        def log_message(self, *words):
            pass

    with socketserver.TCPServer(("127.0.0.1", 0), Answer) as server:
        server.got, server.status = [], 204  # no HTTPServer: it looks its own name up
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def at(receiver):
    return f"http://127.0.0.1:{receiver.server_address[1]}/hook"


# --- notifications


def test_an_administrator_adds_a_channel_of_the_team_and_changes_what_it_is_told_of(ada):
    team = make.team("pretraining")
    asked = {"team": team.pk, "kind": "email", "target": "ops@example.org", "scope": "node", "least_gpu_hours": "5"}

    page = ada.post("/settings/notifications/add/", asked, follow=True).content.decode()

    row = Channel.objects.get()
    assert (row.team, row.scope, row.least_gpu_hours, row.created_by) == (team, "node", 5.0, "ada")
    assert "ops@example.org" in page
    ada.post(f"/settings/notifications/{row.pk}/rules/", {"scope": "", "least_gpu_hours": "0"})
    row.refresh_from_db()
    assert (row.scope, row.least_gpu_hours) == ("", 0)
    assert Event.objects.filter(what="channel.changed", by="ada").count() == 1


def test_the_secret_of_a_webhook_is_shown_once(root, settings, receiver):
    settings.ACME_WEBHOOK_NETWORKS = OPEN
    page = root.post("/settings/notifications/add/", {"kind": "webhook", "target": at(receiver)}, follow=True)

    secret = Channel.objects.get().secret
    assert secret in page.content.decode()
    assert secret not in root.get(f"/settings/notifications/{Channel.objects.get().pk}/").content.decode()


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"kind": "webhook", "target": "http://127.0.0.1/x"}, "not on the open internet"),
        ({"kind": "webhook", "target": "http://169.254.169.254/x"}, "not on the open internet"),
        ({"kind": "email", "target": "nobody"}, "is no mail address"),
        ({"kind": "pigeon", "target": "x"}, "pigeon is not one of the available choices"),
        ({"kind": "email", "target": ""}, "This field is required"),
    ],
)
def test_a_wrong_address_is_refused_beside_its_field(root, asked, why):
    answer = root.post("/settings/notifications/add/", asked)

    assert answer.status_code == 422 and why in answer.content.decode()
    assert not Channel.objects.exists()


def test_a_team_keeps_its_own_channels_and_sees_no_others(ada):
    others = [channel(), channel(make.team("speech", ben="admin"), target="ben@example.org")]

    listed = ada.get("/settings/notifications/").content.decode()

    assert "ops@example.org" not in listed and "ben@example.org" not in listed
    for row in others:
        assert ada.get(f"/settings/notifications/{row.pk}/").status_code == 404
        assert ada.post(f"/settings/notifications/{row.pk}/remove/").status_code == 404
    assert ada.post("/settings/notifications/add/", {"kind": "email", "target": "a@example.org"}).status_code == 422
    assert Channel.objects.count() == 2


def test_the_list_says_what_each_was_told_last(root, tmp_path):
    found = diagnosed(tmp_path, STORAGE)
    row, other = channel(), channel(target="late@example.org", scope="node", least_gpu_hours=5)
    for one in (row, other):
        notice_actions.request_notice(one.pk, found.incident_id, "x", clock.now())
    row.notices.update(trouble="it answered 404", tries=1)

    page = root.get("/settings/notifications/").content.decode()

    assert "it answered 404" in page and "on its way" in page
    assert "sick nodes only from 5 GPU-hours" in page
    assert f"Incident {found.incident_id}" in root.get(f"/settings/notifications/{row.pk}/").content.decode()


def test_who_keeps_none_is_told_who_does():
    make.team("pretraining", carl="researcher")
    assert "You keep none" in signed_in("carl").get("/settings/notifications/").content.decode()


def test_a_test_arrives_signed_and_says_that_nothing_is_wrong(root, settings, receiver):
    settings.ACME_WEBHOOK_NETWORKS = OPEN
    row = channel(kind="webhook", target=at(receiver), allowed=OPEN)

    page = root.post(f"/settings/notifications/{row.pk}/test/").content.decode()

    [(headers, body)] = receiver.got
    assert "It works" in page and b"nothing is wrong" in body
    assert headers["Acme-Signature"].startswith("t=") and headers["Acme-Delivery"] == f"test-{row.pk}"


@pytest.mark.parametrize(
    ("status", "says"), [(404, "copy the address again"), (302, "we follow nobody"), (500, "its own log")]
)
def test_a_test_that_is_refused_is_explained(root, settings, receiver, status, says):
    settings.ACME_WEBHOOK_NETWORKS = OPEN
    receiver.status = status
    row = channel(kind="slack", target=at(receiver), allowed=OPEN)

    page = root.post(f"/settings/notifications/{row.pk}/test/").content.decode()

    assert "It does not arrive" in page and f"It answered {status}." in page and says in page


def test_a_test_that_may_not_go_there_any_more_is_explained(root, settings, receiver):
    row = channel(kind="slack", target=at(receiver), allowed=OPEN)
    settings.ACME_WEBHOOK_NETWORKS = ()

    page = root.post(f"/settings/notifications/{row.pk}/test/").content.decode()

    assert "which is not on the open internet" in page and "ACME_WEBHOOK_NETWORKS" in page
    assert receiver.got == []


def test_a_mail_goes_out_where_there_is_a_mail_server_and_is_explained_where_not(root, settings):
    row = channel()
    settings.EMAIL_HOST = ""
    assert "No mail server is configured" in root.post(f"/settings/notifications/{row.pk}/test/").content.decode()

    settings.EMAIL_HOST = "mail.example.org"
    root.post(f"/settings/notifications/{row.pk}/test/")
    assert "a test of this channel" in mail.outbox[0].subject


def test_off_on_and_removed_each_with_its_event(root):
    row = channel()
    for verb in ("off", "on", "remove"):
        root.post(f"/settings/notifications/{row.pk}/{verb}/")

    told = list(Event.objects.filter(detail__channel=row.pk, by="root").order_by("pk").values_list("what", flat=True))
    assert told == ["channel.switched-off", "channel.switched-on", "channel.removed"]
    assert not Channel.objects.exists()


def test_a_verb_that_is_none_changes_nothing(root):
    row = channel(scope="node", least_gpu_hours=5.0)

    assert root.post(f"/settings/notifications/{row.pk}/zzz/").status_code == 404
    row.refresh_from_db()
    assert (row.scope, row.least_gpu_hours) == ("node", 5.0)


# --- modes


def test_what_was_said_keeps_the_names_as_they_are_written(root):
    team = make.team("Speech-EU")

    page = root.post("/settings/recovery/set/", {"team": team.pk, "mode": "act"}, follow=True)
    (said,) = page.context["messages"]

    assert str(said) == "Act: everything for Speech-EU. It counts from the next decision on."
    changed = root.post(f"/settings/recovery/{RecoveryMode.objects.get().pk}/", {"mode": "observe"}, follow=True)
    assert any(str(one).startswith("Observe: everything for Speech-EU.") for one in changed.context["messages"])


def test_operators_say_how_far_for_everybody_and_the_page_says_who_changed_it(root):
    root.post("/settings/recovery/set/", {"action": "restart", "mode": "act"})
    row = RecoveryMode.objects.get()
    assert (row.team, row.action, row.mode, row.changed_by) == (None, "restart", "act", "root")

    root.post(f"/settings/recovery/{row.pk}/", {"mode": "observe"})

    page = root.get("/settings/recovery/").content.decode()
    assert "by root" in page and "observe: restart for every team" in page
    changed = RecoveryMode.objects.get()
    assert changed.mode == "observe" and changed.changed_at > row.changed_at
    root.post(f"/settings/recovery/{row.pk}/", {"mode": "none"})
    assert not RecoveryMode.objects.exists()
    assert Event.objects.filter(what="recovery.mode", by="root").count() == 3


def test_a_team_says_it_for_its_own_jobs_and_nobody_elses(ada):
    team, other = make.team("pretraining"), make.team("speech", ben="admin")
    ada.post("/settings/recovery/set/", {"team": team.pk, "mode": "observe"})
    everybody = recovery_actions.set_recovery_mode("act", author=make.LOOP)

    assert ada.post(f"/settings/recovery/{everybody.pk}/", {"mode": "observe"}).status_code == 403
    for asked in ({"mode": "act"}, {"team": other.pk, "mode": "act"}):
        assert ada.post("/settings/recovery/set/", asked).status_code == 422

    assert set(RecoveryMode.objects.values_list("team__name", "mode")) == {("pretraining", "observe"), (None, "act")}


@pytest.mark.parametrize("asked", [{"mode": "often"}, {"mode": "act", "action": "dance"}, {"mode": "act", "team": "0"}])
def test_a_wrong_wish_changes_nothing(root, asked):
    assert root.post("/settings/recovery/set/", asked).status_code == 422
    assert not RecoveryMode.objects.exists()


def test_who_administers_nothing_reads_and_is_offered_nothing():
    recovery_actions.set_recovery_mode("act", author=make.LOOP)
    make.team("pretraining", carl="researcher")

    page = signed_in("carl").get("/settings/recovery/").content.decode()

    assert "not yours" in page and "Say how far" not in page
