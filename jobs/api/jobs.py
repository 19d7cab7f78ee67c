"""Jobs through the programs' door: submit, look, and the verbs on one, on many and on what a filter finds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar

from django.contrib.auth import get_user_model
from django.db.models import QuerySet
from rest_framework.response import Response

from jobs import many, readers, verbs
from jobs.api import shapes, submitting
from jobs.api.submitting import soon
from jobs.door import pages, query, versions
from jobs.door.endpoint import Detail, Listing, Verb, as_it_is, found
from jobs.door.errors import BadField
from jobs.door.rights import Rule
from jobs.lifecycle import JOB_STATES, Kind
from jobs.many import MOST_VERBS, Outcome
from jobs.models import Attempt, Cluster, Event, Hold, Job, Scope, Team
from jobs.rights import Caller
from jobs.verbs import PRIORITY, Wish, carry_out

MOST_JOBS = 5000
LONGEST_REASON = 1000

READ = Scope.READ
SUBMIT = Scope.SUBMIT

FILTERS = {
    "id": query.text("public_id"),
    "array_id": query.text("array_id"),
    "cluster": query.related("cluster_id", Cluster, "name"),
    "team": query.related("team_id", Team, "name"),
    "user": query.related("user_id", get_user_model(), "username"),
    "name": query.text("name", "contains", "startswith", walked=Job),
    "kind": query.choice("kind", list(Kind)),
    "state": query.choice("state", list(JOB_STATES)),
    "reason": query.text("reason"),
    "hold": query.choice("hold", Hold.values),
    "preemptible": query.truth("preemptible"),
    "priority": query.number("priority"),
    "nodes": query.number("nodes"),
    "gpus_per_node": query.number("gpus_per_node"),
    "gpu_model": query.text("gpu_model"),
    "exit_code": query.number("exit_code"),
    "labels": query.labels("labels"),
    "submitted_at": query.moment("submitted_at"),
    "started_at": query.moment("started_at"),
    "ended_at": query.moment("ended_at"),
}
ORDERINGS = {
    "id": pages.ID,
    "name": pages.Sort(column="name"),
    "priority": pages.Sort(column="priority", kind=int),
    "submitted_at": pages.Sort(column="submitted_at", kind=datetime),
    "started_at": pages.Sort(column="started_at", kind=datetime, nullable=True),
    "ended_at": pages.Sort(column="ended_at", kind=datetime, nullable=True),
}


def with_latest_attempt(jobs: Sequence[Any]) -> None:
    """One query for the newest attempt of each."""
    rows = Attempt.objects.filter(job__in=[job.pk for job in jobs]).order_by("job_id", "-number").distinct("job_id")
    newest = {one.job_id: one for one in rows.only("job_id", "nodelist", "backend_id")}
    for job in jobs:
        job.latest_attempt = newest.get(job.pk)


class Jobs(Listing, Verb):
    """List jobs, submit one."""

    tag = "Jobs"
    what = "jobs"
    shape = shapes.JOB
    filters = FILTERS
    orderings = ORDERINGS
    rules = {
        "GET": Rule(scope=READ, says="List the jobs of your teams", answer=shapes.JOB, many=True),
        "POST": Rule(
            scope=SUBMIT,
            says="Submit one job",
            body=shapes.WISH,
            answer=shapes.SUBMITTED,
            status=201,
            conflicts=True,
        ),
    }

    def rows(self) -> QuerySet[Job]:
        return self.caller.jobs()

    def complete(self, rows: list[Any], names: list[str]) -> None:
        if shapes.OF_LATEST_ATTEMPT.intersection(names):
            with_latest_attempt(rows)

    def work(self) -> Response:
        results = submitting.submit([self.object()], {}, self.caller, self.author)
        shown = results[0].submitted
        address = self.request.build_absolute_uri(f"{self.request.path}{shown['jobs'][0]}/")
        return Response(shown, status=201, headers={"Location": address})


class BulkJobs(Verb):
    """Submit up to 5,000 jobs."""

    tag = "Jobs"
    rules = {
        "POST": Rule(
            scope=SUBMIT,
            says="Submit up to 5,000 jobs, all or each for itself",
            body=shapes.BULK,
            answer=shapes.BULK_DONE,
            refused=shapes.BULK_DONE,
            status=201,
            conflicts=True,
        )
    }
    takes = {
        "jobs": readers.list_of(readers.an_object, MOST_JOBS),
        "mode": readers.one_of(("all", "each")),
        "team": readers.text(40),
        "cluster": readers.text(40),
    }

    def work(self) -> Response:
        asked = self.body(self.takes, "this request")
        if "jobs" not in asked:
            raise BadField("jobs", "is missing")
        defaults: dict[str, Any] = {name: asked[name] for name in ("team", "cluster") if name in asked}
        each = asked.get("mode") == "each"
        results = submitting.submit(asked["jobs"], defaults, self.caller, self.author, many=True, each=each)
        accepted = sum(1 for one in results if not one.errors)
        answer = {
            "accepted": accepted,
            "refused": len(results) - accepted,
            "results": [one.shown() for one in results],
        }
        return Response(answer, status=201 if accepted else 400)


class OneJob(Detail):
    """One job."""

    tag = "Jobs"
    shape = shapes.JOB
    rules = {"GET": Rule(scope=READ, says="One job, with all that was asked", answer=shapes.JOB, team=True)}

    def row(self, id: str) -> Job:
        return whole_job(self.caller, id)


def whole_job(caller: Caller, id: str) -> Any:
    job = found(shapes.JOB.load(caller.jobs(), shapes.JOB.fields), "job", public_id=id)
    with_latest_attempt([job])
    return job


class OfJob(Listing):
    """Rows that belong to one job."""

    def job(self, id: str) -> Job:
        return found(self.caller.jobs().only("id", "public_id"), "job", public_id=id)


class JobAttempts(OfJob):
    """Every execution of it."""

    tag = "Jobs"
    what = "attempts"
    shape = shapes.ATTEMPT
    rules = {"GET": Rule(scope=READ, says="Every execution of a job", answer=shapes.ATTEMPT, many=True, team=True)}

    def rows(self, id: str) -> QuerySet:
        return self.job(id).attempts.all()


class JobEvents(OfJob):
    """What happened to it."""

    tag = "Jobs"
    what = "events"
    shape = shapes.EVENT
    filters = {"what": query.text("what"), "at": query.moment("at"), "by": query.text("by"), "id": query.number("id")}
    rules = {
        "GET": Rule(
            scope=READ, says="What happened to a job: who, when and why", answer=shapes.EVENT, many=True, team=True
        )
    }

    def rows(self, id: str) -> QuerySet:
        return Event.objects.filter(job=self.job(id))


# --- verbs


REASON = readers.text(LONGEST_REASON, lines=True)


class JobVerb(Verb):
    """One verb on one job. If-Match guards it; the answer is the job as it is then."""

    tag = "Jobs"
    verb: ClassVar[verbs.Verb]
    takes: ClassVar[Mapping[str, readers.Reader]] = {"reason": REASON}

    def work(self, id: str) -> Response:
        asked = self.body(self.takes, f"the verb {self.verb.name}")
        for name in self.takes:
            if name not in asked and name != "reason":
                raise BadField(name, "is missing")
        job = whole_job(self.caller, id)
        if "If-Match" in self.request.headers:
            _lock(job)
            versions.refuse_stale(self.request, shapes.JOB.show(whole_job(self.caller, id)))
        wish = Wish(author=self.author, why=asked.get("reason", ""), priority=asked.get("priority", 0))
        carry_out(self.verb, self.caller.jobs().get(pk=job.pk), wish, self.caller)
        soon(job.cluster_id)
        return as_it_is(shapes.JOB, whole_job(self.caller, id))


def _lock(job: Job) -> None:
    """From here to the commit nobody moves it. The attempt first, as the verbs take them."""
    list(Attempt.objects.select_for_update().filter(job=job, ended_at__isnull=True).values("pk"))
    list(Job.objects.select_for_update().filter(pk=job.pk).values("pk"))


def _endpoint(verb: verbs.Verb) -> type[JobVerb]:
    takes = {"priority": PRIORITY, "reason": REASON} if verb.takes_priority else {"reason": REASON}
    body = shapes.PRIORITY if verb.takes_priority else shapes.WHY
    rule = Rule(scope=SUBMIT, says=verb.says, body=body, answer=shapes.JOB, conflicts=True, team=True)
    table = {"verb": verb, "takes": takes, "rules": {"POST": rule}, "__doc__": verb.says}
    words = verb.name.title().replace("-", "")
    return type(f"{words}Job", (JobVerb,), table)


VERBS = {name: _endpoint(verb) for name, verb in verbs.VERBS.items()}


class ManyVerbs(Verb):
    """One verb on a list of ids, or on what a filter finds. What cannot be done is told job by job."""

    tag = "Jobs"
    rules = {
        "POST": Rule(
            scope=SUBMIT,
            says="One verb on many jobs, by ids or by a filter, with a dry run",
            body=shapes.VERB_REQUEST,
            answer=shapes.OUTCOMES,
            conflicts=True,
        )
    }
    takes = {
        "verb": readers.one_of(shapes.VERBS),
        "ids": readers.list_of(readers.text(24), MOST_VERBS),
        "filter": readers.an_object,
        "dry_run": readers.truth,
        "priority": PRIORITY,
        "reason": REASON,
    }

    def work(self) -> Response:
        asked = self.body(self.takes, "this request")
        _check_verb_request(asked)
        verb, dry = asked["verb"], asked.get("dry_run", False)
        rows, unknown = self._by_ids(asked["ids"]) if "ids" in asked else (self._by_filter(asked["filter"]), [])
        jobs = many.in_turn(rows)
        matched = len(jobs) if len(jobs) <= MOST_VERBS else rows.count()
        wish = Wish(author=self.author, why=asked.get("reason", ""), priority=asked.get("priority", 0))
        tried = [many.tried(verbs.VERBS[verb], job, wish, self.caller, dry=dry) for job in jobs[:MOST_VERBS]]
        outcomes = [_told(one) for one in tried]
        outcomes += [{"id": id, "done": False, "error": f"You have no job {id}."} for id in unknown]
        done = sum(1 for one in outcomes if one["done"])
        if done and not dry:
            for cluster in {job.cluster_id for job in jobs}:
                soon(cluster)
        answer = {
            "verb": verb,
            "dry_run": dry,
            "matched": matched,
            "done": done,
            "refused": len(outcomes) - done,
            "left": max(0, matched - MOST_VERBS),
            "outcomes": outcomes,
        }
        return Response(answer)

    def _by_ids(self, ids: list[str]) -> tuple[QuerySet[Job], list[str]]:
        rows = many.called(self.caller.jobs(), ids)
        known = {name for pair in rows.values_list("public_id", "array_id") for name in pair}
        return rows, [id for id in dict.fromkeys(ids) if id not in known]

    def _by_filter(self, asked: Mapping[str, Any]) -> QuerySet[Job]:
        if not asked:
            raise BadField("filter", "is empty; name the jobs by at least one filter")
        words = {name: _words(name, value) for name, value in asked.items()}
        if refused := query.RESERVED.intersection(words):
            raise BadField("filter", f"{min(refused)} is no filter")
        return self.caller.jobs().filter(query.parse(FILTERS, words, "jobs"))


def _check_verb_request(asked: Mapping[str, Any]) -> None:
    if "verb" not in asked:
        raise BadField("verb", "is missing")
    if ("ids" in asked) == ("filter" in asked):
        raise BadField("ids", "give either ids or a filter")
    if (asked["verb"] == "priority") != ("priority" in asked):
        raise BadField("priority", "belongs to the verb priority, which cannot do without it")


def _words(name: str, value: Any) -> list[str]:
    """A filter in a body is the same as in an address; there everything is text."""
    values: Iterable[Any] = value if isinstance(value, list) else [value]
    return [_word(name, one) for one in values] or readers.bad(name[:40], "is an empty list")


def _word(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and abs(value) < 10**20:
        return str(value)
    return value if isinstance(value, str) else readers.bad(name[:40], f"is {readers.kind_of(value)}, not text")


def _told(outcome: Outcome) -> dict[str, Any]:
    if outcome.error:
        return {"id": outcome.job.public_id, "done": False, "error": outcome.error}
    return {"id": outcome.job.public_id, "done": True}
