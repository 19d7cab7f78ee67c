"""What may have happened, told from how the conversation broke off: a tiny server that answers as each test wants."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from scheduling.backends.base import ClusterUnreachable, OutcomeUnknown, PlacementRejected, RequestRejected
from scheduling.backends.opening import open_backend
from scheduling.backends.senders import ServiceTokenIdentities
from tests.backends.test_dialect import recorded, submission
from tests.patience import PATIENCE_S

HANG_UP, HANG = object(), object()


@contextmanager
def slurmrestd(answers, api="v0.0.42"):
    """`answers` maps "METHOD /what" (accounting: "METHOD /slurmdb/what") to (status, body), HANG_UP or HANG; other
    versions than `api` are 404."""
    heard, hanging = [], threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def answer(self):
            length = int(self.headers.get("Content-Length", 0))
            heard.append((self.command, self.path, self.rfile.read(length), dict(self.headers)))
            what = _what(self.path, api)
            said = answers.get(f"{self.command} {what}", (404, "not here")) if what else (404, "no such version")
            if said is HANG_UP:
                return
            if said is HANG:
                hanging.wait(PATIENCE_S)
                return
            status, content = said
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
        yield f"http://127.0.0.1:{server.server_address[1]}", heard
    finally:
        hanging.set()
        server.shutdown()
        server.server_close()


def _what(path, api):
    """Empty for a version that is not spoken here."""
    controller, accounting = path.partition(f"/slurm/{api}")[2], path.partition(f"/slurmdb/{api}")[2]
    return (controller or (f"/slurmdb{accounting}" if accounting else "")).partition("?")[0]


UP = {"GET /ping": (200, {"pings": [{"pinged": "UP"}], "errors": []})}
NO_TIME = {"errors": [{"error_number": 5004, "error": "Socket timed out"}]}
REFUSED = {"errors": [{"error_number": 2014, "error": "Requested node configuration is not available"}]}


@contextmanager
def talking(answers, **options):
    """Patient, but where the server hangs; there the version is known already, so that nothing else runs out."""
    hangs = {"timeout_s": 0.3, "api": "v0.0.42"} if HANG in answers.values() else {"timeout_s": PATIENCE_S}
    with slurmrestd(UP | answers) as (address, heard):
        backend = open_backend(address, **hangs | options)
        yield backend, heard
        backend.close()


@pytest.mark.parametrize(
    ("said", "error"),
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
def test_what_became_of_a_submission(said, error):
    with talking({"POST /job/submit": said}) as (backend, _), pytest.raises(error):
        backend.submit(submission())


def test_a_refusal_is_in_slurms_words():
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
def test_a_refusal_is_about_the_job_or_about_the_place_now(api, number, words, kind):
    no = {"errors": [{"error_number": number, "error": words}, {"error_number": 9000, "error": "gave up"}]}
    with slurmrestd(UP | {"POST /job/submit": (500, no)}, api=api) as (address, _):
        backend = open_backend(address, timeout_s=PATIENCE_S)
        (answer,) = backend.submit_all([submission()])
        backend.close()

    assert type(answer) is kind
    assert str(answer) == words


def test_many_submissions_are_answered_in_the_order_asked():
    with slurmrestd(UP | {"POST /job/submit": (200, {"job_id": 7, "errors": []})}) as (address, heard):
        backend = open_backend(address)
        assert backend.submit_all([submission()] * 20) == ["7"] * 20
        backend.close()
    assert sum("submit" in path for _, path, _, _ in heard) == 20


def test_a_cluster_that_is_away_is_not_asked_for_each_of_many():
    with talking({"POST /job/submit": (429, "later")}) as (backend, heard):
        answers = backend.submit_all([submission()] * 60)
    assert {type(answer) for answer in answers} == {ClusterUnreachable}
    assert sum("submit" in path for _, path, _, _ in heard) < 30


@pytest.mark.parametrize(
    "said", [HANG_UP, HANG, (500, "oops"), (404, ""), (200, "[]"), (200, {"jobs": 7}), (200, {"jobs": [{}]})]
)
def test_a_look_that_goes_wrong_is_unreachable(said):
    with talking({"GET /jobs": said}) as (backend, _), pytest.raises(ClusterUnreachable):
        backend.jobs()


def test_an_odd_answer_names_the_field():
    with (
        talking({"GET /jobs": (200, {"jobs": [{"job_id": 1, "job_state": 5}]})}) as (backend, _),
        pytest.raises(ClusterUnreachable, match="job_state is a int"),
    ):
        backend.jobs()


def test_nobody_listening_is_unreachable_for_deeds_too():
    backend = open_backend("http://127.0.0.1:9", api="v0.0.42")

    with pytest.raises(ClusterUnreachable):
        backend.submit(submission())


def test_a_controller_that_is_away_is_unreachable_though_slurmrestd_answers():
    with (
        talking({"GET /ping": (200, {"pings": [{"pinged": "DOWN"}]})}) as (backend, _),
        pytest.raises(ClusterUnreachable, match="controller"),
    ):
        backend.ping()


def test_the_version_is_asked_for_once_newest_first():
    with talking({"GET /nodes": (200, {"nodes": []})}) as (backend, heard):
        backend.nodes()
        backend.nodes()

    asked = [path for _, path, _, _ in heard]
    assert asked[:4] == [f"/slurm/v0.0.{n}/ping" for n in (45, 44, 43, 42)]
    assert [path.partition("?")[0] for path in asked[4:]] == ["/slurm/v0.0.42/nodes"] * 2


def test_an_upgrade_is_noticed_and_the_version_asked_for_again():
    with slurmrestd(UP | {"GET /nodes": (200, {"nodes": []})}) as (address, _):
        backend = open_backend(address, api="v0.0.38")
        with pytest.raises(ClusterUnreachable):
            backend.nodes()

        assert backend.nodes() == []
        backend.close()


def test_no_common_version_is_unreachable():
    with slurmrestd({}, api="v0.0.99") as (address, _), pytest.raises(ClusterUnreachable, match="speaks none of"):
        open_backend(address).nodes()


def test_the_token_travels_in_its_headers():
    with talking({}, user="ada", token="s3cret") as (backend, heard):
        backend.ping()

    headers = {name.lower(): value for name, value in heard[-1][3].items()}
    assert (headers["x-slurm-user-name"], headers["x-slurm-user-token"]) == ("ada", "s3cret")


@pytest.mark.parametrize("version", ["v0.0.38", "v0.0.42"])
@pytest.mark.parametrize("status", [200, 404, 500])
def test_cancelling_an_unknown_job_is_no_error_however_it_is_said(version, status):
    with talking({"DELETE /job/99999": (status, recorded(version)["cancel_unknown"])}) as (backend, _):
        backend.cancel("99999")


def test_a_cancellation_that_is_not_allowed_is_refused_though_the_answer_is_200():
    outcome = {"status": [{"error": {"code": 2010, "string": "Access/permission denied"}}], "errors": []}
    with (
        talking({"DELETE /job/5": (200, outcome)}) as (backend, _),
        pytest.raises(RequestRejected, match="permission denied"),
    ):
        backend.cancel("5")


@pytest.mark.parametrize(("shell", "flags"), [(True, "BATCH_JOB"), (False, "FULL_STEPS_ONLY")])
def test_a_signal_says_whom_it_is_for(shell, flags):
    with slurmrestd({**UP, "DELETE /job/7": (200, {"errors": []})}) as (address, heard):
        open_backend(address).signal("7", "USR1", shell=shell)

    assert heard[-1][:2] == ("DELETE", f"/slurm/v0.0.42/job/7?signal=USR1&flags={flags}")


def test_a_version_that_signals_everybody_signals_only_jobs_whose_shell_expects_it():
    with slurmrestd({**UP, "DELETE /job/7": (200, {"errors": []})}, api="v0.0.38") as (address, heard):
        with pytest.raises(RequestRejected, match=r"speaks v0\.0\.38"):
            open_backend(address).signal("7", "USR1", shell=False)
        open_backend(address).signal("7", "USR1", shell=True)

    assert heard[-1][1] == "/slurm/v0.0.38/job/7?signal=USR1"


def test_a_signal_for_a_job_that_is_gone_is_no_error():
    gone = {"errors": [{"error_number": 2021, "error": "Job/step already completing or completed"}]}
    with slurmrestd({**UP, "DELETE /job/7": (500, gone)}) as (address, _):
        open_backend(address).signal("7", "USR1", shell=True)


def test_a_node_name_cannot_leave_its_path():
    with talking({}) as (backend, heard), pytest.raises((RequestRejected, ClusterUnreachable)):
        backend.drain("../job/5", "x")

    assert "/node/..%2Fjob%2F5" in heard[-1][1]


@pytest.mark.parametrize("address", ["ftp://x", "slurm:6820", ""])
def test_an_address_of_no_kind_is_refused_with_a_sentence(address):
    with pytest.raises(ValueError, match="address"):
        open_backend(address)


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


def names_sent(heard):
    return [(method, headers["X-SLURM-USER-NAME"]) for method, _, _, headers in heard]


def test_submission_names_its_user_and_everything_else_the_service():
    with submitting("ada") as (backend, heard):
        backend.submit(submission(user="ada"))
        backend.cancel("7")

    assert names_sent(heard) == [("POST", "ada"), ("GET", "acme"), ("DELETE", "acme")]


def test_first_job_of_a_user_is_read_back_and_later_ones_are_not():
    with submitting("ada") as (backend, heard):
        for _ in range(3):
            assert backend.submit(submission(user="ada")) == "7"

    assert [method for method, *_ in heard] == ["POST", "GET", "POST", "POST"]


@pytest.mark.parametrize("other", ["", "nobody"])
def test_job_that_slurm_gave_to_another_user_is_cancelled_and_refused(other):
    with submitting(other) as (backend, heard), pytest.raises(RequestRejected, match="the cluster knows no user ada"):
        backend.submit(submission(user="ada"))

    assert names_sent(heard)[-1] == ("DELETE", "acme")


def test_tests_of_nodes_are_submitted_as_the_service():
    with submitting("acme") as (backend, heard):
        backend.submit(submission(user=""))

    assert names_sent(heard) == [("POST", "acme")]


def test_user_without_a_sender_is_refused_before_anything_is_sent():
    with submitting("root") as (backend, heard):
        answers = backend.submit_all([submission(user="root"), submission(user="ada", key="b")])

    assert isinstance(answers[0], RequestRejected)
    assert ("POST", "root") not in names_sent(heard)
