"""Shapes of the API resources: one table per kind of row and per request body."""

from __future__ import annotations

from typing import Any

from jobs.actions import job_verbs
from jobs.api.request_shapes import job_field, requested_field
from jobs.core.deadlines import UnlikelyDeadlines
from jobs.core.gpu_shares import MPS, SHARD
from jobs.core.lifecycle import POWER, STATE_CODES, NodeState, State, state_title
from jobs.core.preemption_contract import CONTRACT_FIELDS, MAX_EXEMPT_MINUTES, CheckpointClause
from jobs.core.request_fields import MAX_PRIORITY, REQUEST_FIELDS
from jobs.models import (
    Attempt,
    BulkActionState,
    ClusterMode,
    DrainMode,
    HoldKind,
    Job,
    RepairStage,
    SleepMode,
    TeamRole,
    TokenScope,
)
from jobs.models.cluster import CONNECTION_FIELDS, DRIVE_EXPLANATION, SubmitIdentity
from jobs.rest.shapes import (
    ResourceShape,
    ShapeField,
    attribute_path,
    boolean_field,
    datetime_field,
    integer_field,
    nested_field,
    nested_list_field,
    number_field,
    object_field,
    text_field,
    text_list_field,
)

JOB_ID_FIELD = text_field("Short public id that sorts by submission time. Array tasks have the form ID_INDEX.")
STATES = list(State)


def exit_text(row: Any) -> str:
    """`code:signal`, as sacct shows it."""
    return "" if row.exit_code is None and row.signal is None else f"{row.exit_code or 0}:{row.signal or 0}"


def job_title(job: Job) -> str:
    return str(state_title(State(job.state), job.flags))


def _latest_attempt_field(name: str) -> Any:
    """A getter for a value of the newest attempt, which `attach_latest_attempts` has set on the job."""

    def read_latest(job: Any) -> Any:
        attempt: Attempt | None = job.latest_attempt
        return getattr(attempt, name) if attempt else ""

    return read_latest


LATEST_ATTEMPT_FIELDS = frozenset({"nodelist", "backend_id"})  # fetched for a whole page at once

JOB = ResourceShape(
    "Job",
    {
        "id": text_field(JOB_ID_FIELD.schema["description"], get=attribute_path("public_id"), needs=("public_id",)),
        "cluster": text_field(get=attribute_path("cluster.name"), needs=("cluster__name",)),
        "team": text_field(get=attribute_path("team.name"), needs=("team__name",)),
        "user": text_field(get=attribute_path("user.username"), needs=("user__username",)),
        "foreign_user": text_field(
            "User who submitted the job directly to the cluster. Empty for jobs submitted through Acme."
        ),
        "state": text_field("Slurm's base state.", choices=STATES),
        "flags": text_list_field("Slurm's state flags: CONFIGURING, SIGNALING, REQUEUE_HOLD …"),
        "title": text_field(
            "State and flags as one word, as squeue shows it.", get=job_title, needs=("state", "flags")
        ),
        "code": text_field(
            "Short code of the title: PD, R, CG …", get=lambda j: STATE_CODES[job_title(j)], needs=("state", "flags")
        ),
        "reason": text_field("Slurm's reason why the job waits."),
        "why": text_field("The reason as a sentence."),
        "power_budgets": text_list_field(
            "Names of the power budgets that leave too little for the job; empty unless the reason is Power.",
            get=lambda job: job.power_budgets if job.reason == POWER else [],
            needs=("reason", "power_budgets"),
        ),
        **{name: job_field(name, field) for name, field in REQUEST_FIELDS.items() if field.stored},
        "hold": text_field("Who holds the job; empty: not held.", choices=HoldKind.values),
        "preemption": text_field(
            "When the job can be preempted, as a sentence.",
            get=attribute_path("preemption_text"),
            needs=("preemptible", *CONTRACT_FIELDS),
        ),
        "gpus_per_node": number_field(
            "Less than 1: the part of one GPU that it shares with other jobs.",
            get=attribute_path("requested_gpus_per_node"),
            needs=("gpus_per_node", "gpu_milli", "mig_profile"),
        ),
        "gpus": number_field("Total GPUs on all nodes.", needs=("nodes", "gpus_per_node", "gpu_milli")),
        "submitted_at": datetime_field(),
        "deadline_probability": number_field(
            "The last forecast of whether it meets its deadline, from 0 to 1; null: none.", nullable=True, observed=True
        ),
        "deadline_why": text_field("What the forecast results from, or why there is none.", observed=True),
        "started_at": datetime_field(nullable=True),
        "ended_at": datetime_field(nullable=True),
        "exit_code": integer_field(nullable=True),
        "signal": integer_field(nullable=True),
        "exit": text_field("code:signal; empty until it ends.", get=exit_text, needs=("exit_code", "signal")),
        "requeues": integer_field("Requeues used of requeue_limit."),
        "array_id": text_field("Id of the job's array; empty: not an array task."),
        "array_index": integer_field(nullable=True),
        "array_limit": integer_field("Maximum number of tasks of the array that run at once.", nullable=True),
        "nodelist": text_field("Nodes of the newest attempt.", get=_latest_attempt_field("nodelist"), needs=()),
        "backend_id": text_field(
            "The cluster's job id of the newest attempt.", get=_latest_attempt_field("backend_id"), needs=()
        ),
        "dependencies": text_list_field(
            "afterok:ID …",
            get=lambda job: [f"{row.after}:{row.on.public_id}" for row in job.dependencies.all()],
            needs=(),
            joins=("dependencies__on",),
            in_lists=False,
        ),
    },
)

ATTEMPT = ResourceShape(
    "Attempt",
    {
        "id": text_field(
            "Attempt id, also stored by the cluster in the job's comment.", get=attribute_path("key"), needs=("key",)
        ),
        "number": integer_field(),
        "state": text_field(choices=STATES),
        "title": text_field(
            "State as one word; CONFIGURING until the cluster runs the attempt.",
            get=lambda attempt: attempt.badge.label,
            needs=("state", "confirmed_at"),
        ),
        "backend_id": text_field("The cluster's job id."),
        "nodelist": text_field(),
        "promised_at": datetime_field("When GPUs were assigned to the attempt."),
        "started_at": datetime_field(
            "When the cluster started the attempt.",
            get=attribute_path("confirmed_at"),
            needs=("confirmed_at",),
            nullable=True,
        ),
        "ended_at": datetime_field(nullable=True),
        "exit_code": integer_field(nullable=True),
        "signal": integer_field(nullable=True),
        "exit": text_field("code:signal; empty until it ends.", get=exit_text, needs=("exit_code", "signal")),
        "reason": text_field(),
        "stop_state": text_field("Requested final state; empty: no stop requested."),
        "stop_reason": text_field(),
    },
)

EVENT = ResourceShape(
    "Event",
    {
        "id": integer_field(),
        "at": datetime_field(),
        "type": text_field("job.submitted, job.state_changed, node.drained …"),
        "by": text_field("User name, or the name of the Acme process that made the change."),
        "source": text_field("IP address of the request.", nullable=True),
        "request_id": text_field("X-Request-ID of the request that caused the event."),
        "attempt": text_field(get=attribute_path("attempt.key"), needs=("attempt__key",), nullable=True),
        "from_state": text_field(),
        "to_state": text_field(),
        "why": text_field(),
        "detail": object_field(),
    },
)

DEPENDENCY = ResourceShape(
    "Dependency",
    {
        "id": text_field(get=attribute_path("on.public_id")),
        "after": text_field(choices=("afterok", "afterany", "afternotok")),
        "state": text_field(get=attribute_path("on.state"), choices=STATES),
    },
)

NODE = ResourceShape(
    "Node",
    {
        "id": text_field(
            "CLUSTER/NAME.", get=lambda node: f"{node.cluster.name}/{node.name}", needs=("cluster__name", "name")
        ),
        "cluster": text_field(get=attribute_path("cluster.name"), needs=("cluster__name",)),
        "name": text_field(),
        "state": text_field(choices=NodeState),
        "flags": text_list_field(get=attribute_path("all_flags"), needs=("flags", "drain_requested")),
        "title": text_field(
            "State and flags as one word.",
            get=attribute_path("badge.label"),
            needs=("state", "flags", "drain_requested"),
        ),
        "code": text_field(
            "Short state as sinfo shows it: idle, mix, drng …",
            get=attribute_path("badge.code"),
            needs=("state", "flags", "drain_requested"),
        ),
        "is_schedulable": boolean_field(needs=("state", "flags", "drain_requested")),
        "gpus": integer_field(),
        "shards_per_gpu": integer_field("Into how many parts jobs can share each GPU; 0: not at all.", low=0),
        "share_gres": text_field("What Slurm calls these parts.", choices=[SHARD, MPS]),
        "mig_slices": ShapeField(
            schema={
                "type": "object",
                "additionalProperties": {"type": "integer"},
                "description": "Number of MIG slices by profile. Each counts as one of the node's GPUs.",
            }
        ),
        "gpus_allocated": integer_field(
            "GPUs in use by jobs now, also in part.", get=lambda node: node.gpus_allocated, needs=()
        ),
        "gpu_model": text_field(),
        "cpus": integer_field(),
        "memory": integer_field("In MiB.", get=attribute_path("memory_mb"), needs=("memory_mb",)),
        "rack": text_field(),
        "leaf": text_field("Leaf switch."),
        "pod": text_field(),
        "nic_type": text_field(),
        "nic_count": integer_field(),
        "reason": text_field("Why the node is closed."),
        "reason_by": text_field(),
        "reason_at": datetime_field(nullable=True),
        "repair_stage": text_field(
            "Repair stage of the node: repair or burn-in; empty: none.", choices=RepairStage.values
        ),
        "burn_in_until": datetime_field("When the burn-in ends.", nullable=True),
        "since": datetime_field("When the node entered this state."),
        "seen_at": datetime_field("When the cluster last reported the node.", nullable=True),
    },
)

RUNNING_JOB = ResourceShape(
    "RunningJob",
    {
        "id": text_field("Id of the job."),
        "team": text_field(),
        "user": text_field(),
        "gpus": integer_field("GPUs on this node, also in part."),
        "started_at": datetime_field(nullable=True),
        "preemptible": boolean_field(),
        "gpus_in_all": number_field("GPUs of the job on all its nodes."),
        "saved_at": datetime_field("Time of the newest checkpoint in remote storage.", nullable=True),
        "gpu_hours_at_risk": number_field("GPU-hours of the whole job since its last checkpoint."),
    },
)

DRAIN_CONSEQUENCES = ResourceShape(
    "DrainPreview",
    {
        "node": text_field("CLUSTER/NAME."),
        "drained": boolean_field("False for a dry run."),
        "effect": text_field("Effect of the drain, as a sentence."),
        "running": integer_field("Jobs running on the node."),
        "gpus": integer_field("GPUs of the node held by these jobs."),
        "mode": text_field(choices=DrainMode.values),
        "gpu_hours_at_risk": number_field("GPU-hours lost if all these jobs are requeued now."),
        "jobs": nested_list_field(RUNNING_JOB),
    },
)

CLUSTER = ResourceShape(
    "Cluster",
    {
        "id": text_field(get=attribute_path("name"), needs=("name",)),
        "name": text_field(),
        "title": text_field(),
        "mode": text_field("Control mode: what Acme may do on the cluster.", choices=ClusterMode.values),
        "policy": text_field(),
        "gpu_hour_price": number_field("In the server's currency; null: costs are not shown.", nullable=True),
        "kwh_price": number_field("Price of a kWh in hours without an imported price.", nullable=True),
        "co2_g_per_kwh": number_field("Carbon intensity in hours without an imported value.", nullable=True),
        "product": text_field(),
        "last_contact_at": datetime_field("When the cluster last responded.", nullable=True, observed=True),
        "last_error": text_field("Why the last scheduling turn failed; empty: it succeeded.", observed=True),
        "unreadable_count": integer_field(
            "Rows of the cluster's last response that could not be parsed.", observed=True
        ),
        "unreadable_rows": text_field("The unreadable rows with the reasons. Acme ignores these rows.", observed=True),
    },
)

MODE_HELP = (
    f"observe: watch only; advise: propose starts; drive: decide which jobs run where. In drive: {DRIVE_EXPLANATION}"
)


SUBMIT_AS_HELP = (
    "The user as whom jobs run on the cluster. service: the user of Acme's token, for all jobs, so that users and"
    " teams are not isolated there; user_header: the submitting user, named in a header and sent with a token that may"
    " act for others; user_tokens: the submitting user, with a token of their own."
)


WORKLOAD_OWNERS_HELP = (
    'Kubernetes: where the user and the team of a workload are read, such as {"user_from": ["label:user"], "team_from":'
    ' ["label:team", "namespace"], "rename": {"ns-nlp": "nlp"}}. Empty: both are the namespace.'
)
POD_TEMPLATE_HELP = (
    "Kubernetes: namespace, image, allowed images, volumes and resources of the pods of jobs, as described in"
    ' docs/kubernetes.md, such as {"image": "registry.example/train:1", "shared_memory": "64Gi"}.'
)
ADDRESS_FORMS = (
    "Slurm: http://host:6820 or unix:///run/slurmrestd.sock. Kubernetes: kubernetes:///path of a kubeconfig file, or"
    " kubernetes://in-cluster."
)


def _connection_field(name: str, says: str) -> ShapeField:
    """A connection setting; null for callers without a cluster permission (see `clusters.visible_cluster`)."""
    return text_field(
        says, nullable=True, get=lambda row: getattr(row, name) if row.shows_connection else None, needs=(name,)
    )


def _sleep_fields(*, required: bool) -> dict[str, ShapeField]:
    """Whether and how nodes sleep."""
    return {
        "sleep_mode": text_field(
            "Whether nodes that are not needed sleep: propose needs an approval of each.",
            choices=SleepMode.values,
            required=required,
        ),
        "sleep_reserve_nodes": integer_field(
            "Idle nodes of each kind of hardware that stay awake.", low=0, high=100_000, required=required
        ),
        "min_awake_minutes": integer_field(
            "How long a node stays awake after it has woken up.", low=0, high=10_080, required=required
        ),
        "min_asleep_minutes": integer_field(
            "How long a node sleeps at least, unless a job starts on it.", low=0, high=10_080, required=required
        ),
        "max_wakes_per_day": integer_field(
            "A node that woke up so often within 24 hours stays awake.", low=1, high=144, required=required
        ),
        "boot_minutes": integer_field(
            "How long a node takes to wake up, until Acme has measured it.", low=1, high=240, required=required
        ),
    }


def _contract_limit_fields(*, required: bool) -> dict[str, ShapeField]:
    """What jobs may ask for as protection from preemption."""
    return {
        "min_exempt_minutes": integer_field(
            "How long each preemptible job is protected after a start.",
            low=0,
            high=MAX_EXEMPT_MINUTES,
            required=required,
        ),
        "max_exempt_minutes": integer_field(
            "The longest protection that jobs may ask for; 0: none.", low=0, high=MAX_EXEMPT_MINUTES, required=required
        ),
        "checkpoint_clause": text_field(
            "Whether jobs may state that they are preempted only right after a checkpoint.",
            choices=[clause.value for clause in CheckpointClause],
            required=required,
        ),
        "min_preemptions_per_day": integer_field(
            "The smallest daily maximum that jobs may ask for; null: they cannot.",
            low=0,
            high=1000,
            nullable=True,
            required=required,
        ),
        "max_preemptions_per_day": integer_field(
            "How often a job may be preempted within 24 hours at most; null: no limit.",
            low=0,
            high=1000,
            nullable=True,
            required=required,
        ),
        "unlikely_deadlines": text_field(
            "What happens to a job that is submitted with a deadline that it will probably miss.",
            choices=[mode.value for mode in UnlikelyDeadlines],
            required=required,
        ),
        "min_deadline_percent": integer_field(
            "A deadline with a lower probability is unlikely.", low=1, high=99, required=required
        ),
    }


CLUSTER_DETAIL = ResourceShape(
    "ClusterDetail",
    {
        **CLUSTER.fields,
        "address": _connection_field(
            "address", f"{ADDRESS_FORMS} Null, like the other connection settings, without a cluster permission."
        ),
        "api_user": _connection_field("api_user", "User name sent as X-SLURM-USER-NAME."),
        "token_file": _connection_field(
            "token_file", "Path to the file with the JWT. The token itself is never shown."
        ),
        "submit_as": text_field(SUBMIT_AS_HELP, choices=SubmitIdentity.values),
        "user_token_directory": _connection_field(
            "user_token_directory", "For user_tokens: directory with one token file per user."
        ),
        "metrics_address": _connection_field("metrics_address", "Address of GPU telemetry in DCGM exporter format."),
        "log_root": _connection_field("log_root", "Shared directory for job logs."),
        "workload_owners": object_field(
            WORKLOAD_OWNERS_HELP,
            nullable=True,
            get=lambda row: row.workload_owners if row.shows_connection else None,
            needs=("workload_owners",),
        ),
        "pod_template": object_field(
            POD_TEMPLATE_HELP,
            nullable=True,
            get=lambda row: row.pod_template if row.shows_connection else None,
            needs=("pod_template",),
        ),
        "checkpoint_root": _connection_field(
            "checkpoint_root", "Shared directory that contains the checkpoints of jobs."
        ),
        "checkpoint_signal": text_field(
            "Signal that makes jobs save a checkpoint before they are stopped; empty: none."
        ),
        "burn_in_minutes": integer_field("How long a repaired node is tested before it accepts jobs.", low=0),
        "usage_half_life_hours": integer_field("Fair share counts GPU time that is this old half.", low=1),
        "gpu_share_kinds": text_list_field("Kinds of jobs that may request a part of a GPU."),
        **_contract_limit_fields(required=True),
        **_sleep_fields(required=True),
        "sleep_webhook": _connection_field("sleep_webhook", "Called to turn a node off or on."),
        "is_bundled": boolean_field("Started by Acme, which also manages its connection settings."),
    },
)
CLUSTER_CHANGES = {
    "title": text_field(required=False),
    "address": text_field(
        f"{ADDRESS_FORMS} To change the address of a cluster with a token you must also send token_file, because the"
        " token is then sent to the new address.",
        required=False,
    ),
    "api_user": text_field("User name sent as X-SLURM-USER-NAME.", required=False),
    "token_file": text_field(
        "Path to a file containing the JWT, inside a directory of ACME_TOKEN_DIRS on the server.", required=False
    ),
    "submit_as": text_field(SUBMIT_AS_HELP, choices=SubmitIdentity.values, required=False),
    "user_token_directory": text_field(
        "For user_tokens: a directory inside ACME_TOKEN_DIRS with one token file per user, named after the user.",
        required=False,
    ),
    "metrics_address": text_field("Address of GPU telemetry in DCGM exporter format.", required=False),
    "log_root": text_field("Shared directory for job logs, as mounted on the server.", required=False),
    "workload_owners": object_field(WORKLOAD_OWNERS_HELP, required=False),
    "pod_template": object_field(POD_TEMPLATE_HELP, required=False),
    "checkpoint_root": text_field("Shared directory that contains the checkpoints of jobs.", required=False),
    "mode": text_field(MODE_HELP, choices=ClusterMode.values, required=False),
    "checkpoint_signal": text_field("[B:]USR1[@seconds], as for sbatch --signal; empty: none.", required=False),
    "burn_in_minutes": integer_field(
        "How long a repaired node is tested before it accepts jobs.", low=0, high=10_080, required=False
    ),
    "gpu_share_kinds": text_list_field("Kinds of jobs that may request a part of a GPU.", required=False),
    "usage_half_life_hours": integer_field(
        "Fair share counts GPU time that is this old half.", low=1, high=87_600, required=False
    ),
    "gpu_hour_price": number_field(
        "In the server's currency; null: costs are not shown.", nullable=True, required=False
    ),
    "kwh_price": number_field("Price of a kWh in hours without an imported price.", nullable=True, required=False),
    "co2_g_per_kwh": number_field(
        "Carbon intensity in hours without an imported value.", nullable=True, required=False
    ),
    **_contract_limit_fields(required=False),
    **_sleep_fields(required=False),
    "sleep_webhook": text_field(
        "URL that is called to turn a node off or on; empty: Slurm's own programs do it.", required=False
    ),
    "reason": text_field("Stored with the event.", required=False),
}
CLUSTER_CHANGE = ResourceShape("ClusterChange", CLUSTER_CHANGES, example={"mode": "advise"})
NEW_CLUSTER = ResourceShape(
    "ClusterRequest",
    {
        **CLUSTER_CHANGES,
        "name": text_field("Lowercase letters, digits and dashes; at most 40 characters."),
        "address": text_field(ADDRESS_FORMS),
        "mode": text_field(f"Default: observe. {MODE_HELP}", choices=ClusterMode.values, required=False),
    },
    example={"name": "seren", "address": "http://127.0.0.1:6820", "mode": "observe"},
)
CONNECTION = ResourceShape(
    "ConnectionRequest",
    {name: NEW_CLUSTER.fields[name] for name in CONNECTION_FIELDS},
    example={"address": "http://127.0.0.1:6820", "api_user": "acme", "token_file": "/etc/acme/tokens/seren"},
)
CONNECTION_TEST = ResourceShape(
    "ConnectionTest",
    {
        "ok": boolean_field("True if no step failed."),
        "steps": nested_list_field(
            ResourceShape(
                "ConnectionTestStep",
                {
                    "name": text_field(),
                    "ok": boolean_field("Null if the step was skipped.", nullable=True),
                    "message": text_field(),
                    "advice": text_field("What to do; empty if the step succeeded."),
                },
            )
        ),
    },
)

MEMBER = ResourceShape(
    "Member", {"user": text_field(get=attribute_path("user.username")), "role": text_field(choices=TeamRole.values)}
)
QUOTA = ResourceShape(
    "Quota",
    {
        "cluster": text_field(get=attribute_path("cluster.name")),
        "kind": text_field("Kind of job; empty: all kinds."),
        "gpu_model": text_field("GPU model that it limits; empty: all models."),
        "gpus": integer_field(),
    },
)
QUOTA_USAGE = ResourceShape(
    "QuotaUsage",
    {
        "team": text_field(get=attribute_path("team.name"), needs=("team__name",)),
        "cluster": text_field(get=attribute_path("cluster.name"), needs=("cluster__name",)),
        "kind": text_field("Kind of job; empty: all kinds."),
        "gpu_model": text_field("GPU model that it limits; empty: all models."),
        "gpus": integer_field("Maximum number of GPUs for jobs that are not preemptible."),
        "used": number_field("GPUs allocated to these jobs now.", needs=()),
        "remaining": number_field("GPUs left; negative if the quota was reduced below its use.", needs=()),
    },
)
TEAM = ResourceShape(
    "Team",
    {
        "id": text_field(get=attribute_path("name"), needs=("name",)),
        "name": text_field(),
        "title": text_field(),
        "members": nested_list_field(
            MEMBER,
            get=lambda team: [MEMBER.show(membership) for membership in team.memberships.all()],
            needs=(),
            joins=("memberships__user",),
        ),
        "quotas": nested_list_field(
            QUOTA,
            get=lambda team: [QUOTA.show(quota) for quota in team.quotas.all()],
            needs=(),
            joins=("quotas__cluster",),
        ),
    },
)

ROLE = ResourceShape("RoleInTeam", {"team": text_field(), "role": text_field(choices=TeamRole.values)})
CALLER_SHAPE = ResourceShape(
    "Me",
    {
        "user": text_field(),
        "scope": text_field("Maximum access of this token or session.", choices=TokenScope.values),
        "token": text_field("The token's prefix; null for a session.", nullable=True),
        "expires_at": datetime_field(nullable=True),
        "superuser": boolean_field("Has every role in every team."),
        "operates_clusters": boolean_field("Can drain, resume and test nodes."),
        "teams": nested_list_field(ROLE),
    },
)

# --- request bodies

JOB_REQUEST = ResourceShape(
    "JobRequest",
    {
        "team": text_field("Required if you can submit for several teams.", required=False),
        "cluster": text_field("Required if Acme drives several clusters.", required=False),
        **{name: requested_field(name, field) for name, field in REQUEST_FIELDS.items()},
    },
    example={"command": "python train.py", "nodes": 2, "gpus_per_node": 8, "time_limit": "2-00:00:00"},
)

DEADLINE_ANSWER = ResourceShape(
    "DeadlineAnswer",
    {
        "deadline_at": datetime_field(),
        "probability": number_field("That the job ends before it, from 0 to 1; null: not known.", nullable=True),
        "why": text_field("What the probability results from, or why there is none."),
        "warning": text_field("A sentence if the deadline is unlikely; else empty."),
    },
)
JOB_SUBMITTED = ResourceShape(
    "SubmittedJob",
    {
        "id": text_field("Id of the job or the array."),
        "jobs": text_list_field("Ids of all jobs created: one, or one per task of the array."),
        "state": text_field(choices=STATES),
        "why": text_field("Why the job is not running yet."),
        "deadline": nested_field(
            DEADLINE_ANSWER, "Whether it will meet its deadline; null: it has none.", nullable=True
        ),
    },
)

BULK_REQUEST = ResourceShape(
    "BulkJobRequest",
    {
        "jobs": nested_list_field(JOB_REQUEST, "At most 5,000 jobs; each task of an array counts."),
        "mode": text_field(
            "all: submit all jobs or none; each: submit every valid job.", choices=("all", "each"), required=False
        ),
        "team": text_field("Default for jobs without a team.", required=False),
        "cluster": text_field("Default for jobs without a cluster.", required=False),
    },
    example={
        "jobs": [
            {"key": "train", "command": "python train.py", "gpus_per_node": 8},
            {"command": "python evaluate.py", "gpus_per_node": 1, "dependencies": "afterok:@train"},
        ],
        "mode": "all",
    },
)
BULK_JOB_RESULT = ResourceShape(
    "BulkJobResult",
    {
        "status": integer_field("201, or the status that a request with this job alone would get."),
        "id": text_field(required=False),
        "jobs": text_list_field(required=False),
        "deadline": nested_field(DEADLINE_ANSWER, "If the job has a deadline.", required=False),
        "errors": object_field("Errors by field.", required=False),
    },
)
BULK_RESULT = ResourceShape(
    "BulkJobResults",
    {
        "accepted": integer_field(),
        "refused": integer_field(),
        "results": nested_list_field(BULK_JOB_RESULT, "In the order of the request."),
    },
)

REASON_BODY = ResourceShape(
    "ReasonRequest",
    {"reason": text_field("Stored with the event. Recommended for hold and drain.", required=False)},
    example={"reason": "The data set is incomplete."},
)
PRIORITY_BODY = ResourceShape(
    "PriorityRequest",
    {"priority": integer_field(low=-MAX_PRIORITY, high=MAX_PRIORITY), "reason": REASON_BODY.fields["reason"]},
    example={"priority": 10, "reason": "Needed for the release."},
)
JOB_ACTION_NAMES = tuple(job_verbs.JOB_ACTIONS)
JOB_ACTION_REQUEST = ResourceShape(
    "JobActionRequest",
    {
        "action": text_field(choices=JOB_ACTION_NAMES),
        "ids": text_list_field("Ids of jobs, or of arrays to include all their tasks; at most 1,000.", required=False),
        "filter": object_field('Filters of the job list, such as {"state": "PENDING"}.', required=False),
        "dry_run": boolean_field("Return the effect without changing anything.", required=False),
        "priority": integer_field(
            "Required for the action priority.", low=-MAX_PRIORITY, high=MAX_PRIORITY, required=False
        ),
        "reason": REASON_BODY.fields["reason"],
    },
    example={"action": "cancel", "filter": {"state": "PENDING", "user": "ada"}, "dry_run": True},
)
JOB_ACTION_RESULT = ResourceShape(
    "JobActionResult",
    {
        "id": text_field(),
        "succeeded": boolean_field("True if the action was performed, or would be in a dry run."),
        "error": text_field("Why the action was refused.", required=False),
    },
)
JOB_ACTION_RESULTS = ResourceShape(
    "JobActionResults",
    {
        "id": integer_field("Number of an action in the background.", required=False),
        "url": text_field("Where its progress is.", required=False),
        "state": text_field("State of an action in the background.", choices=BulkActionState.values, required=False),
        "error": text_field("Why it ended before all jobs; else empty.", required=False),
        "action": text_field(choices=JOB_ACTION_NAMES),
        "dry_run": boolean_field(),
        "matched": integer_field("Jobs that match the ids or the filter and that the action can change."),
        "succeeded": integer_field(),
        "refused": integer_field(),
        "remaining": integer_field("Jobs that are not done yet or, in a dry run, were not tried: it tries 1,000."),
        "results": nested_list_field(
            JOB_ACTION_RESULT, "Of each job; of an action in the background only the first 100 refused ones."
        ),
    },
)
NODE_TEST = ResourceShape(
    "NodeTest",
    {
        "id": integer_field(),
        "node": text_field("CLUSTER/NAME."),
        "requested_at": datetime_field(),
        "finished": boolean_field(),
        "passed": boolean_field("Null until the test is done.", nullable=True),
        "outcome": text_field("Progress or result of the test."),
        "log": text_field("Path of the test's output."),
    },
)
DRAIN_BODY = ResourceShape(
    "DrainRequest",
    {
        "reason": text_field("Shown in the node list."),
        "mode": text_field(
            "What happens to running jobs. finish: they run to their end; checkpoint: each is requeued after its next"
            " checkpoint; now: they are requeued immediately.",
            choices=DrainMode.values,
            required=False,
        ),
        "dry_run": boolean_field("Return the consequences without changing anything.", required=False),
    },
    example={"reason": "Fan 3 is loud.", "mode": "checkpoint", "dry_run": True},
)
