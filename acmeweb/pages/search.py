"""Search over jobs, nodes, users, teams, incidents and pages, limited to what the user may see.

Each kind costs one short query, however long the history: ids use their index, names are searched among the newest
`MAX_JOBS_SEARCHED` jobs of the user's teams. The page works without JavaScript; the Ctrl-K dialog loads its fragment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from django.contrib.auth import get_user_model
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_safe

from failures.models import permissions as failure_permissions
from failures.models.diagnosis import category_badge
from jobs.models import Cluster, Job, Node, Team
from jobs.models.permissions import Caller
from jobs.web.page import render_page

MAX_RESULTS_PER_KIND = 6
MAX_JOBS_SEARCHED = 20_000
MAX_QUERY_LENGTH = 120


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    kind: str
    title: str
    detail: str
    url: str


@dataclass(frozen=True, kw_only=True)
class SearchablePage:
    title: str
    name: str  # of its URL pattern
    words: str = ""  # further search terms
    needs: str = ""


SEARCHABLE_PAGES = (
    SearchablePage(title="Now", name="home", words="home exceptions dashboard"),
    SearchablePage(title="Map", name="map", words="gpus racks temperature utilization"),
    SearchablePage(title="Jobs", name="jobs", words="squeue list"),
    SearchablePage(title="Submit a job", name="submit", words="sbatch new run"),
    SearchablePage(
        title="Queue and policy", name="queue", words="order quotas priority backfill drains maintenance reservation"
    ),
    SearchablePage(title="Nodes", name="nodes", words="sinfo drain resume"),
    SearchablePage(title="Failures", name="failures", words="incidents mttf causes"),
    SearchablePage(title="Learned rules", name="rules", words="signatures library"),
    SearchablePage(title="Diagnose a log", name="paste-log", words="paste"),
    SearchablePage(title="Glossary", name="glossary", words="help terms definitions"),
    SearchablePage(title="What if", name="replays", words="simulate replay trace compare"),
    SearchablePage(title="Reports", name="reports", words="ledger gpu-hours goodput ettr waste idle month"),
    SearchablePage(title="Evaluations", name="campaigns", words="campaigns benchmarks datasets checkpoints trials"),
    SearchablePage(
        title="Evaluation rules", name="evaluation-rules", words="watch directory new checkpoints automatic"
    ),
    SearchablePage(title="Teams", name="teams", words="settings members roles"),
    SearchablePage(
        title="Clusters", name="clusters", words="settings slurm connection test", needs="jobs.operate_cluster"
    ),
    SearchablePage(title="Notifications", name="channels", words="settings channels email webhook slack alerts"),
    SearchablePage(title="Recovery modes", name="recovery-modes", words="settings observe propose act restart"),
    SearchablePage(title="Model", name="model", words="settings llm endpoint agent", needs="jobs.operate_cluster"),
    SearchablePage(title="Your account and tokens", name="account", words="settings password api token"),
    SearchablePage(title="API reference", name="api-docs", words="rest openapi schema"),
)


@require_safe
def search_page(request: HttpRequest) -> HttpResponse:
    text = request.GET.get("q", "").replace("\x00", "").strip()[:MAX_QUERY_LENGTH]
    context = {"q": text, "results": list(search_results(request, text))}
    return render_page(request, "search.html", context, {"found": "_found.html"})


def search_results(request: HttpRequest, text: str) -> Iterator[SearchResult]:
    """Yield the results of all kinds; rows of the database come before pages."""
    caller = Caller(user=request.user)
    if text:
        yield from _job_results(caller, text)
        yield from _node_results(text)
        yield from _user_results(request, caller, text)
        yield from _team_and_cluster_results(request, text)
        yield from _incident_results(caller, text)
    yield from _page_results(request, text)


def _job_results(caller: Caller, text: str) -> Iterable[SearchResult]:
    rows = caller.jobs().select_related("user", "team").defer("command", "environment", "labels", "comment")
    by_id = list(rows.filter(public_id__startswith=text.lower()).order_by("-pk")[:MAX_RESULTS_PER_KIND])
    newest = caller.jobs().order_by("-pk").values("pk")[:MAX_JOBS_SEARCHED]
    named = rows.filter(pk__in=newest, name__icontains=text).order_by("-pk")[:MAX_RESULTS_PER_KIND]
    jobs: dict[int, Job] = {job.pk: job for job in (*by_id, *named)}
    return [
        SearchResult(
            kind="job",
            title=job.name,
            detail=f"{job.public_id} {job.badge.label}, {job.owner_name} in {job.team.name}",
            url=reverse("job", args=[job.public_id]),
        )
        for job in list(jobs.values())[:MAX_RESULTS_PER_KIND]
    ]


def _node_results(text: str) -> Iterable[SearchResult]:
    rows = Node.objects.filter(name__icontains=text).select_related("cluster").order_by("name")[:MAX_RESULTS_PER_KIND]
    return [
        SearchResult(
            kind="node",
            title=node.name,
            detail=f"{node.badge.label}, {node.gpus} GPUs of {node.cluster}",
            url=reverse("node", args=[node.cluster.name, node.name]),
        )
        for node in rows
    ]


def _user_results(request: HttpRequest, caller: Caller, text: str) -> Iterable[SearchResult]:
    """Yield users who share a team with the caller; site administrators find all users."""
    rows = get_user_model().objects.filter(
        Q(username__icontains=text) | Q(first_name__icontains=text) | Q(last_name__icontains=text)
    )
    if not caller.is_site_admin:
        rows = rows.filter(memberships__team__in=sorted(caller.roles))
    return [
        SearchResult(
            kind="user",
            title=user.get_username(),
            detail=user.get_full_name() or "jobs of this user",
            url=f"{reverse('jobs')}?{urlencode({'user': user.get_username()})}",
        )
        for user in rows.order_by("username").distinct()[:MAX_RESULTS_PER_KIND]
    ]


def _team_and_cluster_results(request: HttpRequest, text: str) -> Iterable[SearchResult]:
    for team in Team.objects.where(request.user).filter(name__icontains=text).distinct()[:MAX_RESULTS_PER_KIND]:
        yield SearchResult(kind="team", title=team.name, detail=team.title, url=reverse("team", args=[team.name]))
    for cluster in Cluster.objects.filter(name__icontains=text)[:MAX_RESULTS_PER_KIND]:
        url = f"{reverse('queue')}?{urlencode({'cluster': cluster.name})}"
        yield SearchResult(kind="cluster", title=cluster.name, detail=cluster.title, url=url)


def _incident_results(caller: Caller, text: str) -> Iterable[SearchResult]:
    condition = Q(root_cause__icontains=text) | Q(subject__icontains=text)
    number = text.removeprefix("#")
    if number.isascii() and number.isdecimal() and len(number) < 18:
        condition |= Q(pk=int(number))
    rows = (
        failure_permissions.visible_incidents(caller)
        .filter(condition)
        .select_related("cluster")
        .order_by("-pk")[:MAX_RESULTS_PER_KIND]
    )
    return [
        SearchResult(
            kind="incident",
            title=f"Incident {row.pk}: {category_badge(row.root_cause, row.category).label}",
            detail=f"{row.state}, {row.cluster}{f', {row.subject}' if row.scope == 'node' else ''}",
            url=reverse("incident", args=[row.pk]),
        )
        for row in rows
    ]


def _page_results(request: HttpRequest, text: str) -> Iterable[SearchResult]:
    words = text.lower().split()
    for page in SEARCHABLE_PAGES:
        known = f"{page.title} {page.words}".lower()
        if all(word in known for word in words) and (not page.needs or request.user.has_perm(page.needs)):
            yield SearchResult(kind="page", title=page.title, detail="", url=reverse(page.name))
