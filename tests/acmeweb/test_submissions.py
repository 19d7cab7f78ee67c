"""Batched submissions: concurrent ones are one transaction, each with the same effect as alone."""

import asyncio
import json
from datetime import timedelta

import pytest
from django.db import OperationalError

from acmeweb.batching.asgi_batching import MAX_BODY_BYTES, BatchableRequest
from acmeweb.batching.submissions import PendingSubmission, SubmissionBatching, submit_pending
from jobs.models import Event, IdempotencyKey, Job, Membership, TeamRole, Token, TokenScope, clock
from jobs.rest.idempotency import digest_request
from tests.acmeweb.test_heartbeats import Django
from tests.jobs.api import api_make as make

TRAIN = {"command": "#!/bin/sh\npython train.py", "gpus_per_node": 8, "nodes": 2, "time_limit": "2-00:00:00"}
TOKEN = "acme_" + "x" * 43


async def post(door, body=TRAIN, **changed):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"host": "localhost", "content-type": "application/json", "authorization": f"Bearer {TOKEN}"}
    headers |= {name.replace("_", "-"): value for name, value in changed.pop("headers", {}).items()}
    scope = {
        "type": "http",
        "scheme": "http",
        "method": "POST",
        "path": SubmissionBatching.address,
        "query_string": b"",
        "client": ("10.0.0.7", 4711),
        "headers": [(name.encode(), value.encode("latin1")) for name, value in headers.items()],
        **changed,
    }
    said, messages = [], [{"type": "http.request", "body": raw, "more_body": False}]

    async def receive():
        return messages.pop(0)

    async def send(message):
        said.append(message)

    await door(scope, receive, send)
    return said[0]["status"], dict(said[0]["headers"]), said[1]["body"]


class Writer:
    """Accepts everything, and records the batches."""

    def __init__(self):
        self.together = []

    def __call__(self, asked):
        self.together.append(dict(asked))
        return {name: ({"id": "j1", "jobs": ["j1"]}, f"{one.request.home}/j1/") for name, one in asked.items()}


async def test_a_plain_submission_is_answered_without_django():
    django, writer = Django(), Writer()

    status, headers, body = await post(SubmissionBatching(django, writer), headers={"x_request_id": "mine"})

    assert status == 201 and json.loads(body)["id"] == "j1"
    assert headers[b"X-Request-ID"] == b"mine" and headers[b"Location"] == b"http://localhost/j1/"
    assert not django.bodies


async def test_concurrent_submissions_are_written_together_but_the_same_key_in_sequence():
    writer = Writer()
    door = SubmissionBatching(Django(), writer)

    same = [post(door, headers={"idempotency_key": "k"}) for _ in range(3)]
    await asyncio.gather(*(post(door) for _ in range(20)), *same)

    assert sum(map(len, writer.together)) == 23
    assert len(writer.together) < 12
    assert all(sum(one.key == "k" for one in asked.values()) <= 1 for asked in writer.together)


async def test_submission_during_the_return_of_the_connection_is_not_lost():
    door = SubmissionBatching(Django(), Writer())

    for _ in range(50):
        assert (await post(door))[0] == 201


STRANGE = {
    "no JSON": {"body": b"{"},
    "a list": {"body": b"[]"},
    "a field twice": {"body": b'{"command": "a", "command": "b"}'},
    "half a character": {"body": b'{"command": "\\ud800"}'},
    "a huge body": {"body": b" " * (MAX_BODY_BYTES + 1)},
    "another kind": {"headers": {"content_type": "text/plain"}},
    "a token of a run": {"headers": {"authorization": "Bearer acme_run_k.1.0000"}},
    "no token": {"headers": {"authorization": ""}},
    "an endless token": {"headers": {"authorization": "Bearer acme_" + "x" * 200}},
    "an empty key": {"headers": {"idempotency_key": ""}},
    "a key that is no ASCII": {"headers": {"idempotency_key": "\xe4"}},
    "a query": {"query_string": b"x=1"},
    "a foreign host": {"headers": {"host": "evil.example"}},
    "no host": {"headers": {"host": ""}},
    "another method": {"method": "GET"},
    "another address": {"path": "/api/v1/jobs/bulk/"},
}


@pytest.mark.parametrize("name", STRANGE)
async def test_unusual_request_goes_to_django_unchanged(name):
    django = Django()
    asked = dict(STRANGE[name])
    body = asked.pop("body", TRAIN)

    status, _, _ = await post(SubmissionBatching(django, _never), body, **asked)

    assert status == 418
    assert django.bodies == [body if isinstance(body, bytes) else json.dumps(body).encode()]


async def test_duplicate_header_is_left_to_django():
    once = {"headers": {"Authorization": f"Bearer {TOKEN}"}}

    assert (await post(SubmissionBatching(Django(), _never), **once))[0] == 418


def _never(asked):
    raise AssertionError("this is not for here")


async def test_unavailable_database_is_left_to_django():
    def away(asked):
        raise OperationalError("gone")

    assert (await post(SubmissionBatching(Django(), away)))[0] == 418


# --- against the database


@pytest.fixture
def ada():
    make.cluster()
    return make.person("ada")


def submission(token, job=TRAIN, key=None, id="req-1", source="10.0.0.7"):
    raw = json.dumps(job).encode()
    asked = BatchableRequest(token=token, raw=raw, id=id, source=source, home="https://acme.example", headers={})
    return PendingSubmission(request=asked, job=job, digest=Token.secret_digest(token), key=key)


@pytest.mark.django_db
def test_batched_job_equals_a_single_submission(ada):
    token, other = make.token(ada), make.token(make.person("bob"))
    alone = make.Caller(ada).post("jobs/", TRAIN, X_Request_ID="req-1").json()

    told = submit_pending({1: submission(token), 2: submission(other), 3: submission(token, {"command": "b"})})

    shown, where = told[1]
    assert where == f"https://acme.example/api/v1/jobs/{shown['id']}/"
    assert shown | {"id": "", "jobs": []} == alone | {"id": "", "jobs": []}
    assert _kept(Job, public_id=shown["id"]) == _kept(Job, public_id=alone["id"])
    event, same = _kept(Event, job__public_id=shown["id"]), _kept(Event, job__public_id=alone["id"])
    assert event | {"source": None} == same | {"source": None}
    assert event["source"] == "10.0.0.7"


def _kept(model, **which):
    but = ("id", "public_id", "submitted_at", "job_id", "at")
    return {name: value for name, value in model.objects.filter(**which).values().get().items() if name not in but}


@pytest.mark.django_db
def test_each_job_has_the_event_of_its_own_request(ada):
    bob = make.person("bob")
    asked = {
        1: submission(make.token(ada), id="r1"),
        2: submission(make.token(bob), id="r2", source=None),
    }

    told = submit_pending(asked)

    found = {name: Event.objects.get(job__public_id=shown["id"]) for name, (shown, _) in told.items()}
    assert {name: (one.by, one.request_id, one.source) for name, one in found.items()} == {
        1: ("ada", "r1", "10.0.0.7"),
        2: ("bob", "r2", None),
    }


def _viewer():
    return make.token(make.person("vera", role=TeamRole.VIEWER))


def _gone():
    secret = make.token(make.person("tom"))
    Token.objects.filter(digest=Token.secret_digest(secret)).update(revoked_at=clock.now())
    return secret


def _late():
    return make.token(make.person("late"), expires_at=clock.now() - timedelta(seconds=1))


def _inactive():
    return make.token(make.person("inga", is_active=False))


def _mine():
    return make.token(make.person("ada"))


UNSERVED = {
    "nobody's token": lambda: submission("acme_nobody"),
    "revoked": lambda: submission(_gone()),
    "expired": lambda: submission(_late()),
    "somebody who left": lambda: submission(_inactive()),
    "another network": lambda: submission(make.token(make.person("nina"), networks=["192.0.2.0/24"])),
    "no known address": lambda: submission(make.token(make.person("nina"), networks=["10.0.0.0/8"]), source=None),
    "a token to read": lambda: submission(make.token(make.person("rita"), TokenScope.READ)),
    "a viewer": lambda: submission(_viewer(), {**TRAIN, "team": "vision"}),
    "another team": lambda: submission(_mine(), {**TRAIN, "team": "speech"}),
    "a token of another team": lambda: submission(
        make.token(make.person("ada"), team=make.team("speech")), {**TRAIN, "team": "vision"}
    ),
    "no such cluster": lambda: submission(_mine(), {**TRAIN, "cluster": "nowhere"}),
    "no command": lambda: submission(_mine(), {}),
    "an unknown field": lambda: submission(_mine(), {**TRAIN, "gpu": 1}),
    "too large for the cluster": lambda: submission(_mine(), {**TRAIN, "nodes": 5}),
    "a priority of operators": lambda: submission(_mine(), {**TRAIN, "priority": 1}),
    "an array": lambda: submission(_mine(), {**TRAIN, "array": "0-3"}),
    "one that waits for another": lambda: submission(_mine(), {**TRAIN, "dependencies": "afterok:x"}),
}


@pytest.mark.django_db
@pytest.mark.parametrize("name", UNSERVED)
def test_questionable_request_is_left_to_django_and_delays_no_other(ada, name):
    make.team("speech")
    good, bad = submission(make.token(ada)), UNSERVED[name]()

    told = submit_pending({"good": good, "bad": bad})

    assert set(told) == {"good"}
    assert Job.objects.count() == Event.objects.filter(type="job.submitted").count() == 1


@pytest.mark.django_db
def test_observed_cluster_gets_no_submission(ada):
    type(make.cluster()).objects.update(mode="observe")

    assert submit_pending({1: submission(make.token(ada))}) == {}


@pytest.mark.django_db
def test_removed_role_applies_from_the_next_submission(ada):
    token = make.token(ada)
    submit_pending({1: submission(token)})
    Membership.objects.filter(user=ada).update(role=TeamRole.VIEWER)

    assert submit_pending({1: submission(token)}) == {}


@pytest.mark.django_db
def test_last_use_of_a_token_is_recorded(ada):
    secret = make.token(ada)

    submit_pending({1: submission(secret)})

    assert Token.objects.get(digest=Token.secret_digest(secret)).last_used_at is not None


@pytest.mark.django_db
def test_idempotency_key_stores_the_response_that_django_repeats(ada):
    secret = make.token(ada)
    shown, where = submit_pending({1: submission(secret, key="k1")})[1]

    caller = make.Caller(ada)
    again = caller.post("jobs/", json.dumps(TRAIN).encode(), Idempotency_Key="k1")
    other = caller.post("jobs/", {**TRAIN, "nodes": 1}, Idempotency_Key="k1")

    assert (again.status_code, again.json(), again.headers["Location"]) == (201, shown, where)
    assert again.headers["Idempotency-Replayed"] == "true"
    assert other.status_code == 409
    assert Job.objects.count() == 1


@pytest.mark.django_db
def test_used_key_is_left_to_django_and_keys_are_separate_per_user(ada):
    bob = make.person("bob")
    IdempotencyKey.objects.create(user=ada, key="k1", digest=digest_request("POST", "/", b""), status=201, body="{}")

    told = submit_pending({1: submission(make.token(ada), key="k1"), 2: submission(make.token(bob), key="k1")})

    assert set(told) == {2}
    assert Job.objects.get().user == bob


@pytest.mark.django_db
def test_rate_limited_caller_is_left_to_django(ada, settings):
    settings.ACME_API_PER_MINUTE = 2

    told = submit_pending({n: submission(make.token(ada)) for n in range(3)})

    assert told == {} and not Job.objects.exists()


@pytest.mark.django_db
def test_number_of_queries_does_not_grow_with_submissions(ada, django_assert_num_queries):
    tokens = [make.token(make.person(f"p{n}")) for n in range(10)]
    submit_pending({"warm": submission(tokens[0])})
    Token.objects.update(last_used_at=clock.now())

    with django_assert_num_queries(8):  # tokens, places, waiting jobs, savepoint and its end, numbers, jobs, events
        told = submit_pending({n: submission(token) for n, token in enumerate(tokens)})

    assert len(told) == 10
