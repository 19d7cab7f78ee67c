"""Classification of failed requests by what may have happened, with a server that responds as each test needs."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from scheduling.backends.base import ClusterUnreachable, OutcomeUnknown, PlacementRejected, RequestRejected
from scheduling.backends.opening import open_backend
from scheduling.backends.senders import ServiceTokenIdentities
from tests.patience import PATIENCE_S
from tests.scheduling.backends.test_dialect import recorded, submission

HANG_UP, HANG = object(), object()


@contextmanager
def slurmrestd(answers, api="v0.0.42"):
    """A server with configured responses; yields its address and the list of received requests.

    `answers` maps "METHOD /what" (accounting: "METHOD /slurmdb/what") to (status, body), HANG_UP or HANG. Versions
    other than `api` respond with 404.
    """
    requests, hanging = [], threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def answer(self):
            length = int(self.headers.get("Content-Length", 0))
            requests.append((self.command, self.path, self.rfile.read(length), dict(self.headers)))
            route = _what(self.path, api)
            response = answers.get(f"{self.command} {route}", (404, "not here")) if route else (404, "no such version")
            if response is HANG_UP:
                return
            if response is HANG:
                hanging.wait(PATIENCE_S)
                return
            status, content = response
            text = content if isinstance(content, str) else json.dumps(content)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_POST = do_DELETE = answer

        def log_message(self, *_):
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", requests
    finally:
        hanging.set()
        server.shutdown()
        server.server_close()


def _what(path, api):
    """The part of the path after the version; empty for a version that the server does not support."""
    controller, accounting = path.partition(f"/slurm/{api}")[2], path.partition(f"/slurmdb/{api}")[2]
    return (controller or (f"/slurmdb{accounting}" if accounting else "")).partition("?")[0]


UP = {"GET /ping": (200, {"pings": [{"pinged": "UP"}], "errors": []})}
NO_TIME = {"errors": [{"error_number": 5004, "error": "Socket timed out"}]}
REFUSED = {"errors": [{"error_number": 2014, "error": "Requested node configuration is not available"}]}


@contextmanager
def talking(answers, **options):
    """A backend with a long timeout, or with a short one and a fixed version if the server hangs."""
    hangs = {"timeout_s": 0.3, "api": "v0.0.42"} if HANG in answers.values() else {"timeout_s": PATIENCE_S}
    with slurmrestd(UP | answers) as (address, requests):
        backend = open_backend(address, **hangs | options)
        yield backend, requests
        backend.close()


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (HANG_UP, OutcomeUnknown),
        (HANG, OutcomeUnknown),
        ((500, "oops"), OutcomeUnknown),
        ((502, ""), OutcomeUnknown),
        ((200, "not json"), OutcomeUnknown),
        ((200, {"errors": []}), OutcomeUnknown),
        ((500, NO_TIME), OutcomeUnknown),
        ((500, REFUSED), RequestRejected),
        ((400, REFUSED), RequestRejected),
        ((413, "too large"), RequestRejected),
        ((401, "Authentication failure"), ClusterUnreachable),
        ((429, "later"), ClusterUnreachable),
        ((404, "no such path"), ClusterUnreachable),
        ((500, {"errors": [{"error_number": 1800, "error": "connect failure"}]}), ClusterUnreachable),
        (
            (500, {"job_id": 7, "errors": [{"error_number": 7000, "error": "Unable to connect to database"}]}),
            OutcomeUnknown,
        ),
    ],
)
def test_failed_submission_is_classified_by_what_may_have_happened(response, error):
    with talking({"POST /job/submit": response}) as (backend, _), pytest.raises(error):
        backend.submit(submission())


def test_rejection_has_slurms_message():
    with (
        talking({"POST /job/submit": (500, REFUSED)}) as (backend, _),
        pytest.raises(RequestRejected, match=r"^Requested node configuration is not available$"),
    ):
        backend.submit(submission())


@pytest.mark.parametrize(
    ("number", "words", "kind"),
    [
        (2068, "Required node not available (down, drained or reserved)", PlacementRejected),
        (2014, "Requested node configuration is not available", PlacementRejected),
        (2101, "Partition in DOWN state", PlacementRejected),
        (2045, "Invalid account or account/partition combination specified", RequestRejected),
        (2051, "Job violates accounting/QOS policy", RequestRejected),
    ],
)
@pytest.mark.parametrize("api", ["v0.0.38", "v0.0.42"])
def test_rejection_distinguishes_the_job_from_its_placement(api, number, words, kind):
    rejection = {"errors": [{"error_number": number, "error": words}, {"error_number": 9000, "error": "gave up"}]}
    with slurmrestd(UP | {"POST /job/submit": (500, rejection)}, api=api) as (address, _):
        backend = open_backend(address, timeout_s=PATIENCE_S)
        (result,) = backend.submit_all([submission()])
        backend.close()

    assert type(result) is kind
    assert str(result) == words


def test_results_of_many_submissions_are_in_the_order_of_the_requests():
    with slurmrestd(UP | {"POST /job/submit": (200, {"job_id": 7, "errors": []})}) as (address, requests):
        backend = open_backend(address)
        assert backend.submit_all([submission()] * 20) == ["7"] * 20
        backend.close()
    assert sum("submit" in path for _, path, _, _ in requests) == 20


def test_unreachable_cluster_is_not_asked_once_per_submission():
    with talking({"POST /job/submit": (429, "later")}) as (backend, requests):
        answers = backend.submit_all([submission()] * 60)
    assert {type(answer) for answer in answers} == {ClusterUnreachable}
    assert sum("submit" in path for _, path, _, _ in requests) < 30


@pytest.mark.parametrize(
    "said", [HANG_UP, HANG, (500, "oops"), (404, ""), (200, "[]"), (200, {"jobs": 7}), (200, {"jobs": [{}]})]
)
def test_failed_read_is_unreachable(said):
    with talking({"GET /jobs": said}) as (backend, _), pytest.raises(ClusterUnreachable):
        backend.jobs()


def test_message_for_a_malformed_response_names_the_field():
    with (
        talking({"GET /jobs": (200, {"jobs": [{"job_id": 1, "job_state": 5}]})}) as (backend, _),
        pytest.raises(ClusterUnreachable, match="job_state is a int"),
    ):
        backend.jobs()


def test_submission_without_a_server_is_unreachable():
    backend = open_backend("http://127.0.0.1:9", api="v0.0.42")

    with pytest.raises(ClusterUnreachable):
        backend.submit(submission())


def test_controller_that_is_down_is_unreachable_although_slurmrestd_responds():
    with (
        talking({"GET /ping": (200, {"pings": [{"pinged": "DOWN"}]})}) as (backend, _),
        pytest.raises(ClusterUnreachable, match="controller"),
    ):
        backend.ping()


def test_version_is_negotiated_once_newest_first():
    with talking({"GET /nodes": (200, {"nodes": []})}) as (backend, requests):
        backend.nodes()
        backend.nodes()

    paths = [path for _, path, _, _ in requests]
    assert paths[:4] == [f"/slurm/v0.0.{n}/ping" for n in (45, 44, 43, 42)]
    assert [path.partition("?")[0] for path in paths[4:]] == ["/slurm/v0.0.42/nodes"] * 2


def test_version_is_negotiated_again_after_an_upgrade():
    with slurmrestd(UP | {"GET /nodes": (200, {"nodes": []})}) as (address, _):
        backend = open_backend(address, api="v0.0.38")
        with pytest.raises(ClusterUnreachable):
            backend.nodes()

        assert backend.nodes() == []
        backend.close()


def test_missing_common_version_is_unreachable():
    with slurmrestd({}, api="v0.0.99") as (address, _), pytest.raises(ClusterUnreachable, match="speaks none of"):
        open_backend(address).nodes()


def test_token_is_sent_in_its_header():
    with talking({}, user="ada", token="s3cret") as (backend, requests):
        backend.ping()

    headers = {name.lower(): value for name, value in requests[-1][3].items()}
    assert (headers["x-slurm-user-name"], headers["x-slurm-user-token"]) == ("ada", "s3cret")


@pytest.mark.parametrize("wish", [{"image": "torch:24.01"}, {"mounts": ("data",)}], ids=["image", "mounts"])
def test_job_with_a_container_image_or_mounts_is_refused_and_not_sent(wish):
    with (
        talking({"POST /job/submit": (200, {"job_id": 7})}) as (backend, requests),
        pytest.raises(RequestRejected, match="cannot run container images"),
    ):
        backend.submit(submission(**wish))

    assert not [path for verb, path, *_ in requests if verb == "POST"]


@pytest.mark.parametrize("version", ["v0.0.38", "v0.0.42"])
@pytest.mark.parametrize("status", [200, 404, 500])
def test_cancelling_an_unknown_job_does_not_fail_in_any_version(version, status):
    with talking({"DELETE /job/99999": (status, recorded(version)["cancel_unknown"])}) as (backend, _):
        backend.cancel("99999")


def test_forbidden_cancellation_is_rejected_despite_status_200():
    outcome = {"status": [{"error": {"code": 2010, "string": "Access/permission denied"}}], "errors": []}
    with (
        talking({"DELETE /job/5": (200, outcome)}) as (backend, _),
        pytest.raises(RequestRejected, match="permission denied"),
    ):
        backend.cancel("5")


@pytest.mark.parametrize(("shell", "flags"), [(True, "BATCH_JOB"), (False, "FULL_STEPS_ONLY")])
def test_signal_names_the_processes_that_get_it(shell, flags):
    with slurmrestd({**UP, "DELETE /job/7": (200, {"errors": []})}) as (address, requests):
        open_backend(address).signal("7", "USR1", shell=shell)

    assert requests[-1][:2] == ("DELETE", f"/slurm/v0.0.42/job/7?signal=USR1&flags={flags}")


def test_version_without_signal_flags_signals_only_jobs_whose_shell_expects_it():
    with slurmrestd({**UP, "DELETE /job/7": (200, {"errors": []})}, api="v0.0.38") as (address, requests):
        with pytest.raises(RequestRejected, match=r"uses API v0\.0\.38"):
            open_backend(address).signal("7", "USR1", shell=False)
        open_backend(address).signal("7", "USR1", shell=True)

    assert requests[-1][1] == "/slurm/v0.0.38/job/7?signal=USR1"


def test_signal_for_an_ended_job_does_not_fail():
    gone = {"errors": [{"error_number": 2021, "error": "Job/step already completing or completed"}]}
    with slurmrestd({**UP, "DELETE /job/7": (500, gone)}) as (address, _):
        open_backend(address).signal("7", "USR1", shell=True)


def test_node_name_cannot_escape_its_path():
    with talking({}) as (backend, requests), pytest.raises((RequestRejected, ClusterUnreachable)):
        backend.drain("../job/5", "x")

    assert "/node/..%2Fjob%2F5" in requests[-1][1]


@pytest.mark.parametrize("address", ["ftp://x", "slurm:6820", "unix://run/slurm.sock", ""])
def test_address_without_a_backend_is_rejected_with_one_sentence(address):
    with pytest.raises(ValueError) as refused:
        open_backend(address)

    assert str(refused.value) == (
        "address must begin with http://, https://, unix:/// or kubernetes://, for example http://host:6820."
    )


def seen_as(user):
    return (200, {"jobs": [{"job_id": 7, "user_name": user, "job_state": ["PENDING"], "comment": "acme:a1"}]})


def submitting(user_seen, **more):
    return talking(
        {"POST /job/submit": (200, {"job_id": 7}), "GET /job/7": seen_as(user_seen), "DELETE /job/7": (200, {})},
        user="acme",
        token="t",
        senders=ServiceTokenIdentities(service_user="acme", token="t"),
        api="v0.0.42",
        **more,
    )


def names_sent(requests):
    return [(method, headers["X-SLURM-USER-NAME"]) for method, _, _, headers in requests]


def test_submission_names_its_user_and_other_requests_the_service():
    with submitting("ada") as (backend, requests):
        backend.submit(submission(user="ada"))
        backend.cancel("7")

    assert names_sent(requests) == [("POST", "ada"), ("GET", "acme"), ("DELETE", "acme")]


def test_first_job_of_a_user_is_read_back_and_later_ones_are_not():
    with submitting("ada") as (backend, requests):
        for _ in range(3):
            assert backend.submit(submission(user="ada")) == "7"

    assert [method for method, *_ in requests] == ["POST", "GET", "POST", "POST"]


@pytest.mark.parametrize("other", ["", "nobody"])
def test_job_that_slurm_assigned_to_another_user_is_cancelled_and_rejected(other):
    with (
        submitting(other) as (backend, requests),
        pytest.raises(RequestRejected, match="user ada does not exist on the cluster"),
    ):
        backend.submit(submission(user="ada"))

    assert names_sent(requests)[-1] == ("DELETE", "acme")


def test_node_tests_are_submitted_as_the_service():
    with submitting("acme") as (backend, requests):
        backend.submit(submission(user=""))

    assert names_sent(requests) == [("POST", "acme")]


def test_user_without_an_identity_is_rejected_before_anything_is_sent():
    with submitting("root") as (backend, requests):
        answers = backend.submit_all([submission(user="root"), submission(user="ada", key="b")])

    assert isinstance(answers[0], RequestRejected)
    assert ("POST", "root") not in names_sent(requests)
