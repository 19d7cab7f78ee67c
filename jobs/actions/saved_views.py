"""Whose the saved views of the list of jobs are, and the only code that changes them, each change with its Event.

A personal view is its owner's. A team's is seen by all in it, saved by its researchers, and changed or removed by who
saved it and by the team's operators. Which view a list begins with is everybody's own choice, and no token's of one
team, which reaches that team's views.

    ViewError    the views are not what they are taken to be
    └── NotYours it needs a role that the caller does not have
"""

from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model
from django.db import IntegrityError, transaction
from django.db.models import Exists, OuterRef, QuerySet

from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.core.parsing import raise_invalid_field
from jobs.models import SavedView, Team, TeamRole
from jobs.models.permissions import Caller

MAX_VIEWS = 50  # of a person, and of a team
MAX_NAME_LENGTH, MAX_QUERY_LENGTH = 40, 1000


class SavedViewError(Exception):
    """Nothing was changed; the message is a sentence without its full stop."""


class SavedViewForbidden(SavedViewError):
    pass


def views_of_caller(caller: Caller, *, everywhere: bool = False) -> QuerySet[SavedView]:
    """Each says whether the caller's list begins with it."""
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
    """The view, and whether it is new: one of that name shows these filters from now on, if it may be changed."""
    name = clean_view_name(name)
    if not may_save(caller, team):
        token, role = "a token of one team saves for that team", "this needs the role researcher in the team"
        raise SavedViewForbidden(role if team else token)
    there = SavedView.objects.filter(owner=caller.user, team=None) if team is None else team.saved_views.all()
    view = there.select_for_update().filter(name=name).first()
    if view is None:
        return _create_view(caller, name, query, team=team, most=there.count(), author=author), True
    if not may_change(caller, view):
        raise SavedViewForbidden(f"{view} is somebody else's; choose another name")
    set_view_query(caller, view, query, author=author)
    return view, False


def set_view_query(caller: Caller, view: SavedView, query: str, *, author: Author) -> None:
    """Other filters under the same name; within the transaction of who locked it."""
    _check_may_change(caller, view)
    _check_query_length(query)
    SavedView.objects.filter(pk=view.pk).update(query=query)
    _journal_saved_view("view.changed", view, author, query=query, before=view.query)
    view.query = query


def _create_view(caller: Caller, name: str, query: str, *, team: Team | None, most: int, author: Author) -> SavedView:
    if most >= MAX_VIEWS:
        raise SavedViewError(f"there are {MAX_VIEWS} views already; remove one first")
    _check_query_length(query)
    try:
        with transaction.atomic():
            view = SavedView.objects.create(owner=caller.user, team=team, name=name, query=query)
    except IntegrityError:
        raise SavedViewError(f"somebody has just saved a view called {name}") from None
    _journal_saved_view("view.saved", view, author, query=query)
    return view


@transaction.atomic
def rename(caller: Caller, view: SavedView, name: str, *, author: Author) -> None:
    name = clean_view_name(name)
    _check_may_change(caller, view)
    try:
        with transaction.atomic():
            changed = SavedView.objects.filter(pk=view.pk, name=view.name).update(name=name)
    except IntegrityError:
        raise SavedViewError(f"there is a view called {name} already") from None
    if not changed:
        raise SavedViewError("somebody else has just renamed or removed it")
    _journal_saved_view("view.renamed", view, author, to=name)


@transaction.atomic
def remove(caller: Caller, view: SavedView, *, author: Author) -> None:
    _check_may_change(caller, view)
    if not SavedView.objects.filter(pk=view.pk).delete()[0]:
        raise SavedViewError("somebody else has just removed it")
    _journal_saved_view("view.removed", view, author, query=view.query)


@transaction.atomic
def set_first_view(caller: Caller, view: SavedView | None) -> None:
    """A person's list begins with one view at most; no Event, for it changes nothing for anybody else."""
    if caller.bound_team_id is not None:
        raise SavedViewForbidden("a token of one team does not choose what its owner's list begins with")
    get_user_model().objects.select_for_update().get(pk=caller.user.pk)
    if view and not views_of_caller(caller).filter(pk=view.pk).exists():  # who runs the site may look at everybody's
        raise_invalid_field("is_first", f"{view} is in no list of yours")
    caller.user.first_view.set([view] if view else [])


def clean_view_name(name: str) -> str:
    name = " ".join(name.split())
    if not name:
        raise_invalid_field("name", "a view needs one")
    if len(name) > MAX_NAME_LENGTH or not name.isprintable():
        raise_invalid_field("name", f"at most {MAX_NAME_LENGTH} characters that can be printed")
    return name


def _check_query_length(query: str) -> None:
    if len(query) > MAX_QUERY_LENGTH:
        raise_invalid_field("filters", f"are longer than {MAX_QUERY_LENGTH} characters")


def _check_may_change(caller: Caller, view: SavedView) -> None:
    if not may_change(caller, view):
        raise SavedViewForbidden(f"{view} is somebody else's: this needs the role operator in its team")


def _journal_saved_view(what: str, view: SavedView, author: Author, **more: Any) -> None:
    team = view.team.name if view.team else ""
    journal.new_event(what, author, detail={"view": view.name, "team": team, **more}).save()
