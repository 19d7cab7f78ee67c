"""Who is told of incidents, through the programs' door."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from rest_framework.exceptions import PermissionDenied
from rest_framework.response import Response

from failures.actions import notices as notice_actions
from failures.api.shapes import float_field
from failures.incidents.grouping import IncidentScope as Reach
from failures.models import Channel
from jobs.core import parsing
from jobs.core.spec import InvalidField
from jobs.models import TeamRole, TokenScope
from jobs.rest import etags
from jobs.rest.endpoint import ActionEndpoint, ApiEndpoint, ListEndpoint, find_or_404, reject_unknown_params
from jobs.rest.errors import InvalidRequestField
from jobs.rest.permissions import EndpointRule
from jobs.rest.shapes import (
    ResourceShape,
    ShapeField,
    attribute_path,
    boolean_field,
    datetime_field,
    integer_field,
    text_field,
)

CHANNEL_KINDS = [str(kind) for kind in Channel.Kind.values]
INCIDENT_SCOPES = [one.value for one in Reach]
MAX_GPU_HOURS = 10**9

CHANNEL_FIELDS: dict[str, ShapeField] = {
    "id": integer_field(),
    "team": text_field("Null: every incident.", get=attribute_path("team.name"), needs=("team__name",), nullable=True),
    "kind": text_field(choices=CHANNEL_KINDS),
    "target": text_field("A mail address, or the address that is called."),
    "scope": text_field("Only such incidents; empty: all."),
    "least_gpu_hours": float_field("Only incidents that have cost as much."),
    "is_on": boolean_field(),
    "created_at": datetime_field(),
    "created_by": text_field(),
}
CHANNEL_SHAPE = ResourceShape("Channel", CHANNEL_FIELDS)
ADDED_CHANNEL_SHAPE = ResourceShape(
    "AddedChannel",
    {**CHANNEL_FIELDS, "secret": text_field("Of a webhook; shown this once. Acme-Signature is made with it.")},
)
CHANNEL_REQUEST_SHAPE = ResourceShape(
    "ChannelRequest",
    {
        "kind": text_field(choices=CHANNEL_KINDS),
        "target": text_field(),
        "team": text_field("Left out: every incident, which operators may ask for.", required=False),
        "scope": text_field(choices=INCIDENT_SCOPES, required=False),
        "least_gpu_hours": integer_field(low=0, high=MAX_GPU_HOURS, required=False),
    },
    example={"kind": "slack", "target": "https://hooks.slack.com/services/T0/B0/x", "team": "pretraining"},
)
CHANNEL_SWITCH_SHAPE = ResourceShape("ChannelSwitch", {"is_on": boolean_field()}, example={"is_on": False})
EMPTY_BODY_SHAPE = ResourceShape("Nothing", {})


def _require_channel_admin(caller: Any, team_id: int | None) -> None:
    """Addresses may hold a secret, so they are for those who keep the team."""
    if not (caller.may_operate_clusters or caller.is_site_admin or (team_id and caller.has(TeamRole.ADMIN, team_id))):
        raise PermissionDenied("Operators of clusters do that, and administrators of a team for their own.")


def _get_channel(caller: Any, channel: int) -> Channel:
    """Of another team, or of everybody for those who operate nothing: there is none."""
    rows = Channel.objects.select_related("team").select_for_update(of=("self",))
    if not (caller.may_operate_clusters or caller.is_site_admin):
        rows = rows.filter(team__in=caller.teams())
    row: Channel = find_or_404(rows, "channel", pk=channel)
    _require_channel_admin(caller, row.team_id)
    return row


class Channels(ActionEndpoint, ListEndpoint):
    """Who is told of incidents: by mail, by a signed webhook, or as Slack has it."""

    tag = "Notifications"
    what = "channels"
    shape = CHANNEL_SHAPE
    rules = {
        "GET": EndpointRule(scope=TokenScope.OPERATE, says="Channels you keep", answer=CHANNEL_SHAPE, many=True),
        "POST": EndpointRule(
            scope=TokenScope.OPERATE,
            says="Add a channel",
            body=CHANNEL_REQUEST_SHAPE,
            answer=ADDED_CHANNEL_SHAPE,
            status=201,
        ),
    }

    def rows(self) -> QuerySet[Channel]:
        if self.caller.may_operate_clusters or self.caller.is_site_admin:
            return Channel.objects.all()
        return Channel.objects.filter(team__in=self.caller.teams(TeamRole.ADMIN))

    def work(self) -> Response:
        asked = self.body(
            {
                "kind": parsing.choice_reader(CHANNEL_KINDS),
                "target": parsing.text_reader(500),
                "team": parsing.text_reader(40),
                "scope": parsing.choice_reader(INCIDENT_SCOPES),
                "least_gpu_hours": parsing.integer_reader(0, MAX_GPU_HOURS),
            },
            "a channel",
        )
        for name in ("kind", "target"):
            if not asked.get(name):
                raise InvalidRequestField(name, "is needed")
        team = self.caller.teams().filter(name=asked["team"]).first() if "team" in asked else None
        if "team" in asked and team is None:
            raise InvalidRequestField("team", f"you have no team {parsing.short_repr(asked['team'])}")
        _require_channel_admin(self.caller, team.pk if team else None)
        try:
            row = notice_actions.add_channel(
                asked["kind"], asked["target"], author=self.author, team_id=team.pk if team else None,
                scope=asked.get("scope", ""), least_gpu_hours=asked.get("least_gpu_hours", 0),
                allowed=settings.ACME_WEBHOOK_NETWORKS,
            )  # fmt: skip
        except InvalidField as error:
            raise InvalidRequestField(error.field, error.why) from None
        row.refresh_from_db()
        return Response(ADDED_CHANNEL_SHAPE.show(row), status=201)


class OneChannel(ApiEndpoint):
    """Switch a channel off, and on again."""

    tag = "Notifications"
    rules = {
        "PATCH": EndpointRule(
            scope=TokenScope.OPERATE,
            says="Switch a channel off or on",
            body=CHANNEL_SWITCH_SHAPE,
            answer=CHANNEL_SHAPE,
            team=True,
            conflicts=True,
        )
    }

    def patch(self, request: Any, channel: int) -> Response:
        reject_unknown_params(request)
        asked = self.body({"is_on": parsing.read_bool}, "a channel")
        if "is_on" not in asked:
            raise InvalidRequestField("is_on", "is needed")
        with transaction.atomic():
            row = _get_channel(self.caller, channel)
            etags.check_if_match(request, CHANNEL_SHAPE.show(row))
            notice_actions.switch_channel(row, asked["is_on"], author=self.author)
        shown = CHANNEL_SHAPE.show(row)
        return Response(shown, headers={"ETag": etags.etag(shown)})


class RemoveChannel(ActionEndpoint):
    """Tell nobody there any more."""

    tag = "Notifications"
    rules = {
        "POST": EndpointRule(
            scope=TokenScope.OPERATE, says="Remove a channel", body=EMPTY_BODY_SHAPE, answer=CHANNEL_SHAPE, team=True
        )
    }

    def work(self, channel: int) -> Response:
        self.body({}, "the verb remove")
        row = _get_channel(self.caller, channel)
        shown = CHANNEL_SHAPE.show(row)
        etags.check_if_match(self.request, shown)
        notice_actions.remove_channel(row, author=self.author)
        return Response(shown)
