"""The proxy between Acme and the cluster: the effect of each fault on a response."""

from __future__ import annotations

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random

import httpx
import pytest

from tests.chaos import proxy as faults
from tests.chaos.proxy import Proxy, with_unreadable_row
from tests.patience import PATIENCE_S, until

JOBS = [{"job_id": n, "job_state": ["RUNNING"], "nodes": "seren-001"} for n in range(5)]


class Cluster(ThreadingHTTPServer):
    """Responds with a list of jobs and the number of the request."""

    daemon_threads = True
    asked = 0

    def __init__(self, *words):
        super().__init__(*words)
        self.events = threading.Semaphore(0)  # how many events the watches may send

    def handle_error(self, request, client_address):
        """The proxy cuts connections, which is no error here."""


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.asked += 1
        if "watch=true" in self.path:
            return self.tell_events()
        self.say({"jobs": JOBS, "asked": self.server.asked})

    def tell_events(self):
        """Send an event whenever the test allows it, until the client is gone."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while self.server.events.acquire(timeout=PATIENCE_S):
            line = b'{"type":"ADDED"}\n'
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))

    def do_POST(self):
        self.server.asked += 1
        received = self.rfile.read(int(self.headers["Content-Length"]))
        self.say({"received": json.loads(received), "token": self.headers["X-SLURM-USER-TOKEN"]})

    def say(self, answer):
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass


@pytest.fixture
def cluster():
    server = Cluster(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def proxy(cluster):
    proxy = Proxy(f"http://127.0.0.1:{cluster.server_port}", trickle_pause_s=0.001)
    yield proxy
    proxy.close()


@pytest.fixture
def client(proxy):
    with httpx.Client(base_url=proxy.address, trust_env=False) as client:
        yield client


def test_requests_and_responses_pass_unchanged_without_a_fault(client, proxy):
    sent = client.post("/jobs", json={"name": "a"}, headers={"X-SLURM-USER-TOKEN": "secret"})

    assert sent.json() == {"received": {"name": "a"}, "token": "secret"}
    assert client.get("/jobs").json()["jobs"] == JOBS
    assert proxy.damaged == 0


def test_truncated_response_is_cut_off_after_the_request_reached_the_cluster(client, proxy, cluster):
    with proxy.active(faults.truncated), pytest.raises(httpx.HTTPError):
        client.post("/jobs", json={})

    assert (cluster.asked, proxy.damaged) == (1, 1)
    assert client.get("/jobs").status_code == 200


def test_only_one_row_of_a_list_becomes_unreadable(client, proxy):
    with proxy.active(faults.unreadable_row):
        rows = client.get("/jobs").json()["jobs"]

    assert sum(row == known for row, known in zip(rows, JOBS, strict=True)) == len(JOBS) - 1


def test_stale_response_is_an_earlier_response(client, proxy):
    client.get("/jobs")
    proxy.stale_s = 0.0

    with proxy.active(faults.stale):
        answers = [client.get("/jobs").json()["asked"] for _ in range(3)]

    assert answers == [1, 2, 3]  # each is the response to the previous request
    assert client.post("/jobs", json={}).status_code == 200


def test_first_response_is_never_stale(client, proxy):
    with proxy.active(faults.stale):
        assert client.get("/jobs").json()["asked"] == 1
    assert proxy.damaged == 0


def test_trickling_response_is_complete_in_the_end(client, proxy):
    with proxy.active(faults.trickling):
        assert client.get("/jobs").json()["jobs"] == JOBS


def test_unanswered_request_waits_until_the_client_gives_up(client, proxy):
    with proxy.active(faults.unanswered), pytest.raises(httpx.ReadTimeout):
        client.get("/jobs", timeout=0.2)

    assert client.get("/jobs").status_code == 200


def test_half_of_the_unanswered_requests_reach_the_cluster(client, proxy, cluster):
    with proxy.active(faults.unanswered):
        for _ in range(12):
            with pytest.raises(httpx.ReadTimeout):
                client.post("/jobs", json={}, timeout=0.1)
        until(lambda: proxy.damaged == 12)

    assert 0 < cluster.asked < 12


def test_unreachable_cluster_closes_the_connection(client, proxy, cluster):
    cluster.server_close()

    with pytest.raises(httpx.HTTPError):
        client.get("/jobs")


@pytest.mark.parametrize("body", [b"", b"not JSON", b"[]", b'{"jobs": []}', b'{"pings": [{}]}'])
def test_response_without_rows_stays_unchanged(body):
    assert with_unreadable_row(body, Random(1)) is None


def test_row_is_changed_only_in_fields_that_it_has():
    states = json.dumps({"jobs": [{"job_id": 1, "state": ["RUNNING"]}]}).encode()

    assert json.loads(with_unreadable_row(states, Random(1))) == {"jobs": [{"job_id": 1, "state": ["TELEPORTING"]}]}


WATCH = "/api/v1/pods?watch=true"


def test_events_of_a_watch_pass_one_by_one(client, cluster):
    with client.stream("GET", WATCH) as response:
        lines = response.iter_lines()
        for _ in range(3):
            cluster.events.release()
            assert next(lines) == '{"type":"ADDED"}'


def test_watch_is_cut_in_the_middle_of_an_object(client, proxy, cluster):
    with client.stream("GET", WATCH) as response, proxy.cut_watches():
        cluster.events.release()
        with pytest.raises(httpx.RemoteProtocolError):
            response.read()

    assert proxy.damaged == 1
    assert client.get("/jobs").status_code == 200


def test_watches_lag_while_all_other_responses_are_current(client, proxy, cluster):
    with client.stream("GET", WATCH) as response:
        with proxy.lagging_watches(3600.0):
            cluster.events.release()
            with pytest.raises(httpx.ReadTimeout):
                client.get(WATCH, timeout=0.2)
            assert client.get("/jobs").status_code == 200
        cluster.events.release(5)

        assert next(response.iter_lines()) == '{"type":"ADDED"}'


def test_only_some_watches_lag(client, proxy, cluster):
    with proxy.lagging_watches(3600.0, share=0.0), client.stream("GET", WATCH) as response:
        cluster.events.release()

        assert next(response.iter_lines()) == '{"type":"ADDED"}'


def test_held_watches_end_and_new_ones_wait(client, proxy, cluster):
    with client.stream("GET", WATCH) as response, proxy.held_watches():
        with pytest.raises(httpx.HTTPError):
            response.read()
        with pytest.raises(httpx.ReadTimeout):
            client.get(WATCH, timeout=0.2)
        assert client.get("/jobs").status_code == 200
    cluster.events.release(20)  # the ended watches take some, because the server learns late that they ended

    with client.stream("GET", WATCH) as response:
        assert next(response.iter_lines()) == '{"type":"ADDED"}'


def test_lost_write_is_carried_out_without_a_response(client, proxy, cluster):
    with proxy.active(faults.lost_writes):
        with pytest.raises(httpx.HTTPError):
            client.post("/jobs", json={})
        assert client.get("/jobs").json()["asked"] == 2

    assert (cluster.asked, proxy.damaged) == (2, 1)


def test_late_response_is_complete(client, proxy):
    proxy.delay_s = (0.0, 0.01)

    with proxy.active(faults.delayed):
        assert client.get("/jobs").json()["jobs"] == JOBS
    assert proxy.damaged == 1


def test_connection_that_switches_to_another_protocol_passes_in_both_directions():
    with socket.create_server(("127.0.0.1", 0)) as server:
        proxy = Proxy(f"http://127.0.0.1:{server.getsockname()[1]}")
        try:
            with socket.create_connection(("127.0.0.1", int(proxy.address.rpartition(":")[2]))) as client:
                client.sendall(b"GET /exec HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
                upstream, _ = server.accept()
                with upstream:
                    head = upstream.recv(4096)
                    upstream.sendall(b"HTTP/1.1 101 Switching Protocols\r\n\r\nout")
                    client.sendall(b"in")
                    assert (head.split(b"\r\n")[0], upstream.recv(2)) == (b"GET /exec HTTP/1.1", b"in")
                answer = b"".join(iter(lambda: client.recv(4096), b""))
        finally:
            proxy.close()

    assert answer == b"HTTP/1.1 101 Switching Protocols\r\n\r\nout"
    assert b"Upgrade: websocket" in head and b"Connection: Upgrade" in head
