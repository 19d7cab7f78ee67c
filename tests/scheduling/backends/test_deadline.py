"""Calls to a cluster end in time whatever the server does, and report what may have happened."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import closing

import httpx
import pytest

from acmeweb.common.http_client import DeadlineTransport, HttpClient, RequestDeadline, ResponseTooLarge, open_socket
from scheduling.backends import telemetry
from scheduling.backends.base import ClusterUnreachable, OutcomeUnknown, RequestTimedOut
from scheduling.backends.kubernetes.watch_stream import WatchStream
from scheduling.backends.opening import open_backend
from scheduling.backends.slurm import SlurmBackend
from tests.patience import PATIENCE_S, until
from tests.scheduling.backends import hostile
from tests.scheduling.backends.hostile import HEAD, read_request, serving
from tests.scheduling.backends.test_dialect import submission

SHORT_S = 0.3
SLOW = (hostile.silent, hostile.deaf, hostile.trickling, hostile.trickling_headers)
BROKEN = (
    hostile.endless_headers,
    hostile.shorter_than_promised,
    hostile.cut_off_chunks,
    hostile.cut_off_json,
)


def backend_of(address, timeout_s=SHORT_S):
    return closing(open_backend(address, api="v0.0.42", timeout_s=timeout_s))


@pytest.mark.parametrize("conversation", SLOW)
@pytest.mark.parametrize("verb", ["nodes", "jobs", "ping"])
def test_reading_from_a_server_that_never_completes_its_response_is_unreachable(conversation, verb):
    with (
        serving(conversation) as address,
        backend_of(address) as backend,
        pytest.raises(ClusterUnreachable, match=r"no complete response within 0\.3 s"),
    ):
        getattr(backend, verb)()


@pytest.mark.parametrize("conversation", BROKEN)
@pytest.mark.parametrize("verb", ["nodes", "jobs"])
def test_reading_a_broken_response_is_unreachable(conversation, verb):
    with (
        serving(conversation) as address,
        backend_of(address, PATIENCE_S) as backend,
        pytest.raises(ClusterUnreachable),
    ):
        getattr(backend, verb)()


@pytest.mark.parametrize("conversation", SLOW)
def test_submission_without_a_response_in_time_has_an_unknown_outcome(conversation):
    with serving(conversation) as address, backend_of(address) as backend, pytest.raises(RequestTimedOut):
        backend.submit(submission())


@pytest.mark.parametrize("conversation", BROKEN)
def test_submission_with_a_broken_response_has_an_unknown_outcome(conversation):
    with serving(conversation) as address, backend_of(address, PATIENCE_S) as backend, pytest.raises(OutcomeUnknown):
        backend.submit(submission())


def test_large_submission_to_a_server_that_does_not_read_has_an_unknown_outcome():
    large = submission(script="x" * (32 << 20))  # larger than the socket buffers, and slow to encode

    with serving(hostile.deaf) as address, backend_of(address, 5.0) as backend, pytest.raises(OutcomeUnknown):
        backend.submit(large)


def test_negotiation_that_never_ends_is_unreachable():
    with (
        serving(hostile.trickling) as address,
        closing(open_backend(address, timeout_s=SHORT_S)) as backend,
        pytest.raises(ClusterUnreachable),
    ):
        backend.submit(submission())


def test_submissions_after_one_without_a_response_are_not_sent():
    with serving(hostile.silent) as address, backend_of(address) as backend:
        answers = backend.submit_all([submission()] * 32)

    doubtful = [answer for answer in answers if isinstance(answer, RequestTimedOut)]
    unsent = [answer for answer in answers if isinstance(answer, ClusterUnreachable)]
    assert 1 <= len(doubtful) <= 8
    assert len(doubtful) + len(unsent) == 32


def test_all_requests_of_one_call_share_one_deadline():
    """Each response is in time by itself; all of them together are too slow."""
    rows = [{"job_id": number, "job_state": ["RUNNING"]} for number in range(1, 41)]

    def slow(connection: socket.socket, over) -> None:
        while request := read_request(connection):
            path = request.split()[1].decode()
            if path.endswith("/jobs"):
                payload = {"jobs": []}
            else:
                over.wait(SHORT_S / 4)
                payload = {"jobs": rows if path.endswith("/state/") else rows[:1]}
            if path.endswith("/state/"):
                payload = {"jobs": [{"job_id": str(row["job_id"]), "state": row["job_state"]} for row in rows]}
            body = json.dumps(payload).encode()
            connection.sendall(HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)

    with serving(slow) as address, backend_of(address) as backend:
        assert backend.jobs() == []

        with pytest.raises(ClusterUnreachable, match="no complete response within"):
            backend.jobs()

        assert backend.jobs() == []  # one request for everything, because many requests were too slow


def test_response_over_the_size_limit_is_rejected():
    with (
        serving(hostile.endless_body) as address,
        closing(HttpClient(address, {}, largest=1 << 20)) as client,
        pytest.raises(ResponseTooLarge, match="larger than 1 MiB"),
    ):
        client.request("GET", "/", RequestDeadline(PATIENCE_S))


def test_listing_over_the_size_limit_makes_the_cluster_unreachable_with_advice():
    """The size is counted: the response does not say how large it is."""
    with (
        serving(hostile.endless_body) as address,
        closing(SlurmBackend(address, api="v0.0.42", timeout_s=PATIENCE_S, largest=1 << 20)) as backend,
        pytest.raises(ClusterUnreachable, match=r"larger than 1 MiB.* lower MaxJobCount"),
    ):
        backend.jobs()


def test_nothing_is_sent_after_the_deadline():
    with (
        serving(hostile.silent) as address,
        closing(HttpClient(address, {})) as client,
        pytest.raises(httpx.PoolTimeout),
    ):
        client.request("POST", "/", RequestDeadline(0.0))


@pytest.mark.parametrize("host", ["169.254.169.254", "[fd00:ec2::254]", "[::ffff:169.254.169.254]", "168.63.129.16"])
def test_no_client_of_a_loop_calls_a_metadata_service(host):
    with backend_of(f"http://{host}") as backend, pytest.raises(ClusterUnreachable, match="metadata service"):
        backend.nodes()
    with pytest.raises(ClusterUnreachable, match="metadata service"):
        telemetry.read_exporter(f"http://{host}/metrics", timeout_s=SHORT_S)
    with pytest.raises(OSError, match="metadata service"):
        open_socket(host.strip("[]"), 443, RequestDeadline(SHORT_S))


def test_name_of_a_metadata_service_is_refused_when_it_is_resolved():
    transport = DeadlineTransport(resolve=lambda host, port: ["127.0.0.1", "169.254.169.254"])
    extensions = {"deadline": RequestDeadline(PATIENCE_S).at}

    with httpx.Client(transport=transport) as client, pytest.raises(httpx.ConnectError, match="metadata service"):
        client.get("http://slurm.example/", extensions=extensions)


def test_unix_socket_without_a_response_is_unreachable(tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "rest.sock"))
        listener.listen()

        with backend_of(f"unix://{tmp_path}/rest.sock") as backend, pytest.raises(ClusterUnreachable, match="within"):
            backend.nodes()


@pytest.mark.parametrize("conversation", SLOW)
def test_exporter_that_never_completes_its_page_is_unreachable(conversation):
    with serving(conversation) as address, pytest.raises(ClusterUnreachable):
        telemetry.read_exporter(f"{address}/metrics", timeout_s=SHORT_S)


def test_connection_in_use_stays_open_until_its_response_is_read():
    """Its descriptor would become that of another file, to which OpenSSL then writes."""

    def send_two_parts(connection, over):
        read_request(connection)
        connection.sendall(HEAD + b"Content-Length: 2\r\n\r\n1")
        client_is_closed.wait(PATIENCE_S)
        connection.sendall(b"2")
        over.wait()

    client_is_closed = threading.Event()
    with serving(send_two_parts) as address:
        client = HttpClient(address, {})
        responses = [client.open_stream("/", RequestDeadline(PATIENCE_S), {}) for _ in range(2)]
        sockets = [response.extensions["network_stream"].get_extra_info("socket") for response in responses]

        client.close()
        are_open = [[plain.fileno() != -1 for plain in sockets]]
        client_is_closed.set()
        contents = []
        for response in responses:
            contents.append(b"".join(response.iter_raw()))
            are_open.append([plain.fileno() != -1 for plain in sockets])

        assert contents == [b"12", b"12"]
        assert are_open == [[True, True], [True, True], [False, False]]
        with pytest.raises(httpx.ConnectError, match="the client was closed"):
            client.request("GET", "/", RequestDeadline(PATIENCE_S))


def test_watch_of_a_closed_client_goes_on_until_it_is_closed():
    def send_two_lines(connection, over):
        requests.append(read_request(connection))
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n1\n\r\n")
        client_is_closed.wait(PATIENCE_S)
        connection.sendall(b"2\r\n2\n\r\n")
        over.wait()

    requests, client_is_closed = [], threading.Event()
    with serving(send_two_lines) as address:
        client = HttpClient(address, {})
        watch = WatchStream(client, "/", {}, RequestDeadline(PATIENCE_S))
        assert watch.wait_for_lines(PATIENCE_S)
        lines = watch.take_lines()

        client.close()
        client_is_closed.set()
        assert watch.wait_for_lines(PATIENCE_S)
        lines += watch.take_lines()
        watch.close()

        assert lines == [b"1", b"2"]
        until(lambda: watch.ended, what="the watch has ended")
        assert b"connection: close" in requests[0].lower()
