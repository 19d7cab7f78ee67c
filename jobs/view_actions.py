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

from jobs import journal
from jobs.journal import Author
from jobs.models import Role, SavedView, Team
from jobs.readers import bad
from jobs.rights import Caller

MOST_VIEWS = 50  # of a person, and of a team
LONGEST_NAME, LONGEST_QUERY = 40, 1000


class ViewError(Exception):
    """Nothing was changed; the message is a sentence without its full stop."""


class NotYours(ViewError):
    pass


def known_to(caller: Caller, *, everywhere: bool = False) -> QuerySet[SavedView]:
    """Each says whether the caller's list begins with it."""
    chosen = Exists(SavedView.first_for.through.objects.filter(savedview=OuterRef("pk"), user=caller.user))
    rows = SavedView.objects.all() if everywhere else SavedView.objects.for_user(caller.user)
    rows = rows.select_related("team", "owner").annotate(is_first=chosen)
    return rows if caller.bound_to is None else rows.filter(team=caller.bound_to)


def may_save(caller: Caller, team: Team | None) -> bool:
    return caller.bound_to is None if team is None else caller.has(Role.RESEARCHER, team.pk)


def may_change(caller: Caller, view: SavedView) -> bool:
    if view.owner_id == caller.user.pk:
        return may_save(caller, view.team)
    return view.team_id is not None and caller.has(Role.OPERATOR, view.team_id)


@transaction.atomic
def save(caller: Caller, name: str, query: str, *, team: Team | None, author: Author) -> tuple[SavedView, bool]:
    """The view, and whether it is new: one of that name shows these filters from now on, if it may be changed."""
    name = named(name)
    if not may_save(caller, team):
        token, role = "a token of one team saves for that team", "this needs the role researcher in the team"
        raise NotYours(role if team else token)
    there = SavedView.objects.filter(owner=caller.user, team=None) if team is None else team.saved_views.all()
    view = there.select_for_update().filter(name=name).first()
    if view is None:
        return _made(caller, name, query, team=team, most=there.count(), author=author), True
    if not may_change(caller, view):
        raise NotYours(f"{view} is somebody else's; choose another name")
    show(caller, view, query, author=author)
    return view, False


def show(caller: Caller, view: SavedView, query: str, *, author: Author) -> None:
    """Other filters under the same name; within the transaction of who locked it."""
    _refuse(caller, view)
    _refuse_long(query)
    SavedView.objects.filter(pk=view.pk).update(query=query)
    _tell("view.changed", view, author, query=query, before=view.query)
    view.query = query


def _made(caller: Caller, name: str, query: str, *, team: Team | None, most: int, author: Author) -> SavedView:
    if most >= MOST_VIEWS:
        raise ViewError(f"there are {MOST_VIEWS} views already; remove one first")
    _refuse_long(query)
    try:
        with transaction.atomic():
            view = SavedView.objects.create(owner=caller.user, team=team, name=name, query=query)
    except IntegrityError:
        raise ViewError(f"somebody has just saved a view called {name}") from None
    _tell("view.saved", view, author, query=query)
    return view


@transaction.atomic
def rename(caller: Caller, view: SavedView, name: str, *, author: Author) -> None:
    name = named(name)
    _refuse(caller, view)
    try:
        with transaction.atomic():
            changed = SavedView.objects.filter(pk=view.pk, name=view.name).update(name=name)
    except IntegrityError:
        raise ViewError(f"there is a view called {name} already") from None
    if not changed:
        raise ViewError("somebody else has just renamed or removed it")
    _tell("view.renamed", view, author, to=name)


@transaction.atomic
def remove(caller: Caller, view: SavedView, *, author: Author) -> None:
    _refuse(caller, view)
    if not SavedView.objects.filter(pk=view.pk).delete()[0]:
        raise ViewError("somebody else has just removed it")
    _tell("view.removed", view, author, query=view.query)


@transaction.atomic
def begin_with(caller: Caller, view: SavedView | None) -> None:
    """A person's list begins with one view at most; no Event, for it changes nothing for anybody else."""
    if caller.bound_to is not None:
        raise NotYours("a token of one team does not choose what its owner's list begins with")
    get_user_model().objects.select_for_update().get(pk=caller.user.pk)
    if view and not known_to(caller).filter(pk=view.pk).exists():  # who runs the site may look at everybody's
        bad("is_first", f"{view} is in no list of yours")
    caller.user.first_view.set([view] if view else [])


def named(name: str) -> str:
    name = " ".join(name.split())
    if not name:
        bad("name", "a view needs one")
    if len(name) > LONGEST_NAME or not name.isprintable():
        bad("name", f"at most {LONGEST_NAME} characters that can be printed")
    return name


def _refuse_long(query: str) -> None:
    if len(query) > LONGEST_QUERY:
        bad("filters", f"are longer than {LONGEST_QUERY} characters")


def _refuse(caller: Caller, view: SavedView) -> None:
    if not may_change(caller, view):
        raise NotYours(f"{view} is somebody else's: this needs the role operator in its team")


def _tell(what: str, view: SavedView, author: Author, **more: Any) -> None:
    team = view.team.name if view.team else ""
    journal.event(what, author, detail={"view": view.name, "team": team, **more}).save()
