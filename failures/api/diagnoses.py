"""The REST API of diagnoses: list, confirm, correct; and diagnose the text of a log."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from rest_framework.exceptions import NotFound, PermissionDenied
from rest_framework.response import Response

from acmeweb.common.errors import InvalidField
from failures.actions import incidents as incident_actions
from failures.api import shapes
from failures.diagnosis import engine, wording
from failures.diagnosis.labels import LABELS
from failures.diagnosis.values import ExitStatus, FailureCategory, RestartAdvice
from failures.models import Diagnosis, DiagnosisReview
from failures.models import permissions as failure_permissions
from failures.queries.pasted_log import MAX_PASTED_BYTES, PasteThrottle
from failures.recovery import decisions
from jobs.core import parsing
from jobs.core.lifecycle import JobKind
from jobs.models import TokenScope, clock
from jobs.queries import keyset
from jobs.rest import etags, query_params
from jobs.rest.endpoint import (
    ActionEndpoint,
    DetailEndpoint,
    ListEndpoint,
    find_job_or_404,
    find_or_404,
    reject_unknown_params,
)
from jobs.rest.idempotency import run_once_outside_transaction
from jobs.rest.permissions import EndpointRule
from jobs.rest.throttle import PerUserThrottle

MAX_NOTE_LENGTH = 1000


class Diagnoses(ListEndpoint):
    """Diagnoses of failed attempts."""

    tag = "Failures"
    what = "diagnoses"
    shape = shapes.DIAGNOSIS_SHAPE
    filters = {
        "id": query_params.text_filter("attempt__key"),
        "job": query_params.text_filter("attempt__job__public_id"),
        "cluster": query_params.text_filter("cluster__name"),
        "team": query_params.text_filter("attempt__job__team__name"),
        "user": query_params.text_filter("attempt__job__user__username"),
        "kind": query_params.choice_filter("attempt__job__kind", list(JobKind)),
        "root_cause": query_params.choice_filter("root_cause", list(LABELS)),
        "engine_root_cause": query_params.choice_filter("engine_root_cause", list(LABELS)),
        "category": query_params.choice_filter("category", [one.value for one in FailureCategory]),
        "restart_helps": query_params.choice_filter("restart_helps", [one.value for one in RestartAdvice]),
        "review": query_params.choice_filter("review", DiagnosisReview.values),
        "incident": query_params.integer_filter("incident"),
        "gpus": query_params.integer_filter("gpus"),
        "failed_at": query_params.datetime_filter("failed_at"),
        "judged_at": query_params.datetime_filter("judged_at"),
    }
    orderings = {"id": keyset.SORT_BY_ID, "failed_at": keyset.SortColumn(column="failed_at", kind=datetime)}
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ,
            says="List the diagnoses of your teams' failed attempts",
            answer=shapes.DIAGNOSIS_SHAPE,
            many=True,
        )
    }

    def rows(self) -> QuerySet[Diagnosis]:
        return failure_permissions.visible_diagnoses(self.caller)


class OneDiagnosis(DetailEndpoint):
    """The diagnosis of one attempt."""

    tag = "Failures"
    shape = shapes.DIAGNOSIS_SHAPE
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ, says="Show the diagnosis of an attempt", answer=shapes.DIAGNOSIS_SHAPE, team=True
        ),
        "PATCH": EndpointRule(
            scope=TokenScope.SUBMIT,
            says="Confirm or correct a diagnosis",
            body=shapes.REVIEW_SHAPE,
            answer=shapes.DIAGNOSIS_SHAPE,
            conflicts=True,
            team=True,
        ),
    }
    takes = {
        "root_cause": parsing.choice_reader(list(LABELS)),
        "confirmed": parsing.read_bool,
        "note": parsing.text_reader(MAX_NOTE_LENGTH, lines=True),
    }

    def row(self, attempt: str) -> Any:
        return find_or_404(self._diagnosis_rows(), "diagnosis", attempt__key=attempt)

    def _diagnosis_rows(self) -> QuerySet[Diagnosis]:
        return self.shape.load(
            failure_permissions.visible_diagnoses(self.caller), self.shape.fields, ("attempt__job__user_id",)
        )

    def patch(self, request: Any, **where: Any) -> Response:
        reject_unknown_params(request)
        values = self.body(self.takes, "a review")
        if ("root_cause" in values) == bool(values.get("confirmed")):
            raise InvalidField("root_cause", "give either the correct root cause or confirmed: true")
        with transaction.atomic():
            row = self.row(**where)
            list(Diagnosis.objects.select_for_update().filter(pk=row.pk).values("pk"))
            etags.check_if_match(request, self.shape.show(self.row(**where)))
            self._apply_review(Diagnosis.objects.select_related("attempt__job").defer("bundle").get(pk=row.pk), values)
            shown = self.shape.show(self.row(**where))
        return Response(shown, headers={"ETag": etags.etag(shown)})

    def _apply_review(self, row: Diagnosis, values: dict[str, Any]) -> None:
        if not self.caller.may_change(row.attempt.job):
            raise PermissionDenied("Only the owner of the job and the operators of its team can review a diagnosis.")
        cause = values.get("root_cause", row.root_cause)
        decisions.correct_diagnosis(row, cause, author=self.author, now=clock.now(), note=values.get("note", ""))


class JobDiagnosis(OneDiagnosis):
    """The diagnosis of the newest failed attempt of a job."""

    def row(self, id: str) -> Any:
        job = find_job_or_404(self.caller.jobs().only("id", "public_id"), id)
        row = self._diagnosis_rows().filter(attempt__job=job).order_by("-attempt__number").first()
        if row is None:
            raise NotFound(f"No attempt of job {id} has failed.")
        return row


class Diagnose(ActionEndpoint):
    """Diagnoses the text of a log without storing it."""

    tag = "Failures"
    throttle_classes = [PerUserThrottle, PasteThrottle]
    rules = {
        "POST": EndpointRule(
            scope=TokenScope.READ,
            says="Diagnose the text of a log; the text is not stored",
            body=shapes.PASTED_LOG_SHAPE,
            answer=shapes.PASTED_VERDICT_SHAPE,
        )
    }
    takes = {
        "log": parsing.nonempty_reader(parsing.text_reader(MAX_PASTED_BYTES, lines=True)),
        "exit_code": parsing.integer_reader(-255, 2**31 - 1),
        "signal": parsing.integer_reader(1, 64),
    }

    def run_idempotent(self, work: Callable[[], Response]) -> Response:
        return run_once_outside_transaction(self.request, work)

    def work(self) -> Response:
        values = self.body(self.takes, "this request")
        if "log" not in values:
            raise InvalidField("log", "is required")
        ending = ExitStatus(exit_code=values.get("exit_code"), signal=values.get("signal"))
        return Response(diagnose_pasted_log(values["log"], ending))


def diagnose_pasted_log(text: str, ending: ExitStatus) -> dict[str, Any]:
    shown = incident_actions.sanitize_for_storage(wording.as_dict(engine.diagnose_text(text, ending)))
    return {name: shown[name] or "" if name == "blame" else shown[name] for name in shapes.VERDICT_FIELDS}
