"""What diagnoses, incidents and figures look like from outside."""

from __future__ import annotations

from typing import Any

from failures.diagnosis.labels import LABELS
from failures.diagnosis.values import Category, Restart
from failures.grouping import Scope
from failures.models import Review, Standing
from failures.statistics import BY
from jobs.door.shapes import Field, Shape, at, many, moment, number, text, texts, truth
from jobs.lifecycle import Kind


def real(says: str = "", **more: Any) -> Field:
    kind: Any = ["number", "null"] if more.pop("nullable", False) else "number"
    return Field(schema={"type": kind} | ({"description": says} if says else {}), **more)


def items(shape: Shape, says: str = "", **more: Any) -> Field:
    """A list that is kept as JSON: shown as it is."""
    return many(shape, says, **more)


EVIDENCE = Shape(
    "Evidence",
    {
        "line": number("In the log, counted from 1; 0 is how it ended."),
        "text": text(),
        "rank": number(nullable=True),
        "host": text(),
        "time": text("As the log writes it."),
        "signature": text("The rule that found it."),
        "count": number("How often it was seen."),
    },
)
LINK = Shape(
    "ChainLink",
    {
        "role": text("The cause is initiating; cascade and teardown followed from it."),
        "label": text(),
        "line": number(),
        "text": text(),
        "time": text(),
        "count": number(),
        "ranks": Field(schema={"type": "array", "items": {"type": "integer"}}),
    },
)
SUSPECT_NODE = Shape("SuspectNode", {"host": text(), "why": text()})
SUSPECT_GPU = Shape("SuspectGpu", {"host": text(), "pci": text(), "rank": number(nullable=True), "why": text()})
ALTERNATIVE = Shape("Alternative", {"root_cause": text(), "score": real(), "line": number()})

VERDICT: dict[str, Field] = {
    "root_cause": text("None: nothing failed. Unknown: the cause is not in the text."),
    "category": text(choices=[one.value for one in Category]),
    "confidence": real("The share of such answers that were right when they were measured."),
    "evidence": items(EVIDENCE, "The line itself first."),
    "chain": items(LINK, "From the cause to what it led to."),
    "suspect_nodes": items(SUSPECT_NODE),
    "suspect_gpus": items(SUSPECT_GPU),
    "restart_helps": text(choices=[one.value for one in Restart]),
    "restart_reason": text(),
    "action": text("What to do."),
    "alternatives": items(ALTERNATIVE),
    "blame": text("node, gpu, network, storage, scheduler, job; empty where nobody can say."),
    "engine": text("What said so: signature, or cluster for what the cluster knows of the end."),
    "rules_version": text("The same text under the same rules gets the same answer."),
    "lines": number("Of the log."),
    "size": number("Of the log, in bytes."),
    "notes": texts(),
}

DIAGNOSIS = Shape(
    "Diagnosis",
    {
        "id": text("Of the attempt.", get=at("attempt.key"), needs=("attempt__key",)),
        "job": text(get=at("attempt.job.public_id"), needs=("attempt__job__public_id",)),
        "attempt": number("Its number.", get=at("attempt.number"), needs=("attempt__number",)),
        "cluster": text(get=at("cluster.name"), needs=("cluster__name",)),
        "team": text(get=at("attempt.job.team.name"), needs=("attempt__job__team__name",)),
        "user": text(get=at("attempt.job.user.username"), needs=("attempt__job__user__username",)),
        "kind": text(get=at("attempt.job.kind"), needs=("attempt__job__kind",)),
        "failed_at": moment("When the attempt ended."),
        "judged_at": moment("Null: its log is still to be read.", nullable=True),
        **VERDICT,
        "gpus": number(),
        "gpu_hours": real("From its start to its end.", needs=("gpus", "ran")),
        "gpu_hours_lost": real("Of these, since the last checkpoint.", needs=("gpus", "lost")),
        "said": text("What the engine had answered; root_cause is what counts."),
        "review": text(choices=Review.values),
        "reviewed_by": text(get=at("reviewed_by.username"), needs=("reviewed_by__username",), nullable=True),
        "reviewed_at": moment(nullable=True),
        "review_note": text(),
        "incident": number(get=at("incident_id"), needs=("incident_id",), nullable=True),
        "bundle_size": number("Bytes of evidence that are kept for good."),
        "bundle": text("The evidence: @LINE xCOUNT | text.", get=at("bundle_text"), needs=("bundle",), listed=False),
    },
)
LONG = ("evidence", "chain", "alternatives", "notes", "suspect_gpus")
DIAGNOSIS = Shape(
    DIAGNOSIS.name,
    {
        name: Field(schema=one.schema, get=one.get, needs=one.needs, joins=one.joins, listed=False)
        if name in LONG
        else one
        for name, one in DIAGNOSIS.fields.items()
    },
)

REVIEW = Shape(
    "DiagnosisReview",
    {
        "root_cause": text("Correct it to this.", choices=LABELS, required=False),
        "confirmed": truth("True: it is as it stands.", required=False),
        "note": text("Kept with the review.", required=False),
    },
    example={"root_cause": "NVLinkError", "note": "link 3 of seren-007, seen in dmesg"},
)

PASTED = Shape(
    "DiagnoseRequest",
    {
        "log": text("The text, or its end."),
        "exit_code": number(low=-255, high=2**31 - 1, required=False),
        "signal": number(low=1, high=64, required=False),
    },
    example={"log": "RuntimeError: CUDA error: uncorrectable NVLink error detected", "exit_code": 1},
)
PASTED_VERDICT = Shape("Verdict", VERDICT)

INVOLVED = Shape(
    "InvolvedAttempt",
    {
        "id": text("Of the attempt."),
        "job": text(),
        "team": text(),
        "user": text(),
        "root_cause": text(),
        "failed_at": moment(),
        "gpu_hours_lost": real(),
    },
)
INCIDENT = Shape(
    "Incident",
    {
        "id": number(),
        "cluster": text(get=at("cluster.name"), needs=("cluster__name",)),
        "root_cause": text(),
        "category": text(choices=[one.value for one in Category]),
        "scope": text(
            "node: a sick node; service: the fabric, a store; job: the program.", choices=[one.value for one in Scope]
        ),
        "subject": text("The node, the service or the job that it is about."),
        "state": text(choices=Standing.values),
        "first_symptom_at": moment(),
        "last_symptom_at": moment(),
        "opened_at": moment(),
        "acknowledged_at": moment(nullable=True),
        "acknowledged_by": text(),
        "resolved_at": moment(nullable=True),
        "resolved_by": text(),
        "resolved_why": text(),
        "attempts": number("That died of it, those of other teams too."),
        "gpu_hours_lost": real(),
        "nodes": texts(
            get=lambda row: [node.name for node in row.nodes.all()], needs=(), joins=("nodes",), listed=False
        ),
        "involved": many(
            INVOLVED,
            "The attempts that you may see.",
            get=lambda row: [INVOLVED.show(one) for one in row.involved],
            needs=(),
            listed=False,
        ),
    },
)

FAILURE_ROW = Shape(
    "FailureRow",
    {
        "category": text("Of a cause; the cluster of a node."),
        "reason": text("The cause, node, team or kind."),
        "num": number("Failures."),
        "gpu_demand_avg": real(),
        "gpu_demand_median": real(),
        "time_to_failure_min_avg": real("Minutes from start to failure."),
        "time_to_failure_min_median": real(),
        "gpu_time_share_pct": real("Of the GPU time of all failures of the table."),
        "time_to_restart_min_avg": real("Minutes until the job ran again; null: none did.", nullable=True),
        "time_to_restart_min_median": real(nullable=True),
        "restarted": number("How many ran again."),
        "gpu_hours": real(),
        "gpu_hours_lost": real("Since the last checkpoint."),
    },
)
FAILURE_TABLE = Shape(
    "FailureTable",
    {
        "from": moment(),
        "to": moment(),
        "by": text(choices=BY),
        "num": number(),
        "gpu_hours": real(),
        "gpu_hours_lost": real(),
        "rows": many(FAILURE_ROW, "The most GPU time first."),
    },
)
KINDS = list(Kind)
