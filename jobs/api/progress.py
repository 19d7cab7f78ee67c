"""Progress reports of running jobs, authenticated with a token that is valid for one attempt.

Ten thousand attempts report every few seconds. A report of heartbeats therefore takes one SQL statement and no lookup
of a session or user; repeating a report changes nothing. A request with an Idempotency-Key is handled as usual, at a
higher cost. Under our web server most heartbeats do not reach this endpoint: `acmeweb.batching.heartbeats` writes
many in one statement and forwards only requests that need an individual response.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.response import Response

from acmeweb.common.errors import InvalidField, InvalidInput
from jobs.actions import progress
from jobs.actions.journal import Author
from jobs.actions.stack_requests import STACK_SIGNALS
from jobs.core import parsing
from jobs.core.slurm_notation import parse_signal
from jobs.models import Attempt, TokenScope
from jobs.rest.endpoint import ActionEndpoint
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
    """The authenticated attempt, in place of a user."""

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
        "tokens": _count_schema("Tokens consumed since the start of the training."),
        "sum_sq": _float_schema("Sum of squared sequence lengths since the start, a measure of the cost of attention."),
        "loss": _float_schema("NaN and infinities are sent as text, because JSON has no numbers for them."),
        "grad_norm": _float_schema(),
        "step_time_s": _float_schema(),
        "learning_rate": _float_schema(),
        "mfu": one_of_field(
            {"type": "number", "minimum": 0, "maximum": 1},
            {"type": "null"},
            says="Model FLOPs utilization as a share of 1.",
            required=False,
        ),
        "at": datetime_field(
            "Time of the step. Default, and latest possible value: now.", required=False, nullable=True
        ),
    },
)
CHECKPOINT_SHAPE = ResourceShape(
    "CheckpointSaved",
    {
        "path": text_field(),
        "step": integer_field(low=0, high=MAX_COUNT),
        "saved_at": datetime_field(required=False, nullable=True),
        "durable": boolean_field("True if the checkpoint has reached remote storage.", required=False, nullable=True),
        "stall_s": ShapeField(
            schema={
                "type": ["number", "null"],
                "minimum": 0,
                "maximum": MAX_STALL_S,
                "description": "Seconds for which saving the checkpoint stalled the training.",
            },
            required=False,
        ),
    },
)
SECTION_SHAPE = ResourceShape(
    "SectionDeclared",
    {
        "name": text_field("checkpoint, evaluation, compile …"),
        "began_at": datetime_field("Start; distinguishes sections of the same name."),
        "ended_at": datetime_field("End; omit it while the section is in progress.", required=False, nullable=True),
    },
)
RANKS_SHAPE = ResourceShape(
    "RankTimes",
    {
        "seconds": ShapeField(
            schema={"type": "array", "maxItems": MAX_RANKS, "items": {"type": "number", "minimum": 0}},
        ),
        "nodes": text_list_field("Node of each rank."),
        "groups": text_list_field(
            "Group of each rank. Ranks of a group do the same work, such as a pipeline stage. Default: one group.",
            required=False,
        ),
    },
)
REPORT_SHAPE = ResourceShape(
    "Report",
    {
        "heartbeats": nested_list_field(HEARTBEAT_SHAPE, f"At most {MAX_HEARTBEATS}.", required=False),
        "checkpoints": nested_list_field(CHECKPOINT_SHAPE, f"At most {MAX_CHECKPOINTS}.", required=False),
        "ranks": nested_list_field(
            RANKS_SHAPE,
            f"Compute time of each rank in one step, by rank number. At most {MAX_RANK_REPORTS}.",
            required=False,
        ),
        "sections": nested_list_field(
            SECTION_SHAPE,
            f"Periods without steps, which are then not reported as a hang. At most {MAX_CHECKPOINTS}.",
            required=False,
        ),
        "stacks": text_field(
            "Signal at which all processes print their stacks, such as USR2 or B:USR2.", required=False
        ),
    },
    example={"heartbeats": [{"step": 120, "loss": 2.31, "tokens": 503316480}]},
)
REPORT_ACCEPTED = ResourceShape(
    "ReportTaken",
    {
        "heartbeats": integer_field("Number of new heartbeats."),
        "checkpoints": integer_field("Number of new checkpoints."),
        "stop_state": text_field("Requested final state of the attempt; empty: continue."),
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
        parsing.raise_invalid_field(name, "is too large")


def read_stall_seconds(name: str, value: Any) -> float:
    seconds = read_float(name, value)
    if not 0 <= seconds <= MAX_STALL_S:
        parsing.raise_invalid_field(name, f"{seconds:g} is not between 0 and {MAX_STALL_S} seconds")
    return seconds


def read_share(name: str, value: Any) -> float:
    share = read_float(name, value)
    if not 0 <= share <= 1:
        parsing.raise_invalid_field(name, f"{share:g} is not a share between 0 and 1")
    return share


READ_COUNT = parsing.integer_reader(0, MAX_COUNT)
HEARTBEAT_READERS = {
    "step": READ_COUNT,
    "tokens": READ_COUNT,
    "sum_sq": read_float,
    "loss": read_float,
    "grad_norm": read_float,
    "step_time_s": read_float,
    "learning_rate": read_float,
    "mfu": read_share,
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
    seconds = read_float(name, value)
    if not 0 <= seconds < math.inf:
        parsing.raise_invalid_field(name, f"{seconds:g} is not a valid step time")
    return seconds


RANK_READERS = {
    "seconds": parsing.list_reader(read_step_seconds, MAX_RANKS),
    "nodes": parsing.list_reader(parsing.text_reader(64), MAX_RANKS),
    "groups": parsing.list_reader(parsing.text_reader(40), MAX_RANKS),
}


def read_stack_signal(name: str, value: Any) -> str:
    text = parsing.text_reader(12)(name, value)
    try:
        parsed = parse_signal(text) if text else None
    except InvalidInput as error:
        parsing.raise_invalid_field(name, str(error))
    if parsed and parsed.signal not in STACK_SIGNALS:
        parsing.raise_invalid_field(name, f"{parsed.signal} is not one of {', '.join(sorted(STACK_SIGNALS))}")
    return parsed.text if parsed else ""


REPORT_READERS = {
    "heartbeats": parsing.list_reader(parsing.read_object, MAX_HEARTBEATS),
    "checkpoints": parsing.list_reader(parsing.read_object, MAX_CHECKPOINTS),
    "ranks": parsing.list_reader(parsing.read_object, MAX_RANK_REPORTS),
    "sections": parsing.list_reader(parsing.read_object, MAX_CHECKPOINTS),
    "stacks": read_stack_signal,
}


@dataclass(frozen=True, kw_only=True)
class ProgressReport:
    """A parsed report. `stacks` is None if the report does not mention a signal, and "" if it removes the signal."""

    beats: list[dict[str, Any]]
    saved: list[progress.CheckpointReport]
    declared: list[progress.SectionReport]
    ranks: list[progress.RankTimesReport]
    stacks: str | None = None

    @property
    def only_heartbeats(self) -> bool:
        return not (self.saved or self.declared or self.ranks) and self.stacks is None


def parse_report(body: dict[str, Any]) -> ProgressReport:
    fields = parsing.read_fields(body, REPORT_READERS, "a report")
    return ProgressReport(
        beats=[
            _read_item("heartbeats", index, item, HEARTBEAT_READERS)
            for index, item in enumerate(fields.get("heartbeats", ()))
        ],
        saved=[_read_checkpoint(index, item) for index, item in enumerate(fields.get("checkpoints", ()))],
        declared=[_read_section(index, item) for index, item in enumerate(fields.get("sections", ()))],
        ranks=[_read_rank_times(index, item) for index, item in enumerate(fields.get("ranks", ()))],
        stacks=fields.get("stacks"),
    )


class ReportProgress(ActionEndpoint):
    """Report the progress of a running attempt."""

    tag = "Progress"
    own_credentials = True
    authentication_classes = [AttemptTokenAuthentication]
    rules = {
        "POST": EndpointRule(
            scope=TokenScope.READ,
            says="Report heartbeats, checkpoints and sections of a running attempt",
            body=REPORT_SHAPE,
            answer=REPORT_ACCEPTED,
        )
    }

    def run_idempotent(self, work: Callable[[], Response]) -> Response:
        if idempotency_key_of(self.request) is None:
            return work()
        run = self.request.user.key
        owner = Attempt.objects.filter(key=run, job__user__isnull=False).values_list("job__user", flat=True).first()
        if owner is None:
            raise AuthenticationFailed("The attempt of this token does not exist.")
        return run_once(self.request, work, attempt_request(self.request, run, owner))

    def work(self) -> Response:
        report = parse_report(self.object())
        request, key = self.request, self.request.user.key
        if report.only_heartbeats:
            return Response(self._require_live(progress.record_attempt_heartbeats(key, report.beats)).as_dict())
        author = Author(by=key, request_id=request.acme_id, source=request.META.get("REMOTE_ADDR") or None)
        with transaction.atomic():
            result = self._require_live(progress.record_attempt_heartbeats(key, report.beats))
            progress.record_sections(result, report.declared)
            progress.record_rank_times(result, report.ranks)
            progress.set_stacks_signal(result, report.stacks)
            new_checkpoints = progress.record_checkpoints(result, report.saved, author) if report.saved else 0
        return Response(result.as_dict(checkpoints=new_checkpoints))

    def _require_live(self, result: progress.HeartbeatResult | None) -> progress.HeartbeatResult:
        """The result; None means that the attempt has ended, so its token is refused."""
        if result is None:
            raise AuthenticationFailed("The attempt of this token has ended.")
        return result


def _read_item(
    field: str, index: int, item: dict[str, Any], table: dict[str, Any], required: Sequence[str] = ()
) -> dict[str, Any]:
    try:
        values = parsing.read_fields(item, table, "it")
    except InvalidField as error:
        raise InvalidField(field, f"number {index}: {error.field}: {error.why}") from None
    if missing := next((name for name in required if name not in values), ""):
        raise InvalidField(field, f"number {index}: {missing}: is missing")
    return values


def _read_checkpoint(index: int, item: dict[str, Any]) -> progress.CheckpointReport:
    fields = _read_item("checkpoints", index, item, CHECKPOINT_READERS, required=("path", "step"))
    return progress.CheckpointReport(**fields)


def _read_section(index: int, item: dict[str, Any]) -> progress.SectionReport:
    fields = _read_item("sections", index, item, SECTION_READERS, required=("name", "began_at"))
    return progress.SectionReport(**fields)


def _read_rank_times(index: int, item: dict[str, Any]) -> progress.RankTimesReport:
    fields = _read_item("ranks", index, item, RANK_READERS)
    ranks = len(fields.get("seconds", ()))
    for name in ("nodes", "groups"):
        count = len(fields.get(name, ()))
        if count != ranks and (name == "nodes" or name in fields):
            raise InvalidField("ranks", f"number {index}: {name}: length is {count}, but seconds has length {ranks}")
    return progress.RankTimesReport(**{"seconds": (), "nodes": (), **fields})
