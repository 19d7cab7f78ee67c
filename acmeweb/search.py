"""One box for everything: jobs, nodes, people, teams, incidents and pages, as far as the asker may see them.

Each kind costs one short statement, whatever the history: ids by their index, names among the newest `LATEST` jobs of
the asker's teams. The page works without a script; the dialog of Ctrl-K asks for its fragment.
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

from failures import rights
from failures.models.diagnosis import look
from jobs.models import Cluster, Job, Node, Team
from jobs.pages import answer
from jobs.rights import Caller

MOST_OF_A_KIND = 6
LATEST = 20_000
LONGEST = 120


@dataclass(frozen=True, kw_only=True)
class Found:
    kind: str
    title: str
    says: str
    url: str


@dataclass(frozen=True, kw_only=True)
class Page:
    title: str
    name: str  # of its address
    words: str = ""  # by which people look for it
    needs: str = ""


PAGES = (
    Page(title="Now", name="home", words="home exceptions dashboard"),
    Page(title="Map", name="map", words="gpus racks temperature utilisation"),
    Page(title="Jobs", name="jobs", words="squeue list"),
    Page(title="Submit a job", name="submit", words="sbatch new run"),
    Page(title="Queue and policy", name="queue", words="order quotas priority backfill drains maintenance reservation"),
    Page(title="Nodes", name="nodes", words="sinfo drain resume"),
    Page(title="Failures", name="failures", words="incidents mttf causes"),
    Page(title="Learned rules", name="rules", words="signatures library"),
    Page(title="Diagnose a log", name="paste-log", words="paste"),
    Page(title="What if", name="replays", words="simulate replay trace compare"),
    Page(title="Reports", name="reports", words="ledger gpu-hours goodput ettr waste idle month"),
    Page(title="Evaluations", name="campaigns", words="campaigns benchmarks datasets checkpoints trials"),
    Page(title="Evaluation rules", name="evaluation-rules", words="watch directory new checkpoints automatic"),
    Page(title="Teams", name="teams", words="settings members roles"),
    Page(title="Clusters", name="clusters", words="settings slurm connection test", needs="jobs.operate_cluster"),
    Page(title="Notifications", name="channels", words="settings channels email webhook slack alerts"),
    Page(title="Recovery modes", name="recovery-modes", words="settings observe propose act restart"),
    Page(title="Model", name="model", words="settings llm endpoint agent", needs="jobs.operate_cluster"),
    Page(title="Your account and tokens", name="account", words="settings password api token"),
    Page(title="API reference", name="api-docs", words="rest openapi schema"),
)


@require_safe
def search(request: HttpRequest) -> HttpResponse:
    text = request.GET.get("q", "").replace("\x00", "").strip()[:LONGEST]
    context = {"q": text, "found": list(found(request, text))}
    return answer(request, "search.html", context, {"found": "_found.html"})


def found(request: HttpRequest, text: str) -> Iterator[Found]:
    """What is written out in full first."""
    caller = Caller(user=request.user)
    if text:
        yield from _jobs(caller, text)
        yield from _nodes(text)
        yield from _people(request, caller, text)
        yield from _places(request, text)
        yield from _incidents(caller, text)
    yield from _pages(request, text)


def _jobs(caller: Caller, text: str) -> Iterable[Found]:
    rows = caller.jobs().select_related("user", "team").defer("command", "environment", "labels", "comment")
    by_id = list(rows.filter(public_id__startswith=text.lower()).order_by("-pk")[:MOST_OF_A_KIND])
    newest = caller.jobs().order_by("-pk").values("pk")[:LATEST]
    named = rows.filter(pk__in=newest, name__icontains=text).order_by("-pk")[:MOST_OF_A_KIND]
    jobs: dict[int, Job] = {job.pk: job for job in (*by_id, *named)}
    return [
        Found(
            kind="job",
            title=job.name,
            says=f"{job.public_id} {job.badge.label}, {job.owner_name} in {job.team.name}",
            url=reverse("job", args=[job.public_id]),
        )
        for job in list(jobs.values())[:MOST_OF_A_KIND]
    ]


def _nodes(text: str) -> Iterable[Found]:
    rows = Node.objects.filter(name__icontains=text).select_related("cluster").order_by("name")[:MOST_OF_A_KIND]
    return [
        Found(
            kind="node",
            title=node.name,
            says=f"{node.badge.label}, {node.gpus} GPUs of {node.cluster}",
            url=reverse("node", args=[node.cluster.name, node.name]),
        )
        for node in rows
    ]


def _people(request: HttpRequest, caller: Caller, text: str) -> Iterable[Found]:
    """Those with whom the asker shares a team; whoever runs the site knows everybody."""
    rows = get_user_model().objects.filter(
        Q(username__icontains=text) | Q(first_name__icontains=text) | Q(last_name__icontains=text)
    )
    if not caller.everywhere:
        rows = rows.filter(memberships__team__in=sorted(caller.roles))
    return [
        Found(
            kind="user",
            title=one.get_username(),
            says=one.get_full_name() or "jobs of theirs",
            url=f"{reverse('jobs')}?{urlencode({'user': one.get_username()})}",
        )
        for one in rows.order_by("username").distinct()[:MOST_OF_A_KIND]
    ]


def _places(request: HttpRequest, text: str) -> Iterable[Found]:
    for team in Team.objects.where(request.user).filter(name__icontains=text).distinct()[:MOST_OF_A_KIND]:
        yield Found(kind="team", title=team.name, says=team.title, url=reverse("team", args=[team.name]))
    for cluster in Cluster.objects.filter(name__icontains=text)[:MOST_OF_A_KIND]:
        url = f"{reverse('queue')}?{urlencode({'cluster': cluster.name})}"
        yield Found(kind="cluster", title=cluster.name, says=cluster.title, url=url)


def _incidents(caller: Caller, text: str) -> Iterable[Found]:
    asked = Q(root_cause__icontains=text) | Q(subject__icontains=text)
    number = text.removeprefix("#")
    if number.isascii() and number.isdecimal() and len(number) < 18:
        asked |= Q(pk=int(number))
    rows = rights.incidents(caller).filter(asked).select_related("cluster").order_by("-pk")[:MOST_OF_A_KIND]
    return [
        Found(
            kind="incident",
            title=f"Incident {one.pk}: {look(one.root_cause, one.category).label}",
            says=f"{one.state}, {one.cluster}{f', {one.subject}' if one.scope == 'node' else ''}",
            url=reverse("incident", args=[one.pk]),
        )
        for one in rows
    ]


def _pages(request: HttpRequest, text: str) -> Iterable[Found]:
    words = text.lower().split()
    for page in PAGES:
        known = f"{page.title} {page.words}".lower()
        if all(word in known for word in words) and (not page.needs or request.user.has_perm(page.needs)):
            yield Found(kind="page", title=page.title, says="", url=reverse(page.name))
