"""Invalid query parameters: one sentence above the page, and the other parameters still apply."""

from __future__ import annotations

import html

import pytest

from jobs.models import Job, TeamRole
from tests import make

pytestmark = pytest.mark.django_db


@pytest.fixture
def ada():
    make.team("pretraining", ada=TeamRole.RESEARCHER)
    return make.browser()


WRONG = [
    ("/jobs/?state=nonsense", "state: 'nonsense' is not one of waiting, running, finished, failed, PENDING"),
    ("/jobs/?kind=cooking", "kind: 'cooking' is not one of pretrain"),
    ("/jobs/?mine=yes", "mine: 'yes' is not one of 0, 1"),
    ("/jobs/?before=x", "before: 'x' is not a whole number of up to 18 digits"),
    ("/nodes/?state=broken", "state: 'broken' is not one of all, closed"),
    ("/nodes/?cluster=nowhere", "cluster: 'nowhere' is not a known cluster"),
    ("/map/?cluster=nowhere", "cluster: 'nowhere' is not a known cluster"),
    ("/queue/?cluster=%00'<b>", 'cluster: "\'<b>" is not a known cluster'),
    ("/failures/?cluster=nowhere", "cluster: 'nowhere' is not a known cluster"),
    ("/map/?at=noon", "at: 'noon' is not an ISO 8601 time"),
    ("/failures/?state=nonsense", "state: 'nonsense' is not one of unresolved"),
    ("/failures/?reach=far", "reach: 'far' is not one of platform, programs, everything"),
    ("/failures/?days=8", "days: '8' is not one of 1, 7, 30, 90, 365"),
    ("/failures/?by=moon", "by: 'moon' is not one of cause, node, team, kind"),
    ("/failures/?from=yesterday", "from: 'yesterday' is not a date. Use a date such as 2026-01-31"),
    ("/failures/?to=9999-01-01", "to: '9999-01-01' is out of range"),
    ("/failures/?from=2020-02-02&to=2020-01-01", "from: 2020-02-02 is after the end of the period, 2020-01-01"),
    ("/failures/rules/?state=old", "state: 'old' is not one of running, shadow, adopted, retired"),
    ("/reports/?by=rack", "by: 'rack' is not one of "),
    ("/reports/?days=8", "days: '8' is not one of 1, 7, 30"),
    ("/reports/?month=soon", "month: 'soon' is not a month. Use YYYY-MM, such as "),
]


@pytest.mark.parametrize(("address", "sentence"), WRONG)
def test_page_reports_invalid_parameters_and_applies_the_others(ada, address, sentence):
    make.cluster()

    answer = ada.get(address)

    page = answer.content.decode()
    assert answer.status_code == 400
    assert html.escape(sentence) in page and "The parameter was ignored." in page
    assert "</main>" in page and page.count('<li class="error">') == 1


def test_valid_parameters_still_apply(ada):
    for kind in ("debug", "sft"):
        make.job(name=f"a-{kind}", kind=kind)

    page = ada.get("/jobs/?state=nonsense&kind=sft&user=ada").content.decode()

    assert "a-sft" in page and "a-debug" not in page
    assert 'name="user" value="ada"' in page and "<option selected>sft" in page


def test_fragment_with_an_invalid_parameter_still_renders(ada):
    make.job(name="train")

    part = ada.get("/jobs/?state=nonsense", headers={"HX-Request": "true", "HX-Target": "section#jobs"})

    assert part.status_code == 200
    assert "train" in part.content.decode() and "nonsense' is none" not in part.content.decode()


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("/jobs/export.csv?state=nonsense", "state: 'nonsense' is not one of waiting"),
        ("/reports/gpu-hours.csv?days=8", "days: '8' is not one of 1, 7, 30"),
        ("/reports/export/?month=soon", "month: 'soon' is not a month. Use YYYY-MM, such as "),
    ],
)
def test_export_with_an_invalid_parameter_is_refused_with_one_sentence(ada, address, sentence):
    answer = ada.get(address)

    assert answer.status_code == 400
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert answer.content.decode().startswith(sentence) and "\n" not in answer.content.decode()


def test_invalid_filter_stops_a_bulk_action(ada):
    job = make.job()

    answer = ada.post("/jobs/many/", {"verb": "cancel", "all": "1", "state": "nonsense", "confirm": "1"}, follow=True)

    assert "Nothing was changed: state: " in answer.content.decode()
    assert Job.objects.get(pk=job.pk).state == "PENDING"


def test_invalid_filter_is_not_saved(ada):
    answer = ada.post("/jobs/views/", {"name": "mine", "state": "nonsense", "kind": "sft"}, follow=True)

    assert "Nothing was saved: state: " in answer.content.decode()
    assert answer.redirect_chain[-1][0] == "/jobs/?kind=sft"
