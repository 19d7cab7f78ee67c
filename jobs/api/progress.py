"""What a running job reports of itself, with a token that is good for that one attempt.

Ten thousand attempts come by every few seconds, so a report of heartbeats is one statement and no session or user is
looked up: the same report twice changes nothing by itself. Who brings an Idempotency-Key all the same is answered as
everywhere, at a higher price. Under our web server most heartbeats do
not come this far: `acmeweb.heartbeats` writes many by one statement, and leaves to this endpoint what needs a word.
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

from jobs import progress, readers
from jobs.door.endpoint import Verb
from jobs.door.errors import BadField
from jobs.door.once import key_of, of_run, once
from jobs.door.rights import Rule
from jobs.door.shapes import Field, Shape, either, many, moment, number, text, texts, truth
from jobs.journal import Author
from jobs.models import Attempt, Scope
from jobs.notation import BadNotation, parse_signal
from jobs.stack_actions import MAY_ASK

MOST_BEATS = 1000
MOST_CHECKPOINTS = 100
MOST = 2**62
MOST_STALL_S = 86_400
MOST_RANKS, MOST_TOLD = 20_000, 4
NOT_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True, kw_only=True)
class Run:
    """Who reports: an attempt, not a person."""

    key: str
    is_authenticated: bool = True

    @property
    def pk(self) -> str:
        return f"run:{self.key}"


class RunToken(BaseAuthentication):
    def authenticate(self, request: Any) -> tuple[Run, None]:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        key = progress.key_of(token.strip()) if scheme.lower() == "bearer" else None
        if key is None:
            raise AuthenticationFailed("This needs the ACME_PROGRESS_TOKEN of a running attempt.")
        return Run(key=key), None

    def authenticate_header(self, request: Any) -> str:
        return 'Bearer realm="acme"'


def _measure(says: str = "") -> Field:
    kinds = {"type": "number"}, {"type": "string", "enum": list(NOT_NUMBERS)}
    return either(*kinds, {"type": "null"}, says=says, required=False)


def _count(says: str = "") -> Field:
    return number(says, low=0, high=MOST, required=False, nullable=True)


HEARTBEAT = Shape(
    "Heartbeat",
    {
        "step": _count(),
        "tokens": _count("Consumed since the beginning of the training."),
        "sum_sq": _measure("Of the squared lengths of its sequences, since the beginning: what attention costs."),
        "loss": _measure("What is no number, JSON has only as text."),
        "grad_norm": _measure(),
        "step_time_s": _measure(),
        "learning_rate": _measure(),
        "at": moment("When; now, if it is left out, and never later than now.", required=False, nullable=True),
    },
)
SAVED = Shape(
    "CheckpointSaved",
    {
        "path": text(),
        "step": number(low=0, high=MOST),
        "saved_at": moment(required=False, nullable=True),
        "durable": truth("It has reached remote storage.", required=False, nullable=True),
        "stall_s": Field(
            schema={
                "type": ["number", "null"],
                "minimum": 0,
                "maximum": MOST_STALL_S,
                "description": "Seconds for which saving it held training up.",
            },
            required=False,
        ),
    },
)
SECTION = Shape(
    "SectionDeclared",
    {
        "name": text("checkpoint, evaluation, compile …"),
        "began_at": moment("Tells it from others of its name."),
        "ended_at": moment("Left out: it goes on.", required=False, nullable=True),
    },
)
RANKS = Shape(
    "RankTimes",
    {
        "seconds": Field(
            schema={"type": "array", "maxItems": MOST_RANKS, "items": {"type": "number", "minimum": 0}},
        ),
        "nodes": texts("Where each of them runs."),
        "groups": texts("Who does the same work, such as a pipeline's stage; left out: all.", required=False),
    },
)
REPORT = Shape(
    "Report",
    {
        "heartbeats": many(HEARTBEAT, f"At most {MOST_BEATS}.", required=False),
        "checkpoints": many(SAVED, f"At most {MOST_CHECKPOINTS}.", required=False),
        "ranks": many(
            RANKS, f"How long each rank computed in one step, by its number. At most {MOST_TOLD}.", required=False
        ),
        "sections": many(
            SECTION,
            f"Times in which no step is due, so that none is a hang. At most {MOST_CHECKPOINTS}.",
            required=False,
        ),
        "stacks": text("A signal that all its processes answer with their stacks: USR2, B:USR2.", required=False),
    },
    example={"heartbeats": [{"step": 120, "loss": 2.31, "tokens": 503316480}]},
)
TAKEN = Shape(
    "ReportTaken",
    {
        "heartbeats": number("That were new."),
        "checkpoints": number("That were new."),
        "stop_as": text("What the attempt is asked to become; empty: go on."),
    },
)


def measure(name: str, value: Any) -> float:
    if isinstance(value, str) and value in NOT_NUMBERS:
        return NOT_NUMBERS[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        readers.bad(name, f"is {readers.kind_of(value)}, not a number, NaN, Infinity or -Infinity")
    try:
        return float(value)
    except OverflowError:
        readers.bad(name, "is larger than any number we keep")


def stall(name: str, value: Any) -> float:
    found = measure(name, value)
    if not 0 <= found <= MOST_STALL_S:
        readers.bad(name, f"{found:g} is not between 0 and {MOST_STALL_S} seconds")
    return found


COUNT = readers.whole(0, MOST)
BEAT = {
    "step": COUNT,
    "tokens": COUNT,
    "sum_sq": measure,
    "loss": measure,
    "grad_norm": measure,
    "step_time_s": measure,
    "learning_rate": measure,
    "at": readers.moment,
}
CHECKPOINT = {
    "path": readers.needed(readers.text(500)),
    "step": COUNT,
    "saved_at": readers.moment,
    "durable": readers.truth,
    "stall_s": stall,
}
SECTIONS = {
    "name": readers.needed(readers.text(40)),
    "began_at": readers.moment,
    "ended_at": readers.moment,
}


def seconds(name: str, value: Any) -> float:
    found = measure(name, value)
    if not 0 <= found < math.inf:
        readers.bad(name, f"{found:g} is no time that a step can take")
    return found


RANK_TIMES = {
    "seconds": readers.list_of(seconds, MOST_RANKS),
    "nodes": readers.list_of(readers.text(64), MOST_RANKS),
    "groups": readers.list_of(readers.text(40), MOST_RANKS),
}


def stacks(name: str, value: Any) -> str:
    said = readers.text(12)(name, value)
    try:
        ask = parse_signal(said) if said else None
    except BadNotation as error:
        readers.bad(name, str(error))
    if ask and ask.signal not in MAY_ASK:
        readers.bad(name, f"{ask.signal} is none of {', '.join(sorted(MAY_ASK))}")
    return ask.text if ask else ""


TAKES = {
    "heartbeats": readers.list_of(readers.an_object, MOST_BEATS),
    "checkpoints": readers.list_of(readers.an_object, MOST_CHECKPOINTS),
    "ranks": readers.list_of(readers.an_object, MOST_TOLD),
    "sections": readers.list_of(readers.an_object, MOST_CHECKPOINTS),
    "stacks": stacks,
}


@dataclass(frozen=True, kw_only=True)
class Report:
    beats: list[dict[str, Any]]
    saved: list[progress.Saved]
    declared: list[progress.Declared]
    ranks: list[progress.Ranks]
    stacks: str | None = None

    @property
    def is_beats_alone(self) -> bool:
        return not (self.saved or self.declared or self.ranks) and self.stacks is None


def read_report(asked: dict[str, Any]) -> Report:
    found = readers.read_all(asked, TAKES, "a report")
    return Report(
        beats=[_read("heartbeats", index, one, BEAT) for index, one in enumerate(found.get("heartbeats", ()))],
        saved=[_checkpoint(index, one) for index, one in enumerate(found.get("checkpoints", ()))],
        declared=[_section(index, one) for index, one in enumerate(found.get("sections", ()))],
        ranks=[_ranks(index, one) for index, one in enumerate(found.get("ranks", ()))],
        stacks=found.get("stacks"),
    )


class Progress(Verb):
    """A job's own report."""

    tag = "Progress"
    own_credentials = True
    authentication_classes = [RunToken]
    rules = {
        "POST": Rule(
            scope=Scope.READ, says="Heartbeats and checkpoints of a running attempt", body=REPORT, answer=TAKEN
        )
    }

    def kept(self, work: Callable[[], Response]) -> Response:
        if key_of(self.request) is None:
            return work()
        run = self.request.user.key
        owner = Attempt.objects.filter(key=run, job__user__isnull=False).values_list("job__user", flat=True).first()
        if owner is None:
            raise AuthenticationFailed("There is no attempt of this token.")
        return once(self.request, work, of_run(self.request, run, owner))

    def work(self) -> Response:
        report = read_report(self.object())
        request, key = self.request, self.request.user.key
        if report.is_beats_alone:
            return Response(self._living(progress.note(key, report.beats)).shown())
        author = Author(by=key, request_id=request.acme_id, source=request.META.get("REMOTE_ADDR") or None)
        with transaction.atomic():
            noted = self._living(progress.note(key, report.beats))
            progress.declare_sections(noted, report.declared)
            progress.keep_ranks(noted, report.ranks)
            progress.note_stacks(noted, report.stacks)
            news = progress.save_checkpoints(noted, report.saved, author) if report.saved else 0
        return Response(noted.shown(checkpoints=news))

    def _living(self, noted: progress.Noted | None) -> progress.Noted:
        if noted is None:
            raise AuthenticationFailed("The attempt of this token has ended.")
        return noted


def _read(field: str, index: int, one: dict[str, Any], table: dict[str, Any]) -> dict[str, Any]:
    try:
        return readers.read_all(one, table, "it")
    except readers.BadSpec as error:
        raise BadField(field, f"number {index}: {error.field}: {error.why}") from None


def _checkpoint(index: int, one: dict[str, Any]) -> progress.Saved:
    found = _read("checkpoints", index, one, CHECKPOINT)
    for name in ("path", "step"):
        if name not in found:
            raise BadField("checkpoints", f"number {index}: {name}: is missing")
    return progress.Saved(**found)


def _section(index: int, one: dict[str, Any]) -> progress.Declared:
    found = _read("sections", index, one, SECTIONS)
    for name in ("name", "began_at"):
        if name not in found:
            raise BadField("sections", f"number {index}: {name}: is missing")
    return progress.Declared(**found)


def _ranks(index: int, one: dict[str, Any]) -> progress.Ranks:
    found = _read("ranks", index, one, RANK_TIMES)
    ranks = len(found.get("seconds", ()))
    for name in ("nodes", "groups"):
        if len(found.get(name, ())) != ranks and (name == "nodes" or name in found):
            raise BadField("ranks", f"number {index}: {name}: there are {len(found.get(name, ()))} for {ranks} ranks")
    return progress.Ranks(**{"seconds": (), "nodes": (), **found})
