"""Why a job waits, through the programs' door."""

from __future__ import annotations

from typing import Any

from django.urls import path
from rest_framework.response import Response

from jobs.api.shapes import DEPENDENCY, ID, STATES, title_of
from jobs.door.endpoint import Endpoint, found, refuse_unknown
from jobs.door.rights import Rule
from jobs.door.shapes import Shape, fraction, many, moment, number, one, plain, seconds, text
from jobs.models import Hold, Scope
from scheduling.engine.blockers import BlockerKind
from scheduling.engine.changes import Who
from scheduling.explaining import Answer, why
from scheduling.models import Lead

HOLDER = Shape(
    "Holder",
    {
        "job": text("Empty: several jobs together, or jobs of teams that are not yours."),
        "title": text("What its owner calls it."),
        "team": text("Empty: teams that are not yours."),
        "jobs": number(low=1),
        "gpus": number(low=0),
        "ends_at": moment("At its time limit.", nullable=True),
    },
)
BLOCKER = Shape(
    "Blocker",
    {
        "kind": text(choices=BlockerKind),
        "reason": text("Slurm's word."),
        "why": text("The same as a sentence."),
        "gpus": number("Missing, over the quota, or asked for by those ahead.", low=0),
        "nodes": number("That lack room for its share.", low=0),
        "jobs": number("Ahead of it, or waited for.", low=0),
        "holders": many(HOLDER, get=lambda row: [HOLDER.show(holder) for holder in row.holders]),
    },
)
CHANGE = Shape(
    "Change",
    {
        "kind": text("gpus, nodes, model, limit, preemptible, quota, end …; two of them joined by a plus."),
        "who": text("Who could do it: its owner, an operator, or time.", choices=Who),
        "why": text("A sentence. It was tried on the cluster as it is: with this change, the job starts."),
        "cost": fraction("0 gives nothing up. The changes come the cheapest first."),
    },
)
START = Shape(
    "StartEstimate",
    {
        "p50": moment("As likely before as after."),
        "p90": moment("Nine of ten times before."),
        "made_at": moment("Of the forecast.", nullable=True),
    },
)
ERROR = Shape(
    "EstimateError",
    {
        "lead": text("How far ahead those estimates looked.", choices=Lead.values),
        "jobs": number("That were judged, over the last seven days.", low=1),
        "median_s": seconds(
            "Half of the jobs started nearer to the first estimate that they got.",
            get=lambda error: round(error.median_s),
        ),
        "within_p90": fraction("Part of them that had started by their P90."),
    },
)
EXPLANATION = Shape(
    "Explanation",
    {
        "id": text(ID.schema["description"]),
        "state": text(choices=STATES),
        "title": text(),
        "reason": text("Slurm's word: Resources, Priority, Dependency, JobHeldUser …"),
        "why": text("The same as a sentence, as the last turn left it; empty for a job that does not wait."),
        "hold": text("Who holds it.", choices=Hold.values),
        "begin_at": moment("Not before.", nullable=True),
        "waits_for": many(DEPENDENCY, "Jobs that must end first."),
        "at": moment("When the rest was worked out."),
        "blockers": many(BLOCKER, "What keeps it back, the weightiest first; empty: it starts with the next turn."),
        "smallest_change": one(CHANGE, "What would start it now, at the least cost.", nullable=True),
        "other_changes": many(CHANGE, "What would do as well, at more."),
        "estimate": one(START, "When it will start.", nullable=True),
        "past_error": one(ERROR, "How far off such estimates were.", nullable=True),
    },
)


class JobExplanation(Endpoint):
    """Why it waits, what would start it now, and when it will start."""

    tag = "Jobs"
    rules = {
        "GET": Rule(
            scope=Scope.READ,
            says="Why a job waits, what would start it now, and when it will start",
            answer=EXPLANATION,
            team=True,
        )
    }

    def get(self, request: Any, id: str) -> Response:
        refuse_unknown(request)
        rows = self.caller.jobs().select_related("cluster").prefetch_related("dependencies__on")
        job = found(rows, "job", public_id=id)
        teams = None if self.caller.everywhere else set(self.caller.teams().values_list("name", flat=True))
        return Response(shown(job, why(job, teams)))


def shown(job: Any, answer: Answer) -> dict[str, Any]:
    estimate, judged = answer.estimate, answer.judged
    return {
        "id": job.public_id,
        "state": job.state,
        "title": title_of(job),
        "reason": job.reason,
        "why": job.why,
        "hold": job.hold,
        "begin_at": plain(job.begin_at),
        "waits_for": [DEPENDENCY.show(one) for one in job.dependencies.all()],
        "at": plain(answer.at),
        "blockers": [BLOCKER.show(blocker) for blocker in answer.blockers],
        "smallest_change": CHANGE.show(answer.smallest) if answer.smallest else None,
        "other_changes": [CHANGE.show(change) for change in answer.others],
        "estimate": {"p50": plain(estimate.p50), "p90": plain(estimate.p90), "made_at": plain(answer.estimated_at)}
        if estimate
        else None,
        "past_error": ERROR.show(judged) if judged else None,
    }


urlpatterns = [path("jobs/<public_id:id>/explain/", JobExplanation.as_view())]
