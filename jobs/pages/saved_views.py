"""Saved views as the list of jobs shows and changes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_POST

from jobs.actions import saved_views as saved_view_actions
from jobs.actions.journal import Author
from jobs.actions.saved_views import SavedViewError
from jobs.core.parsing import InvalidField
from jobs.models import SavedView, Team, TeamRole
from jobs.models.permissions import Caller
from jobs.web import job_filters
from jobs.web.job_filters import NO_VIEW_QUERY
from jobs.web.page import PageQuery


@dataclass(frozen=True, kw_only=True)
class SavedViewMenu:
    """The views that somebody may open, and the one that is open."""

    views: Sequence[SavedView]
    open: SavedView | None
    may_change: bool
    is_first: bool
    teams: Sequence[Team]  # to save a view for


def saved_view_menu(caller: Caller, views: Sequence[SavedView], teams: Iterable[Team], query: str) -> SavedViewMenu:
    found = next((view for view in views if is_same_query(view.query, query)), None)
    return SavedViewMenu(
        views=views,
        open=found,
        may_change=bool(found and saved_view_actions.may_change(caller, found)),
        is_first=bool(found and found.is_first),  # type: ignore[attr-defined]
        teams=[team for team in teams if caller.has(TeamRole.RESEARCHER, team.pk)],
    )


def is_same_query(one: str, other: str) -> bool:
    return QueryDict(one) == QueryDict(other)


def default_view(views: Iterable[SavedView]) -> SavedView | None:
    """With which a list begins that was asked for nothing. Who left the team no longer begins with its view."""
    return next((view for view in views if view.is_first and view.query), None)  # type: ignore[attr-defined]


def view_url(view: SavedView) -> str:
    return f"{reverse('jobs')}?{view.query or NO_VIEW_QUERY}"


# --- what their forms ask for


def save_from_list(request: HttpRequest, shown: PageQuery) -> HttpResponse:
    """The filters that the list showed, as their form has them."""
    caller, asked = Caller(user=request.user), job_filters.read_job_filters(shown)
    query = urlencode(asked.kept)
    if shown.wrong:
        messages.error(request, f"Nothing was saved: {shown.wrong[0]}.")
        return redirect(reverse("jobs") + asked.url())
    named = request.POST.get("for", "")
    team = get_object_or_404(caller.teams(), name=named.replace("\x00", "")) if named else None
    try:
        view, is_new = saved_view_actions.save(
            caller, request.POST.get("name", ""), query, team=team, author=Author.of(request)
        )
        if request.POST.get("first") == "1":
            saved_view_actions.set_first_view(caller, view)
    except (SavedViewError, InvalidField) as error:
        messages.error(request, f"Nothing was saved: {error}.")
        return redirect(reverse("jobs") + asked.url())
    messages.success(request, f"{view.name} is saved." if is_new else f"{view.name} shows these filters now.")
    return redirect(view_url(view))


@require_POST
def change_view_action(request: HttpRequest, pk: int, verb: str) -> HttpResponse:
    caller = Caller(user=request.user)
    rows = SavedView.objects.for_user(caller.user).select_related("team", "owner")
    view = get_object_or_404(rows, pk=pk)
    try:
        said = _apply_change(request, caller, view, verb)
    except (SavedViewError, InvalidField) as error:
        messages.error(request, f"Nothing was changed: {error}.")
    else:
        messages.success(request, said)
    return redirect(view_url(view))


def _apply_change(request: HttpRequest, caller: Caller, view: SavedView, verb: str) -> str:
    author = Author.of(request)
    match verb:
        case "rename":
            saved_view_actions.rename(caller, view, request.POST.get("name", ""), author=author)
            return "The view has another name."
        case "remove":
            saved_view_actions.remove(caller, view, author=author)
            return f"{view.name} is removed; what it showed is still here."
        case "first":
            saved_view_actions.set_first_view(caller, view)
            return f"Your list of jobs begins with {view.name}."
        case "not-first":
            saved_view_actions.set_first_view(caller, None)
            return "Your list of jobs begins with everything."
    raise Http404("no such verb")
