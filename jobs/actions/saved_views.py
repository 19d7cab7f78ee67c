"""Permissions of saved views of the job list, and the only code that changes them. Each change writes its Event.

A personal view belongs to its owner. A team's view is visible to all members, saved by researchers of the team, and
changed or removed by its creator and by operators of the team. Every user chooses which view their list opens with; a
token bound to a team cannot change that and can access only the views of that team.
"""

from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model
from django.db import IntegrityError, transaction
from django.db.models import Exists, OuterRef, QuerySet

from acmeweb.common.errors import NotAllowed, StateConflict
from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.core.parsing import raise_invalid_field
from jobs.models import SavedView, Team, TeamRole
from jobs.models.permissions import Caller

MAX_VIEWS = 50  # per user, and per team
MAX_NAME_LENGTH, MAX_QUERY_LENGTH = 40, 1000


def views_of_caller(caller: Caller, *, everywhere: bool = False) -> QuerySet[SavedView]:
    """Return the visible views. `is_first` marks the view that the caller's list opens with."""
    chosen = Exists(SavedView.first_for.through.objects.filter(savedview=OuterRef("pk"), user=caller.user))
    rows = SavedView.objects.all() if everywhere else SavedView.objects.for_user(caller.user)
    rows = rows.select_related("team", "owner").annotate(is_first=chosen)
    return rows if caller.bound_team_id is None else rows.filter(team=caller.bound_team_id)


def may_save(caller: Caller, team: Team | None) -> bool:
    return caller.bound_team_id is None if team is None else caller.has(TeamRole.RESEARCHER, team.pk)


def may_change(caller: Caller, view: SavedView) -> bool:
    if view.owner_id == caller.user.pk:
        return may_save(caller, view.team)
    return view.team_id is not None and caller.has(TeamRole.OPERATOR, view.team_id)


@transaction.atomic
def save(caller: Caller, name: str, query: str, *, team: Team | None, author: Author) -> tuple[SavedView, bool]:
    """Return the view and whether it is new. An existing view of that name gets these filters, if the caller may change
    it."""
    name = clean_view_name(name)
    if not may_save(caller, team):
        token, role = (
            "a token bound to a team can only save views of that team",
            "this needs the role researcher in the team",
        )
        raise NotAllowed(role if team else token)
    existing = SavedView.objects.filter(owner=caller.user, team=None) if team is None else team.saved_views.all()
    # Lock the row, so that two requests that overwrite it are applied one after the other
    view = existing.select_for_update().filter(name=name).first()
    if view is None:
        return _create_view(caller, name, query, team=team, most=existing.count(), author=author), True
    if not may_change(caller, view):
        raise NotAllowed(f"{view} belongs to another user; choose another name")
    set_view_query(caller, view, query, author=author)
    return view, False


def set_view_query(caller: Caller, view: SavedView, query: str, *, author: Author) -> None:
    """Change the filters of a view, in the transaction that locked it."""
    _check_may_change(caller, view)
    _check_query_length(query)
    SavedView.objects.filter(pk=view.pk).update(query=query)
    _journal_saved_view("view.changed", view, author, query=query, before=view.query)
    view.query = query


def _create_view(caller: Caller, name: str, query: str, *, team: Team | None, most: int, author: Author) -> SavedView:
    if most >= MAX_VIEWS:
        raise StateConflict(f"the limit of {MAX_VIEWS} views is reached; remove one first")
    _check_query_length(query)
    try:
        with transaction.atomic():
            view = SavedView.objects.create(owner=caller.user, team=team, name=name, query=query)
    except IntegrityError:
        raise StateConflict(f"another user has just saved a view called {name}") from None
    _journal_saved_view("view.saved", view, author, query=query)
    return view


@transaction.atomic
def rename(caller: Caller, view: SavedView, name: str, *, author: Author) -> None:
    name = clean_view_name(name)
    _check_may_change(caller, view)
    try:
        with transaction.atomic():
            # The guard on the old name detects a concurrent rename
            changed = SavedView.objects.filter(pk=view.pk, name=view.name).update(name=name)
    except IntegrityError:
        raise StateConflict(f"a view called {name} already exists") from None
    if not changed:
        raise StateConflict("another user has just renamed or removed the view")
    _journal_saved_view("view.renamed", view, author, to=name)


@transaction.atomic
def remove(caller: Caller, view: SavedView, *, author: Author) -> None:
    _check_may_change(caller, view)
    if not SavedView.objects.filter(pk=view.pk).delete()[0]:
        raise StateConflict("another user has just removed the view")
    _journal_saved_view("view.removed", view, author, query=view.query)


@transaction.atomic
def set_first_view(caller: Caller, view: SavedView | None) -> None:
    """Set the view that the user's list opens with, or none. No Event is written, because other users are not
    affected."""
    if caller.bound_team_id is not None:
        raise NotAllowed("a token bound to a team cannot set the first view of its owner")
    # Serializes concurrent choices, so that at most one view is the first
    get_user_model().objects.select_for_update().get(pk=caller.user.pk)
    if view and not views_of_caller(caller).filter(pk=view.pk).exists():  # a superuser may look at the views of others
        raise_invalid_field("is_first", f"{view} is not one of your views")
    caller.user.first_view.set([view] if view else [])


def clean_view_name(name: str) -> str:
    name = " ".join(name.split())
    if not name:
        raise_invalid_field("name", "a view needs a name")
    if len(name) > MAX_NAME_LENGTH or not name.isprintable():
        raise_invalid_field("name", f"must have at most {MAX_NAME_LENGTH} printable characters")
    return name


def _check_query_length(query: str) -> None:
    if len(query) > MAX_QUERY_LENGTH:
        raise_invalid_field("filters", f"are longer than {MAX_QUERY_LENGTH} characters")


def _check_may_change(caller: Caller, view: SavedView) -> None:
    if not may_change(caller, view):
        raise NotAllowed(f"{view} belongs to another user; this needs the role operator in its team")


def _journal_saved_view(what: str, view: SavedView, author: Author, **more: Any) -> None:
    team = view.team.name if view.team else ""
    journal.new_event(what, author, detail={"view": view.name, "team": team, **more}).save()
