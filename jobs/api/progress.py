"""What a running job reports of itself, with a token that is good for that one attempt.

Ten thousand attempts come by every few seconds, so a report of heartbeats is one statement and no session or user is
looked up: the same report twice changes nothing by itself. Who brings an Idempotency-Key all the same is answered as
everywhere, at a higher price. Under our web server most heartbeats do not reach this endpoint:
`acmeweb.batching.heartbeats` writes many in one statement and passes on only what needs an individual answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.response import Response

from jobs.actions import progress
from jobs.actions.journal import Author
from jobs.actions.stack_requests import STACK_SIGNALS
from jobs.core import parsing
from jobs.core.slurm_notation import BadNotation, parse_signal
from jobs.models import Attempt, TokenScope
from jobs.rest.endpoint import ActionEndpoint
from jobs.rest.errors import InvalidRequestField
from jobs.rest.idempotency import attempt_request, idempotency_key_of, run_once
from jobs.rest.permissions import EndpointRule
from jobs.rest.shapes import (
    ResourceShape,
    ShapeField,
    boolean_field,
    datetime_field,
    integer_field,
    nested_list_field,
    one_of_field,
    text_field,
    text_list_field,
)

MAX_HEARTBEATS = 1000
MAX_CHECKPOINTS = 100
MAX_COUNT = 2**62
MAX_STALL_S = 86_400
MAX_RANKS, MAX_RANK_REPORTS = 20_000, 4
NON_FINITE_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True, kw_only=True)
class AttemptPrincipal:
    """Who reports: an attempt, not a person."""

    key: str
    is_authenticated: bool = True

    @property
    def pk(self) -> str:
        return f"run:{self.key}"


class AttemptTokenAuthentication(BaseAuthentication):
    def authenticate(self, request: Any) -> tuple[AttemptPrincipal, None]:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        key = progress.run_token_key(token.strip()) if scheme.lower() == "bearer" else None
        if key is None:
            raise AuthenticationFailed("This needs the ACME_PROGRESS_TOKEN of a running attempt.")
        return AttemptPrincipal(key=key), None

    def authenticate_header(self, request: Any) -> str:
        return 'Bearer realm="acme"'


def _float_schema(says: str = "") -> ShapeField:
    kinds = {"type": "number"}, {"type": "string", "enum": list(NON_FINITE_NUMBERS)}
    return one_of_field(*kinds, {"type": "null"}, says=says, required=False)


def _count_schema(says: str = "") -> ShapeField:
    return integer_field(says, low=0, high=MAX_COUNT, required=False, nullable=True)


HEARTBEAT_SHAPE = ResourceShape(
    "Heartbeat",
    {
        "step": _count_schema(),
        "tokens": _count_schema("Consumed since the beginning of the training."),
        "sum_sq": _float_schema("Of the squared lengths of its sequences, since the beginning: what attention costs."),
        "loss": _float_schema("What is no number, JSON has only as text."),
        "grad_norm": _float_schema(),
        "step_time_s": _float_schema(),
        "learning_rate": _float_schema(),
        "at": datetime_field("When; now, if it is left out, and never later than now.", required=False, nullable=True),
    },
)
CHECKPOINT_SHAPE = ResourceShape(
    "CheckpointSaved",
    {
        "path": text_field(),
        "step": integer_field(low=0, high=MAX_COUNT),
        "saved_at": datetime_field(required=False, nullable=True),
        "durable": boolean_field("It has reached remote storage.", required=False, nullable=True),
        "stall_s": ShapeField(
            schema={
                "type": ["number", "null"],
                "minimum": 0,
                "maximum": MAX_STALL_S,
                "description": "Seconds for which saving it held training up.",
            },
            required=False,
        ),
    },
)
SECTION_SHAPE = ResourceShape(
    "SectionDeclared",
    {
        "name": text_field("checkpoint, evaluation, compile …"),
        "began_at": datetime_field("Tells it from others of its name."),
        "ended_at": datetime_field("Left out: it goes on.", required=False, nullable=True),
    },
)
RANKS_SHAPE = ResourceShape(
    "RankTimes",
    {
        "seconds": ShapeField(
            schema={"type": "array", "maxItems": MAX_RANKS, "items": {"type": "number", "minimum": 0}},
        ),
        "nodes": text_list_field("Where each of them runs."),
        "groups": text_list_field("Who does the same work, such as a pipeline's stage; left out: all.", required=False),
    },
)
REPORT_SHAPE = ResourceShape(
    "Report",
    {
        "heartbeats": nested_list_field(HEARTBEAT_SHAPE, f"At most {MAX_HEARTBEATS}.", required=False),
        "checkpoints": nested_list_field(CHECKPOINT_SHAPE, f"At most {MAX_CHECKPOINTS}.", required=False),
        "ranks": nested_list_field(
            RANKS_SHAPE,
            f"How long each rank computed in one step, by its number. At most {MAX_RANK_REPORTS}.",
            required=False,
        ),
        "sections": nested_list_field(
            SECTION_SHAPE,
            f"Times in which no step is due, so that none is a hang. At most {MAX_CHECKPOINTS}.",
            required=False,
        ),
        "stacks": text_field("A signal that all its processes answer with their stacks: USR2, B:USR2.", required=False),
    },
    example={"heartbeats": [{"step": 120, "loss": 2.31, "tokens": 503316480}]},
)
REPORT_ACCEPTED = ResourceShape(
    "ReportTaken",
    {
        "heartbeats": integer_field("That were new."),
        "checkpoints": integer_field("That were new."),
        "stop_as": text_field("What the attempt is asked to become; empty: go on."),
    },
)


def read_float(name: str, value: Any) -> float:
    if isinstance(value, str) and value in NON_FINITE_NUMBERS:
        return NON_FINITE_NUMBERS[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        parsing.raise_invalid_field(
            name, f"is {parsing.json_type_name(value)}, not a number, NaN, Infinity or -Infinity"
        )
    try:
        return float(value)
    except OverflowError:
        parsing.raise_invalid_field(name, "is larger than any number we keep")


def read_stall_seconds(name: str, value: Any) -> float:
    found = read_float(name, value)
    if not 0 <= found <= MAX_STALL_S:
        parsing.raise_invalid_field(name, f"{found:g} is not between 0 and {MAX_STALL_S} seconds")
    return found


READ_COUNT = parsing.integer_reader(0, MAX_COUNT)
HEARTBEAT_READERS = {
    "step": READ_COUNT,
    "tokens": READ_COUNT,
    "sum_sq": read_float,
    "loss": read_float,
    "grad_norm": read_float,
    "step_time_s": read_float,
    "learning_rate": read_float,
    "at": parsing.read_timestamp,
}
CHECKPOINT_READERS = {
    "path": parsing.nonempty_reader(parsing.text_reader(500)),
    "step": READ_COUNT,
    "saved_at": parsing.read_timestamp,
    "durable": parsing.read_bool,
    "stall_s": read_stall_seconds,
}
SECTION_READERS = {
    "name": parsing.nonempty_reader(parsing.text_reader(40)),
    "began_at": parsing.read_timestamp,
    "ended_at": parsing.read_timestamp,
}


def read_step_seconds(name: str, value: Any) -> float:
    found = read_float(name, value)
    if not 0 <= found < math.inf:
        parsing.raise_invalid_field(name, f"{found:g} is no time that a step can take")
    return found


RANK_READERS = {
    "seconds": parsing.list_reader(read_step_seconds, MAX_RANKS),
    "nodes": parsing.list_reader(parsing.text_reader(64), MAX_RANKS),
    "groups": parsing.list_reader(parsing.text_reader(40), MAX_RANKS),
}


def read_stack_signal(name: str, value: Any) -> str:
    said = parsing.text_reader(12)(name, value)
    try:
        ask = parse_signal(said) if said else None
    except BadNotation as error:
        parsing.raise_invalid_field(name, str(error))
    if ask and ask.signal not in STACK_SIGNALS:
        parsing.raise_invalid_field(name, f"{ask.signal} is none of {', '.join(sorted(STACK_SIGNALS))}")
    return ask.text if ask else ""


REPORT_READERS = {
    "heartbeats": parsing.list_reader(parsing.read_object, MAX_HEARTBEATS),
    "checkpoints": parsing.list_reader(parsing.read_object, MAX_CHECKPOINTS),
    "ranks": parsing.list_reader(parsing.read_object, MAX_RANK_REPORTS),
    "sections": parsing.list_reader(parsing.read_object, MAX_CHECKPOINTS),
    "stacks": read_stack_signal,
}


@dataclass(frozen=True, kw_only=True)
class ProgressReport:
    beats: list[dict[str, Any]]
    saved: list[progress.CheckpointReport]
    declared: list[progress.SectionReport]
    ranks: list[progress.RankTimesReport]
    stacks: str | None = None

    @property
    def only_heartbeats(self) -> bool:
        return not (self.saved or self.declared or self.ranks) and self.stacks is None


def parse_report(asked: dict[str, Any]) -> ProgressReport:
    found = parsing.read_fields(asked, REPORT_READERS, "a report")
    return ProgressReport(
        beats=[
            _read_item("heartbeats", index, one, HEARTBEAT_READERS)
            for index, one in enumerate(found.get("heartbeats", ()))
        ],
        saved=[_read_checkpoint(index, one) for index, one in enumerate(found.get("checkpoints", ()))],
        declared=[_read_section(index, one) for index, one in enumerate(found.get("sections", ()))],
        ranks=[_read_rank_times(index, one) for index, one in enumerate(found.get("ranks", ()))],
        stacks=found.get("stacks"),
    )


class ReportProgress(ActionEndpoint):
    """A job's own report."""

    tag = "Progress"
    own_credentials = True
    authentication_classes = [AttemptTokenAuthentication]
    rules = {
        "POST": EndpointRule(
            scope=TokenScope.READ,
            says="Heartbeats and checkpoints of a running attempt",
            body=REPORT_SHAPE,
            answer=REPORT_ACCEPTED,
        )
    }

    def kept(self, work: Callable[[], Response]) -> Response:
        if idempotency_key_of(self.request) is None:
            return work()
        run = self.request.user.key
        owner = Attempt.objects.filter(key=run, job__user__isnull=False).values_list("job__user", flat=True).first()
        if owner is None:
            raise AuthenticationFailed("There is no attempt of this token.")
        return run_once(self.request, work, attempt_request(self.request, run, owner))

    def work(self) -> Response:
        report = parse_report(self.object())
        request, key = self.request, self.request.user.key
        if report.only_heartbeats:
            return Response(self._require_live(progress.record_attempt_heartbeats(key, report.beats)).shown())
        author = Author(by=key, request_id=request.acme_id, source=request.META.get("REMOTE_ADDR") or None)
        with transaction.atomic():
            noted = self._require_live(progress.record_attempt_heartbeats(key, report.beats))
            progress.record_sections(noted, report.declared)
            progress.record_rank_times(noted, report.ranks)
            progress.set_stacks_signal(noted, report.stacks)
            news = progress.record_checkpoints(noted, report.saved, author) if report.saved else 0
        return Response(noted.shown(checkpoints=news))

    def _require_live(self, noted: progress.HeartbeatResult | None) -> progress.HeartbeatResult:
        if noted is None:
            raise AuthenticationFailed("The attempt of this token has ended.")
        return noted


def _read_item(field: str, index: int, one: dict[str, Any], table: dict[str, Any]) -> dict[str, Any]:
    try:
        return parsing.read_fields(one, table, "it")
    except parsing.InvalidField as error:
        raise InvalidRequestField(field, f"number {index}: {error.field}: {error.why}") from None


def _read_checkpoint(index: int, one: dict[str, Any]) -> progress.CheckpointReport:
    found = _read_item("checkpoints", index, one, CHECKPOINT_READERS)
    for name in ("path", "step"):
        if name not in found:
            raise InvalidRequestField("checkpoints", f"number {index}: {name}: is missing")
    return progress.CheckpointReport(**found)


def _read_section(index: int, one: dict[str, Any]) -> progress.SectionReport:
    found = _read_item("sections", index, one, SECTION_READERS)
    for name in ("name", "began_at"):
        if name not in found:
            raise InvalidRequestField("sections", f"number {index}: {name}: is missing")
    return progress.SectionReport(**found)


def _read_rank_times(index: int, one: dict[str, Any]) -> progress.RankTimesReport:
    found = _read_item("ranks", index, one, RANK_READERS)
    ranks = len(found.get("seconds", ()))
    for name in ("nodes", "groups"):
        if len(found.get(name, ())) != ranks and (name == "nodes" or name in found):
            raise InvalidRequestField(
                "ranks", f"number {index}: {name}: there are {len(found.get(name, ()))} for {ranks} ranks"
            )
    return progress.RankTimesReport(**{"seconds": (), "nodes": (), **found})
