"""Where the ranks of an attempt stood when it hung, through the programs' door: words of a log, so its team's."""

from __future__ import annotations

from django.db.models import QuerySet

from failures.models import StackDump
from jobs.door.endpoint import Listing, found
from jobs.door.rights import Rule
from jobs.door.shapes import Shape, at, moment, number, text, texts
from jobs.models import Attempt, Scope

STACKS = Shape(
    "Stacks",
    {
        "id": number(),
        "attempt": text(get=at("attempt.key"), needs=("attempt__key",)),
        "incident": number(get=at("incident_id"), needs=("incident_id",)),
        "asked_at": moment(),
        "until": moment("Nothing is decided before they have come, or before this."),
        "closed_at": moment("Null: they are waited for.", nullable=True),
        "ranks": number("That have said where they stand."),
        "sentences": texts("What the stacks say, or why there are none."),
        "size": number("Of the stacks, in bytes."),
        "text": text("The stacks, as far as they are kept.", needs=("packed",)),
    },
)


class AttemptStacks(Listing):
    """The stacks of an attempt's ranks, each time that they were asked for, the newest first."""

    tag = "Failures"
    what = "stacks"
    shape = STACKS
    rules = {
        "GET": Rule(scope=Scope.READ, says="Where the ranks of an attempt stood", answer=STACKS, many=True, team=True)
    }

    def rows(self, attempt: str) -> QuerySet[StackDump]:
        mine = Attempt.objects.filter(job__in=self.caller.jobs().values("pk"))
        row = found(mine.only("pk"), "attempt", key=attempt)
        return StackDump.objects.filter(attempt=row.pk)
