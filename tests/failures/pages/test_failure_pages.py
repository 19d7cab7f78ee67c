"""The pages of failures."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.contrib.auth.models import Permission
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from failures.actions import incidents as incident_actions
from failures.loops.diagnose import diagnose_once
from failures.models import Diagnosis, Incident
from failures.queries import pasted_log
from jobs.models import clock
from jobs.rest import throttle
from tests import make as rows
from tests.failures import make
from tests.page_text import page_text

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module", autouse=True)
def created(rows_for_module, tmp_path_factory):
    return make.diagnosed(tmp_path_factory.mktemp("logs"), "loading\n" + make.TYPO, by="ada", name="sft-7b").attempt


@pytest.fixture
def died(created):
    return make.of(created)


@pytest.fixture
def ada(died):
    return rows.browser("ada")


@pytest.fixture
def ben():
    rows.team("alignment", ben="researcher")
    return rows.browser("ben")


def text(answer, status=200):
    assert answer.status_code == status, answer.status_code
    return page_text(answer)


# --- what needs a person


def test_home_page_lists_open_platform_incidents_until_acknowledged(tmp_path, ben):
    incident = make.diagnosed(tmp_path, make.STORAGE, by="ada", on=("seren-001",)).incident
    make.diagnosed(tmp_path, make.TYPO, by="ada", on=("seren-002",))
    ada = rows.browser("ada")

    assert f"Incident {incident.pk}" in text(ada.get("/"))
    assert text(ada.get("/")).count("· unacknowledged") == 1  # the program's own failure is told at its job
    assert "· unacknowledged" not in text(ben.get("/"))

    incident_actions.acknowledge(incident, author=rows.author(), now=clock.now())
    assert "· unacknowledged" not in text(ada.get("/"))


# --- the list and the figures


def test_failures_page_shows_incidents_and_statistics(ada, died):
    page = text(ada.get("/failures/"))

    assert f"/failures/{died.incident_id}/" in page
    assert page.count("TypeError") >= 3  # the incident, the bar, the row
    assert "16.0" in page


def test_other_teams_see_no_incidents_statistics_or_names(ben, died):
    page = text(ben.get("/failures/"))

    assert "TypeError" not in page
    assert str(died.attempt.job) not in page
    assert "No failures in this period" in page


def test_failure_pages_require_login():
    for path in ("/failures/", "/failures/1/", "/failures/paste/", "/jobs/abc/diagnosis/"):
        assert Client().get(path).status_code == 302


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("", True), ("state=resolved", False), ("state=all", True), ("reach=platform", False), ("reach=programs", True),
        ("cluster=seren", True), ("cluster=kalos", False), ("before=1", False), ("state=nonsense", True),
        ("cluster=%00", True), ("cluster=nowhere", True),
    ],
)  # fmt: skip
def test_incidents_are_filtered(ada, died, query, shown):
    rows.cluster("kalos")

    answer = ada.get(f"/failures/?{query}", headers={"HX-Request": "true", "HX-Target": "section#incidents"})

    assert (f"/failures/{died.incident_id}/" in text(answer)) is shown


@pytest.mark.parametrize(
    ("query", "shown"),
    [("", True), ("days=1", True), ("from=2020-01-01&to=2020-02-01", False), ("from=x&to=%00", True),
     ("to=9999-99-99", True), ("from=9000-01-01", True), ("by=team", True), ("by=kind", True), ("by=node", False),
     ("by=evil", True)],
)  # fmt: skip
def test_statistics_of_any_period_and_grouping_are_shown(ada, query, shown):
    answer = ada.get(f"/failures/?{query}", headers={"HX-Request": "true", "HX-Target": "div#figures"})

    page = text(answer)
    assert 'id="figures"' in page and 'id="incidents"' not in page
    assert ('id="figure-' in page) is shown


def test_fragment_runs_only_its_own_queries(ada, tmp_path, django_assert_max_num_queries):
    for _ in range(3):
        make.failed(tmp_path)
    diagnose_once(clock.now())

    with django_assert_max_num_queries(9):
        ada.get("/failures/", headers={"HX-Request": "true", "HX-Target": "section#incidents"})
    with django_assert_max_num_queries(9):
        ada.get("/failures/", headers={"HX-Request": "true", "HX-Target": "div#figures"})


# --- the panel of a job


def test_job_page_shows_the_diagnosis_with_links_into_the_log(ada, died):
    page = text(ada.get(f"/jobs/{died.attempt.job}/"))

    assert "Why attempt 1 failed" in page
    assert f"/jobs/{died.attempt.job}/log/?attempt=1&amp;line=5#L5" in page
    assert "Correct…" in page and "Confirm" in page


def test_banner_of_a_failed_job_names_the_cause_on_every_tab(ada, died):
    page = text(ada.get(f"/jobs/{died.attempt.job}/?tab=events"))

    banner = page.split('id="cause"')[1].split("</p>")[0]
    assert died.root_cause in banner
    assert f"/jobs/{died.attempt.job}/log/?attempt=1&amp;line=5#L5" in banner


def test_page_of_a_successful_job_has_a_hidden_diagnosis_panel(ada):
    job = rows.job()
    page = text(ada.get(f"/jobs/{job}/"))

    assert '<section id="diagnosis" class="panel diagnosis" hidden' in page


def test_pending_diagnosis_is_shown_as_being_read(ada, died):
    Diagnosis.objects.update(judged_at=None)

    assert "is being read" in text(ada.get(f"/jobs/{died.attempt.job}/diagnosis/"))


def test_log_text_is_escaped(tmp_path):
    died = make.diagnosed(tmp_path, "TypeError: <script>alert(1)</script>\n" + make.TYPO, by="ada")
    page = text(rows.browser("ada").get(f"/jobs/{died.attempt.job}/"))

    assert "<script>alert" not in page


def test_log_line_is_shown_with_its_context(ada, died):
    page = text(ada.get(f"/jobs/{died.attempt.job}/log/?attempt=1&line=5"))

    assert re.search(r'<span data-at="\d+" id="L5" data-number="5" class="hit" ?>', page)
    assert re.search(r'data-number="1" ?><a [^>]*>1</a >loading', page)


@pytest.mark.parametrize(("line", "status"), [("0", 200), ("%00", 200), ("x", 400), ("-1", 400), ("9" * 30, 400)])
def test_invalid_line_number_shows_the_end_of_the_log(ada, died, line, status):
    answer = ada.get(f"/jobs/{died.attempt.job}/log/?line={line}")

    page = answer.content.decode()
    assert (answer.status_code, "is not a whole number of up to 15 digits" in page) == (status, status == 400)
    assert "TypeError" in page


# --- judging


def judge(client, died, cause="KeyError", **more):
    return client.post(f"/failures/diagnoses/{died.attempt.key}/", {"root_cause": cause, **more})


def test_correction_is_one_request_and_redirects_back(ada, died):
    assert judge(ada, died)["Location"] == f"/jobs/{died.attempt.job}/"
    assert judge(ada, died, "OSError", incident=died.incident_id)["Location"] == f"/failures/{died.incident_id}/"
    assert make.of(died.attempt).root_cause == "OSError"


@pytest.mark.parametrize("cause", ["", "Gremlins", "\x00"])
def test_unknown_cause_changes_nothing(ada, died, cause):
    judge(ada, died, cause)

    assert make.of(died.attempt).review == ""


def test_other_teams_can_neither_see_nor_review(ben, died):
    assert judge(ben, died).status_code == 404
    assert ben.get(f"/jobs/{died.attempt.job}/diagnosis/").status_code == 404
    assert ben.get(f"/failures/{died.incident_id}/").status_code == 404
    assert ben.post(f"/failures/{died.incident_id}/resolve/").status_code == 404


def test_viewer_can_see_but_not_review(died):
    rows.team(died.attempt.job.team.name, vera="viewer")
    vera = rows.browser("vera")

    assert "Correct…" not in text(vera.get(f"/jobs/{died.attempt.job}/"))
    judge(vera, died)
    vera.post(f"/failures/{died.incident_id}/resolve/")
    assert make.of(died.attempt).review == ""
    assert Incident.objects.get().state == "open"


# --- the incident


def test_incident_timeline_starts_with_the_first_symptom(ada, tmp_path):
    attempt = make.running(tmp_path, on=("seren-002",), by="ada", name="llama")
    make.dies("seren-002")
    make.end(tmp_path, attempt, "step 1\n", state="NODE_FAIL")
    diagnose_once(clock.now())
    number = make.of(attempt).incident_id
    ada.post(f"/failures/{number}/acknowledge/", {"why": "on my way"})

    page = text(ada.get(f"/failures/{number}/"))

    expected = (
        "first symptom</span>",
        "node state changed UP → DOWN",
        "ended NODE_FAIL",
        "incident acknowledged by ada",
    )
    positions = [page.index(words) for words in expected]
    assert positions == sorted(positions)
    assert "on my way" in page
    assert "SlurmNodeFail" in page


def test_incident_shows_only_the_number_of_attempts_of_other_teams(ada, ben, tmp_path):
    own = make.diagnosed(tmp_path, make.STORAGE, by="ada", name="my-run")
    make.diagnosed(tmp_path, make.STORAGE + "secret of ben\n", by="ben", name="bens-run")

    page = text(ada.get(f"/failures/{own.incident_id}/"))

    assert "my-run" in page
    assert "bens-run" not in page and "secret of ben" not in page
    assert "1 more in other teams" in page


def test_incident_is_acknowledged_and_resolved(ada, died):
    ada.post(f"/failures/{died.incident_id}/acknowledge/")
    answer = ada.post(f"/failures/{died.incident_id}/resolve/", {"why": "mended"}, follow=True)

    assert "Resolution" in text(answer)
    again = text(ada.post(f"/failures/{died.incident_id}/resolve/", follow=True))
    assert "Nothing was changed" in again
    assert ada.post(f"/failures/{died.incident_id}/reopen/").status_code == 404


# --- a pasted log


def test_pasted_log_is_diagnosed(ben, died):
    page = text(ben.post("/failures/paste/", {"text": make.TYPO, "exit_code": "1"}))

    assert "Why it failed" in page and "TypeError" in page
    assert Diagnosis.objects.get() == died


def test_uploaded_file_is_diagnosed_unchanged(ben):
    file = SimpleUploadedFile("train.log", b"\xff\x00" + make.STORAGE.encode())

    assert "S3StorageError" in text(ben.post("/failures/paste/", {"file": file}))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({}, "Paste the log or select a file"),
        ({"text": "  \n"}, "Paste the log or select a file"),
        ({"text": "x", "signal": "99"}, "less than or equal to 64"),
        ({"text": "x", "exit_code": "one"}, "whole number"),
    ],
)
def test_invalid_paste_is_reported_at_its_field(ben, data, why):
    assert why in text(ben.post("/failures/paste/", data), 422)


def test_too_large_file_is_rejected(ben):
    file = SimpleUploadedFile("a.log", bytes(pasted_log.MAX_PASTED_BYTES + 1))

    page = text(ben.post("/failures/paste/", {"file": file}), 422)

    assert f"the limit is {pasted_log.MAX_PASTED_BYTES} bytes" in page


def test_pasted_logs_are_rate_limited(ben, monkeypatch):
    monkeypatch.setattr(throttle.time, "time", lambda: 1_900_000_000.0)
    answers = [
        ben.post("/failures/paste/", {"text": "x"}).status_code for _ in range(pasted_log.MAX_PASTES_PER_MINUTE + 1)
    ]

    assert answers.count(422) == 1


def test_first_symptom_is_not_later_than_the_end(died):
    assert died.incident.first_symptom_at <= died.failed_at
    assert died.failed_at - died.incident.first_symptom_at < timedelta(hours=3)


def test_operators_see_platform_problems_first_and_program_errors_by_signature(tmp_path, died):
    storage = make.diagnosed(tmp_path, make.STORAGE, by="ada", on=("seren-001",)).incident
    again = make.diagnosed(tmp_path, make.TYPO, by="ada", on=("seren-002",)).incident
    rows.user("olga").user_permissions.add(Permission.objects.get(codename="operate_cluster"))
    olga = rows.browser("olga")
    lists = {"headers": {"HX-Request": "true", "HX-Target": "section#incidents"}}

    first, programs, undecided = (
        text(olga.get(f"/failures/?{query}", **lists)) for query in ("", "reach=programs", "state=undecided")
    )

    assert f"/failures/{storage.pk}/" in first and f"/failures/{died.incident_id}/" not in first
    assert f"/failures/{again.pk}/" in programs and f"/failures/{storage.pk}/" not in programs
    assert programs.count('data-label="Signature"') == 1  # one row for both incidents
    assert "reach=everything" in undecided


# --- the order of the lists


@pytest.mark.parametrize("sort", ["id", "-attempts", "lost", "-lost", "first", "-last"])
def test_every_incident_is_on_one_page_of_a_sorted_list(sort, tmp_path):
    now, seren = clock.now(), make.cluster(tmp_path)
    for number in range(60):
        at = now - timedelta(minutes=number % 7)
        Incident.objects.create(
            cluster=seren, scope="node", subject=f"n{number}", root_cause="NodeFailure", attempts=number % 3,
            gpu_hours_lost=(number % 5) / 3, first_symptom_at=at, last_symptom_at=at,
        )  # fmt: skip
    rows.user("root", is_superuser=True)
    client, found, link = rows.browser("root"), [], f"reach=everything&sort={sort}"

    while link:
        page = client.get(f"/failures/?{link}").context["incidents"]()
        found += page.rows
        link = page.older

    column = {"lost": "gpu_hours_lost", "first": "first_symptom_at", "last": "last_symptom_at"}.get(
        sort.removeprefix("-"), sort.removeprefix("-")
    )
    wanted = sorted(
        Incident.objects.all(), key=lambda row: (getattr(row, column), row.pk), reverse=sort.startswith("-")
    )
    assert [row.pk for row in found] == [row.pk for row in wanted]


def test_program_errors_are_sorted_by_the_chosen_column_and_other_orders_are_named(tmp_path):
    for job in ("a", "b"):
        make.diagnosed(tmp_path, make.TYPO, by="ada", name=job)
    rows.user("root", is_superuser=True)
    client = rows.browser("root")

    answer = client.get("/failures/?reach=programs&sort=-incidents")

    counts = [group.incidents for group in answer.context["program_errors"]()]
    assert counts == sorted(counts, reverse=True) and counts
    assert client.get("/failures/?reach=programs&sort=first").status_code == 400
