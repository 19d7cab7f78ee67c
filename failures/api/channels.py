"""The REST API of notification channels."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from rest_framework.exceptions import PermissionDenied
from rest_framework.response import Response

from acmeweb.common.errors import InvalidField
from failures.actions import notices as notice_actions
from failures.api.shapes import float_field
from failures.incidents.grouping import IncidentScope
from failures.models import Channel
from jobs.core import parsing
from jobs.models import TeamRole, TokenScope
from jobs.rest import etags
from jobs.rest.endpoint import ActionEndpoint, ApiEndpoint, ListEndpoint, find_or_404, reject_unknown_params
from jobs.rest.permissions import EndpointRule
from jobs.rest.shapes import (
    NOTHING_SHAPE,
    ResourceShape,
    ShapeField,
    attribute_path,
    boolean_field,
    datetime_field,
    integer_field,
    text_field,
)

CHANNEL_KINDS = [str(kind) for kind in Channel.Kind.values]
INCIDENT_SCOPES = [one.value for one in IncidentScope]
MAX_GPU_HOURS = 10**9

CHANNEL_FIELDS: dict[str, ShapeField] = {
    "id": integer_field(),
    "team": text_field(
        "Only incidents that affect its jobs are sent. Null: incidents of every team.",
        get=attribute_path("team.name"),
        needs=("team__name",),
        nullable=True,
    ),
    "kind": text_field(choices=CHANNEL_KINDS),
    "target": text_field("An e-mail address, or the URL of a webhook."),
    "scope": text_field("Only incidents of this scope are sent. Empty: all."),
    "min_gpu_hours": float_field("Least GPU-hours lost in an incident before it is sent."),
    "is_enabled": boolean_field(),
    "created_at": datetime_field(),
    "created_by": text_field(),
}
CHANNEL_SHAPE = ResourceShape("Channel", CHANNEL_FIELDS)
ADDED_CHANNEL_SHAPE = ResourceShape(
    "AddedChannel",
    {**CHANNEL_FIELDS, "secret": text_field("Key of the Acme-Signature of a webhook. Returned only once.")},
)
CHANNEL_REQUEST_SHAPE = ResourceShape(
    "ChannelRequest",
    {
        "kind": text_field(choices=CHANNEL_KINDS),
        "target": text_field(),
        "team": text_field("Default: incidents of every team, for operators only.", required=False),
        "scope": text_field(choices=INCIDENT_SCOPES, required=False),
        "min_gpu_hours": integer_field(low=0, high=MAX_GPU_HOURS, required=False),
    },
    example={"kind": "slack", "target": "https://hooks.slack.com/services/T0/B0/x", "team": "pretraining"},
)
CHANNEL_SWITCH_SHAPE = ResourceShape("ChannelSwitch", {"is_enabled": boolean_field()}, example={"is_enabled": False})


def _require_channel_admin(caller: Any, team_id: int | None) -> None:
    """Raise PermissionDenied unless the caller manages the team's channels. Addresses may contain secrets."""
    if not (caller.acts_for_all_teams or (team_id and caller.has(TeamRole.ADMIN, team_id))):
        raise PermissionDenied("Only operators, and team administrators for their team, can manage channels.")


def _get_channel(caller: Any, channel: int) -> Channel:
    """The channel, locked. Raises NotFound for channels of other teams."""
    rows = Channel.objects.select_related("team").select_for_update(of=("self",))
    if not caller.acts_for_all_teams:
        rows = rows.filter(team__in=caller.teams())
    row: Channel = find_or_404(rows, "channel", pk=channel)
    _require_channel_admin(caller, row.team_id)
    return row


class Channels(ActionEndpoint, ListEndpoint):
    """Channels that receive incident notices: e-mail, signed webhooks, Slack or Mattermost."""

    tag = "Notifications"
    what = "channels"
    shape = CHANNEL_SHAPE
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.OPERATE, says="List the channels that you manage", answer=CHANNEL_SHAPE, many=True
        ),
        "POST": EndpointRule(
            scope=TokenScope.OPERATE,
            says="Add a channel",
            body=CHANNEL_REQUEST_SHAPE,
            answer=ADDED_CHANNEL_SHAPE,
            status=201,
        ),
    }

    def rows(self) -> QuerySet[Channel]:
        if self.caller.acts_for_all_teams:
            return Channel.objects.all()
        return Channel.objects.filter(team__in=self.caller.teams(TeamRole.ADMIN))

    def work(self) -> Response:
        values = self.body(
            {
                "kind": parsing.choice_reader(CHANNEL_KINDS),
                "target": parsing.text_reader(500),
                "team": parsing.text_reader(40),
                "scope": parsing.choice_reader(INCIDENT_SCOPES),
                "min_gpu_hours": parsing.integer_reader(0, MAX_GPU_HOURS),
            },
            "a channel",
        )
        for name in ("kind", "target"):
            if not values.get(name):
                raise InvalidField(name, "is required")
        team = self.caller.teams().filter(name=values["team"]).first() if "team" in values else None
        if "team" in values and team is None:
            raise InvalidField("team", f"you are not a member of team {parsing.short_repr(values['team'])}")
        _require_channel_admin(self.caller, team.pk if team else None)
        row = notice_actions.add_channel(
            values["kind"], values["target"], author=self.author, team_id=team.pk if team else None,
            scope=values.get("scope", ""), min_gpu_hours=values.get("min_gpu_hours", 0),
            allowed=settings.ACME_WEBHOOK_NETWORKS,
        )  # fmt: skip
        row.refresh_from_db()
        return Response(ADDED_CHANNEL_SHAPE.show(row), status=201)


class OneChannel(ApiEndpoint):
    """Switches a channel on or off."""

    tag = "Notifications"
    rules = {
        "PATCH": EndpointRule(
            scope=TokenScope.OPERATE,
            says="Switch a channel on or off",
            body=CHANNEL_SWITCH_SHAPE,
            answer=CHANNEL_SHAPE,
            team=True,
            conflicts=True,
        )
    }

    def patch(self, request: Any, channel: int) -> Response:
        reject_unknown_params(request)
        values = self.body({"is_enabled": parsing.read_bool}, "a channel")
        if "is_enabled" not in values:
            raise InvalidField("is_enabled", "is required")
        with transaction.atomic():
            row = _get_channel(self.caller, channel)
            etags.check_if_match(request, CHANNEL_SHAPE.show(row))
            notice_actions.switch_channel(row, values["is_enabled"], author=self.author)
        shown = CHANNEL_SHAPE.show(row)
        return Response(shown, headers={"ETag": etags.etag(shown)})


class RemoveChannel(ActionEndpoint):
    """Removes a channel."""

    tag = "Notifications"
    rules = {
        "POST": EndpointRule(
            scope=TokenScope.OPERATE, says="Remove a channel", body=NOTHING_SHAPE, answer=CHANNEL_SHAPE, team=True
        )
    }

    def work(self, channel: int) -> Response:
        self.body({}, "the verb remove")
        row = _get_channel(self.caller, channel)
        shown = CHANNEL_SHAPE.show(row)
        etags.check_if_match(self.request, shown)
        notice_actions.remove_channel(row, author=self.author)
        return Response(shown)
