"""Slurm over slurmrestd: each operation sends one or more requests within one deadline.

Every failure is classified by whether the command may have been carried out. `dialect` builds request bodies and parses
responses; this module only transports them. Jobs run as the user that `senders` provides, or as the user of the token.
Nothing is retried here, because only the caller knows whether a retry is useful.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import httpx

from acmeweb.common.errors import MalformedResponse
from acmeweb.common.http_client import NOT_SENT_ERRORS, HttpClient, RequestDeadline, ResponseTooLarge
from jobs.core.backend_job import BackendJob
from jobs.core.cluster_kinds import SLURM
from jobs.core.lifecycle import NodeFlag, State

from . import dialect
from .base import (
    AccountingUnavailable,
    BackendError,
    BackendNode,
    BackendTraits,
    ClusterListing,
    ClusterUnreachable,
    LogUpdate,
    OutcomeUnknown,
    PingReply,
    PlacementRejected,
    RequestRejected,
    RequestTimedOut,
    SubmitRequest,
    UnreadableRow,
)
from .batch_script import RANK_LAUNCHER
from .dialect import DIALECTS, Dialect, ErrorEntry
from .seen import MAX_SINGLE_JOB_REQUESTS, FreshnessChecker, ListingCache, StaleListing
from .senders import NO_IDENTITY, IdentityProvider, SlurmIdentity

T = TypeVar("T")

SUBMIT_CONNECTIONS = 8  # slurmrestd has 20 threads by default and serves other clients too
# Slurm keeps 10,000 jobs by default (MaxJobCount). With 26 KB each, as in listings of 24.11, they have 248 MiB. Each
# process that lists jobs needs a multiple of it to parse them
MAX_LISTING_BYTES = 256 << 20
ACCOUNTING_RETRY_S = 300.0  # wait before checking again whether a cluster has accounting

# Rejections that say nothing about the request itself: an expired token or a rate limit must not fail a job.
AUTH_AND_RATE_STATUSES = frozenset({401, 403, 407, 429})

MAX_LOG_LINES = 200
# slurmstepd: error: *** JOB 123 ON node-1 CANCELLED AT 2026-11-23T03:10:00 DUE TO TIME LIMIT ***
CANCELLED_LINE = re.compile(
    r"\*\*\* JOB [0-9]{1,12} ON [^ ]{1,200} CANCELLED AT [^ ]{1,40}( DUE TO [A-Z ]{1,40})? \*\*\*"
)
STATE_OF_CAUSE = {
    "TIME LIMIT": State.TIMEOUT,
    "PREEMPTION": State.PREEMPTED,
    "NODE FAILURE": State.NODE_FAIL,
    "": State.CANCELLED,
}


def state_in_log(tail: str) -> State | None:
    """The state with which Slurm ended the job, from the last message of slurmstepd; None if there is none."""
    state = None
    for line in tail.splitlines()[-MAX_LOG_LINES:]:
        if match := CANCELLED_LINE.search(line):
            state = STATE_OF_CAUSE.get((match[1] or "").removeprefix(" DUE TO "), State.CANCELLED)
    return state


def connection_advice(message: str) -> str:
    """Advice for the usual cause of this error message."""
    words = message.lower()
    if "401" in words or "403" in words or "authenticat" in words or "token" in words:
        return (
            "The token was rejected. Check AuthAltTypes=auth/jwt, the JWT key, and that the user exists on the cluster."
        )
    if "speaks none of" in words:
        return "Start slurmrestd 22.05 or newer with the plugins openapi/slurmctld and data_parser."
    if "controller" in words:
        return "slurmrestd runs, but slurmctld does not respond. Check slurmctld, and SlurmctldHost in slurm.conf."
    if "json" in words or "html" in words or "404" in words:
        return "Another program listens on this port. Check the port of slurmrestd."
    return "Check the log of slurmrestd. To repeat the request by hand: curl …/slurm/v0.0.40/ping"


SLURM_TRAITS = BackendTraits(
    supports_images=False,
    writes_logs=SLURM.writes_logs,
    powers_nodes=SLURM.powers_nodes,
    rank_launcher=RANK_LAUNCHER,
    state_in_log=state_in_log,
    connection_advice=connection_advice,
)


class SlurmBackend:
    """A cluster behind `http://host:port` or `unix:///path/to.sock`.

    Each operation ends within `timeout_s`; each submission of `submit_all` has its own deadline.
    """

    traits = SLURM_TRAITS

    def __init__(
        self,
        address: str,
        *,
        identity: SlurmIdentity = NO_IDENTITY,
        timeout_s: float = 10.0,
        api: str = "",
        monotonic: Callable[[], float] = time.monotonic,
        senders: IdentityProvider | None = None,
        largest: int = MAX_LISTING_BYTES,
    ) -> None:
        if api and api not in DIALECTS:
            raise ValueError(f"api: {api!r} is not one of {', '.join(DIALECTS)}")
        self._address = address
        self._timeout_s = timeout_s
        self._monotonic = monotonic
        self._dialect: Dialect | None = DIALECTS[api] if api else None
        self._cache = ListingCache()
        self._senders, self._confirmed_users = senders, set[str]()
        self._freshness = FreshnessChecker(monotonic)
        self._no_accounting_until = monotonic()
        headers = identity.headers if identity.token else {}
        self._client = HttpClient(address, headers, largest=largest)

    def ping(self) -> PingReply:
        deadline = self._new_deadline()
        api_dialect = self._get_dialect(deadline)
        answer = self._fetch_checked(f"{api_dialect.api}/ping", deadline)
        if not dialect.controller_is_up(answer):
            raise ClusterUnreachable(
                f"{self._address}: slurmrestd responds, but its controller does not (or rejects this token)"
            )
        return PingReply(product=f"slurm {dialect.parse_release(answer)}", api=api_dialect.api)

    def nodes(self) -> ClusterListing[BackendNode]:
        """All nodes. If nothing changed since the last poll, the response is empty and the cache is returned."""
        since, began = (self._cache.nodes_since if self._cache.may_list_changed_nodes() else 0), time.time()
        listing = self._fetch_if_changed("nodes", since, dialect.parse_nodes, self._new_deadline())
        if listing is None or (since and not listing):
            return self._cache.nodes
        self._cache.store_nodes(listing, began)
        return self._cache.nodes

    def jobs(self) -> ClusterListing[BackendJob]:
        """All jobs. Only changed jobs are fetched in full; every FULL_LISTING_EVERY-th poll fetches all of them."""
        deadline = self._new_deadline()
        api_dialect, changes_only, started = (
            self._get_dialect(deadline),
            self._cache.may_list_changed_jobs(),
            time.time(),
        )
        if changes_only and api_dialect.lists_states and (cached := self._list_changed_jobs(deadline)) is not None:
            return cached
        since = self._cache.jobs_since if changes_only and api_dialect.says_unchanged else 0
        listing = self._fetch_if_changed("jobs", since, dialect.parse_jobs, deadline)
        if listing is not None:
            self._cache.store_jobs(listing, started)
        return self._cache.all_jobs

    def _list_changed_jobs(self, deadline: RequestDeadline) -> ClusterListing[BackendJob] | None:
        """The cached jobs with changed ones updated; None if so many changed that a full listing is cheaper."""
        listed = self._fetch_and_parse("jobs/state/", dialect.parse_job_states, deadline)
        states = dict(listed)
        changed = self._cache.changed_jobs(states)
        if len(changed) > MAX_SINGLE_JOB_REQUESTS:
            return None
        fresh: list[BackendJob] = []
        unreadable: dict[str, UnreadableRow] = {}
        try:
            for name in changed:
                listing = self._fetch_and_parse(f"job/{quote(name, safe='')}", dialect.parse_single_job, deadline)
                fresh += listing
                unreadable.update((name, replace(row, name=name)) for row in listing.unreadable)
        except ClusterUnreachable:
            # A job was forgotten meanwhile, or the cluster is too slow for many requests: fetch everything at once
            self._cache.force_full_job_listing()
            return None
        return self._cache.renew(states, fresh, unreadable, listed.unreadable)

    def current_jobs(self, keys: Collection[str]) -> ClusterListing[BackendJob]:
        listing = self.jobs()
        return ClusterListing((job for job in listing if job.key in keys), listing.unreadable)

    def find(self, key: str) -> BackendJob | None:
        listing = self.jobs()
        ours = [job for job in listing if job.key == key]
        if not ours and listing.hides_job("", key):
            raise ClusterUnreachable(f"{self._address}: an unreadable job may be the one with key {key}")
        return max(ours, key=lambda job: int(job.backend_id), default=None)

    def accounting_jobs(self, backend_id: str) -> ClusterListing[BackendJob]:
        deadline = self._new_deadline()
        if not (backend_id.isascii() and backend_id.isdigit()):
            return ClusterListing()  # such an id crashes slurmrestd 22.05
        return self._fetch_accounting(f"job/{backend_id}", self._accounting_dialect(deadline), deadline)

    def accounting_jobs_since(self, since: datetime) -> Sequence[BackendJob]:
        """Accounting records since then. ClusterUnreachable if a row that may be Acme's is unreadable."""
        deadline = self._new_deadline()
        api_dialect = self._accounting_dialect(deadline)
        records = self._fetch_accounting(f"jobs?{dialect.accounting_query(api_dialect, since)}", api_dialect, deadline)
        for row in records.unreadable:
            if row.key or not row.comment_read:
                raise ClusterUnreachable(f"{self._address}: unreadable accounting row: {row.sentence}")
        earliest = since.replace(microsecond=0)  # Slurm counts whole seconds
        return [job for job in records if job.submitted_at is None or job.submitted_at >= earliest]

    def _accounting_dialect(self, deadline: RequestDeadline) -> Dialect:
        if self._monotonic() < self._no_accounting_until:
            raise AccountingUnavailable(f"{self._address} has no accounting storage")
        return self._get_dialect(deadline)

    def _fetch_accounting(
        self, what: str, api_dialect: Dialect, deadline: RequestDeadline
    ) -> ClusterListing[BackendJob]:
        response = self._send_get(f"/slurmdb/{api_dialect.api}/{what}", deadline)
        errors = dialect.error_entries(_json_or_none(response))
        if errors and all(entry.number in dialect.NO_ACCOUNTING_RECORD_ERRORS for entry in errors):
            return ClusterListing()
        if response.status_code == httpx.codes.NOT_FOUND:
            self._raise_no_accounting(api_dialect, deadline)
        return self._parse_response("slurmdb", self._check_response(response), dialect.parse_accounting_jobs)

    def _raise_no_accounting(self, api_dialect: Dialect, deadline: RequestDeadline) -> None:
        """Raise AccountingUnavailable, unless the ping fails too.

        slurmrestd responds 404 without slurmdbd, and also to every request of a version that it does not support.
        """
        self._fetch_checked(f"{api_dialect.api}/ping", deadline)
        self._no_accounting_until = self._monotonic() + ACCOUNTING_RETRY_S
        raise AccountingUnavailable(
            f"{self._address} has no accounting storage (no slurmdbd, or slurmrestd without its plugin)"
        )

    def submit(self, request: SubmitRequest) -> str:
        if request.image or request.mounts:
            raise RequestRejected("this cluster cannot run container images; submit the job without image and mounts")
        sender = self._senders.of(request.user) if self._senders and request.user else None
        headers = sender.headers if sender else {}
        deadline = self._new_deadline()
        api_dialect = self._get_dialect(deadline)
        body = dialect.submit_body(api_dialect, request)
        answer = self._send_command("POST", f"{api_dialect.api}/job/submit", deadline, body, headers=headers)
        try:
            backend_id = dialect.parse_job_id(answer)
        except MalformedResponse as error:
            raise OutcomeUnknown(f"{self._address} accepted a submission with an invalid response: {error}") from None
        if sender:
            self._verify_user(backend_id, sender.user, deadline)
        return backend_id

    def _verify_user(self, backend_id: str, user: str, deadline: RequestDeadline) -> None:
        """Check that each user's first job belongs to that user; otherwise cancel and reject it.

        Slurm accepts a job of an unknown user and gives it a user id without rights, as which it never starts. If the
        cluster does not respond, the check is skipped until the user's next job.
        """
        if user in self._confirmed_users:
            return
        try:
            listing = self._fetch_and_parse(f"job/{quote(backend_id, safe='')}", dialect.parse_single_job, deadline)
        except ClusterUnreachable:
            return
        if not listing:
            return
        if any(job.user != user for job in listing):
            try:
                self.cancel(backend_id)
            except ClusterUnreachable as error:
                raise OutcomeUnknown(
                    f"{self._address} accepted job {backend_id} for a user other than {user}: {error}"
                ) from None
            raise RequestRejected(
                f"user {user} does not exist on the cluster, so the job was cancelled there; create the user on the"
                " cluster (on the hosts of slurmctld and slurmrestd, and on its nodes), then release the job"
            )
        self._confirmed_users.add(user)

    def submit_all(self, requests: Sequence[SubmitRequest]) -> Sequence[str | BackendError]:
        unreachable: list[ClusterUnreachable] = []  # once set, the remaining requests are not sent

        def submit_one(request: SubmitRequest) -> str | BackendError:
            if unreachable:
                return unreachable[0]
            try:
                return self.submit(request)
            except ClusterUnreachable as error:
                unreachable.append(error)
                return error
            except RequestTimedOut as error:
                unreachable.append(ClusterUnreachable(f"{self._address} did not respond to the previous submission"))
                return error
            except BackendError as error:
                return error

        if len(requests) < 2:
            return [submit_one(request) for request in requests]
        with ThreadPoolExecutor(min(len(requests), SUBMIT_CONNECTIONS)) as pool:
            return list(pool.map(submit_one, requests))

    def cancel(self, backend_id: str) -> None:
        """Cancel with a plain DELETE: Slurm sends TERM, waits KillWait, then sends KILL."""
        deadline = self._new_deadline()
        api_dialect = self._get_dialect(deadline)
        self._send_command(
            "DELETE", f"{api_dialect.api}/job/{quote(backend_id, safe='')}", deadline, forgiven=dialect.JOB_GONE_ERRORS
        )

    def signal(self, backend_id: str, name: str, *, shell: bool) -> None:
        deadline = self._new_deadline()
        api_dialect = self._get_dialect(deadline)
        flags = dialect.signal_flags(api_dialect, shell)
        if flags is None:
            raise RequestRejected(
                f"{self._address} uses API {api_dialect.api}, in which a signal would end the batch shell too"
            )
        query = urlencode({"signal": name, **flags})
        path = f"{api_dialect.api}/job/{quote(backend_id, safe='')}?{query}"
        self._send_command("DELETE", path, deadline, forgiven=dialect.JOB_GONE_ERRORS)

    def evict(self, backend_id: str) -> None:
        """Slurm has no rules about disruptions."""
        self.cancel(backend_id)

    def advance_jobs(self) -> None:
        """Nothing to do: Slurm starts a job on all its nodes at once."""

    def new_log_lines(self, backend_id: str, positions: Mapping[str, str]) -> LogUpdate:
        raise RequestRejected("jobs on Slurm write their logs themselves")

    def drain(self, node: str, reason: str) -> None:
        self._update_node(node, dialect.drain_body(reason))

    def resume(self, node: str) -> None:
        self._update_node(node, dialect.resume_body())

    def power_down(self, node: str) -> None:
        self._update_node(node, dialect.power_body(up=False))

    def power_up(self, node: str) -> None:
        """A node that boots already, as for a job, is left alone: Slurm would wait for another boot of it."""
        deadline = self._new_deadline()
        if not self._is_booting(node, deadline):
            self._update_node(node, dialect.power_body(up=True), deadline)

    def _is_booting(self, node: str, deadline: RequestDeadline) -> bool:
        """False if that cannot be read: the response to the command says more."""
        try:
            rows = self._fetch_and_parse(f"node/{quote(node, safe='')}", dialect.parse_nodes, deadline)
        except ClusterUnreachable:
            return False
        return any(NodeFlag.POWERING_UP in row.flags for row in rows)

    def close(self) -> None:
        self._client.close()

    def _update_node(self, node: str, body: Mapping[str, Any], deadline: RequestDeadline | None = None) -> None:
        deadline = deadline or self._new_deadline()
        api_dialect = self._get_dialect(deadline)
        if not api_dialect.drains:
            raise RequestRejected(
                f"{self._address} uses API {api_dialect.api}: drain and resume need scontrol or API >= v0.0.39"
            )
        self._send_command("POST", f"{api_dialect.api}/node/{quote(node, safe='')}", deadline, body)

    def _new_deadline(self) -> RequestDeadline:
        return RequestDeadline(self._timeout_s)

    # Version

    def _get_dialect(self, deadline: RequestDeadline) -> Dialect:
        if self._dialect is None:
            self._dialect = self._negotiate_dialect(deadline)
        return self._dialect

    def _negotiate_dialect(self, deadline: RequestDeadline) -> Dialect:
        """The newest version that responds to a ping. 404 means an unsupported version; other errors are raised."""
        for api_dialect in DIALECTS.values():
            response = self._send_get(f"/slurm/{api_dialect.api}/ping", deadline)
            if response.status_code != 404:
                self._check_response(response)
                return api_dialect
        raise ClusterUnreachable(f"{self._address} speaks none of {', '.join(DIALECTS)}")

    # Reading: a failure means that nothing was changed

    def _fetch_and_parse(self, what: str, reader: Callable[[object], T], deadline: RequestDeadline) -> T:
        return self._parse_response(
            what, self._fetch_checked(f"{self._get_dialect(deadline).api}/{what}", deadline), reader
        )

    def _parse_response(self, what: str, answer: object, reader: Callable[[object], T]) -> T:
        try:
            return reader(answer)
        except MalformedResponse as error:
            raise ClusterUnreachable(f"{self._address} returned an invalid response to /{what}: {error}") from None

    def _parse_fresh_listing(self, what: str, answer: object, reader: Callable[[object], T]) -> T:
        try:
            self._freshness.check_listing_time(what, dialect.parse_listing_time(answer))
        except StaleListing as stale:
            raise ClusterUnreachable(f"{self._address} returned an outdated response to /{what}: {stale}") from None
        return self._parse_response(what, answer, reader)

    def _fetch_if_changed(
        self, what: str, since: int, reader: Callable[[object], T], deadline: RequestDeadline
    ) -> T | None:
        """The parsed listing, or None if nothing changed since then."""
        path = f"/slurm/{self._get_dialect(deadline).api}/{what}"
        if since:
            response = self._send_get(f"{path}?update_time={since}", deadline)
            if response.status_code == httpx.codes.NOT_MODIFIED:
                return None
            # 22.05 sometimes responds "Unspecified error" to a request with update_time, but not to one without it
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
            return f"no complete response within {self._timeout_s:g} s"
        if isinstance(error, ResponseTooLarge):
            return f"{error}, the size of about 10,000 jobs; lower MaxJobCount or MinJobAge in slurm.conf"
        return str(error) or type(error).__name__

    def _check_response(self, response: httpx.Response) -> object:
        answer = _json_or_none(response)
        errors = dialect.error_entries(answer)
        if response.is_success and answer is not None and not errors:
            return answer
        if response.status_code == 404 and not errors:
            self._dialect = None  # Slurm was upgraded: the next call negotiates the version again
        raise ClusterUnreachable(f"{self._address}: {_reply_text(response, errors)}")

    # Commands: a failure must say whether the command may have been carried out

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
        entries = dialect.error_entries(answer)
        errors = [entry for entry in entries if entry.number not in forgiven]
        if errors or not (response.is_success or entries):
            self._raise_command_error(response, errors)
        if answer is None and method == "POST" and path.endswith("submit"):
            raise OutcomeUnknown(f"{self._address} accepted a submission, but its response is not JSON")
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

    def _raise_command_error(self, response: httpx.Response, errors: Sequence[ErrorEntry]) -> None:
        message = f"{self._address}: {_reply_text(response, errors)}"
        if response.status_code in AUTH_AND_RATE_STATUSES or any(entry.is_not_delivered for entry in errors):
            raise ClusterUnreachable(message)
        if any(entry.is_transport_error for entry in errors):
            raise OutcomeUnknown(message)
        if response.status_code == 404 and not errors:
            self._dialect = None
            raise ClusterUnreachable(message)
        if errors or response.is_client_error:
            error_class = PlacementRejected if errors and errors[0].is_placement_error else RequestRejected
            raise error_class(dialect.first_error_message(errors) if errors else message)
        raise OutcomeUnknown(message)


def _json_or_none(response: httpx.Response) -> object:
    try:
        return response.json()
    except (ValueError, RecursionError):
        return None


def _reply_text(response: httpx.Response, errors: Sequence[ErrorEntry]) -> str:
    if errors:
        return dialect.first_error_message(errors)
    return f"HTTP {response.status_code}: {' '.join(response.text.split())[:200] or 'no text'}"
