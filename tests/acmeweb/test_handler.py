"""Django in threads, called like by an ASGI server."""

import asyncio
import inspect
import threading

import pytest
from django.core.handlers.asgi import ASGIHandler
from django.core.signals import request_finished, request_started
from django.http import HttpResponse, StreamingHttpResponse
from django.urls import path

from acmeweb.django_asgi import ThreadedASGIHandler
from tests.patience import PATIENCE_S

threads = []
closed = threading.Event()


def whole(request):
    threads.append(threading.current_thread().name)
    answer = HttpResponse(f"{request.method} {len(request.body)}")
    answer.set_cookie("seen", "1")
    return answer


def _parts():
    try:
        while True:
            yield b"more"
    finally:
        closed.set()


async def _later():
    yield b"a"
    yield b"b"


def broken(request):
    raise RuntimeError("of ours")


urlpatterns = [
    path("whole", whole),
    path("endless", lambda request: StreamingHttpResponse(_parts())),
    path("later", lambda request: StreamingHttpResponse(_later())),
    path("broken", broken),
]
pytestmark = pytest.mark.urls(__name__)


@pytest.fixture(autouse=True)
def open_to_all(settings):
    settings.MIDDLEWARE = ["acmeweb.middleware.RequestMiddleware"]


async def asked(address, *messages, hang_up_after=None):
    """Return status, headers and body; the caller disconnects after so many messages of the response."""
    left = list(messages) or [{"type": "http.request", "body": b""}]
    said, gone = [], asyncio.Event()

    async def receive():
        if left:
            return left.pop(0)
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        said.append(message)
        if len(said) == hang_up_after:
            gone.set()
        await asyncio.sleep(0)

    scope = {"type": "http", "method": "POST", "path": address, "headers": [(b"host", b"localhost")]}
    await asyncio.wait_for(ThreadedASGIHandler()(scope, receive, send), PATIENCE_S)
    body = b"".join(message.get("body", b"") for message in said[1:])
    return (said[0]["status"], dict(said[0]["headers"]), body) if said else None


async def test_a_body_in_pieces_arrives_whole_and_is_answered_in_a_thread():
    pieces = [
        {"type": "http.request", "body": b"x" * 70_000, "more_body": True},
        {"type": "http.request", "body": b"y"},
    ]

    status, headers, body = await asked("/whole", *pieces)

    assert (status, body) == (200, b"POST 70001")
    assert headers[b"Set-Cookie"].startswith(b"seen=1") and headers[b"X-Request-ID"]
    assert threads[-1].startswith("request")


async def test_both_request_signals_are_sent_so_the_connection_is_returned():
    heard = []
    for signal in (request_started, request_finished):
        signal.connect(lambda signal, **_: heard.append(signal), weak=False, dispatch_uid="here")

    await asked("/whole")

    for signal in (request_started, request_finished):
        signal.disconnect(dispatch_uid="here")
    assert heard == [request_started, request_finished]


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("load_middleware", ["self", "is_async"]),
        ("read_body", ["self", "receive"]),
        ("create_request", ["self", "scope", "body_file"]),
        ("get_response", ["self", "request"]),
    ],
)
def test_undocumented_method_of_django_that_the_handler_uses_is_unchanged(method, parameters):
    assert list(inspect.signature(getattr(ASGIHandler, method)).parameters) == parameters


async def test_asynchronous_stream_is_passed_on():
    assert (await asked("/later"))[2] == b"ab"


async def test_stream_ends_when_the_caller_disconnects():
    closed.clear()

    await asked("/endless", hang_up_after=3)

    assert closed.wait(PATIENCE_S)


async def test_caller_who_disconnects_before_the_body_is_complete_gets_no_response():
    assert await asked("/whole", {"type": "http.disconnect"}) is None


async def test_own_error_is_a_plain_500():
    status, _, body = await asked("/broken")

    assert status == 500 and b"of ours" not in body
