"""The simulated cluster as a process: its API, durability across kill -9, and logs that continue after a restart."""

from __future__ import annotations

import os
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from jobs.core.lifecycle import State
from scheduling.backends import telemetry
from scheduling.backends.base import AccountingUnavailable, BackendError, ClusterUnreachable, RequestRejected
from scheduling.backends.opening import open_backend
from scheduling.simulation.slurm.options import parse_options
from tests.patience import until
from tests.scheduling.backends.test_dialect import submission

from .running import ClusterProcess

API = "/slurm/v0.0.42"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with ClusterProcess(tmp_path_factory.mktemp("cluster"), "--nodes", "4") as process:
        yield process


@pytest.fixture
def http(cluster):
    with httpx.Client(base_url=cluster.address, headers=cluster.headers) as client:
        yield client


def make_submission(cluster: ClusterProcess, key: str, **changed):
    plain = {
        "key": key,
        "nodes": ("seren-001",),
        "gpus_per_node": 1,
        "cpus_per_node": 1,
        "environment": {"SIM_DURATION_S": "600", "ACME_KIND": "pretrain"},
        "stdout": str(cluster.log_root / f"{key}.log"),
    }
    return submission(**{**plain, **changed})


def test_server_is_healthy_and_exports_every_gpu(cluster, http):
    assert http.get("/healthz").status_code == 200
    assert len(telemetry.read_exporter(f"{cluster.address}/metrics").gpus) == 32


@pytest.mark.parametrize(
    "path", ["diag", "partitions", "reservations", "jobs/state/", "jobs", "nodes", "node/seren-001"]
)
def test_every_response_has_errors_warnings_and_meta(http, path):
    answer = http.get(f"{API}/{path}")

    assert answer.status_code == 200
    assert answer.json()["errors"] == answer.json()["warnings"] == []
    assert answer.json()["meta"]["slurm"]["cluster"] == "seren"


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("GET", "/slurm/v0.0.38/ping", b"", 404),
        ("GET", f"{API}/job/99999", b"", 404),
        ("GET", f"{API}/job/abc", b"", 422),
        ("GET", f"{API}/node/nowhere", b"", 500),
        ("POST", f"{API}/job/submit", b"{", 400),
        ("POST", f"{API}/job/submit", b"[" * 100_000, 400),
        ("POST", f"{API}/job/submit", b"[]", 500),
        ("POST", f"{API}/job/submit", b"{}", 500),
        ("POST", f"{API}/job/submit", b" " * (4 * 1024 * 1024 + 1), 413),
        ("POST", f"{API}/node/seren-001", b'{"state": ["FOO"]}', 500),
        ("POST", f"{API}/node/seren-001", b'{"state": ["DRAIN"]}', 500),
        ("DELETE", f"{API}/job/1?signal=FOO", b"", 500),
    ],
)
def test_invalid_requests_get_an_error_response(http, method, path, content, status):
    answer = http.request(method, path, content=content, headers={"Content-Type": "application/json"})

    assert answer.status_code == status
    assert "Traceback" not in answer.text


# Fields that Slurm-web's agent and the Prometheus exporters read, including those that they divide by or index into
READ_BY_OTHERS = {
    "nodes": {"name", "cpus", "sockets", "cores", "real_memory", "state", "reason", "partitions", "alloc_cpus"}
    | {"alloc_idle_cpus", "alloc_memory", "gres", "gres_used", "architecture", "version", "boot_time"}
    | {"operating_system", "last_busy", "threads"},
    "jobs": {"job_id", "user_name", "account", "name", "job_state", "state_reason", "partition", "nodes", "node_count"}
    | {"cpus", "priority", "qos", "submit_time", "start_time", "end_time", "time_limit", "exit_code", "gres_detail"}
    | {"tres_req_str", "tres_alloc_str", "standard_output", "current_working_directory", "sockets_per_node"}
    | {"tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task", "batch_flag", "shared"},
}
ACCOUNTED = {
    "association",
    "comment",
    "derived_exit_code",
    "exit_code",
    "group",
    "name",
    "nodes",
    "partition",
    "priority",
}
ACCOUNTED |= {"qos", "script", "state", "steps", "submit_line", "time", "tres", "used_gres", "user", "wckey"}
ACCOUNTED |= {"working_directory"}


@pytest.mark.parametrize("what", READ_BY_OTHERS)
def test_responses_contain_the_fields_that_other_clients_read(cluster, http, what):
    backend = cluster.backend()
    backend.submit(make_submission(cluster, f"read-{what}"))
    backend.close()

    row = http.get(f"{API}/{what}").json()[what][0]

    assert READ_BY_OTHERS[what] <= set(row)


def test_accounting_lists_the_same_jobs(cluster, http):
    backend = cluster.backend()
    job_id = backend.submit(make_submission(cluster, "accounted", nodes=("seren-001", "seren-002"), cpus_per_node=2))
    until(lambda: backend.find("accounted").state == State.RUNNING)
    backend.close()

    (row,) = http.get(f"/slurmdb/v0.0.42/job/{job_id}").json()["jobs"]
    listed = http.get("/slurmdb/v0.0.42/jobs").json()["jobs"]

    assert set(row) >= ACCOUNTED
    assert row["state"]["current"] == ["RUNNING"]
    assert {one["type"]: one["count"] for one in row["tres"]["allocated"]} == {
        "cpu": 4,
        "mem": 2000,
        "node": 2,
        "gres": 2,
    }
    assert row["time"]["submission"] <= row["time"]["start"]
    assert row["job_id"] in {one["job_id"] for one in listed}


def test_accounting_of_an_unknown_job_is_empty(http):
    answer = http.get("/slurmdb/v0.0.42/job/99999")

    assert answer.status_code == 200
    assert answer.json()["jobs"] == answer.json()["errors"] == []


SHORT = {"SIM_DURATION_S": "0.2", "SIM_END": "FAILED:3", "ACME_KIND": "pretrain"}


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory):
    """A cluster that forgets jobs after a second, and the id of a forgotten job."""
    with ClusterProcess(tmp_path_factory.mktemp("forgetful"), "--nodes", "2", "--min-job-age", "1") as cluster:
        backend = cluster.backend()
        job_id = backend.submit(make_submission(cluster, "brief", environment=SHORT))
        until(lambda: backend.find("brief") is None)
        backend.close()
        yield cluster, job_id


def get(cluster: ClusterProcess, path: str, **query) -> httpx.Response:
    return httpx.get(f"{cluster.address}{path}", headers=cluster.headers, params=query)


def test_forgotten_job_is_unknown_to_the_controller(forgetful):
    cluster, job_id = forgetful

    answer = get(cluster, f"{API}/job/{job_id}")

    assert answer.status_code == 404
    assert answer.json()["errors"][0]["error_number"] == 2017
    for path in ("jobs", "jobs/state/"):
        assert job_id not in {str(job["job_id"]) for job in get(cluster, f"{API}/{path}").json()["jobs"]}


def test_forgotten_job_is_accounted(forgetful):
    cluster, job_id = forgetful

    (row,) = get(cluster, f"/slurmdb/v0.0.42/job/{job_id}").json()["jobs"]

    assert row["state"]["current"] == ["FAILED"]
    assert row["exit_code"]["return_code"]["number"] == 3
    assert row["comment"]["job"] == "acme:brief"
    assert set(row) >= ACCOUNTED


def test_accounting_lists_forgotten_and_running_jobs_of_a_period(forgetful):
    cluster, forgotten = forgetful
    backend = cluster.backend()
    running = backend.submit(make_submission(cluster, "still"))
    backend.close()

    def listed(**query) -> list[str]:
        rows = get(cluster, "/slurmdb/v0.0.42/jobs", **query).json()["jobs"]
        return [str(row["job_id"]) for row in rows if str(row["job_id"]) in (forgotten, running)]

    assert listed() == [forgotten, running]
    assert listed(start_time=int(time.time()) - 86_400) == [forgotten, running]
    assert listed(start_time=int(time.time()) + 86_400) == [running]
    assert listed(end_time=int(time.time()) - 86_400) == []
    assert listed(users="nobody-of-ours") == []


def test_accounting_rejects_an_invalid_period(forgetful):
    answer = get(forgetful[0], "/slurmdb/v0.0.42/jobs", start_time="soon")

    assert answer.status_code == 422
    assert "start_time: 'soon'" in answer.json()["errors"][0]["error"]


def test_kill_9_loses_neither_forgotten_nor_accounted_jobs(tmp_path):
    with ClusterProcess(tmp_path, "--nodes", "1", "--min-job-age", "1") as cluster:
        backend = cluster.backend()
        job_id = backend.submit(make_submission(cluster, "brief", environment=SHORT))
        until(lambda: get(cluster, f"{API}/job/{job_id}").status_code == 404)
        backend.close()
        cluster.kill()
        cluster.start()

        assert get(cluster, f"{API}/job/{job_id}").status_code == 404
        assert len(get(cluster, f"/slurmdb/v0.0.42/job/{job_id}").json()["jobs"]) == 1


@pytest.mark.parametrize("path", ["jobs", "job/1", "accounts", "associations", "qos"])
def test_cluster_without_accounting_has_no_accounting_api(without_accounting, path):
    """As a real slurmrestd without slurmdbd."""
    assert get(without_accounting, f"/slurmdb/v0.0.42/{path}").status_code == 404


def test_backend_detects_that_a_cluster_has_no_accounting(without_accounting):
    backend = without_accounting.backend()

    with pytest.raises(AccountingUnavailable):
        backend.accounting_jobs_since(datetime.now(UTC))
    backend.close()


def test_cluster_without_accounting_runs_jobs(without_accounting):
    backend = without_accounting.backend()
    backend.submit(make_submission(without_accounting, "fine"))

    assert until(lambda: backend.find("fine")).key == "fine"
    backend.close()


@pytest.fixture(scope="module")
def without_accounting(tmp_path_factory):
    with ClusterProcess(tmp_path_factory.mktemp("without_accounting"), "--nodes", "1", "--no-accounting") as process:
        yield process


def test_clock_of_the_cluster_can_be_set(forgetful):
    cluster, _ = forgetful
    backend = cluster.backend()
    backend.submit(make_submission(cluster, "before"))
    before = backend.find("before").submitted_at

    answer = httpx.post(f"{cluster.address}/clock", json={"offset_s": -7200}, headers=cluster.headers)
    backend.submit(make_submission(cluster, "after"))

    assert answer.json()["offset_s"] == get(cluster, "/clock").json()["offset_s"] == -7200
    assert backend.find("after").submitted_at.timestamp() < before.timestamp() - 3600
    assert backend.find("before").submitted_at == before
    assert get(cluster, f"{API}/diag").json()["statistics"]["req_time"]["number"] < time.time() - 3600
    cluster.kill()
    cluster.start()
    assert get(cluster, "/clock").json()["offset_s"] == -7200
    backend.close()


@pytest.mark.parametrize("offset", [86_401, -86_401, "300", None, True, [300]])
def test_invalid_clock_offset_is_rejected(http, offset):
    answer = http.post("/clock", json={"offset_s": offset})

    assert answer.status_code == 422
    assert "offset_s" in answer.json()["errors"][0]["error"]


@pytest.mark.parametrize("age", ["0", "86401", "1.5", "", "-1", "٣", "soon"])
def test_invalid_job_age_is_rejected_with_the_name_of_the_option(tmp_path, age):
    with pytest.raises(SystemExit, match=r"--min-job-age: .* is not a whole number of seconds from 1 to 86400"):
        parse_options(["--state", str(tmp_path), "--port", "0", f"--min-job-age={age}"])


def test_accounting_lists_accounts_that_have_jobs(cluster, http):
    backend = cluster.backend()
    backend.submit(make_submission(cluster, "known", account="nlp"))
    backend.close()

    accounts = http.get("/slurmdb/v0.0.42/accounts").json()["accounts"]
    associations = http.get("/slurmdb/v0.0.42/associations").json()["associations"]
    (qos,) = http.get("/slurmdb/v0.0.42/qos").json()["qos"]

    assert "nlp" in {one["name"] for one in accounts}
    assert "nlp" in {one["account"] for one in associations}
    assert qos["name"] == http.get(f"{API}/jobs").json()["jobs"][0]["qos"]


def test_missing_node_is_reported_with_slurms_message(http):
    (error,) = http.get(f"{API}/node/nowhere").json()["errors"]

    assert error["description"].startswith("Failure to query node ")


def test_update_time_lists_no_jobs_without_changes(http):
    assert http.get(f"{API}/jobs", params={"update_time": int(time.time()) + 1000}).json()["jobs"] == []


def test_time_limit_of_a_job_can_be_changed(cluster, http):
    backend = cluster.backend()
    job_id = backend.submit(make_submission(cluster, "limit"))

    http.post(f"{API}/job/{job_id}", json={"time_limit": 7}).raise_for_status()

    assert http.get(f"{API}/job/{job_id}").json()["jobs"][0]["time_limit"]["number"] == 7
    backend.cancel(job_id)
    backend.close()


def test_setting_a_node_down_ends_its_jobs(cluster, http):
    backend = cluster.backend()
    wanted = make_submission(cluster, "down", nodes=("seren-003",))
    backend.submit(wanted)
    until(lambda: backend.find("down").state == State.RUNNING)

    http.post(f"{API}/node/seren-003", json={"state": ["DOWN"], "reason": "test"}).raise_for_status()

    until(lambda: backend.find("down").state == State.NODE_FAIL)
    backend.resume("seren-003")
    backend.close()


@pytest.mark.parametrize(
    "where", ["/etc/acme.log", "{root}/../out.log", "{root}", "{root}/link/out.log", "{root}/file.log"]
)
def test_invalid_output_path_fails_the_job_and_writes_nothing(cluster, tmp_path, where):
    target = tmp_path / "target"
    target.write_text("untouched")
    for name, to in (("link", tmp_path), ("file.log", target)):
        if not (cluster.log_root / name).is_symlink():
            (cluster.log_root / name).symlink_to(to)
    key = f"bad{abs(hash(where))}"
    backend = cluster.backend()

    backend.submit(make_submission(cluster, key, stdout=where.format(root=cluster.log_root)))

    ended = until(lambda: (job := backend.find(key)) and job.ended_at and job)
    assert (ended.state, ended.signal) == (State.FAILED, 53)
    assert not (tmp_path / "out.log").exists() and target.read_text() == "untouched"
    for name in ("link", "file.log"):
        (cluster.log_root / name).unlink()
    backend.close()


@pytest.mark.parametrize("token", ["", "wrong"])
def test_request_without_the_token_is_unreachable(cluster, token):
    backend = open_backend(cluster.address, user="ada", token=token)

    with pytest.raises(ClusterUnreachable, match="401"):
        backend.nodes()
    backend.close()


def test_all_paths_except_health_and_telemetry_require_the_token(cluster):
    for path in ("ping", "diag", "partitions", "jobs", "jobs/state/", "job/1", "nodes", "node/seren-001"):
        assert httpx.get(f"{cluster.address}{API}/{path}").status_code == 401
    for path in ("job/submit", "job/1", "node/seren-001"):
        assert httpx.post(f"{cluster.address}{API}/{path}", json={}).status_code == 401
    assert httpx.delete(f"{cluster.address}{API}/job/1").status_code == 401
    for path in ("healthz", "metrics"):
        assert httpx.get(f"{cluster.address}/{path}").status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
@pytest.mark.parametrize(("method", "path"), [("POST", "job/submit"), ("DELETE", "job/1"), ("POST", "node/seren-001")])
def test_body_without_a_json_content_type_is_rejected(http, method, path, kind):
    answer = http.request(method, f"{API}/{path}", content=b"{}", headers={"Content-Type": kind} if kind else {})

    assert answer.status_code == 415
    assert answer.json()["errors"][0]["error_number"] == 9001


def test_browser_request_is_rejected_even_with_the_token(http):
    assert http.get(f"{API}/nodes", headers={"Origin": "http://localhost:8000"}).status_code == 403


def test_execute_requires_a_token_file(tmp_path):
    with pytest.raises(SystemExit, match="--token-file"):
        parse_options(["--state", str(tmp_path), "--port", "0", "--execute"])


def test_second_server_on_the_same_state_does_not_start(tmp_path):
    with ClusterProcess(tmp_path, "--nodes", "1"), pytest.raises(AssertionError, match="another server uses"):
        ClusterProcess(tmp_path, "--nodes", "1").start()


def test_misspelled_hint_is_rejected_with_its_name(cluster):
    backend = cluster.backend()

    with pytest.raises(RequestRejected, match="SIM_END"):
        backend.submit(make_submission(cluster, "slip", environment={"SIM_END": "FALED:1"}))
    backend.close()


def test_sigterm_stops_the_server_cleanly(tmp_path):
    cluster = ClusterProcess(tmp_path, "--nodes", "1")
    cluster.start()

    assert cluster.stop() == 0


def test_kill_9_during_submissions_loses_no_accepted_job_and_reuses_no_id(tmp_path):
    with ClusterProcess(tmp_path, "--nodes", "4") as cluster:
        accepted: dict[str, str] = {}
        doubtful: set[str] = set()

        def submit_for_ever(client_number: int) -> None:
            backend = cluster.backend()
            for number in range(10_000):
                key = f"{client_number}-{number}"
                try:
                    accepted[key] = backend.submit(make_submission(cluster, key))
                except BackendError:
                    doubtful.add(key)
                    break
            backend.close()

        clients = [threading.Thread(target=submit_for_ever, args=(client_number,)) for client_number in range(4)]
        for client in clients:
            client.start()
        until(lambda: len(accepted) > 60)
        cluster.kill()
        for client in clients:
            client.join()

        cluster.start()

        backend = cluster.backend()
        known = {job.key: job.backend_id for job in backend.jobs()}
        assert {key: known.get(key) for key in accepted} == accepted
        assert set(known) <= set(accepted) | doubtful
        newer = backend.submit(make_submission(cluster, "after"))
        assert int(newer) > max(map(int, known.values()))
        backend.close()


def test_jobs_and_logs_continue_after_kill_9(tmp_path):
    with ClusterProcess(tmp_path, "--nodes", "2") as cluster:
        backend = cluster.backend()
        backend.submit(make_submission(cluster, "long", environment={"SIM_DURATION_S": "3", "SIM_END": "COMPLETED"}))
        path = cluster.log_root / "long.log"
        until(lambda: path.exists() and path.read_text().count("\n") >= 2)
        before = backend.find("long")
        backend.close()
        cluster.kill()
        with path.open("a") as file:
            file.write("half a li")
        text = path.read_text().removesuffix("half a li")

        cluster.start()

        backend = cluster.backend()
        after = backend.find("long")
        assert (after.started_at, after.nodes) == (before.started_at, before.nodes)
        until(lambda: backend.find("long").state == State.COMPLETED)
        assert path.read_text().startswith(text)
        assert "half a li" not in path.read_text()
        lines = path.read_text().splitlines()
        assert len(lines) == len(set(lines)) and lines[-1].endswith("all done")
        backend.close()


def test_missing_directories_of_a_log_path_are_created(cluster):
    backend = cluster.backend()
    path = cluster.log_root / "deep" / "er" / "%j.log"

    job_id = backend.submit(make_submission(cluster, "deep", stdout=str(path)))

    until(lambda: os.path.exists(str(path).replace("%j", job_id)))
    backend.cancel(job_id)
    until(lambda: "CANCELLED ***" in (path.parent / f"{job_id}.log").read_text())
    backend.close()


def test_injected_fault_appears_in_the_job_log_the_kernel_log_and_the_telemetry(cluster, http):
    backend = cluster.backend()
    wanted = make_submission(
        cluster, "broken", nodes=("seren-004",), environment={"SIM_DURATION_S": "600"}, gpus_per_node=8
    )
    backend.submit(wanted)
    until(lambda: (job := backend.find("broken")) and job.state == State.RUNNING and not job.flags)

    order = {"kind": "nvlink", "node": "seren-004", "gpu": 3}
    fault = http.post("/faults", json=order).raise_for_status().json()["fault"]

    assert until(lambda: (job := backend.find("broken")) and job.ended_at and job).state == State.FAILED
    assert (fault["node"], fault["gpu"], len(fault["jobs"])) == ("seren-004", 3, 1)
    assert "NVLink error" in Path(wanted.stdout).read_text()
    assert "Xid (PCI:0000:45:00): 74" in http.get("/kernel/seren-004").text
    kernel = cluster.log_root / "kernel" / "seren-004.log"
    until(lambda: kernel.exists() and "Xid" in kernel.read_text())
    assert 'DCGM_FI_DEV_XID_ERRORS{gpu="3"' in http.get("/metrics").text
    assert "nvlink" in [one["kind"] for one in http.get("/faults").json()["faults"]]
    backend.close()


@pytest.mark.parametrize(("kind", "says"), [("out_of_memory", "CUDA out of memory"), ("nan", "nan")])
def test_fault_of_one_job_spares_the_others_on_its_node(cluster, http, kind, says):
    backend = cluster.backend()
    wanted = [
        make_submission(
            cluster, key, nodes=("seren-003",), environment={"SIM_DURATION_S": "600", "ACME_KIND": "sft"},
            gpus_per_node=2,
        )
        for key in (f"hit-{kind}", f"beside-{kind}")
    ]  # fmt: skip
    ids = [backend.submit(one) for one in wanted]
    for one in wanted:
        until(lambda one=one: (job := backend.find(one.key)) and job.state == State.RUNNING and not job.flags)

    http.post("/faults", json={"kind": kind, "job": int(ids[0])}).raise_for_status()

    until(lambda: (job := backend.find(wanted[0].key)) and job.state == State.FAILED)
    assert says in Path(wanted[0].stdout).read_text()
    assert backend.find(wanted[1].key).state == State.RUNNING
    for backend_id in ids:
        backend.cancel(backend_id)
    backend.close()


def test_plan_decides_how_a_job_goes(cluster, http):
    backend = cluster.backend()
    http.post(
        "/plans", json={"plans": {"planned": {"SIM_DURATION_S": "0.2", "SIM_END": "FAILED:3"}}}
    ).raise_for_status()

    backend.submit(make_submission(cluster, "planned.1", environment={"ACME_KIND": "debug"}))

    job = until(lambda: (job := backend.find("planned.1")) and job.ended_at and job)
    assert (job.state, job.exit_code) == (State.FAILED, 3)
    backend.close()


def test_logs_of_the_past_are_stored_below_the_log_root(cluster, http):
    path = str(cluster.log_root / "past.log")

    http.post("/logs", json={"logs": {path: "step 1\n"}}).raise_for_status()

    assert Path(path).read_text() == "step 1\n"


@pytest.mark.parametrize("logs", [{"/etc/past.log": "x"}, {"past.log": 3}, []])
def test_logs_outside_the_log_root_are_refused(http, logs):
    assert http.post("/logs", json={"logs": logs}).is_error


@pytest.mark.parametrize(
    ("plans", "says"),
    [
        ({}, "plans: 0 plans, not 1 to 1000"),
        ({"a": {"SIM_MOOD": "good"}}, "'SIM_MOOD' is not one of SIM_DURATION_S, SIM_END, SIM_LOSS"),
        ({"a": {"SIM_END": "VANISHED"}}, "SIM_END: 'VANISHED' is not a valid end"),
        ({"a": 3}, ""),
    ],
)
def test_invalid_plan_is_rejected(http, plans, says):
    answer = http.post("/plans", json={"plans": plans})

    assert answer.is_error
    assert says in answer.json()["errors"][0]["error"]


@pytest.mark.parametrize(
    ("order", "status"),
    [
        ({"kind": "mood"}, 422),
        ({"kind": "ecc", "node": "nowhere"}, 409),
        ({"kind": "hang", "job": 999_999}, 409),
        ({"kind": "ecc", "job": 1}, 422),
        ({"kind": "nan", "node": "seren-001"}, 422),
        ([], 500),
    ],
)
def test_invalid_fault_request_is_rejected(http, order, status):
    answer = http.post("/faults", json=order)

    assert (answer.status_code, len(answer.json()["errors"])) == (status, 1)


def test_fault_list_requires_the_token(cluster):
    for path in ("/faults", "/kernel/seren-001", "/clock"):
        assert httpx.get(f"{cluster.address}{path}").status_code == 401


@pytest.mark.parametrize(("first", "second"), [((), ("--execute",)), (("--execute",), ())])
def test_state_of_another_cluster_is_rejected_with_a_message(tmp_path, first, second):
    with ClusterProcess(tmp_path / "state", *first):
        pass

    with pytest.raises(
        AssertionError, match=r"--state: this directory belongs to the cluster of .*, but this is the cluster of"
    ):
        ClusterProcess(tmp_path / "state", *second).start()
