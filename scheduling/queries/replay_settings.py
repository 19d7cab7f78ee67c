"""Settings of a replay that somebody requests: its limits, and what the trace itself or the cluster supplies."""

from __future__ import annotations

from typing import Any

from django.db.models import Max

from jobs.models import Node
from scheduling.replay import acme_trace, requests
from scheduling.replay.run import ReplaySetting

MAX_TRACE_JOBS = 700_000  # the whole of Seren
MAX_REPLAYED_JOBS = 2_000_000  # jobs times policies
MAX_HISTORY_DAYS = 366


def replay_setting(trace: str, params: dict[str, Any]) -> ReplaySetting:
    """What was asked, with what the trace itself says where nothing was. Raises BadSetting."""
    given = {name: params[name] for name in requests.SETTING_NAMES if name in params}
    if site := acme_trace.PUBLISHED_CLUSTERS.get(trace.removeprefix("acme:")):
        given.setdefault("nodes", site.nodes)
    elif trace == "history":
        given = _cluster_shape(params["cluster"]) | given
    return requests.replay_setting(
        **given, quotas=requests.quotas_from_rows(params["quota"]) if "quota" in params else ()
    )


def _cluster_shape(cluster: str) -> dict[str, int]:
    """What the cluster has: the replay's nodes are alike, so all get the GPUs of the largest."""
    nodes = Node.objects.filter(cluster__name=cluster, gpus__gt=0)
    most = nodes.aggregate(Max("gpus"))["gpus__max"]
    return {"nodes": nodes.count(), "gpus_per_node": most} if most else {}
