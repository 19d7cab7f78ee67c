"""Saved views in the job list: the menu that shows them and the forms that change them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_POST

from acmeweb.common.errors import InvalidField, NotAllowed, StateConflict
from jobs.actions import saved_views as saved_view_actions
from jobs.actions.journal import Author
from jobs.models import SavedView, Team, TeamRole
from jobs.models.permissions import Caller
from jobs.web import job_filters
from jobs.web.job_filters import NO_VIEW_QUERY
from jobs.web.page import PageQuery


@dataclass(frozen=True, kw_only=True)
class SavedViewMenu:
    """The views that the user can open, and the one that is open now."""

    views: Sequence[SavedView]
    open: SavedView | None
    may_change: bool
    is_first: bool  # the open view is the user's default
    teams: Sequence[Team]  # teams for which the user can save views


def saved_view_menu(caller: Caller, views: Sequence[SavedView], teams: Iterable[Team], query: str) -> SavedViewMenu:
    current = next((view for view in views if is_same_query(view.query, query)), None)
    return SavedViewMenu(
        views=views,
        open=current,
        may_change=bool(current and saved_view_actions.may_change(caller, current)),
        is_first=bool(current and current.is_first),  # type: ignore[attr-defined]
        teams=[team for team in teams if caller.has(TeamRole.RESEARCHER, team.pk)],
    )


def is_same_query(query: str, other: str) -> bool:
    return QueryDict(query) == QueryDict(other)


def default_view(views: Iterable[SavedView]) -> SavedView | None:
    """The user's default view, which opens when the job list is requested without parameters.

    `views` holds only views that the user may see, so a view of a team that the user has left is never the default.
    """
    return next((view for view in views if view.is_first and view.query), None)  # type: ignore[attr-defined]


def view_url(view: SavedView) -> str:
    return f"{reverse('jobs')}?{view.query or NO_VIEW_QUERY}"


# --- forms


def save_from_list(request: HttpRequest, shown: PageQuery) -> HttpResponse:
    """Save the filters of the job list, as posted by its form, under a name."""
    caller, selection = Caller(user=request.user), job_filters.read_job_filters(shown)
    query = urlencode(selection.params)
    if shown.wrong:
        messages.error(request, f"Nothing was saved: {shown.wrong[0]}.")
        return redirect(reverse("jobs") + selection.url())
    team_name = request.POST.get("for", "")
    team = get_object_or_404(caller.teams(), name=team_name.replace("\x00", "")) if team_name else None
    try:
        view, is_new = saved_view_actions.save(
            caller, request.POST.get("name", ""), query, team=team, author=Author.of(request)
        )
        if request.POST.get("first") == "1":
            saved_view_actions.set_first_view(caller, view)
    except (NotAllowed, StateConflict, InvalidField) as error:
        messages.error(request, f"Nothing was saved: {error}.")
        return redirect(reverse("jobs") + selection.url())
    messages.success(request, f"View {view.name} saved." if is_new else f"View {view.name} updated.")
    return redirect(view_url(view))


@require_POST
def change_view_action(request: HttpRequest, pk: int, verb: str) -> HttpResponse:
    caller = Caller(user=request.user)
    rows = SavedView.objects.for_user(caller.user).select_related("team", "owner")
    view = get_object_or_404(rows, pk=pk)
    try:
        message = _apply_change(request, caller, view, verb)
    except (NotAllowed, StateConflict, InvalidField) as error:
        messages.error(request, f"Nothing was changed: {error}.")
    else:
        messages.success(request, message)
    return redirect(view_url(view))


def _apply_change(request: HttpRequest, caller: Caller, view: SavedView, verb: str) -> str:
    author = Author.of(request)
    match verb:
        case "rename":
            saved_view_actions.rename(caller, view, request.POST.get("name", ""), author=author)
            return "View renamed."
        case "remove":
            saved_view_actions.remove(caller, view, author=author)
            return f"View {view.name} removed. Its filters are still applied."
        case "first":
            saved_view_actions.set_first_view(caller, view)
            return f"{view.name} is now your default view."
        case "not-first":
            saved_view_actions.set_first_view(caller, None)
            return "Your job list now opens without a view."
    raise Http404("unknown verb")
