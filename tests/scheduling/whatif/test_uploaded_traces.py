"""Traces that users upload on the page "What if": read, stored, replayed and deleted; and what is rejected."""

import gzip
from datetime import timedelta

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from acmeweb.common.errors import InvalidInput
from jobs.models import Event, TeamRole, clock
from jobs.traces.files import SNIFFED_CHARACTERS, TraceLimits, read_trace
from scheduling.models import Simulation, SimulationState, UploadedTrace
from scheduling.whatif.actions import traces as trace_actions
from scheduling.whatif.loops import delete_old_simulations, run_simulation_once
from tests import make

HEADER = "job_id,user,group_or_vc,type,submit_ts,duration_s,gpu_num,node_num,state\n"
ROWS = HEADER + "".join(f"{n},ada,nlp,debug,{60 * n},{60 * n},{n % 8 + 1},1,COMPLETED\n" for n in range(1, 31))
ASKED = {"trace": "acme:kalos", "team": "pretraining", "policies": ["fifo"], "jobs": "60", "nodes": "4"}


@pytest.fixture
def people(db):
    make.team("pretraining", ada=TeamRole.RESEARCHER, grace=TeamRole.VIEWER, olga=TeamRole.OPERATOR)
    make.team("evaluation", ben=TeamRole.RESEARCHER)
    make.cluster()


def browser(name):
    client = Client()
    client.force_login(make.user(name))
    return client


def bring(content, name="week.csv", by="ada", **more):
    data = content if isinstance(content, bytes) else content.encode()
    return browser(by).post("/what-if/", ASKED | more | {"trace_file": SimpleUploadedFile(name, data)})


@pytest.fixture
def brought(people):
    bring(ROWS)
    return UploadedTrace.objects.get()


def test_uploaded_file_is_stored_and_replayed(brought):
    made = Simulation.objects.get()
    assert (made.trace, made.params) == (brought.trace_name, {"nodes": 4, "name": "week.csv"})
    assert (brought.jobs, brought.span, brought.skipped_rows) == (30, timedelta(minutes=29), 0)

    run_simulation_once(clock.now)

    made.refresh_from_db()
    assert (made.state, made.error, made.result["jobs"]) == (SimulationState.COMPLETED, "", 30)
    assert [event.type for event in Event.objects.filter(type__startswith="trace.")] == ["trace.uploaded"]


def test_stored_trace_equals_the_file(brought, tmp_path):
    (tmp_path / "file.csv").write_text(ROWS)
    (tmp_path / "kept").write_bytes(bytes(brought.packed))

    file, stored = read_trace(tmp_path / "file.csv"), read_trace(tmp_path / "kept")

    assert stored.submit_s.tolist() == file.submit_s.tolist()
    assert stored.runtime_s.tolist() == file.runtime_s.tolist()
    assert (stored.gpus.tolist(), list(stored.users), list(stored.ids)) == (
        file.gpus.tolist(),
        list(file.users),
        file.ids,
    )


def test_uploaded_trace_is_available_to_the_team(brought):
    answer = browser("olga").post("/what-if/", ASKED | {"trace": brought.trace_name, "policies": ["easy"]})

    assert answer.status_code == 302
    assert Simulation.objects.filter(trace=brought.trace_name).count() == 2
    assert "week.csv (30 jobs)" in browser("ada").get("/what-if/").content.decode()


def test_trace_of_another_team_is_inaccessible(brought):
    ben = browser("ben")

    assert "week.csv" not in ben.get("/what-if/").content.decode()
    refused = ben.post("/what-if/", ASKED | {"team": "evaluation", "trace": brought.trace_name})
    assert (refused.status_code, Simulation.objects.count()) == (400, 1)
    assert ben.post(f"/what-if/traces/{brought.pk}/remove/").status_code == 404


def test_unreadable_rows_are_counted_and_quoted_with_their_line(people):
    bring(ROWS + "31,ada,nlp,debug,yesterday,60,1,1,COMPLETED\n")

    row = UploadedTrace.objects.get()
    assert (row.jobs, row.skipped_rows) == (30, 1)
    assert row.skipped_examples[0].startswith("line 32: ")
    assert "line 32: " in browser("ada").get("/what-if/").content.decode()


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", b"a,b\n1,2\n", "matches no known layout"),
        ("a.csv", HEADER.encode(), "contains no job that ran"),
        ("a.zip", b"PK\x03\x04\x00\x00", "matches no known layout"),
        ("a.gz", gzip.compress(ROWS.encode())[:-20], "cannot be read"),
        ("a.json", b'[{"jobid": ', "begins like JSON but is not valid JSON"),
        ("a.parquet", b"PAR1....", "is only supported on the command line"),
        ("a.json", b"[" * 200_000, "begins like JSON but is not valid JSON"),
        ("a.zst", b"\x28\xb5\x2f\xfd" + b"x" * 50, "a.zst cannot be read"),
        ("a.bin", b"\x01\x02\xff,\x1b[31m\n1,2\n", "matches no known layout"),
    ],
)
def test_invalid_trace_is_rejected_and_not_stored(people, name, content, sentence):
    answer = bring(content, name)

    assert answer.status_code == 400
    assert sentence in answer.content.decode()
    assert not UploadedTrace.objects.exists() and not Simulation.objects.exists()


def test_rejected_form_asks_to_choose_the_file_again(people):
    answer = bring(ROWS, "week.csv", nodes="0")

    assert answer.status_code == 400
    assert "Choose week.csv again" in answer.content.decode()
    assert "The file was not saved" not in browser("ada").post("/what-if/", ASKED | {"nodes": "0"}).content.decode()


def test_file_that_unpacks_too_large_is_rejected_while_reading(tmp_path):
    bomb = tmp_path / "bomb.gz"
    bomb.write_bytes(gzip.compress(b"0" * (8 << 20)))

    with pytest.raises(InvalidInput, match="unpacks to more than the 1 MiB allowed"):
        read_trace(bomb, limits=TraceLimits(jobs=10, unpacked_bytes=1 << 20))


def test_lines_that_are_not_jobs_count_towards_the_limit(tmp_path):
    (tmp_path / "long.csv").write_text(HEADER + "0,,,,1,1,1,1,\n" * (SNIFFED_CHARACTERS + 31))

    with pytest.raises(InvalidInput, match="more lines than the 29 jobs allowed"):
        read_trace(tmp_path / "long.csv", limits=TraceLimits(jobs=29, unpacked_bytes=1 << 20))


def test_json_has_a_lower_size_limit(tmp_path):
    (tmp_path / "jobs.json").write_text("[" + " " * 2000 + "]")

    with pytest.raises(InvalidInput, match="Convert it to CSV"):
        read_trace(tmp_path / "jobs.json", limits=TraceLimits(jobs=29, unpacked_bytes=1 << 20, json_characters=1000))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", HEADER + "1,u\0x,vc\0a,deb\0ug,60,60,1,1,COMPLETED\n"),
        (
            "a.json",
            '[{"jobid": "a\\ud800", "user": "u\\u0000", "vc": "v", "status": "Pass", "submitted_time":'
            ' "2017-10-09 07:01:00", "attempts": [{"start_time": "2017-10-09 07:02:00",'
            ' "end_time": "2017-10-09 08:02:00",'
            ' "detail": [{"ip": "m1", "gpus": ["gpu0"]}]}]}]',
        ),
    ],
)
def test_invalid_characters_are_removed_on_upload(people, name, content):
    assert bring(content, name).status_code == 302

    run_simulation_once(clock.now)

    assert Simulation.objects.get().error == ""


def test_trace_with_too_many_jobs_is_rejected(tmp_path):
    (tmp_path / "long.csv").write_text(ROWS)

    with pytest.raises(InvalidInput, match="has 30 jobs, more than the 29 allowed"):
        read_trace(tmp_path / "long.csv", limits=TraceLimits(jobs=29, unpacked_bytes=1 << 20))


def test_rejected_replay_stores_no_file(people):
    answer = bring(ROWS, faults="gremlins=3")

    assert "gremlins" in answer.content.decode()
    assert not UploadedTrace.objects.exists()


def test_trace_is_removed_by_its_owner_when_unused(brought):
    ada, address = browser("ada"), f"/what-if/traces/{brought.pk}/remove/"

    ada.post(address)
    assert UploadedTrace.objects.exists()
    run_simulation_once(clock.now)
    ada.post(address)

    assert not UploadedTrace.objects.exists()
    assert "week.csv" in ada.get(f"/what-if/{Simulation.objects.get().public_id}/").content.decode()


def test_unused_trace_is_deleted(brought):
    long_after = clock.now() + trace_actions.TRACE_RETENTION + timedelta(days=1)
    assert not trace_actions.delete_unused_traces(long_after)  # its replay has not ended

    run_simulation_once(clock.now)
    delete_old_simulations(long_after)

    assert not UploadedTrace.objects.exists()


def test_team_has_a_limited_number_of_traces(brought):
    for number in range(trace_actions.MAX_TRACES_PER_TEAM - 1):
        brought.pk, brought.name = None, f"{number}.csv"
        brought.save(force_insert=True)

    assert "remove one" in bring(ROWS, policies=["sjf"]).content.decode()


def test_quotas_and_the_settings_of_acme_reach_the_replay(brought):
    fields = {"policies": ["acme"], "quota": "nlp,,16\nnlp,evaluation,4\n", "order": "sjf", "reserve": ["pretrain"]}
    browser("ada").post("/what-if/", ASKED | {"trace": brought.trace_name, "best_effort": ["debug"], **fields})

    made = Simulation.objects.first()
    assert made.params["policy_settings"] == {"acme": {"order": "sjf"}}
    assert (made.params["quota"][1], made.params["best_effort"]) == (
        {"team": "nlp", "kind": "evaluation", "gpus": "4"},
        "debug",
    )
    run_simulation_once(clock.now)
    run_simulation_once(clock.now)
    made.refresh_from_db()
    assert (made.state, made.error) == (SimulationState.COMPLETED, "")


@pytest.mark.parametrize(
    ("quota", "sentence"),
    [
        ("nlp 16", "Line 1: expected team,kind,GPUS"),
        ("nlp,,many", "not a number of GPUs"),
        ("nlp,tea,1", "tea is not one of"),
    ],
)
def test_invalid_quota_is_named(brought, quota, sentence):
    answer = browser("ada").post("/what-if/", ASKED | {"quota": quota, "policies": ["acme"]})

    assert answer.status_code == 400
    assert sentence in answer.content.decode()


def test_history_window_may_end_in_the_past(people):
    fields = {"trace": "history", "cluster": "seren", "days": "7", "until": "2026-01-08T00:00"}
    browser("ada").post("/what-if/", ASKED | fields)

    assert Simulation.objects.get().params["until"] == "2026-01-08T00:00:00+00:00"


@pytest.mark.parametrize(("until", "why"), [("2099-01-01T00:00", "is in the future"), ("0001-01-01T00:00", "range")])
def test_invalid_history_window_is_rejected(people, until, why):
    answer = browser("ada").post("/what-if/", ASKED | {"trace": "history", "cluster": "seren", "until": until})

    assert (answer.status_code, why in answer.content.decode()) == (400, True)
