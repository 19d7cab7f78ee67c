"""A fragment that looks the same as before is answered with 304, so that an idle page transfers next to nothing."""

from datetime import UTC, datetime, timedelta

import pytest
from django.utils.html import format_html

from jobs.models import Job, clock
from jobs.templatetags.acme import ago, expected, since, time_until
from jobs.web.page import fragment_etag
from tests import make

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
FRAGMENT = {"HX-Request": "true", "HX-Target": "section#queue"}


TIMES = {
    "ago": (ago, -1),
    "from now": (ago, 5),
    "expected": (expected, 5),
    "since": (since, -1),
    "until": (time_until, 5),
}


@pytest.mark.parametrize(("form", "hours"), TIMES.values(), ids=TIMES)
def test_tag_stays_the_same_while_a_time_ticks(form, hours):
    moment = NOW + timedelta(hours=hours)
    shown, later = (format_html("<p>{}</p>", form(moment, now)) for now in (NOW, NOW + timedelta(hours=1)))

    assert shown != later
    assert fragment_etag(shown.encode()) == fragment_etag(later.encode())


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ('<input name="csrfmiddlewaretoken" value="abc">', '<input name="csrfmiddlewaretoken" value="xyz">', True),
        (
            '<time data-started="5" title="since">00:01</time>',
            '<time data-started="5" title="since">00:02</time>',
            True,
        ),
        ("<td>RUNNING</td>", "<td>FAILED</td>", False),
        ('<time data-ago="5">1s ago</time> RUNNING', '<time data-ago="5">1s ago</time> FAILED', False),
        ('<time data-ago="5">1s ago</time>', '<time data-ago="6">1s ago</time>', False),
        ("<time>12:00</time>", "<time>12:01</time>", False),
    ],
)
def test_tag_changes_with_everything_else_that_a_user_sees(one, other, same):
    assert (fragment_etag(one.encode()) == fragment_etag(other.encode())) is same


@pytest.fixture
def ada(client, db):
    client.force_login(make.user("ada"))
    make.team("pretraining", ada="researcher")
    make.job(by="ada", name="train", gpus_per_node=8)
    return client


def test_fragment_that_the_browser_shows_is_not_sent_again(ada):
    first = ada.get("/", headers=FRAGMENT)

    again = ada.get("/", headers=FRAGMENT | {"If-None-Match": first["ETag"]})

    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")
    assert again["ETag"] == first["ETag"]
    assert "HX-Target" in again["Vary"]


def test_changed_fragment_is_sent(ada):
    first = ada.get("/", headers=FRAGMENT)
    Job.objects.update(name="other", submitted_at=clock.now())

    again = ada.get("/", headers=FRAGMENT | {"If-None-Match": first["ETag"]})

    assert again.status_code == 200
    assert b"other" in again.content


def test_page_has_no_tag(ada):
    assert "ETag" not in ada.get("/", headers={"If-None-Match": "*"})
