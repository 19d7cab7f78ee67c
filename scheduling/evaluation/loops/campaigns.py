"""Coordinate campaigns: submit their jobs, and read the results from the logs of these jobs.

Eligible rows     Unfinished campaigns, and ended ones with unfinished trials; the oldest first.
What a turn does  A pending campaign gets its plan and starts. Results reported by trials are recorded in their shards.
                  Trials whose job ended return their unfinished shards. Trials that wait for a node without free
                  resources are cancelled. Evaluations whose shards have all ended get their result. Free resources
                  get new work: nodes get copies of checkpoints, GPUs get shards, CPUs get scoring jobs.
Failure story     Each change is one transaction that increments the campaign's turn number, so of two concurrent
                  coordinators only one changes anything; the other one gets ClaimLost and stops.
                  Killed between creating shards and submitting trials: the shards wait, and the next turn submits
                  them. Killed between reading a log and recording it: the log is read again; recorded results are
                  ignored. A copy fails: its node gets no copies for half an hour; after three failed copies the
                  evaluations of the checkpoint fail with the copy's error. A node fails during a trial: results in
                  its log count, the other shards are submitted again. A command fails or a dataset is missing: only
                  that shard is retried, up to three times. A metric fails: only the metric is retried. An estimate is
                  wrong by a factor of 20: a job may take four times the estimate, and four times longer at each
                  retry; measured times replace estimates for the next shards. A unique constraint ensures that
                  each result counts once.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from django.db.models import Q

from acmeweb.common.errors import StateConflict
from jobs.actions import jobs as job_actions
from jobs.actions.one_row import skip_row_on_error
from jobs.actions.wake import request_turn
from jobs.core.lifecycle import FINAL_STATES, Flag, State
from jobs.logs import job_log
from jobs.logs.job_log import LogReadError, StorageUnresponsive
from jobs.models import Attempt, ClusterMode, Job, Node
from scheduling.evaluation.actions import campaigns as campaign_actions
from scheduling.evaluation.actions import staging as staging_actions
from scheduling.evaluation.actions.campaigns import TrialRequest
from scheduling.evaluation.reads import campaign_board
from scheduling.evaluation.rules import forecast, job_output, orders
from scheduling.evaluation.rules.coordinator import CampaignActions, NewScoring, NewTrial, TrialSlice, decide
from scheduling.evaluation.rules.forecast import CampaignWorkload
from scheduling.evaluation.rules.job_output import JobOutput
from scheduling.evaluation.rules.orders import TrialPart
from scheduling.models import (
    OPEN_CAMPAIGN_STATES,
    Campaign,
    CampaignState,
    Evaluation,
    Shard,
    Staging,
    StagingState,
    Trial,
    TrialKind,
)

log = logging.getLogger(__name__)

RUNNING_LOG_TAIL_BYTES = 256 * 1024  # part of the log that is read while a trial runs
FINAL_LOG_TAIL_BYTES = 8 * 1024 * 1024
LOG_READ_INTERVAL = timedelta(seconds=5)
MAX_TRIAL_WAIT = timedelta(minutes=1)  # until a trial whose node has no free resources is cancelled
MAX_FAILED_COPIES = 3
BLAMED_STATES = (State.FAILED, State.TIMEOUT, State.OUT_OF_MEMORY)


def coordinate_campaigns_once(now: datetime) -> int:
    """Run one turn of each campaign. Return the number of submitted trials."""
    open_ = Trial.objects.filter(ended_at=None).values("campaign")
    rows = Campaign.objects.filter(Q(state__in=OPEN_CAMPAIGN_STATES) | Q(pk__in=open_))
    sent = 0
    for campaign in rows.select_related("cluster", "team", "suite", "user").order_by("id"):
        with skip_row_on_error(campaign):
            sent += coordinate_campaign_once(campaign, now)
    return sent


def has_campaign_work() -> bool:
    """Whether there is anything to coordinate."""
    there = Staging.objects.filter(state__in=(StagingState.COPYING, StagingState.READY, StagingState.REMOVING))
    return Campaign.objects.unfinished().exists() or Trial.objects.filter(ended_at=None).exists() or there.exists()


def coordinate_campaign_once(campaign: Campaign, now: datetime) -> int:
    is_observed = campaign.cluster.mode == ClusterMode.OBSERVE
    campaign_actions.set_observe_mode_reason(campaign) if is_observed else campaign_actions.clear_observe_mode_reason(
        campaign
    )
    if campaign.state == CampaignState.PENDING and not is_observed:
        _start_planned(campaign, now)
    for trial in _open_trials(campaign):
        _follow_trial(campaign, trial, now)
    if campaign.state != CampaignState.RUNNING:
        return 0
    _fail_uncopyable_checkpoints(campaign, now)
    campaign_actions.settle_campaign(campaign, now)
    if campaign.state != CampaignState.RUNNING:
        return 0
    if is_observed:
        return 0
    return _apply(campaign, decide(campaign_board.campaign_snapshot(campaign, now)), now)


def _start_planned(campaign: Campaign, now: datetime) -> None:
    datasets = list(campaign.suite.datasets.all())
    by_pk = {dataset.pk: dataset for dataset in datasets}
    open_ = Evaluation.objects.filter(campaign=campaign, state__in=OPEN_CAMPAIGN_STATES).order_by("id")
    work = [
        (checkpoint, by_pk[dataset].name, by_pk[dataset].samples, by_pk[dataset].parts)
        for checkpoint, dataset in open_.values_list("checkpoint", "dataset_id")
    ]
    ahead = CampaignWorkload(
        work=work,
        costs=campaign_board.campaign_costs(campaign, datasets, campaign_board.most_common_gpu_model(campaign.cluster)),
        checkpoint_gb=campaign.checkpoint_gb,
        most_nodes=Node.objects.filter(cluster=campaign.cluster, gpus__gte=campaign.suite.gpus).count(),
        slots_per_node=campaign_board.slots_per_node(campaign),
        metric_jobs=campaign.suite.metric_jobs,
    )
    within_s = (campaign.deadline_at - now).total_seconds() if campaign.deadline_at else None
    plan = forecast.plan(ahead, campaign.nodes, within_s)
    campaign_actions.start_campaign(campaign, plan, plan["nodes"], now)
    campaign.nodes = plan["nodes"]


# --- results of trials


def _open_trials(campaign: Campaign) -> list[Trial]:
    return list(Trial.objects.filter(campaign=campaign, ended_at=None).select_related("job__cluster").order_by("id"))


def _follow_trial(campaign: Campaign, trial: Trial, now: datetime) -> None:
    job = trial.job
    ended = job.state in FINAL_STATES
    if not ended and campaign.state not in OPEN_CAMPAIGN_STATES:
        _cancel_job(job, "The campaign has ended.")
    elif job.state == State.PENDING:
        _check_waiting_trial(campaign, trial, now)
    elif ended or trial.log_read_at is None or now - trial.log_read_at >= LOG_READ_INTERVAL:
        output = read_job_output(job, trial.nonce, FINAL_LOG_TAIL_BYTES if ended else RUNNING_LOG_TAIL_BYTES)
        if output is None:
            return
        campaign_actions.record_trial_output(
            campaign, trial, output.parts, now
        ) if campaign.state in OPEN_CAMPAIGN_STATES else None
        if ended:
            _finish_trial(campaign, trial, output, now)


def _finish_trial(campaign: Campaign, trial: Trial, output: JobOutput, now: datetime) -> None:
    """End the trial. A trial that did not find its checkpoint is not to blame: its copy is gone."""
    missing = (
        bool(output.failed)
        and not output.ready
        and trial.kind == TrialKind.INFER
        and _discard_missing_copy(trial, output, now)
    )
    why = output.failed or trial.job.why or f"The job ended with state {trial.job.state}."
    campaign_actions.end_trial(
        campaign, trial, blame=trial.job.state in BLAMED_STATES and not missing, why=why, now=now
    )


def _discard_missing_copy(trial: Trial, output: JobOutput, now: datetime) -> bool:
    campaign = trial.campaign
    copies = Staging.objects.filter(
        cluster=campaign.cluster_id,
        team=campaign.team_id,
        node=trial.job.required_node,
        checkpoint=trial.checkpoint,
        state=StagingState.READY,
    )
    copy = copies.first()
    if copy is None or f"there is no {copy.path}" not in output.failed:
        return False
    staging_actions.mark_staging_lost(copy, output.failed, now)
    return True


def read_job_output(job: Job, nonce: str, most: int) -> JobOutput | None:
    """Return what the job has reported in its log. None if that is not known yet: the end of the log is still being
    copied, or its storage does not respond. The next turn asks again."""
    attempt = Attempt.objects.filter(job=job).order_by("-number").first()
    if attempt is None:
        return JobOutput()
    if attempt.log_pending and attempt.ended_at:
        return None
    try:
        tail = job_log.tail(job.cluster.log_source(attempt.log_path), most)
    except StorageUnresponsive:
        return None
    except LogReadError as error:
        return JobOutput(failed=str(error) if job.state == State.COMPLETED else "")
    return job_output.parse_job_output(tail.text.split("\n"), nonce)


def _check_waiting_trial(campaign: Campaign, trial: Trial, now: datetime) -> None:
    """Cancel a trial that cannot start, so that its shards can go to another one: its cluster rejected the job, or its
    node has no free resources any more."""
    job = trial.job
    if Flag.REQUEUE_HOLD in job.flags:
        why = job.why
        _cancel_job(job, "The campaign retries these shards with another job.")
        campaign_actions.end_trial(campaign, trial, blame=True, why=why, now=now)
    elif job.required_node and now - job.submitted_at > MAX_TRIAL_WAIT and not _may_start(job):
        _cancel_job(job, f"{job.required_node} has no free resources any more; the shards are assigned again.")


def _may_start(job: Job) -> bool:
    node = Node.objects.filter(cluster=job.cluster_id, name=job.required_node).first()
    if node is None or not node.is_schedulable:
        return False
    held = node.allocations.filter(released_at=None, gpu__lt=node.whole_gpus).values("gpu").distinct().count()
    foreign = sum(gpu < node.whole_gpus for gpu in node.foreign_gpus)
    return node.whole_gpus - held - foreign >= job.gpus_per_node


def _cancel_job(job: Job, why: str) -> None:
    try:
        job_actions.cancel(job, author=staging_actions.COORDINATOR_AUTHOR, why=why)
    except StateConflict as error:
        log.info("%s", error)
    request_turn(job.cluster_id)


def _fail_uncopyable_checkpoints(campaign: Campaign, now: datetime) -> None:
    """Fail the evaluations of checkpoints whose copies failed on several nodes, with the error of the last copy."""
    rows = Staging.objects.filter(cluster=campaign.cluster, team=campaign.team, checkpoint__in=campaign.checkpoints)
    there = set(rows.filter(state__in=(StagingState.COPYING, StagingState.READY)).values_list("checkpoint", flat=True))
    failed: dict[str, list[str]] = {}
    since = campaign.started_at or campaign.created_at
    for checkpoint, why in rows.filter(state=StagingState.FAILED, moved_at__gte=since).values_list("checkpoint", "why"):
        failed.setdefault(checkpoint, []).append(why)
    nodes = Node.objects.usable().filter(cluster=campaign.cluster, gpus__gte=campaign.suite.gpus).count()
    for checkpoint, whys in failed.items():
        if checkpoint not in there and len(whys) >= min(MAX_FAILED_COPIES, max(1, nodes)):
            campaign_actions.fail_checkpoint(
                campaign, checkpoint, f"The checkpoint could not be copied to a node: {whys[-1]}", now
            )


# --- new copies and trials


def _apply(campaign: Campaign, moves: CampaignActions, now: datetime) -> int:
    if moves.nothing:
        return 0
    for node, checkpoint in moves.stage:
        try:
            staging_actions.start_staging(campaign, node, checkpoint, now)
        except StateConflict as conflict:
            log.info("%s", conflict)
    cuts = [cut for trial in moves.trials for cut in trial.cuts if cut.shard is None]
    shards = campaign_actions.create_shards(campaign, cuts) if cuts else {}
    requests = [_inference(campaign, trial, shards) for trial in moves.trials]
    requests += [_scoring(campaign, scoring) for scoring in moves.scorings]
    sent = campaign_actions.submit_trials(campaign, requests, now) if requests else []
    request_turn(campaign.cluster_id)
    return len(sent)


def _inference(campaign: Campaign, trial: NewTrial, shards: dict[tuple[int, int], int]) -> TrialRequest:
    expected = {_shard_id(cut, shards): cut.expected_s for cut in trial.cuts}
    model = _model_path(campaign, trial)
    nonce = campaign_actions.new_nonce()
    suite = campaign.suite
    parts = orders.parts_that_fit(_parts(campaign, expected, TrialKind.INFER), trial.checkpoint, model, suite.serve)
    instructions = orders.trial_instructions(
        parts, checkpoint=trial.checkpoint, model=model, serve=suite.serve, nonce=nonce
    )
    environment = {orders.INSTRUCTIONS_VARIABLE: instructions}
    resources = {"gpus_per_node": suite.gpus, "cpus_per_node": suite.cpus, "memory_per_node_mb": suite.memory_mb}
    name = f"eval-{campaign.public_id}"
    return TrialRequest(
        kind=TrialKind.INFER,
        checkpoint=trial.checkpoint,
        spec=orders.inference_job(name, campaign.public_id, trial.node, parts, environment, **resources),
        nonce=nonce,
        shards=[part.shard for part in parts],
        expected_s=sum(part.expected_s for part in parts),
    )


def _shard_id(cut: TrialSlice, shards: dict[tuple[int, int], int]) -> int:
    return shards[cut.evaluation, cut.start] if cut.shard is None else cut.shard


def _model_path(campaign: Campaign, trial: NewTrial) -> str:
    if not campaign.suite.stage_root:
        return trial.checkpoint
    return orders.copy_path(campaign.suite.stage_root, campaign.team.name, trial.checkpoint)


def _scoring(campaign: Campaign, scoring: NewScoring) -> TrialRequest:
    each = scoring.expected_s / len(scoring.shards)
    nonce = campaign_actions.new_nonce()
    candidates = _parts(campaign, dict.fromkeys(scoring.shards, each), TrialKind.SCORE)
    parts = orders.parts_that_fit(candidates, scoring.checkpoint, "", "")
    instructions = orders.trial_instructions(parts, checkpoint=scoring.checkpoint, serve="", nonce=nonce)
    environment = {orders.INSTRUCTIONS_VARIABLE: instructions}
    return TrialRequest(
        kind=TrialKind.SCORE,
        checkpoint=scoring.checkpoint,
        spec=orders.scoring_job(f"score-{campaign.public_id}", campaign.public_id, parts, environment),
        nonce=nonce,
        shards=[part.shard for part in parts],
        expected_s=sum(part.expected_s for part in parts),
    )


def _parts(campaign: Campaign, expected: dict[int, float], kind: str) -> list[TrialPart]:
    suite = campaign.suite
    rows = Shard.objects.filter(pk__in=expected).select_related("evaluation__dataset")
    by_pk = {row.pk: row for row in rows}
    parts = []
    for pk, seconds in expected.items():
        row, dataset = by_pk[pk], by_pk[pk].evaluation.dataset
        metric = dataset.metric or suite.metric
        parts.append(
            TrialPart(
                shard=pk,
                dataset=dataset.name,
                start=row.start,
                samples=row.samples,
                whole=row.samples == dataset.samples,
                output=f"{suite.output_root.rstrip('/')}/{campaign.public_id}/{row.evaluation_id}/{row.start}",
                command=metric if kind == TrialKind.SCORE else dataset.infer or suite.infer,
                scores=kind == TrialKind.SCORE or not metric,
                expected_s=seconds,
                tries=row.tries,
            )
        )
    return parts
