"""All changes to suites, campaigns and their evaluations, shards and trials.

Each decision of the loop is based on one turn number of the campaign. `_advance_turn` increments it in the transaction
of the change, so if two loops read the same turn, only the first one changes anything. A trial, its job and the new
state of its shards are written in one transaction, so each sample is always in exactly one place.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet, Sum

from acmeweb.common import live
from acmeweb.common.errors import ClaimLost, InvalidField, StateConflict
from jobs.actions import jobs as job_actions
from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.actions.submissions import CallerTargets
from jobs.core import parsing
from jobs.core.public_id import public_id
from jobs.core.slurm_notation import format_count
from jobs.core.spec import JobSpec, check_fits_cluster
from jobs.models import Cluster, ClusterMode, Node, Team, bulk_copy
from scheduling.evaluation.reads.campaigns import find_suite
from scheduling.evaluation.rules import campaign_requests, job_output
from scheduling.evaluation.rules.campaign_requests import MAX_EVALUATIONS, CampaignSpec, SuiteSpec
from scheduling.evaluation.rules.checkpoint_paths import default_campaign_name
from scheduling.evaluation.rules.coordinator import TrialSlice
from scheduling.evaluation.rules.job_output import PartResult
from scheduling.models import (
    OPEN_CAMPAIGN_STATES,
    Campaign,
    CampaignState,
    Evaluation,
    Shard,
    ShardState,
    Suite,
    SuiteDataset,
    Trial,
    TrialKind,
)

COORDINATOR = "evaluation"
MAX_SHARD_TRIES = 3  # failures of its command
MAX_SHARD_LOSSES = 25  # jobs that ended before the shard was done, for example by preemption
OBSERVE_MODE_WAIT_REASON = "Waiting: {} is in mode observe, so Acme starts no jobs there."


# --- actions of users


@transaction.atomic
def define_suite(spec: SuiteSpec, *, team: Team, author: Author) -> Suite:
    """Create the next version of a suite. Return the newest version if it is identical."""
    Team.objects.select_for_update().get(pk=team.pk)  # serializes version numbers of concurrent requests
    newest = Suite.objects.filter(team=team, name=spec.name).order_by("-version").first()
    columns = {name: getattr(spec, name) for name in SUITE_COLUMNS}
    if newest and _suite_equals_spec(newest, spec, columns):
        return newest
    suite = Suite.objects.create(
        team=team, user_id=author.user_id, name=spec.name, version=newest.version + 1 if newest else 1, **columns
    )
    SuiteDataset.objects.bulk_create(
        SuiteDataset(suite=suite, position=number, **{name: getattr(dataset, name) for name in DATASET_COLUMNS})
        for number, dataset in enumerate(spec.datasets)
    )
    journal.new_event("suite.created", author, detail={"suite": str(suite), "team": team.name}).save()
    return suite


SUITE_COLUMNS = (
    *("title", "framework", "serve", "infer", "metric", "output_root", "stage_root", "gpus", "cpus", "memory_mb"),
    "metric_jobs",
)
DATASET_COLUMNS = ("name", "samples", "parts", "infer", "metric", "infer_s", "score_s")


def _suite_equals_spec(suite: Suite, spec: SuiteSpec, columns: Mapping[str, Any]) -> bool:
    datasets = [tuple(row) for row in suite.datasets.order_by("position").values_list(*DATASET_COLUMNS)]
    requested = [tuple(getattr(dataset, name) for name in DATASET_COLUMNS) for dataset in spec.datasets]
    return datasets == requested and all(getattr(suite, name) == value for name, value in columns.items())


def create_campaign_from_request(
    request: Mapping[str, Any], places: CallerTargets, author: Author, now: datetime
) -> Campaign:
    """Create a campaign from a request of a page or the API. Raises InvalidField or PermissionDenied."""
    values = dict(request)
    team = places.resolve_team(values.pop("team", None))
    cluster = places.resolve_cluster(values.pop("cluster", None))
    name = values.pop("suite", None)
    if not isinstance(name, str) or not name:
        raise InvalidField("suite", "is missing")
    if (within := values.pop("within", None)) is not None:
        if "deadline_at" in values:
            raise InvalidField("within", "and deadline_at both set the deadline; give only one of them")
        values["deadline_at"] = (now + _parse_within(within)).isoformat()
    spec = campaign_requests.parse_campaign(values)
    suite = find_suite(name, team)
    return create_campaign(spec, suite=suite, cluster=cluster, team=team, author=author, now=now)


def _parse_within(value: Any) -> timedelta:
    within = parsing.read_duration("within", value)
    if within is None or within > timedelta(days=365):
        raise InvalidField("within", "must be a duration of at most one year")
    return within


@transaction.atomic
def create_campaign(
    spec: CampaignSpec, *, suite: Suite, cluster: Cluster, team: Team, author: Author, now: datetime
) -> Campaign:
    """Create a campaign. It reuses results of the same checkpoint, dataset and suite version, unless `again` is set."""
    _validate_campaign_spec(spec, suite, cluster, now)
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval('jobs_public_id')")
        id = public_id(now, cursor.fetchone()[0])
    campaign = Campaign.objects.create(
        public_id=id,
        name=spec.name.strip() or default_campaign_name(spec.checkpoints, str(suite)),
        cluster=cluster,
        team=team,
        user_id=author.user_id,
        suite=suite,
        checkpoints=list(spec.checkpoints),
        checkpoint_gb=spec.checkpoint_gb,
        nodes=spec.nodes,
        deadline_at=spec.deadline_at,
    )
    results = {} if spec.rerun else _reusable_evaluations(team, suite, spec.checkpoints)
    datasets = list(suite.datasets.values_list("pk", flat=True))
    rows = [
        _new_evaluation(campaign, checkpoint, dataset, results.get((checkpoint, dataset)), now)
        for checkpoint in spec.checkpoints
        for dataset in datasets
    ]
    bulk_copy.insert(rows)
    _log_campaign_event(campaign, author, "", CampaignState.PENDING)
    return campaign


def _validate_campaign_spec(spec: CampaignSpec, suite: Suite, cluster: Cluster, now: datetime) -> None:
    if cluster.mode == ClusterMode.OBSERVE:
        raise InvalidField("cluster", f"{cluster} is in mode observe, in which Acme starts no jobs")
    if not cluster.has_logs:
        raise InvalidField("cluster", f"{cluster} has no job log directory, from which Acme reads the results")
    if spec.deadline_at and spec.deadline_at <= now:
        raise InvalidField("deadline_at", "is in the past")
    trial = JobSpec(
        name="trial",
        command="",
        gpus_per_node=suite.gpus,
        cpus_per_node=suite.cpus,
        memory_per_node_mb=suite.memory_mb,
    )
    check_fits_cluster(trial, Node.objects.shape(cluster))
    count = len(spec.checkpoints) * suite.datasets.count()
    if count > MAX_EVALUATIONS:
        raise InvalidField("checkpoints", f"would create {count} evaluations; at most {MAX_EVALUATIONS} are allowed")


def _reusable_evaluations(team: Team, suite: Suite, checkpoints: Sequence[str]) -> dict[tuple[str, int], Evaluation]:
    done = Evaluation.objects.filter(
        campaign__team=team, dataset__suite=suite, checkpoint__in=checkpoints, state=CampaignState.COMPLETED
    )
    return {(row.checkpoint, row.dataset_id): row for row in done.order_by("id")}


def _new_evaluation(
    campaign: Campaign, checkpoint: str, dataset: int, earlier: Evaluation | None, now: datetime
) -> Evaluation:
    row = Evaluation(campaign=campaign, checkpoint=checkpoint, dataset_id=dataset)
    if earlier:
        row.state, row.scores, row.reused_id, row.given = earlier.state, earlier.scores, earlier.pk, earlier.given
        row.why, row.ended_at = "Reused from an earlier campaign.", now
    return row


@transaction.atomic
def cancel(campaign: Campaign, *, author: Author, now: datetime) -> None:
    """Cancel the campaign. The loop then cancels its jobs; existing results are kept."""
    row = Campaign.objects.select_for_update().get(pk=campaign.pk)
    if row.state not in OPEN_CAMPAIGN_STATES:
        raise StateConflict(f"{row} has already ended: {row.state}.")
    Evaluation.objects.filter(campaign=row, state__in=OPEN_CAMPAIGN_STATES).update(
        state=CampaignState.CANCELLED, ended_at=now
    )
    _set_campaign_state(row, CampaignState.CANCELLED, author=author, now=now)


@transaction.atomic
def retry(campaign: Campaign, *, author: Author, now: datetime) -> int:
    """Retry the failed evaluations, with all tries available again. Return their number."""
    row = Campaign.objects.select_for_update().get(pk=campaign.pk)
    failed = Evaluation.objects.filter(campaign=row, state=CampaignState.FAILED)
    if row.state == CampaignState.CANCELLED or not failed.exists():
        raise StateConflict(f"{row} has no failed evaluations to retry. Its state is {row.state}.")
    shards = Shard.objects.filter(evaluation__in=failed, state=ShardState.FAILED)
    fresh = {"tries": 0, "losses": 0, "trial": None}
    shards.filter(infer_s__isnull=True).update(state=ShardState.WAITING, **fresh)
    shards.filter(infer_s__isnull=False).update(state=ShardState.INFERRED, **fresh)
    again = failed.update(state=CampaignState.RUNNING, why="", ended_at=None)
    Campaign.objects.filter(pk=row.pk).update(started_at=now)  # earlier failed copies no longer count
    why = f"Retrying {format_count(again, 'failed evaluation')}."
    _set_campaign_state(row, CampaignState.RUNNING, author=author, now=now, why=why)
    return again


# --- actions of the loop


@dataclass(frozen=True, kw_only=True)
class TrialRequest:
    """A job to submit, and the shards it will process."""

    kind: str
    checkpoint: str
    spec: JobSpec
    nonce: str
    shards: Sequence[int]
    expected_s: float


def new_nonce() -> str:
    return secrets.token_hex(12)


@transaction.atomic
def start_campaign(campaign: Campaign, plan: Mapping[str, Any], nodes: int, now: datetime) -> None:
    _advance_turn(campaign, CampaignState.PENDING)
    Campaign.objects.filter(pk=campaign.pk).update(plan=dict(plan), nodes=nodes, started_at=now)
    _set_campaign_state(campaign, CampaignState.RUNNING, author=campaign_author(campaign), now=now)


@transaction.atomic
def create_shards(campaign: Campaign, cuts: Sequence[TrialSlice]) -> dict[tuple[int, int], int]:
    """Create the shards and return their ids by (evaluation, start). Raises ClaimLost if some samples were assigned
    concurrently."""
    _advance_turn(campaign, CampaignState.RUNNING)
    for cut in cuts:
        samples = Evaluation.objects.filter(pk=cut.evaluation, campaign=campaign, given=cut.start)
        if not samples.update(given=F("given") + cut.samples, state=CampaignState.RUNNING):
            raise ClaimLost(f"{campaign}: evaluation {cut.evaluation} was split concurrently at {cut.start}")
    shards = Shard.objects.bulk_create(
        Shard(evaluation_id=cut.evaluation, start=cut.start, samples=cut.samples) for cut in cuts
    )
    return {(shard.evaluation_id, shard.start): shard.pk for shard in shards}


SHARD_STATE_BEFORE_TRIAL = {TrialKind.INFER: ShardState.WAITING, TrialKind.SCORE: ShardState.INFERRED}
SHARD_STATE_DURING_TRIAL = {TrialKind.INFER: ShardState.INFERRING, TrialKind.SCORE: ShardState.SCORING}


@transaction.atomic
def submit_trials(campaign: Campaign, orders: Sequence[TrialRequest], now: datetime) -> list[Trial]:
    """Submit trials: jobs, trials and their shards in one transaction."""
    _advance_turn(campaign, CampaignState.RUNNING)
    jobs = job_actions.submit(
        [order.spec for order in orders],
        cluster=campaign.cluster,
        team=campaign.team,
        author=campaign_author(campaign),
        now=now,
    )
    trials = Trial.objects.bulk_create(
        Trial(
            campaign=campaign,
            job=job,
            kind=order.kind,
            checkpoint=order.checkpoint,
            nonce=order.nonce,
            expected_s=order.expected_s,
        )
        for job, order in zip(jobs, orders, strict=True)
    )
    for trial, order in zip(trials, orders, strict=True):
        shards = Shard.objects.filter(
            pk__in=order.shards, state=SHARD_STATE_BEFORE_TRIAL[TrialKind(order.kind)], trial=None
        )
        if shards.update(state=SHARD_STATE_DURING_TRIAL[TrialKind(order.kind)], trial=trial) != len(order.shards):
            raise ClaimLost(f"{campaign}: a shard of {order.spec.name} was assigned concurrently")
    return trials


@transaction.atomic
def record_trial_output(campaign: Campaign, trial: Trial, parts: Iterable[PartResult], now: datetime) -> int:
    """Record the results that a trial reports in its log. Return the number of new results."""
    _advance_turn(campaign, *OPEN_CAMPAIGN_STATES)
    news = 0
    shards = {shard.pk: shard for shard in Shard.objects.filter(trial=trial)}
    record = _record_inference if trial.kind == TrialKind.INFER else _record_scoring
    for part in parts:
        if shard := shards.get(part.part):
            news += record(shard, trial, part)
    Trial.objects.filter(pk=trial.pk).update(log_read_at=now)
    if news:
        live.publish_on_commit(campaign_topic(campaign))
    return news


def _record_inference(shard: Shard, trial: Trial, part: PartResult) -> bool:
    """Record the inference of a shard. If the suite has no metric command, the inference reports the scores."""
    if part.code:
        return _record_shard_failure(
            shard, ShardState.WAITING, part.why or f"The command ended with exit code {part.code}."
        )
    fields: dict[str, Any] = {"state": ShardState.INFERRED, "trial": None, "why": "", "inferred_by": trial, "tries": 0}
    if part.scores is not None:
        fields |= {"state": ShardState.COMPLETED, "scores": dict(part.scores)}
    rows = Shard.objects.filter(pk=shard.pk, state=ShardState.INFERRING, trial=trial)
    return bool(rows.update(**fields, infer_s=part.took_s, inferred_at_s=part.at_s))


def _record_scoring(shard: Shard, trial: Trial, part: PartResult) -> bool:
    if part.code or part.scores is None:
        return _record_shard_failure(
            shard, ShardState.INFERRED, part.why or f"The metric command ended with exit code {part.code}."
        )
    fields = {"state": ShardState.COMPLETED, "trial": None, "why": "", "scored_by": trial}
    rows = Shard.objects.filter(pk=shard.pk, state=ShardState.SCORING, trial=trial)
    return bool(rows.update(**fields, scores=dict(part.scores), score_s=part.took_s, scored_at_s=part.at_s))


def _record_shard_failure(shard: Shard, back: str, why: str) -> bool:
    state = ShardState.FAILED if shard.tries + 1 >= MAX_SHARD_TRIES else back
    rows = Shard.objects.filter(pk=shard.pk, state=shard.state, trial=shard.trial_id)
    return bool(rows.update(state=state, trial=None, tries=F("tries") + 1, why=why[:500]))


SHARD_STATE_AFTER_LOSS = {TrialKind.INFER: ShardState.WAITING, TrialKind.SCORE: ShardState.INFERRED}


@transaction.atomic
def end_trial(campaign: Campaign, trial: Trial, *, blame: bool, why: str, now: datetime) -> int:
    """Return the unfinished shards of an ended trial to the queue. With `blame`, the first of them counts as failed: it
    was the one being processed. Return the number of unfinished shards."""
    _advance_turn(
        campaign, *OPEN_CAMPAIGN_STATES, CampaignState.FAILED, CampaignState.CANCELLED, CampaignState.COMPLETED
    )
    if not Trial.objects.filter(pk=trial.pk, ended_at__isnull=True).update(ended_at=now, why=why[:500]):
        raise StateConflict(f"{trial} has already ended")
    unfinished = list(Shard.objects.filter(trial=trial).order_by("id"))
    ran = int(trial.job.started_at is not None)  # a trial that never started lost no work
    back = SHARD_STATE_AFTER_LOSS[TrialKind(trial.kind)]
    for shard in unfinished[:1] if blame else []:
        _record_shard_failure(shard, back, why)
    for shard in unfinished[1:] if blame else unfinished:
        lost = shard.losses + ran >= MAX_SHARD_LOSSES
        state = ShardState.FAILED if lost else back
        Shard.objects.filter(pk=shard.pk, trial=trial).update(
            state=state, trial=None, losses=F("losses") + ran, why=why[:500]
        )
    live.publish_on_commit(campaign_topic(campaign))
    return len(unfinished)


@transaction.atomic
def fail_checkpoint(campaign: Campaign, checkpoint: str, why: str, now: datetime) -> None:
    """Fail the open evaluations of a checkpoint, except those with a running trial."""
    _advance_turn(campaign, CampaignState.RUNNING)
    busy = Shard.objects.filter(evaluation=OuterRef("pk"), trial__isnull=False)
    open_ = Evaluation.objects.filter(campaign=campaign, checkpoint=checkpoint, state__in=OPEN_CAMPAIGN_STATES)
    open_.exclude(Exists(busy)).update(state=CampaignState.FAILED, why=why[:500], ended_at=now)


@transaction.atomic
def settle_campaign(campaign: Campaign, now: datetime) -> bool:
    """End evaluations whose shards have all ended, and the campaign after its last one. Return whether anything
    changed."""
    moved = _settle_evaluations(campaign, now)
    if Evaluation.objects.filter(campaign=campaign, state__in=OPEN_CAMPAIGN_STATES).exists():
        if moved:
            live.publish_on_commit(campaign_topic(campaign))
        return moved
    _advance_turn(campaign, CampaignState.RUNNING)
    failed = Evaluation.objects.filter(campaign=campaign, state=CampaignState.FAILED).count()
    state = CampaignState.FAILED if failed else CampaignState.COMPLETED
    why = f"{format_count(failed, 'evaluation')} failed; the others have results." if failed else ""
    _set_campaign_state(campaign, state, author=campaign_author(campaign), now=now, why=why)
    return True


def _settle_evaluations(campaign: Campaign, now: datetime) -> bool:
    sums = (
        Evaluation.objects.filter(campaign=campaign, state=CampaignState.RUNNING)
        .annotate(
            shards_count=Count("shards"),
            done=Count("shards", filter=Q(shards__state=ShardState.COMPLETED)),
            failed=Count("shards", filter=Q(shards__state=ShardState.FAILED)),
            covered=Sum("shards__samples"),
        )
        .filter(shards_count=F("done") + F("failed"))
        .select_related("dataset")
        .order_by("id")
    )
    moved = False
    for row in sums:
        if row.failed:
            why = row.shards.filter(state=ShardState.FAILED).values_list("why", flat=True).first() or ""
            fields: dict[str, Any] = {"state": CampaignState.FAILED, "why": why}
        elif row.given < row.dataset.samples or row.covered != row.dataset.samples:
            continue
        else:
            scores = job_output.merge_scores(row.shards.values_list("samples", "scores"))
            fields = {"state": CampaignState.COMPLETED, "scores": scores, "why": ""}
        rows = Evaluation.objects.filter(pk=row.pk, state=CampaignState.RUNNING)
        moved |= bool(rows.update(**fields, ended_at=now))
    return moved


def set_observe_mode_reason(campaign: Campaign) -> None:
    """Show on the campaign that it waits because its cluster is in mode observe."""
    _update_wait_reason(
        campaign,
        OBSERVE_MODE_WAIT_REASON.format(campaign.cluster),
        Campaign.objects.unfinished().filter(pk=campaign.pk),
    )


def clear_observe_mode_reason(campaign: Campaign) -> None:
    reason = OBSERVE_MODE_WAIT_REASON.format(campaign.cluster)
    if campaign.why == reason:
        _update_wait_reason(campaign, "", Campaign.objects.filter(pk=campaign.pk, why=reason))


def _update_wait_reason(campaign: Campaign, why: str, rows: QuerySet[Campaign]) -> None:
    """Update the text only. This is not a decision, so the turn number stays."""
    if campaign.why != why and rows.update(why=why):
        campaign.why = why
        live.publish_on_commit("campaigns", campaign_topic(campaign))


def campaign_author(campaign: Campaign) -> Author:
    """Return the author of the coordinator's actions: it acts on behalf of the campaign's user."""
    return Author(by=COORDINATOR, user_id=campaign.user_id)


def campaign_topic(campaign: Campaign) -> str:
    return f"campaign:{campaign.public_id}"


def _advance_turn(campaign: Campaign, *states: str) -> None:
    rows = Campaign.objects.filter(pk=campaign.pk, turn=campaign.turn, state__in=states)
    if not rows.update(turn=F("turn") + 1):
        raise ClaimLost(f"{campaign} was changed concurrently")
    campaign.turn += 1


def _set_campaign_state(campaign: Campaign, state: str, *, author: Author, now: datetime, why: str = "") -> None:
    """Set the state. The caller must have locked the row by `_advance_turn` or `select_for_update`."""
    before = campaign.state
    ended = now if state not in OPEN_CAMPAIGN_STATES else None
    Campaign.objects.filter(pk=campaign.pk).update(state=state, ended_at=ended, why=why, turn=F("turn") + 1)
    campaign.state, campaign.ended_at, campaign.why = state, ended, why
    campaign.turn += 1
    _log_campaign_event(campaign, author, before, state, why)


def _log_campaign_event(campaign: Campaign, author: Author, before: str, after: str, why: str = "") -> None:
    what = "campaign.state_changed" if before else "campaign.created"
    detail = {"campaign": campaign.public_id, "suite": str(campaign.suite), "checkpoints": len(campaign.checkpoints)}
    journal.new_event(
        what, author, cluster_id=campaign.cluster_id, from_state=before, to_state=after, why=why, detail=detail
    ).save()
    live.publish_on_commit("campaigns", campaign_topic(campaign))
