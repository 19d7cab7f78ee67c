"""What a job of a campaign runs: it copies a model to its node, goes through shards, scores answers, or removes a copy.

It is sent to the node as a script, so it needs nothing but Python's standard library. What it is to do
stands in `ACME_EVALUATION`, as JSON. It says in its log how far it is: lines that begin with `acme:` and a word that
nobody knows who only writes answers. At USR1 it gives way: after the shard that it is at if that is expected to end
within the grace, else at once, for it would be killed then anyway. What it leaves is done elsewhere.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

RESULT_FILE = "result.json"
MAX_RESULT_BYTES = 64 * 1024
SERVER_START_TIMEOUT_S = 3600

program_started_at = time.time()
stop_requests: list[int] = []
shard_expected_until = [math.inf]  # when the shard that it is at is expected to end; nothing is gained by a start


class TrialError(Exception):
    pass


def log_event(what: dict[str, Any], **values: Any) -> None:
    line = dict(values, at=round(time.time() - program_started_at, 3))
    print(f"\nacme:{what['nonce']} {json.dumps(line)}", flush=True)


def stage_copy(what: dict[str, Any]) -> None:
    """A copy is there under its name when it is whole; until then it has another one."""
    source, target = what["from"], what["to"]
    if not os.path.exists(target):
        if not os.path.exists(source):
            raise TrialError(f"there is no {source}")
        size = path_bytes(source)
        parent = os.path.dirname(target)
        os.makedirs(parent, mode=0o755, exist_ok=True)
        free = shutil.disk_usage(parent).free
        if size > free:
            raise TrialError(f"it takes {size / 1e9:.1f} GB, and {parent} has {free / 1e9:.1f} GB left")
        unfinished = target + ".part"
        remove_path(unfinished)
        if os.path.isdir(source):
            shutil.copytree(source, unfinished)
        else:
            shutil.copy(source, unfinished)
        os.rename(unfinished, target)
    log_event(what, staged=target, gb=round(path_bytes(target) / 1e9, 3))


def path_bytes(path: str) -> int:
    if os.path.isfile(path):
        return os.path.getsize(path)
    found = [os.path.join(place, name) for place, _, names in os.walk(path) for name in names]
    return sum(os.path.getsize(name) for name in found if os.path.isfile(name))


def remove_copy(what: dict[str, Any]) -> None:
    for path in (what["to"], what["to"] + ".part"):
        remove_path(path)
    log_event(what, removed=what["to"])


def remove_path(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.remove(path)


def run_trial(what: dict[str, Any]) -> int:
    """Shards one after the other; one that fails leaves the others alone. The exit code says whether all went well."""
    signal.signal(signal.SIGUSR1, lambda *_: handle_preemption(what))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what serves the model ends too
    if not os.path.exists(what["model"]):
        raise TrialError(f"there is no {what['model']}")
    server = start_model_server(what) if what.get("serve") else None
    failed = 0
    try:
        shard_expected_until[0] = 0.0
        log_event(what, ready=True)
        for part in what["parts"]:
            if stop_requests:
                log_event(what, stopped=True)
                break
            failed += not run_shard(what, part)
    finally:
        if server:
            kill_model_server(server)
    return 1 if failed else 0


def handle_preemption(what: dict[str, Any]) -> None:
    stop_requests.append(1)
    if shard_expected_until[0] > time.time() + what["grace_s"]:
        log_event(what, stopped=True)
        sys.exit(0)  # what it started ends with its job


def start_model_server(what: dict[str, Any]) -> subprocess.Popen[bytes]:
    port = free_port()
    os.environ.update(ACME_PORT=str(port), ACME_MODEL=what["model"])
    server = subprocess.Popen(["/bin/sh", "-c", what["serve"]], start_new_session=True)  # noqa: S603
    try:
        wait_until_listening(server, port)
    except BaseException:  # a signal too
        kill_model_server(server)
        raise
    return server


def wait_until_listening(server: subprocess.Popen[bytes], port: int) -> None:
    patience = time.time() + SERVER_START_TIMEOUT_S
    while True:
        if server.poll() is not None:
            raise TrialError(f"what serves the model ended with exit code {server.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.time() > patience:
                raise TrialError("what serves the model does not listen at $ACME_PORT") from None
            time.sleep(0.2)


def free_port() -> int:
    """Below those that the kernel gives to whoever connects: nobody takes it meanwhile, and a knock at it that nobody
    hears cannot be answered by its own echo."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def kill_model_server(server: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def run_shard(what: dict[str, Any], part: dict[str, Any]) -> bool:
    since = time.time()
    output = part["output"]
    result = os.path.join(output, RESULT_FILE)
    values = {
        "ACME_MODEL": what["model"],
        "ACME_DATASET": part["dataset"],
        "ACME_START": str(part["start"]),
        "ACME_END": str(part["start"] + part["samples"]),
        "ACME_SAMPLES": str(part["samples"]),
        "ACME_WHOLE": "1" if part["whole"] else "",
        "ACME_OUTPUT": output,
        "ACME_RESULT": result,
    }
    code, scores, why = 1, None, ""
    try:
        os.makedirs(output, exist_ok=True)
        if os.path.lexists(result):
            os.remove(result)  # an earlier try's is no result of this one
        command = what["commands"][part["command"]]
        shard_expected_until[0] = since + part["expected_s"]
        code = subprocess.run(["/bin/sh", "-c", command], env=dict(os.environ, **values)).returncode  # noqa: S603
        shard_expected_until[0] = 0.0
        if code == 0 and part["scores"]:
            scores = read_scores(result)
    except (TrialError, OSError, ValueError) as error:
        code, why = 1, str(error)[:500]
    log_event(what, part=part["id"], code=code, took=round(time.time() - since, 3), scores=scores, why=why)
    return code == 0


def read_scores(path: str) -> dict[str, Any]:
    if not os.path.isfile(path):
        raise TrialError("its command wrote no $ACME_RESULT")
    if os.path.getsize(path) > MAX_RESULT_BYTES:
        raise TrialError(f"its $ACME_RESULT is larger than {MAX_RESULT_BYTES} bytes")
    with open(path) as file:
        found = json.load(file)
    if not isinstance(found, dict):
        raise TrialError("its $ACME_RESULT is no JSON object")
    return found


def main() -> int:
    what = json.loads(os.environ.pop("ACME_EVALUATION"))
    try:
        if what["do"] == "run":
            return run_trial(what)
        {"stage": stage_copy, "remove": remove_copy}[what["do"]](what)
    except (TrialError, OSError, shutil.Error) as error:
        log_event(what, failed=str(error)[:500])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
