"""Verdicts through the programs' door: look, confirm, correct; and a log that somebody pastes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from rest_framework.exceptions import NotFound, PermissionDenied
from rest_framework.response import Response

from failures import actions, decision_actions, rights
from failures.api import shapes
from failures.diagnosis import engine, wording
from failures.diagnosis.labels import LABELS
from failures.diagnosis.values import Category, Ending, Restart
from failures.forms import LONGEST, Pastes
from failures.models import Diagnosis, Review
from jobs import clock, readers
from jobs.door import pages, query, versions
from jobs.door.endpoint import Detail, Listing, Verb, found, refuse_unknown
from jobs.door.errors import BadField, Conflict
from jobs.door.once import once_apart
from jobs.door.rights import Rule
from jobs.door.throttle import PerUser
from jobs.lifecycle import Kind
from jobs.models import Scope

LONGEST_NOTE = 1000


class Diagnoses(Listing):
    """Why attempts failed."""

    tag = "Failures"
    what = "diagnoses"
    shape = shapes.DIAGNOSIS
    filters = {
        "id": query.text("attempt__key"),
        "job": query.text("attempt__job__public_id"),
        "cluster": query.text("cluster__name"),
        "team": query.text("attempt__job__team__name"),
        "user": query.text("attempt__job__user__username"),
        "kind": query.choice("attempt__job__kind", list(Kind)),
        "root_cause": query.choice("root_cause", list(LABELS)),
        "said": query.choice("said", list(LABELS)),
        "category": query.choice("category", [one.value for one in Category]),
        "restart_helps": query.choice("restart_helps", [one.value for one in Restart]),
        "review": query.choice("review", Review.values),
        "incident": query.number("incident"),
        "gpus": query.number("gpus"),
        "failed_at": query.moment("failed_at"),
        "judged_at": query.moment("judged_at"),
    }
    orderings = {"id": pages.ID, "failed_at": pages.Sort(column="failed_at", kind=datetime)}
    rules = {
        "GET": Rule(scope=Scope.READ, says="Why the attempts of your teams failed", answer=shapes.DIAGNOSIS, many=True)
    }

    def rows(self) -> QuerySet[Diagnosis]:
        return rights.diagnoses(self.caller)


class OneDiagnosis(Detail):
    """Why one attempt failed."""

    tag = "Failures"
    shape = shapes.DIAGNOSIS
    rules = {
        "GET": Rule(scope=Scope.READ, says="Why an attempt failed", answer=shapes.DIAGNOSIS, team=True),
        "PATCH": Rule(
            scope=Scope.SUBMIT,
            says="Confirm a diagnosis, or correct it",
            body=shapes.REVIEW,
            answer=shapes.DIAGNOSIS,
            conflicts=True,
            team=True,
        ),
    }
    takes = {
        "root_cause": readers.one_of(list(LABELS)),
        "confirmed": readers.truth,
        "note": readers.text(LONGEST_NOTE, lines=True),
    }

    def row(self, attempt: str) -> Any:
        return found(self._rows(), "diagnosis", attempt__key=attempt)

    def _rows(self) -> QuerySet[Diagnosis]:
        return self.shape.load(rights.diagnoses(self.caller), self.shape.fields, ("attempt__job__user_id",))

    def patch(self, request: Any, **where: Any) -> Response:
        refuse_unknown(request)
        asked = self.body(self.takes, "a review")
        if ("root_cause" in asked) == bool(asked.get("confirmed")):
            raise BadField("root_cause", "give either the root cause it should be, or confirmed: true")
        with transaction.atomic():
            row = self.row(**where)
            list(Diagnosis.objects.select_for_update().filter(pk=row.pk).values("pk"))
            versions.refuse_stale(request, self.shape.show(self.row(**where)))
            self._review(Diagnosis.objects.select_related("attempt__job").defer("bundle").get(pk=row.pk), asked)
            shown = self.shape.show(self.row(**where))
        return Response(shown, headers={"ETag": versions.etag(shown)})

    def _review(self, row: Diagnosis, asked: dict[str, Any]) -> None:
        if not self.caller.may_change(row.attempt.job):
            raise PermissionDenied("Its owner and the operators of its team judge a diagnosis.")
        try:
            cause = asked.get("root_cause", row.root_cause)
            decision_actions.correct(row, cause, author=self.author, now=clock.now(), note=asked.get("note", ""))
        except actions.Moved as moved:
            raise Conflict(str(moved)) from None


class JobDiagnosis(OneDiagnosis):
    """Why the newest attempt that failed did."""

    def row(self, id: str) -> Any:
        job = found(self.caller.jobs().only("id", "public_id"), "job", public_id=id)
        row = self._rows().filter(attempt__job=job).order_by("-attempt__number").first()
        if row is None:
            raise NotFound(f"No attempt of job {id} has failed.")
        return row


class Diagnose(Verb):
    """A log that Acme did not write."""

    tag = "Failures"
    throttle_classes = [PerUser, Pastes]
    rules = {
        "POST": Rule(
            scope=Scope.READ,
            says="Say why a job failed, from the text of its log, which is not kept",
            body=shapes.PASTED,
            answer=shapes.PASTED_VERDICT,
        )
    }
    takes = {
        "log": readers.needed(readers.text(LONGEST, lines=True)),
        "exit_code": readers.whole(-255, 2**31 - 1),
        "signal": readers.whole(1, 64),
    }

    def kept(self, work: Callable[[], Response]) -> Response:
        return once_apart(self.request, work)

    def work(self) -> Response:
        asked = self.body(self.takes, "this request")
        if "log" not in asked:
            raise BadField("log", "is missing")
        ending = Ending(exit_code=asked.get("exit_code"), signal=asked.get("signal"))
        return Response(pasted(asked["log"], ending))


def pasted(text: str, ending: Ending) -> dict[str, Any]:
    shown = actions.storable(wording.as_dict(engine.diagnose_text(text, ending)))
    return {name: shown[name] or "" if name == "blame" else shown[name] for name in shapes.VERDICT}
