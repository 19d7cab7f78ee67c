"""The REST API with valid requests, and conflicts with the state of the rows."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

import pytest
from django.db import connection, transaction

from jobs.actions import jobs as job_actions
from jobs.actions.bulk.background import run_bulk_actions_once
from jobs.actions.journal import SYNC, Author
from jobs.api.shapes import JOB
from jobs.core.lifecycle import State
from jobs.models import Cluster, Event, HoldKind, IdempotencyKey, Job, Node, TeamRole, TokenScope, clock
from jobs.rest.idempotency import lock_number
from tests.jobs.api import api_make as make
from tests.jobs.api.api_make import Caller

pytestmark = pytest.mark.django_db

TRAIN = {"command": "#!/bin/sh\npython train.py", "gpus_per_node": 8, "nodes": 2, "time_limit": "2-00:00:00"}


@pytest.fixture
def ada():
    make.cluster()
    return Caller(make.person("ada"))


@pytest.fixture
def grace():
    return Caller(make.person("grace", in_team="speech"))


@pytest.fixture
def olga():
    make.cluster()
    return Caller(make.operator("olga"))


# --- submit


def test_submits_a_job_and_finds_it_again(ada):
    answer = ada.post("jobs/", TRAIN)

    assert answer.status_code == 201
    job = ada.get(answer.headers["Location"]).json()
    assert job["id"] == answer.json()["id"]
    assert (job["state"], job["user"], job["team"], job["cluster"]) == ("PENDING", "ada", "vision", "seren")
    assert (job["time_limit"], job["gpus"], job["name"]) == (172800, 16, "python")


def test_a_submission_leaves_an_event_with_who_from_where_and_by_which_request(ada):
    answer = ada.post("jobs/", TRAIN, X_Request_ID="run-17")

    event = Event.objects.get(job__public_id=answer.json()["id"])
    assert (event.by, event.source, event.request_id) == ("ada", "127.0.0.1", "run-17")


def test_a_job_with_an_image_is_refused_on_a_cluster_that_cannot_run_it(ada):
    answer = ada.post("jobs/", {**TRAIN, "image": "nvcr.io/nvidia/pytorch:24.01-py3"})

    assert answer.status_code == 400
    assert answer.json() == {"image": ["seren cannot run container images"]}
    assert not Job.objects.exists()


def test_a_job_with_an_image_is_submitted_to_a_cluster_that_runs_images(ada):
    volumes = {"data": {"claim": "data", "mount_path": "/data"}}
    Cluster.objects.update(runs_images=True, pod_template={"allowed_images": ["nvcr.io/*"], "volumes": volumes})

    answer = ada.post("jobs/", {**TRAIN, "image": "nvcr.io/nvidia/pytorch:24.01-py3", "mounts": ["data"]})

    shown = ada.get(answer.headers["Location"]).json()
    assert (shown["image"], shown["mounts"]) == ("nvcr.io/nvidia/pytorch:24.01-py3", ["data"])
    refused = ada.post("jobs/", {**TRAIN, "image": "other:1"})
    assert refused.json() == {"image": ["other:1 is not allowed on seren; it offers nvcr.io/*"]}


def test_an_array_becomes_one_job_per_task(ada):
    answer = ada.post("jobs/", {"command": "x", "array": "0-2%2"}).json()

    assert answer["jobs"] == [f"{answer['id']}_{index}" for index in range(3)]


def test_a_user_with_two_teams_must_name_the_team(ada):
    make.Membership.objects.create(team=make.team("speech"), user=ada.user, role=TeamRole.RESEARCHER)

    answer = ada.post("jobs/", {"command": "x"})

    assert answer.status_code == 400
    assert answer.json() == {"team": ["is missing; you may submit for speech, vision"]}


def test_invalid_job_fields_are_refused_with_the_spec_s_sentences(ada):
    answer = ada.post("jobs/", {"command": "x", "gpus_per_node": 12})

    assert answer.status_code == 400
    assert "12 is more than the 8 GPUs of a node" in answer.json()["gpus_per_node"][0]


def test_a_dependency_on_a_job_of_another_team_is_refused_as_unknown(ada, grace):
    make.team("speech")
    foreign = make.job(grace.user, in_team="speech")

    answer = ada.post("jobs/", {"command": "x", "dependencies": f"afterok:{foreign.public_id}"})

    assert answer.json() == {"dependencies": [f"the team has no job '{foreign.public_id}'"]}


def test_mode_all_submits_nothing_when_one_job_is_invalid(ada):
    answer = ada.post("jobs/bulk/", {"jobs": [{"command": "x"}, {"command": "x", "nodes": 99}]})

    assert answer.status_code == 400
    assert answer.json() == {"jobs": ["job 1: nodes: 99 is more than the 4 matching nodes of seren"]}
    assert not Job.objects.exists()


def test_mode_each_submits_the_valid_jobs_and_answers_in_order(ada):
    asked = [{"command": "a"}, {"nope": 1}, {"command": "c", "team": "speech"}, {"command": "d", "name": "last"}]

    answer = ada.post("jobs/bulk/", {"jobs": asked, "mode": "each"}).json()

    assert [one["status"] for one in answer["results"]] == [201, 400, 400, 201]
    assert answer["results"][1]["errors"] == {
        "command": ["is missing"],
        "nope": ["is not a field of a job"],
    }
    assert ada.get(f"jobs/{answer['results'][3]['id']}/").json()["name"] == "last"


def test_mode_each_refuses_jobs_that_depend_on_a_refused_job(ada):
    asked = [
        {"command": "a", "key": "a", "nodes": 99},
        {"command": "c", "key": "c", "dependencies": ["afterok:@b"]},
        {"command": "b", "key": "b", "dependencies": ["afterok:@a"]},
        {"command": "d", "dependencies": ["afterok:0000000000a"]},
        {"command": "e"},
    ]

    answer = ada.post("jobs/bulk/", {"jobs": asked, "mode": "each"}).json()

    assert [one["status"] for one in answer["results"]] == [400, 400, 400, 400, 201]


def test_jobs_of_one_request_may_wait_for_each_other(ada):
    asked = [{"command": "a", "key": "a"}, {"command": "b", "dependencies": ["afterok:@a"]}]

    first, second = (one["id"] for one in ada.post("jobs/bulk/", {"jobs": asked}).json()["results"])

    assert ada.get(f"jobs/{second}/").json()["dependencies"] == [f"afterok:{first}"]
    assert ada.get(f"jobs/{second}/explain/").json()["waits_for"][0]["id"] == first


def test_submitting_many_jobs_takes_few_sql_statements(ada, django_assert_max_num_queries):
    asked = {"jobs": [{"command": "x"}] * 500}

    with django_assert_max_num_queries(14):
        answer = ada.post("jobs/bulk/", asked)

    assert answer.json()["accepted"] == 500


def test_the_bulk_limit_counts_each_task_of_an_array(ada):
    answer = ada.post("jobs/bulk/", {"jobs": [{"command": "x", "array": "0-2999"}] * 2})

    assert answer.status_code == 400
    assert "6000 jobs" in answer.json()["jobs"][0]


def test_two_large_arrays_cannot_be_tied_task_by_task(ada):
    asked = [{"command": "x", "array": "0-999", "key": "a"}]
    asked += [{"command": "x", "array": "0-999", "dependencies": "afterok:@a"}]

    answer = ada.post("jobs/bulk/", {"jobs": asked})

    assert answer.status_code == 400
    assert "1000000 pairs" in answer.json()["dependencies"][0]


# --- look


def test_a_list_omits_long_fields_unless_they_are_requested(ada):
    make.job(ada.user)

    listed = ada.get("jobs/").json()["results"][0]
    asked = ada.get("jobs/", {"fields": "id,command"}).json()["results"][0]

    assert "command" not in listed
    assert list(asked) == ["id", "command"]


def test_secrets_of_the_environment_are_masked(ada):
    job = make.job(ada.user, environment={"HF_TOKEN": "hf_abcdef", "EPOCHS": "3"})

    answer = ada.get(f"jobs/{job}/")

    assert b"hf_abcdef" not in answer.content
    assert answer.json()["environment"]["EPOCHS"] == "3"


def test_state_flags_and_title_are_separate_fields(ada):
    job = make.running(make.job(ada.user, gpus_per_node=1))
    job_actions.cancel(job, author=Author(by="ada"))

    shown = ada.get(f"jobs/{job}/").json()

    assert (shown["state"], shown["flags"], shown["title"], shown["code"]) == (
        "RUNNING",
        ["SIGNALING"],
        "SIGNALING",
        "SI",
    )
    assert shown["nodelist"] == "gpu001"


def test_an_exit_is_shown_as_sacct_shows_it(ada):
    job = make.running(make.job(ada.user))
    job_actions.finish(
        job.attempts.get(),
        job_actions.AttemptEnd(state=State.FAILED, at=clock.now(), exit_code=0, signal=9),
        author=SYNC,
    )

    shown = ada.get(f"jobs/{job}/").json()
    attempt = ada.get(f"jobs/{job}/attempts/").json()["results"][0]

    assert (shown["exit_code"], shown["signal"], shown["exit"]) == (0, 9, "0:9")
    assert (attempt["exit"], attempt["state"], attempt["id"]) == ("0:9", "FAILED", f"{job}.1")


def test_events_are_listed_newest_first(ada):
    job = make.running(make.job(ada.user))

    told = [one["type"] for one in ada.get(f"jobs/{job}/events/").json()["results"]]

    assert told == ["job.started", "job.state_changed", "job.submitted"]


def test_explain_says_why_a_job_waits(ada):
    job = make.job(ada.user)
    job_actions.store_wait_reasons([job_actions.WaitReason(job.pk, "Resources", "It needs 8 GPUs; 3 are free.")])

    said = ada.get(f"jobs/{job}/explain/").json()

    assert (said["reason"], said["why"]) == ("Resources", "It needs 8 GPUs; 3 are free.")


@pytest.mark.parametrize("count", [1, 20])
def test_the_number_of_queries_does_not_depend_on_the_length_of_the_list(ada, count, django_assert_num_queries):
    for _ in range(count):
        make.running(make.job(ada.user), gpus=(Job.objects.count() % 8,)) if count == 1 else make.job(ada.user)

    with django_assert_num_queries(4):  # token, its last use, jobs, attempts
        ada.get("jobs/")


@pytest.mark.parametrize("field", list(JOB.fields))
def test_no_field_of_a_list_needs_a_query_per_row(ada, field, django_assert_max_num_queries):
    first = make.job(ada.user)
    for _ in range(3):
        make.job(ada.user, dependencies=f"afterok:{first}")

    with django_assert_max_num_queries(5):
        answer = ada.get("jobs/", {"fields": field, "limit": 2, "ordering": "-priority,submitted_at"})

    assert list(answer.json()["results"][0]) == [field]


def test_a_job_detail_takes_six_queries(ada, django_assert_num_queries):
    first = make.job(ada.user)
    job = make.job(ada.user, dependencies=f"afterok:{first}")

    with django_assert_num_queries(6):  # token, last use, job, dependencies, their jobs, attempt
        ada.get(f"jobs/{job}/")


# --- verbs


def test_a_job_is_held_and_released(ada):
    job = make.job(ada.user)

    held = ada.post(f"jobs/{job}/hold/", {"reason": "wait for the data"}).json()
    free = ada.post(f"jobs/{job}/release/").json()

    assert (held["hold"], held["reason"]) == ("user", "JobHeldUser")
    assert "wait for the data" in held["why"]
    assert free["hold"] == ""


def test_cancel_ends_a_waiting_job_and_requests_a_stop_of_a_running_one(ada):
    waiting, live = make.job(ada.user), make.running(make.job(ada.user))

    assert ada.post(f"jobs/{waiting}/cancel/").json()["state"] == "CANCELLED"
    assert ada.post(f"jobs/{live}/cancel/").json()["title"] == "SIGNALING"


def test_a_verb_that_does_not_fit_the_state_is_a_conflict(ada):
    job = make.job(ada.user)
    ada.post(f"jobs/{job}/cancel/")

    answer = ada.post(f"jobs/{job}/hold/")

    assert answer.status_code == 409
    assert "CANCELLED" in answer.json()["detail"]


def test_a_job_is_requeued_and_its_priority_is_changed(ada):
    waiting, live = make.job(ada.user), make.running(make.job(ada.user))

    assert ada.post(f"jobs/{waiting}/priority/", {"priority": -7}).json()["priority"] == -7
    assert ada.post(f"jobs/{live}/requeue/").status_code == 200
    assert ada.post(f"jobs/{waiting}/requeue/").status_code == 409


def test_only_an_operator_pushes_a_job_ahead_of_all_others(ada, olga):
    job = make.job(ada.user)

    assert ada.post("jobs/", {"command": "x", "priority": 1}).json() == {
        "priority": ["must be 0 or lower; only operators of the team may set a higher value"]
    }
    assert ada.post(f"jobs/{job}/priority/", {"priority": 1}).status_code == 403
    assert olga.post(f"jobs/{job}/priority/", {"priority": 1}).json()["priority"] == 1


def test_an_operators_hold_is_lifted_by_an_operator(ada, olga):
    job = make.job(ada.user)

    assert olga.post(f"jobs/{job}/hold/").json()["hold"] == HoldKind.ADMIN
    assert ada.post(f"jobs/{job}/release/").status_code == 409
    assert olga.post(f"jobs/{job}/release/").json()["hold"] == ""


def test_an_action_on_many_ids_returns_a_result_per_job(ada, grace):
    mine, gone = make.job(ada.user), make.job(ada.user)
    foreign = make.job(grace.user, in_team="speech")
    ada.post(f"jobs/{gone}/cancel/")

    answer = ada.post("jobs/actions/", {"action": "cancel", "ids": [f"{mine}", f"{gone}", f"{foreign}"]}).json()

    assert (answer["matched"], answer["succeeded"], answer["refused"]) == (2, 1, 2)
    by_id = {one["id"]: one for one in answer["results"]}
    assert by_id[str(foreign)] == {"id": str(foreign), "succeeded": False, "error": f"Job {foreign} not found."}
    foreign.refresh_from_db()
    assert foreign.state == State.PENDING


def test_a_dry_run_says_how_many_and_changes_nothing(ada):
    for _ in range(3):
        make.job(ada.user)
    events = Event.objects.count()

    answer = ada.post("jobs/actions/", {"action": "hold", "filter": {"state": "PENDING"}, "dry_run": True}).json()

    assert (answer["matched"], answer["succeeded"], answer["remaining"]) == (3, 3, 0)
    assert not Job.objects.exclude(hold="").exists()
    assert Event.objects.count() == events


def test_the_id_of_an_array_stands_for_all_its_tasks(ada):
    array = ada.post("jobs/", {"command": "x", "array": "0-4"}).json()

    answer = ada.post("jobs/actions/", {"action": "cancel", "ids": [array["id"]]}).json()

    assert answer["succeeded"] == 5


@pytest.mark.parametrize("path", ["cancel/", "attempts/", ""])
def test_the_id_of_an_array_is_explained_where_one_job_is_expected(ada, path):
    array = ada.post("jobs/", {"command": "x", "array": "0-4"}).json()["id"]

    answer = ada.post(f"jobs/{array}/{path}", {}) if path == "cancel/" else ada.get(f"jobs/{array}/{path}")

    assert answer.status_code == 400
    assert answer.json()["id"] == [
        f"is an array of 5 tasks; give {array} in ids to POST /api/v1/jobs/actions/, or the id of one task here"
    ]


def test_the_array_of_another_team_is_not_found(ada, grace):
    array = ada.post("jobs/", {"command": "x", "array": "0-4"}).json()["id"]

    assert grace.post(f"jobs/{array}/cancel/", {}).status_code == 404


def test_action_on_an_array_leaves_out_its_ended_tasks(ada):
    array = ada.post("jobs/", {"command": "x", "array": "0-4"}).json()
    ada.post("jobs/actions/", {"action": "cancel", "ids": array["jobs"][:3]})

    answer = ada.post("jobs/actions/", {"action": "cancel", "ids": [array["id"]]}).json()
    again = ada.post("jobs/actions/", {"action": "cancel", "ids": [array["id"]]}).json()

    assert (answer["matched"], answer["succeeded"], answer["refused"]) == (2, 2, 0)
    assert (again["matched"], again["succeeded"], again["refused"]) == (0, 0, 1)
    assert again["results"][0]["error"] == f"Cancel applies to no task of {array['id']}."


@pytest.fixture
def large_array(ada):
    return make.job(ada.user, array="0-1199")


def test_action_on_more_than_1000_jobs_runs_in_the_background(ada, grace, large_array):
    asked = {"action": "cancel", "ids": [large_array.array_id]}

    started = ada.post("jobs/actions/", asked, Idempotency_Key="k")
    repeated = ada.post("jobs/actions/", asked, Idempotency_Key="k")
    run_bulk_actions_once(clock.now)
    ended = ada.get(f"jobs/actions/{started.json()['id']}/").json()

    assert started.status_code == repeated.status_code == 202 and repeated.json() == started.json()
    assert started.headers["Location"] == started.json()["url"] == ended["url"]
    assert [started.json()[name] for name in ("state", "matched", "succeeded", "remaining")] == [
        *("running", 1200, 0, 1200)
    ]
    assert [ended[name] for name in ("state", "matched", "succeeded", "remaining", "results")] == [
        *("completed", 1200, 1200, 0, [])
    ]
    assert grace.get(f"jobs/actions/{ended['id']}/").status_code == 404


def test_dry_run_on_more_than_1000_jobs_tries_the_first_ones(ada, large_array):
    answer = ada.post("jobs/actions/", {"action": "cancel", "filter": {"user": "ada"}, "dry_run": True}).json()

    assert (answer["matched"], answer["succeeded"], answer["remaining"]) == (1200, 1000, 200)


def test_action_on_a_filter_leaves_out_jobs_that_it_cannot_change(ada):
    jobs = [make.job(ada.user) for _ in range(3)]
    ada.post(f"jobs/{jobs[0]}/cancel/")

    answer = ada.post("jobs/actions/", {"action": "cancel", "filter": {"user": "ada"}}).json()

    assert (answer["matched"], answer["succeeded"], answer["refused"]) == (2, 2, 0)


# --- nodes


def test_a_dry_run_of_a_drain_shows_its_consequences(olga, ada):
    job = make.running(make.job(ada.user, gpus_per_node=2), gpus=(3, 4))

    answer = olga.post("nodes/seren/gpu001/drain/", {"reason": "ECC errors", "dry_run": True}).json()

    assert (answer["drained"], answer["running"], answer["gpus"]) == (False, 1, 2)
    assert answer["effect"] == "No new jobs; 1 running job finishes."
    assert answer["jobs"][0]["id"] == str(job)
    assert not Node.objects.filter(drain_requested=True).exists()


def test_a_dry_run_of_drain_now_shows_the_lost_gpu_hours(olga, ada):
    job = make.running(make.job(ada.user, gpus_per_node=8), gpus=tuple(range(8)))
    job.attempts.update(confirmed_at=clock.now() - timedelta(minutes=15))

    said = olga.post("nodes/seren/gpu001/drain/", {"reason": "fan", "mode": "now", "dry_run": True}).json()

    assert (said["drained"], said["mode"], said["gpu_hours_at_risk"]) == (False, "now", 2.0)
    assert "1 job is requeued now: up to 2.0 GPU-hours" in said["effect"]
    assert (said["jobs"][0]["gpus_in_all"], said["jobs"][0]["saved_at"]) == (8, None)

    assert olga.post("nodes/seren/gpu001/drain/", {"reason": "fan", "mode": "now"}).json()["drained"]
    assert Node.objects.get(name="gpu001").drain_mode == "now"


def test_a_node_is_drained_and_resumed(olga):
    drained = olga.post("nodes/seren/gpu002/drain/", {"reason": "ECC errors"})
    node = olga.get("nodes/seren/gpu002/").json()
    back = olga.post("nodes/seren/gpu002/resume/").json()

    assert drained.json()["drained"]
    assert (node["title"], node["reason"], node["reason_by"], node["is_schedulable"]) == (
        "DRAINED",
        "ECC errors",
        "olga",
        False,
    )
    assert back["is_schedulable"]
    assert olga.post("nodes/seren/gpu002/resume/").status_code == 409


def test_nodes_are_ordered_by_cluster_and_name_and_show_held_gpus(olga, ada, django_assert_num_queries):
    make.running(make.job(ada.user, gpus_per_node=2), gpus=(3, 4))

    with django_assert_num_queries(4):  # token, last use, nodes, allocations
        nodes = olga.get("nodes/").json()["results"]

    assert [node["name"] for node in nodes] == ["gpu001", "gpu002", "gpu003", "gpu004"]
    assert nodes[0]["gpus_allocated"] == 2


def test_clusters_teams_and_the_caller_can_be_read(ada):
    assert ada.get("clusters/").json()["results"][0]["name"] == "seren"
    assert ada.get("clusters/seren/").json()["mode"] == "drive"
    assert ada.get("teams/").json()["results"][0]["members"] == [{"user": "ada", "role": "researcher"}]
    me = ada.get("me/").json()
    assert (me["user"], me["scope"], me["teams"]) == ("ada", "admin", [{"team": "vision", "role": "researcher"}])


# --- versions


def test_a_change_with_an_old_etag_is_refused(ada):
    job = make.job(ada.user)
    seen = ada.get(f"jobs/{job}/").headers["ETag"]
    changed = ada.post(f"jobs/{job}/priority/", {"priority": -5}, If_Match=seen)

    stale = ada.post(f"jobs/{job}/cancel/", If_Match=seen)
    fresh = ada.post(f"jobs/{job}/cancel/", If_Match=changed.headers["ETag"])

    assert (changed.status_code, stale.status_code, fresh.status_code) == (200, 412, 200)


def test_an_unchanged_version_is_not_sent_again(ada):
    job = make.job(ada.user)
    seen = ada.get(f"jobs/{job}/").headers["ETag"]

    answer = ada.get(f"jobs/{job}/", If_None_Match=seen)

    assert (answer.status_code, answer.content) == (304, b"")


# --- once


def test_a_repeated_idempotency_key_does_the_work_once(ada):
    first = ada.post("jobs/", TRAIN, Idempotency_Key="k1")
    again = ada.post("jobs/", TRAIN, Idempotency_Key="k1")

    assert (first.status_code, again.status_code) == (201, 201)
    assert first.content == again.content
    assert first.headers["Location"] == again.headers["Location"]
    assert "Idempotency-Replayed" not in first.headers
    assert again.headers["Idempotency-Replayed"] == "true"
    assert Job.objects.count() == 1


def test_an_idempotency_key_reused_for_another_request_is_a_conflict(ada):
    ada.post("jobs/", TRAIN, Idempotency_Key="k1")

    other_body = ada.post("jobs/", {"command": "y"}, Idempotency_Key="k1")
    other_place = ada.post("jobs/bulk/", TRAIN, Idempotency_Key="k1")

    assert (other_body.status_code, other_place.status_code) == (409, 409)
    assert Job.objects.count() == 1


def test_idempotency_keys_of_two_users_are_independent(ada, grace):
    ada.post("jobs/", {"command": "x"}, Idempotency_Key="k1")

    answer = grace.post("jobs/", {"command": "x"}, Idempotency_Key="k1")

    assert answer.status_code == 201
    assert "Idempotency-Replayed" not in answer.headers


def test_a_refusal_is_not_stored_under_the_idempotency_key(ada):
    assert ada.post("jobs/", {"command": ""}, Idempotency_Key="k1").status_code == 400
    assert ada.post("jobs/", {"command": "x"}, Idempotency_Key="k1").status_code == 201


def test_a_concurrent_request_with_the_same_key_gets_a_conflict_with_retry_after(ada):
    at_work = connection.copy()
    try:
        with at_work.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s)", [lock_number(ada.user.pk, "k1")])

        answer = ada.post("jobs/", TRAIN, Idempotency_Key="k1")
    finally:
        at_work.close()

    assert (answer.status_code, answer.headers["Retry-After"]) == (409, "1")
    assert not Job.objects.exists()


def test_the_stored_response_and_the_work_are_committed_together(ada):
    """If the process dies before the commit, nothing is stored and the next try does the work."""
    with suppress(RuntimeError), transaction.atomic():
        ada.post("jobs/", TRAIN, Idempotency_Key="k1")
        raise RuntimeError("the process dies")

    assert (Job.objects.count(), IdempotencyKey.objects.count()) == (0, 0)
    assert "Idempotency-Replayed" not in ada.post("jobs/", TRAIN, Idempotency_Key="k1").headers


def test_an_idempotency_key_expires_after_a_day(ada):
    ada.post("jobs/", TRAIN, Idempotency_Key="k1")
    IdempotencyKey.objects.update(created_at=clock.now() - timedelta(hours=25))

    ada.post("jobs/", TRAIN, Idempotency_Key="k1")

    assert Job.objects.count() == 2


# --- limits and credentials


def test_requests_beyond_the_rate_limit_get_retry_after(ada, settings):
    settings.ACME_API_PER_MINUTE = 2

    answers = [ada.get("me/") for _ in range(6)]  # six in two minutes at most, so two of them were too many

    refused = next(answer for answer in answers if answer.status_code == 429)
    assert 0 < int(refused.headers["Retry-After"]) <= 60


def test_a_browser_needs_its_csrf_token(ada, client):
    from django.test import Client

    browser = Client(enforce_csrf_checks=True)
    browser.force_login(ada.user)

    assert browser.get("/api/v1/jobs/").status_code == 200
    assert browser.post("/api/v1/jobs/", b"{}", content_type="application/json").status_code == 403


def test_an_expired_token_and_a_token_from_another_network_are_refused():
    user = make.person()

    expired = Caller(user, expires_at=clock.now() - timedelta(seconds=1)).get("me/")
    elsewhere = Caller(user, networks=["10.0.0.0/8"]).get("me/")

    assert (expired.status_code, elsewhere.status_code) == (401, 401)
    assert "WWW-Authenticate" in expired.headers


def test_a_team_token_reaches_only_its_team(ada, grace):
    make.Membership.objects.create(team=make.team("speech"), user=ada.user, role=TeamRole.ADMIN)
    theirs, ours = make.job(grace.user, in_team="speech"), make.job(ada.user)

    bound = Caller(ada.user, team=make.team("vision"))

    assert bound.get(f"jobs/{ours}/").status_code == 200
    assert bound.get(f"jobs/{theirs}/").status_code == 404


def test_a_superusers_team_token_reaches_only_its_team(grace):
    make.cluster()
    root = make.person("root", in_team="", is_superuser=True)
    job = make.job(grace.user, in_team="speech")

    assert Caller(root).get(f"jobs/{job}/").status_code == 200
    assert Caller(root, team=make.team("vision")).get(f"jobs/{job}/").status_code == 404
    bound = Caller(root, TokenScope.ADMIN, team=make.team("vision"))
    assert bound.post("nodes/seren/gpu001/drain/", {"reason": "x"}).status_code == 403


def test_every_response_has_a_request_id(ada):
    for path in ("me/", "jobs/", "nowhere/", "jobs/0000000000a/"):
        assert ada.get(path, X_Request_ID="abc-1").headers["X-Request-ID"] == "abc-1"


# --- tests of nodes


def test_a_drained_node_can_be_tested_and_any_user_can_read_the_result(olga, ada):
    assert olga.get("nodes/seren/gpu003/test/").status_code == 404
    assert olga.post("nodes/seren/gpu003/test/").status_code == 409
    olga.post("nodes/seren/gpu003/drain/", {"reason": "fan"})

    asked = olga.post("nodes/seren/gpu003/test/", {"reason": "fan replaced"})

    assert (asked.status_code, asked.json()["finished"], asked.json()["passed"]) == (200, False, None)
    assert ada.post("nodes/seren/gpu003/test/").status_code == 403
    assert ada.get("nodes/seren/gpu003/test/").json()["id"] == asked.json()["id"]


def test_a_job_without_a_cluster_goes_to_the_only_one_that_acme_drives(ada):
    make.cluster()
    Cluster.objects.create(name="kalos", address="http://127.0.0.1:1", mode="observe")

    assert ada.post("jobs/", {"command": "x"}).status_code == 201
    assert Job.objects.get().cluster.name == "seren"

    Cluster.objects.filter(name="kalos").update(mode="drive")
    assert "is missing; choose one of kalos, seren" in ada.post("jobs/", {"command": "x"}).content.decode()
