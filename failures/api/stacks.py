"""Where the ranks of an attempt stood when it hung, through the programs' door: words of a log, so its team's."""

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
        "asked_at": datetime_field(),
        "until": datetime_field("Nothing is decided before they have come, or before this."),
        "closed_at": datetime_field("Null: they are waited for.", nullable=True),
        "ranks": integer_field("That have said where they stand."),
        "sentences": text_list_field("What the stacks say, or why there are none."),
        "size": integer_field("Of the stacks, in bytes."),
        "text": text_field("The stacks, as far as they are kept.", needs=("packed",)),
    },
)


class AttemptStacks(ListEndpoint):
    """The stacks of an attempt's ranks, each time that they were asked for, the newest first."""

    tag = "Failures"
    what = "stacks"
    shape = STACKS_SHAPE
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ, says="Where the ranks of an attempt stood", answer=STACKS_SHAPE, many=True, team=True
        )
    }

    def rows(self, attempt: str) -> QuerySet[StackDump]:
        mine = Attempt.objects.filter(job__in=self.caller.jobs().values("pk"))
        row = find_or_404(mine.only("pk"), "attempt", key=attempt)
        return StackDump.objects.filter(attempt=row.pk)
