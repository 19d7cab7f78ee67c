"""Builds the coordinator's CampaignSnapshot from the database. Reads only."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from statistics import median

from django.db.models import Count, F, Max, Min, Q, Sum

from jobs.core.lifecycle import State
from jobs.models import Cluster, Job, Node
from scheduling.evaluation.rules import priors
from scheduling.evaluation.rules.coordinator import (
    CampaignSnapshot,
    InferredShard,
    NodeSlots,
    RetryShard,
    UnassignedSamples,
)
from scheduling.evaluation.rules.priors import DatasetDescription, ShardMeasurement
from scheduling.evaluation.rules.work import SliceCost
from scheduling.models import (
    OPEN_CAMPAIGN_STATES,
    Campaign,
    Evaluation,
    Shard,
    ShardState,
    Staging,
    StagingState,
    SuiteDataset,
    Trial,
    TrialKind,
)
from scheduling.queries import snapshot

MAX_MEASURED_SHARDS = 3000  # the newest shards of a team's datasets, to estimate costs
MAX_READY_TRIALS = 40  # the newest trials, to estimate the time to inference
HOST_GB_S = 10.0
FAILED_COPY_BACKOFF = timedelta(minutes=30)  # a node gets no copies for this time after one failed


def campaign_snapshot(campaign: Campaign, now: datetime) -> CampaignSnapshot:
    datasets = list(campaign.suite.datasets.all())
    gpu_model = most_common_gpu_model(campaign.cluster)
    measurements = _shard_measurements(campaign)
    costs = _priced_datasets(campaign, datasets, measurements, gpu_model)
    samples = {dataset.pk: dataset.samples for dataset in datasets}
    names = {dataset.pk: dataset.name for dataset in datasets}
    rates = {dataset.pk: _sample_cost(costs[dataset.name], dataset.samples) for dataset in datasets}
    parts = {dataset.pk: dataset.parts for dataset in datasets}
    measured = {measurement.dataset for measurement in measurements}
    staged, coming, failed = _copies_by_node(campaign, now)
    at_work = _checkpoint_by_node(campaign)
    return CampaignSnapshot(
        wanted=list(_unassigned_samples(campaign, samples, names, rates, parts, measured)),
        loose=list(_retry_shards(campaign, names, rates)),
        nodes=_node_slots(campaign, at_work, failed),
        staged=staged,
        coming=coming,
        at_work=at_work,
        most_nodes=campaign.nodes or 1,
        slots_per_node=slots_per_node(campaign),
        stages=bool(campaign.suite.stage_root),
        ready_s=time_to_inference_s(campaign),
        inferred=list(_inferred_shards(campaign, rates)),
        scoring=Trial.objects.filter(campaign=campaign, ended_at=None, kind=TrialKind.SCORE).count(),
        most_scoring=campaign.suite.metric_jobs,
    )


def campaign_costs(campaign: Campaign, datasets: Sequence[SuiteDataset], gpu_model: str) -> dict[str, SliceCost]:
    return _priced_datasets(campaign, datasets, _shard_measurements(campaign), gpu_model)


def _priced_datasets(
    campaign: Campaign, datasets: Sequence[SuiteDataset], measurements: Sequence[ShardMeasurement], gpu_model: str
) -> dict[str, SliceCost]:
    described = [
        DatasetDescription(name=row.name, samples=row.samples, infer_s=row.infer_s, score_s=row.score_s)
        for row in datasets
    ]
    return priors.expected_costs(described, measurements, gpu_model, campaign.checkpoint_gb)


def most_common_gpu_model(cluster: Cluster) -> str:
    """Return the most common GPU model of the cluster, or an empty string."""
    rows = Node.objects.filter(cluster=cluster, gpus__gt=0).order_by().values_list("gpu_model")
    first = rows.annotate(count=Count("pk")).order_by("-count", "gpu_model").first()
    return first[0] if first else ""


def slots_per_node(campaign: Campaign) -> int:
    """Return how many trials fit on the largest node if it is empty."""
    nodes = Node.objects.filter(cluster=campaign.cluster)
    if campaign.suite.gpus:
        return max(1, nodes.most_whole_gpus() // campaign.suite.gpus)
    return max(1, (nodes.aggregate(most=Max("cpus"))["most"] or 0) // campaign.suite.cpus)


def time_to_inference_s(campaign: Campaign) -> float:
    """Return the time from the start of a trial to its first inference: the median of the team's newest trials on this
    cluster. Before there are any, the framework's start time plus loading the checkpoint from the host's memory."""
    alike = Trial.objects.filter(
        kind=TrialKind.INFER,
        campaign__team=campaign.team_id,
        campaign__cluster=campaign.cluster_id,
        campaign__suite__name=campaign.suite.name,
        campaign__checkpoint_gb=campaign.checkpoint_gb,
    )
    newest = list(alike.order_by("-id").values_list("pk", flat=True)[:MAX_READY_TRIALS])
    shards = Shard.objects.filter(inferred_by__in=newest, infer_s__isnull=False).order_by().values("inferred_by")
    ready = shards.annotate(ready=Min(F("inferred_at_s") - F("infer_s"))).values_list("ready", flat=True)
    times = [seconds for seconds in ready if seconds is not None and seconds > 0]
    return median(times) if times else priors.phases().start + campaign.checkpoint_gb / HOST_GB_S


def _shard_measurements(campaign: Campaign) -> list[ShardMeasurement]:
    """Return the newest measured shards of the team, for all versions of the suite on this cluster."""
    rows = Shard.objects.filter(
        evaluation__campaign__team=campaign.team_id,
        evaluation__dataset__suite__name=campaign.suite.name,
        infer_s__isnull=False,
    )
    columns = ("evaluation__dataset__name", "evaluation__campaign__checkpoint_gb", "samples", "infer_s", "score_s")
    model = most_common_gpu_model(campaign.cluster)
    there = rows.filter(evaluation__campaign__cluster=campaign.cluster_id)
    return [
        ShardMeasurement(
            dataset=name, gpu_model=model, checkpoint_gb=gb, samples=samples, infer_s=infer_s, score_s=score_s
        )
        for name, gb, samples, infer_s, score_s in there.order_by("-id").values_list(*columns)[:MAX_MEASURED_SHARDS]
    ]


def _sample_cost(cost: SliceCost, samples: int) -> SliceCost:
    return cost.times(1 / samples)


def _unassigned_samples(
    campaign: Campaign,
    samples: Mapping[int, int],
    names: Mapping[int, str],
    rates: Mapping[int, SliceCost],
    parts: Mapping[int, int],
    measured: Collection[str],
) -> list[UnassignedSamples]:
    """Return the samples that are in no shard yet. Evaluations with a failed shard are skipped, because they fail
    anyway."""
    rows = Evaluation.objects.filter(campaign=campaign, state__in=OPEN_CAMPAIGN_STATES).annotate(
        cut=Count("shards"), failed=Count("shards", filter=Q(shards__state=ShardState.FAILED))
    )
    evaluations = rows.filter(failed=0).order_by("id").values_list("pk", "checkpoint", "dataset_id", "given", "cut")
    return [
        UnassignedSamples(
            evaluation=pk,
            checkpoint=checkpoint,
            dataset=names[dataset],
            start=given,
            samples=samples[dataset] - given,
            cost=rates[dataset].times(samples[dataset] - given),
            parts=max(1, parts[dataset] - cut),
            is_measured=names[dataset] in measured,
            begun=given > 0,
        )
        for pk, checkpoint, dataset, given, cut in evaluations
        if given < samples[dataset]
    ]


def _retry_shards(campaign: Campaign, names: Mapping[int, str], rates: Mapping[int, SliceCost]) -> list[RetryShard]:
    rows = Shard.objects.filter(evaluation__campaign=campaign, state=ShardState.WAITING, trial=None).order_by("id")
    columns = ("pk", "evaluation_id", "evaluation__checkpoint", "evaluation__dataset_id", "start", "samples")
    return [
        RetryShard(
            shard=pk,
            evaluation=evaluation,
            checkpoint=checkpoint,
            dataset=names[dataset],
            start=start,
            samples=samples,
            cost=rates[dataset].times(samples),
        )
        for pk, evaluation, checkpoint, dataset, start, samples in rows.values_list(*columns)
    ]


def _inferred_shards(campaign: Campaign, rates: Mapping[int, SliceCost]) -> list[InferredShard]:
    rows = Shard.objects.filter(evaluation__campaign=campaign, state=ShardState.INFERRED, trial=None).order_by("id")
    columns = ("pk", "evaluation__checkpoint", "evaluation__dataset_id", "samples")
    return [
        InferredShard(shard=pk, checkpoint=checkpoint, score_s=rates[dataset].score * samples)
        for pk, checkpoint, dataset, samples in rows.values_list(*columns)
    ]


Copies = tuple[dict[str, frozenset[str]], dict[str, frozenset[str]], set[str]]


def _copies_by_node(campaign: Campaign, now: datetime) -> Copies:
    """Return the usable copies by node, those being made or removed by node, and the nodes where a copy failed
    recently."""
    there: dict[str, set[str]] = defaultdict(set)
    coming: dict[str, set[str]] = defaultdict(set)
    failed = set()
    rows = Staging.objects.filter(cluster=campaign.cluster, team=campaign.team, checkpoint__in=campaign.checkpoints)
    recent = Q(state=StagingState.FAILED, moved_at__gt=now - FAILED_COPY_BACKOFF, created_at__gt=campaign.created_at)
    states = Q(state__in=(StagingState.COPYING, StagingState.READY, StagingState.REMOVING))
    for node, checkpoint, state in rows.filter(states | recent).values_list("node", "checkpoint", "state"):
        if state == StagingState.FAILED:
            failed.add(node)
        else:
            (there if state == StagingState.READY else coming)[node].add(checkpoint)
    return (
        {node: frozenset(names) for node, names in there.items()},
        {node: frozenset(names) for node, names in coming.items()},
        failed,
    )


def _checkpoint_by_node(campaign: Campaign) -> dict[str, str]:
    """Return the checkpoint of the newest trial by node."""
    rows = Trial.objects.filter(campaign=campaign, ended_at=None, kind=TrialKind.INFER).order_by("id")
    return dict(rows.values_list("job__required_node", "checkpoint"))


def _node_slots(campaign: Campaign, at_work: Mapping[str, str], failed: set[str]) -> list[NodeSlots]:
    """Return how many more trials fit on each node, beside running jobs and pending jobs pinned to the node."""
    cluster, suite = campaign.cluster, campaign.suite
    held, _ = snapshot.usage_by_node(cluster)
    coming = _pinned_resources(cluster)
    ours = Counter(
        Trial.objects.filter(campaign=campaign, ended_at=None, kind=TrialKind.INFER).values_list(
            "job__required_node", flat=True
        )
    )
    rooms = []
    for node in Node.objects.filter(cluster=cluster, gpus__gte=suite.gpus):
        if not node.is_schedulable or node.name in failed:
            continue
        on, (gpus, cpus, memory_mb) = held[node.pk], coming.get(node.name, (0, 0, 0))
        taken = sum(gpu < node.whole_gpus for gpu in on.gpus.union(node.foreign_gpus))
        slots = min(
            (node.whole_gpus - taken - gpus) // suite.gpus if suite.gpus else node.cpus,
            (node.cpus - on.cpus - cpus) // suite.cpus,
            (node.memory_mb - on.memory_mb - memory_mb) // suite.memory_mb if suite.memory_mb else 10**6,
        )
        rooms.append(NodeSlots(name=node.name, slots=max(0, slots), ours=ours[node.name]))
    return rooms


def _pinned_resources(cluster: Cluster) -> dict[str, tuple[int, int, int]]:
    """Return the GPUs, CPUs and memory by node that pending jobs pinned to the node will use."""
    rows = Job.objects.filter(cluster=cluster, state=State.PENDING).exclude(required_node="").order_by()
    sums = (Sum("gpus_per_node"), Sum("cpus_per_node"), Sum("memory_per_node_mb"))
    return {
        node: (gpus, cpus, mb)
        for node, gpus, cpus, mb in rows.values("required_node")
        .annotate(*sums)
        .values_list(
            "required_node", *(f"{name}__sum" for name in ("gpus_per_node", "cpus_per_node", "memory_per_node_mb"))
        )
    }
