"""Slurm over slurmrestd: one verb, one or two requests, and every failure sorted into what may have happened.

The dialect says what to send and how to read; this module only carries it. Jobs run as the user of the token. Nothing
is retried here: whoever asked knows better whether to ask again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import httpx

from . import dialect
from .base import BackendError, Doubtful, Greeting, Misplaced, Refused, SeenJob, SeenNode, Submission, Unreachable
from .dialect import DIALECTS, Complaint, Dialect, OddAnswer
from .seen import MOST_ONE_BY_ONE, Seen

T = TypeVar("T")

CONNECTIONS = 8  # slurmrestd has 20 threads by default, and others ask it too

# Refusals that say nothing about what was asked: a stale token or too many calls must not fail a job.
NOT_ABOUT_THE_DEED = frozenset({401, 403, 407, 429})


class SlurmBackend:
    """One cluster behind `http://host:port` or `unix:///path/to.sock`."""

    def __init__(
        self, address: str, *, user: str = "", token: str = "", timeout_s: float = 10.0, api: str = ""
    ) -> None:
        if api and api not in DIALECTS:
            raise ValueError(f"api: {api!r} is none of {', '.join(DIALECTS)}")
        self._address = address
        self._spoken: Dialect | None = DIALECTS[api] if api else None
        self._seen = Seen()
        self._client = _client(address, _token_headers(user, token), timeout_s)

    def ping(self) -> Greeting:
        spoken = self._dialect()
        answer = self._look(f"{spoken.api}/ping")
        if not dialect.controller_is_up(answer):
            raise Unreachable(
                f"{self._address}: slurmrestd answers, but its controller does not (or not to this token)"
            )
        return Greeting(product=f"slurm {dialect.release(answer)}", api=spoken.api)

    def nodes(self) -> Sequence[SeenNode]:
        """Where nothing moved for a while, the answer is empty and those we know are still true."""
        since, began = (self._seen.nodes_since if self._seen.nodes_in_a_row() else 0), time.time()
        found = self._news("nodes", since, dialect.nodes)
        if found is None or (since and not found):
            return self._seen.nodes
        self._seen.note_nodes(found, began)
        return found

    def jobs(self) -> Sequence[SeenJob]:
        """All of them. Only those that moved are asked for in full, and everybody now and then."""
        spoken, in_a_row, began = self._dialect(), self._seen.jobs_in_a_row(), time.time()
        if in_a_row and spoken.lists_states and (known := self._moved_jobs()) is not None:
            return known
        found = self._news("jobs", self._seen.jobs_since if in_a_row and spoken.says_unchanged else 0, dialect.jobs)
        if found is None:
            return list(self._seen.jobs.values())
        self._seen.note_jobs(found, began)
        return found

    def _moved_jobs(self) -> Sequence[SeenJob] | None:
        """What we know, with those whose state is another now; None when so many moved that one look is cheaper."""
        states = self._read("jobs/state/", dialect.job_states)
        moved = self._seen.moved(states)
        if len(moved) > MOST_ONE_BY_ONE:
            return None
        try:
            fresh = [job for moved_id in moved for job in self._read(f"job/{quote(moved_id, safe='')}", dialect.jobs)]
        except Unreachable:
            return None  # one of them may be forgotten by now: the full look will tell
        return self._seen.renew(states, fresh)

    def find(self, key: str) -> SeenJob | None:
        ours = [job for job in self.jobs() if job.key == key]
        return max(ours, key=lambda job: int(job.backend_id), default=None)

    def submit(self, what: Submission) -> str:
        spoken = self._dialect()
        answer = self._deed("POST", f"{spoken.api}/job/submit", dialect.submit_body(spoken, what))
        try:
            return dialect.job_id(answer)
        except OddAnswer as odd:
            raise Doubtful(f"{self._address} took a submission and answered oddly: {odd}") from None

    def submit_all(self, what: Sequence[Submission]) -> Sequence[str | BackendError]:
        away: list[Unreachable] = []  # one that does not answer leaves the rest unsent

        def tried(one: Submission) -> str | BackendError:
            if away:
                return away[0]
            try:
                return self.submit(one)
            except Unreachable as error:
                away.append(error)
                return error
            except BackendError as error:
                return error

        if len(what) < 2:
            return [tried(one) for one in what]
        with ThreadPoolExecutor(min(len(what), CONNECTIONS)) as pool:
            return list(pool.map(tried, what))

    def cancel(self, backend_id: str) -> None:
        """A plain DELETE is Slurm's whole cancellation: TERM, KillWait, KILL."""
        spoken = self._dialect()
        self._deed("DELETE", f"{spoken.api}/job/{quote(backend_id, safe='')}", forgiven=dialect.GONE)

    def signal(self, backend_id: str, name: str, *, shell: bool) -> None:
        spoken = self._dialect()
        flags = dialect.signal_flags(spoken, shell)
        if flags is None:
            raise Refused(f"{self._address} speaks {spoken.api}, in which a signal would end the batch shell too")
        query = urlencode({"signal": name, **flags})
        self._deed("DELETE", f"{spoken.api}/job/{quote(backend_id, safe='')}?{query}", forgiven=dialect.GONE)

    def drain(self, node: str, reason: str) -> None:
        self._update_node(node, dialect.drain_body(reason))

    def resume(self, node: str) -> None:
        self._update_node(node, dialect.resume_body())

    def close(self) -> None:
        self._client.close()

    def _update_node(self, node: str, body: Mapping[str, Any]) -> None:
        spoken = self._dialect()
        if not spoken.drains:
            raise Refused(f"{self._address} speaks {spoken.api}: drain and resume need scontrol or API >= v0.0.39")
        self._deed("POST", f"{spoken.api}/node/{quote(node, safe='')}", body)

    # Which version

    def _dialect(self) -> Dialect:
        if self._spoken is None:
            self._spoken = self._negotiate()
        return self._spoken

    def _negotiate(self) -> Dialect:
        """The newest version that answers a ping. 404 is a version it does not speak; any other no ends the search."""
        for spoken in DIALECTS.values():
            response = self._get(f"{spoken.api}/ping")
            if response.status_code != 404:
                self._checked(response)
                return spoken
        raise Unreachable(f"{self._address} speaks none of {', '.join(DIALECTS)}")

    # Looking: whatever goes wrong, nothing was done

    def _read(self, what: str, reader: Callable[[object], T]) -> T:
        return self._understood(what, self._look(f"{self._dialect().api}/{what}"), reader)

    def _understood(self, what: str, answer: object, reader: Callable[[object], T]) -> T:
        try:
            return reader(answer)
        except OddAnswer as odd:
            raise Unreachable(f"{self._address} answered /{what} oddly: {odd}") from None

    def _news(self, what: str, since: int, reader: Callable[[object], T]) -> T | None:
        """None where nothing moved since then."""
        if since:
            response = self._get(f"{self._dialect().api}/{what}?update_time={since}")
            if response.status_code == httpx.codes.NOT_MODIFIED:
                return None
            # 22.05 has moments in which it answers "Unspecified error" to this question and to no other
            if not response.is_server_error:
                return self._understood(what, self._checked(response), reader)
        return self._read(what, reader)

    def _look(self, path: str) -> object:
        return self._checked(self._get(path))

    def _get(self, path: str) -> httpx.Response:
        try:
            return self._client.get(f"/slurm/{path}")
        except httpx.HTTPError as error:
            raise Unreachable(f"{self._address}: {_said(error)}") from error

    def _checked(self, response: httpx.Response) -> object:
        answer = _json(response)
        found = dialect.complaints(answer)
        if response.is_success and answer is not None and not found:
            return answer
        if response.status_code == 404 and not found:
            self._spoken = None  # upgraded under us: the next call asks for the version again
        raise Unreachable(f"{self._address}: {_reply(response, found)}")

    # Doing: the question is always whether it may have happened

    def _deed(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, forgiven: frozenset[int] = frozenset()
    ) -> object:
        response = self._sent(method, path, body)
        answer = _json(response)
        said = dialect.complaints(answer)
        found = [complaint for complaint in said if complaint.number not in forgiven]
        if found or not (response.is_success or said):
            self._raise_for(response, found)
        if answer is None and method == "POST" and path.endswith("submit"):
            raise Doubtful(f"{self._address} took a submission, but its answer is not JSON")
        return answer

    def _sent(self, method: str, path: str, body: Mapping[str, Any] | None) -> httpx.Response:
        try:
            return self._client.request(method, f"/slurm/{path}", json=body)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise Unreachable(f"{self._address}: {_said(error)}") from error
        except httpx.HTTPError as error:
            raise Doubtful(f"{self._address}: {_said(error)} after the request was sent") from error

    def _raise_for(self, response: httpx.Response, found: Sequence[Complaint]) -> None:
        words = f"{self._address}: {_reply(response, found)}"
        if response.status_code in NOT_ABOUT_THE_DEED or any(complaint.unsent for complaint in found):
            raise Unreachable(words)
        if any(complaint.transport for complaint in found):
            raise Doubtful(words)
        if response.status_code == 404 and not found:
            self._spoken = None
            raise Unreachable(words)
        if found or response.is_client_error:
            no = Misplaced if found and found[0].about_place else Refused
            raise no(dialect.in_words(found) if found else words)
        raise Doubtful(words)


def _client(address: str, headers: Mapping[str, str], timeout_s: float) -> httpx.Client:
    """Proxies of the environment are for the internet, not for a cluster: they are not used."""
    if address.startswith("unix://"):
        transport = httpx.HTTPTransport(uds=address.removeprefix("unix://"))
        return httpx.Client(base_url="http://slurm", headers=headers, timeout=timeout_s, transport=transport)
    if not address.startswith(("http://", "https://")):
        raise ValueError(f"address: {address!r} starts with none of http://, https://, unix://")
    return httpx.Client(base_url=address, headers=headers, timeout=timeout_s, trust_env=False)


def _token_headers(user: str, token: str) -> dict[str, str]:
    if not token:
        return {}
    return {"X-SLURM-USER-TOKEN": token} | ({"X-SLURM-USER-NAME": user} if user else {})


def _json(response: httpx.Response) -> object:
    try:
        return response.json()
    except (ValueError, RecursionError):
        return None


def _reply(response: httpx.Response, found: Sequence[Complaint]) -> str:
    if found:
        return dialect.in_words(found)
    return f"HTTP {response.status_code}: {' '.join(response.text.split())[:200] or 'no text'}"


def _said(error: httpx.HTTPError) -> str:
    return str(error) or type(error).__name__
