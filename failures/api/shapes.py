"""What diagnoses, incidents and figures look like from outside."""

from __future__ import annotations

from typing import Any

from failures.diagnosis.labels import LABELS
from failures.diagnosis.values import FailureCategory, RestartAdvice
from failures.incidents.grouping import IncidentScope
from failures.models import DiagnosisReview, IncidentState
from failures.queries.failure_statistics import GROUPINGS
from jobs.core.lifecycle import JobKind
from jobs.rest.shapes import (
    ResourceShape,
    ShapeField,
    attribute_path,
    boolean_field,
    datetime_field,
    integer_field,
    nested_list_field,
    text_field,
    text_list_field,
)


def float_field(says: str = "", **more: Any) -> ShapeField:
    kind: Any = ["number", "null"] if more.pop("nullable", False) else "number"
    return ShapeField(schema={"type": kind} | ({"description": says} if says else {}), **more)


def json_list_field(shape: ResourceShape, says: str = "", **more: Any) -> ShapeField:
    """A list that is kept as JSON: shown as it is."""
    return nested_list_field(shape, says, **more)


EVIDENCE_SHAPE = ResourceShape(
    "Evidence",
    {
        "line": integer_field("In the log, counted from 1; 0 is how it ended."),
        "text": text_field(),
        "rank": integer_field(nullable=True),
        "host": text_field(),
        "time": text_field("As the log writes it."),
        "signature": text_field("The rule that found it."),
        "count": integer_field("How often it was seen."),
    },
)
CHAIN_LINK_SHAPE = ResourceShape(
    "ChainLink",
    {
        "role": text_field("The cause is initiating; cascade and teardown followed from it."),
        "label": text_field(),
        "line": integer_field(),
        "text": text_field(),
        "time": text_field(),
        "count": integer_field(),
        "ranks": ShapeField(schema={"type": "array", "items": {"type": "integer"}}),
    },
)
SUSPECT_NODE_SHAPE = ResourceShape("SuspectNode", {"host": text_field(), "why": text_field()})
SUSPECT_GPU_SHAPE = ResourceShape(
    "SuspectGpu", {"host": text_field(), "pci": text_field(), "rank": integer_field(nullable=True), "why": text_field()}
)
ALTERNATIVE_SHAPE = ResourceShape(
    "Alternative", {"root_cause": text_field(), "score": float_field(), "line": integer_field()}
)

VERDICT_FIELDS: dict[str, ShapeField] = {
    "root_cause": text_field("None: nothing failed. Unknown: the cause is not in the text."),
    "category": text_field(choices=[one.value for one in FailureCategory]),
    "confidence": float_field("The share of such answers that were right when they were measured."),
    "evidence": json_list_field(EVIDENCE_SHAPE, "The line itself first."),
    "chain": json_list_field(CHAIN_LINK_SHAPE, "From the cause to what it led to."),
    "suspect_nodes": json_list_field(SUSPECT_NODE_SHAPE),
    "suspect_gpus": json_list_field(SUSPECT_GPU_SHAPE),
    "restart_helps": text_field(choices=[one.value for one in RestartAdvice]),
    "restart_reason": text_field(),
    "action": text_field("What to do."),
    "alternatives": json_list_field(ALTERNATIVE_SHAPE),
    "blame": text_field("node, gpu, network, storage, scheduler, job; empty where nobody can say."),
    "engine": text_field("What said so: signature, or cluster for what the cluster knows of the end."),
    "rules_version": text_field("The same text under the same rules gets the same answer."),
    "lines": integer_field("Of the log."),
    "size": integer_field("Of the log, in bytes."),
    "notes": text_list_field(),
}

DIAGNOSIS_SHAPE = ResourceShape(
    "Diagnosis",
    {
        "id": text_field("Of the attempt.", get=attribute_path("attempt.key"), needs=("attempt__key",)),
        "job": text_field(get=attribute_path("attempt.job.public_id"), needs=("attempt__job__public_id",)),
        "attempt": integer_field("Its number.", get=attribute_path("attempt.number"), needs=("attempt__number",)),
        "cluster": text_field(get=attribute_path("cluster.name"), needs=("cluster__name",)),
        "team": text_field(get=attribute_path("attempt.job.team.name"), needs=("attempt__job__team__name",)),
        "user": text_field(get=attribute_path("attempt.job.user.username"), needs=("attempt__job__user__username",)),
        "kind": text_field(get=attribute_path("attempt.job.kind"), needs=("attempt__job__kind",)),
        "failed_at": datetime_field("When the attempt ended."),
        "judged_at": datetime_field("Null: its log is still to be read.", nullable=True),
        **VERDICT_FIELDS,
        "gpus": integer_field(),
        "gpu_hours": float_field("From its start to its end.", needs=("gpus", "ran")),
        "gpu_hours_lost": float_field("Of these, since the last checkpoint.", needs=("gpus", "lost")),
        "said": text_field("What the engine had answered; root_cause is what counts."),
        "review": text_field(choices=DiagnosisReview.values),
        "reviewed_by": text_field(
            get=attribute_path("reviewed_by.username"), needs=("reviewed_by__username",), nullable=True
        ),
        "reviewed_at": datetime_field(nullable=True),
        "review_note": text_field(),
        "incident": integer_field(get=attribute_path("incident_id"), needs=("incident_id",), nullable=True),
        "bundle_size": integer_field("Bytes of evidence that are kept for good."),
        "bundle": text_field(
            "The evidence: @LINE xCOUNT | text.", get=attribute_path("bundle_text"), needs=("bundle",), in_lists=False
        ),
    },
)
DETAIL_ONLY_FIELDS = ("evidence", "chain", "alternatives", "notes", "suspect_gpus")
DIAGNOSIS_SHAPE = ResourceShape(
    DIAGNOSIS_SHAPE.name,
    {
        name: ShapeField(schema=one.schema, get=one.get, needs=one.needs, joins=one.joins, in_lists=False)
        if name in DETAIL_ONLY_FIELDS
        else one
        for name, one in DIAGNOSIS_SHAPE.fields.items()
    },
)

REVIEW_SHAPE = ResourceShape(
    "DiagnosisReview",
    {
        "root_cause": text_field("Correct it to this.", choices=LABELS, required=False),
        "confirmed": boolean_field("True: it is as it stands.", required=False),
        "note": text_field("Kept with the review.", required=False),
    },
    example={"root_cause": "NVLinkError", "note": "link 3 of seren-007, seen in dmesg"},
)

PASTED_LOG_SHAPE = ResourceShape(
    "DiagnoseRequest",
    {
        "log": text_field("The text, or its end."),
        "exit_code": integer_field(low=-255, high=2**31 - 1, required=False),
        "signal": integer_field(low=1, high=64, required=False),
    },
    example={"log": "RuntimeError: CUDA error: uncorrectable NVLink error detected", "exit_code": 1},
)
PASTED_VERDICT_SHAPE = ResourceShape("Verdict", VERDICT_FIELDS)

INVOLVED_ATTEMPT_SHAPE = ResourceShape(
    "InvolvedAttempt",
    {
        "id": text_field("Of the attempt."),
        "job": text_field(),
        "team": text_field(),
        "user": text_field(),
        "root_cause": text_field(),
        "failed_at": datetime_field(),
        "gpu_hours_lost": float_field(),
    },
)
INCIDENT_SHAPE = ResourceShape(
    "Incident",
    {
        "id": integer_field(),
        "cluster": text_field(get=attribute_path("cluster.name"), needs=("cluster__name",)),
        "root_cause": text_field(),
        "category": text_field(choices=[one.value for one in FailureCategory]),
        "scope": text_field(
            "node: a sick node; service: the fabric, a store; job: the program.",
            choices=[one.value for one in IncidentScope],
        ),
        "subject": text_field("The node, the service or the job that it is about."),
        "state": text_field(choices=IncidentState.values),
        "first_symptom_at": datetime_field(),
        "last_symptom_at": datetime_field(),
        "opened_at": datetime_field(),
        "acknowledged_at": datetime_field(nullable=True),
        "acknowledged_by": text_field(),
        "resolved_at": datetime_field(nullable=True),
        "resolved_by": text_field(),
        "resolved_why": text_field(),
        "attempts": integer_field("That died of it, those of other teams too."),
        "gpu_hours_lost": float_field(),
        "nodes": text_list_field(
            get=lambda row: [node.name for node in row.nodes.all()], needs=(), joins=("nodes",), in_lists=False
        ),
        "involved": nested_list_field(
            INVOLVED_ATTEMPT_SHAPE,
            "The attempts that you may see.",
            get=lambda row: [INVOLVED_ATTEMPT_SHAPE.show(one) for one in row.involved],
            needs=(),
            in_lists=False,
        ),
    },
)

FAILURE_ROW_SHAPE = ResourceShape(
    "FailureRow",
    {
        "category": text_field("Of a cause; the cluster of a node."),
        "reason": text_field("The cause, node, team or kind."),
        "num": integer_field("Failures."),
        "gpu_demand_avg": float_field(),
        "gpu_demand_median": float_field(),
        "time_to_failure_min_avg": float_field("Minutes from start to failure."),
        "time_to_failure_min_median": float_field(),
        "gpu_time_share_pct": float_field("Of the GPU time of all failures of the table."),
        "time_to_restart_min_avg": float_field("Minutes until the job ran again; null: none did.", nullable=True),
        "time_to_restart_min_median": float_field(nullable=True),
        "restarted": integer_field("How many ran again."),
        "gpu_hours": float_field(),
        "gpu_hours_lost": float_field("Since the last checkpoint."),
    },
)
FAILURE_TABLE_SHAPE = ResourceShape(
    "FailureTable",
    {
        "from": datetime_field(),
        "to": datetime_field(),
        "by": text_field(choices=GROUPINGS),
        "num": integer_field(),
        "gpu_hours": float_field(),
        "gpu_hours_lost": float_field(),
        "rows": nested_list_field(FAILURE_ROW_SHAPE, "The most GPU time first."),
    },
)
JOB_KINDS = list(JobKind)
