"""Incident notices by e-mail, signed webhook and Slack: sent once, updated on changes, only to the right team."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_network

import httpx
import pytest
from django.core import mail

from acmeweb.common.errors import InvalidField, TimeLimitExceeded
from failures.actions import incidents as incident_actions
from failures.actions import notices as notice_actions
from failures.loops.notify import notify_once
from failures.models import Channel, Decision, Incident, Notice
from failures.notices import messages
from failures.notices.delivery import DeliveryError
from failures.notices.messages import IncidentMessage
from jobs.models import Event, clock
from tests import make as rows
from tests.failures import make
from tests.failures.make import decide_and_recover_once
from tests.statements import failing_statement

pytestmark = pytest.mark.django_db

HERE = (ip_network("127.0.0.0/8"),)
HOUR = timedelta(hours=1)


class Box(list):
    """A receiver in memory."""

    def __call__(self, row: Notice, message: IncidentMessage) -> None:
        self.append((row.channel.target, row.update, message.state))


def channel(target="https://hooks.example.com/x", kind="webhook", **how) -> Channel:
    row = Channel.objects.create(kind=kind, target=target, created_at=clock.now() - HOUR, **how)
    row.secret = "s3cret"
    row.save()
    return row


def test_incident_is_sent_once_even_after_several_turns(tmp_path):
    channel()
    make.diagnosed(tmp_path, make.STORAGE)
    make.diagnosed(tmp_path, make.STORAGE, on=("seren-002",))
    box = Box()

    for _ in range(3):
        notify_once(clock.now(), box)

    assert box == [("https://hooks.example.com/x", 0, "open")]


def test_changed_incident_is_sent_again_and_bursts_are_combined(tmp_path):
    channel()
    incident = make.diagnosed(tmp_path, make.STORAGE).incident
    box, now = Box(), clock.now()
    notify_once(now, box)
    incident_actions.acknowledge(incident, author=rows.author(), now=now)
    notify_once(now, box)
    incident_actions.resolve(incident, author=rows.author(), now=now)
    notify_once(now + notice_actions.MIN_MESSAGE_INTERVAL * 3, box)

    assert [entry[1:] for entry in box] == [(0, "open"), (1, "resolved")]


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ({}, 1),
        ({"scope": "service"}, 1),
        ({"scope": "node"}, 0),
        ({"min_gpu_hours": 1e6}, 0),
        ({"is_enabled": False}, 0),
    ],
)
def test_channel_filters_select_incidents(tmp_path, rules, told):
    channel(**rules)
    make.diagnosed(tmp_path, make.STORAGE)

    assert notify_once(clock.now(), Box()) == told


def test_team_channel_gets_only_incidents_of_its_jobs(tmp_path):
    make.diagnosed(tmp_path, make.STORAGE)
    channel("https://a.example.com", team=rows.team("team-of-ada"))
    channel("https://b.example.com", team=rows.team("others", ben="admin"))
    box = Box()

    notify_once(clock.now(), box)

    assert [entry[0] for entry in box] == ["https://a.example.com"]


def test_team_channel_gets_decisions_of_its_jobs_and_operators_get_all(tmp_path):
    """Two teams in one outage; the newest decision is about a job of the second."""
    first = make.diagnosed(tmp_path, make.STORAGE, kind="pretrain")
    decide_and_recover_once(clock.now())
    second = make.diagnosed(tmp_path, make.STORAGE, kind="pretrain", on=("seren-002",), by="ben")
    assert first.incident_id == second.incident_id
    Decision.objects.filter(diagnosis=first).update(why="Of the first")
    decide_and_recover_once(clock.now())
    Decision.objects.filter(diagnosis=second).update(why="Of the second")
    channel("https://a.example.com", team=first.attempt.job.team)
    channel("https://b.example.com", team=second.attempt.job.team)
    channel("https://all.example.com")
    messages = {}

    notify_once(clock.now(), lambda row, message: messages.update({row.channel.target: message.decision}))

    assert "Of the first" in messages["https://a.example.com"] and "second" not in messages["https://a.example.com"]
    assert (
        "Of the second" in messages["https://b.example.com"] and "Of the second" in messages["https://all.example.com"]
    )
    assert notify_once(clock.now(), Box()) == 0


def test_incidents_before_the_channel_was_added_are_not_sent(tmp_path):
    make.diagnosed(tmp_path)
    row = channel()
    Channel.objects.filter(pk=row.pk).update(created_at=clock.now() + HOUR)

    assert notify_once(clock.now(), Box()) == 0


def test_unreachable_receiver_is_retried_with_backoff_and_others_get_messages(tmp_path):
    channel("https://away.example.com")
    channel("https://there.example.com")
    make.diagnosed(tmp_path)
    box, now = Box(), clock.now()

    def send(row, message):
        if "away" in row.channel.target:
            raise DeliveryError("it answered 500")
        box(row, message)

    assert notify_once(now, send) == 1
    assert notify_once(now, send) == 0
    for hour in range(1, 12):
        notify_once(now + hour * timedelta(minutes=31), send)

    row = Notice.objects.get(channel__target__contains="away")
    assert row.failures == notice_actions.MAX_SEND_FAILURES and row.given_up_at is not None
    assert "it answered 500" in row.last_error and len(box) == 1


@pytest.mark.parametrize("error", [httpx.InvalidURL("no host"), ValueError("odd"), KeyError("x")])
def test_error_of_one_message_does_not_stop_the_next_one(tmp_path, error):
    channel("https://bad.example.com")
    channel("https://good.example.com")
    make.diagnosed(tmp_path)
    box, now = Box(), clock.now()

    def send(row, message):
        if "bad" in row.channel.target:
            raise error
        box(row, message)

    assert notify_once(now, send) == 1
    bad = Notice.objects.get(channel__target__contains="bad")
    assert bad.failures == 1 and type(error).__name__ in bad.last_error and bad.due_at > now


def test_invalid_target_does_not_stop_other_channels(tmp_path, settings):
    settings.ACME_WEBHOOK_NETWORKS = HERE
    channel("http://\uff18.\uff18.\uff18.\uff18/")
    with receiver() as (url, got):
        channel(url)
        make.diagnosed(tmp_path)
        assert notify_once(clock.now()) == 1

    assert len(got) == 1 and "is not a URL" in Notice.objects.get(sent="").last_error


def test_incident_whose_message_fails_does_not_stop_other_incidents(tmp_path):
    channel()
    odd = make.diagnosed(tmp_path, make.STORAGE).incident
    make.diagnosed(tmp_path)
    assert Incident.objects.count() == 2

    with failing_statement('"failures_decision"."incident_id" = %s', odd.pk, error=KeyError("odd")):
        assert notify_once(clock.now(), Box()) == 1


def test_time_limit_of_the_task_counts_as_a_failure_of_the_receiver(tmp_path):
    channel()
    make.diagnosed(tmp_path)

    def send(row, message):
        raise TimeLimitExceeded

    with pytest.raises(TimeLimitExceeded):
        notify_once(clock.now(), send)

    row = Notice.objects.get()
    assert (row.failures, row.last_error) == (1, "The receiver did not respond before the time limit of the loop.")
    assert notice_actions.failing_channels(clock.now()) == {row.channel_id}


def test_channels_take_turns_however_many_messages_one_has(tmp_path):
    channel("https://many.example.com")
    make.diagnosed(tmp_path, make.STORAGE)
    make.diagnosed(tmp_path)
    now, asked = clock.now(), []
    notify_once(now, Box())
    channel("https://one.example.com")
    make.diagnosed(tmp_path, make.STORAGE, on=("seren-002",))
    Notice.objects.update(sent="", due_at=now)
    later = now + HOUR / 4

    notify_once(later, lambda row, message: asked.append(row.channel.target.removeprefix("https://")[:3]))

    assert asked[0] == "one" and "man" in asked


def test_failing_channels_take_turns(tmp_path):
    """A turn has the time for a few of them only."""
    for name in ("a", "b"):
        channel(f"https://{name}.example.com")
    make.diagnosed(tmp_path, make.STORAGE)
    make.diagnosed(tmp_path)
    asked, now = [], clock.now()
    notify_once(now, Box())
    Notice.objects.update(sent="", due_at=now, last_error="it says nothing")
    Channel.objects.update(called_at=None)

    for second in range(4):
        at = now + HOUR / 4 + second * timedelta(seconds=1)
        row = notice_actions.claim(at, deprioritized=notice_actions.failing_channels(at))
        asked.append(row.channel.target)
        notice_actions.mark_failed(row, "it says nothing", at)

    assert asked[0] != asked[1] and asked[0] == asked[2] and asked[1] == asked[3]


def test_failing_channel_is_tried_once_per_turn_after_all_others(tmp_path):
    channel("https://hole-1.example.com")
    channel("https://hole-2.example.com")
    channel("https://there.example.com")
    make.diagnosed(tmp_path, make.STORAGE)
    make.diagnosed(tmp_path)
    asked, now = [], clock.now()

    def send(row, message):
        asked.append(row.channel.target.removeprefix("https://").partition(".")[0])
        if "hole" in row.channel.target:
            raise DeliveryError("it says nothing")

    notify_once(now, send)
    first, asked[:] = sorted(asked), []
    Notice.objects.update(sent="")  # all of it is to be said once more
    later = now + HOUR / 4
    Notice.objects.filter(channel__target__contains="there").update(due_at=later)
    notify_once(later, send)

    assert first == ["hole-1", "hole-2", "there", "there"]
    assert asked[:2] == ["there", "there"] and sorted(asked[2:]) == ["hole-1", "hole-2"]


def test_message_is_repeated_with_the_same_number_after_a_kill(tmp_path):
    channel()
    make.diagnosed(tmp_path)
    box, now = Box(), clock.now()

    def dies(row, message):
        box(row, message)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        notify_once(now, dies)
    assert notify_once(now, box) == 0  # somebody may still be at it
    notify_once(now + 2 * notice_actions.LEASE, box)

    assert [entry[1] for entry in box] == [0, 0]


# --- over the wire


@contextmanager
def receiver(status: int = 200) -> Iterator[tuple[str, list]]:
    got: list = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            got.append((dict(self.headers), self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/hook", got
        finally:
            server.shutdown()
            thread.join()


def test_webhook_is_signed(tmp_path, settings):
    settings.ACME_WEBHOOK_NETWORKS = HERE
    with receiver() as (url, got):
        channel(url)
        incident = make.diagnosed(tmp_path).incident
        assert notify_once(clock.now()) == 1

    ((headers, body),) = got
    at, _, made = headers["Acme-Signature"].removeprefix("t=").partition(",v1=")
    assert hmac.compare_digest(hmac.new(b"s3cret", f"{at}.".encode() + body, hashlib.sha256).hexdigest(), made)
    assert headers["Acme-Delivery"] == f"{Notice.objects.get().pk}-0"
    body = json.loads(body)
    assert (body["id"], body["state"], body["update"]) == (f"incident-{incident.pk}", "open", 0)


def test_private_address_is_not_called_unless_allowed(tmp_path, settings):
    settings.ACME_WEBHOOK_NETWORKS = ()
    with receiver() as (url, got):
        channel(url)
        make.diagnosed(tmp_path)
        assert notify_once(clock.now()) == 0

    assert got == [] and "not a public address" in Notice.objects.get().last_error


def test_slack_text_is_escaped(tmp_path, settings):
    settings.ACME_WEBHOOK_NETWORKS = HERE
    with receiver() as (url, got):
        channel(url, kind="slack")
        make.diagnosed(tmp_path)
        Incident.objects.update(subject="<!channel> & friends")
        notify_once(clock.now())

    text = json.loads(got[0][1])["text"]
    assert "&lt;!channel&gt; &amp; friends" in text and "<" not in text


def test_mails_of_an_incident_are_one_thread_with_single_line_subjects(tmp_path, settings):
    settings.EMAIL_HOST, settings.ACME_MAIL_FROM = "mail.example.org", "acme@example.org"
    channel("ops@example.org", kind="email")
    incident = make.diagnosed(tmp_path).incident
    Incident.objects.update(subject="a job\r\nBcc: everybody@example.org")
    now = clock.now()
    notify_once(now)
    incident.refresh_from_db()
    incident_actions.resolve(incident, author=rows.author(), now=now)
    notify_once(now + HOUR / 2)

    first, second = mail.outbox
    assert "\n" not in first.subject and first.to == ["ops@example.org"]
    assert second.extra_headers["In-Reply-To"] == first.extra_headers["Message-ID"]
    assert "resolved" in second.subject


def test_missing_mail_server_is_reported(tmp_path, settings):
    settings.EMAIL_HOST = ""
    channel("ops@example.org", kind="email")
    make.diagnosed(tmp_path)

    assert notify_once(clock.now()) == 0
    assert "ACME_MAIL_URL" in Notice.objects.get().last_error


def test_another_failed_attempt_does_not_cause_a_new_message():
    one = IncidentMessage(incident=1, state="open", title="t", cluster="c", attempts=1)
    more = IncidentMessage(incident=1, state="open", title="t", cluster="c", attempts=9)

    assert one.digest == more.digest
    assert messages.slack_body(one) != messages.slack_body(more)


# --- managing channels


@pytest.mark.parametrize(
    ("kind", "target", "why"),
    [
        ("email", "ops", "target: is not an e-mail address"),
        ("webhook", "ftp://example.com", "target: is not a URL that starts"),
        ("slack", "http://127.0.0.1/", "target: leads to 127.0.0.1"),
        ("webhook", "http://\uff18.\uff18.\uff18.\uff18/", "target: is not a URL"),
    ],
)
def test_invalid_target_is_rejected_when_it_is_added(kind, target, why):
    with pytest.raises(InvalidField, match=why):
        notice_actions.add_channel(kind, target, author=rows.author())


def test_api_returns_the_secret_of_a_channel_once():
    rows.team("pretraining", ada="admin", ben="researcher")
    request = {"kind": "email", "target": "ops@example.org", "team": "pretraining"}
    where, how = "/api/v1/channels/", {"content_type": "application/json"}

    assert rows.browser("ben").post(where, request, **how).status_code == 403
    added = rows.browser("ada").post(where, request, **how)
    again = rows.browser("ada").post(where, request, **how)
    everybody = rows.browser("ada").post(where, {"kind": "email", "target": "a@b.example"}, **how)

    assert [one.status_code for one in (added, again, everybody)] == [201, 400, 403]
    assert again.json() == {"target": ["already has a channel"]}
    shown = rows.browser("ada").get(where).json()["results"]
    assert [row["target"] for row in shown] == ["ops@example.org"] and "secret" not in shown[0]
    assert rows.browser("ben").get(where).json()["results"] == []
    assert rows.browser("ben").post(f"{where}{shown[0]['id']}/remove/", {}, **how).status_code == 403
    assert (
        rows.browser("olga", "operate_cluster").post(f"{where}{shown[0]['id']}/remove/", {}, **how).status_code == 200
    )
    assert list(Event.objects.order_by("pk").values_list("type", flat=True)) == ["channel.added", "channel.removed"]


def test_channel_is_switched_off_and_on_by_its_managers():
    row = channel(team=rows.team("pretraining", ada="admin", ben="researcher"))
    where, how = f"/api/v1/channels/{row.pk}/", {"content_type": "application/json"}
    ada = rows.browser("ada")

    assert rows.browser("ben").patch(where, {"is_enabled": False}, **how).status_code == 403
    off = ada.patch(where, {"is_enabled": False}, **how)
    assert off.status_code == 200 and off.json()["is_enabled"] is False
    assert Channel.objects.get().is_enabled is False
    assert ada.patch(where, {"is_enabled": False}, **how).status_code == 200
    assert ada.patch(where, {"is_enabled": True}, **how, headers={"If-Match": '"old"'}).status_code == 412
    assert ada.patch(where, {"is_enabled": True}, **how).json()["is_enabled"] is True
    assert ada.patch(where, {}, **how).json() == {"is_enabled": ["is required"]}
    assert ada.patch(where, {"is_enabled": 1}, **how).status_code == 400
    events = list(Event.objects.order_by("pk").values_list("type", flat=True))
    assert events == ["channel.switched-off", "channel.switched-on"]


def test_channel_of_another_team_is_not_found():
    others = channel(team=rows.team("others", olga="admin"))
    everybody = channel("https://all.example.com")
    rows.team("pretraining", ada="admin")
    ada, how = rows.browser("ada"), {"content_type": "application/json"}

    for pk in (others.pk, everybody.pk, 10**6):
        assert ada.post(f"/api/v1/channels/{pk}/remove/", {}, **how).status_code == 404
        assert ada.patch(f"/api/v1/channels/{pk}/", {"is_enabled": False}, **how).status_code == 404
    assert Channel.objects.filter(is_enabled=True).count() == 2
