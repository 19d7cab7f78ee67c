"""The program of a campaign job: it copies a model to its node, runs shards, scores results, or removes a copy.

It is sent to the node as a script, so it uses only Python's standard library. `ACME_EVALUATION` contains its task as
JSON. It reports progress in its log, in lines that start with `acme:` and a random word, so that the output of an
evaluated model cannot forge them. On USR1 it stops: after the current shard if that is expected to end within the grace
period, otherwise at once, because it would be killed anyway. Another job runs the shards that remain.
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
shard_expected_until = [math.inf]  # of the current shard; infinite before the first one


class TrialError(Exception):
    pass


def log_event(what: dict[str, Any], **values: Any) -> None:
    line = dict(values, at=round(time.time() - program_started_at, 3))
    print(f"\nacme:{what['nonce']} {json.dumps(line)}", flush=True)


def stage_copy(what: dict[str, Any]) -> None:
    """Copy the model. The copy has its final name only when it is complete."""
    source, target = what["from"], what["to"]
    if not os.path.exists(target):
        if not os.path.exists(source):
            raise TrialError(f"{source} does not exist")
        size = path_bytes(source)
        parent = os.path.dirname(target)
        os.makedirs(parent, mode=0o755, exist_ok=True)
        free = shutil.disk_usage(parent).free
        if size > free:
            raise TrialError(f"{source} needs {size / 1e9:.1f} GB, but {parent} has {free / 1e9:.1f} GB free")
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
    files = [os.path.join(place, name) for place, _, names in os.walk(path) for name in names]
    return sum(os.path.getsize(name) for name in files if os.path.isfile(name))


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
    """Run the shards in order; a failed shard does not stop the others. The exit code is 0 if all succeeded."""
    signal.signal(signal.SIGUSR1, lambda *_: handle_preemption(what))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the model server ends too
    if not os.path.exists(what["model"]):
        raise TrialError(f"{what['model']} does not exist")
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
        sys.exit(0)  # its child processes end with the job


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
    deadline = time.time() + SERVER_START_TIMEOUT_S
    while True:
        if server.poll() is not None:
            raise TrialError(f"the model server ended with exit code {server.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.time() > deadline:
                raise TrialError("the model server does not listen on $ACME_PORT") from None
            time.sleep(0.2)


def free_port() -> int:
    """A free port below the range for outgoing connections.

    The kernel does not give such a port to another client meanwhile, and a connection attempt cannot connect to itself.
    """
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
        "ACME_CHECKPOINT": what["checkpoint"],
        "ACME_MODEL": what["model"],
        "ACME_DATASET": part["dataset"],
        "ACME_START": str(part["start"]),
        "ACME_END": str(part["start"] + part["samples"]),
        "ACME_SAMPLES": str(part["samples"]),
        "ACME_ALL_SAMPLES": "1" if part["whole"] else "",
        "ACME_OUTPUT": output,
        "ACME_RESULT": result,
    }
    code, scores, why = 1, None, ""
    try:
        os.makedirs(output, exist_ok=True)
        if os.path.lexists(result):
            os.remove(result)  # may be left by an earlier attempt
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
        raise TrialError("the command wrote no $ACME_RESULT")
    if os.path.getsize(path) > MAX_RESULT_BYTES:
        raise TrialError(f"$ACME_RESULT is larger than {MAX_RESULT_BYTES} bytes")
    with open(path) as file:
        scores = json.load(file)
    if not isinstance(scores, dict):
        raise TrialError("$ACME_RESULT is not a JSON object")
    return scores


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
