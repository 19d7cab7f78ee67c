"""Slurm over slurmrestd: one verb, one or several requests within one deadline, and every failure sorted into what may
have happened.

The dialect says what to send and how to read; this module only carries it. Jobs run as the user that `senders` name,
and without it as the user of the token. Nothing is retried here: whoever asked knows better whether to ask again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import httpx

from . import dialect
from .base import (
    BackendError,
    Doubtful,
    Greeting,
    Listing,
    Misplaced,
    NoAccounting,
    Refused,
    SeenJob,
    SeenNode,
    Submission,
    Unanswered,
    Unreachable,
    UnreadableRow,
)
from .dialect import DIALECTS, Complaint, Dialect, OddAnswer
from .freshness import Freshness, StaleAnswer
from .http_client import Deadline, HttpClient
from .seen import MOST_ONE_BY_ONE, Seen
from .senders import Sender, Senders

T = TypeVar("T")

CONNECTIONS = 8  # slurmrestd has 20 threads by default, and others ask it too
NO_ACCOUNTING_FOR_S = 300.0  # a cluster without accounting is asked again after this long

# Refusals that say nothing about what was asked: a stale token or too many calls must not fail a job.
NOT_ABOUT_THE_DEED = frozenset({401, 403, 407, 429})
NEVER_SENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.LocalProtocolError,
    httpx.UnsupportedProtocol,
)


class SlurmBackend:
    """One cluster behind `http://host:port` or `unix:///path/to.sock`. Each verb ends within `timeout_s`; each
    submission of `submit_all` has a deadline of its own."""

    def __init__(
        self,
        address: str,
        *,
        user: str = "",
        token: str = "",
        timeout_s: float = 10.0,
        api: str = "",
        monotonic: Callable[[], float] = time.monotonic,
        senders: Senders | None = None,
    ) -> None:
        if api and api not in DIALECTS:
            raise ValueError(f"api: {api!r} is none of {', '.join(DIALECTS)}")
        if not address.startswith(("http://", "https://", "unix://")):
            raise ValueError(f"address: {address!r} starts with none of http://, https://, unix://")
        self._address = address
        self._timeout_s = timeout_s
        self._monotonic = monotonic
        self._spoken: Dialect | None = DIALECTS[api] if api else None
        self._seen = Seen()
        self._senders, self._confirmed_users = senders, set[str]()
        self._freshness = Freshness(monotonic)
        self._no_accounting_until = monotonic()
        self._client = HttpClient(address, Sender(user=user, token=token).headers if token else {})

    def ping(self) -> Greeting:
        deadline = self._deadline()
        spoken = self._dialect(deadline)
        answer = self._look(f"{spoken.api}/ping", deadline)
        if not dialect.controller_is_up(answer):
            raise Unreachable(
                f"{self._address}: slurmrestd answers, but its controller does not (or not to this token)"
            )
        return Greeting(product=f"slurm {dialect.release(answer)}", api=spoken.api)

    def nodes(self) -> Listing[SeenNode]:
        """Where nothing moved for a while, the answer is empty and those we know are still true."""
        since, began = (self._seen.nodes_since if self._seen.nodes_in_a_row() else 0), time.time()
        found = self._news("nodes", since, dialect.nodes, self._deadline())
        if found is None or (since and not found):
            return self._seen.nodes
        self._seen.note_nodes(found, began)
        return self._seen.nodes

    def jobs(self) -> Listing[SeenJob]:
        """All of them. Only those that moved are asked for in full, and everybody now and then."""
        deadline = self._deadline()
        spoken, in_a_row, began = self._dialect(deadline), self._seen.jobs_in_a_row(), time.time()
        if in_a_row and spoken.lists_states and (known := self._moved_jobs(deadline)) is not None:
            return known
        since = self._seen.jobs_since if in_a_row and spoken.says_unchanged else 0
        found = self._news("jobs", since, dialect.jobs, deadline)
        if found is not None:
            self._seen.note_jobs(found, began)
        return self._seen.all_jobs

    def _moved_jobs(self, deadline: Deadline) -> Listing[SeenJob] | None:
        """What we know, with those whose state is another now; None when so many moved that one look is cheaper."""
        listed = self._read("jobs/state/", dialect.job_states, deadline)
        states = dict(listed)
        moved = self._seen.moved(states)
        if len(moved) > MOST_ONE_BY_ONE:
            return None
        fresh: list[SeenJob] = []
        unreadable: dict[str, UnreadableRow] = {}
        try:
            for name in moved:
                found = self._read(f"job/{quote(name, safe='')}", dialect.one_job, deadline)
                fresh += found
                unreadable.update((name, replace(row, name=name)) for row in found.unreadable)
        except Unreachable:
            # One of them may be forgotten by now, or the cluster is too slow for many questions: ask one for everything
            self._seen.forget_jobs()
            return None
        return self._seen.renew(states, fresh, unreadable, listed.unreadable)

    def find(self, key: str) -> SeenJob | None:
        seen = self.jobs()
        ours = [job for job in seen if job.key == key]
        if not ours and seen.hides_job("", key):
            raise Unreachable(f"{self._address}: a job that cannot be read may be the one with key {key}")
        return max(ours, key=lambda job: int(job.backend_id), default=None)

    def accounted(self, backend_id: str) -> Listing[SeenJob]:
        deadline = self._deadline()
        if not (backend_id.isascii() and backend_id.isdigit()):
            return Listing()  # a slurmrestd of 22.05 ends itself when it is asked for such an id
        return self._accounting(f"job/{backend_id}", self._accounting_dialect(deadline), deadline)

    def accounted_since(self, since: datetime) -> Sequence[SeenJob]:
        """Unreachable if a row that cannot be read may be ours: who is not found could be that one."""
        deadline = self._deadline()
        spoken = self._accounting_dialect(deadline)
        found = self._accounting(f"jobs?{dialect.accounted_query(spoken, since)}", spoken, deadline)
        for row in found.unreadable:
            if row.key or not row.comment_read:
                raise Unreachable(f"{self._address}: accounting has a row that cannot be read: {row.sentence}")
        earliest = since.replace(microsecond=0)  # Slurm counts whole seconds
        return [job for job in found if job.submitted_at is None or job.submitted_at >= earliest]

    def _accounting_dialect(self, deadline: Deadline) -> Dialect:
        if self._monotonic() < self._no_accounting_until:
            raise NoAccounting(f"{self._address} has no accounting storage")
        return self._dialect(deadline)

    def _accounting(self, what: str, spoken: Dialect, deadline: Deadline) -> Listing[SeenJob]:
        response = self._get(f"/slurmdb/{spoken.api}/{what}", deadline)
        found = dialect.complaints(_json(response))
        if found and all(complaint.number in dialect.NOT_ACCOUNTED for complaint in found):
            return Listing()
        if response.status_code == httpx.codes.NOT_FOUND:
            self._note_no_accounting(spoken, deadline)
        return self._understood("slurmdb", self._checked(response), dialect.accounted_jobs)

    def _note_no_accounting(self, spoken: Dialect, deadline: Deadline) -> None:
        """slurmrestd answers 404 where Slurm has no slurmdbd, and for everything in a version it does not speak."""
        self._look(f"{spoken.api}/ping", deadline)
        self._no_accounting_until = self._monotonic() + NO_ACCOUNTING_FOR_S
        raise NoAccounting(f"{self._address} has no accounting storage (no slurmdbd, or slurmrestd without its plugin)")

    def submit(self, what: Submission) -> str:
        sender = self._senders.of(what.user) if self._senders and what.user else None
        headers = sender.headers if sender else {}
        deadline = self._deadline()
        spoken = self._dialect(deadline)
        body = dialect.submit_body(spoken, what)
        answer = self._deed("POST", f"{spoken.api}/job/submit", deadline, body, headers=headers)
        try:
            backend_id = dialect.job_id(answer)
        except OddAnswer as odd:
            raise Doubtful(f"{self._address} took a submission and answered oddly: {odd}") from None
        if sender:
            self._confirm_user(backend_id, sender.user, deadline)
        return backend_id

    def _confirm_user(self, backend_id: str, user: str, deadline: Deadline) -> None:
        """Of each user's first job. Slurm accepts a job of a user that it does not know, for a user id without rights
        as which it never starts: it is cancelled and refused. A cluster that does not answer is asked another time."""
        if user in self._confirmed_users:
            return
        try:
            found = self._read(f"job/{quote(backend_id, safe='')}", dialect.one_job, deadline)
        except Unreachable:
            return
        if not found:
            return
        if any(job.user != user for job in found):
            try:
                self.cancel(backend_id)
            except Unreachable as error:
                raise Doubtful(f"{self._address} took job {backend_id} for another user than {user}: {error}") from None
            raise Refused(
                f"the cluster knows no user {user}, so the job was cancelled there; create the user on the cluster"
                " (where slurmctld and slurmrestd run, and on its nodes), then release the job"
            )
        self._confirmed_users.add(user)

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
            except Unanswered as error:
                away.append(Unreachable(f"{self._address} did not answer the submission before this one"))
                return error
            except BackendError as error:
                return error

        if len(what) < 2:
            return [tried(one) for one in what]
        with ThreadPoolExecutor(min(len(what), CONNECTIONS)) as pool:
            return list(pool.map(tried, what))

    def cancel(self, backend_id: str) -> None:
        """A plain DELETE is Slurm's whole cancellation: TERM, KillWait, KILL."""
        deadline = self._deadline()
        spoken = self._dialect(deadline)
        self._deed("DELETE", f"{spoken.api}/job/{quote(backend_id, safe='')}", deadline, forgiven=dialect.GONE)

    def signal(self, backend_id: str, name: str, *, shell: bool) -> None:
        deadline = self._deadline()
        spoken = self._dialect(deadline)
        flags = dialect.signal_flags(spoken, shell)
        if flags is None:
            raise Refused(f"{self._address} speaks {spoken.api}, in which a signal would end the batch shell too")
        query = urlencode({"signal": name, **flags})
        path = f"{spoken.api}/job/{quote(backend_id, safe='')}?{query}"
        self._deed("DELETE", path, deadline, forgiven=dialect.GONE)

    def drain(self, node: str, reason: str) -> None:
        self._update_node(node, dialect.drain_body(reason))

    def resume(self, node: str) -> None:
        self._update_node(node, dialect.resume_body())

    def close(self) -> None:
        self._client.close()

    def _update_node(self, node: str, body: Mapping[str, Any]) -> None:
        deadline = self._deadline()
        spoken = self._dialect(deadline)
        if not spoken.drains:
            raise Refused(f"{self._address} speaks {spoken.api}: drain and resume need scontrol or API >= v0.0.39")
        self._deed("POST", f"{spoken.api}/node/{quote(node, safe='')}", deadline, body)

    def _deadline(self) -> Deadline:
        return Deadline(self._timeout_s)

    # Which version

    def _dialect(self, deadline: Deadline) -> Dialect:
        if self._spoken is None:
            self._spoken = self._negotiate(deadline)
        return self._spoken

    def _negotiate(self, deadline: Deadline) -> Dialect:
        """The newest version that answers a ping. 404 is a version it does not speak; any other no ends the search."""
        for spoken in DIALECTS.values():
            response = self._get(f"/slurm/{spoken.api}/ping", deadline)
            if response.status_code != 404:
                self._checked(response)
                return spoken
        raise Unreachable(f"{self._address} speaks none of {', '.join(DIALECTS)}")

    # Looking: whatever goes wrong, nothing was done

    def _read(self, what: str, reader: Callable[[object], T], deadline: Deadline) -> T:
        return self._understood(what, self._look(f"{self._dialect(deadline).api}/{what}", deadline), reader)

    def _understood(self, what: str, answer: object, reader: Callable[[object], T]) -> T:
        try:
            return reader(answer)
        except OddAnswer as odd:
            raise Unreachable(f"{self._address} answered /{what} oddly: {odd}") from None

    def _listed(self, what: str, answer: object, reader: Callable[[object], T]) -> T:
        try:
            self._freshness.check(what, dialect.server_time(answer))
        except StaleAnswer as stale:
            raise Unreachable(f"{self._address} answered /{what} with what it knew {stale}") from None
        return self._understood(what, answer, reader)

    def _news(self, what: str, since: int, reader: Callable[[object], T], deadline: Deadline) -> T | None:
        """None where nothing moved since then."""
        path = f"/slurm/{self._dialect(deadline).api}/{what}"
        if since:
            response = self._get(f"{path}?update_time={since}", deadline)
            if response.status_code == httpx.codes.NOT_MODIFIED:
                return None
            # 22.05 has moments in which it answers "Unspecified error" to this question and to no other
            if not response.is_server_error:
                return self._listed(what, self._checked(response), reader)
        return self._listed(what, self._checked(self._get(path, deadline)), reader)

    def _look(self, path: str, deadline: Deadline) -> object:
        return self._checked(self._get(f"/slurm/{path}", deadline))

    def _get(self, path: str, deadline: Deadline) -> httpx.Response:
        try:
            return self._client.request("GET", path, deadline)
        except httpx.HTTPError as error:
            raise Unreachable(f"{self._address}: {self._problem(error)}") from error

    def _problem(self, error: httpx.HTTPError) -> str:
        if isinstance(error, httpx.TimeoutException):
            return f"no whole answer within {self._timeout_s:g} s"
        return str(error) or type(error).__name__

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
        self,
        method: str,
        path: str,
        deadline: Deadline,
        body: Mapping[str, Any] | None = None,
        *,
        forgiven: frozenset[int] = frozenset(),
        headers: Mapping[str, str] | None = None,
    ) -> object:
        response = self._sent(method, path, deadline, body, headers)
        answer = _json(response)
        said = dialect.complaints(answer)
        found = [complaint for complaint in said if complaint.number not in forgiven]
        if found or not (response.is_success or said):
            self._raise_for(response, found)
        if answer is None and method == "POST" and path.endswith("submit"):
            raise Doubtful(f"{self._address} took a submission, but its answer is not JSON")
        return answer

    def _sent(
        self,
        method: str,
        path: str,
        deadline: Deadline,
        body: Mapping[str, Any] | None,
        headers: Mapping[str, str] | None,
    ) -> httpx.Response:
        try:
            return self._client.request(method, f"/slurm/{path}", deadline, body, headers)
        except NEVER_SENT as error:
            raise Unreachable(f"{self._address}: {self._problem(error)}") from error
        except httpx.TimeoutException as error:
            raise Unanswered(f"{self._address}: {self._problem(error)} after the request was sent") from error
        except httpx.HTTPError as error:
            raise Doubtful(f"{self._address}: {self._problem(error)} after the request was sent") from error

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


def _json(response: httpx.Response) -> object:
    try:
        return response.json()
    except (ValueError, RecursionError):
        return None


def _reply(response: httpx.Response, found: Sequence[Complaint]) -> str:
    if found:
        return dialect.in_words(found)
    return f"HTTP {response.status_code}: {' '.join(response.text.split())[:200] or 'no text'}"
