"""The pages, settings and actions that the search offers besides rows of the database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.urls import reverse


@dataclass(frozen=True, kw_only=True)
class Destination:
    title: str
    detail: str  # shown beside the title, and searched too
    route: str = ""  # name of the URL pattern
    fragment: str = ""  # id of the element at which the page opens
    command: str = ""  # what a script of the page does instead of opening a URL
    words: str = ""  # further search terms
    kind: str = "page"
    permission: str = ""
    cluster: str = ""  # argument of the route

    @property
    def url(self) -> str:
        path = reverse(self.route, args=[self.cluster] if self.cluster else None) if self.route else ""
        return f"{path}#{self.fragment}" if self.fragment else path

    def matches(self, words: tuple[str, ...]) -> bool:
        known = f"{self.kind}s {self.title} {self.detail} {self.words}".lower()
        return all(word in known for word in words)


OPERATE = "jobs.operate_cluster"

ACTIONS = (
    Destination(
        kind="action", title="Submit a job", detail="Form with a preview", route="submit", words="sbatch new run start"
    ),
    Destination(
        kind="action",
        title="Drain a node",
        detail="Choose nodes, see who is affected",
        route="nodes",
        permission=OPERATE,
    ),
    Destination(
        kind="action",
        title="Run a what-if replay",
        detail="Compare policies on past or synthetic jobs",
        route="replays",
        words="simulate trace",
    ),
    Destination(
        kind="action",
        title="Create a token",
        detail="Access for programs",
        route="account",
        fragment="new-token",
        words="api key new",
    ),
    Destination(
        kind="action",
        title="Toggle theme",
        detail="Automatic, light, dark",
        fragment="theme",
        command="theme",
        words="dark mode light colors appearance",
    ),
    Destination(
        kind="action",
        title="Show keyboard shortcuts",
        detail="Also with ?",
        fragment="shortcuts",
        command="shortcuts",
        words="help keys",
    ),
)

SEARCHABLE_PAGES = (
    Destination(
        title="Now",
        detail="Key figures, what needs attention, trainings, queue",
        route="home",
        words="home exceptions dashboard capacity",
    ),
    Destination(title="Map", detail="All GPUs by rack", route="map", words="racks temperature utilization"),
    Destination(title="Jobs", detail="All jobs of your teams", route="jobs", words="squeue list"),
    Destination(
        title="Queue and policy",
        detail="Order, quotas, drains, maintenance",
        route="queue",
        words="priority backfill reservation fair share",
    ),
    Destination(
        title="Nodes", detail="State and health of every node", route="nodes", words="sinfo drain resume lemon"
    ),
    Destination(
        title="Failures", detail="Incidents and their causes", route="failures", words="mttf diagnosis root cause"
    ),
    Destination(
        title="Learned rules", detail="Log patterns and their causes", route="rules", words="signatures library"
    ),
    Destination(
        title="Health",
        detail="Loops that are late, errors, backlogs of Acme itself",
        route="health",
        words="liveness lag queue workers errors status",
    ),
    Destination(title="Diagnose a log", detail="Paste a log and see its cause", route="paste-log"),
    Destination(
        title="What if", detail="Replays under other policies", route="replays", words="simulate trace compare"
    ),
    Destination(
        title="Reports",
        detail="GPU-hours by team, user or month",
        route="reports",
        words="ledger goodput ettr waste idle cost export csv",
    ),
    Destination(
        title="Team usage",
        detail="GPU-hours per day, quota and fair share of your teams",
        route="team-usage",
        words="report decayed usage half-life borrowed share kind csv",
    ),
    Destination(
        title="Characterization",
        detail="Run times, waits, sizes, utilization and failures next to Seren and Kalos",
        route="characterization",
        words="report study cdf distribution duration queueing delay gpus mttf mttr plots svg csv acme trace",
    ),
    Destination(
        title="Evaluations",
        detail="Campaigns over checkpoints",
        route="campaigns",
        words="benchmarks datasets trials suite",
    ),
    Destination(
        title="Evaluation rules",
        detail="Evaluate new checkpoints of a directory",
        route="evaluation-rules",
        words="watch automatic",
    ),
    Destination(title="Glossary", detail="The terms on these pages", route="glossary", words="help definitions"),
    Destination(title="API reference", detail="REST API with examples", route="api-docs", words="openapi schema"),
    Destination(
        kind="setting", title="Teams", detail="Members, roles and titles", route="teams", words="users researchers"
    ),
    Destination(
        kind="setting",
        title="Clusters",
        detail="Address, token, control mode, price of a GPU-hour",
        route="clusters",
        words="slurm connection test observe advise drive",
        permission=OPERATE,
    ),
    Destination(
        kind="setting",
        title="Notifications",
        detail="Channels for alerts",
        route="channels",
        words="email webhook slack message",
    ),
    Destination(
        kind="setting",
        title="Recovery modes",
        detail="Which repairs run without approval",
        route="recovery-modes",
        words="observe propose act restart requeue drain",
    ),
    Destination(
        kind="setting",
        title="Model",
        detail="Language model for diagnoses",
        route="model",
        words="llm endpoint agent",
        permission=OPERATE,
    ),
    Destination(
        kind="setting", title="Account and tokens", detail="Your roles and API tokens", route="account", words="access"
    ),
    Destination(kind="setting", title="Password", detail="Change your password", route="password"),
)


def cluster_destinations(cluster: str) -> tuple[Destination, ...]:
    """Return what operators change on one cluster."""
    return (
        Destination(
            kind="setting",
            title=f"Scheduling policy of {cluster}",
            detail="Order, backfill, placement, priorities",
            route="policy",
            words="fair share aging overtaking wait priority point quotas reserved maximum",
            permission=OPERATE,
            cluster=cluster,
        ),
        Destination(
            kind="setting",
            title=f"Connection of {cluster}",
            detail="Address, token, control mode, prices, power budgets, speeds of GPU models",
            route="cluster",
            words="slurmrestd gpu-hour cost log checkpoint burn-in observe advise drive metrics power watts kw speed",
            permission=OPERATE,
            cluster=cluster,
        ),
        Destination(
            title=f"Sleeping nodes of {cluster}",
            detail="Nodes that are powered down, proposals",
            route="sleeping-nodes",
            words="power save suspend resume wake asleep energy",
            cluster=cluster,
        ),
        Destination(
            kind="action",
            title=f"Schedule maintenance of {cluster}",
            detail="Preview the impact first",
            route="maintenance-declare",
            words="window downtime drain",
            permission=OPERATE,
            cluster=cluster,
        ),
    )


def matching_destinations(user: Any, words: tuple[str, ...], clusters: Sequence[str] = ()) -> Iterator[Destination]:
    """Yield what matches all words and the user may open."""
    of_clusters = (one for name in clusters for one in cluster_destinations(name))
    for one in (*ACTIONS, *SEARCHABLE_PAGES, *of_clusters):
        if one.matches(words) and (not one.permission or user.has_perm(one.permission)):
            yield one
