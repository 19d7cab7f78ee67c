"""A word in an address that cannot be: one sentence above the page, and the rest of the address still counts."""

from __future__ import annotations

import html

import pytest
from django.test import Client

from jobs.models import Job, TeamRole
from tests import make

pytestmark = pytest.mark.django_db


@pytest.fixture
def ada():
    make.team("pretraining", ada=TeamRole.RESEARCHER)
    client = Client()
    client.force_login(make.user())
    return client


WRONG = [
    ("/jobs/?state=nonsense", "state: 'nonsense' is none of waiting, running, finished, failed, PENDING"),
    ("/jobs/?kind=cooking", "kind: 'cooking' is none of pretrain"),
    ("/jobs/?mine=yes", "mine: 'yes' is none of 0, 1"),
    ("/jobs/?before=x", "before: 'x' is no whole number of up to 18 digits"),
    ("/nodes/?state=broken", "state: 'broken' is none of all, closed"),
    ("/nodes/?cluster=nowhere", "cluster: 'nowhere' is no cluster that is known here"),
    ("/map/?cluster=nowhere", "cluster: 'nowhere' is no cluster that is known here"),
    ("/queue/?cluster=%00'<b>", 'cluster: "\'<b>" is no cluster that is known here'),
    ("/failures/?cluster=nowhere", "cluster: 'nowhere' is no cluster that is known here"),
    ("/map/?at=noon", "at: 'noon' is no ISO 8601 time"),
    ("/failures/?state=nonsense", "state: 'nonsense' is none of unresolved"),
    ("/failures/?reach=far", "reach: 'far' is none of everything, platform, programs"),
    ("/failures/?days=8", "days: '8' is none of 1, 7, 30, 90, 365"),
    ("/failures/?by=moon", "by: 'moon' is none of cause, node, team, kind"),
    ("/failures/?from=yesterday", "from: 'yesterday' is no day such as 2026-01-31"),
    ("/failures/?to=9999-01-01", "to: '9999-01-01' is out of range"),
    ("/failures/?from=2020-02-02&to=2020-01-01", "from: 2020-02-02 is after the end of the period, 2020-01-01"),
    ("/failures/rules/?state=old", "state: 'old' is none of running, shadow, adopted, retired"),
    ("/reports/?by=rack", "by: 'rack' is none of "),
    ("/reports/?days=8", "days: '8' is none of 1, 7, 30"),
    ("/reports/?month=soon", "month: 'soon' is no month such as "),
]


@pytest.mark.parametrize(("address", "sentence"), WRONG)
def test_a_page_says_what_is_wrong_and_shows_the_rest(ada, address, sentence):
    make.cluster()

    answer = ada.get(address)

    page = answer.content.decode()
    assert answer.status_code == 400
    assert html.escape(sentence) in page and "It was left out." in page
    assert "</main>" in page and page.count('<li class="error">') == 1


def test_what_else_was_asked_for_still_counts(ada):
    for kind in ("debug", "sft"):
        make.job(name=f"a-{kind}", kind=kind)

    page = ada.get("/jobs/?state=nonsense&kind=sft&user=ada").content.decode()

    assert "a-sft" in page and "a-debug" not in page
    assert 'name="user" value="ada"' in page and "<option selected>sft" in page


def test_a_fragment_of_such_a_page_goes_on_as_it_was(ada):
    make.job(name="train")

    part = ada.get("/jobs/?state=nonsense", headers={"HX-Request": "true", "HX-Target": "section#jobs"})

    assert part.status_code == 200
    assert "train" in part.content.decode() and "nonsense' is none" not in part.content.decode()


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("/jobs/export.csv?state=nonsense", "state: 'nonsense' is none of waiting"),
        ("/reports/gpu-hours.csv?days=8", "days: '8' is none of 1, 7, 30"),
        ("/reports/export/?month=soon", "month: 'soon' is no month such as "),
    ],
)
def test_a_file_is_refused_with_the_sentence_alone(ada, address, sentence):
    answer = ada.get(address)

    assert answer.status_code == 400
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert answer.content.decode().startswith(sentence) and "\n" not in answer.content.decode()


def test_a_filter_that_cannot_be_stops_what_would_be_done_to_all_that_it_finds(ada):
    job = make.job()

    answer = ada.post("/jobs/many/", {"verb": "cancel", "all": "1", "state": "nonsense", "confirm": "1"}, follow=True)

    assert "Nothing was changed: state: " in answer.content.decode()
    assert Job.objects.get(pk=job.pk).state == "PENDING"


def test_a_filter_that_cannot_be_is_not_saved(ada):
    answer = ada.post("/jobs/views/", {"name": "mine", "state": "nonsense", "kind": "sft"}, follow=True)

    assert "Nothing was saved: state: " in answer.content.decode()
    assert answer.redirect_chain[-1][0] == "/jobs/?kind=sft"
