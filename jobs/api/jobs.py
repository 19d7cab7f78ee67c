"""Jobs in the API: submit, list and read jobs, and actions on one job or many."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar

from django.contrib.auth import get_user_model
from django.db.models import QuerySet
from rest_framework.response import Response

from acmeweb.common.errors import InvalidField
from jobs.actions import job_verbs, submissions
from jobs.actions.bulk import apply
from jobs.actions.bulk.apply import MAX_BULK_JOBS, BulkJobResult
from jobs.actions.bulk.background import MAX_BACKGROUND_JOBS, start_bulk_action
from jobs.actions.job_verbs import JobActionRequest, perform_job_action, read_priority
from jobs.actions.submissions import request_turn_after_commit
from jobs.api import shapes
from jobs.core import parsing
from jobs.core.lifecycle import JOB_STATES, JobKind
from jobs.models import Attempt, BulkAction, Cluster, Event, HoldKind, Job, Team, TokenScope
from jobs.models.permissions import Caller
from jobs.queries import keyset
from jobs.rest import etags, query_params
from jobs.rest.endpoint import (
    ActionEndpoint,
    ApiEndpoint,
    DetailEndpoint,
    ListEndpoint,
    current_row_response,
    find_job_or_404,
    find_or_404,
    reject_unknown_params,
)
from jobs.rest.permissions import EndpointRule

MAX_JOBS = 5000
MAX_REASON_LENGTH = 1000

READ = TokenScope.READ
SUBMIT = TokenScope.SUBMIT

JOB_FILTERS = {
    "id": query_params.text_filter("public_id"),
    "array_id": query_params.text_filter("array_id"),
    "cluster": query_params.related_name_filter("cluster_id", Cluster, "name"),
    "team": query_params.related_name_filter("team_id", Team, "name"),
    "user": query_params.related_name_filter("user_id", get_user_model(), "username"),
    "name": query_params.text_filter("name", "contains", "startswith", walked=Job),
    "kind": query_params.choice_filter("kind", list(JobKind)),
    "state": query_params.choice_filter("state", list(JOB_STATES)),
    "reason": query_params.text_filter("reason"),
    "hold": query_params.choice_filter("hold", HoldKind.values),
    "preemptible": query_params.boolean_filter("preemptible"),
    "priority": query_params.integer_filter("priority"),
    "nodes": query_params.integer_filter("nodes"),
    "gpus_per_node": query_params.integer_filter("gpus_per_node"),
    "gpu_model": query_params.text_filter("gpu_model"),
    "exit_code": query_params.integer_filter("exit_code"),
    "cause": query_params.child_text_filter(Attempt, "cause", "job"),
    "labels": query_params.labels_filter("labels"),
    "submitted_at": query_params.datetime_filter("submitted_at"),
    "started_at": query_params.datetime_filter("started_at"),
    "ended_at": query_params.datetime_filter("ended_at"),
}
JOB_ORDERINGS = {
    "id": keyset.SORT_BY_ID,
    "name": keyset.SortColumn(column="name"),
    "priority": keyset.SortColumn(column="priority", kind=int),
    "submitted_at": keyset.SortColumn(column="submitted_at", kind=datetime),
    "started_at": keyset.SortColumn(column="started_at", kind=datetime, nullable=True),
    "ended_at": keyset.SortColumn(column="ended_at", kind=datetime, nullable=True),
}


def attach_latest_attempts(jobs: Sequence[Any]) -> None:
    """Set `latest_attempt` on the jobs with one query."""
    rows = Attempt.objects.filter(job__in=[job.pk for job in jobs]).order_by("job_id", "-number").distinct("job_id")
    newest = {attempt.job_id: attempt for attempt in rows.only("job_id", "nodelist", "backend_id")}
    for job in jobs:
        job.latest_attempt = newest.get(job.pk)


class Jobs(ListEndpoint, ActionEndpoint):
    """List jobs and submit a job."""

    tag = "Jobs"
    what = "jobs"
    shape = shapes.JOB
    filters = JOB_FILTERS
    orderings = JOB_ORDERINGS
    rules = {
        "GET": EndpointRule(scope=READ, says="List jobs of your teams", answer=shapes.JOB, many=True),
        "POST": EndpointRule(
            scope=SUBMIT,
            says="Submit one job",
            body=shapes.JOB_REQUEST,
            answer=shapes.JOB_SUBMITTED,
            status=201,
            conflicts=True,
        ),
    }

    def rows(self) -> QuerySet[Job]:
        return self.caller.jobs()

    def attach_computed_values(self, rows: list[Any], names: list[str]) -> None:
        if shapes.LATEST_ATTEMPT_FIELDS.intersection(names):
            attach_latest_attempts(rows)

    def work(self) -> Response:
        results = submissions.submit_requests([self.object()], {}, self.caller, self.author)
        submitted = results[0].submitted
        url = self.request.build_absolute_uri(f"{self.request.path}{submitted['jobs'][0]}/")
        return Response(submitted, status=201, headers={"Location": url})


class BulkJobs(ActionEndpoint):
    """Submit up to 5,000 jobs."""

    tag = "Jobs"
    rules = {
        "POST": EndpointRule(
            scope=SUBMIT,
            says="Submit up to 5,000 jobs, all together or each on its own",
            body=shapes.BULK_REQUEST,
            answer=shapes.BULK_RESULT,
            refused=shapes.BULK_RESULT,
            status=201,
            conflicts=True,
        )
    }
    takes = {
        "jobs": parsing.list_reader(parsing.read_object, MAX_JOBS),
        "mode": parsing.choice_reader(("all", "each")),
        "team": parsing.text_reader(40),
        "cluster": parsing.text_reader(40),
    }

    def work(self) -> Response:
        body = self.body(self.takes, "this request")
        if "jobs" not in body:
            raise InvalidField("jobs", "is missing")
        defaults: dict[str, Any] = {name: body[name] for name in ("team", "cluster") if name in body}
        each = body.get("mode") == "each"
        results = submissions.submit_requests(body["jobs"], defaults, self.caller, self.author, many=True, each=each)
        accepted = sum(1 for result in results if not result.errors)
        payload = {
            "accepted": accepted,
            "refused": len(results) - accepted,
            "results": [result.as_dict() for result in results],
        }
        return Response(payload, status=201 if accepted else 400)


class OneJob(DetailEndpoint):
    """Get one job."""

    tag = "Jobs"
    shape = shapes.JOB
    rules = {"GET": EndpointRule(scope=READ, says="Get one job with all its settings", answer=shapes.JOB, team=True)}

    def row(self, id: str) -> Job:
        return full_job(self.caller, id)


def full_job(caller: Caller, id: str) -> Any:
    """The job with everything that shapes.JOB shows, or 404."""
    job = find_job_or_404(shapes.JOB.load(caller.jobs(), shapes.JOB.fields), id)
    attach_latest_attempts([job])
    return job


class JobRowsEndpoint(ListEndpoint):
    """Base class of lists whose rows belong to one job."""

    def job(self, id: str) -> Job:
        return find_job_or_404(self.caller.jobs().only("id", "public_id"), id)


class JobAttempts(JobRowsEndpoint):
    """List the attempts of a job."""

    tag = "Jobs"
    what = "attempts"
    shape = shapes.ATTEMPT
    rules = {
        "GET": EndpointRule(scope=READ, says="List the attempts of a job", answer=shapes.ATTEMPT, many=True, team=True)
    }

    def rows(self, id: str) -> QuerySet:
        return self.job(id).attempts.all()


class JobEvents(JobRowsEndpoint):
    """List the events of a job."""

    tag = "Jobs"
    what = "events"
    shape = shapes.EVENT
    filters = {
        "type": query_params.text_filter("type"),
        "at": query_params.datetime_filter("at"),
        "by": query_params.text_filter("by"),
        "id": query_params.integer_filter("id"),
    }
    rules = {
        "GET": EndpointRule(scope=READ, says="List the events of a job", answer=shapes.EVENT, many=True, team=True)
    }

    def rows(self, id: str) -> QuerySet:
        return Event.objects.filter(job=self.job(id))


# --- actions


REASON_READER = parsing.text_reader(MAX_REASON_LENGTH, lines=True)


class JobActionEndpoint(ActionEndpoint):
    """An action on one job, guarded by If-Match. The response is the job after the action."""

    tag = "Jobs"
    verb: ClassVar[job_verbs.JobAction]
    takes: ClassVar[Mapping[str, parsing.FieldReader]] = {"reason": REASON_READER}

    def work(self, id: str) -> Response:
        body = self.body(self.takes, f"the verb {self.verb.name}")
        for name in self.takes:
            if name not in body and name != "reason":
                raise InvalidField(name, "is missing")
        job = full_job(self.caller, id)
        if "If-Match" in self.request.headers:
            _lock_job(job)
            etags.check_if_match(self.request, shapes.JOB.show(full_job(self.caller, id)), shapes.JOB.observed)
        action = JobActionRequest(author=self.author, why=body.get("reason", ""), priority=body.get("priority", 0))
        perform_job_action(self.verb, self.caller.jobs().get(pk=job.pk), action, self.caller)
        request_turn_after_commit(job.cluster_id)
        return current_row_response(shapes.JOB, full_job(self.caller, id))


def _lock_job(job: Job) -> None:
    """Lock the job until the commit. Locks the attempt first, in the same order as the actions, to avoid deadlocks."""
    list(Attempt.objects.select_for_update().filter(job=job, ended_at__isnull=True).values("pk"))
    list(Job.objects.select_for_update().filter(pk=job.pk).values("pk"))


def _action_endpoint(verb: job_verbs.JobAction) -> type[JobActionEndpoint]:
    takes = {"priority": read_priority, "reason": REASON_READER} if verb.takes_priority else {"reason": REASON_READER}
    body = shapes.PRIORITY_BODY if verb.takes_priority else shapes.REASON_BODY
    rule = EndpointRule(scope=SUBMIT, says=verb.summary, body=body, answer=shapes.JOB, conflicts=True, team=True)
    table = {"verb": verb, "takes": takes, "rules": {"POST": rule}, "__doc__": verb.summary}
    prefix = verb.name.title().replace("-", "")
    return type(f"{prefix}Job", (JobActionEndpoint,), table)


JOB_ACTION_ENDPOINTS = {name: _action_endpoint(verb) for name, verb in job_verbs.JOB_ACTIONS.items()}


class BulkJobActions(ActionEndpoint):
    """An action on jobs given by ids or by a filter. The response has a result per job."""

    tag = "Jobs"
    rules = {
        "POST": EndpointRule(
            scope=SUBMIT,
            says="Apply an action to many jobs, given by ids or by a filter, with an optional dry run",
            body=shapes.JOB_ACTION_REQUEST,
            answer=shapes.JOB_ACTION_RESULTS,
            conflicts=True,
            also={202: "More than 1,000 jobs match. The action runs in the background; `url` has its progress."},
        )
    }
    takes = {
        "action": parsing.choice_reader(shapes.JOB_ACTION_NAMES),
        "ids": parsing.list_reader(parsing.text_reader(24), MAX_BULK_JOBS),
        "filter": parsing.read_object,
        "dry_run": parsing.read_bool,
        "priority": read_priority,
        "reason": REASON_READER,
    }

    def work(self) -> Response:
        body = self.body(self.takes, "this request")
        _check_action_request(body)
        action, dry = job_verbs.JOB_ACTIONS[body["action"]], body.get("dry_run", False)
        if "ids" in body:
            rows, errors = self._jobs_by_ids(body["ids"], action)
        else:
            rows, errors = self._jobs_by_filter(body["filter"]).filter(action.changeable), {}
        keys = apply.oldest_keys(rows, MAX_BACKGROUND_JOBS)
        if len(keys) > MAX_BACKGROUND_JOBS:
            field = "ids" if "ids" in body else "filter"
            raise InvalidField(field, f"more than {MAX_BACKGROUND_JOBS} jobs match")
        request = JobActionRequest(author=self.author, why=body.get("reason", ""), priority=body.get("priority", 0))
        if len(keys) > MAX_BULK_JOBS and not dry:
            return self._start_in_background(action, keys, request)
        results = apply.apply_to_jobs(action, keys[:MAX_BULK_JOBS], request, self.caller, dry=dry)
        outcomes = [_action_result(result) for result in results]
        outcomes += [{"id": id, "succeeded": False, "error": error} for id, error in errors.items()]
        done = sum(1 for outcome in outcomes if outcome["succeeded"])
        payload = {
            "action": action.name,
            "dry_run": dry,
            "matched": len(keys),
            "succeeded": done,
            "refused": len(outcomes) - done,
            "remaining": max(0, len(keys) - MAX_BULK_JOBS),
            "results": outcomes,
        }
        return Response(payload)

    def _start_in_background(self, action: job_verbs.JobAction, keys: list[int], request: JobActionRequest) -> Response:
        row = start_bulk_action(action, keys, request, self.caller)
        url = self.request.build_absolute_uri(f"{self.request.path}{row.pk}/")
        return Response(_background_progress(row, url), status=202, headers={"Location": url})

    def _jobs_by_ids(self, ids: list[str], action: job_verbs.JobAction) -> tuple[QuerySet[Job], dict[str, str]]:
        """The jobs to change, and why there are none for some of the ids."""
        visible = self.caller.jobs()
        rows = apply.jobs_by_id(visible, ids, action)
        arrays = visible.filter(array_id__in=[id for id in ids if id]).order_by()
        single = set(visible.filter(public_id__in=ids).values_list("public_id", flat=True))
        known = single.union(arrays.values_list("array_id", flat=True).distinct())
        changeable = single.union(arrays.filter(action.changeable).values_list("array_id", flat=True).distinct())
        errors = {id: f"Job {id} not found." for id in ids if id not in known}
        ended = {id: f"{action.label} applies to no task of {id}." for id in ids if id in known - changeable}
        return rows, errors | ended

    def _jobs_by_filter(self, filters: Mapping[str, Any]) -> QuerySet[Job]:
        if not filters:
            raise InvalidField("filter", "is empty; give at least one filter")
        params = {name: _filter_texts(name, value) for name, value in filters.items()}
        if reserved := query_params.RESERVED_PARAMS.intersection(params):
            raise InvalidField("filter", f"{min(reserved)} is not a filter")
        return self.caller.jobs().filter(query_params.parse(JOB_FILTERS, params, "jobs"))


class BulkJobActionProgress(ApiEndpoint):
    """Progress of an action that runs in the background."""

    tag = "Jobs"
    rules = {
        "GET": EndpointRule(
            scope=READ,
            says="Get the progress of your action on many jobs",
            answer=shapes.JOB_ACTION_RESULTS,
            team=True,
        )
    }

    def get(self, request: Any, number: int) -> Response:
        reject_unknown_params(request)
        own = BulkAction.objects.filter(user=self.caller.user)
        # Other actions may concern jobs of teams that the token must not see
        rows = own.filter(token=self.caller.token) if self.caller.bound_team_id else own
        row = find_or_404(rows, "action", pk=number)
        return Response(_background_progress(row, request.build_absolute_uri(request.path)))


def _background_progress(row: BulkAction, url: str) -> dict[str, Any]:
    return {
        "id": row.pk,
        "url": url,
        "state": row.state,
        "error": row.error,
        "action": row.action,
        "dry_run": False,
        "matched": row.matched,
        "succeeded": row.succeeded,
        "refused": row.refused,
        "remaining": row.remaining,
        "results": [{"succeeded": False, **refused} for refused in row.errors],
    }


def _check_action_request(body: Mapping[str, Any]) -> None:
    if "action" not in body:
        raise InvalidField("action", "is missing")
    if ("ids" in body) == ("filter" in body):
        raise InvalidField("ids", "give either ids or a filter")
    if (body["action"] == "priority") != ("priority" in body):
        raise InvalidField("priority", "is required for the verb priority and not allowed for others")


def _filter_texts(name: str, value: Any) -> list[str]:
    """The values of a filter as text, as they would be in a URL."""
    values: Iterable[Any] = value if isinstance(value, list) else [value]
    return [_filter_text(name, item) for item in values] or parsing.raise_invalid_field(name[:40], "is an empty list")


def _filter_text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and abs(value) < 10**20:
        return str(value)
    if not isinstance(value, str):
        raise InvalidField(name[:40], f"is {parsing.json_type_name(value)}, not text")
    if not value:
        # An empty text would select every job
        raise InvalidField(name[:40], "is empty")
    return value


def _action_result(outcome: BulkJobResult) -> dict[str, Any]:
    if outcome.error:
        return {"id": outcome.job.public_id, "succeeded": False, "error": outcome.error}
    return {"id": outcome.job.public_id, "succeeded": True}
