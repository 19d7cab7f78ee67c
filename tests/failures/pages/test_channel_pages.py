"""Settings of notifications and recovery: access, test messages, changes."""

from __future__ import annotations

import ipaddress
import socketserver
import threading
from http.server import BaseHTTPRequestHandler

import pytest
from django.core import mail

from failures.actions import notices as notice_actions
from failures.models import Channel
from failures.pages.channels import MAX_TEST_MESSAGES
from jobs.actions import recovery as recovery_actions
from jobs.models import Event, RecoveryMode, clock
from tests import make
from tests.failures.make import STORAGE, diagnosed
from tests.page_text import page_text

pytestmark = pytest.mark.django_db

OPEN = (ipaddress.ip_network("127.0.0.0/8"),)


@pytest.fixture
def root():
    return make.browser("root", is_superuser=True)


@pytest.fixture
def ada():
    """A client of a team administrator."""
    make.team("pretraining", ada="admin")
    return make.browser("ada")


def channel(team=None, kind="email", target="ops@example.org", **fields):
    return notice_actions.add_channel(kind, target, author=make.LOOP, team_id=team and team.pk, **fields)


@pytest.fixture
def receiver():
    """A webhook receiver that returns `status` and stores its requests in `got`."""

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


def test_administrator_adds_a_team_channel_and_changes_its_filters(ada):
    team = make.team("pretraining")
    values = {"team": team.pk, "kind": "email", "target": "ops@example.org", "scope": "node", "min_gpu_hours": "5"}

    page = ada.post("/settings/notifications/add/", values, follow=True).content.decode()

    row = Channel.objects.get()
    assert (row.team, row.scope, row.min_gpu_hours, row.created_by) == (team, "node", 5.0, "ada")
    assert "ops@example.org" in page
    ada.post(f"/settings/notifications/{row.pk}/rules/", {"scope": "", "min_gpu_hours": "0"})
    row.refresh_from_db()
    assert (row.scope, row.min_gpu_hours) == ("", 0)
    assert Event.objects.filter(type="channel.changed", by="ada").count() == 1


def test_webhook_secret_is_shown_once(root, settings, receiver):
    settings.ACME_WEBHOOK_NETWORKS = OPEN
    page = root.post("/settings/notifications/add/", {"kind": "webhook", "target": at(receiver)}, follow=True)

    secret = Channel.objects.get().secret
    assert secret in page.content.decode()
    assert secret not in root.get(f"/settings/notifications/{Channel.objects.get().pk}/").content.decode()


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"kind": "webhook", "target": "http://127.0.0.1/x"}, "not a public address"),
        ({"kind": "webhook", "target": "http://169.254.169.254/x"}, "not a public address"),
        ({"kind": "email", "target": "nobody"}, "is not an e-mail address"),
        ({"kind": "pigeon", "target": "x"}, "pigeon is not one of the available choices"),
        ({"kind": "email", "target": ""}, "This field is required"),
    ],
)
def test_invalid_address_is_reported_at_its_field(root, asked, why):
    answer = root.post("/settings/notifications/add/", asked)

    assert answer.status_code == 422 and why in answer.content.decode()
    assert not Channel.objects.exists()


def test_team_manages_its_own_channels_and_sees_no_others(ada):
    others = [channel(), channel(make.team("speech", ben="admin"), target="ben@example.org")]

    listed = ada.get("/settings/notifications/").content.decode()

    assert "ops@example.org" not in listed and "ben@example.org" not in listed
    for row in others:
        assert ada.get(f"/settings/notifications/{row.pk}/").status_code == 404
        assert ada.post(f"/settings/notifications/{row.pk}/remove/").status_code == 404
    assert ada.post("/settings/notifications/add/", {"kind": "email", "target": "a@example.org"}).status_code == 422
    assert Channel.objects.count() == 2


def test_channel_list_shows_the_last_message(root, tmp_path):
    diagnosis = diagnosed(tmp_path, STORAGE)
    row, other = channel(), channel(target="late@example.org", scope="node", min_gpu_hours=5)
    for one in (row, other):
        notice_actions.request_notice(one.pk, diagnosis.incident_id, "x", clock.now())
    row.notices.update(last_error="it answered 404", tries=1)

    page = root.get("/settings/notifications/").content.decode()

    assert "it answered 404" in page and "sending" in page
    assert "faulty nodes only from 5 GPU-hours" in page
    assert f"Incident {diagnosis.incident_id}" in root.get(f"/settings/notifications/{row.pk}/").content.decode()


def test_user_without_channels_sees_who_manages_them():
    make.team("pretraining", carl="researcher")
    assert "No notification channels." in make.browser("carl").get("/settings/notifications/").content.decode()


def test_test_message_is_signed_and_says_that_it_is_a_test(root, settings, receiver):
    settings.ACME_WEBHOOK_NETWORKS = OPEN
    row = channel(kind="webhook", target=at(receiver), allowed=OPEN)

    page = root.post(f"/settings/notifications/{row.pk}/test/").content.decode()

    [(headers, body)] = receiver.got
    assert "Test message delivered" in page and b"no action needed" in body
    assert headers["Acme-Signature"].startswith("t=") and headers["Acme-Delivery"] == f"test-{row.pk}"


def send_test(browser, row):
    return page_text(browser.post(f"/settings/notifications/{row.pk}/test/"))


# Three times as many messages as are allowed, because a minute may end in between


def test_test_messages_of_a_user_are_limited(root, settings):
    settings.EMAIL_HOST = "mail.example.org"
    rows = [channel(make.team(name), target=f"{name}@example.org") for name in ("speech", "vision", "robots")]

    pages = [send_test(root, row) for row in rows for _ in range(MAX_TEST_MESSAGES)]

    assert "Test message delivered" in pages[0]
    assert any("At most 5 test messages are sent per user and minute. <b>Try again" in page for page in pages)


def test_test_messages_of_a_team_are_limited(settings):
    settings.EMAIL_HOST = "mail.example.org"
    names = ("ada", "ben", "grace")
    row = channel(make.team("pretraining", **dict.fromkeys(names, "admin")))

    pages = [send_test(browser, row) for browser in map(make.browser, names) for _ in range(MAX_TEST_MESSAGES)]

    assert "Test message delivered" in pages[0]
    assert any("At most 5 test messages are sent per team and minute. <b>Try again" in page for page in pages)


@pytest.mark.parametrize(
    ("status", "says"), [(404, "Copy it again"), (302, "does not follow redirects"), (500, "log of the receiver")]
)
def test_rejected_test_message_is_explained(root, settings, receiver, status, says):
    settings.ACME_WEBHOOK_NETWORKS = OPEN
    receiver.status = status
    row = channel(kind="slack", target=at(receiver), allowed=OPEN)

    page = root.post(f"/settings/notifications/{row.pk}/test/").content.decode()

    assert (
        "Test message not delivered" in page and f"The receiver returned HTTP status {status}." in page and says in page
    )


def test_test_message_to_a_forbidden_address_is_explained(root, settings, receiver):
    row = channel(kind="slack", target=at(receiver), allowed=OPEN)
    settings.ACME_WEBHOOK_NETWORKS = ()

    page = root.post(f"/settings/notifications/{row.pk}/test/").content.decode()

    assert "which is not a public address" in page and "ACME_WEBHOOK_NETWORKS" in page
    assert receiver.got == []


def test_test_mail_is_sent_or_the_missing_server_is_explained(root, settings):
    row = channel()
    settings.EMAIL_HOST = ""
    assert "No mail server is configured" in root.post(f"/settings/notifications/{row.pk}/test/").content.decode()

    settings.EMAIL_HOST = "mail.example.org"
    root.post(f"/settings/notifications/{row.pk}/test/")
    assert "test of this channel" in mail.outbox[0].subject


def test_switching_and_removing_a_channel_are_events(root):
    row = channel()
    for verb in ("off", "on", "remove"):
        root.post(f"/settings/notifications/{row.pk}/{verb}/")

    events = list(Event.objects.filter(detail__channel=row.pk, by="root").order_by("pk").values_list("type", flat=True))
    assert events == ["channel.switched-off", "channel.switched-on", "channel.removed"]
    assert not Channel.objects.exists()


def test_unknown_action_changes_nothing(root):
    row = channel(scope="node", min_gpu_hours=5.0)

    assert root.post(f"/settings/notifications/{row.pk}/zzz/").status_code == 404
    row.refresh_from_db()
    assert (row.scope, row.min_gpu_hours) == ("node", 5.0)


# --- modes


def test_mode_message_keeps_the_case_of_names(root):
    team = make.team("Speech-EU")

    page = root.post("/settings/recovery/set/", {"team": team.pk, "mode": "act"}, follow=True)
    (message,) = page.context["messages"]

    assert str(message) == "Act: everything for Speech-EU. The mode applies from the next decision."
    changed = root.post(f"/settings/recovery/{RecoveryMode.objects.get().pk}/", {"mode": "observe"}, follow=True)
    assert any(str(one).startswith("Observe: everything for Speech-EU.") for one in changed.context["messages"])


def test_operators_set_modes_for_every_team_and_the_page_shows_the_author(root):
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
    assert Event.objects.filter(type="recovery.mode_changed", by="root").count() == 3


def test_team_administrator_sets_modes_only_for_the_own_team(ada):
    team, other = make.team("pretraining"), make.team("speech", ben="admin")
    ada.post("/settings/recovery/set/", {"team": team.pk, "mode": "observe"})
    everybody = recovery_actions.set_recovery_mode("act", author=make.LOOP)

    assert ada.post(f"/settings/recovery/{everybody.pk}/", {"mode": "observe"}).status_code == 403
    for values in ({"mode": "act"}, {"team": other.pk, "mode": "act"}):
        assert ada.post("/settings/recovery/set/", values).status_code == 422

    assert set(RecoveryMode.objects.values_list("team__name", "mode")) == {("pretraining", "observe"), (None, "act")}


@pytest.mark.parametrize("asked", [{"mode": "often"}, {"mode": "act", "action": "dance"}, {"mode": "act", "team": "0"}])
def test_invalid_mode_changes_nothing(root, asked):
    assert root.post("/settings/recovery/set/", asked).status_code == 422
    assert not RecoveryMode.objects.exists()


def test_user_without_administration_sees_modes_without_forms():
    recovery_actions.set_recovery_mode("act", author=make.LOOP)
    make.team("pretraining", carl="researcher")

    page = make.browser("carl").get("/settings/recovery/").content.decode()

    assert "read only" in page and "Set mode" not in page
