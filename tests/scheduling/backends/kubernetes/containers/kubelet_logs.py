"""An API server whose kubelets have logs that a test writes, rotates and makes unavailable."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

from tests.scheduling.backends.kubernetes.scripted_api import Query, ScriptedApi, status

PODS = "/api/v1/namespaces/jobs/pods/"
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def at(second: float) -> str:
    """A time as kubelets write it, with nanoseconds."""
    whole, part = divmod(round(second * 1_000_000_000), 1_000_000_000)
    moment = datetime.fromtimestamp(NOON.timestamp() + whole, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{part:09}Z"


class LogApi(ScriptedApi):
    def __init__(self) -> None:
        super().__init__()
        self.logs: dict[str, list[str]] = {}
        self.refusals: dict[str, Any] = {}  # pod → what its log is answered with
        self.silent: set[str] = set()
        self.release = threading.Event()
        self.events: dict[str, list[dict[str, Any]]] = {}
        self.unended: dict[str, str] = {}  # a last line without an end
        self.queries: list[tuple[str, Query]] = []

    def write(self, pod: str, *lines: tuple[float, str]) -> None:
        self.logs.setdefault(pod, []).extend(f"{at(second)} {text}" for second, text in lines)

    def rotate(self, pod: str) -> None:
        self.logs[pod] = []

    def answer(self, path: str, query: Query) -> Any:
        if path == "/api/v1/namespaces/jobs/events":
            uid = query["fieldSelector"].removeprefix("involvedObject.uid=").removesuffix(",type=Warning")
            return {"items": self.events.get(uid, [])}
        if not (path.startswith(PODS) and path.endswith("/log")):
            return super().answer(path, query)
        pod = path.removeprefix(PODS).removesuffix("/log")
        self.queries.append((pod, query))
        if pod in self.silent:
            self.release.wait(60)
        return self.refusals.get(pod) or self._log(pod, query)

    def _log(self, pod: str, query: Query) -> Any:
        if pod not in self.logs:
            return status(404, f'pods "{pod}" not found')
        since = query.get("sinceTime", "").removesuffix("Z")
        lines = [line for line in self.logs[pod] if line[: len(since)] >= since]
        raw = "".join(f"{line}\n" for line in lines).encode() + self.unended.get(pod, "").encode()
        return raw[: int(query["limitBytes"])]


def event(reason: str, message: str, name: str = "a-0", second: float = 0) -> dict[str, Any]:
    about = {"kind": "Pod", "name": name}
    return {
        "type": "Warning",
        "reason": reason,
        "message": message,
        "involvedObject": about,
        "lastTimestamp": at(second)[:19] + "Z",
    }
