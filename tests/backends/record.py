"""Record what a real slurmrestd of one version answers, for `test_dialect`; the scenario is the same for each version.

    python -m tests.backends.record ADDRESS VERSION > tests/backends/answers/VERSION.json
    python -m tests.backends.record ADDRESS VERSION accounting > tests/backends/answers/accounting-VERSION.json

The second form needs a slurmdbd with AccountingStoreFlags=job_comment, and a slurmrestd with its plugin.
For a cluster of nothing else: node1 to node4, eight GPUs each, every node idle but node4, which an operator drained
with the reason "bad fan" (one version cannot drain). Jobs go in through our own adapter, so that what is sent is shown
to be understood too. Names of people and machines are replaced by made-up ones before anything is written.
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

from jobs.core.lifecycle import FINAL_STATES, State
from scheduling.backends.base import BackendJob, RequestRejected, SubmitRequest
from scheduling.backends.dialect import DIALECTS, submit_body
from scheduling.backends.slurm import SlurmBackend
from tests.patience import until

UNKNOWN_JOB = 999_999
STARTED_AT = int(time.time())


def wish(name: str, script: str, nodes: tuple[str, ...] = ("node1",), gpus: int = 1, **changed: Any) -> SubmitRequest:
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
WISHES = (
    wish("gang", SLEEP, ("node2", "node3"), 3),
    wish("exit3", "exit 3"),
    wish("killed", "kill -9 $$"),
    wish("waits", "true", ("node2",), 8),
    wish("cancelled", SLEEP),
    wish("good", "true"),
    wish("forever", SLEEP, time_limit=None),
)
STAYS = {"gang": State.RUNNING, "waits": State.PENDING, "forever": State.RUNNING}


def told(backend: SlurmBackend, name: str, is_so: Callable[[BackendJob], bool]) -> BackendJob:
    def look() -> BackendJob | None:
        seen = backend.find(name)
        return seen if seen is not None and is_so(seen) else None

    return until(look, 60, name)


def play(backend: SlurmBackend) -> None:
    """Until every job is where the story ends."""
    ids = {one.name: backend.submit(one) for one in WISHES}
    told(backend, "cancelled", lambda seen: seen.state == State.RUNNING)
    backend.cancel(ids["cancelled"])
    for one in WISHES:
        stays = STAYS.get(one.name)
        told(backend, one.name, lambda seen, stays=stays: seen.state == stays if stays else _is_over(seen))


def _is_over(seen: BackendJob) -> bool:
    return seen.state in FINAL_STATES and not seen.flags


def answers(client: httpx.Client, version: str) -> dict[str, object]:
    spoken, door = DIALECTS[version], f"/slurm/{version}"
    misplaced = submit_body(spoken, wish("nowhere", "true", ("nonode",)))
    heard = {
        "ping": client.get(f"{door}/ping"),
        "jobs": client.get(f"{door}/jobs"),
        "nodes": client.get(f"{door}/nodes"),
        "refused": client.post(f"{door}/job/submit", json=misplaced),
        "cancel_unknown": client.delete(f"{door}/job/{UNKNOWN_JOB}"),
    }
    if spoken.lists_states:
        heard["states"] = client.get(f"{door}/jobs/state/")
    return {name: answer.json() for name, answer in heard.items()}


def accounting_answers(client: httpx.Client, version: str) -> dict[str, object]:
    door = f"/slurmdb/{version}"
    listed = until(lambda: _recorded_in_full(client, door), 60, "accounting")
    last = max(row["job_id"] for row in listed["jobs"])
    heard = {"accounted": client.get(f"{door}/job/{last}"), "unknown": client.get(f"{door}/job/{UNKNOWN_JOB}")}
    return {"accounted_since": listed} | {name: answer.json() for name, answer in heard.items()}


def _recorded_in_full(client: httpx.Client, door: str) -> dict[str, Any] | None:
    """slurmctld tells slurmdbd of ends a moment later."""
    answer: dict[str, Any] = client.get(f"{door}/jobs?start_time=uts{STARTED_AT}&skip_steps=true").json()
    states = {row["name"]: row["state"]["current"] for row in answer["jobs"]}
    running = [name for name, state in states.items() if state in ("RUNNING", ["RUNNING"])]
    return answer if len(states) == len(WISHES) and set(running) <= set(STAYS) else None


def without_names(said: Any) -> Any:
    match said:
        case dict():
            return {key: without_names(value) for key, value in said.items()}
        case list():
            return [without_names(value) for value in said]
        case str():
            return _made_up(said)
    return said


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
        heard = without_names(accounting_answers(client, version) if what else answers(client, version))
    print(json.dumps(heard))
    backend.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
