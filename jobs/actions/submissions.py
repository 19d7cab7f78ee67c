"""Submits the jobs of a request: resolves team and cluster, decides which jobs are valid, and builds the response.

The number of statements does not depend on the number of jobs: one query of the cluster, one of the dependencies, and
the bulk inserts of `submit_actions`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.utils.module_loading import import_string
from rest_framework.exceptions import PermissionDenied, ValidationError

from acmeweb.common.errors import InvalidField
from jobs.actions import submit as submit_actions
from jobs.actions import wake
from jobs.actions.journal import Author
from jobs.actions.waiting.limits import refuse_too_many_waiting
from jobs.core import deadlines, parsing
from jobs.core.deadlines import DeadlineAnswer, DeadlineForecast, UnlikelyDeadlines
from jobs.core.spec import ClusterShape, JobSpec, parse, refuse_dependency_cycle, refuse_priority
from jobs.models import Cluster, ClusterMode, Job, Node, Team, TeamRole, clock
from jobs.models.permissions import Caller

MAX_JOBS_PER_REQUEST = 5000
MAX_FORECASTS_PER_REQUEST = 20  # each asks the scheduling engine
TOO_MANY_FORECASTS = (
    f"At most {MAX_FORECASTS_PER_REQUEST} jobs of a request and 60 jobs per minute are answered with one"
)
TARGET_FIELDS = ("team", "cluster")


@dataclass(kw_only=True)
class SubmissionResult:
    """The result of one requested job; completed step by step."""

    spec: JobSpec | None = None
    deadline: DeadlineAnswer | None = None
    submitted: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, list[str]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        if self.errors:
            return {"status": 400, "errors": self.errors}
        deadline = self.submitted["deadline"]
        return {"status": 201, "id": self.submitted["id"], "jobs": self.submitted["jobs"]} | (
            {"deadline": deadline} if deadline else {}
        )


TeamAndCluster = tuple[Team, Cluster]


def submit_requests(
    requests: Sequence[Mapping[str, Any]],
    defaults: Mapping[str, Any],
    caller: Caller,
    author: Author,
    *,
    many: bool = False,
    each: bool = False,
) -> list[SubmissionResult]:
    """Submit the jobs and return their results in the order of the request.

    Without `each`, the first invalid job raises an error (with its position if `many`), and nothing is stored.
    """
    places = CallerTargets(caller)
    results = [SubmissionResult() for _ in requests]
    groups: dict[tuple[int, int], list[int]] = {}
    for index, request in enumerate(requests):
        with _CollectErrors(results, index, each, many):
            team, cluster, results[index].spec = parse_submission(request, defaults, places)
            groups.setdefault((team.pk, cluster.pk), []).append(index)
    # Counted after parsing, because an array of one request can be thousands of rows
    _refuse_too_many(results, many)
    for (team_id, cluster_id), members in groups.items():
        _answer_deadlines(results, members, places.teams[team_id], places.clusters[cluster_id], author, each, many)
    # Jobs of one team and cluster are written together, because dependencies never cross teams
    for (team_id, cluster_id), members in groups.items():
        team, cluster = places.teams[team_id], places.clusters[cluster_id]
        _refuse_bad_references(results, members, team, each, many)
        _submit_jobs_of_group(results, [index for index in members if not results[index].errors], team, cluster, author)
    return results


def parse_submission(
    request: Mapping[str, Any], defaults: Mapping[str, Any], places: CallerTargets
) -> tuple[Team, Cluster, JobSpec]:
    """Validate one job as far as possible without the others."""
    team, cluster = places.of({**defaults, **request})
    values = {name: value for name, value in request.items() if name not in TARGET_FIELDS}
    if isinstance(deadline := values.get("deadline_at"), str):
        values["deadline_at"] = deadlines.absolute_time(deadline, clock.now())
    spec = parse(values, places.shape(cluster))
    refuse_priority(spec.priority, places.caller.has(TeamRole.OPERATOR, team.pk))
    return team, cluster, spec


def answer_deadline(
    spec: JobSpec, *, team: Team, cluster: Cluster, user_id: int | None, forecasts: bool = True
) -> tuple[JobSpec, DeadlineAnswer | None]:
    """Return the spec with a forecast of its deadline, and the answer for the user; None without a deadline.

    Raises InvalidField if the deadline cannot be met, or is unlikely and the cluster refuses such jobs. Without
    `forecasts` only the former is checked, unless the cluster refuses some.
    """
    if spec.deadline_at is None:
        return spec, None
    deadlines.refuse_impossible(spec.deadline_at, spec.deadline_action, spec.time_limit, clock.now())
    cluster = Cluster.objects.get(pk=cluster.pk)
    mode = UnlikelyDeadlines(cluster.unlikely_deadlines)
    forecast = None
    if forecasts:
        forecast = import_string(settings.DEADLINE_FORECAST)(spec, team=team, cluster=cluster, user_id=user_id)
    if forecast is None and mode == UnlikelyDeadlines.REFUSE:
        raise InvalidField("deadline_at", f"cannot be checked: {cluster} checks each deadline. {TOO_MANY_FORECASTS}")
    forecast = forecast or DeadlineForecast(why=f"Not forecast yet. {TOO_MANY_FORECASTS}")
    answer = deadlines.answer(forecast, mode, cluster.min_deadline_percent)
    return replace(spec, deadline_probability=forecast.probability, deadline_why=forecast.why), answer


def _answer_deadlines(
    results: list[SubmissionResult],
    members: list[int],
    team: Team,
    cluster: Cluster,
    author: Author,
    each: bool,
    many: bool,
) -> None:
    with_deadline = [index for index in members if (spec := results[index].spec) and spec.deadline_at]
    for place, index in enumerate(with_deadline):
        result = results[index]
        assert result.spec is not None
        with _CollectErrors(results, index, each, many):
            result.spec, result.deadline = answer_deadline(
                result.spec,
                team=team,
                cluster=cluster,
                user_id=author.user_id,
                forecasts=place < MAX_FORECASTS_PER_REQUEST,
            )


def _submit_jobs_of_group(
    results: list[SubmissionResult], members: list[int], team: Team, cluster: Cluster, author: Author
) -> None:
    if not members:
        return
    specs = [spec for index in members if (spec := results[index].spec)]
    group = submit_actions.SubmissionGroup(specs=specs, cluster=cluster, team=team, author=author)
    refuse_too_many_waiting(group)
    jobs = iter(submit_actions.submit_in_transaction([group], clock.now())[0])
    for index, spec in zip(members, specs, strict=True):
        rows = [next(jobs) for _ in range(len(spec.array) or 1)]
        results[index].submitted = submission_response(rows, results[index].deadline)
    request_turn_after_commit(cluster.pk)


def submission_response(jobs: Sequence[Job], deadline: DeadlineAnswer | None = None) -> dict[str, Any]:
    first = jobs[0]
    return {
        "id": first.array_id or first.public_id,
        "jobs": [job.public_id for job in jobs],
        "state": first.state,
        "why": first.why,
        "deadline": deadline_response(first.deadline_at, deadline),
    }


def request_turn_after_commit(cluster_id: int) -> None:
    """Request a turn after the commit. Inside the transaction, the update would lock the cluster's row, and all
    submissions would wait for each other."""
    transaction.on_commit(partial(wake.turn_debouncer.request, cluster_id), robust=True)


def deadline_response(at: datetime | None, answer: DeadlineAnswer | None) -> dict[str, Any] | None:
    """What the API says about the deadline of a request; None without one."""
    if at is None or answer is None:
        return None
    return {
        "deadline_at": at.isoformat().replace("+00:00", "Z"),
        "probability": answer.forecast.probability,
        "why": answer.forecast.why,
        "warning": answer.warning,
    }


class _CollectErrors:
    """Records the error of an invalid job if `each` is set; otherwise raises it with the job's position."""

    def __init__(self, results: list[SubmissionResult], index: int, each: bool, many: bool) -> None:
        self.results, self.index, self.each, self.many = results, index, each, many

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if isinstance(error, InvalidField):
            return self._record_errors(error.by_field)
        # Without `each`, a missing permission keeps its own status code (403)
        if isinstance(error, PermissionDenied) and self.each:
            return self._record_errors({"team": [str(error.detail)]})
        return False

    def _record_errors(self, errors: dict[str, list[str]]) -> bool:
        if not self.each:
            raise ValidationError(errors if not self.many else {"jobs": [_positioned_error(self.index, errors)]})
        self.results[self.index].errors = errors
        return True


def _positioned_error(index: int, errors: dict[str, list[str]]) -> str:
    return "; ".join(f"job {index}: {field}: {why}" for field, whys in errors.items() for why in whys)


def _refuse_too_many(results: list[SubmissionResult], many: bool) -> None:
    rows = sum(len(result.spec.array) or 1 for result in results if result.spec)
    if rows > MAX_JOBS_PER_REQUEST:
        field = "jobs" if many else "array"
        raise InvalidField(
            field, f"result in {rows} jobs, counting array tasks; at most {MAX_JOBS_PER_REQUEST} are allowed"
        )


def _refuse_bad_references(
    results: list[SubmissionResult], members: list[int], team: Team, each: bool, many: bool
) -> None:
    """Reject duplicate keys, unknown dependencies and cycles, and jobs that depend on a rejected job."""
    specs = {index: spec for index in members if (spec := results[index].spec)}
    outside = {d.on for spec in specs.values() for d in spec.dependencies if not d.on.startswith("@")}
    known = submit_actions.existing_job_ids(outside, team)
    keys: dict[str, int] = {}
    for index, spec in specs.items():
        with _CollectErrors(results, index, each, many):
            if spec.key in keys:
                raise InvalidField("key", f"{spec.key!r} is also used by another job")
            if spec.key:
                keys[spec.key] = index
    # A cycle concerns several jobs, so it rejects the whole request even with `each`
    with _CollectErrors(results, members[0], False, many):
        refuse_dependency_cycle(
            {f"@{spec.key}": [d.on for d in spec.dependencies] for spec in specs.values() if spec.key}
        )
    _propagate_refusals(results, specs, keys, known, each, many)


def _propagate_refusals(
    results: list[SubmissionResult],
    specs: Mapping[int, JobSpec],
    keys: Mapping[str, int],
    known: set[str],
    each: bool,
    many: bool,
) -> None:
    """Reject jobs that depend on rejected jobs, until nothing changes. There are no cycles, so this ends."""
    remaining = [index for index, spec in specs.items() if spec.dependencies]
    while remaining:
        before = len(remaining)
        for index in remaining:
            with _CollectErrors(results, index, each, many):
                _check_references(specs[index], keys, known, results)
        remaining = [index for index in remaining if not results[index].errors]
        if len(remaining) == before:
            return


def _check_references(spec: JobSpec, keys: Mapping[str, int], known: set[str], results: list[SubmissionResult]) -> None:
    for dependency in spec.dependencies:
        # Keys start with @; all other references are public ids of existing jobs
        key = dependency.on[1:] if dependency.on.startswith("@") else None
        if key is None and dependency.on not in known:
            raise InvalidField("dependencies", f"the team has no job {dependency.on!r}")
        if key is not None and key not in keys:
            raise InvalidField("dependencies", f"no job of this request has the key {key!r}")
        if key is not None and results[keys[key]].errors:
            raise InvalidField("dependencies", f"the job {key!r}, on which it depends, was rejected")


_cluster_shapes: dict[int, tuple[datetime | None, ClusterShape]] = {}


@dataclass(frozen=True, kw_only=True)
class SubmissionTargets:
    """The teams and clusters that requests may name, loaded once for several callers."""

    teams: Mapping[int, Team]
    clusters: Mapping[int, Cluster]

    @classmethod
    def of(cls, callers: Sequence[Caller]) -> SubmissionTargets:
        teams = sorted({team for caller in callers for team in caller.roles})
        with connection.cursor() as cursor:
            cursor.execute(SUBMISSION_TARGETS_SQL, [any(caller.is_site_admin for caller in callers), teams])
            rows = cursor.fetchall()
        targets: dict[str, dict[int, Any]] = {"team": {}, "cluster": {}}
        for kind, *values in rows:
            model, names = TARGET_MODELS[kind]
            targets[kind][values[0]] = model.from_db(connection.alias, names, values[: len(names)])
        return cls(teams=targets["team"], clusters=targets["cluster"])


# Every submission runs this query. One raw statement costs a fifth of two ORM queries
SUBMISSION_TARGETS_SQL = """
SELECT 'team', id, name, NULL, NULL FROM jobs_team WHERE %s OR id = ANY(%s)
UNION ALL SELECT 'cluster', id, name, mode, last_contact_at FROM jobs_cluster
"""
TARGET_MODELS: dict[str, tuple[Any, list[str]]] = {
    "team": (Team, ["id", "name"]),
    "cluster": (Cluster, ["id", "name", "mode", "last_contact_at"]),
}


class CallerTargets:
    """The teams that the caller may submit for, and the clusters."""

    def __init__(self, caller: Caller, targets: SubmissionTargets | None = None) -> None:
        self.caller = caller
        targets = targets or SubmissionTargets.of([caller])
        self.clusters = targets.clusters
        self.teams = {
            key: team for key, team in targets.teams.items() if caller.is_site_admin or caller.has(TeamRole.VIEWER, key)
        }

    def of(self, request: Mapping[str, Any]) -> TeamAndCluster:
        return self.resolve_team(request.get("team")), self.resolve_cluster(request.get("cluster"))

    def shape(self, cluster: Cluster) -> ClusterShape:
        """Return the hardware of the cluster. Cached until the cluster's next report, because only a report changes
        nodes."""
        cached = _cluster_shapes.get(cluster.pk)
        # last_contact_at changes with each report of the cluster
        if cached is None or cached[0] != cluster.last_contact_at:
            cached = _cluster_shapes[cluster.pk] = cluster.last_contact_at, Node.objects.shape(cluster)
        return cached[1]

    def resolve_team(self, name: Any) -> Team:
        if name is None:
            submittable = [team for team in self.teams.values() if self.caller.has(TeamRole.RESEARCHER, team.pk)]
            return _only_choice("team", submittable, "you may submit for")
        team = _choice_by_name("team", name, self.teams.values(), "you are not a member of team")
        if not self.caller.has(TeamRole.RESEARCHER, team.pk):
            raise PermissionDenied(f"You are a viewer in {team}; submitting needs the role researcher or above.")
        return team

    def resolve_cluster(self, name: Any) -> Cluster:
        if name is None:
            # With one driven cluster, users need not name it even if others are observed
            driven = [cluster for cluster in self.clusters.values() if cluster.mode == ClusterMode.DRIVE]
            return _only_choice("cluster", driven or list(self.clusters.values()), "choose one of")
        return _choice_by_name("cluster", name, self.clusters.values(), "there is no cluster")


def _only_choice(field: str, choices: Sequence[Any], what: str) -> Any:
    if len(choices) == 1:
        return choices[0]
    if not choices:
        raise InvalidField(field, f"there is no {field} that you may submit {'for' if field == 'team' else 'to'}")
    raise InvalidField(field, f"is missing; {what} {', '.join(sorted(str(choice) for choice in choices)[:10])}")


def _choice_by_name(field: str, name: Any, choices: Any, why: str) -> Any:
    if not isinstance(name, str):
        raise InvalidField(field, f"is {parsing.json_type_name(name)}, not text")
    for choice in choices:
        if choice.name == name:
            return choice
    raise InvalidField(field, f"{why} {parsing.short_repr(name)}")
