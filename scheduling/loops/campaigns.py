"""Evaluate: the coordinator of campaigns. It submits their jobs and takes over what these say in their logs.

Who is eligible   campaigns that have not ended, and ended ones whose trials still have jobs; the oldest first.
What a turn does  A campaign that waits gets its plan and runs. Then: what trials have done by now becomes the state of
                  their shards; trials whose job ended give back what they did not come to; trials that wait for a node
                  without room are withdrawn; evaluations of which nothing is open get their result; and what is free is
                  dealt out: copies of models to nodes, shards to GPUs, answers to CPUs.
Failure story     Each change is one transaction that counts the campaign's turn up, so of two coordinators that looked
                  at the same only one changes anything; the other's `Gone` ends its turn. Killed between cutting and
                  sending: the shards wait without a trial, and the next turn deals them out. Killed between a log's
                  reading and its taking over: it is read again, and a part that is taken over already is no news.
                  A copy fails: its node is left alone for half an hour; three in a row fail the checkpoint's
                  evaluations with the copy's own words. A node dies mid-trial: what its log says is done counts, the
                  rest is dealt out anew. A command fails, a dataset is missing: that shard alone is tried three times.
                  A metric fails: the answers stay, the metric alone is tried again. A prior is off by twenty: a job may
                  take four times what is expected, and four times as long at the next try; what is measured counts for
                  the next slice already. Results are the cells of a unique constraint: nothing counts twice.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from django.db.models import Q

from jobs.actions import jobs as job_actions
from jobs.actions.jobs import JobError
from jobs.actions.one_row import skip_row_on_error
from jobs.actions.wake import request_turn
from jobs.core.lifecycle import FINAL_STATES, Flag, State
from jobs.logs import job_log
from jobs.logs.job_log import LogReadError, StorageUnresponsive
from jobs.models import Attempt, ClusterMode, Job, Node
from scheduling.actions import campaigns as verbs
from scheduling.actions import staging as staging_actions
from scheduling.actions.campaigns import CampaignStateConflict, NewShard, TrialRequest
from scheduling.evaluation import forecast, job_output, orders
from scheduling.evaluation.coordinator import CampaignActions, NewScoring, NewTrial, TrialSlice, decide
from scheduling.evaluation.forecast import CampaignWorkload
from scheduling.evaluation.job_output import JobOutput
from scheduling.evaluation.orders import TrialPart
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
from scheduling.queries import campaign_board

log = logging.getLogger(__name__)

RUNNING_LOG_TAIL_BYTES = 256 * 1024  # of a log's end is read, for those that run
FINAL_LOG_TAIL_BYTES = 8 * 1024 * 1024
LOG_READ_INTERVAL = timedelta(seconds=5)
MAX_TRIAL_WAIT = timedelta(minutes=1)  # with a trial whose node has no room any more
MAX_FAILED_COPIES = 3
BLAMED_STATES = (State.FAILED, State.TIMEOUT, State.OUT_OF_MEMORY)


def coordinate_campaigns_once(now: datetime) -> int:
    """A turn of every campaign. Return how many trials were sent."""
    open_ = Trial.objects.filter(ended_at=None).values("campaign")
    rows = Campaign.objects.filter(Q(state__in=OPEN_CAMPAIGN_STATES) | Q(pk__in=open_))
    sent = 0
    for campaign in rows.select_related("cluster", "team", "suite", "user").order_by("id"):
        with skip_row_on_error(campaign):
            try:
                sent += coordinate_campaign_once(campaign, now)
            except CampaignStateConflict as gone:
                log.info("%s; the next turn looks again", gone)
    return sent


def has_campaign_work() -> bool:
    """Whether there is anything to coordinate."""
    there = Staging.objects.filter(state__in=(StagingState.COPYING, StagingState.READY, StagingState.REMOVING))
    return Campaign.objects.unfinished().exists() or Trial.objects.filter(ended_at=None).exists() or there.exists()


def coordinate_campaign_once(campaign: Campaign, now: datetime) -> int:
    is_observed = campaign.cluster.mode == ClusterMode.OBSERVE
    verbs.set_observe_mode_reason(campaign) if is_observed else verbs.clear_observe_mode_reason(campaign)
    if campaign.state == CampaignState.PENDING and not is_observed:
        _start_planned(campaign, now)
    for trial in _open_trials(campaign):
        _follow_trial(campaign, trial, now)
    if campaign.state != CampaignState.RUNNING:
        return 0
    _fail_uncopyable_checkpoints(campaign, now)
    verbs.settle_campaign(campaign, now)
    if campaign.state != CampaignState.RUNNING:
        return 0
    if is_observed:
        return 0
    return _apply(campaign, decide(campaign_board.campaign_snapshot(campaign, now)), now)


def _start_planned(campaign: Campaign, now: datetime) -> None:
    datasets = list(campaign.suite.datasets.all())
    by_pk = {one.pk: one for one in datasets}
    open_ = Evaluation.objects.filter(campaign=campaign, state__in=OPEN_CAMPAIGN_STATES).order_by("id")
    work = [
        (checkpoint, by_pk[dataset].name, by_pk[dataset].samples, by_pk[dataset].parts)
        for checkpoint, dataset in open_.values_list("checkpoint", "dataset_id")
    ]
    ahead = CampaignWorkload(
        work=work,
        costs=campaign_board.campaign_costs(campaign, datasets, campaign_board.most_common_gpu_model(campaign.cluster)),
        weights_gb=campaign.weights_gb,
        most_nodes=Node.objects.filter(cluster=campaign.cluster, gpus__gte=campaign.suite.gpus).count(),
        slots_per_node=campaign_board.slots_per_node(campaign),
        metric_jobs=campaign.suite.metric_jobs,
    )
    within_s = (campaign.deadline_at - now).total_seconds() if campaign.deadline_at else None
    plan = forecast.plan(ahead, campaign.nodes, within_s)
    verbs.start_campaign(campaign, plan, plan["nodes"], now)
    campaign.nodes = plan["nodes"]


# --- what trials have done


def _open_trials(campaign: Campaign) -> list[Trial]:
    return list(Trial.objects.filter(campaign=campaign, ended_at=None).select_related("job__cluster").order_by("id"))


def _follow_trial(campaign: Campaign, trial: Trial, now: datetime) -> None:
    job = trial.job
    ended = job.state in FINAL_STATES
    if not ended and campaign.state not in OPEN_CAMPAIGN_STATES:
        _cancel_job(job, "Its campaign has ended.")
    elif job.state == State.PENDING:
        _check_waiting_trial(campaign, trial, now)
    elif ended or trial.heard_at is None or now - trial.heard_at >= LOG_READ_INTERVAL:
        try:
            said = read_job_output(job, trial.nonce, FINAL_LOG_TAIL_BYTES if ended else RUNNING_LOG_TAIL_BYTES)
        except StorageUnresponsive:
            return  # nothing is known of it; the next turn looks again
        verbs.record_trial_output(campaign, trial, said.parts, now) if campaign.state in OPEN_CAMPAIGN_STATES else None
        if ended:
            _finish_trial(campaign, trial, said, now)


def _finish_trial(campaign: Campaign, trial: Trial, said: JobOutput, now: datetime) -> None:
    """A trial that did not even find its model is not to blame, its copy is."""
    missing = (
        bool(said.failed)
        and not said.ready
        and trial.kind == TrialKind.INFER
        and _discard_missing_copy(trial, said, now)
    )
    why = said.failed or trial.job.why or f"Its job ended as {trial.job.state}."
    verbs.end_trial(campaign, trial, blame=trial.job.state in BLAMED_STATES and not missing, why=why, now=now)


def _discard_missing_copy(trial: Trial, said: JobOutput, now: datetime) -> bool:
    campaign = trial.campaign
    copies = Staging.objects.filter(
        cluster=campaign.cluster_id,
        team=campaign.team_id,
        node=trial.job.on_node,
        checkpoint=trial.checkpoint,
        state=StagingState.READY,
    )
    copy = copies.first()
    if copy is None or f"there is no {copy.path}" not in said.failed:
        return False
    staging_actions.mark_staging_lost(copy, said.failed, now)
    return True


def read_job_output(job: Job, nonce: str, most: int) -> JobOutput:
    """What it wrote about itself so far, as far as its log can be read."""
    attempt = Attempt.objects.filter(job=job).order_by("-number").first()
    if attempt is None:
        return JobOutput()
    try:
        tail = job_log.tail(job.cluster.log_root, attempt.log_path, most)
    except StorageUnresponsive:
        raise
    except LogReadError as none:
        return JobOutput(failed=str(none) if job.state == State.COMPLETED else "")
    return job_output.parse_job_output(tail.text.split("\n"), nonce)


def _check_waiting_trial(campaign: Campaign, trial: Trial, now: datetime) -> None:
    """A job that its cluster refused waits for a person; a trial's shards need not. One that waits for a node which is
    full or closed by now gives its shards back, to be dealt to another."""
    job = trial.job
    if Flag.REQUEUE_HOLD in job.flags:
        why = job.why
        _cancel_job(job, "Its campaign tries something else.")
        verbs.end_trial(campaign, trial, blame=True, why=why, now=now)
    elif job.on_node and now - job.submitted_at > MAX_TRIAL_WAIT and not _may_start(job):
        _cancel_job(job, f"{job.on_node} has no room any more; its shards are dealt out anew.")


def _may_start(job: Job) -> bool:
    node = Node.objects.filter(cluster=job.cluster_id, name=job.on_node).first()
    if node is None or not node.takes_work:
        return False
    held = node.allocations.filter(released_at=None, gpu__isnull=False).count()
    return node.gpus - held - len(node.foreign_gpus) >= job.gpus_per_node


def _cancel_job(job: Job, why: str) -> None:
    try:
        job_actions.cancel(job, author=staging_actions.COORDINATOR_AUTHOR, why=why)
    except JobError as moved:
        log.info("%s", moved)
    request_turn(job.cluster_id)


def _fail_uncopyable_checkpoints(campaign: Campaign, now: datetime) -> None:
    """Where the copying of a checkpoint failed everywhere it was tried, its evaluations fail with the copy's words."""
    rows = Staging.objects.filter(cluster=campaign.cluster, team=campaign.team, checkpoint__in=campaign.checkpoints)
    there = set(rows.filter(state__in=(StagingState.COPYING, StagingState.READY)).values_list("checkpoint", flat=True))
    failed: dict[str, list[str]] = {}
    since = campaign.started_at or campaign.created_at
    for checkpoint, why in rows.filter(state=StagingState.FAILED, moved_at__gte=since).values_list("checkpoint", "why"):
        failed.setdefault(checkpoint, []).append(why)
    nodes = Node.objects.usable().filter(cluster=campaign.cluster, gpus__gte=campaign.suite.gpus).count()
    for checkpoint, whys in failed.items():
        if checkpoint not in there and len(whys) >= min(MAX_FAILED_COPIES, max(1, nodes)):
            verbs.fail_checkpoint(campaign, checkpoint, f"It could not be copied to a node: {whys[-1]}", now)


# --- what is dealt out


def _apply(campaign: Campaign, moves: CampaignActions, now: datetime) -> int:
    if moves.nothing:
        return 0
    for node, checkpoint in moves.stage:
        try:
            staging_actions.start_staging(campaign, node, checkpoint, now)
        except CampaignStateConflict as gone:
            log.info("%s", gone)
    cuts = [cut for trial in moves.trials for cut in trial.cuts if cut.shard is None]
    made = (
        verbs.create_shards(
            campaign, [NewShard(evaluation=c.evaluation, start=c.start, samples=c.samples) for c in cuts]
        )
        if cuts
        else {}
    )
    wishes = [_inference(campaign, trial, made) for trial in moves.trials]
    wishes += [_scoring(campaign, scoring) for scoring in moves.scorings]
    sent = verbs.submit_trials(campaign, wishes, now) if wishes else []
    request_turn(campaign.cluster_id)
    return len(sent)


def _inference(campaign: Campaign, trial: NewTrial, made: dict[tuple[int, int], int]) -> TrialRequest:
    expected = {_shard_id(cut, made): cut.expected_s for cut in trial.cuts}
    model = _model_path(campaign, trial)
    word = verbs.new_nonce()
    suite = campaign.suite
    parts = orders.parts_that_fit(_parts(campaign, expected, TrialKind.INFER), model, suite.serve)
    environment = {
        orders.INSTRUCTIONS_VARIABLE: orders.trial_instructions(parts, model=model, serve=suite.serve, nonce=word)
    }
    resources = {"gpus_per_node": suite.gpus, "cpus_per_node": suite.cpus, "memory_per_node_mb": suite.memory_mb}
    name = f"eval-{campaign.public_id}"
    return TrialRequest(
        kind=TrialKind.INFER,
        checkpoint=trial.checkpoint,
        spec=orders.inference_job(name, campaign.public_id, trial.node, parts, environment, **resources),
        nonce=word,
        shards=[part.shard for part in parts],
        expected_s=sum(part.expected_s for part in parts),
    )


def _shard_id(cut: TrialSlice, made: dict[tuple[int, int], int]) -> int:
    return made[cut.evaluation, cut.start] if cut.shard is None else cut.shard


def _model_path(campaign: Campaign, trial: NewTrial) -> str:
    if not campaign.suite.stage_root:
        return trial.checkpoint
    return orders.copy_path(campaign.suite.stage_root, campaign.team.name, trial.checkpoint)


def _scoring(campaign: Campaign, scoring: NewScoring) -> TrialRequest:
    each = scoring.expected_s / len(scoring.shards)
    word = verbs.new_nonce()
    wanted = _parts(campaign, dict.fromkeys(scoring.shards, each), TrialKind.SCORE)
    parts = orders.parts_that_fit(wanted, scoring.checkpoint, "")
    environment = {
        orders.INSTRUCTIONS_VARIABLE: orders.trial_instructions(parts, model=scoring.checkpoint, serve="", nonce=word)
    }
    return TrialRequest(
        kind=TrialKind.SCORE,
        checkpoint=scoring.checkpoint,
        spec=orders.scoring_job(f"score-{campaign.public_id}", campaign.public_id, parts, environment),
        nonce=word,
        shards=[part.shard for part in parts],
        expected_s=sum(part.expected_s for part in parts),
    )


def _parts(campaign: Campaign, expected: dict[int, float], kind: str) -> list[TrialPart]:
    suite = campaign.suite
    rows = Shard.objects.filter(pk__in=expected).select_related("evaluation__dataset")
    found = {row.pk: row for row in rows}
    parts = []
    for pk, seconds in expected.items():
        row, dataset = found[pk], found[pk].evaluation.dataset
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
