"""Signals to pods: all at once, pods that have ended are no error, and what goes wrong is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from http import HTTPStatus

import pytest

from acmeweb.common.http_client import RequestDeadline
from scheduling.backends.base import ClusterUnreachable, OutcomeUnknown, RequestRejected, RequestTimedOut
from scheduling.backends.kubernetes.api_client import ApiClient
from scheduling.backends.kubernetes.connection.access import KubernetesAddress
from scheduling.backends.kubernetes.containers.exec_client import ContainerPlace
from scheduling.backends.kubernetes.containers.signals import SIGNAL_ALL, SIGNAL_SCRIPT, SignaledPod, signal_pods
from scheduling.backends.kubernetes.pod_script import PROCESS_VARIABLE
from tests.patience import PATIENCE_S
from tests.scheduling.backends.kubernetes.containers.exec_server import SUCCESS, failure, serving

RUNNING, FAILED = ({"status": {"phase": phase}} for phase in ("Running", "Failed"))
KEY = "i.0vq3.1"


def signal_all(handler, pods=1, name="USR1", pod=RUNNING, refusal=None, timeout_s=PATIENCE_S, shell=False):
    """Signal pods of a server with this handler; returns the requests that it got."""

    def answer(websocket, request):
        if "/exec" in request.path:
            return websocket.respond(*refusal) if refusal else None
        status = HTTPStatus.OK if pod else HTTPStatus.NOT_FOUND
        return websocket.respond(status, json.dumps(pod or {"message": "not found"}))

    with serving(handler, answer) as (port, requests):
        kubeconfig = json.dumps(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c"}}],
                "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            }
        )
        places = [ContainerPlace(namespace="jobs", pod=f"a-{rank}", container="job") for rank in range(pods)]
        signaled = [SignaledPod(place=place, rank=rank) for rank, place in enumerate(places)]
        with closing(ApiClient(KubernetesAddress(kubeconfig="k"), lambda _: kubeconfig, PATIENCE_S)) as api:
            signal_pods(api, signaled, KEY, name, RequestDeadline(timeout_s), shell=shell)
        return requests


def succeeds(websocket):
    websocket.send(SUCCESS)


def hangs(websocket):
    for _ in websocket:
        pass


def test_all_pods_get_the_signal():
    requests = signal_all(succeeds, pods=40)

    paths = {request.path.partition("?")[0] for request in requests}
    assert paths == {f"/api/v1/namespaces/jobs/pods/a-{rank}/exec" for rank in range(40)}


def test_pods_that_hang_share_one_deadline():
    began = time.monotonic()

    with pytest.raises(RequestTimedOut):
        signal_all(hangs, pods=100, timeout_s=1)

    assert time.monotonic() - began < PATIENCE_S


@pytest.mark.parametrize(
    "pod",
    [None, FAILED, {"status": {"phase": "Running", "containerStatuses": [{"state": {"terminated": {"exitCode": 1}}}]}}],
    ids=["deleted", "failed", "its container has ended"],
)
@pytest.mark.parametrize("handler", [lambda websocket: None, lambda websocket: websocket.send(failure("1"))])
def test_pod_that_has_ended_meanwhile_is_no_error(pod, handler):
    assert len(signal_all(handler, pod=pod)) == 2


def test_container_that_is_not_found_any_more_is_no_error_if_its_pod_has_ended():
    refusal = (HTTPStatus.INTERNAL_SERVER_ERROR, json.dumps({"message": 'container not found ("job")'}))

    signal_all(succeeds, pod=FAILED, refusal=refusal)


@pytest.mark.parametrize(
    ("status", "error"),
    [(HTTPStatus.FORBIDDEN, RequestRejected), (HTTPStatus.INTERNAL_SERVER_ERROR, ClusterUnreachable)],
    ids=["forbidden", "kubelet away"],
)
def test_refusal_of_a_running_pod_has_its_message(status, error):
    with pytest.raises(error, match="says no"):
        signal_all(succeeds, refusal=(status, json.dumps({"message": "says no"})))


def test_command_that_fails_in_a_running_pod_is_rejected_with_its_message():
    def handler(websocket):
        websocket.send(b"\x02sh: tr: not found\n")
        websocket.send(failure("127"))

    with pytest.raises(RequestRejected, match="pod a-0: exit code 127"):
        signal_all(handler)


def test_lost_answer_of_a_running_pod_leaves_the_outcome_unknown():
    with pytest.raises(OutcomeUnknown):
        signal_all(lambda websocket: None)


@pytest.mark.parametrize("name", ["", "usr1", "USR1; rm -rf /", "-9", "9", "A" * 30])
def test_only_names_of_signals_are_sent(name):
    with pytest.raises(RequestRejected, match="is not a signal"):
        signal_all(succeeds, name=name)


# --- the commands themselves, on this host


READY = """
import signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))
print("ready", flush=True)
time.sleep(600)
"""


@contextmanager
def process(**environment):
    command = [sys.executable, "-c", READY]
    with subprocess.Popen(command, env={"PATH": os.environ["PATH"], **environment}, stdout=subprocess.PIPE) as started:
        try:
            assert started.stdout.readline() == b"ready\n"
            yield started
        finally:
            started.kill()


def run(script, key, suffix, **environment):
    words = ["sh", "-c", script, "acme", "USR1", f"{PROCESS_VARIABLE}={key}", suffix]
    return subprocess.run(words, env={"PATH": os.environ["PATH"], **environment}, timeout=PATIENCE_S).returncode


def test_command_signals_processes_with_exactly_this_key():
    key = f"i.test{os.getpid()}.1"
    with (
        process(ACME_PROCESS_OF=key, OTHER="x") as first,
        process(A="b", ACME_PROCESS_OF=key) as second,
        process(ACME_PROCESS_OF=f"{key}0") as longer,
        process(NOT_ACME_PROCESS_OF=key) as other,
    ):
        assert run(SIGNAL_ALL, key, "unused") == 0

        assert (first.wait(PATIENCE_S), second.wait(PATIENCE_S)) == (7, 7)
        assert (longer.poll(), other.poll()) == (None, None)


def test_command_signals_the_script_in_the_file_if_it_belongs_to_the_job(tmp_path):
    key = f"i.file{os.getpid()}.1"
    with process(ACME_PROCESS_OF=key) as script, process(ACME_PROCESS_OF=key) as trainer, process() as reused:
        (tmp_path / f"acme-{key}-0.pid").write_text(f"{script.pid}\n")
        (tmp_path / f"acme-{key}-1.pid").write_text(f"{reused.pid}\n")

        codes = [run(SIGNAL_SCRIPT, key, f"{key}-{rank}", TMPDIR=str(tmp_path)) for rank in range(3)]

        assert codes == [0, 0, 0] and script.wait(PATIENCE_S) == 7
        assert (trainer.poll(), reused.poll()) == (None, None)


def test_command_ignores_a_file_that_names_no_process(tmp_path):
    key = f"i.none{os.getpid()}.1"
    for rank, text in enumerate(("", "x\n", "-1\n", "0\n", "999999999\n", "1 2\n")):
        (tmp_path / f"acme-{key}-{rank}.pid").write_text(text)
        assert run(SIGNAL_SCRIPT, key, f"{key}-{rank}", TMPDIR=str(tmp_path)) == 0
