"""Records the responses of a real slurmrestd of one version for `test_dialect`.

    python -m tests.scheduling.backends.record ADDRESS VERSION > VERSION.json
    python -m tests.scheduling.backends.record ADDRESS VERSION accounting > accounting-VERSION.json

The files belong in tests/scheduling/backends/answers.

The second form needs a slurmdbd with AccountingStoreFlags=job_comment, and a slurmrestd with its plugin.
Needs an otherwise unused cluster: node1 to node4 with eight GPUs each, all idle except node4, which an operator drained
with the reason "bad fan" (one version cannot drain). Jobs are submitted through Acme's adapter, which shows that its
requests are understood. Names of users and hosts are replaced before anything is written.
"""

from __future__ import annotations

import getpass
import json
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx

from jobs.core.backend_job import BackendJob
from jobs.core.lifecycle import FINAL_STATES, State
from scheduling.backends.base import RequestRejected, SubmitRequest
from scheduling.backends.dialect import DIALECTS, submit_body
from scheduling.backends.slurm import SlurmBackend
from tests.patience import until

UNKNOWN_JOB = 999_999
STARTED_AT = int(time.time())


def make_request(
    name: str, script: str, nodes: tuple[str, ...] = ("node1",), gpus: int = 1, **changed: Any
) -> SubmitRequest:
    plain: dict[str, Any] = {
        "key": name,
        "name": name,
        "user": "",
        "account": "nlp",
        "script": script,
        "workdir": "/tmp",
        "environment": {"LANG": "C"},
        "nodes": nodes,
        "gpus_per_node": gpus,
        "gpu_model": "",
        "cpus_per_node": 1,
        "memory_per_node_mb": 100,
        "time_limit": timedelta(minutes=2),
        "stdout": "/dev/null",
    }
    return SubmitRequest(**plain | changed)


SLEEP = "sleep 100000"
REQUESTS = (
    make_request("gang", SLEEP, ("node2", "node3"), 3),
    make_request("exit3", "exit 3"),
    make_request("killed", "kill -9 $$"),
    make_request("waits", "true", ("node2",), 8),
    make_request("cancelled", SLEEP),
    make_request("good", "true"),
    make_request("forever", SLEEP, time_limit=None),
)
STAYS = {"gang": State.RUNNING, "waits": State.PENDING, "forever": State.RUNNING}


def wait_for_job(backend: SlurmBackend, name: str, is_so: Callable[[BackendJob], bool]) -> BackendJob:
    def look() -> BackendJob | None:
        seen = backend.find(name)
        return seen if seen is not None and is_so(seen) else None

    return until(look, 60, name)


def play(backend: SlurmBackend) -> None:
    """Run the scenario until every job has its final state."""
    ids = {one.name: backend.submit(one) for one in REQUESTS}
    wait_for_job(backend, "cancelled", lambda seen: seen.state == State.RUNNING)
    backend.cancel(ids["cancelled"])
    for one in REQUESTS:
        stays = STAYS.get(one.name)
        wait_for_job(backend, one.name, lambda seen, stays=stays: seen.state == stays if stays else _is_over(seen))


def _is_over(seen: BackendJob) -> bool:
    return seen.state in FINAL_STATES and not seen.flags


def answers(client: httpx.Client, version: str) -> dict[str, object]:
    spoken, door = DIALECTS[version], f"/slurm/{version}"
    misplaced = submit_body(spoken, make_request("nowhere", "true", ("nonode",)))
    responses = {
        "ping": client.get(f"{door}/ping"),
        "jobs": client.get(f"{door}/jobs"),
        "nodes": client.get(f"{door}/nodes"),
        "refused": client.post(f"{door}/job/submit", json=misplaced),
        "cancel_unknown": client.delete(f"{door}/job/{UNKNOWN_JOB}"),
    }
    if spoken.lists_states:
        responses["states"] = client.get(f"{door}/jobs/state/")
    return {name: answer.json() for name, answer in responses.items()}


def accounting_answers(client: httpx.Client, version: str) -> dict[str, object]:
    door = f"/slurmdb/{version}"
    listed = until(lambda: _recorded_in_full(client, door), 60, "accounting")
    last = max(row["job_id"] for row in listed["jobs"])
    responses = {"accounted": client.get(f"{door}/job/{last}"), "unknown": client.get(f"{door}/job/{UNKNOWN_JOB}")}
    return {"accounted_since": listed} | {name: answer.json() for name, answer in responses.items()}


def _recorded_in_full(client: httpx.Client, door: str) -> dict[str, Any] | None:
    """The recorded jobs, once slurmdbd has all of them; slurmctld reports ends to it with delay."""
    answer: dict[str, Any] = client.get(f"{door}/jobs?start_time=uts{STARTED_AT}&skip_steps=true").json()
    states = {row["name"]: row["state"]["current"] for row in answer["jobs"]}
    running = [name for name, state in states.items() if state in ("RUNNING", ["RUNNING"])]
    return answer if len(states) == len(REQUESTS) and set(running) <= set(STAYS) else None


def without_names(value: Any) -> Any:
    match value:
        case dict():
            return {key: without_names(item) for key, item in value.items()}
        case list():
            return [without_names(item) for item in value]
        case str():
            return _made_up(value)
    return value


def _made_up(text: str) -> str:
    known = {getpass.getuser(): "ada", socket.gethostname().partition(".")[0]: "ctl"}
    if "rest.sock" in text:
        return "unix:/srv/slurm/run/rest.sock"
    return known.get(text, text)


def main(address: str, version: str, what: str = "") -> int:
    backend = SlurmBackend(address, api=version)
    transport = httpx.HTTPTransport(uds=address.removeprefix("unix://"))
    with httpx.Client(base_url="http://slurm", transport=transport, timeout=20) as client:
        try:
            backend.drain("node4", "bad fan")
        except RequestRejected as no:
            print(no, file=sys.stderr)
        play(backend)
        responses = without_names(accounting_answers(client, version) if what else answers(client, version))
    print(json.dumps(responses))
    backend.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
