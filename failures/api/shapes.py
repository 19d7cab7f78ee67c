"""The shapes of diagnoses, incidents and failure statistics in the REST API."""

from __future__ import annotations

from typing import Any

from failures.diagnosis.labels import LABELS
from failures.diagnosis.values import FailureCategory, RestartAdvice
from failures.incidents.grouping import IncidentScope
from failures.models import DiagnosisReview, IncidentState
from failures.queries.failure_statistics import GROUPINGS
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
    """A list that is stored as JSON and returned unchanged."""
    return nested_list_field(shape, says, **more)


EVIDENCE_SHAPE = ResourceShape(
    "Evidence",
    {
        "line": integer_field("Line number in the log, starting at 1. 0: the exit status."),
        "text": text_field(),
        "rank": integer_field(nullable=True),
        "host": text_field(),
        "time": text_field("Time as written in the log."),
        "signature": text_field("Rule that matched the line."),
        "count": integer_field("Number of occurrences."),
    },
)
CHAIN_LINK_SHAPE = ResourceShape(
    "ChainLink",
    {
        "role": text_field("initiating: the cause; cascade and teardown: its consequences."),
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
    "root_cause": text_field("None: nothing failed. Unknown: the text does not contain the cause."),
    "category": text_field(choices=[one.value for one in FailureCategory]),
    "confidence": float_field("Fraction of such diagnoses that were right in evaluations."),
    "evidence": json_list_field(EVIDENCE_SHAPE, "Lines of the log, the most important first."),
    "chain": json_list_field(CHAIN_LINK_SHAPE, "Causal chain, from the cause to its consequences."),
    "suspect_nodes": json_list_field(SUSPECT_NODE_SHAPE),
    "suspect_gpus": json_list_field(SUSPECT_GPU_SHAPE),
    "restart_helps": text_field(choices=[one.value for one in RestartAdvice]),
    "restart_reason": text_field(),
    "action": text_field("Recommended action."),
    "alternatives": json_list_field(ALTERNATIVE_SHAPE),
    "blame": text_field("node, gpu, network, storage, scheduler or job. Empty if unknown."),
    "engine": text_field(
        "Source of the diagnosis: signature (the log), cluster (its report), detector (a running attempt)."
    ),
    "rules_version": text_field("Version of the rules. The same text with the same rules gets the same diagnosis."),
    "lines": integer_field("Number of lines in the log."),
    "size": integer_field("Size of the log in bytes."),
    "notes": text_list_field(),
}

DIAGNOSIS_SHAPE = ResourceShape(
    "Diagnosis",
    {
        "id": text_field("Attempt id.", get=attribute_path("attempt.key"), needs=("attempt__key",)),
        "job": text_field(get=attribute_path("attempt.job.public_id"), needs=("attempt__job__public_id",)),
        "attempt": integer_field("Attempt number.", get=attribute_path("attempt.number"), needs=("attempt__number",)),
        "cluster": text_field(get=attribute_path("cluster.name"), needs=("cluster__name",)),
        "team": text_field(get=attribute_path("attempt.job.team.name"), needs=("attempt__job__team__name",)),
        "user": text_field(get=attribute_path("attempt.job.user.username"), needs=("attempt__job__user__username",)),
        "kind": text_field(get=attribute_path("attempt.job.kind"), needs=("attempt__job__kind",)),
        "failed_at": datetime_field("End of the attempt."),
        "judged_at": datetime_field("Time of the diagnosis. Null: the log is not read yet.", nullable=True),
        **VERDICT_FIELDS,
        "gpus": integer_field(),
        "gpu_hours": float_field("GPU-hours of the attempt.", needs=("gpus", "ran")),
        "gpu_hours_lost": float_field("GPU-hours since the last checkpoint.", needs=("gpus", "lost")),
        "engine_root_cause": text_field("Root cause named by the engine, before any correction."),
        "review": text_field(choices=DiagnosisReview.values),
        "reviewed_by": text_field(
            get=attribute_path("reviewed_by.username"), needs=("reviewed_by__username",), nullable=True
        ),
        "reviewed_at": datetime_field(nullable=True),
        "review_note": text_field(),
        "incident": integer_field(get=attribute_path("incident_id"), needs=("incident_id",), nullable=True),
        "bundle_size": integer_field("Size of the evidence bundle in bytes."),
        "bundle": text_field(
            "Evidence bundle. Each line: @LINE xCOUNT | text.",
            get=attribute_path("bundle_text"),
            needs=("bundle",),
            in_lists=False,
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
        "root_cause": text_field("Correct root cause.", choices=LABELS, required=False),
        "confirmed": boolean_field("True: the diagnosis is right.", required=False),
        "note": text_field("Note stored with the review.", required=False),
    },
    example={"root_cause": "NVLinkError", "note": "link 3 of seren-007, seen in dmesg"},
)

PASTED_LOG_SHAPE = ResourceShape(
    "DiagnoseRequest",
    {
        "log": text_field("Text of the log, or its end."),
        "exit_code": integer_field(low=-255, high=2**31 - 1, required=False),
        "signal": integer_field(low=1, high=64, required=False),
    },
    example={"log": "RuntimeError: CUDA error: uncorrectable NVLink error detected", "exit_code": 1},
)
PASTED_VERDICT_SHAPE = ResourceShape("Verdict", VERDICT_FIELDS)

INVOLVED_ATTEMPT_SHAPE = ResourceShape(
    "InvolvedAttempt",
    {
        "id": text_field("Attempt id."),
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
            "node: a faulty node; service: network or storage; job: the program.",
            choices=[one.value for one in IncidentScope],
        ),
        "subject": text_field("The affected node, service or job."),
        "state": text_field(choices=IncidentState.values),
        "first_symptom_at": datetime_field(),
        "last_symptom_at": datetime_field(),
        "opened_at": datetime_field(),
        "acknowledged_at": datetime_field(nullable=True),
        "acknowledged_by": text_field(),
        "resolved_at": datetime_field(nullable=True),
        "resolved_by": text_field(),
        "resolved_why": text_field(),
        "attempts": integer_field("Number of failed attempts, including those of other teams."),
        "gpu_hours_lost": float_field(),
        "nodes": text_list_field(
            get=lambda row: [node.name for node in row.nodes.all()], needs=(), joins=("nodes",), in_lists=False
        ),
        "involved": nested_list_field(
            INVOLVED_ATTEMPT_SHAPE,
            "Failed attempts of your teams.",
            get=lambda row: [INVOLVED_ATTEMPT_SHAPE.show(one) for one in row.involved],
            needs=(),
            in_lists=False,
        ),
    },
)

FAILURE_ROW_SHAPE = ResourceShape(
    "FailureRow",
    {
        "category": text_field("Category of a cause, or cluster of a node."),
        "reason": text_field("Cause, node, team or job kind."),
        "num": integer_field("Number of failures."),
        "gpu_demand_avg": float_field(),
        "gpu_demand_median": float_field(),
        "time_to_failure_min_avg": float_field("Minutes from start to failure."),
        "time_to_failure_min_median": float_field(),
        "gpu_time_share_pct": float_field("Percentage of the GPU time of all failures in the table."),
        "time_to_restart_min_avg": float_field(
            "Minutes until the job ran again. Null: no job ran again.", nullable=True
        ),
        "time_to_restart_min_median": float_field(nullable=True),
        "restarted": integer_field("Number of jobs that ran again."),
        "gpu_hours": float_field(),
        "gpu_hours_lost": float_field("GPU-hours since the last checkpoint."),
        "kwh_lost": float_field("Energy of that time. Null: no telemetry of energy or power.", nullable=True),
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
        "kwh_lost": float_field("Null: no telemetry of energy or power.", nullable=True),
        "rows": nested_list_field(FAILURE_ROW_SHAPE, "Rows, most GPU time first."),
    },
)
