"""A training run that reports how far it is.

from acme_client import Run

run = Run()                       # finds ACME_URL and ACME_PROGRESS_TOKEN, which Acme gives to each job
for step, batch in enumerate(data):
    loss = train(batch)
    run.step(step, loss=loss)
    if step % 1000 == 0:
        run.checkpoint_saved(save(step), step)
    if step % 5000 == 0:
        with run.section("evaluation"):     # no step is due: this is no hang
            evaluate()

No call waits for the network, and none raises: what goes wrong is told once to the logger `acme_client`. A thread sends
every few seconds; while the server is away it keeps what was said, the newest `KEPT` of it. Without the two variables,
and on every rank but the first, a Run does nothing; but each rank answers SIGUSR2 (or the signal in ACME_STACKS) with
its stacks, so that Acme can ask where all of them stand before it ends a run that hangs.
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
        self.stop_as = ""  # what the server last said the attempt should become
        self._every_s = every_s
        self._beats: deque[dict[str, Any]] = deque(maxlen=MAX_PENDING)
        self._saved: deque[dict[str, Any]] = deque(maxlen=MAX_PENDING)
        self._ranks: deque[dict[str, Any]] = deque(maxlen=MAX_PENDING_RANK_TIMES)
        self._sections: deque[dict[str, Any]] = deque(maxlen=MAX_PENDING)
        self._wake, self._closed = threading.Event(), threading.Event()
        self._told: set[str] = set()
        self._pid = os.getpid()
        self._counted = -1
        self._stacks = stacks.install_stack_handler(environment) if url and token else ""  # on every rank
        self._environment = environment
        if self.active:
            try:
                self._start_sender(url, token, transport)
            except Exception as error:
                self.active = False
                self._log_once(f"progress is not reported: {error}")

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

    # --- what a trainer calls

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
    ) -> None:
        """Without a number, the one after the last. Numbers may be tensors: they are read by the thread.

        `tokens` and `sum_sq` (of the squared lengths of the sequences) count from the beginning of the training: by
        both a long step is told from a slow one, for attention costs the squares."""
        self._counted = step if isinstance(step, int) else self._counted + 1
        said = {
            "step": self._counted,
            "loss": loss,
            "grad_norm": grad_norm,
            "step_time_s": step_time_s,
            "tokens": tokens,
            "sum_sq": sum_sq,
            "learning_rate": learning_rate,
        }
        self._add_report(
            self._beats, {name: _detach_tensor(value) for name, value in said.items() if value is not None}
        )

    def checkpoint_saved(
        self, path: Any, step: int | None = None, *, durable: bool = False, stall_s: float | None = None
    ) -> None:
        """`durable`: it has reached storage that outlives the node. `stall_s`: so long it held training up."""
        said = {"path": str(path), "step": self._counted if step is None else step, "durable": durable}
        self._add_report(self._saved, said if stall_s is None else {**said, "stall_s": stall_s}, "saved_at")
        self._wake.set()

    def checkpoint_durable(self, path: Any, step: int | None = None) -> None:
        self.checkpoint_saved(path, step, durable=True)

    def rank_times(self, seconds: Sequence[float], nodes: Sequence[str], groups: Sequence[str] = ()) -> None:
        """How long each rank computed in one step, without waiting for others, as gathered on the first rank; where it
        runs; and who does the same work (a stage of a pipeline). So a slow job's slow node is found."""
        if self.active and os.getpid() == self._pid:
            said = {"seconds": list(seconds), "nodes": list(nodes)}
            self._ranks.append({**said, "groups": list(groups)} if groups else said)

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """A time in which no step is due: a checkpoint, an evaluation, a compilation. It is no hang."""
        said = {"name": name[:40], "began_at": datetime.now(UTC).isoformat()}
        self._add_section(said)
        try:
            yield
        finally:
            self._add_section({**said, "ended_at": datetime.now(UTC).isoformat()})

    def _add_section(self, said: dict[str, Any]) -> None:
        if self.active and os.getpid() == self._pid:
            self._sections.append(said)
            self._wake.set()

    def close(self, timeout_s: float = 5.0) -> None:
        """Send what is left, for at most so long."""
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

    # --- the thread

    def _add_report(self, kept: deque[dict[str, Any]], said: dict[str, Any], clock: str = "at") -> None:
        # A forked child (a data loader) has our memory, but not our thread
        if self.active and os.getpid() == self._pid:
            kept.append({**said, clock: datetime.now(UTC).isoformat()})

    def _send_loop(self) -> None:
        fails = 0
        while True:
            pause = self._every_s if not fails else min(self._every_s * 2**fails, MAX_PAUSE_S)
            self._wake.wait(pause * random.uniform(0.8, 1.0))  # many runs that began together spread out
            self._wake.clear()
            closing = self._closed.is_set()
            try:
                done = self._send_pending() and self._announce_stacks()
            except Exception as error:
                self._log_once(f"progress could not be reported: {error!r}")
                done = False
            fails = 0 if done else min(fails + 1, 10)
            if closing or not self.active:
                self._http.close()
                return
            if fails:
                self._closed.wait(min(1.0, self._every_s))  # a checkpoint that wakes us does not hurry a server back

    def _announce_stacks(self) -> bool:
        """Told once; not before everybody whom the cluster would send the signal to expects it."""
        word, known = self._stacks, self._environment
        if (
            not word
            or self._counted < 0
            or known.get(stacks.PARENT_ANNOUNCES_VARIABLE)
            or not stacks.is_signal_safe(word, known)
        ):
            return True
        told = self._send_request({"stacks": self._stacks})
        self._stacks = "" if told else self._stacks
        return told

    def _send_pending(self) -> bool:
        while self._beats or self._saved or self._sections or self._ranks:
            beats = _pop_first(self._beats, MAX_HEARTBEATS_PER_REQUEST)
            saved = _pop_first(self._saved, MAX_CHECKPOINTS_PER_REQUEST)
            sections, ranks = (
                _pop_first(self._sections, MAX_CHECKPOINTS_PER_REQUEST),
                _pop_first(self._ranks, MAX_RANK_TIMES_PER_REQUEST),
            )
            body: dict[str, Any] = {"heartbeats": [_plain_heartbeat(beat) for beat in beats], "checkpoints": saved}
            body |= {"sections": sections, "ranks": [plain for one in ranks if (plain := _plain_rank_times(one))]}
            if not self._send_request({name: rows for name, rows in body.items() if rows}):
                self._put_back(self._beats, beats)
                self._put_back(self._saved, saved)
                self._put_back(self._sections, sections)
                self._ranks.extendleft(reversed(ranks[: MAX_PENDING_RANK_TIMES - len(self._ranks)]))
                return False
        return True

    def _send_request(self, body: dict[str, Any]) -> bool:
        """Whether these are settled: taken, or never going to be."""
        try:
            answer = self._http.post("progress/", json=body)
        except httpx.HTTPError as error:
            self._log_once(f"{self._http.base_url.host} does not answer, progress is kept: {error!r}")
            return False
        if answer.status_code in (401, 403):
            self._log_once("the server does not take our token any more; progress is not reported")
            self.active = False
            return True
        if answer.status_code >= 500 or answer.status_code in (404, 408, 409, 425, 429):
            return False
        if answer.is_success:
            self._told.clear()
            self.stop_as = str(answer.json().get("stop_as", ""))
        else:
            self._log_once(f"the server refused a report: {answer.text[:500]}")
        return True

    def _put_back(self, kept: deque[dict[str, Any]], rows: list[dict[str, Any]]) -> None:
        """To the front, as far as there is room: the newest are worth most."""
        room = MAX_PENDING - len(kept)
        kept.extendleft(reversed(rows[-room:] if room > 0 else []))

    def _log_once(self, sentence: str) -> None:
        if sentence not in self._told and len(self._told) < 20:
            self._told.add(sentence)
            log.warning("%s", sentence)


def _pop_first(kept: deque[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    return [kept.popleft() for _ in range(min(most, len(kept)))]


def _detach_tensor(value: Any) -> Any:
    """A loss holds the whole graph of its step; detached it is one number, and nobody waited for the GPU."""
    try:
        return value.detach() if hasattr(value, "detach") else value
    except Exception:
        return None


def _plain_heartbeat(beat: dict[str, Any]) -> dict[str, Any]:
    return {name: plain for name, value in beat.items() if (plain := _plain_number(name, value)) is not None}


def _plain_rank_times(told: dict[str, Any]) -> dict[str, Any] | None:
    """Here, in the thread, tensors are waited for. What makes no sense is left out: it must not take steps with it."""
    try:
        plain: dict[str, Any] = {"seconds": [float(one) for one in told["seconds"]]}
    except Exception:
        return None
    plain |= {name: [str(one) for one in told[name]] for name in ("nodes", "groups") if name in told}
    as_many = len({len(one) for one in plain.values()}) == 1
    good = as_many and all(0 <= one < math.inf for one in plain["seconds"])
    return plain if good and plain["seconds"] else None


def _plain_number(name: str, value: Any) -> Any:
    """Here, in the thread, a tensor is waited for."""
    if name == "at":
        return value
    try:
        if name in ("step", "tokens"):
            return int(value) if 0 <= int(value) <= 2**62 else None
        found = float(value)
    except Exception:
        return None
    if math.isnan(found):
        return "NaN"
    return found if math.isfinite(found) else "Infinity" if found > 0 else "-Infinity"
