"""User text is shown without secrets and without characters that control a terminal or browser."""

from __future__ import annotations

import pytest
from django.test import Client

from jobs.actions import foreign_jobs
from jobs.actions.journal import SYNC
from jobs.core.backend_job import BackendJob
from jobs.core.display_text import safe_display_text, single_line, strip_control_characters
from jobs.core.lifecycle import State
from jobs.core.masking import MASK
from jobs.models import Event, Job
from jobs.pages.job_list import _safe_csv_cell as csv_cell
from tests import make

ESC, OVERRIDE = "\x1b", "\u202e"
HOSTILE = f"{ESC}]0;title\x07{ESC}[31mred{ESC}[0m {OVERRIDE}gpj\u2066 bell\x07"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("plain\n\ttext", "plain\n\ttext"),
        (HOSTILE, "red �gpj� bell�"),
        ("a\r\nb\rc", "a\nb�c"),
        (f"{ESC}[{ESC}[31mx", "x"),
    ],
)
def test_control_characters_are_removed(text, clean):
    assert strip_control_characters(text) == clean


def test_name_is_reduced_to_one_line():
    assert single_line(f" a\nb\t{ESC}[1mc ") == "a b c"


def test_escape_sequence_in_a_name_does_not_hide_its_secret():
    assert safe_display_text(f"HF_TO{ESC}[0mKEN=abc") == f"HF_TOKEN={MASK}"


FIELDS = {
    "command": f"run --url postgres://acme:hunter2@db/x {HOSTILE}",
    "environment": {"DSN": f"redis://:hunter2@valkey {HOSTILE}", "WANDB_API_KEY": "hunter2"},
    "labels": {"owner": "https://u:hunter2@git.lab", "my-token": "hunter2"},
    "comment": f"see https://u:hunter2@wiki.lab {HOSTILE}",
}


@pytest.fixture
def job(db):
    make.cluster()
    make.team(ada="researcher", ben="researcher")
    return make.job(**FIELDS)


@pytest.mark.parametrize("page", ["/jobs/{}/", "/jobs/new/?from={}", "/api/v1/jobs/{}/", "/api/v1/jobs/"])
def test_team_member_sees_no_secret_of_a_job(job, page):
    client = Client()
    client.force_login(make.user("ben"))

    answered = client.get(page.format(job))

    assert answered.status_code == 200 and job.name in answered.content.decode()
    assert "hunter2" not in answered.content.decode()


def test_job_page_and_admin_contain_no_control_character(job):
    root = make.user("root", is_staff=True, is_superuser=True)
    client = Client()
    client.force_login(root)

    for page in (f"/jobs/{job}/", f"/admin/jobs/job/{job.pk}/change/"):
        text = client.get(page, follow=True).content.decode()
        assert job.public_id in text and "hunter2" not in text
        assert not {ESC, OVERRIDE, "\u2066", "\x07"} & set(text)


def test_api_response_contains_no_escape_character(job):
    client = Client()
    client.force_login(make.user("ben"))

    assert ESC not in client.get(f"/api/v1/jobs/{job}/").content.decode()


def test_owner_resubmits_secrets_unchanged(job):
    client = Client()
    client.force_login(make.user("ada"))

    assert client.get(f"/jobs/new/?from={job}").content.decode().count("hunter2") >= 4


def test_entered_reason_is_stored_without_control_characters(job):
    client = Client()
    client.force_login(make.user("ada"))

    client.post(f"/jobs/{job}/hold/", {"why": f"later {HOSTILE}"})

    assert Event.objects.filter(job=job).order_by("-id").first().why == "later red �gpj� bell�"


def test_foreign_job_is_stored_with_a_clean_name(db):
    stranger = BackendJob(
        backend_id="7", key="", name=f"{ESC}[2Jsweep{OVERRIDE}", user=f"eve{ESC}[1m", state=State.PENDING
    )

    foreign_jobs.import_foreign_jobs(make.cluster(), [stranger], now=make.NOON, author=SYNC)

    row = Job.objects.get(foreign_id="7@0")
    assert (row.name, row.foreign_user) == ("sweep�", "eve")


def test_csv_cell_is_clean_and_not_a_formula():
    assert csv_cell(f"{ESC}[31m=1+1") == "'=1+1"
