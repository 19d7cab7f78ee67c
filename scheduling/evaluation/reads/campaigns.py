"""Reads of campaigns for pages and API: visible rows, progress, deadlines, results and chart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from django.db.models import Count, Q, QuerySet, Sum
from django.db.models.functions import Coalesce

from acmeweb.common.errors import InvalidField
from jobs.core.parsing import short_repr
from jobs.models import Allocation, Team
from jobs.models.permissions import Caller
from scheduling.core.deadlines import planned_work_chance
from scheduling.evaluation.rules.checkpoint_paths import CheckpointPlace, checkpoint_place
from scheduling.evaluation.rules.regressions import Regression, Score, find_regressions, score_scale
from scheduling.models import (
    Campaign,
    CampaignState,
    Evaluation,
    EvaluationRule,
    Shard,
    ShardState,
    Staging,
    Suite,
    Trial,
    TrialKind,
)

MAX_CHART_BARS = 3000
MAX_PAST_CAMPAIGNS = 200


def campaigns(caller: Caller) -> QuerySet[Campaign]:
    rows = Campaign.objects.all()
    return rows if caller.is_site_admin else rows.filter(team_id__in=sorted(caller.roles))


def suites(caller: Caller) -> QuerySet[Suite]:
    rows = Suite.objects.all()
    return rows if caller.is_site_admin else rows.filter(team_id__in=sorted(caller.roles))


def rules(caller: Caller) -> QuerySet[EvaluationRule]:
    rows = EvaluationRule.objects.all()
    return rows if caller.is_site_admin else rows.filter(team_id__in=sorted(caller.roles))


def find_suite(name: str, team: Team) -> Suite:
    """Return the newest version for `core`, or version 2 for `core@2`. Raises InvalidField."""
    suite_name, _, version = name.partition("@")
    rows = Suite.objects.filter(team=team, name=suite_name).order_by("-version")
    if version:
        if not (version.isascii() and version.isdigit() and len(version) < 9):
            raise InvalidField("suite", f"{short_repr(version)} is not a version; use NAME or NAME@2")
        rows = rows.filter(version=int(version))
    suite = rows.first()
    if suite is None:
        names = ", ".join(
            Suite.objects.filter(team=team).order_by("name").values_list("name", flat=True).distinct()[:10]
        )
        raise InvalidField(
            "suite", f"{team} has no suite {short_repr(name)}" + (f"; available: {names}" if names else "")
        )
    return suite


# --- progress


@dataclass(frozen=True, kw_only=True)
class CampaignProgress:
    """The progress of a campaign: counts of evaluations, and the percentage of processed samples."""

    evaluations: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    percent: float = 0.0  # a sample counts half after inference and fully after scoring


def campaign_progress(rows: Iterable[Campaign]) -> dict[int, CampaignProgress]:
    """Return the progress by campaign. Takes two grouped queries for any number of campaigns."""
    keys = [row.pk for row in rows]
    of = Evaluation.objects.filter(campaign__in=keys).order_by().values("campaign")
    state = CampaignState
    counted = of.annotate(
        every=Count("pk"),
        done=Count("pk", filter=Q(state=state.COMPLETED)),
        failed=Count("pk", filter=Q(state=state.FAILED)),
        cancelled=Count("pk", filter=Q(state=state.CANCELLED)),
        samples=Sum("dataset__samples"),
        finished=Coalesce(Sum("dataset__samples", filter=~Q(state__in=(state.PENDING, state.RUNNING))), 0),
    )
    shards = Shard.objects.filter(evaluation__campaign__in=keys, evaluation__state=state.RUNNING).order_by()
    scored = Sum("samples", filter=Q(state=ShardState.COMPLETED))
    answered = Sum("samples", filter=Q(state__in=(ShardState.INFERRED, ShardState.SCORING)))
    under_way = {
        pk: (whole or 0) + (half or 0) / 2
        for pk, whole, half in shards.values("evaluation__campaign")
        .annotate(whole=scored, half=answered)
        .values_list("evaluation__campaign", "whole", "half")
    }
    return {
        row["campaign"]: CampaignProgress(
            evaluations=row["every"],
            done=row["done"],
            failed=row["failed"],
            cancelled=row["cancelled"],
            percent=100 * (row["finished"] + under_way.get(row["campaign"], 0)) / row["samples"],
        )
        for row in counted
    }


def gpu_hours(campaign: Campaign, now: datetime) -> float:
    """Return the GPU-hours that the campaign's trials have used so far."""
    jobs = Trial.objects.filter(campaign=campaign, kind=TrialKind.INFER, job__started_at__isnull=False)
    held = jobs.values_list("job__started_at", "job__ended_at", "job__gpus_per_node")
    return sum(((ended or now) - began).total_seconds() * gpus for began, ended, gpus in held) / 3600


def took_s(campaign: Campaign, now: datetime) -> float | None:
    if campaign.started_at is None:
        return None
    return ((campaign.ended_at or now) - campaign.started_at).total_seconds()


def campaign_probability(campaign: Campaign, percent: float, now: datetime) -> float | None:
    """The probability that an open campaign meets its deadline; None without a deadline or a plan. `percent` of its
    samples are done. Durations count from the creation, so they include the waits of trials.
    """
    if campaign.deadline_at is None or not campaign.plan or not campaign.is_open:
        return None
    ended = Campaign.objects.filter(cluster=campaign.cluster_id, state=CampaignState.COMPLETED, plan__isnull=False)
    rows = ended.order_by("-id").values_list("plan__makespan_s", "created_at", "ended_at")[:MAX_PAST_CAMPAIGNS]
    past = [(planned_s, (end - created).total_seconds()) for planned_s, created, end in rows if planned_s and end]
    left_s = (campaign.deadline_at - now).total_seconds()
    return planned_work_chance(campaign.plan["makespan_s"], left_s, past, done=percent / 100)


# --- results and chart


@dataclass(frozen=True, kw_only=True)
class ResultCell:
    state: str
    value: float | None
    metric: str
    why: str
    reused: bool
    change: float | None = None  # vs the previous checkpoint with a result of the same metric
    regression: Regression | None = None  # vs the same checkpoint, if that is an earlier step of the same run


def headline_score(scores: Mapping[str, float] | None) -> tuple[str, float | None]:
    """Return the name and value of the score shown in the table: one with a common name, or else the first."""
    if not scores:
        return "", None
    for name in ("score", "accuracy", "acc", "exact_match", "pass@1"):
        if name in scores:
            return name, scores[name]
    name = next(iter(scores))
    return name, scores[name]


def result_matrix(campaign: Campaign, most: int = 100) -> tuple[list[str], list[tuple[str, list[ResultCell | None]]]]:
    """Return the dataset names, and each checkpoint with its cells in that order. Limited to the first `most`
    checkpoints of the request."""
    shown = campaign.checkpoints[:most]
    rows = Evaluation.objects.filter(campaign=campaign, checkpoint__in=shown)
    cells: dict[str, dict[int, ResultCell]] = defaultdict(dict)
    columns = ("checkpoint", "dataset_id", "state", "scores", "why", "reused_id")
    for checkpoint, dataset, state, scores, why, reused in rows.values_list(*columns):
        metric, value = headline_score(scores)
        cells[checkpoint][dataset] = ResultCell(state=state, value=value, metric=metric, why=why, reused=bool(reused))
    datasets = list(campaign.suite.datasets.values_list("pk", "name", "samples"))
    for pk, _, samples in datasets:
        _add_changes([(checkpoint_place(checkpoint), cells[checkpoint]) for checkpoint in shown], pk, samples)
    lines = [(checkpoint, [cells[checkpoint].get(pk) for pk, _, _ in datasets]) for checkpoint in shown]
    return [name for _, name, _ in datasets], lines


def _add_changes(lines: list[tuple[CheckpointPlace, dict[int, ResultCell]]], dataset: int, samples: int) -> None:
    """Add the change of a dataset's score from checkpoint to checkpoint, in the order of the request."""
    before: tuple[CheckpointPlace, ResultCell] | None = None
    for place, line in lines:
        cell = line.get(dataset)
        if cell is None or cell.value is None:
            continue
        if before and before[1].value is not None and before[1].metric == cell.metric:
            line[dataset] = replace(
                cell, change=cell.value - before[1].value, regression=_regression(before, (place, cell), samples)
            )
        before = place, cell


def _regression(
    before: tuple[CheckpointPlace, ResultCell], after: tuple[CheckpointPlace, ResultCell], samples: int
) -> Regression | None:
    """The regression between two checkpoints; None if they are not two steps of one run, in their order."""
    steps = [place.step for place, _ in (before, after)]
    if before[0].run != after[0].run or steps[0] is None or steps[1] is None or steps[0] >= steps[1]:
        return None
    values = [cell.value or 0.0 for _, cell in (before, after)]
    pair = [Score(step=step or 0, value=value, samples=samples) for step, value in zip(steps, values, strict=True)]
    return find_regressions(pair, score_scale(after[1].metric, values)).get(steps[1])


@dataclass(frozen=True, kw_only=True)
class LaneSpan:
    """One phase in a lane of the chart, in seconds since the start of the campaign."""

    phase: str
    name: str
    begin_s: float
    end_s: float


def chart(campaign: Campaign, now: datetime) -> list[tuple[str, list[LaneSpan]]]:
    """Return the chart's lanes, sorted by name: one per GPU, one for the copies of each node, one for the metrics."""
    if campaign.started_at is None:
        return []
    lanes: dict[tuple[int, str], list[LaneSpan]] = defaultdict(list)
    for place, span in [*_trial_spans(campaign, now), *_copy_spans(campaign, now)]:
        lanes[place].append(span)
    return [(name, sorted(bars, key=lambda bar: bar.begin_s)) for (_, name), bars in sorted(lanes.items())]


LanePlacement = tuple[tuple[int, str], LaneSpan]


def _trial_spans(campaign: Campaign, now: datetime) -> list[LanePlacement]:
    rows = Trial.objects.filter(campaign=campaign, job__started_at__isnull=False).order_by("-id")[:MAX_CHART_BARS]
    trials = list(rows.select_related("job"))
    places = _gpus_by_job([trial.job_id for trial in trials])
    parts = _inferences_by_trial([trial.pk for trial in trials])
    busy = set(Shard.objects.filter(trial__in=[trial.pk for trial in trials]).values_list("trial_id", flat=True))
    spans: list[LanePlacement] = []
    for trial in trials:
        begin_s = (trial.job.started_at - campaign.started_at).total_seconds()
        end_s = ((trial.job.ended_at or now) - campaign.started_at).total_seconds()
        infers = trial.kind == TrialKind.INFER
        for place in places.get(trial.job_id, [""]) if infers else ["metrics"]:
            lane = (0 if infers else 2, place)
            phase = "trial" if infers else "score"
            spans.append((lane, LaneSpan(phase=phase, name=str(trial.job), begin_s=begin_s, end_s=end_s)))
            if infers:
                done = parts.get(trial.pk, [])
                for name, at, took in done:
                    spans.append(
                        (lane, LaneSpan(phase="infer", name=name, begin_s=begin_s + at - took, end_s=begin_s + at))
                    )
                if done and trial.pk in busy and trial.job.ended_at is None:
                    since_s = begin_s + max(at for _, at, _ in done)
                    spans.append((lane, LaneSpan(phase="infer", name="running", begin_s=since_s, end_s=end_s)))
    return spans


def _gpus_by_job(jobs: list[int]) -> dict[int, list[str]]:
    """Return the names of all GPUs that each job uses or has used."""
    names: dict[int, list[str]] = defaultdict(list)
    rows = Allocation.objects.filter(attempt__job__in=jobs, gpu__isnull=False).order_by("node__name", "gpu")
    for job, node, gpu in rows.values_list("attempt__job_id", "node__name", "gpu"):
        names[job].append(f"{node} GPU {gpu}")
    return names


def _inferences_by_trial(trials: list[int]) -> dict[int, list[tuple[str, float, float]]]:
    parts: dict[int, list[tuple[str, float, float]]] = defaultdict(list)
    rows = Shard.objects.filter(inferred_by__in=trials, infer_s__isnull=False)
    for trial, name, at, took in rows.values_list(
        "inferred_by", "evaluation__dataset__name", "inferred_at_s", "infer_s"
    ):
        parts[trial].append((name, at, took))
    return parts


def _copy_spans(campaign: Campaign, now: datetime) -> list[LanePlacement]:
    rows = Staging.objects.filter(
        cluster=campaign.cluster_id,
        team=campaign.team_id,
        checkpoint__in=campaign.checkpoints,
        created_at__gte=campaign.created_at,
        job__started_at__isnull=False,
    )
    return [
        (
            (1, f"{row.node} copies"),
            LaneSpan(
                phase="stage",
                name=row.checkpoint,
                begin_s=(row.job.started_at - campaign.started_at).total_seconds(),
                end_s=((row.job.ended_at or now) - campaign.started_at).total_seconds(),
            ),
        )
        for row in rows.select_related("job").order_by("id")[:MAX_CHART_BARS]
    ]
