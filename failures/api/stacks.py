"""The REST API of the stacks of hanging attempts. They come from logs, so only members of the team see them."""

from __future__ import annotations

from django.db.models import QuerySet

from failures.models import StackDump
from jobs.models import Attempt, TokenScope
from jobs.rest.endpoint import ListEndpoint, find_or_404
from jobs.rest.permissions import EndpointRule
from jobs.rest.shapes import ResourceShape, attribute_path, datetime_field, integer_field, text_field, text_list_field

STACKS_SHAPE = ResourceShape(
    "Stacks",
    {
        "id": integer_field(),
        "attempt": text_field(get=attribute_path("attempt.key"), needs=("attempt__key",)),
        "incident": integer_field(get=attribute_path("incident_id"), needs=("incident_id",)),
        "requested_at": datetime_field(),
        "until": datetime_field("Recovery waits for the stacks until this time at most."),
        "closed_at": datetime_field("Null: the stacks have not arrived yet.", nullable=True),
        "ranks": integer_field("Number of ranks whose stacks have arrived."),
        "summary": text_list_field("Summary of the stacks, or why there are none."),
        "size": integer_field("Size of the stacks in bytes, before truncation."),
        "text": text_field("Text of the stacks, possibly truncated.", needs=("packed",)),
    },
)


class AttemptStacks(ListEndpoint):
    """The stack dumps of an attempt, newest first."""

    tag = "Failures"
    what = "stacks"
    shape = STACKS_SHAPE
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ, says="List the stack dumps of an attempt", answer=STACKS_SHAPE, many=True, team=True
        )
    }

    def rows(self, attempt: str) -> QuerySet[StackDump]:
        visible = Attempt.objects.filter(job__in=self.caller.jobs().values("pk"))
        row = find_or_404(visible.only("pk"), "attempt", key=attempt)
        return StackDump.objects.filter(attempt=row.pk)
