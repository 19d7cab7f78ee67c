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

from jobs import job_filters, view_actions
from jobs.job_filters import NO_VIEW
from jobs.journal import Author
from jobs.models import Role, SavedView, Team
from jobs.pages import Address
from jobs.readers import BadSpec
from jobs.rights import Caller
from jobs.view_actions import ViewError


@dataclass(frozen=True, kw_only=True)
class Shelf:
    """The views that somebody may open, and the one that is open."""

    views: Sequence[SavedView]
    open: SavedView | None
    may_change: bool
    is_first: bool
    teams: Sequence[Team]  # to save a view for


def shelf(caller: Caller, views: Sequence[SavedView], teams: Iterable[Team], query: str) -> Shelf:
    found = next((view for view in views if same(view.query, query)), None)
    return Shelf(
        views=views,
        open=found,
        may_change=bool(found and view_actions.may_change(caller, found)),
        is_first=bool(found and found.is_first),  # type: ignore[attr-defined]
        teams=[team for team in teams if caller.has(Role.RESEARCHER, team.pk)],
    )


def same(one: str, other: str) -> bool:
    return QueryDict(one) == QueryDict(other)


def first_of(views: Iterable[SavedView]) -> SavedView | None:
    """With which a list begins that was asked for nothing. Who left the team no longer begins with its view."""
    return next((view for view in views if view.is_first and view.query), None)  # type: ignore[attr-defined]


def address(view: SavedView) -> str:
    return f"{reverse('jobs')}?{view.query or NO_VIEW}"


# --- what their forms ask for


def save(request: HttpRequest, shown: Address) -> HttpResponse:
    """The filters that the list showed, as their form has them."""
    caller, asked = Caller(user=request.user), job_filters.asked(shown)
    query = urlencode(asked.kept)
    if shown.wrong:
        messages.error(request, f"Nothing was saved: {shown.wrong[0]}.")
        return redirect(reverse("jobs") + asked.url())
    named = request.POST.get("for", "")
    team = get_object_or_404(caller.teams(), name=named.replace("\x00", "")) if named else None
    try:
        view, is_new = view_actions.save(
            caller, request.POST.get("name", ""), query, team=team, author=Author.of(request)
        )
        if request.POST.get("first") == "1":
            view_actions.begin_with(caller, view)
    except (ViewError, BadSpec) as error:
        messages.error(request, f"Nothing was saved: {error}.")
        return redirect(reverse("jobs") + asked.url())
    messages.success(request, f"{view.name} is saved." if is_new else f"{view.name} shows these filters now.")
    return redirect(address(view))


@require_POST
def change(request: HttpRequest, pk: int, verb: str) -> HttpResponse:
    caller = Caller(user=request.user)
    rows = SavedView.objects.for_user(caller.user).select_related("team", "owner")
    view = get_object_or_404(rows, pk=pk)
    try:
        said = _changed(request, caller, view, verb)
    except (ViewError, BadSpec) as error:
        messages.error(request, f"Nothing was changed: {error}.")
    else:
        messages.success(request, said)
    return redirect(address(view))


def _changed(request: HttpRequest, caller: Caller, view: SavedView, verb: str) -> str:
    author = Author.of(request)
    match verb:
        case "rename":
            view_actions.rename(caller, view, request.POST.get("name", ""), author=author)
            return "The view has another name."
        case "remove":
            view_actions.remove(caller, view, author=author)
            return f"{view.name} is removed; what it showed is still here."
        case "first":
            view_actions.begin_with(caller, view)
            return f"Your list of jobs begins with {view.name}."
        case "not-first":
            view_actions.begin_with(caller, None)
            return "Your list of jobs begins with everything."
    raise Http404("no such verb")
