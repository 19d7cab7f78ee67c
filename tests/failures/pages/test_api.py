"""The REST API of diagnoses, incidents and failure statistics."""

from __future__ import annotations

import csv
import io
from datetime import timedelta

import pytest
from django.core.cache import cache

from failures.loops.diagnose import diagnose_once
from failures.models import Diagnosis
from failures.queries import pasted_log
from jobs.core.lifecycle import State
from jobs.models import Attempt, EnergyHour, Event, Job, TokenScope, clock
from jobs.rest import throttle
from tests import make as rows
from tests.failures import make
from tests.jobs.api import api_make
from tests.jobs.api.api_make import Caller

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module", autouse=True)
def created(rows_for_module, tmp_path_factory):
    return make.diagnosed(tmp_path_factory.mktemp("logs"), by="ada").attempt


@pytest.fixture
def died(created):
    return make.of(created)


@pytest.fixture
def ada(died):
    return Caller(rows.user("ada"))


@pytest.fixture
def ben():
    rows.team("alignment", ben="researcher")
    return Caller(rows.user("ben"))


# --- verdicts


def test_job_diagnosis_is_returned(ada, died):
    answer = ada.get(f"jobs/{died.attempt.job}/diagnosis/")

    body = answer.json()
    assert (body["root_cause"], body["job"], body["attempt"]) == ("TypeError", str(died.attempt.job), 1)
    assert body["evidence"][0]["line"] == 4
    assert "TypeError" in body["bundle"]
    assert body["gpu_hours"] == pytest.approx(16, rel=0.01)


def test_job_that_did_not_fail_has_no_diagnosis(ada):
    healthy = rows.job()

    assert ada.get(f"jobs/{healthy}/diagnosis/").status_code == 404


def test_list_is_filtered_and_omits_long_fields(ada, died, tmp_path):
    make.diagnosed(tmp_path, make.STORAGE)

    page = ada.get("diagnoses/", {"category": "Script"}).json()["results"]

    assert [one["root_cause"] for one in page] == ["TypeError"]
    assert "evidence" not in page[0]
    assert ada.get("diagnoses/", {"fields": "evidence", "root_cause": "TypeError"}).json()["results"][0]["evidence"]


def test_list_pages_contain_each_row_once(ada, tmp_path):
    for _ in range(3):
        make.failed(tmp_path)
    diagnose_once(clock.now())

    ids, address = [], "/api/v1/diagnoses/?limit=3&ordering=-failed_at"
    while address:
        page = ada.get(address).json()
        ids += [one["id"] for one in page["results"]]
        address = page["next"]
    assert len(ids) == len(set(ids)) == 4


def test_patch_corrects_the_diagnosis(ada, died):
    answer = ada.patch(f"diagnoses/{died.attempt.key}/", {"root_cause": "KeyError", "note": "seen it before"})

    body = answer.json()
    assert (body["root_cause"], body["engine_root_cause"], body["review"]) == ("KeyError", "TypeError", "corrected")
    assert (body["reviewed_by"], body["review_note"]) == ("ada", "seen it before")
    assert Event.objects.get(type="diagnosis.corrected").request_id


def test_patch_of_the_job_diagnosis_confirms_it(ada, died):
    body = ada.patch(f"jobs/{died.attempt.job}/diagnosis/", {"confirmed": True}).json()

    assert (body["root_cause"], body["review"]) == ("TypeError", "confirmed")


def test_review_of_an_old_version_is_rejected(ada, died):
    address = f"diagnoses/{died.attempt.key}/"
    tag = ada.get(address).headers["ETag"]

    first = ada.patch(address, {"root_cause": "KeyError"}, If_Match=tag)
    second = ada.patch(address, {"root_cause": "OSError"}, If_Match=tag)

    assert (first.status_code, second.status_code) == (200, 412)
    assert ada.patch(address, {"confirmed": True}, If_Match=first.headers["ETag"]).status_code == 200
    assert ada.get(address, If_None_Match=ada.get(address).headers["ETag"]).status_code == 304


def test_undiagnosed_attempt_cannot_be_reviewed(ada, died):
    Diagnosis.objects.update(judged_at=None)

    assert ada.patch(f"diagnoses/{died.attempt.key}/", {"confirmed": True}).status_code == 409


def test_other_teams_can_neither_see_nor_review_a_diagnosis(ben, died):
    for path in (f"diagnoses/{died.attempt.key}/", f"jobs/{died.attempt.job}/diagnosis/"):
        assert ben.get(path).status_code == 404
        assert ben.patch(path, {"confirmed": True}).status_code == 404
    assert ben.get("diagnoses/").json()["results"] == []
    assert ben.get("incidents/").json()["results"] == []
    assert ben.get(f"incidents/{died.incident_id}/").status_code == 404
    assert ben.post(f"incidents/{died.incident_id}/resolve/").status_code == 404
    assert ben.get("failures/statistics/").json()["num"] == 0


@pytest.mark.parametrize(("role", "status"), [("viewer", 403), ("researcher", 403), ("operator", 200)])
def test_diagnosis_of_a_colleague_is_reviewed_by_operators_only(died, role, status):
    rows.team(died.attempt.job.team.name, carl=role)
    carl = Caller(rows.user("carl"))

    assert carl.patch(f"diagnoses/{died.attempt.key}/", {"confirmed": True}).status_code == status


BAD_REVIEWS = [
    ({}, "root_cause"),
    ({"confirmed": False}, "root_cause"),
    ({"confirmed": True, "root_cause": "KeyError"}, "root_cause"),
    ({"root_cause": "Gremlins"}, "root_cause"),
    ({"root_cause": ["KeyError"]}, "root_cause"),
    ({"root_cause": 7}, "root_cause"),
    ({"confirmed": "yes"}, "confirmed"),
    ({"confirmed": 1}, "confirmed"),
    ({"confirmed": True, "note": "x" * 1001}, "note"),
    ({"confirmed": True, "note": {"a": 1}}, "note"),
    ({"confirmed": True, "note": "a\x00b"}, "note"),
    ({"confirmed": True, "note": "\ud800"}, "note"),
    ({"engine_root_cause": "KeyError"}, "engine_root_cause"),
    ({"confidence": 1}, "confidence"),
    ([], "detail"),
    (b"{", "detail"),
    (b"\xff", "detail"),
    (b'{"confirmed": true, "confirmed": true}', "confirmed"),
    (b'{"confirmed": NaN}', "detail"),
    (b"[" * 5000, "detail"),
]


@pytest.mark.parametrize(("body", "field"), BAD_REVIEWS, ids=lambda one: str(one)[:30])
def test_invalid_review_is_rejected_with_its_field(ada, died, body, field):
    answer = ada.patch(f"diagnoses/{died.attempt.key}/", body)

    assert answer.status_code == 400
    assert field in answer.json()
    assert Diagnosis.objects.get().review == ""


BAD_QUERIES = [
    *[("diagnoses/", {name: value}) for name, value in {
        "root_cause": "Gremlins", "category": "x", "failed_at__gte": "yesterday", "failed_at__gte ": "2026-01-01",
        "incident": "one", "incident__in": "1,x", "gpus__lt": "9" * 30, "nope": "1", "team__regex": ".*", "limit": "0",
        "cursor": "zzz", "ordering": "gpus", "fields": "bundle,nope", "job": "\x00", "review": "maybe",
    }.items()],
    *[("incidents/", {name: value}) for name, value in {
        "state": "gone", "scope": "galaxy", "id": "x", "subject__regex": "x",
        "last_symptom_at__lt": "2026-13-01T00:00:00Z",
        "ordering": "-subject", "limit": "1001", "fields": "",
    }.items()],
    *[("failures/statistics/", query) for query in (
        {"by": "color"}, {"from": "2026-01-01"}, {"to": "x"}, {"format": "xml"}, {"since": "2026-01-01T00:00:00Z"},
        {"from": "2026-02-01T00:00:00Z", "to": "2026-01-01T00:00:00Z"}, {"by": ["cause", "node"]},
        {"from": "9999-12-31T23:59:59-23:59"}, {"to": "0001-01-01T00:00:00Z", "from": "0001-01-01T00:00:00Z"},
    )],
]  # fmt: skip


@pytest.mark.parametrize(("path", "query"), BAD_QUERIES, ids=lambda one: str(one)[:50])
def test_invalid_query_is_rejected_with_a_message(ada, path, query):
    answer = ada.get(path, query)

    assert answer.status_code == 400
    assert all(isinstance(why, list | str) for why in answer.json().values())


@pytest.mark.parametrize(
    "path",
    ["diagnoses/x/", "diagnoses/abc.0/", "diagnoses/abc.123456/", "incidents/0/", "incidents/-1/", "incidents/x/",
     f"incidents/{10**18 - 1}/", f"incidents/{'9' * 40}/", "incidents/1/reopen/"],
)  # fmt: skip
def test_missing_rows_give_404(ada, path):
    assert ada.get(path).status_code in (404, 405)


# --- a pasted log


def test_pasted_log_is_diagnosed_and_not_stored(ben, died):
    answer = ben.post("diagnose/", {"log": make.TYPO, "exit_code": 1})

    assert answer.json()["root_cause"] == "TypeError"
    assert Diagnosis.objects.get() == died


def test_exit_code_and_signal_are_used(ben):
    assert ben.post("diagnose/", {"log": "step 1\n", "signal": 9}).json()["root_cause"] == "HostOOMKilled"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "log"),
        ({"log": ""}, "log"),
        ({"log": "  \n"}, "log"),
        ({"log": 1}, "log"),
        ({"log": None}, "log"),
        ({"log": ["a"]}, "log"),
        ({"log": "a\x00"}, "log"),
        ({"log": "x", "exit_code": "1"}, "exit_code"),
        ({"log": "x", "exit_code": 2**40}, "exit_code"),
        ({"log": "x", "signal": 0}, "signal"),
        ({"log": "x", "signal": 65}, "signal"),
        ({"log": "x", "signal": 9.5}, "signal"),
        ({"log": "x", "file": "/etc/passwd"}, "file"),
        (b"not json", "detail"),
        (b"", "log"),
    ],
    ids=lambda one: str(one)[:30],
)
def test_invalid_paste_is_rejected_with_its_field(ben, body, field):
    answer = ben.post("diagnose/", body)

    assert answer.status_code == 400
    assert field in answer.json()


def test_too_long_paste_is_rejected(ben):
    answer = ben.post("diagnose/", {"log": "x" * (pasted_log.MAX_PASTED_BYTES + 1)})

    assert answer.status_code == 400
    assert "more than the 8388608 allowed" in answer.json()["log"][0]


def test_pasted_logs_are_rate_limited(ben, monkeypatch):
    monkeypatch.setattr(throttle.time, "time", lambda: 1_800_000_000.0)
    cache.clear()
    answers = [ben.post("diagnose/", {"log": "x"}).status_code for _ in range(pasted_log.MAX_PASTES_PER_MINUTE + 1)]

    assert answers.count(429) == 1
    assert ben.get("diagnoses/").status_code == 200


# --- incidents


def test_incident_lists_only_visible_attempts(ada, ben, tmp_path):
    own = make.diagnosed(tmp_path, make.STORAGE, by="ada")
    make.diagnosed(tmp_path, make.STORAGE, by="ben")

    body = ada.get(f"incidents/{own.incident_id}/").json()

    assert body["attempts"] == 2
    assert [one["user"] for one in body["involved"]] == ["ada"]
    assert [one["user"] for one in ben.get(f"incidents/{own.incident_id}/").json()["involved"]] == ["ben"]


def test_operator_sees_incidents_but_no_logs_of_other_teams(died):
    olga = Caller(api_make.operator("olga"))

    body = olga.get(f"incidents/{died.incident_id}/").json()
    assert (body["root_cause"], body["attempts"], body["involved"]) == ("TypeError", 1, [])
    assert olga.get(f"diagnoses/{died.attempt.key}/").status_code == 404
    assert olga.post(f"incidents/{died.incident_id}/acknowledge/").status_code == 200


def test_incident_is_acknowledged_and_resolved_with_a_reason(ada, died):
    address = f"incidents/{died.incident_id}/"

    assert ada.post(f"{address}acknowledge/").json()["acknowledged_by"] == "ada"
    body = ada.post(f"{address}resolve/", {"reason": "fixed the sum"}).json()
    assert (body["state"], body["resolved_by"], body["resolved_why"]) == ("resolved", "ada", "fixed the sum")
    assert ada.post(f"{address}resolve/").status_code == 409
    assert ada.post(f"{address}acknowledge/").status_code == 409


def test_repeated_request_is_processed_once(ada, died):
    address = f"incidents/{died.incident_id}/resolve/"

    first = ada.post(address, {}, Idempotency_Key="k1")
    again = ada.post(address, {}, Idempotency_Key="k1")

    assert (first.status_code, again.status_code) == (200, 200)
    assert again.headers["Idempotency-Replayed"] == "true"


def test_read_only_token_changes_nothing(died):
    reader = Caller(rows.user("ada"), TokenScope.READ)

    assert reader.patch(f"diagnoses/{died.attempt.key}/", {"confirmed": True}).status_code == 403
    assert reader.post(f"incidents/{died.incident_id}/resolve/").status_code == 403


# --- figures


def shifted(diagnosis, **fields):
    Diagnosis.objects.filter(pk=diagnosis.pk).update(**fields)


def test_failure_table_has_correct_values(ada, died, tmp_path):
    second = make.diagnosed(tmp_path, nodes=2, on=("seren-001", "seren-002"))
    make.diagnosed(tmp_path, make.STORAGE)
    shifted(died, ran=timedelta(minutes=60), lost=timedelta(minutes=30))
    shifted(second, ran=timedelta(minutes=30), lost=timedelta(minutes=30))

    table = ada.get("failures/statistics/").json()

    row = next(one for one in table["rows"] if one["reason"] == "TypeError")
    assert row == {
        "category": "Script",
        "reason": "TypeError",
        "num": 2,
        "gpu_demand_avg": 12,
        "gpu_demand_median": 12,
        "time_to_failure_min_avg": 45,
        "time_to_failure_min_median": 45,
        "gpu_time_share_pct": 50,
        "time_to_restart_min_avg": None,
        "time_to_restart_min_median": None,
        "restarted": 0,
        "gpu_hours": 16,
        "gpu_hours_lost": 12,
        "kwh_lost": None,
    }
    assert (table["num"], table["rows"][0]["gpu_hours"]) == (3, 16)
    assert sum(one["gpu_time_share_pct"] for one in table["rows"]) == pytest.approx(100, abs=0.1)


def test_failure_table_has_the_energy_of_the_lost_time(ada, died, tmp_path):
    second = make.diagnosed(tmp_path, nodes=2, on=("seren-001", "seren-002"))
    shifted(died, ran=timedelta(minutes=60), lost=timedelta(minutes=30))
    shifted(second, ran=timedelta(minutes=30), lost=timedelta(minutes=30))
    for one, kwh in ((died, 4), (second, 6)):
        cluster = one.attempt.job.cluster
        EnergyHour.objects.create(cluster=cluster, start=clock.now(), attempt=one.attempt, power_j=kwh * 3.6e6)

    table = ada.get("failures/statistics/").json()

    assert (table["rows"][0]["kwh_lost"], table["kwh_lost"]) == (8, 8)
    assert "kwh_lost" in ada.get("failures/statistics/?format=csv").content.decode().splitlines()[0]


def test_time_to_restart_ends_when_the_job_runs_again(ada, tmp_path):
    job = rows.job(gpus_per_node=1)
    first = make.diagnosed(tmp_path, "step 1\n", job=job, state="NODE_FAIL")
    Job.objects.filter(pk=job.pk).update(state=State.PENDING)
    job.refresh_from_db()
    again = make.running(tmp_path, job=job)
    Attempt.objects.filter(pk=again.pk).update(confirmed_at=first.failed_at + timedelta(minutes=7))

    table = ada.get("failures/statistics/").json()

    row = next(one for one in table["rows"] if one["reason"] == "SlurmNodeFail")
    assert (row["restarted"], row["time_to_restart_min_avg"], row["time_to_restart_min_median"]) == (1, 7, 7)


@pytest.mark.parametrize(
    ("by", "reasons"),
    [
        ("cause", {"TypeError", "GPUFallenOffBus"}), ("node", {"seren-002"}),
        ("team", {"team-of-ada"}), ("kind", {"sft", "other"}),
    ],
)  # fmt: skip
def test_failures_are_grouped_by_cause_node_team_and_kind(ada, tmp_path, by, reasons):
    make.diagnosed(tmp_path, make.XID, on=("seren-002",), kind="sft")

    table = ada.get("failures/statistics/", {"by": by}).json()

    assert {row["reason"] for row in table["rows"]} == reasons


def test_failure_table_covers_the_requested_period(ada, died):
    at = died.failed_at
    stamp = lambda moment: moment.isoformat()  # noqa: E731

    inside = {"from": stamp(at), "to": stamp(at + timedelta(seconds=1))}
    after = {"from": stamp(at + timedelta(seconds=1)), "to": stamp(at + timedelta(days=900))}
    assert ada.get("failures/statistics/", inside).json()["num"] == 1
    assert ada.get("failures/statistics/", after).json()["num"] == 0


def test_correction_changes_the_statistics(ada, died):
    ada.patch(f"diagnoses/{died.attempt.key}/", {"root_cause": "None"})

    assert ada.get("failures/statistics/").json()["num"] == 0


def test_failure_table_is_returned_as_csv(ada, died):
    Job.objects.update(kind="sft")
    died.attempt.job.team.__class__.objects.update(name="-1+1")

    answer = ada.get("failures/statistics/", {"format": "csv", "by": "team"})

    assert answer.headers["Content-Type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.content.decode())))
    assert rows[0]["num"] == "1"
    assert rows[0]["reason"] == "'-1+1", "a spreadsheet must not run a name"
