"""Commands in containers against a server that answers as a test scripts it."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from contextlib import contextmanager
from http import HTTPStatus
from urllib.parse import parse_qsl, urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from acmeweb.common.http_client import RequestDeadline
from scheduling.backends.base import ClusterUnreachable, OutcomeUnknown, RequestTimedOut
from scheduling.backends.kubernetes.api_errors import ApiRefusal
from scheduling.backends.kubernetes.containers.exec_client import MAX_OUTPUT_BYTES, ContainerPlace, ExecClient
from scheduling.simulation.kubernetes import pki
from tests.patience import PATIENCE_S
from tests.scheduling.backends.kubernetes.containers.exec_server import SUCCESS, connection, failure, serving

PLACE = ContainerPlace(namespace="jobs", pod="acme-a-0", container="main")


def run(handler, *command, timeout_s=PATIENCE_S, **options):
    with serving(handler, **options) as (port, _):
        client = ExecClient(connection(f"http://127.0.0.1:{port}"))
        return client.run(PLACE, command or ("true",), RequestDeadline(timeout_s))


def sends(*messages):
    def handler(websocket):
        for message in messages:
            websocket.send(message)

    return handler


def until_gone(websocket):
    for _ in websocket:
        pass


def test_output_and_success_are_returned():
    done = run(sends(b"\x01", b"\x02", b"\x01one\n", b"\x02two\n", b"\x01three\n", SUCCESS))

    assert (done.exit_code, done.stdout, done.stderr) == (0, "one\nthree\n", "two\n")


def test_exit_code_of_a_failed_command_is_returned():
    assert run(sends(failure("126"))).exit_code == 126


def test_request_names_container_command_and_credentials():
    with serving(sends(SUCCESS)) as (port, requests):
        client = ExecClient(connection(f"http://127.0.0.1:{port}/clusters/c1"))
        client.run(PLACE, ("sh", "-c", "a & b?"), RequestDeadline(PATIENCE_S))

    parts = urlsplit(requests[0].path)
    assert parts.path == "/clusters/c1/api/v1/namespaces/jobs/pods/acme-a-0/exec"
    assert [value for name, value in parse_qsl(parts.query) if name == "command"] == ["sh", "-c", "a & b?"]
    assert ("container", "main") in parse_qsl(parts.query)
    assert requests[0].headers["Authorization"] == "Bearer secret"


def test_output_is_bounded_and_its_rest_dropped():
    done = run(sends(*[b"\x01" + b"x" * 50_000] * 4, SUCCESS))

    assert len(done.stdout) == MAX_OUTPUT_BYTES


def test_command_that_never_stops_printing_is_given_up():
    def handler(websocket):
        while True:
            websocket.send(b"\x01" + b"x" * 500_000)

    with pytest.raises(OutcomeUnknown, match="printed more than 8 MiB"):
        run(handler)


def test_command_without_an_end_costs_no_more_than_the_deadline():
    with pytest.raises(RequestTimedOut, match=r"did not end within 0\.3 s"):
        run(until_gone, timeout_s=0.3)


def test_trickle_of_output_does_not_extend_the_deadline():
    stopped = threading.Event()

    def handler(websocket):
        try:
            while not stopped.wait(0.02):
                websocket.send(b"\x01.")
        finally:
            stopped.set()

    with pytest.raises(RequestTimedOut):
        run(handler, timeout_s=0.3)


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        pytest.param([b"\x01" + b"x" * (2 << 20)], "lost", id="giant frame"),
        pytest.param([], "lost", id="closed without a status"),
        pytest.param(["text"], "another protocol", id="text"),
        pytest.param([b"\x03nothing"], "did not end normally", id="status is not JSON"),
        pytest.param([b"\x03" + b"[" * 60_000], "did not end normally", id="status is nested deeply"),
        pytest.param([failure(code="-1")], "did not end normally", id="exit code is no number"),
        pytest.param([failure(reason="InternalError")], "did not end normally", id="the runtime failed"),
    ],
)
def test_outcome_is_unknown_after_a_malformed_answer(messages, why):
    with pytest.raises(OutcomeUnknown, match=why):
        run(sends(*messages))


def test_empty_and_unknown_channels_are_ignored():
    assert run(sends(b"", b"\x09?", b"\x03", SUCCESS)).exit_code == 0


def test_refusal_has_the_message_of_the_api_server():
    def refuse(websocket, request):
        return websocket.respond(HTTPStatus.FORBIDDEN, json.dumps({"message": "pods/exec is forbidden"}))

    with pytest.raises(ApiRefusal, match="HTTP 403: pods/exec is forbidden") as caught:
        run(until_gone, answer=refuse)

    assert caught.value.status == 403


def test_redirect_is_not_followed():
    def redirect(websocket, request):
        response = websocket.respond(HTTPStatus.FOUND, "elsewhere")
        response.headers["Location"] = "ws://127.0.0.1:1/"
        return response

    with pytest.raises(ClusterUnreachable):
        run(until_gone, answer=redirect)


@pytest.mark.parametrize(
    "answer",
    [b"", b"SSH-2.0-server\r\n", b"HTTP/1.1 101 Switching\r\n\r\n", b"\xff" * 70_000],
    ids=["nothing", "ssh", "no handshake", "noise"],
)
def test_other_programs_are_not_taken_for_an_api_server(answer):
    with answering(answer) as port, pytest.raises(ClusterUnreachable):
        ExecClient(connection(f"http://127.0.0.1:{port}")).run(PLACE, ("true",), RequestDeadline(PATIENCE_S))


def test_silent_server_is_unreachable_at_the_deadline():
    with socket.create_server(("127.0.0.1", 0)) as listening, pytest.raises(ClusterUnreachable, match="within"):
        port = listening.getsockname()[1]
        ExecClient(connection(f"http://127.0.0.1:{port}")).run(PLACE, ("true",), RequestDeadline(0.3))


@contextmanager
def answering(raw):
    """A server that answers each connection with these bytes."""
    listening = socket.create_server(("127.0.0.1", 0))

    def answer():
        peer, _ = listening.accept()
        with peer:
            peer.recv(65_536)
            peer.sendall(raw)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        thread.join()
        listening.close()


def without_key_identifier(file, key_file, authority_key_file):
    """Sign the certificate of a server again, without the identifier of the authority's key."""
    old = x509.load_pem_x509_certificate(file.read_bytes())
    names = old.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    new = x509.CertificateBuilder(old.issuer, old.subject, old.public_key(), old.serial_number)
    new = new.not_valid_before(old.not_valid_before_utc).not_valid_after(old.not_valid_after_utc)
    authority_key = serialization.load_pem_private_key(authority_key_file.read_bytes(), None)
    signed = new.add_extension(names.value, critical=False).sign(authority_key, hashes.SHA256())
    file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    return file, key_file


@pytest.mark.parametrize("has_key_identifier", [True, False])
def test_certificate_is_checked_for_the_server_name(tmp_path, has_key_identifier):
    files = pki.create_server_certificate(tmp_path, "127.0.0.1")
    if not has_key_identifier:
        files = without_key_identifier(*files, tmp_path / "ca.key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    ca = (tmp_path / "ca.crt").read_text()

    with serving(sends(SUCCESS), ssl=context) as (port, _):
        server = f"https://127.0.0.1:{port}"
        good = ExecClient(connection(server, ca=ca)).run(PLACE, ("true",), RequestDeadline(PATIENCE_S))
        with pytest.raises(ClusterUnreachable, match="certificate verify failed"):
            ExecClient(connection(server, ca=ca, server_name="other.example")).run(
                PLACE, ("true",), RequestDeadline(PATIENCE_S)
            )

    assert good.exit_code == 0
