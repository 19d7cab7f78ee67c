"""Rows to the coordinator's Board: the one place where campaigns and the pure planner meet. Reads only."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from statistics import median

from django.db.models import Count, F, Max, Min, Q, Sum

from jobs.core.lifecycle import State
from jobs.models import Cluster, Job, Node
from scheduling.evaluation import priors
from scheduling.evaluation.coordinator import CampaignSnapshot, InferredShard, NodeSlots, RetryShard, UnassignedSamples
from scheduling.evaluation.priors import DatasetDescription, ShardMeasurement
from scheduling.evaluation.work import SliceCost
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

MAX_MEASURED_SHARDS = 3000  # newest shards of a team's datasets, for the priors
MAX_READY_TRIALS = 40  # newest trials, for how long one takes until it infers
HOST_GB_S = 10.0
FAILED_COPY_BACKOFF = timedelta(minutes=30)  # so long a node is left alone where a copy failed


def campaign_snapshot(campaign: Campaign, now: datetime) -> CampaignSnapshot:
    datasets = list(campaign.suite.datasets.all())
    gpu_model = most_common_gpu_model(campaign.cluster)
    seen = _shard_measurements(campaign)
    costs = _priced_datasets(campaign, datasets, seen, gpu_model)
    samples = {one.pk: one.samples for one in datasets}
    names = {one.pk: one.name for one in datasets}
    rates = {one.pk: _sample_cost(costs[one.name], one.samples) for one in datasets}
    parts = {one.pk: one.parts for one in datasets}
    staged, coming, failed = _copies_by_node(campaign, now)
    at_work = _checkpoint_by_node(campaign)
    return CampaignSnapshot(
        wanted=list(_unassigned_samples(campaign, samples, names, rates, parts, {one.dataset for one in seen})),
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
    campaign: Campaign, datasets: Sequence[SuiteDataset], seen: Sequence[ShardMeasurement], gpu_model: str
) -> dict[str, SliceCost]:
    known = [DatasetDescription(name=d.name, samples=d.samples, infer_s=d.infer_s, score_s=d.score_s) for d in datasets]
    return priors.expected_costs(known, seen, gpu_model, campaign.weights_gb)


def most_common_gpu_model(cluster: Cluster) -> str:
    """Of its GPUs, the most common one."""
    rows = Node.objects.filter(cluster=cluster, gpus__gt=0).order_by().values_list("gpu_model")
    first = rows.annotate(count=Count("pk")).order_by("-count", "gpu_model").first()
    return first[0] if first else ""


def slots_per_node(campaign: Campaign) -> int:
    """How many trials fit on the largest node when it is empty."""
    nodes = Node.objects.filter(cluster=campaign.cluster)
    most = nodes.aggregate(gpus=Max("gpus"), cpus=Max("cpus"))
    by_cpu = (most["cpus"] or 0) // campaign.suite.cpus
    return max(1, (most["gpus"] or 0) // campaign.suite.gpus if campaign.suite.gpus else by_cpu)


def time_to_inference_s(campaign: Campaign) -> float:
    """Until a trial infers: what the team's newest ones took there; before any did, the framework's start and a load
    from the host's memory."""
    alike = Trial.objects.filter(
        kind=TrialKind.INFER,
        campaign__team=campaign.team_id,
        campaign__cluster=campaign.cluster_id,
        campaign__suite__name=campaign.suite.name,
        campaign__weights_gb=campaign.weights_gb,
    )
    newest = list(alike.order_by("-id").values_list("pk", flat=True)[:MAX_READY_TRIALS])
    first = Shard.objects.filter(inferred_by__in=newest, infer_s__isnull=False).order_by().values("inferred_by")
    took = first.annotate(ready=Min(F("inferred_at_s") - F("infer_s"))).values_list("ready", flat=True)
    told = [seconds for seconds in took if seconds is not None and seconds > 0]
    return median(told) if told else priors.phases().start + campaign.weights_gb / HOST_GB_S


def _shard_measurements(campaign: Campaign) -> list[ShardMeasurement]:
    """The newest first: of the team's shards of suites of that name, whatever the version."""
    rows = Shard.objects.filter(
        evaluation__campaign__team=campaign.team_id,
        evaluation__dataset__suite__name=campaign.suite.name,
        infer_s__isnull=False,
    )
    columns = ("evaluation__dataset__name", "evaluation__campaign__weights_gb", "samples", "infer_s", "score_s")
    model = most_common_gpu_model(campaign.cluster)
    there = rows.filter(evaluation__campaign__cluster=campaign.cluster_id)
    return [
        ShardMeasurement(
            dataset=name, gpu_model=model, weights_gb=gb, samples=samples, infer_s=infer_s, score_s=score_s
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
    """Not of an evaluation that has failed in part: the rest of it would be for nothing."""
    rows = Evaluation.objects.filter(campaign=campaign, state__in=OPEN_CAMPAIGN_STATES).annotate(
        cut=Count("shards"), failed=Count("shards", filter=Q(shards__state=ShardState.FAILED))
    )
    found = rows.filter(failed=0).order_by("id").values_list("pk", "checkpoint", "dataset_id", "given", "cut")
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
        for pk, checkpoint, dataset, given, cut in found
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
    """Node → what is there, what is on its way (or going away: it cannot be used); nodes where a copy failed lately."""
    there: dict[str, set[str]] = defaultdict(set)
    coming: dict[str, set[str]] = defaultdict(set)
    failed = set()
    rows = Staging.objects.filter(cluster=campaign.cluster, team=campaign.team, checkpoint__in=campaign.checkpoints)
    lately = Q(state=StagingState.FAILED, moved_at__gt=now - FAILED_COPY_BACKOFF, created_at__gt=campaign.created_at)
    states = Q(state__in=(StagingState.COPYING, StagingState.READY, StagingState.REMOVING))
    for node, checkpoint, state in rows.filter(states | lately).values_list("node", "checkpoint", "state"):
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
    """Node → the checkpoint of its newest trial."""
    rows = Trial.objects.filter(campaign=campaign, ended_at=None, kind=TrialKind.INFER).order_by("id")
    return dict(rows.values_list("job__on_node", "checkpoint"))


def _node_slots(campaign: Campaign, at_work: Mapping[str, str], failed: set[str]) -> list[NodeSlots]:
    """How many trials would fit on each node beside what holds it, and what is on its way there."""
    cluster, suite = campaign.cluster, campaign.suite
    held, _ = snapshot.usage_by_node(cluster)
    coming = _pinned_resources(cluster)
    ours = Counter(
        Trial.objects.filter(campaign=campaign, ended_at=None, kind=TrialKind.INFER).values_list(
            "job__on_node", flat=True
        )
    )
    rooms = []
    for node in Node.objects.filter(cluster=cluster, gpus__gte=suite.gpus):
        if not node.takes_work or node.name in failed:
            continue
        on, (gpus, cpus, memory_mb) = held[node.pk], coming.get(node.name, (0, 0, 0))
        taken = len(on.gpus.union(node.foreign_gpus))
        slots = min(
            (node.gpus - taken - gpus) // suite.gpus if suite.gpus else node.cpus,
            (node.cpus - on.cpus - cpus) // suite.cpus,
            (node.memory_mb - on.memory_mb - memory_mb) // suite.memory_mb if suite.memory_mb else 10**6,
        )
        rooms.append(NodeSlots(name=node.name, slots=max(0, slots), ours=ours[node.name]))
    return rooms


def _pinned_resources(cluster: Cluster) -> dict[str, tuple[int, int, int]]:
    """What waits for its node and will take GPUs, CPUs and memory there."""
    rows = Job.objects.filter(cluster=cluster, state=State.PENDING).exclude(on_node="").order_by()
    sums = (Sum("gpus_per_node"), Sum("cpus_per_node"), Sum("memory_per_node_mb"))
    return {
        node: (gpus, cpus, mb)
        for node, gpus, cpus, mb in rows.values("on_node")
        .annotate(*sums)
        .values_list("on_node", *(f"{name}__sum" for name in ("gpus_per_node", "cpus_per_node", "memory_per_node_mb")))
    }
