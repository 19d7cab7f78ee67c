"""A training run that reports its progress.

from acme_client import Run

run = Run()                       # finds ACME_URL and ACME_PROGRESS_TOKEN, which Acme sets for each job
for step, batch in enumerate(data):
    loss = train(batch)
    run.step(step, loss=loss)
    if step % 1000 == 0:
        run.checkpoint_saved(save(step), step)
    if step % 5000 == 0:
        with run.section("evaluation"):     # no steps are expected here, so this is not a hang
            evaluate()

No call waits for the network and none raises: each error is logged once to the logger `acme_client`. A thread sends
every few seconds; while the server is unavailable it keeps the newest `MAX_PENDING` reports. Without the two variables,
and on every rank but the first, a Run reports nothing. But each rank answers SIGUSR2 (or the signal in
ACME_STACKS_SIGNAL) with its stacks, so that Acme can see where all ranks are before it ends a run that hangs.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import random
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import httpx

from acme_client import stacks

log = logging.getLogger("acme_client")

MAX_PENDING = 10_000
MAX_HEARTBEATS_PER_REQUEST = 500
MAX_CHECKPOINTS_PER_REQUEST = 100
MAX_PENDING_RANK_TIMES, MAX_RANK_TIMES_PER_REQUEST = 16, 4
MAX_PAUSE_S = 60.0


class Run:
    """Reports steps, checkpoints and sections of a training to Acme, from a background thread."""

    def __init__(
        self,
        *,
        every_s: float = 30.0,
        environment: Mapping[str, str] = os.environ,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        url, token = environment.get("ACME_URL", ""), environment.get("ACME_PROGRESS_TOKEN", "")
        first = all(environment.get(name, "0") == "0" for name in stacks.RANK_VARIABLES)
        self.active = bool(url and token and first)
        self.stop_state = ""  # the state that the server last asked the attempt to end in; empty: continue
        self._every_s = every_s
        self._beats: deque[dict[str, Any]] = deque(maxlen=MAX_PENDING)
        self._saved: deque[dict[str, Any]] = deque(maxlen=MAX_PENDING)
        self._ranks: deque[dict[str, Any]] = deque(maxlen=MAX_PENDING_RANK_TIMES)
        self._sections: deque[dict[str, Any]] = deque(maxlen=MAX_PENDING)
        self._wake, self._closed = threading.Event(), threading.Event()
        self._told: set[str] = set()
        self._pid = os.getpid()
        self._counted = -1
        self._stacks = stacks.install_stack_handler(environment) if url and token else ""  # installed on every rank
        self._environment = environment
        if self.active:
            try:
                self._start_sender(url, token, transport)
            except Exception as error:
                self.active = False
                self._log_once(f"Progress is not reported: {error}")

    def _start_sender(self, url: str, token: str, transport: httpx.BaseTransport | None) -> None:
        self._http = httpx.Client(
            base_url=f"{url.rstrip('/')}/api/v1/",
            headers={"Authorization": f"Bearer {token}", "User-Agent": "acme-client"},
            timeout=httpx.Timeout(20, connect=5),
            transport=transport,
        )
        self._thread = threading.Thread(target=self._send_loop, name="acme-progress", daemon=True)
        self._thread.start()
        atexit.register(self.close, 5.0)

    # --- used by the trainer

    def step(
        self,
        step: int | None = None,
        *,
        loss: Any = None,
        grad_norm: Any = None,
        step_time_s: Any = None,
        tokens: int | None = None,
        sum_sq: Any = None,
        learning_rate: Any = None,
        mfu: Any = None,
    ) -> None:
        """Report a step; without a number, the one after the last. Values may be tensors: the thread reads them.

        `tokens` and `sum_sq` (of the squared sequence lengths) count from the beginning of the training. Together they
        distinguish a long step from a slow one, because the cost of attention grows with the squares. `mfu` is a share
        of 1."""
        self._counted = step if isinstance(step, int) else self._counted + 1
        report = {
            "step": self._counted,
            "loss": loss,
            "grad_norm": grad_norm,
            "step_time_s": step_time_s,
            "tokens": tokens,
            "sum_sq": sum_sq,
            "learning_rate": learning_rate,
            "mfu": mfu,
        }
        self._add_report(
            self._beats, {name: _detach_tensor(value) for name, value in report.items() if value is not None}
        )

    def checkpoint_saved(
        self, path: Any, step: int | None = None, *, durable: bool = False, stall_s: float | None = None
    ) -> None:
        """Report a checkpoint. `durable`: it survives the loss of the node. `stall_s`: time training was blocked."""
        report = {"path": str(path), "step": self._counted if step is None else step, "durable": durable}
        self._add_report(self._saved, report if stall_s is None else {**report, "stall_s": stall_s}, "saved_at")
        self._wake.set()

    def checkpoint_durable(self, path: Any, step: int | None = None) -> None:
        self.checkpoint_saved(path, step, durable=True)

    def rank_times(self, seconds: Sequence[float], nodes: Sequence[str], groups: Sequence[str] = ()) -> None:
        """Report how long each rank computed in one step, without waiting for others, gathered on the first rank, with
        the node of each rank and optionally its group of equal work (a pipeline stage). Acme finds slow nodes by it."""
        if self.active and os.getpid() == self._pid:
            report = {"seconds": list(seconds), "nodes": list(nodes)}
            self._ranks.append({**report, "groups": list(groups)} if groups else report)

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Mark a time without steps, such as a checkpoint, an evaluation or a compilation, so it is not a hang."""
        report = {"name": name[:40], "began_at": datetime.now(UTC).isoformat()}
        self._add_section(report)
        try:
            yield
        finally:
            self._add_section({**report, "ended_at": datetime.now(UTC).isoformat()})

    def _add_section(self, report: dict[str, Any]) -> None:
        if self.active and os.getpid() == self._pid:
            self._sections.append(report)
            self._wake.set()

    def close(self, timeout_s: float = 5.0) -> None:
        """Send pending reports, for at most this long."""
        if not self.active or os.getpid() != self._pid:
            return
        self._closed.set()
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)
        self.active = False
        atexit.unregister(self.close)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- background thread

    def _add_report(self, pending: deque[dict[str, Any]], report: dict[str, Any], clock: str = "at") -> None:
        # A forked child (a data loader) has our memory, but not our thread
        if self.active and os.getpid() == self._pid:
            pending.append({**report, clock: datetime.now(UTC).isoformat()})

    def _send_loop(self) -> None:
        failures = 0
        while True:
            pause = self._every_s if not failures else min(self._every_s * 2**failures, MAX_PAUSE_S)
            self._wake.wait(pause * random.uniform(0.8, 1.0))  # spreads out runs that started together
            self._wake.clear()
            closing = self._closed.is_set()
            try:
                done = self._send_pending() and self._announce_stacks()
            except Exception as error:
                self._log_once(f"Progress could not be reported: {error!r}")
                done = False
            failures = 0 if done else min(failures + 1, 10)
            if closing or not self.active:
                self._http.close()
                return
            if failures:
                self._closed.wait(min(1.0, self._every_s))  # after a failure, a new checkpoint must not retry at once

    def _announce_stacks(self) -> bool:
        """Announce once that stacks can be requested, when every process that gets the signal handles it."""
        word, environment = self._stacks, self._environment
        if (
            not word
            or self._counted < 0
            or environment.get(stacks.PARENT_ANNOUNCES_VARIABLE)
            or not stacks.is_signal_safe(word, environment)
        ):
            return True
        announced = self._send_request({"stacks": self._stacks})
        self._stacks = "" if announced else self._stacks
        return announced

    def _send_pending(self) -> bool:
        while self._beats or self._saved or self._sections or self._ranks:
            beats = _pop_first(self._beats, MAX_HEARTBEATS_PER_REQUEST)
            saved = _pop_first(self._saved, MAX_CHECKPOINTS_PER_REQUEST)
            sections, ranks = (
                _pop_first(self._sections, MAX_CHECKPOINTS_PER_REQUEST),
                _pop_first(self._ranks, MAX_RANK_TIMES_PER_REQUEST),
            )
            body: dict[str, Any] = {"heartbeats": [_plain_heartbeat(beat) for beat in beats], "checkpoints": saved}
            body |= {
                "sections": sections,
                "ranks": [plain for rank_report in ranks if (plain := _plain_rank_times(rank_report))],
            }
            if not self._send_request({name: rows for name, rows in body.items() if rows}):
                self._put_back(self._beats, beats)
                self._put_back(self._saved, saved)
                self._put_back(self._sections, sections)
                self._ranks.extendleft(reversed(ranks[: MAX_PENDING_RANK_TIMES - len(self._ranks)]))
                return False
        return True

    def _send_request(self, body: dict[str, Any]) -> bool:
        """Send a report. False if it must be repeated; True if it was accepted or will never be."""
        try:
            response = self._http.post("progress/", json=body)
        except httpx.HTTPError as error:
            self._log_once(f"{self._http.base_url.host} is not responding; reports are kept: {error!r}")
            return False
        if response.status_code in (401, 403):
            self._log_once("The server rejects the token; progress is no longer reported.")
            self.active = False
            return True
        if response.status_code >= 500 or response.status_code in (404, 408, 409, 425, 429):
            return False
        if response.is_success:
            self._told.clear()
            self.stop_state = str(response.json().get("stop_state", ""))
        else:
            self._log_once(f"The server rejected a report: {response.text[:500]}")
        return True

    def _put_back(self, pending: deque[dict[str, Any]], rows: list[dict[str, Any]]) -> None:
        """Return rows to the front, as far as there is room: the newest are worth most."""
        room = MAX_PENDING - len(pending)
        pending.extendleft(reversed(rows[-room:] if room > 0 else []))

    def _log_once(self, sentence: str) -> None:
        if sentence not in self._told and len(self._told) < 20:
            self._told.add(sentence)
            log.warning("%s", sentence)


def _pop_first(pending: deque[dict[str, Any]], limit: int) -> list[dict[str, Any]]:
    return [pending.popleft() for _ in range(min(limit, len(pending)))]


def _detach_tensor(value: Any) -> Any:
    """Detach a tensor without waiting for the GPU: a loss references the graph of its step."""
    try:
        return value.detach() if hasattr(value, "detach") else value
    except Exception:
        return None


def _plain_heartbeat(beat: dict[str, Any]) -> dict[str, Any]:
    return {name: plain for name, value in beat.items() if (plain := _plain_number(name, value)) is not None}


def _plain_rank_times(report: dict[str, Any]) -> dict[str, Any] | None:
    """Return plain numbers, or None for an invalid report. Reads tensors, so it runs in the thread."""
    try:
        plain: dict[str, Any] = {"seconds": [float(value) for value in report["seconds"]]}
    except Exception:
        return None
    plain |= {name: [str(value) for value in report[name]] for name in ("nodes", "groups") if name in report}
    same_length = len({len(values) for values in plain.values()}) == 1
    valid = same_length and all(0 <= value < math.inf for value in plain["seconds"])
    return plain if valid and plain["seconds"] else None


def _plain_number(name: str, value: Any) -> Any:
    """Return a JSON value for a number or tensor. Reads tensors, so it runs in the thread."""
    if name == "at":
        return value
    try:
        if name in ("step", "tokens"):
            return int(value) if 0 <= int(value) <= 2**62 else None
        number = float(value)
    except Exception:
        return None
    if math.isnan(number):
        return "NaN"
    return number if math.isfinite(number) else "Infinity" if number > 0 else "-Infinity"
