"""What would happen to a job if it were submitted now: quota, free nodes, likely start, blockers and cost. Reads only.

The job is added to the cached snapshot of its cluster, and the engine that decides on the cluster is asked about it.
The work is bounded: one turn, and a few replays of at most `MAX_ESTIMATED_JOBS` jobs. Each process caches its last
answers, because a user who types a command asks the same question again and again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from django.conf import settings
from django.db.models import Q

from acmeweb.common.errors import InvalidField
from jobs.core import deadlines
from jobs.core.deadlines import DeadlineAnswer, DeadlineForecast, UnlikelyDeadlines
from jobs.core.gpu_models import accepts_model
from jobs.core.gpu_shares import charged_milli, gpu_number
from jobs.core.preemption_contract import contract_text
from jobs.core.spec import JobSpec
from jobs.models import Cluster, ClusterMode, HoldKind, Job, Team, clock
from jobs.rest.throttle import WINDOW_S, PerUserThrottle, counter
from scheduling.clusters.circuit_breaker import is_open
from scheduling.core.free_capacity import FreeCapacity, free_capacity
from scheduling.core.quotas import QuotaAccount, accounts
from scheduling.engine.blockers import Blocker
from scheduling.engine.cluster import ClusterSnapshot, WaitingJob
from scheduling.engine.counterfactual import RulesFactory
from scheduling.engine.policies import LIVE_POLICIES, live_rules_factory, rules_factory
from scheduling.engine.run_time_estimates import RunTimeEstimates
from scheduling.engine.why import wait_blockers
from scheduling.models import ClusterEndpoint, EstimateError
from scheduling.power.reads.budgets import add_job_power
from scheduling.queries import deadline_forecasts, snapshot
from scheduling.queries.predictions import with_predictions
from scheduling.queries.queue_order import queue_states
from scheduling.queries.wait_explanation import past_error
from scheduling.whatif.replay.start_estimates import MAX_DRAWS, MIN_DRAWS, StartEstimate, start_estimates

PREVIEW_JOB_ID = 2**62  # after all jobs with the same submission time
PREVIEWS_PER_MINUTE = 60
MAX_ESTIMATED_JOBS = 1000
MAX_REPLAYED_JOBS = 4000  # in all draws together
MAX_DURATIONS_AGE_S = 60.0
MAX_CACHED_ANSWERS = 64


class PreviewThrottle(PerUserThrottle):
    """Limits the previews of a user per minute, on pages and API together, because each asks the scheduling engine."""

    name = "preview:"

    @property
    def most(self) -> int:
        return min(PREVIEWS_PER_MINUTE, settings.ACME_API_PER_MINUTE)


@dataclass(frozen=True, kw_only=True)
class StartPreview:
    """The engine's answer: what would block the job, and when it would start. `why_no_estimate` is a sentence."""

    blockers: tuple[Blocker, ...] = ()
    estimate: StartEstimate | None = None
    why_no_estimate: str = ""


@dataclass(frozen=True, kw_only=True)
class SubmissionPreview:
    """What would happen to a job. `warning` says why Acme would not or could not start it."""

    at: datetime
    cluster: Cluster
    spec: JobSpec
    quotas: tuple[QuotaAccount, ...]
    capacity: FreeCapacity
    start: StartPreview
    past_error: EstimateError | None
    usual_run_time_s: float | None  # that nine of ten similar jobs did not exceed
    deadline: DeadlineAnswer | None = None
    warning: str = ""

    @property
    def tasks(self) -> int:
        return len(self.spec.array) or 1

    @property
    def gpus(self) -> float:
        return gpu_number(charged_milli(self.spec.nodes * self.spec.gpus_per_node, self.spec.gpu_milli))

    @property
    def starts_now(self) -> bool:
        return not self.start.blockers and not self.warning

    @property
    def start_text(self) -> str:
        """What is known about the start; empty if there is an estimate that says more."""
        if self.starts_now:
            return "In the next scheduling turn"
        if self.start.estimate:
            return ""
        return self.start.why_no_estimate or "Not known"

    @property
    def preemption_text(self) -> str:
        """When the job could be preempted, and what its contract depends on."""
        contract = self.spec.preemption_contract
        sentences = contract_text(contract, preemptible=self.spec.preemptible), contract.note()
        return " ".join(filter(None, sentences))

    @property
    def most_gpu_hours(self) -> float | None:
        """GPU-hours of all tasks if each runs to the time limit; None without a limit."""
        return self._gpu_hours(self.spec.time_limit.total_seconds()) if self.spec.time_limit else None

    @property
    def usual_gpu_hours(self) -> float | None:
        return None if self.usual_run_time_s is None else self._gpu_hours(self.usual_run_time_s)

    @property
    def most_cost(self) -> float | None:
        """The cost at the time limit; None without a limit or a price."""
        price, hours = self.cluster.gpu_hour_price, self.most_gpu_hours
        return None if price is None or hours is None else price * hours

    def _gpu_hours(self, seconds: float) -> float:
        return self.gpus * self.tasks * seconds / 3600


def preview_submission(
    spec: JobSpec, *, team: Team, cluster: Cluster, user_id: int, sees: Collection[str] | None
) -> SubmissionPreview:
    """Preview a valid request. `sees` are the teams whose jobs the user may see; None: all."""
    now = clock.now()
    state = queue_states.of(cluster, now)
    job = add_job_power(cluster, state.picture, _waiting_job(spec, team, user_id, state.picture.now))
    durations = _durations.of(cluster, now)
    refusal = _no_starts(cluster)
    start = StartPreview() if refusal else _start_preview(cluster, state.picture, job, sees)
    bars = accounts(state.picture.quotas, state.quota_uses, (), lambda name: name == team.name, state.model_quota_uses)
    return SubmissionPreview(
        at=state.picture.now,
        cluster=cluster,
        spec=spec,
        quotas=tuple(bar for bar in bars if bar.team == team.name and _applies(bar, spec)),
        capacity=free_capacity(state.picture, job.need),
        start=start,
        past_error=past_error(cluster, start.estimate.p50, now) if start.estimate else None,
        usual_run_time_s=durations.usual_run_time_s(job),
        warning=refusal or _delay_warning(cluster),
        deadline=_deadline_answer(spec, cluster, job, start, refusal, now),
    )


def _applies(bar: QuotaAccount, spec: JobSpec) -> bool:
    """Whether the quota may limit the job."""
    accepts = not bar.gpu_model or accepts_model(spec.gpu_model, bar.gpu_model)
    return bar.kind in (None, spec.kind) and accepts


def forecast_deadline(spec: JobSpec, *, team: Team, cluster: Cluster, user_id: int) -> DeadlineForecast | None:
    """Forecast whether a valid request meets its deadline, for the answer to its submission. None if the user has asked
    for too many within a minute, because each asks the scheduling engine.
    """
    if counter.count(f"deadline:{user_id}", WINDOW_S) > PREVIEWS_PER_MINUTE:
        return None
    preview = preview_submission(spec, team=team, cluster=cluster, user_id=user_id, sees=())
    return preview.deadline.forecast if preview.deadline else DeadlineForecast()


def _deadline_answer(
    spec: JobSpec, cluster: Cluster, job: WaitingJob, start: StartPreview, refusal: str, now: datetime
) -> DeadlineAnswer | None:
    """What the submission would be answered with; None without a deadline."""
    if spec.deadline_at is None:
        return None
    if start.estimate is None:
        forecast = DeadlineForecast(why=refusal or start.why_no_estimate)
    else:
        forecast = deadline_forecasts.of_waiting_job(cluster, job, spec.deadline_at, start.estimate, now=now)
    try:
        return deadlines.answer(forecast, UnlikelyDeadlines(cluster.unlikely_deadlines), cluster.min_deadline_percent)
    except InvalidField as refused:
        return DeadlineAnswer(forecast=forecast, warning=f"{cluster} would refuse the job: its deadline {refused.why}")


def _no_starts(cluster: Cluster) -> str:
    """Why Acme starts no job on the cluster; empty if it does."""
    if cluster.mode == ClusterMode.OBSERVE:
        return f"Acme only observes {cluster} and does not start jobs there."
    if cluster.policy not in LIVE_POLICIES:
        return f"The policy {cluster.policy} does not start jobs on clusters."
    try:
        live_rules_factory(cluster.policy, cluster.policy_settings)
    except InvalidField as error:
        return f"No jobs are started, because the policy settings are invalid: {error}."
    return ""


def _delay_warning(cluster: Cluster) -> str:
    if is_open(cluster, ClusterEndpoint.CONTROL):
        return f"{cluster} does not respond in time. Acme sends the job when the cluster responds again."
    return ""


def _waiting_job(spec: JobSpec, team: Team, user_id: int, now: datetime) -> WaitingJob:
    """The job, or the first task of the array, as the engine would see it after the submission."""
    return WaitingJob(
        id=PREVIEW_JOB_ID,
        name="this job",
        team=team.name,
        kind=spec.kind,
        need=snapshot.resource_need(spec),
        priority=spec.priority,
        submitted_at=now,
        preemptible=spec.preemptible,
        time_limit=spec.time_limit,
        hold=str(HoldKind.USER) if spec.hold else "",
        why="It is submitted held. It starts after you release it." if spec.hold else "",
        begin_at=spec.begin_at,
        deadline_at=spec.deadline_at,
        waits_for=_unfinished_dependencies(spec, team),
        user=str(user_id),
        title=spec.name,
    )


def _unfinished_dependencies(spec: JobSpec, team: Team) -> tuple[str, ...]:
    names = {dependency.on for dependency in spec.dependencies}
    if not names:
        return ()
    rows = Job.objects.unfinished().filter(Q(public_id__in=names) | Q(array_id__in=names), team=team)
    return tuple(sorted(names.intersection(name for row in rows.values_list("public_id", "array_id") for name in row)))


def _start_preview(
    cluster: Cluster, picture: ClusterSnapshot, job: WaitingJob, sees: Collection[str] | None
) -> StartPreview:
    rules = rules_factory(cluster.policy, cluster.policy_settings)
    question = replace(picture, waiting=(*picture.waiting, job))
    key = (cluster.policy, str(cluster.policy_settings), job, None if sees is None else frozenset(sees))
    return _answers.of(cluster.pk, picture, key, lambda: _ask_engine(cluster, rules, question, job, sees))


def _ask_engine(
    cluster: Cluster, rules: RulesFactory, question: ClusterSnapshot, job: WaitingJob, sees: Collection[str] | None
) -> StartPreview:
    question = with_predictions(cluster, question)
    blockers = wait_blockers(question, rules, job.id, lambda team: sees is None or team in sees)
    if job.has_gate(question.now):
        why = "No estimate, because the job does not wait for GPUs yet."
        return StartPreview(blockers=blockers, why_no_estimate=why)
    estimates = preview_estimates(cluster, question, rules)
    if estimates is None:
        why = "The cluster has too many jobs for an estimate now. The page of the job shows one after about 30 s."
        return StartPreview(blockers=blockers, why_no_estimate=why)
    estimate = estimates.get(job.id)
    why = "" if estimate else "No estimate, because the job did not start in every simulation of the queue."
    return StartPreview(blockers=blockers, estimate=estimate, why_no_estimate=why)


def preview_estimates(
    cluster: Cluster, picture: ClusterSnapshot, rules: RulesFactory
) -> Mapping[int, StartEstimate] | None:
    """Estimate the starts of the waiting jobs while a user waits; None: too many jobs for that."""
    jobs = len(picture.waiting) + len(picture.running)
    if jobs > MAX_ESTIMATED_JOBS:
        return None
    draws = max(MIN_DRAWS, min(MAX_DRAWS, MAX_REPLAYED_JOBS // max(1, jobs) // 2 * 2))
    durations = _durations.of(cluster, picture.now)
    return start_estimates(picture, rules, durations=durations, draws=draws, seed=cluster.pk)


class _AnswerCache:
    """Caches the engine's answers about the current snapshot of each cluster."""

    def __init__(self) -> None:
        self._answers: dict[int, tuple[ClusterSnapshot, dict[object, StartPreview]]] = {}

    def of(
        self, cluster_id: int, picture: ClusterSnapshot, key: object, ask: Callable[[], StartPreview]
    ) -> StartPreview:
        cached = self._answers.get(cluster_id)
        if cached is None or cached[0] is not picture or len(cached[1]) >= MAX_CACHED_ANSWERS:
            cached = self._answers[cluster_id] = picture, {}
        answers = cached[1]
        if (answer := answers.get(key)) is None:
            answer = answers[key] = ask()
        return answer


class _DurationsCache:
    """Caches the run times of past jobs of each cluster for a minute: reading thousands of rows for each preview would
    cost more than the rest."""

    def __init__(self) -> None:
        self._durations: dict[int, tuple[float, RunTimeEstimates]] = {}

    def of(self, cluster: Cluster, now: datetime) -> RunTimeEstimates:
        cached = self._durations.get(cluster.pk)
        if cached and time.monotonic() - cached[0] < MAX_DURATIONS_AGE_S:
            return cached[1]
        durations = RunTimeEstimates(snapshot.past_jobs(cluster, now))
        self._durations[cluster.pk] = time.monotonic(), durations
        return durations


_answers = _AnswerCache()
_durations = _DurationsCache()
