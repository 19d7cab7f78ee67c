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
    AccountingUnavailable,
    BackendError,
    BackendJob,
    BackendNode,
    ClusterListing,
    ClusterUnreachable,
    OutcomeUnknown,
    PingReply,
    PlacementRejected,
    RequestRejected,
    RequestTimedOut,
    SubmitRequest,
    UnreadableRow,
)
from .dialect import DIALECTS, Dialect, ErrorEntry, MalformedResponse
from .freshness import FreshnessChecker, StaleListing
from .http_client import HttpClient, RequestDeadline
from .seen import MAX_SINGLE_JOB_REQUESTS, ListingCache
from .senders import IdentityProvider, SlurmIdentity

T = TypeVar("T")

SUBMIT_CONNECTIONS = 8  # slurmrestd has 20 threads by default, and others ask it too
ACCOUNTING_RETRY_S = 300.0  # a cluster without accounting is asked again after this long

# Refusals that say nothing about what was asked: a stale token or too many calls must not fail a job.
AUTH_AND_RATE_STATUSES = frozenset({401, 403, 407, 429})
NOT_SENT_ERRORS = (
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
        senders: IdentityProvider | None = None,
    ) -> None:
        if api and api not in DIALECTS:
            raise ValueError(f"api: {api!r} is none of {', '.join(DIALECTS)}")
        if not address.startswith(("http://", "https://", "unix://")):
            raise ValueError(f"address: {address!r} starts with none of http://, https://, unix://")
        self._address = address
        self._timeout_s = timeout_s
        self._monotonic = monotonic
        self._spoken: Dialect | None = DIALECTS[api] if api else None
        self._seen = ListingCache()
        self._senders, self._confirmed_users = senders, set[str]()
        self._freshness = FreshnessChecker(monotonic)
        self._no_accounting_until = monotonic()
        self._client = HttpClient(address, SlurmIdentity(user=user, token=token).headers if token else {})

    def ping(self) -> PingReply:
        deadline = self._new_deadline()
        spoken = self._get_dialect(deadline)
        answer = self._fetch_checked(f"{spoken.api}/ping", deadline)
        if not dialect.controller_is_up(answer):
            raise ClusterUnreachable(
                f"{self._address}: slurmrestd answers, but its controller does not (or not to this token)"
            )
        return PingReply(product=f"slurm {dialect.parse_release(answer)}", api=spoken.api)

    def nodes(self) -> ClusterListing[BackendNode]:
        """Where nothing moved for a while, the answer is empty and those we know are still true."""
        since, began = (self._seen.nodes_since if self._seen.may_list_changed_nodes() else 0), time.time()
        found = self._fetch_if_changed("nodes", since, dialect.parse_nodes, self._new_deadline())
        if found is None or (since and not found):
            return self._seen.nodes
        self._seen.store_nodes(found, began)
        return self._seen.nodes

    def jobs(self) -> ClusterListing[BackendJob]:
        """All of them. Only those that moved are asked for in full, and everybody now and then."""
        deadline = self._new_deadline()
        spoken, in_a_row, began = self._get_dialect(deadline), self._seen.may_list_changed_jobs(), time.time()
        if in_a_row and spoken.lists_states and (known := self._list_changed_jobs(deadline)) is not None:
            return known
        since = self._seen.jobs_since if in_a_row and spoken.says_unchanged else 0
        found = self._fetch_if_changed("jobs", since, dialect.parse_jobs, deadline)
        if found is not None:
            self._seen.store_jobs(found, began)
        return self._seen.all_jobs

    def _list_changed_jobs(self, deadline: RequestDeadline) -> ClusterListing[BackendJob] | None:
        """What we know, with those whose state is another now; None when so many moved that one look is cheaper."""
        listed = self._fetch_and_parse("jobs/state/", dialect.parse_job_states, deadline)
        states = dict(listed)
        moved = self._seen.moved(states)
        if len(moved) > MAX_SINGLE_JOB_REQUESTS:
            return None
        fresh: list[BackendJob] = []
        unreadable: dict[str, UnreadableRow] = {}
        try:
            for name in moved:
                found = self._fetch_and_parse(f"job/{quote(name, safe='')}", dialect.parse_single_job, deadline)
                fresh += found
                unreadable.update((name, replace(row, name=name)) for row in found.unreadable)
        except ClusterUnreachable:
            # One of them may be forgotten by now, or the cluster is too slow for many questions: ask one for everything
            self._seen.force_full_job_listing()
            return None
        return self._seen.renew(states, fresh, unreadable, listed.unreadable)

    def find(self, key: str) -> BackendJob | None:
        seen = self.jobs()
        ours = [job for job in seen if job.key == key]
        if not ours and seen.hides_job("", key):
            raise ClusterUnreachable(f"{self._address}: a job that cannot be read may be the one with key {key}")
        return max(ours, key=lambda job: int(job.backend_id), default=None)

    def accounted(self, backend_id: str) -> ClusterListing[BackendJob]:
        deadline = self._new_deadline()
        if not (backend_id.isascii() and backend_id.isdigit()):
            return ClusterListing()  # a slurmrestd of 22.05 ends itself when it is asked for such an id
        return self._fetch_accounting(f"job/{backend_id}", self._accounting_dialect(deadline), deadline)

    def accounted_since(self, since: datetime) -> Sequence[BackendJob]:
        """Unreachable if a row that cannot be read may be ours: who is not found could be that one."""
        deadline = self._new_deadline()
        spoken = self._accounting_dialect(deadline)
        found = self._fetch_accounting(f"jobs?{dialect.accounting_query(spoken, since)}", spoken, deadline)
        for row in found.unreadable:
            if row.key or not row.comment_read:
                raise ClusterUnreachable(f"{self._address}: accounting has a row that cannot be read: {row.sentence}")
        earliest = since.replace(microsecond=0)  # Slurm counts whole seconds
        return [job for job in found if job.submitted_at is None or job.submitted_at >= earliest]

    def _accounting_dialect(self, deadline: RequestDeadline) -> Dialect:
        if self._monotonic() < self._no_accounting_until:
            raise AccountingUnavailable(f"{self._address} has no accounting storage")
        return self._get_dialect(deadline)

    def _fetch_accounting(self, what: str, spoken: Dialect, deadline: RequestDeadline) -> ClusterListing[BackendJob]:
        response = self._send_get(f"/slurmdb/{spoken.api}/{what}", deadline)
        found = dialect.error_entries(_json_or_none(response))
        if found and all(complaint.number in dialect.NO_ACCOUNTING_RECORD_ERRORS for complaint in found):
            return ClusterListing()
        if response.status_code == httpx.codes.NOT_FOUND:
            self._raise_no_accounting(spoken, deadline)
        return self._parse_response("slurmdb", self._check_response(response), dialect.parse_accounting_jobs)

    def _raise_no_accounting(self, spoken: Dialect, deadline: RequestDeadline) -> None:
        """slurmrestd answers 404 where Slurm has no slurmdbd, and for everything in a version it does not speak."""
        self._fetch_checked(f"{spoken.api}/ping", deadline)
        self._no_accounting_until = self._monotonic() + ACCOUNTING_RETRY_S
        raise AccountingUnavailable(
            f"{self._address} has no accounting storage (no slurmdbd, or slurmrestd without its plugin)"
        )

    def submit(self, what: SubmitRequest) -> str:
        sender = self._senders.of(what.user) if self._senders and what.user else None
        headers = sender.headers if sender else {}
        deadline = self._new_deadline()
        spoken = self._get_dialect(deadline)
        body = dialect.submit_body(spoken, what)
        answer = self._send_command("POST", f"{spoken.api}/job/submit", deadline, body, headers=headers)
        try:
            backend_id = dialect.parse_job_id(answer)
        except MalformedResponse as odd:
            raise OutcomeUnknown(f"{self._address} took a submission and answered oddly: {odd}") from None
        if sender:
            self._verify_user(backend_id, sender.user, deadline)
        return backend_id

    def _verify_user(self, backend_id: str, user: str, deadline: RequestDeadline) -> None:
        """Of each user's first job. Slurm accepts a job of a user that it does not know, for a user id without rights
        as which it never starts: it is cancelled and refused. A cluster that does not answer is asked another time."""
        if user in self._confirmed_users:
            return
        try:
            found = self._fetch_and_parse(f"job/{quote(backend_id, safe='')}", dialect.parse_single_job, deadline)
        except ClusterUnreachable:
            return
        if not found:
            return
        if any(job.user != user for job in found):
            try:
                self.cancel(backend_id)
            except ClusterUnreachable as error:
                raise OutcomeUnknown(
                    f"{self._address} took job {backend_id} for another user than {user}: {error}"
                ) from None
            raise RequestRejected(
                f"the cluster knows no user {user}, so the job was cancelled there; create the user on the cluster"
                " (where slurmctld and slurmrestd run, and on its nodes), then release the job"
            )
        self._confirmed_users.add(user)

    def submit_all(self, what: Sequence[SubmitRequest]) -> Sequence[str | BackendError]:
        away: list[ClusterUnreachable] = []  # one that does not answer leaves the rest unsent

        def tried(one: SubmitRequest) -> str | BackendError:
            if away:
                return away[0]
            try:
                return self.submit(one)
            except ClusterUnreachable as error:
                away.append(error)
                return error
            except RequestTimedOut as error:
                away.append(ClusterUnreachable(f"{self._address} did not answer the submission before this one"))
                return error
            except BackendError as error:
                return error

        if len(what) < 2:
            return [tried(one) for one in what]
        with ThreadPoolExecutor(min(len(what), SUBMIT_CONNECTIONS)) as pool:
            return list(pool.map(tried, what))

    def cancel(self, backend_id: str) -> None:
        """A plain DELETE is Slurm's whole cancellation: TERM, KillWait, KILL."""
        deadline = self._new_deadline()
        spoken = self._get_dialect(deadline)
        self._send_command(
            "DELETE", f"{spoken.api}/job/{quote(backend_id, safe='')}", deadline, forgiven=dialect.JOB_GONE_ERRORS
        )

    def signal(self, backend_id: str, name: str, *, shell: bool) -> None:
        deadline = self._new_deadline()
        spoken = self._get_dialect(deadline)
        flags = dialect.signal_flags(spoken, shell)
        if flags is None:
            raise RequestRejected(
                f"{self._address} speaks {spoken.api}, in which a signal would end the batch shell too"
            )
        query = urlencode({"signal": name, **flags})
        path = f"{spoken.api}/job/{quote(backend_id, safe='')}?{query}"
        self._send_command("DELETE", path, deadline, forgiven=dialect.JOB_GONE_ERRORS)

    def drain(self, node: str, reason: str) -> None:
        self._update_node(node, dialect.drain_body(reason))

    def resume(self, node: str) -> None:
        self._update_node(node, dialect.resume_body())

    def close(self) -> None:
        self._client.close()

    def _update_node(self, node: str, body: Mapping[str, Any]) -> None:
        deadline = self._new_deadline()
        spoken = self._get_dialect(deadline)
        if not spoken.drains:
            raise RequestRejected(
                f"{self._address} speaks {spoken.api}: drain and resume need scontrol or API >= v0.0.39"
            )
        self._send_command("POST", f"{spoken.api}/node/{quote(node, safe='')}", deadline, body)

    def _new_deadline(self) -> RequestDeadline:
        return RequestDeadline(self._timeout_s)

    # Which version

    def _get_dialect(self, deadline: RequestDeadline) -> Dialect:
        if self._spoken is None:
            self._spoken = self._negotiate_dialect(deadline)
        return self._spoken

    def _negotiate_dialect(self, deadline: RequestDeadline) -> Dialect:
        """The newest version that answers a ping. 404 is a version it does not speak; any other no ends the search."""
        for spoken in DIALECTS.values():
            response = self._send_get(f"/slurm/{spoken.api}/ping", deadline)
            if response.status_code != 404:
                self._check_response(response)
                return spoken
        raise ClusterUnreachable(f"{self._address} speaks none of {', '.join(DIALECTS)}")

    # Looking: whatever goes wrong, nothing was done

    def _fetch_and_parse(self, what: str, reader: Callable[[object], T], deadline: RequestDeadline) -> T:
        return self._parse_response(
            what, self._fetch_checked(f"{self._get_dialect(deadline).api}/{what}", deadline), reader
        )

    def _parse_response(self, what: str, answer: object, reader: Callable[[object], T]) -> T:
        try:
            return reader(answer)
        except MalformedResponse as odd:
            raise ClusterUnreachable(f"{self._address} answered /{what} oddly: {odd}") from None

    def _parse_fresh_listing(self, what: str, answer: object, reader: Callable[[object], T]) -> T:
        try:
            self._freshness.check_listing_time(what, dialect.parse_listing_time(answer))
        except StaleListing as stale:
            raise ClusterUnreachable(f"{self._address} answered /{what} with what it knew {stale}") from None
        return self._parse_response(what, answer, reader)

    def _fetch_if_changed(
        self, what: str, since: int, reader: Callable[[object], T], deadline: RequestDeadline
    ) -> T | None:
        """None where nothing moved since then."""
        path = f"/slurm/{self._get_dialect(deadline).api}/{what}"
        if since:
            response = self._send_get(f"{path}?update_time={since}", deadline)
            if response.status_code == httpx.codes.NOT_MODIFIED:
                return None
            # 22.05 has moments in which it answers "Unspecified error" to this question and to no other
            if not response.is_server_error:
                return self._parse_fresh_listing(what, self._check_response(response), reader)
        return self._parse_fresh_listing(what, self._check_response(self._send_get(path, deadline)), reader)

    def _fetch_checked(self, path: str, deadline: RequestDeadline) -> object:
        return self._check_response(self._send_get(f"/slurm/{path}", deadline))

    def _send_get(self, path: str, deadline: RequestDeadline) -> httpx.Response:
        try:
            return self._client.request("GET", path, deadline)
        except httpx.HTTPError as error:
            raise ClusterUnreachable(f"{self._address}: {self._error_text(error)}") from error

    def _error_text(self, error: httpx.HTTPError) -> str:
        if isinstance(error, httpx.TimeoutException):
            return f"no whole answer within {self._timeout_s:g} s"
        return str(error) or type(error).__name__

    def _check_response(self, response: httpx.Response) -> object:
        answer = _json_or_none(response)
        found = dialect.error_entries(answer)
        if response.is_success and answer is not None and not found:
            return answer
        if response.status_code == 404 and not found:
            self._spoken = None  # upgraded under us: the next call asks for the version again
        raise ClusterUnreachable(f"{self._address}: {_reply_text(response, found)}")

    # Doing: the question is always whether it may have happened

    def _send_command(
        self,
        method: str,
        path: str,
        deadline: RequestDeadline,
        body: Mapping[str, Any] | None = None,
        *,
        forgiven: frozenset[int] = frozenset(),
        headers: Mapping[str, str] | None = None,
    ) -> object:
        response = self._send_request(method, path, deadline, body, headers)
        answer = _json_or_none(response)
        said = dialect.error_entries(answer)
        found = [complaint for complaint in said if complaint.number not in forgiven]
        if found or not (response.is_success or said):
            self._raise_command_error(response, found)
        if answer is None and method == "POST" and path.endswith("submit"):
            raise OutcomeUnknown(f"{self._address} took a submission, but its answer is not JSON")
        return answer

    def _send_request(
        self,
        method: str,
        path: str,
        deadline: RequestDeadline,
        body: Mapping[str, Any] | None,
        headers: Mapping[str, str] | None,
    ) -> httpx.Response:
        try:
            return self._client.request(method, f"/slurm/{path}", deadline, body, headers)
        except NOT_SENT_ERRORS as error:
            raise ClusterUnreachable(f"{self._address}: {self._error_text(error)}") from error
        except httpx.TimeoutException as error:
            raise RequestTimedOut(f"{self._address}: {self._error_text(error)} after the request was sent") from error
        except httpx.HTTPError as error:
            raise OutcomeUnknown(f"{self._address}: {self._error_text(error)} after the request was sent") from error

    def _raise_command_error(self, response: httpx.Response, found: Sequence[ErrorEntry]) -> None:
        words = f"{self._address}: {_reply_text(response, found)}"
        if response.status_code in AUTH_AND_RATE_STATUSES or any(complaint.is_not_delivered for complaint in found):
            raise ClusterUnreachable(words)
        if any(complaint.is_transport_error for complaint in found):
            raise OutcomeUnknown(words)
        if response.status_code == 404 and not found:
            self._spoken = None
            raise ClusterUnreachable(words)
        if found or response.is_client_error:
            no = PlacementRejected if found and found[0].is_placement_error else RequestRejected
            raise no(dialect.first_error_message(found) if found else words)
        raise OutcomeUnknown(words)


def _json_or_none(response: httpx.Response) -> object:
    try:
        return response.json()
    except (ValueError, RecursionError):
        return None


def _reply_text(response: httpx.Response, found: Sequence[ErrorEntry]) -> str:
    if found:
        return dialect.first_error_message(found)
    return f"HTTP {response.status_code}: {' '.join(response.text.split())[:200] or 'no text'}"
