"""Invalid requests: each gets a 4xx with an error that names the field, and nothing is written."""

from __future__ import annotations

import json

import pytest

from jobs.models import ClusterCommand, Event, IdempotencyKey, Job, Node
from tests.jobs.api import api_make as make
from tests.jobs.api.api_make import Caller

pytestmark = pytest.mark.django_db

HUGE = 10**300
DEEP = "[" * 60 + "]" * 60
NOT_TEXT = [1, 1.5, True, [], {}, ["x"]]
NOT_NUMBERS = ["x", "", "1", 1.5, True, [], {}, [1], -1, HUGE, -HUGE]

# --- fields of a job, each with what cannot be

FIELDS = {
    "command": [*NOT_TEXT, "", "  \n", "x" * 70_000, "a\x00b", "\ud800"],
    "name": [*NOT_TEXT, "", " ", "x" * 121, "a\x00", "a\nb", "\x1b[31m", "\udfff"],
    "kind": [*NOT_TEXT, "", "PRETRAIN", "training", "\x00"],
    "workdir": [*NOT_TEXT, "relative", "/a/../b", "/x\x00", "/" + "x" * 600],
    "environment": ["x", 1, [], {"1A": "x"}, {"": "x"}, {"A B": "x"}, {"A": 1}, {"A": None}, {"A": "\x00"}, {"Ä": "x"}],
    "nodes": [*NOT_NUMBERS, 0, 100_001, 5],
    "gpus_per_node": [*NOT_NUMBERS, 1001, 9, 12],
    "cpus_per_node": [*NOT_NUMBERS, 0, 97],
    "memory_per_node": ["x", "", "-1", "1P", "1.5G", 1.5, True, [], {}, -1, HUGE, "9T", "999999999999999T"],
    "gpu_model": [*NOT_TEXT, "a b", "h100\n", "v100", "x" * 50, "'; DROP TABLE jobs_job; --"],
    "nic_type": [*NOT_TEXT, "a b", "ib7"],
    "time_limit": ["x", "", "1-2-3", "-5", 0, -1, True, [], {}, HUGE, 1e300, "0", "99999999", "1:2:3:4"],
    "priority": ["x", "1", 1.5, True, [], {}, HUGE, -HUGE, 1_000_001],
    "preemptible": ["true", 0, 1, [], {}],
    "preempt_exempt_time": ["x", "", 0, -1, True, [], {}, "UNLIMITED", "30:00"],
    "preempt_at_checkpoint": ["true", 1, [], {}, True],
    "preemptions_per_day": [*NOT_NUMBERS, -1, 1001, 2],
    "requeue_limit": [*NOT_NUMBERS, 1001],
    "begin_at": [*NOT_TEXT, "", "tomorrow", "2026-01-01", "2026-01-01T00:00:00", "2026-13-01T00:00:00Z", "now+1hour"],
    "hold": ["yes", 0, 1, [], {}],
    "array": [*NOT_TEXT, "", "x", "5-1", "0-5000", "0-99%0", "1,,2", "-1", "0-99999999", "0-9%x"],
    "dependencies": [
        1,
        True,
        {},
        [1],
        ["x"],
        "x",
        "afterok",
        "afterok:",
        "after:1",
        "afterok:1:1",
        "afterok:../..",
        "afterok:zzz",
    ],
    "checkpoint_dir": [*NOT_TEXT, "relative", "/a/../b"],
    "checkpoint_interval": ["x", "", 0, -1, True, [], {}],
    "labels": [
        "x",
        1,
        [],
        {"": "x"},
        {" ": "x"},
        {"a": 1},
        {"a": "x" * 300},
        {"a": "b\n"},
        {f"k{i}": "" for i in range(65)},
    ],
    "comment": [*NOT_TEXT, "x" * 5000, "\x00"],
    "key": [*NOT_TEXT, "a b", "-a", "x" * 50],
    "team": [*NOT_TEXT, "", "speech", "nobody", "VISION", "../vision", "x" * 500],
    "cluster": [*NOT_TEXT, "", "nowhere", "x" * 500],
    "unknown": [1, None, "x"],
    "Command": ["x"],
    "user": ["root"],
    "state": ["COMPLETED"],
    "id": [1],
    "public_id": ["x"],
    "memory_per_node_mb": [5],
    "array_limit": [5],
    "__class__": ["x"],
    "команда": ["x"],
}

JOBS = [(field, value) for field, values in FIELDS.items() for value in values]


def short(value):
    return repr(value)[:30]


@pytest.fixture(scope="module", autouse=True)
def created(rows_for_module):
    make.cluster()
    return make.job(make.person("ada")).pk


@pytest.fixture
def job(created):
    return Job.objects.get(pk=created)


@pytest.fixture
def ada(job):
    return Caller(job.user)


@pytest.fixture
def unwritten():
    """Checks that the test's requests changed no rows."""

    def picture():
        counts = [model.objects.count() for model in (Job, Event, ClusterCommand, IdempotencyKey)]
        return (
            counts,
            list(Job.objects.values_list("state", "hold", "priority")),
            Node.objects.filter(drain_requested=True).count(),
        )

    before = picture()
    yield
    assert picture() == before


@pytest.fixture
def refused(ada, job, unwritten):
    """Send the request and check that it is refused with an error that names the field."""

    def check(answer, field="detail", statuses=(400,)):
        assert answer.status_code in statuses, (answer.status_code, answer.content[:300])
        assert answer.headers["Content-Type"] == "application/json"
        said = answer.json()
        assert field in said or any(name.startswith(f"{field}.") for name in said), said
        sentences = [one for value in said.values() for one in (value if isinstance(value, list) else [value])]
        assert sentences
        assert all(isinstance(one, str) and 6 < len(one) < 700 and "Traceback" not in one for one in sentences), said
        assert answer.headers["X-Request-ID"]
        return said

    return check


@pytest.mark.parametrize(("field", "value"), JOBS, ids=[f"{field}={short(value)}" for field, value in JOBS])
def test_an_invalid_job_is_refused(field, value, ada, refused):
    answer = ada.post("jobs/", {"command": "x", field: value}, Idempotency_Key="k")

    refused(answer, field)


@pytest.mark.parametrize(("field", "value"), JOBS[::7], ids=[f"{field}={short(value)}" for field, value in JOBS[::7]])
def test_an_invalid_job_in_a_bulk_request_is_refused(field, value, ada, refused):
    answer = ada.post("jobs/bulk/", {"jobs": [{"command": "y"}, {"command": "x", field: value}]})

    if _escaped(value):
        assert answer.status_code == 400  # refused before anybody knew of jobs
    else:
        assert f"job 1: {field}" in refused(answer, "jobs")["jobs"][0]


def _escaped(value):
    return "\\u0000" in json.dumps(value) or "\\ud" in json.dumps(value)


# --- bodies that are no proper JSON object

BODIES = {
    "nothing": (b"", "command"),
    "spaces": (b"  \n", "command"),
    "no JSON": (b"command=x", "detail"),
    "cut off": (b'{"command": "x"', "detail"),
    "more after it": (b'{"command": "x"} {}', "detail"),
    "single quotes": (b"{'command': 'x'}", "detail"),
    "trailing comma": (b'{"command": "x",}', "detail"),
    "comment": (b'{"command": "x"} // y', "detail"),
    "a list": (b'[{"command": "x"}]', "detail"),
    "a text": (b'"command"', "detail"),
    "a number": (b"5", "detail"),
    "null": (b"null", "detail"),
    "true": (b"true", "detail"),
    "latin-1": ('{"command": "é"}'.encode("latin-1"), "detail"),
    "utf-16": ('{"command": "x"}'.encode("utf-16"), "detail"),
    "a byte order mark": (b'\xef\xbb\xbf{"command": "x"}', "detail"),
    "overlong utf-8": (b'{"command": "\xc0\xaf"}', "detail"),
    "raw NUL": (b'{"command": "a\x00b"}', "detail"),
    "raw newline": (b'{"command": "a\nb"}', "detail"),
    "escaped NUL": (b'{"command": "a\\u0000b"}', "command"),
    "NUL in a name": (b'{"command": "x", "na\\u0000me": "x"}', "na\\x00me"),
    "half a character": (b'{"command": "\\ud83d"}', "command"),
    "half a character in a name": (b'{"command": "x", "\\udfff": 1}', "\\udfff"),
    "twice": (b'{"command": "x", "command": "y"}', "command"),
    "twice inside": (b'{"command": "x", "environment": {"A": "1", "A": "2"}}', "A"),
    "NaN": (b'{"command": "x", "time_limit": NaN}', "detail"),
    "Infinity": (b'{"command": "x", "time_limit": Infinity}', "detail"),
    "minus Infinity": (b'{"command": "x", "priority": -Infinity}', "detail"),
    "1e999": (b'{"command": "x", "time_limit": 1e999}', "time_limit"),
    "5,000 digits": (b'{"command": "x", "nodes": ' + b"9" * 5000 + b"}", "detail"),
    "100,000 digits": (b'{"command": "x", "nodes": ' + b"9" * 100_000 + b"}", "detail"),
    "deep list": (b'{"command": "x", "labels": ' + DEEP.encode() + b"}", "detail"),
    "very deep list": (b"[" * 100_000 + b"]" * 100_000, "detail"),
    "very deep object": (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, "detail"),
    "unclosed deep": (b"[" * 200_000, "detail"),
}


@pytest.mark.parametrize("path", ["jobs/", "jobs/bulk/", "jobs/actions/"])
@pytest.mark.parametrize("body", BODIES)
def test_a_body_that_is_not_an_object_is_refused(path, body, ada, refused):
    raw, field = BODIES[body]
    if (field == "command" and body in ("nothing", "spaces")) or (body == "1e999" and path != "jobs/"):
        missing = {"jobs/": field, "jobs/bulk/": "jobs", "jobs/actions/": "action"}[path]
        field = "command" if body == "1e999" else missing

    refused(ada.post(path, raw), field)


@pytest.mark.parametrize(
    "kind",
    [
        "text/plain",
        "text/html",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/xml",
    ],
)
def test_another_content_type_is_refused(kind, ada, refused):
    refused(ada.post("jobs/", b'{"command": "x"}', content_type=kind), statuses=(415,))


def test_a_body_larger_than_allowed_is_refused(ada, refused):
    refused(ada.post("jobs/", b'{"command": "' + b"x" * 17_000_000 + b'"}'), statuses=(413,))


BULK = [
    ({}, "jobs"),
    ({"jobs": []}, "jobs"),
    ({"jobs": {}}, "jobs"),
    ({"jobs": "x"}, "jobs"),
    ({"jobs": None}, "jobs"),
    ({"jobs": [1]}, "jobs"),
    ({"jobs": [None]}, "jobs"),
    ({"jobs": [[]]}, "jobs"),
    ({"jobs": [{"command": "x"}] * 5001}, "jobs"),
    ({"jobs": [{"command": "x"}], "mode": "some"}, "mode"),
    ({"jobs": [{"command": "x"}], "mode": 1}, "mode"),
    ({"jobs": [{"command": "x"}], "more": 1}, "more"),
    ({"jobs": [{"command": "x"}], "team": 5}, "team"),
    ({"jobs": [{"command": "x"}], "team": "speech"}, "jobs"),
    ({"jobs": [{"command": "x", "key": "a"}, {"command": "x", "key": "a"}]}, "jobs"),
    ({"jobs": [{"command": "x", "dependencies": "afterok:@b"}]}, "jobs"),
    (
        {
            "jobs": [
                {"command": "x", "key": "a", "dependencies": "afterok:@b"},
                {"command": "x", "key": "b", "dependencies": "afterok:@a"},
            ]
        },
        "jobs",
    ),
]


@pytest.mark.parametrize(("body", "field"), BULK, ids=[short(body) for body, _ in BULK])
def test_an_invalid_bulk_request_is_refused(body, field, ada, refused):
    refused(ada.post("jobs/bulk/", body), field)


VERBS = [
    ({}, "action"),
    ({"action": "destroy", "ids": ["x"]}, "action"),
    ({"action": 5, "ids": ["x"]}, "action"),
    ({"action": "cancel"}, "ids"),
    ({"action": "cancel", "ids": [], "filter": {}}, "ids"),
    ({"action": "cancel", "ids": []}, "ids"),
    ({"action": "cancel", "ids": "x"}, "ids"),
    ({"action": "cancel", "ids": [1]}, "ids"),
    ({"action": "cancel", "ids": [None]}, "ids"),
    ({"action": "cancel", "ids": ["x" * 99]}, "ids"),
    ({"action": "cancel", "ids": ["x"] * 1001}, "ids"),
    ({"action": "cancel", "filter": {}}, "filter"),
    ({"action": "cancel", "filter": []}, "filter"),
    ({"action": "cancel", "filter": {"limit": 5}}, "filter"),
    ({"action": "cancel", "filter": {"name__contains": ""}}, "name__contains"),
    ({"action": "cancel", "filter": {"array_id": [""]}}, "array_id"),
    ({"action": "cancel", "filter": {"color": "red"}}, "color"),
    ({"action": "cancel", "filter": {"state": "pending"}}, "state"),
    ({"action": "cancel", "filter": {"state": {}}}, "state"),
    ({"action": "cancel", "filter": {"state": []}}, "state"),
    ({"action": "cancel", "filter": {"priority__gte": "x"}}, "priority__gte"),
    ({"action": "cancel", "filter": {"priority": HUGE}}, "priority"),
    ({"action": "cancel", "filter": {"team_id": 1}}, "team_id"),
    ({"action": "cancel", "filter": {"user__password__startswith": "p"}}, "user__password__startswith"),
    ({"action": "cancel", "ids": ["x"], "dry_run": "no"}, "dry_run"),
    ({"action": "cancel", "ids": ["x"], "priority": 5}, "priority"),
    ({"action": "priority", "ids": ["x"]}, "priority"),
    ({"action": "priority", "ids": ["x"], "priority": HUGE}, "priority"),
    ({"action": "cancel", "ids": ["x"], "reason": 5}, "reason"),
    ({"action": "cancel", "ids": ["x"], "reason": "x" * 1001}, "reason"),
    ({"action": "cancel", "ids": ["x"], "force": True}, "force"),
]


@pytest.mark.parametrize(("body", "field"), VERBS, ids=[short(body) for body, _ in VERBS])
def test_an_invalid_bulk_action_is_refused(body, field, ada, refused):
    refused(ada.post("jobs/actions/", body), field)


ONE_VERB = [
    ("cancel", {"reason": 5}, "reason"),
    ("cancel", {"reason": "x" * 1001}, "reason"),
    ("cancel", {"reason": "\x00"}, "reason"),
    ("cancel", {"force": True}, "force"),
    ("hold", {"priority": 5}, "priority"),
    ("priority", {}, "priority"),
    ("priority", {"priority": None}, "priority"),
    ("priority", {"priority": "5"}, "priority"),
    ("priority", {"priority": 1.5}, "priority"),
    ("priority", {"priority": HUGE}, "priority"),
    ("release", [], "detail"),
    ("requeue", "x", "detail"),
]


@pytest.mark.parametrize(
    ("verb", "body", "field"), ONE_VERB, ids=[f"{verb} {short(body)}" for verb, body, _ in ONE_VERB]
)
def test_an_invalid_action_is_refused(verb, body, field, ada, job, refused):
    refused(ada.post(f"jobs/{job}/{verb}/", body), field)


DRAINS = [
    ({}, "reason"),
    ({"reason": ""}, "reason"),
    ({"reason": "  "}, "reason"),
    ({"reason": 5}, "reason"),
    ({"reason": "x" * 1001}, "reason"),
    ({"reason": "x", "mode": "later"}, "mode"),
    ({"reason": "x", "mode": 1}, "mode"),
    ({"reason": "x", "dry_run": 1}, "dry_run"),
    ({"reason": "x", "nodes": []}, "nodes"),
]


@pytest.mark.parametrize(("body", "field"), DRAINS, ids=[short(body) for body, _ in DRAINS])
def test_an_invalid_drain_is_refused(body, field, refused):
    refused(Caller(make.operator()).post("nodes/seren/gpu001/drain/", body), field)


QUERIES = [
    ("limit=0", "limit"),
    ("limit=1001", "limit"),
    ("limit=000000000199999", "limit"),
    ("limit=0000000001" + "9" * 5000, "limit"),
    ("limit=-1", "limit"),
    ("limit=x", "limit"),
    ("limit=", "limit"),
    ("limit=" + "9" * 5000, "limit"),
    ("limit=٣", "limit"),
    ("limit=1&limit=2", "limit"),
    ("cursor=x", "cursor"),
    ("cursor=" + "A" * 4000, "cursor"),
    ("cursor=bnVsbA", "cursor"),
    ("cursor=%ff", "cursor"),
    ("ordering=command", "ordering"),
    ("ordering=", "ordering"),
    ("ordering=--id", "ordering"),
    ("ordering=id,-id", "ordering"),
    ("ordering=user__password", "ordering"),
    ("fields=", "fields"),
    ("fields=password", "fields"),
    ("fields=id,,name", "fields"),
    ("fields=id&fields=name", "fields"),
    ("state=running", "state"),
    ("state=", "state"),
    ("state__in=RUNNING,", "state__in"),
    ("state__regex=.", "state__regex"),
    ("kind=x", "kind"),
    ("hold=yes", "hold"),
    ("priority=x", "priority"),
    ("priority=1.5", "priority"),
    ("priority=" + "9" * 400, "priority"),
    ("priority__gt=1&priority__gt=2", "priority__gt"),
    ("preemptible=maybe", "preemptible"),
    ("submitted_at__gte=yesterday", "submitted_at__gte"),
    ("submitted_at__gte=2026-01-01", "submitted_at__gte"),
    ("started_at__isnull=x", "started_at__isnull"),
    ("started_at=2026-01-01T00:00:00Z", "started_at"),
    ("name=%00", "name"),
    ("name=%ff", "name"),
    ("name=" + "x" * 300, "name"),
    ("name=a%0Ab", "name"),
    ("team__password=x", "team__password"),
    ("pk=1", "pk"),
    ("format=html", "format"),
    ("id__in=" + "a," * 1001, "id__in"),
    ("%00=1", "\\x00"),
]


@pytest.mark.parametrize(("query", "field"), QUERIES, ids=[query[:40] for query, _ in QUERIES])
def test_an_invalid_query_is_refused(query, field, ada, refused):
    refused(ada.get(f"jobs/?{query}"), field)


def test_an_unknown_field_names_similar_ones(ada, refused):
    said = refused(ada.get("jobs/?fields=nodelists"), "fields")

    assert "'nodelists' is not a field; similar ones are nodelist" in said["fields"][0]


PATHS = [
    "jobs/0000000000a/",
    "jobs/JOB/nope/",
    "jobs/%00/",
    "jobs/%2e%2e/me/",
    "jobs/..%2f..%2fadmin/",
    "jobs/1;drop/",
    "jobs/" + "a" * 300 + "/",
    "jobs/ABC/",
    "jobs/%f0%9f%92%a9/",
    "jobs/%ff/",
    "jobs",
    "nodes/seren/nope/",
    "nodes/nowhere/gpu001/",
    "nodes/seren/gpu001%00/",
    "nodes/seren/..%2f/",
    "teams/speech/",
    "clusters/nowhere/",
    "",
    "nope/",
]


@pytest.mark.parametrize("path", PATHS, ids=[path[:30] or "root" for path in PATHS])
@pytest.mark.parametrize("method", ["get", "post"])
def test_an_unknown_path_is_a_404(path, method, ada, refused):
    refused(getattr(ada, method)(path), statuses=(404, 405))


@pytest.mark.parametrize("method", ["put", "patch", "delete", "options", "trace"])
@pytest.mark.parametrize("path", ["jobs/", "me/", "nope/"])
def test_a_method_that_is_not_allowed_is_a_405(method, path, ada, refused):
    refused(getattr(ada.client, method)(f"/api/v1/{path}", headers=ada.headers), statuses=(404, 405))


CREDENTIALS = [
    "Bearer",
    "Bearer ",
    "Bearer x",
    "Bearer acme_" + "A" * 43,
    "Bearer " + "x" * 5000,
    "Basic YTpi",
    "acme_x",
    "Bearer \xff",
]


@pytest.mark.parametrize("header", CREDENTIALS, ids=short)
def test_invalid_credentials_are_refused(header, client, refused):
    answer = client.post("/api/v1/jobs/", b'{"command": "x"}', "application/json", headers={"Authorization": header})

    refused(answer, statuses=(401,))


@pytest.mark.parametrize("key", ["", "x" * 201, "a\tb", "ключ"], ids=short)
def test_an_invalid_idempotency_key_is_refused(key, ada, refused):
    refused(ada.post("jobs/", {"command": "x"}, Idempotency_Key=key), "Idempotency-Key")


@pytest.mark.parametrize("tag", ["x", '"x"', "", "W/*", '"' + "x" * 5000 + '"', ","], ids=short)
def test_an_unknown_etag_is_refused(tag, ada, job, refused):
    refused(ada.post(f"jobs/{job}/cancel/", If_Match=tag), statuses=(412,))
