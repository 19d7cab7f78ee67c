"""Batched heartbeats: plain ones are written together, all other requests go to Django unchanged."""

import asyncio
import json

import pytest
from django.db import OperationalError

from acmeweb.batching.asgi_batching import MAX_BODY_BYTES
from acmeweb.batching.heartbeats import HeartbeatBatching
from jobs.actions import progress
from jobs.actions.progress import HeartbeatResult, run_token
from jobs.models import Attempt, LatestProgress, Progress, clock
from tests import make

KEY = "01k3v9q2m7t.1"
BEAT = {"heartbeats": [{"step": 7, "loss": 2.5}]}


class Django:
    """Stands for Django: gets what the middleware leaves, and returns the body that arrived."""

    def __init__(self):
        self.bodies = []

    async def __call__(self, scope, receive, send):
        self.bodies.append((await receive()).get("body"))
        await send({"type": "http.response.start", "status": 418, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def noted(number=1):
    return HeartbeatResult(attempt_id=number, job_id=number, stop_state="", rows=1)


class Writer:
    def __init__(self, living=lambda key: True):
        self.together, self.living = [], living

    def __call__(self, reports):
        self.together.append(dict(reports))
        return {key: noted() for key in reports if self.living(key)}


async def post(door, body=BEAT, key=KEY, **changed):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"host": "localhost", "content-type": "application/json", "authorization": f"Bearer {run_token(key)}"}
    headers |= {name.replace("_", "-"): value for name, value in changed.pop("headers", {}).items()}
    scope = {
        "type": "http",
        "scheme": "http",
        "method": "POST",
        "path": HeartbeatBatching.address,
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        **changed,
    }
    said = []
    messages = [{"type": "http.request", "body": raw, "more_body": False}]

    async def receive():
        return messages.pop(0)

    async def send(message):
        said.append(message)

    await door(scope, receive, send)
    return said[0]["status"], dict(said[0]["headers"]), said[1]["body"]


async def test_a_plain_heartbeat_is_answered_without_django():
    django, writer = Django(), Writer()

    status, headers, body = await post(HeartbeatBatching(django, writer), headers={"x_request_id": "mine"})

    assert status == 200 and json.loads(body) == {"heartbeats": 1, "checkpoints": 0, "stop_state": ""}
    assert headers[b"X-Request-ID"] == b"mine"
    assert not django.bodies and writer.together == [{KEY: BEAT["heartbeats"]}]


async def test_concurrent_heartbeats_are_written_together_and_in_order_per_attempt():
    writer = Writer()
    door = HeartbeatBatching(Django(), writer)
    steps = [{"heartbeats": [{"step": step}]} for step in range(3)]

    await asyncio.gather(*(post(door, key=f"k{n}.1") for n in range(20)), *(post(door, step) for step in steps))

    assert sum(map(len, writer.together)) == 23
    assert len(writer.together) <= 4
    assert [one[KEY][0]["step"] for one in writer.together if KEY in one] == [0, 1, 2]


STRANGE = {
    "an idempotency key": {"headers": {"idempotency_key": "k1"}},
    "a checkpoint": {"body": {"checkpoints": [{"path": "/c", "step": 1}]}},
    "no JSON": {"body": b"{"},
    "a list": {"body": b"[]"},
    "an unknown field": {"body": {"heartbeats": [{"stop": 1}]}},
    "a key twice": {"body": b'{"heartbeats": [], "heartbeats": []}'},
    "a huge body": {"body": b" " * (MAX_BODY_BYTES + 1)},
    "another kind": {"headers": {"content_type": "text/plain"}},
    "a token of a person": {"headers": {"authorization": "Bearer acme_x"}},
    "a forged token": {"headers": {"authorization": f"Bearer acme_run_{KEY}.0000"}},
    "no token": {"headers": {"authorization": ""}},
    "a query": {"query_string": b"x=1"},
    "a foreign host": {"headers": {"host": "evil.example"}},
    "another method": {"method": "PUT"},
    "another address": {"path": "/api/v1/jobs/"},
}


@pytest.mark.parametrize("name", STRANGE)
async def test_unusual_request_goes_to_django_unchanged(name):
    django, writer = Django(), Writer()
    asked = dict(STRANGE[name])
    body = asked.pop("body", BEAT)

    status, _, _ = await post(HeartbeatBatching(django, writer), body, **asked)

    assert status == 418 and not writer.together
    assert django.bodies == [body if isinstance(body, bytes) else json.dumps(body).encode()]


async def test_plain_http_is_left_to_django_if_https_is_required(settings):
    settings.SECURE_SSL_REDIRECT = True
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    door = HeartbeatBatching(Django(), Writer())

    assert (await post(door))[0] == 418
    assert (await post(door, headers={"x_forwarded_proto": "https"}))[0] == 200


async def test_ended_attempt_and_unavailable_database_are_left_to_django():
    def away(reports):
        raise OperationalError("gone")

    assert (await post(HeartbeatBatching(Django(), Writer(living=lambda key: False))))[0] == 418
    assert (await post(HeartbeatBatching(Django(), away)))[0] == 418


async def test_caller_above_the_rate_limit_is_left_to_django(settings):
    settings.ACME_API_PER_MINUTE = 2
    door = HeartbeatBatching(Django(), Writer())

    statuses = [(await post(door))[0] for _ in range(3)]

    assert statuses == [200, 200, 418]


@pytest.mark.django_db
def test_many_attempts_are_one_statement_without_ended_attempts(django_assert_num_queries):
    one, other, dead = (make.running(make.job(gpus_per_node=1), gpus=(n,)) for n in range(3))
    Attempt.objects.filter(pk=dead.pk).update(ended_at=clock.now())
    reports = {
        one.key: [{"step": 1}, {"step": 2, "loss": 0.5}],
        other.key: [{"step": 9}],
        dead.key: [{"step": 3}],
        "nobody.1": [{"step": 4}],
    }

    with django_assert_num_queries(1):
        found = progress.record_heartbeats(reports)

    assert {key: (noted.attempt_id, noted.rows) for key, noted in found.items()} == {
        one.key: (one.pk, 2),
        other.key: (other.pk, 1),
    }
    assert Progress.objects.count() == 3
    assert dict(LatestProgress.objects.values_list("attempt_id", "step")) == {one.pk: 2, other.pk: 9}
