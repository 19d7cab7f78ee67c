"""Job logs in the API: byte ranges, the last lines, and a stream that resumes."""

from __future__ import annotations

import asyncio
import json

import pytest
from django.test import Client

from jobs.actions import jobs as job_actions
from jobs.actions.jobs import AttemptEnd
from jobs.actions.journal import SYNC
from jobs.api.log_stream import LogStreamMiddleware, LogStreamRequest, LogStreamTiming, follow_log
from jobs.core.lifecycle import State
from jobs.logs.log_source import LogSource
from jobs.models import Attempt, Cluster, clock
from tests.jobs.api import api_make as make
from tests.jobs.api.api_make import Caller
from tests.jobs.logs.blocking import silent
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.django_db
CONTENT = b"\x1b[31mone\x1b[0m\ntwo\nthree \xff\n"
QUICK = LogStreamTiming(look_s=0.01, beat_s=PATIENCE_S, longest_s=PATIENCE_S, settle_s=0)


@pytest.fixture
def logged(tmp_path):
    make.cluster()
    Cluster.objects.update(log_root=str(tmp_path))
    job = make.running(make.job(make.person("ada"), gpus_per_node=1))
    Attempt.objects.update(log_path="a.log")
    (tmp_path / "a.log").write_bytes(CONTENT)
    return job


@pytest.fixture
def ada(logged):
    return Caller(make.person("ada"))


def body(answer):
    return b"".join(answer.streaming_content)


def test_the_log_is_returned_as_raw_bytes_that_no_browser_renders(ada, logged):
    answer = ada.get(f"jobs/{logged}/log/")

    assert body(answer) == CONTENT
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Content-Disposition"].startswith("attachment")
    assert answer.headers["Accept-Ranges"] == "bytes"


SIZE = len(CONTENT)


@pytest.mark.parametrize(
    ("asked", "first", "stop"),
    [("bytes=0-3", 0, 4), ("bytes=4-", 4, SIZE), ("bytes=-5", SIZE - 5, SIZE), ("bytes=2-9999", 2, SIZE)],
)
def test_a_range_returns_that_part_of_the_log(ada, logged, asked, first, stop):
    answer = ada.get(f"jobs/{logged}/log/", Range=asked)

    assert answer.status_code == 206
    assert body(answer) == CONTENT[first:stop]
    assert answer.headers["Content-Range"] == f"bytes {first}-{stop - 1}/{SIZE}"
    assert answer.headers["Content-Length"] == str(stop - first)


@pytest.mark.parametrize("asked", ["bytes=9999-", "bytes=-0", f"bytes={SIZE}-{SIZE}", "bytes=999999999999999999-"])
def test_a_range_outside_of_the_log_is_refused_with_the_size(ada, logged, asked):
    answer = ada.get(f"jobs/{logged}/log/", Range=asked)

    assert answer.status_code == 416
    assert answer.headers["Content-Range"] == f"bytes */{SIZE}"
    assert "has" in answer.json()["Range"][0]


@pytest.mark.parametrize(
    "asked", ["bytes=", "bytes=-", "bytes=5-2", "lines=1-2", "bytes=0-1,4-5", "x" * 500, "bytes=²-"]
)
def test_an_invalid_range_header_is_ignored(ada, logged, asked):
    answer = ada.get(f"jobs/{logged}/log/", Range=asked.encode().decode("latin-1"))

    assert answer.status_code == 200
    assert body(answer) == CONTENT


@pytest.mark.parametrize(
    ("tail", "end"),
    [
        ("0", b""),
        ("4", CONTENT[-4:]),
        ("9999", CONTENT),
        ("0lines", b""),
        ("1lines", b"three \xff\n"),
        ("2lines", b"two\nthree \xff\n"),
        ("3lines", CONTENT),
        ("99lines", CONTENT),
    ],
)
def test_the_response_to_tail_has_the_offset_of_its_first_byte(ada, logged, tail, end):
    answer = ada.get(f"jobs/{logged}/log/", {"tail": tail})

    assert body(answer) == end
    assert int(answer.headers["X-Log-Offset"]) == SIZE - len(end)


@pytest.mark.parametrize("lines", [1, 2, 50, 99, 100, 101])
def test_last_lines_are_found_across_chunk_boundaries(ada, logged, lines, tmp_path):
    content = [b"line %d %s\n" % (number, b"x" * 8_000) for number in range(100)]
    (tmp_path / "a.log").write_bytes(b"".join(content))

    assert body(ada.get(f"jobs/{logged}/log/", {"tail": f"{lines}lines"})) == b"".join(content[-lines:])


@pytest.mark.parametrize(
    "query",
    [
        {"tail": "x"},
        {"tail": "-1"},
        {"tail": ""},
        {"tail": "1line"},
        {"tail": "999999lines"},
        {"tail": ["1", "2"]},
        {"attempt": "x"},
        {"attempt": "0"},
        {"attempt": "99999999999999999999"},
        {"attempt": ""},
        {"path": "/etc/passwd"},
    ],
)
def test_invalid_log_parameters_are_refused_by_name(ada, logged, query):
    answer = ada.get(f"jobs/{logged}/log/", query)

    assert answer.status_code == 400
    assert next(iter(answer.json())) in query


def test_a_missing_log_is_a_404_with_a_reason(ada, logged, tmp_path):
    (tmp_path / "a.log").unlink()
    waiting = make.job(make.person("ada"))

    for path, sentence in {
        f"jobs/{logged}/log/": "No output yet.",
        f"jobs/{logged}/log/?attempt=2": f"{logged} has no attempt 2.",
        f"jobs/{waiting}/log/": "The job has not started yet.",
        f"jobs/{waiting}/log/follow/": "The job has not started yet.",
    }.items():
        answer = ada.get(path)
        assert (answer.status_code, answer.json()) == (404, {"detail": sentence})


def test_a_log_on_unresponsive_storage_is_a_503_with_the_reason(ada, logged, tmp_path):
    with silent(tmp_path, tmp_path / "hangs"):
        answer = ada.client.get(f"/api/v1/jobs/{logged}/log/", headers=ada.headers)

    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "10")
    assert f"The storage at {tmp_path} does not answer" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("page", "status"),
    [("log/", 200), ("log/?find=step", 200), ("log/?line=2", 200), ("log/lines/?before=9", 503), ("log/raw/", 503)],
)
def test_pages_report_that_the_storage_of_a_log_is_unresponsive(ada, logged, tmp_path, page, status):
    browser = Client(raise_request_exception=False)
    browser.force_login(ada.user)

    with silent(tmp_path, tmp_path / "hangs"):
        answer = browser.get(f"/jobs/{logged}/{page}")

    assert answer.status_code == status
    assert f"The storage at {tmp_path} does not answer" in answer.content.decode()


def test_a_symbolic_link_in_place_of_the_log_is_not_followed(ada, logged, tmp_path):
    (tmp_path / "a.log").unlink()
    (tmp_path / "a.log").symlink_to("/etc/passwd")

    assert "symbolic link" in ada.get(f"jobs/{logged}/log/").json()["detail"]


@pytest.mark.parametrize("headers", [{"Last-Event-ID": "x"}, {"Last-Event-ID": "-1"}, {"Last-Event-ID": "1" * 50}])
def test_an_invalid_last_event_id_is_refused(ada, logged, headers):
    answer = ada.get(f"jobs/{logged}/log/follow/", **headers)

    assert answer.status_code == 400
    assert list(answer.json()) == ["Last-Event-ID"]


# --- following


def wish(tmp_path, offset=0):
    return LogStreamRequest(source=LogSource(str(tmp_path), "f.log"), attempt_id=1, number=1, offset=offset)


async def over(attempt_id):
    return True


async def lives(attempt_id):
    return False


async def events(wish, ended=over, pace=QUICK):
    return parsed(b"".join([event async for event in follow_log(wish, ended, pace)]))


def parsed(raw):
    """The events as [(event, id, data)], parsed as by a browser."""
    found = []
    for block in raw.decode().split("\n\n"):
        fields = [line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":")]
        data = "\n".join(value for name, value in fields if name == "data")
        rest = dict(pair for pair in fields if pair[0] != "data")
        if fields:
            found.append((rest.get("event", ""), rest.get("id"), data))
    return found


async def test_a_stream_sends_cleaned_text_and_then_the_end(tmp_path):
    (tmp_path / "f.log").write_bytes(CONTENT + b"no newline")

    start, text, rest, end = await events(wish(tmp_path))

    assert json.loads(start[2]) == {"attempt": 1, "offset": 0}
    assert text == ("", str(SIZE), "one\ntwo\nthree \ufffd\n")
    assert rest == ("", str(SIZE + 10), "no newline")
    assert end[0] == "end" and end[1] == str(SIZE + 10)


async def test_a_stream_resumes_where_the_last_event_ended(tmp_path):
    (tmp_path / "f.log").write_bytes(b"one\ntwo\n")

    assert ("", "8", "two\n") in await events(wish(tmp_path, offset=4))
    assert [name for name, _, _ in await events(wish(tmp_path, offset=8))] == ["start", "end"]


async def test_a_truncated_file_is_read_from_its_beginning(tmp_path):
    (tmp_path / "f.log").write_bytes(b"new\n")

    found = await events(wish(tmp_path, offset=100))

    assert [(name, text) for name, _, text in found[1:3]] == [("truncated", ""), ("", "new\n")]


async def test_a_stream_ends_with_a_reconnect_event_at_its_maximum_age(tmp_path):
    found = await events(wish(tmp_path), lives, LogStreamTiming(look_s=0.01, longest_s=0.05))

    assert found[-1][0] == "reconnect"


async def test_a_silent_stream_sends_keep_alive_comments(tmp_path):
    stream = follow_log(wish(tmp_path), lives, LogStreamTiming(look_s=0.01, beat_s=0.02, longest_s=PATIENCE_S))
    await anext(stream)

    heard = [await anext(stream) for _ in range(2)]
    await stream.aclose()

    assert heard == [b": keep-alive\n\n"] * 2


async def test_added_text_is_streamed_without_splitting_characters(tmp_path):
    log = (tmp_path / "f.log").open("wb", buffering=0)
    log.write("grü".encode()[:-1])
    stream = follow_log(wish(tmp_path), lives, QUICK)
    await anext(stream)

    first = parsed(await anext(stream))
    log.write("ü\n".encode()[1:] + b"\x1b[3")
    second = parsed(await anext(stream))
    await stream.aclose()
    log.close()

    assert first == [("", "2", "gr")]
    assert second == [("", "5", "ü\n")]


async def test_the_stream_of_a_log_that_is_never_created_ends_with_a_reason(tmp_path):
    assert "No output yet." in (await events(wish(tmp_path)))[-1][2]


async def test_a_stream_does_not_follow_a_symbolic_link(tmp_path):
    (tmp_path / "f.log").symlink_to("/etc/passwd")

    assert "symbolic link" in (await events(wish(tmp_path), lives))[-1][2]


# --- through the web server


async def ask(application, path, headers):
    """Status, headers and body of a response that ends without a disconnect."""
    sent = []
    asked = [{"type": "http.request", "body": b""}]

    async def receive():
        return asked.pop() if asked else await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    raw = [(name.lower().encode(), value.encode()) for name, value in {"host": "localhost", **headers}.items()]
    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": raw, "asgi": {}}
    scope |= {"http_version": "1.1", "scheme": "http", "server": ("localhost", 80), "client": ("127.0.0.1", 1)}
    await asyncio.wait_for(application(scope, receive, send), PATIENCE_S)
    return sent[0]["status"], dict(sent[0]["headers"]), b"".join(one.get("body", b"") for one in sent[1:])


@pytest.mark.django_db(transaction=True)
def test_the_web_server_streams_after_django_has_finished_the_request(logged, ada):
    from asgiref.sync import async_to_sync
    from django.core.asgi import get_asgi_application

    job_actions.finish(
        logged.attempts.get(), AttemptEnd(state=State.COMPLETED, at=clock.now(), exit_code=0), author=SYNC
    )
    served = LogStreamMiddleware(get_asgi_application(), QUICK)
    address = f"/api/v1/jobs/{logged}/log/follow/"

    status, headers, raw = async_to_sync(ask)(served, address, ada.headers)
    refused = async_to_sync(ask)(served, address, {})
    resumed = async_to_sync(ask)(served, address, {**ada.headers, "Last-Event-ID": "13"})

    assert (status, headers[b"Content-Type"]) == (200, b"text/event-stream; charset=utf-8")
    assert b"X-Request-ID" in headers
    assert [name for name, _, _ in parsed(raw)] == ["start", "", "end"]
    assert refused[0] == 401
    assert parsed(resumed[2])[1][2] == "two\nthree \ufffd\n"
