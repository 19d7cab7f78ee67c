"""Who is told of incidents, through the programs' door."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from rest_framework.exceptions import PermissionDenied
from rest_framework.response import Response

from failures import notice_actions
from failures.api.shapes import real
from failures.grouping import Scope as Reach
from failures.models import Channel
from jobs import readers
from jobs.door import versions
from jobs.door.endpoint import Endpoint, Listing, Verb, found, refuse_unknown
from jobs.door.errors import BadField
from jobs.door.rights import Rule
from jobs.door.shapes import Field, Shape, at, moment, number, text, truth
from jobs.models import Role, Scope
from jobs.spec import BadSpec

KINDS = [str(kind) for kind in Channel.Kind.values]
REACHES = [one.value for one in Reach]
MOST_GPU_HOURS = 10**9

FIELDS: dict[str, Field] = {
    "id": number(),
    "team": text("Null: every incident.", get=at("team.name"), needs=("team__name",), nullable=True),
    "kind": text(choices=KINDS),
    "target": text("A mail address, or the address that is called."),
    "scope": text("Only such incidents; empty: all."),
    "least_gpu_hours": real("Only incidents that have cost as much."),
    "is_on": truth(),
    "created_at": moment(),
    "created_by": text(),
}
CHANNEL = Shape("Channel", FIELDS)
ADDED = Shape(
    "AddedChannel", {**FIELDS, "secret": text("Of a webhook; shown this once. Acme-Signature is made with it.")}
)
WISH = Shape(
    "ChannelRequest",
    {
        "kind": text(choices=KINDS),
        "target": text(),
        "team": text("Left out: every incident, which operators may ask for.", required=False),
        "scope": text(choices=REACHES, required=False),
        "least_gpu_hours": number(low=0, high=MOST_GPU_HOURS, required=False),
    },
    example={"kind": "slack", "target": "https://hooks.slack.com/services/T0/B0/x", "team": "pretraining"},
)
SWITCH = Shape("ChannelSwitch", {"is_on": truth()}, example={"is_on": False})
NOTHING = Shape("Nothing", {})


def _refuse_stranger(caller: Any, team_id: int | None) -> None:
    """Addresses may hold a secret, so they are for those who keep the team."""
    if not (caller.operates or caller.everywhere or (team_id and caller.has(Role.ADMIN, team_id))):
        raise PermissionDenied("Operators of clusters do that, and administrators of a team for their own.")


def _kept(caller: Any, channel: int) -> Channel:
    """Of another team, or of everybody for those who operate nothing: there is none."""
    rows = Channel.objects.select_related("team").select_for_update(of=("self",))
    if not (caller.operates or caller.everywhere):
        rows = rows.filter(team__in=caller.teams())
    row: Channel = found(rows, "channel", pk=channel)
    _refuse_stranger(caller, row.team_id)
    return row


class Channels(Verb, Listing):
    """Who is told of incidents: by mail, by a signed webhook, or as Slack has it."""

    tag = "Notifications"
    what = "channels"
    shape = CHANNEL
    rules = {
        "GET": Rule(scope=Scope.OPERATE, says="Channels you keep", answer=CHANNEL, many=True),
        "POST": Rule(scope=Scope.OPERATE, says="Add a channel", body=WISH, answer=ADDED, status=201),
    }

    def rows(self) -> QuerySet[Channel]:
        if self.caller.operates or self.caller.everywhere:
            return Channel.objects.all()
        return Channel.objects.filter(team__in=self.caller.teams(Role.ADMIN))

    def work(self) -> Response:
        asked = self.body(
            {
                "kind": readers.one_of(KINDS),
                "target": readers.text(500),
                "team": readers.text(40),
                "scope": readers.one_of(REACHES),
                "least_gpu_hours": readers.whole(0, MOST_GPU_HOURS),
            },
            "a channel",
        )
        for name in ("kind", "target"):
            if not asked.get(name):
                raise BadField(name, "is needed")
        team = self.caller.teams().filter(name=asked["team"]).first() if "team" in asked else None
        if "team" in asked and team is None:
            raise BadField("team", f"you have no team {readers.short(asked['team'])}")
        _refuse_stranger(self.caller, team.pk if team else None)
        try:
            row = notice_actions.add_channel(
                asked["kind"], asked["target"], author=self.author, team_id=team.pk if team else None,
                scope=asked.get("scope", ""), least_gpu_hours=asked.get("least_gpu_hours", 0),
                allowed=settings.ACME_WEBHOOK_NETWORKS,
            )  # fmt: skip
        except BadSpec as error:
            raise BadField(error.field, error.why) from None
        row.refresh_from_db()
        return Response(ADDED.show(row), status=201)


class OneChannel(Endpoint):
    """Switch a channel off, and on again."""

    tag = "Notifications"
    rules = {
        "PATCH": Rule(
            scope=Scope.OPERATE,
            says="Switch a channel off or on",
            body=SWITCH,
            answer=CHANNEL,
            team=True,
            conflicts=True,
        )
    }

    def patch(self, request: Any, channel: int) -> Response:
        refuse_unknown(request)
        asked = self.body({"is_on": readers.truth}, "a channel")
        if "is_on" not in asked:
            raise BadField("is_on", "is needed")
        with transaction.atomic():
            row = _kept(self.caller, channel)
            versions.refuse_stale(request, CHANNEL.show(row))
            notice_actions.switch_channel(row, asked["is_on"], author=self.author)
        shown = CHANNEL.show(row)
        return Response(shown, headers={"ETag": versions.etag(shown)})


class RemoveChannel(Verb):
    """Tell nobody there any more."""

    tag = "Notifications"
    rules = {"POST": Rule(scope=Scope.OPERATE, says="Remove a channel", body=NOTHING, answer=CHANNEL, team=True)}

    def work(self, channel: int) -> Response:
        self.body({}, "the verb remove")
        row = _kept(self.caller, channel)
        shown = CHANNEL.show(row)
        versions.refuse_stale(self.request, shown)
        notice_actions.remove_channel(row, author=self.author)
        return Response(shown)
