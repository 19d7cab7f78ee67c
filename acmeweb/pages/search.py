"""Search over jobs, nodes, users, teams, clusters, incidents, campaigns, terms, and the pages, settings and actions
that the user may use.

A query matches if each of its words is part of the name. The name of a kind may be among the words: "incident 26".
Each kind costs one short query, however long the history: ids use their index, names are searched among the newest
`MAX_JOBS_SEARCHED` jobs of the user's teams. The page works without JavaScript; the Ctrl-K dialog loads its fragment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from django.contrib.auth import get_user_model
from django.db.models import Case, Q, When
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_safe

from acmeweb.glossary import TERMS
from acmeweb.pages.search_destinations import Destination, matching_destinations
from failures.models import permissions as failure_permissions
from failures.models.diagnosis import category_badge
from jobs.models import Cluster, Job, Node, Team
from jobs.models.permissions import Caller
from jobs.web.page import render_page
from scheduling.evaluation.reads.campaigns import campaigns

MAX_RESULTS_PER_KIND = 6
MAX_JOBS_SEARCHED = 20_000
MAX_QUERY_LENGTH = 120
MAX_WORDS = 8
MAX_CLUSTERS = 20  # whose settings are searched


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    kind: str
    title: str
    detail: str
    url: str
    command: str = ""


@dataclass(frozen=True)
class SearchQuery:
    text: str

    @cached_property
    def words(self) -> tuple[str, ...]:
        return tuple(self.text.lower().split()[:MAX_WORDS])

    def words_for(self, kind: str) -> tuple[str, ...]:
        """The words without the name of the kind: "26" of "incident 26". None are left if only the kind was named."""
        return tuple(word for word in self.words if word not in (kind, f"{kind}s"))

    def condition(self, kind: str, *fields: str) -> Q:
        """Return the condition that each word is part of one of the fields."""
        matched = Q()
        for word in self.words_for(kind):
            any_field = Q()
            for field in fields:
                any_field |= Q(**{f"{field}__icontains": word})
            matched &= any_field
        return matched

    def begins(self, title: str) -> bool:
        return bool(self.text) and title.lower().startswith(self.text.lower())


@require_safe
def search_page(request: HttpRequest) -> HttpResponse:
    text = request.GET.get("q", "").replace("\x00", "").strip()[:MAX_QUERY_LENGTH]
    context = {"q": text, "results": list(search_results(request, text))}
    return render_page(request, "search.html", context, {"found": "_found.html"})


def search_results(request: HttpRequest, text: str) -> Iterator[SearchResult]:
    """Yield actions and pages whose titles begin with the text, then rows of the database, then the other pages."""
    query, caller = SearchQuery(text), Caller(user=request.user)
    names = list(Cluster.objects.values_list("name", flat=True)[:MAX_CLUSTERS]) if query.words else []
    destinations = list(matching_destinations(request.user, query.words, names))
    yield from (_destination_result(one) for one in destinations if query.begins(one.title))
    if query.words:
        yield from _drain_results(caller, query)
        yield from _incident_results(caller, query)
        yield from _job_results(caller, query)
        yield from _node_results(query)
        yield from _user_results(request, caller, query)
        yield from _team_and_cluster_results(request, query)
        yield from _campaign_results(caller, query)
        yield from _term_results(query)
    yield from (_destination_result(one) for one in destinations if not query.begins(one.title))


def _destination_result(one: Destination) -> SearchResult:
    return SearchResult(kind=one.kind, title=one.title, detail=one.detail, url=one.url, command=one.command)


def _drain_results(caller: Caller, query: SearchQuery) -> Iterable[SearchResult]:
    """Yield the drain dialogs of the nodes named after the word "drain"."""
    if query.words[0] != "drain" or len(query.words) == 1 or not caller.may_operate_clusters:
        return
    named = SearchQuery(" ".join(query.words[1:])).condition("node", "name")
    open_nodes = Node.objects.filter(named, drain_requested=False).select_related("cluster")
    for node in open_nodes.order_by("name")[:MAX_RESULTS_PER_KIND]:
        url = reverse("node", args=[node.cluster.name, node.name])
        yield SearchResult(
            kind="action",
            title=f"Drain {node.name}",
            detail=f"{node.badge.label}, {node.cluster}",
            url=f"{url}#ask-drain",
        )


def _job_results(caller: Caller, query: SearchQuery) -> Iterable[SearchResult]:
    rows = caller.jobs().select_related("user", "team").defer("command", "environment", "labels", "comment")
    words = query.words_for("job")
    prefixed = rows.filter(public_id__startswith=words[0]) if len(words) == 1 else rows.none()
    by_id = list(prefixed.order_by("-pk")[:MAX_RESULTS_PER_KIND])
    newest = caller.jobs().order_by("-pk").values("pk")[:MAX_JOBS_SEARCHED]
    matching = rows.filter(query.condition("job", "name"), pk__in=newest)
    named = matching.order_by("-pk")[:MAX_RESULTS_PER_KIND]
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


def _node_results(query: SearchQuery) -> Iterable[SearchResult]:
    matching = Node.objects.filter(query.condition("node", "name")).select_related("cluster")
    return [
        SearchResult(
            kind="node",
            title=node.name,
            detail=f"{node.badge.label}, {node.gpus} GPUs of {node.cluster}",
            url=reverse("node", args=[node.cluster.name, node.name]),
        )
        for node in matching.order_by("name")[:MAX_RESULTS_PER_KIND]
    ]


def _user_results(request: HttpRequest, caller: Caller, query: SearchQuery) -> Iterable[SearchResult]:
    """Yield users who share a team with the caller; site administrators find all users."""
    rows = get_user_model().objects.filter(query.condition("user", "username", "first_name", "last_name"))
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


def _team_and_cluster_results(request: HttpRequest, query: SearchQuery) -> Iterable[SearchResult]:
    teams = Team.objects.where(request.user).filter(query.condition("team", "name", "title")).distinct()
    for team in teams[:MAX_RESULTS_PER_KIND]:
        yield SearchResult(kind="team", title=team.name, detail=team.title, url=reverse("team", args=[team.name]))
    clusters = Cluster.objects.filter(query.condition("cluster", "name", "title"))
    for cluster in clusters[:MAX_RESULTS_PER_KIND]:
        url = f"{reverse('queue')}?{urlencode({'cluster': cluster.name})}"
        yield SearchResult(kind="cluster", title=cluster.name, detail=cluster.title, url=url)


def _campaign_results(caller: Caller, query: SearchQuery) -> Iterable[SearchResult]:
    matching = campaigns(caller).filter(query.condition("campaign", "name", "public_id", "suite__name"))
    rows = matching.select_related("suite", "team").defer("plan").order_by("-pk")
    return [
        SearchResult(
            kind="campaign",
            title=row.name,
            detail=f"{row.public_id}, {row.get_state_display()}, {row.suite} in {row.team.name}",
            url=reverse("campaign", args=[row.public_id]),
        )
        for row in rows[:MAX_RESULTS_PER_KIND]
    ]


def _term_results(query: SearchQuery) -> Iterable[SearchResult]:
    words = query.words_for("term")
    matching = (term for term in TERMS if all(word in term.name.lower() for word in words))
    for term in islice(matching, MAX_RESULTS_PER_KIND):
        url = f"{reverse('glossary')}#{term.anchor}"
        yield SearchResult(kind="term", title=term.name, detail=term.definition, url=url)


def _incident_results(caller: Caller, query: SearchQuery) -> Iterable[SearchResult]:
    condition = query.condition("incident", "root_cause", "subject")
    numbers = [number for word in query.words_for("incident") if _is_number(number := word.removeprefix("#"))]
    if numbers and len(numbers) == len(query.words_for("incident")):
        condition |= Q(pk__in=numbers)
    # Without a number the condition would be a constant, which ORDER BY takes for the position of a column
    numbered_first = [Case(When(pk__in=numbers, then=0), default=1)] if numbers else []
    rows = (
        failure_permissions.visible_incidents(caller)
        .filter(condition)
        .select_related("cluster")
        .order_by(*numbered_first, "-pk")[:MAX_RESULTS_PER_KIND]
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


def _is_number(text: str) -> bool:
    """Whether the text is a number that may be a primary key."""
    return text.isascii() and text.isdecimal() and len(text) < 18
