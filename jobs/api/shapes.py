"""What the record looks like from outside: one table for each kind of row, and one for each body."""

from __future__ import annotations

from typing import Any

from jobs.actions import job_verbs
from jobs.core.lifecycle import STATE_CODES, JobKind, NodeState, State, state_title
from jobs.core.masking import mask_secrets, mask_text
from jobs.core.spec import MAX_PRIORITY
from jobs.models import Attempt, ClusterMode, DrainMode, HoldKind, Job, RepairStage, TeamRole, TokenScope
from jobs.models.cluster import DRIVE_EXPLANATION, SubmitIdentity
from jobs.rest.shapes import (
    ResourceShape,
    ShapeField,
    attribute_path,
    boolean_field,
    datetime_field,
    integer_field,
    nested_list_field,
    number_field,
    object_field,
    one_of_field,
    seconds_field,
    text_field,
    text_list_field,
    text_map_field,
)

JOB_ID_FIELD = text_field("Short public id that sorts by time; an array's task is written ID_INDEX.")
DURATION = {"type": ["integer", "string"], "description": "Seconds, or D-HH:MM:SS, HH:MM:SS, MM."}
STATES = list(State)


def exit_text(row: Any) -> str:
    """`code:signal`, as sacct shows it."""
    return "" if row.exit_code is None and row.signal is None else f"{row.exit_code or 0}:{row.signal or 0}"


def job_title(job: Job) -> str:
    return str(state_title(State(job.state), job.flags))


def _latest_attempt_field(name: str) -> Any:
    """Of the newest attempt, which `with_latest_attempt` has hung on the job."""

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
            "Who submitted it to the cluster, where it was not Acme; empty for Acme's own jobs."
        ),
        "name": text_field(),
        "kind": text_field(choices=JobKind),
        "state": text_field("Slurm's base state.", choices=STATES),
        "flags": text_list_field("What goes on around the state: CONFIGURING, SIGNALING, REQUEUE_HOLD …"),
        "title": text_field(
            "The one word for state and flags, as squeue shows it.", get=job_title, needs=("state", "flags")
        ),
        "code": text_field(
            "The title's short code: PD, R, CG …", get=lambda j: STATE_CODES[job_title(j)], needs=("state", "flags")
        ),
        "reason": text_field("Slurm's word for why it waits."),
        "why": text_field("The same as a sentence."),
        "hold": text_field("Who holds it.", choices=HoldKind.values),
        "priority": integer_field(),
        "preemptible": boolean_field(),
        "nodes": integer_field(),
        "gpus_per_node": integer_field(),
        "gpus": integer_field("All of them together.", needs=("nodes", "gpus_per_node")),
        "cpus_per_node": integer_field(),
        "memory_per_node": integer_field(
            "MiB.", get=attribute_path("memory_per_node_mb"), needs=("memory_per_node_mb",)
        ),
        "gpu_model": text_field(),
        "nic_type": text_field(),
        "time_limit": seconds_field("Seconds; null: UNLIMITED.", nullable=True),
        "submitted_at": datetime_field(),
        "begin_at": datetime_field("Not before.", nullable=True),
        "started_at": datetime_field(nullable=True),
        "ended_at": datetime_field(nullable=True),
        "exit_code": integer_field(nullable=True),
        "signal": integer_field(nullable=True),
        "exit": text_field("code:signal; empty before the end.", get=exit_text, needs=("exit_code", "signal")),
        "requeues": integer_field("Spent of the budget."),
        "requeue_limit": integer_field(),
        "array_id": text_field("The array it is a task of."),
        "array_index": integer_field(nullable=True),
        "array_limit": integer_field("Tasks of the array that may run at once.", nullable=True),
        "nodelist": text_field("Of the newest attempt.", get=_latest_attempt_field("nodelist"), needs=()),
        "backend_id": text_field("The cluster's own id of it.", get=_latest_attempt_field("backend_id"), needs=()),
        "labels": text_map_field("Secrets are masked.", get=lambda job: mask_secrets(job.labels), needs=("labels",)),
        "comment": text_field(
            "Secrets are masked.", get=lambda job: mask_text(job.comment), needs=("comment",), in_lists=False
        ),
        "command": text_field(get=lambda job: mask_text(job.command), needs=("command",), in_lists=False),
        "workdir": text_field(in_lists=False),
        "environment": text_map_field(
            "Secrets are masked, by the variable's name or by what its value looks like.",
            get=lambda job: mask_secrets(job.environment),
            needs=("environment",),
            in_lists=False,
        ),
        "checkpoint_dir": text_field(in_lists=False),
        "checkpoint_interval": seconds_field(nullable=True, in_lists=False),
        "checkpoint_signal": text_field(in_lists=False),
        "dependencies": text_list_field(
            "afterok:ID …",
            get=lambda job: [f"{one.after}:{one.on.public_id}" for one in job.dependencies.all()],
            needs=(),
            joins=("dependencies__on",),
            in_lists=False,
        ),
    },
)

ATTEMPT = ResourceShape(
    "Attempt",
    {
        "id": text_field("The id that the cluster keeps too.", get=attribute_path("key"), needs=("key",)),
        "number": integer_field(),
        "state": text_field(choices=STATES),
        "title": text_field(
            "CONFIGURING until the cluster runs it.",
            get=lambda one: one.badge.label,
            needs=("state", "confirmed_at"),
        ),
        "backend_id": text_field("The cluster's own id of it."),
        "nodelist": text_field(),
        "promised_at": datetime_field("When it was given its GPUs."),
        "started_at": datetime_field(
            "When the cluster began it.", get=attribute_path("confirmed_at"), needs=("confirmed_at",), nullable=True
        ),
        "ended_at": datetime_field(nullable=True),
        "exit_code": integer_field(nullable=True),
        "signal": integer_field(nullable=True),
        "exit": text_field("code:signal; empty before the end.", get=exit_text, needs=("exit_code", "signal")),
        "reason": text_field(),
        "stop_as": text_field("What it was asked to become."),
        "stop_why": text_field(),
    },
)

EVENT = ResourceShape(
    "Event",
    {
        "id": integer_field(),
        "at": datetime_field(),
        "what": text_field("job.submitted, job.moved, node.drained …"),
        "by": text_field("A user's name, or the loop that did it."),
        "source": text_field("Where the request came from.", nullable=True),
        "request_id": text_field("The X-Request-ID of the answer to the request that caused it."),
        "attempt": text_field(get=attribute_path("attempt.key"), needs=("attempt__key",), nullable=True),
        "from_state": text_field(),
        "to_state": text_field(),
        "why": text_field(),
        "detail": object_field(),
    },
)

DEPENDENCY = ResourceShape(
    "WaitsFor",
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
        "flags": text_list_field(get=attribute_path("all_flags"), needs=("flags", "drain_asked")),
        "title": text_field(
            "One word for state and flags.", get=attribute_path("badge.label"), needs=("state", "flags", "drain_asked")
        ),
        "code": text_field(
            "sinfo's word: idle, mix, drng …", get=attribute_path("badge.code"), needs=("state", "flags", "drain_asked")
        ),
        "takes_work": boolean_field(needs=("state", "flags", "drain_asked")),
        "gpus": integer_field(),
        "gpus_held": integer_field("Held by jobs now.", get=lambda node: node.gpus_held, needs=()),
        "gpu_model": text_field(),
        "cpus": integer_field(),
        "memory": integer_field("MiB.", get=attribute_path("memory_mb"), needs=("memory_mb",)),
        "rack": text_field(),
        "leaf": text_field("Leaf switch."),
        "pod": text_field(),
        "nic_type": text_field(),
        "nic_count": integer_field(),
        "reason": text_field("Why it is closed."),
        "reason_by": text_field(),
        "reason_at": datetime_field(nullable=True),
        "care": text_field("Where it is on its way back: repair, burn-in; empty: nowhere.", choices=RepairStage.values),
        "care_until": datetime_field("When its burn-in is over.", nullable=True),
        "since": datetime_field("In this state since."),
        "seen_at": datetime_field("When its cluster last spoke of it.", nullable=True),
    },
)

RUNNING_JOB = ResourceShape(
    "HeldBy",
    {
        "id": text_field("Of the job."),
        "team": text_field(),
        "user": text_field(),
        "gpus": integer_field("On this node."),
        "started_at": datetime_field(nullable=True),
        "preemptible": boolean_field(),
        "gpus_in_all": integer_field("Of the whole job, on all its nodes."),
        "saved_at": datetime_field("Its newest checkpoint in remote storage.", nullable=True),
        "gpu_hours_at_risk": number_field("Of the whole job, since it last saved its work."),
    },
)

DRAIN_CONSEQUENCES = ResourceShape(
    "Consequences",
    {
        "node": text_field("CLUSTER/NAME."),
        "done": boolean_field("False for a dry run."),
        "effect": text_field("What happens, as a sentence."),
        "running": integer_field("Jobs on the node."),
        "gpus": integer_field("GPUs of the node that they hold."),
        "mode": text_field(choices=DrainMode.values),
        "gpu_hours_at_risk": number_field("Of all of them; lost when they are sent away now."),
        "jobs": nested_list_field(RUNNING_JOB),
    },
)

CLUSTER = ResourceShape(
    "Cluster",
    {
        "id": text_field(get=attribute_path("name"), needs=("name",)),
        "name": text_field(),
        "title": text_field(),
        "mode": text_field("How far Acme goes on it.", choices=ClusterMode.values),
        "policy": text_field(),
        "gpu_hour_price": number_field("In the currency that the server is set to.", nullable=True),
        "product": text_field(),
        "heard_at": datetime_field("When it last answered.", nullable=True, observed=True),
        "trouble": text_field("Why its last scheduling turn failed; empty when it succeeded.", observed=True),
        "unreadable_count": integer_field("Rows of its last answer that could not be read.", observed=True),
        "unreadable_rows": text_field("Which rows these are, and why. Nothing is concluded about them.", observed=True),
    },
)

MODE_HELP = f"observe: watch; advise: propose starts; drive: decide what runs where. In drive: {DRIVE_EXPLANATION}"


SUBMIT_AS_HELP = (
    "The user that jobs run as on the cluster. service: the user of Acme's token, for everybody, so that people and"
    " teams are not isolated there; user_header: the person who submitted, named to a token that may act for others;"
    " user_tokens: the person who submitted, by a token of their own."
)


def _connection_field(name: str, says: str) -> ShapeField:
    """Null for callers who neither operate nor configure clusters; `places.cluster_row` knows which are which."""
    return text_field(
        says, nullable=True, get=lambda row: getattr(row, name) if row.shows_connection else None, needs=(name,)
    )


CLUSTER_DETAIL = ResourceShape(
    "ClusterDetail",
    {
        **CLUSTER.fields,
        "address": _connection_field(
            "address", "Of its slurmrestd. Null, as the next ones, without a permission on clusters."
        ),
        "api_user": _connection_field("api_user", "Sent as X-SLURM-USER-NAME."),
        "token_file": _connection_field(
            "token_file", "Path to the file with the JWT; the token itself is never shown."
        ),
        "submit_as": text_field(SUBMIT_AS_HELP, choices=SubmitIdentity.values),
        "user_token_directory": _connection_field(
            "user_token_directory", "For user_tokens: one token file for each user."
        ),
        "metrics_address": _connection_field("metrics_address", "GPU telemetry in DCGM exporter format."),
        "log_root": _connection_field("log_root", "Shared directory that job logs are written to."),
        "checkpoint_root": _connection_field(
            "checkpoint_root", "Shared directory beneath which jobs keep checkpoints."
        ),
        "checkpoint_signal": text_field("Asks jobs to save a checkpoint before they are stopped; empty: never."),
        "burn_in_minutes": integer_field("How long a repaired node is tested before it accepts jobs.", low=0),
        "is_bundled": boolean_field("Started by Acme itself, which also sets how it is reached."),
    },
)
CLUSTER_CHANGES = {
    "title": text_field(required=False),
    "address": text_field(
        "http://host:6820 or unix:///run/slurmrestd.sock. With a new address name token_file again: the token is sent"
        " there from then on.",
        required=False,
    ),
    "api_user": text_field("Sent as X-SLURM-USER-NAME.", required=False),
    "token_file": text_field(
        "Path to a file containing the JWT, beneath a directory of ACME_TOKEN_DIRS on the server.", required=False
    ),
    "submit_as": text_field(SUBMIT_AS_HELP, choices=SubmitIdentity.values, required=False),
    "user_token_directory": text_field(
        "For user_tokens: a directory beneath ACME_TOKEN_DIRS with one token file for each user, named as the user.",
        required=False,
    ),
    "metrics_address": text_field("GPU telemetry in DCGM exporter format.", required=False),
    "log_root": text_field("Shared directory that job logs are written to, as the server sees it.", required=False),
    "checkpoint_root": text_field("Shared directory beneath which jobs keep checkpoints.", required=False),
    "mode": text_field(MODE_HELP, choices=ClusterMode.values, required=False),
    "checkpoint_signal": text_field("[B:]USR1[@seconds], as for sbatch --signal; empty: never.", required=False),
    "burn_in_minutes": integer_field("How long a repaired node is tested.", low=0, high=10_080, required=False),
    "gpu_hour_price": number_field(
        "In the currency of the server; null: no costs are shown.", nullable=True, required=False
    ),
    "reason": text_field("Kept in the Event.", required=False),
}
CLUSTER_CHANGE = ResourceShape("ClusterChange", CLUSTER_CHANGES, example={"mode": "advise"})
NEW_CLUSTER = ResourceShape(
    "ClusterRequest",
    {
        **CLUSTER_CHANGES,
        "name": text_field("Small letters, digits and dashes, at most 40."),
        "address": text_field("http://host:6820 or unix:///run/slurmrestd.sock."),
        "mode": text_field(f"observe if left out. {MODE_HELP}", choices=ClusterMode.values, required=False),
    },
    example={"name": "seren", "address": "http://127.0.0.1:6820", "mode": "observe"},
)
CONNECTION_FIELDS = (
    *("address", "api_user", "token_file", "submit_as", "user_token_directory"),
    *("metrics_address", "log_root"),
)
CONNECTION = ResourceShape(
    "ConnectionRequest",
    {name: NEW_CLUSTER.fields[name] for name in CONNECTION_FIELDS},
)
CONNECTION_TEST = ResourceShape(
    "ConnectionTest",
    {
        "works": boolean_field("No step is wrong."),
        "steps": nested_list_field(
            ResourceShape(
                "ConnectionTestStep",
                {
                    "name": text_field(),
                    "good": boolean_field("Null where it was not tried, or there was nothing to try.", nullable=True),
                    "says": text_field(),
                    "advice": text_field("What to do; empty where nothing is wrong."),
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
        "kind": text_field("Empty: every kind of work."),
        "gpus": integer_field(),
    },
)
QUOTA_USAGE = ResourceShape(
    "QuotaUsed",
    {
        "team": text_field(get=attribute_path("team.name"), needs=("team__name",)),
        "cluster": text_field(get=attribute_path("cluster.name"), needs=("cluster__name",)),
        "kind": text_field("Empty: every kind of work."),
        "gpus": integer_field("That jobs which may not be preempted hold at most."),
        "held": integer_field("That they hold just now.", needs=()),
        "left": integer_field("Of the two, what is left; negative, where a quota was made smaller.", needs=()),
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
            get=lambda team: [MEMBER.show(one) for one in team.memberships.all()],
            needs=(),
            joins=("memberships__user",),
        ),
        "quotas": nested_list_field(
            QUOTA,
            get=lambda team: [QUOTA.show(one) for one in team.quotas.all()],
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
        "scope": text_field("What this token, or session, may do at most.", choices=TokenScope.values),
        "token": text_field("The token's prefix; null for a session.", nullable=True),
        "expires_at": datetime_field(nullable=True),
        "superuser": boolean_field("Every role in every team."),
        "operates_clusters": boolean_field("May drain, resume and test nodes."),
        "teams": nested_list_field(ROLE),
    },
)

# --- bodies

JOB_REQUEST = ResourceShape(
    "JobRequest",
    {
        "command": text_field("A script or a command line; the cluster runs it, Acme never does."),
        "team": text_field("Needed by those who submit for several teams.", required=False),
        "cluster": text_field("Needed where Acme drives several.", required=False),
        "name": text_field("Otherwise the first word of the command.", required=False),
        "kind": text_field(choices=JobKind, required=False),
        "workdir": text_field("Absolute path.", required=False),
        "environment": text_map_field(required=False),
        "nodes": integer_field(low=1, high=100_000, required=False),
        "gpus_per_node": integer_field(low=0, high=1000, required=False),
        "cpus_per_node": integer_field("Otherwise the GPUs' share of a node.", low=1, high=100_000, required=False),
        "memory_per_node": one_of_field({"type": "integer"}, {"type": "string"}, says="MiB, or 512G.", required=False),
        "gpu_model": text_field(required=False),
        "nic_type": text_field(required=False),
        "time_limit": ShapeField(schema=DURATION, required=False),
        "priority": integer_field(low=-MAX_PRIORITY, high=MAX_PRIORITY, required=False),
        "preemptible": boolean_field(required=False),
        "requeue_limit": integer_field(low=0, high=1000, required=False),
        "begin_at": datetime_field("With a time zone.", required=False),
        "hold": boolean_field(required=False),
        "array": text_field("0-99%10", required=False),
        "dependencies": one_of_field(
            {"type": "string"},
            {"type": "array", "items": {"type": "string"}},
            says="afterok:ID,afterany:ID; @KEY names another job of the same request.",
            required=False,
        ),
        "checkpoint_dir": text_field("Absolute path.", required=False),
        "checkpoint_interval": ShapeField(schema=DURATION, required=False),
        "checkpoint_signal": text_field(
            "Asks it to save its work before it is stopped: [B:]USR1[@seconds], as for sbatch --signal.", required=False
        ),
        "labels": text_map_field(required=False),
        "comment": text_field(required=False),
        "key": text_field("What other jobs of the same request call it.", required=False),
    },
    example={"command": "python train.py", "nodes": 2, "gpus_per_node": 8, "time_limit": "2-00:00:00"},
)

JOB_SUBMITTED = ResourceShape(
    "Submitted",
    {
        "id": text_field("Of the job; of the array, if it is one."),
        "jobs": text_list_field("The ids of all rows: one, or one for each task of the array."),
        "state": text_field(choices=STATES),
        "why": text_field("Why it does not run yet."),
    },
)

BULK_REQUEST = ResourceShape(
    "JobsRequest",
    {
        "jobs": nested_list_field(JOB_REQUEST, "At most 5,000, arrays counted by their tasks."),
        "mode": text_field(
            "all: every job or none; each: every job that can be.", choices=("all", "each"), required=False
        ),
        "team": text_field("For jobs that name none.", required=False),
        "cluster": text_field("For jobs that name none.", required=False),
    },
)
BULK_JOB_RESULT = ResourceShape(
    "Result",
    {
        "status": integer_field("201, or what the job alone would have been answered with."),
        "id": text_field(required=False),
        "jobs": text_list_field(required=False),
        "errors": object_field("Field by field.", required=False),
    },
)
BULK_RESULT = ResourceShape(
    "JobsSubmitted",
    {
        "accepted": integer_field(),
        "refused": integer_field(),
        "results": nested_list_field(BULK_JOB_RESULT, "In the order asked."),
    },
)

REASON_BODY = ResourceShape(
    "Why", {"reason": text_field("Kept in the Event; who holds or drains should give one.", required=False)}
)
PRIORITY_BODY = ResourceShape(
    "PriorityRequest",
    {"priority": integer_field(low=-MAX_PRIORITY, high=MAX_PRIORITY), "reason": REASON_BODY.fields["reason"]},
)
JOB_ACTION_NAMES = tuple(job_verbs.JOB_ACTIONS)
JOB_ACTION_REQUEST = ResourceShape(
    "VerbRequest",
    {
        "verb": text_field(choices=JOB_ACTION_NAMES),
        "ids": text_list_field("Ids of jobs, or of arrays for all their tasks; at most 1,000.", required=False),
        "filter": object_field('Filters of the list of jobs, such as {"state": "PENDING"}.', required=False),
        "dry_run": boolean_field("Say what would be done, and change nothing.", required=False),
        "priority": integer_field("For the verb priority.", low=-MAX_PRIORITY, high=MAX_PRIORITY, required=False),
        "reason": REASON_BODY.fields["reason"],
    },
    example={"verb": "cancel", "filter": {"state": "PENDING", "user": "ada"}, "dry_run": True},
)
JOB_ACTION_RESULT = ResourceShape(
    "Outcome",
    {
        "id": text_field(),
        "done": boolean_field("For a dry run: would be done."),
        "error": text_field("Why not.", required=False),
    },
)
JOB_ACTION_RESULTS = ResourceShape(
    "Outcomes",
    {
        "verb": text_field(choices=JOB_ACTION_NAMES),
        "dry_run": boolean_field(),
        "matched": integer_field("Jobs that the ids or the filter name."),
        "done": integer_field(),
        "refused": integer_field(),
        "left": integer_field("Matched beyond the 1,000 of one request: ask again."),
        "outcomes": nested_list_field(JOB_ACTION_RESULT),
    },
)
NODE_TEST = ResourceShape(
    "NodeTest",
    {
        "id": integer_field(),
        "node": text_field("CLUSTER/NAME."),
        "asked_at": datetime_field(),
        "done": boolean_field(),
        "passed": boolean_field("Null until it is done.", nullable=True),
        "outcome": text_field("How far it is, or how it came out."),
        "log": text_field("Where its output is."),
    },
)
DRAIN_BODY = ResourceShape(
    "DrainRequest",
    {
        "reason": text_field("Operators read it in the list of nodes."),
        "mode": text_field(
            "What becomes of running jobs: finish lets them, checkpoint requeues each after its next one, now at once.",
            choices=DrainMode.values,
            required=False,
        ),
        "dry_run": boolean_field("Show the consequences, and change nothing.", required=False),
    },
)
