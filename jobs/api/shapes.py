"""What the record looks like from outside: one table for each kind of row, and one for each body."""

from __future__ import annotations

from typing import Any

from jobs import verbs
from jobs.door.shapes import (
    Field,
    Shape,
    anything,
    at,
    either,
    many,
    measure,
    moment,
    names,
    number,
    seconds,
    text,
    texts,
    truth,
)
from jobs.lifecycle import CODES, Kind, NodeState, State, title
from jobs.masking import masked, masked_text
from jobs.models import Attempt, Care, DrainMode, Hold, Job, Mode, Role, Scope
from jobs.models.cluster import DRIVE_MEANS, SubmitAs
from jobs.spec import HIGHEST_PRIORITY

ID = text("Short public id that sorts by time; an array's task is written ID_INDEX.")
DURATION = {"type": ["integer", "string"], "description": "Seconds, or D-HH:MM:SS, HH:MM:SS, MM."}
STATES = list(State)


def exit_text(row: Any) -> str:
    """`code:signal`, as sacct shows it."""
    return "" if row.exit_code is None and row.signal is None else f"{row.exit_code or 0}:{row.signal or 0}"


def title_of(job: Job) -> str:
    return str(title(State(job.state), job.flags))


def _latest(name: str) -> Any:
    """Of the newest attempt, which `with_latest_attempt` has hung on the job."""

    def read(job: Any) -> Any:
        attempt: Attempt | None = job.latest_attempt
        return getattr(attempt, name) if attempt else ""

    return read


OF_LATEST_ATTEMPT = frozenset({"nodelist", "backend_id"})  # fetched for a whole page at once

JOB = Shape(
    "Job",
    {
        "id": text(ID.schema["description"], get=at("public_id"), needs=("public_id",)),
        "cluster": text(get=at("cluster.name"), needs=("cluster__name",)),
        "team": text(get=at("team.name"), needs=("team__name",)),
        "user": text(get=at("user.username"), needs=("user__username",)),
        "foreign_user": text("Who submitted it to the cluster, where it was not Acme; empty for Acme's own jobs."),
        "name": text(),
        "kind": text(choices=Kind),
        "state": text("Slurm's base state.", choices=STATES),
        "flags": texts("What goes on around the state: CONFIGURING, SIGNALING, REQUEUE_HOLD …"),
        "title": text("The one word for state and flags, as squeue shows it.", get=title_of, needs=("state", "flags")),
        "code": text("The title's short code: PD, R, CG …", get=lambda j: CODES[title_of(j)], needs=("state", "flags")),
        "reason": text("Slurm's word for why it waits."),
        "why": text("The same as a sentence."),
        "hold": text("Who holds it.", choices=Hold.values),
        "priority": number(),
        "preemptible": truth(),
        "nodes": number(),
        "gpus_per_node": number(),
        "gpus": number("All of them together.", needs=("nodes", "gpus_per_node")),
        "cpus_per_node": number(),
        "memory_per_node": number("MiB.", get=at("memory_per_node_mb"), needs=("memory_per_node_mb",)),
        "gpu_model": text(),
        "nic_type": text(),
        "time_limit": seconds("Seconds; null: UNLIMITED.", nullable=True),
        "submitted_at": moment(),
        "begin_at": moment("Not before.", nullable=True),
        "started_at": moment(nullable=True),
        "ended_at": moment(nullable=True),
        "exit_code": number(nullable=True),
        "signal": number(nullable=True),
        "exit": text("code:signal; empty before the end.", get=exit_text, needs=("exit_code", "signal")),
        "requeues": number("Spent of the budget."),
        "requeue_limit": number(),
        "array_id": text("The array it is a task of."),
        "array_index": number(nullable=True),
        "array_limit": number("Tasks of the array that may run at once.", nullable=True),
        "nodelist": text("Of the newest attempt.", get=_latest("nodelist"), needs=()),
        "backend_id": text("The cluster's own id of it.", get=_latest("backend_id"), needs=()),
        "labels": names("Secrets are masked.", get=lambda job: masked(job.labels), needs=("labels",)),
        "comment": text(
            "Secrets are masked.", get=lambda job: masked_text(job.comment), needs=("comment",), listed=False
        ),
        "command": text(get=lambda job: masked_text(job.command), needs=("command",), listed=False),
        "workdir": text(listed=False),
        "environment": names(
            "Secrets are masked, by the variable's name or by what its value looks like.",
            get=lambda job: masked(job.environment),
            needs=("environment",),
            listed=False,
        ),
        "checkpoint_dir": text(listed=False),
        "checkpoint_interval": seconds(nullable=True, listed=False),
        "checkpoint_signal": text(listed=False),
        "dependencies": texts(
            "afterok:ID …",
            get=lambda job: [f"{one.after}:{one.on.public_id}" for one in job.dependencies.all()],
            needs=(),
            joins=("dependencies__on",),
            listed=False,
        ),
    },
)

ATTEMPT = Shape(
    "Attempt",
    {
        "id": text("The id that the cluster keeps too.", get=at("key"), needs=("key",)),
        "number": number(),
        "state": text(choices=STATES),
        "title": text(
            "CONFIGURING until the cluster runs it.",
            get=lambda one: one.badge.label,
            needs=("state", "confirmed_at"),
        ),
        "backend_id": text("The cluster's own id of it."),
        "nodelist": text(),
        "promised_at": moment("When it was given its GPUs."),
        "started_at": moment(
            "When the cluster began it.", get=at("confirmed_at"), needs=("confirmed_at",), nullable=True
        ),
        "ended_at": moment(nullable=True),
        "exit_code": number(nullable=True),
        "signal": number(nullable=True),
        "exit": text("code:signal; empty before the end.", get=exit_text, needs=("exit_code", "signal")),
        "reason": text(),
        "stop_as": text("What it was asked to become."),
        "stop_why": text(),
    },
)

EVENT = Shape(
    "Event",
    {
        "id": number(),
        "at": moment(),
        "what": text("job.submitted, job.moved, node.drained …"),
        "by": text("A user's name, or the loop that did it."),
        "source": text("Where the request came from.", nullable=True),
        "request_id": text("The X-Request-ID of the answer to the request that caused it."),
        "attempt": text(get=at("attempt.key"), needs=("attempt__key",), nullable=True),
        "from_state": text(),
        "to_state": text(),
        "why": text(),
        "detail": anything(),
    },
)

DEPENDENCY = Shape(
    "WaitsFor",
    {
        "id": text(get=at("on.public_id")),
        "after": text(choices=("afterok", "afterany", "afternotok")),
        "state": text(get=at("on.state"), choices=STATES),
    },
)

NODE = Shape(
    "Node",
    {
        "id": text(
            "CLUSTER/NAME.", get=lambda node: f"{node.cluster.name}/{node.name}", needs=("cluster__name", "name")
        ),
        "cluster": text(get=at("cluster.name"), needs=("cluster__name",)),
        "name": text(),
        "state": text(choices=NodeState),
        "flags": texts(get=at("all_flags"), needs=("flags", "drain_asked")),
        "title": text("One word for state and flags.", get=at("badge.label"), needs=("state", "flags", "drain_asked")),
        "code": text("sinfo's word: idle, mix, drng …", get=at("badge.code"), needs=("state", "flags", "drain_asked")),
        "takes_work": truth(needs=("state", "flags", "drain_asked")),
        "gpus": number(),
        "gpus_held": number("Held by jobs now.", get=lambda node: node.gpus_held, needs=()),
        "gpu_model": text(),
        "cpus": number(),
        "memory": number("MiB.", get=at("memory_mb"), needs=("memory_mb",)),
        "rack": text(),
        "leaf": text("Leaf switch."),
        "pod": text(),
        "nic_type": text(),
        "nic_count": number(),
        "reason": text("Why it is closed."),
        "reason_by": text(),
        "reason_at": moment(nullable=True),
        "care": text("Where it is on its way back: repair, burn-in; empty: nowhere.", choices=Care.values),
        "care_until": moment("When its burn-in is over.", nullable=True),
        "since": moment("In this state since."),
        "seen_at": moment("When its cluster last spoke of it.", nullable=True),
    },
)

HELD = Shape(
    "HeldBy",
    {
        "id": text("Of the job."),
        "team": text(),
        "user": text(),
        "gpus": number("On this node."),
        "started_at": moment(nullable=True),
        "preemptible": truth(),
        "gpus_in_all": number("Of the whole job, on all its nodes."),
        "saved_at": moment("Its newest checkpoint in remote storage.", nullable=True),
        "gpu_hours_at_risk": measure("Of the whole job, since it last saved its work."),
    },
)

CONSEQUENCES = Shape(
    "Consequences",
    {
        "node": text("CLUSTER/NAME."),
        "done": truth("False for a dry run."),
        "effect": text("What happens, as a sentence."),
        "running": number("Jobs on the node."),
        "gpus": number("GPUs of the node that they hold."),
        "mode": text(choices=DrainMode.values),
        "gpu_hours_at_risk": measure("Of all of them; lost when they are sent away now."),
        "jobs": many(HELD),
    },
)

CLUSTER = Shape(
    "Cluster",
    {
        "id": text(get=at("name"), needs=("name",)),
        "name": text(),
        "title": text(),
        "mode": text("How far Acme goes on it.", choices=Mode.values),
        "policy": text(),
        "gpu_hour_price": measure("In the currency that the server is set to.", nullable=True),
        "product": text(),
        "heard_at": moment("When it last answered.", nullable=True, observed=True),
        "trouble": text("Why its last scheduling turn failed; empty when it succeeded.", observed=True),
        "unreadable_count": number("Rows of its last answer that could not be read.", observed=True),
        "unreadable_rows": text("Which rows these are, and why. Nothing is concluded about them.", observed=True),
    },
)

MODE_SAYS = f"observe: watch; advise: propose starts; drive: decide what runs where. In drive: {DRIVE_MEANS}"


SUBMIT_AS_SAYS = (
    "The user that jobs run as on the cluster. service: the user of Acme's token, for everybody, so that people and"
    " teams are not isolated there; user_header: the person who submitted, named to a token that may act for others;"
    " user_tokens: the person who submitted, by a token of their own."
)


def _connection(name: str, says: str) -> Field:
    """Null for callers who neither operate nor configure clusters; `places.cluster_row` knows which are which."""
    return text(
        says, nullable=True, get=lambda row: getattr(row, name) if row.shows_connection else None, needs=(name,)
    )


CLUSTER_DETAIL = Shape(
    "ClusterDetail",
    {
        **CLUSTER.fields,
        "address": _connection(
            "address", "Of its slurmrestd. Null, as the next ones, without a permission on clusters."
        ),
        "api_user": _connection("api_user", "Sent as X-SLURM-USER-NAME."),
        "token_file": _connection("token_file", "Path to the file with the JWT; the token itself is never shown."),
        "submit_as": text(SUBMIT_AS_SAYS, choices=SubmitAs.values),
        "user_token_directory": _connection("user_token_directory", "For user_tokens: one token file for each user."),
        "metrics_address": _connection("metrics_address", "GPU telemetry in DCGM exporter format."),
        "log_root": _connection("log_root", "Shared directory that job logs are written to."),
        "checkpoint_root": _connection("checkpoint_root", "Shared directory beneath which jobs keep checkpoints."),
        "checkpoint_signal": text("Asks jobs to save a checkpoint before they are stopped; empty: never."),
        "burn_in_minutes": number("How long a repaired node is tested before it accepts jobs.", low=0),
        "is_bundled": truth("Started by Acme itself, which also sets how it is reached."),
    },
)
CLUSTER_CHANGES = {
    "title": text(required=False),
    "address": text(
        "http://host:6820 or unix:///run/slurmrestd.sock. With a new address name token_file again: the token is sent"
        " there from then on.",
        required=False,
    ),
    "api_user": text("Sent as X-SLURM-USER-NAME.", required=False),
    "token_file": text(
        "Path to a file containing the JWT, beneath a directory of ACME_TOKEN_DIRS on the server.", required=False
    ),
    "submit_as": text(SUBMIT_AS_SAYS, choices=SubmitAs.values, required=False),
    "user_token_directory": text(
        "For user_tokens: a directory beneath ACME_TOKEN_DIRS with one token file for each user, named as the user.",
        required=False,
    ),
    "metrics_address": text("GPU telemetry in DCGM exporter format.", required=False),
    "log_root": text("Shared directory that job logs are written to, as the server sees it.", required=False),
    "checkpoint_root": text("Shared directory beneath which jobs keep checkpoints.", required=False),
    "mode": text(MODE_SAYS, choices=Mode.values, required=False),
    "checkpoint_signal": text("[B:]USR1[@seconds], as for sbatch --signal; empty: never.", required=False),
    "burn_in_minutes": number("How long a repaired node is tested.", low=0, high=10_080, required=False),
    "gpu_hour_price": measure(
        "In the currency of the server; null: no costs are shown.", nullable=True, required=False
    ),
    "reason": text("Kept in the Event.", required=False),
}
CLUSTER_CHANGE = Shape("ClusterChange", CLUSTER_CHANGES, example={"mode": "advise"})
NEW_CLUSTER = Shape(
    "ClusterRequest",
    {
        **CLUSTER_CHANGES,
        "name": text("Small letters, digits and dashes, at most 40."),
        "address": text("http://host:6820 or unix:///run/slurmrestd.sock."),
        "mode": text(f"observe if left out. {MODE_SAYS}", choices=Mode.values, required=False),
    },
    example={"name": "seren", "address": "http://127.0.0.1:6820", "mode": "observe"},
)
CONNECTION_FIELDS = (
    *("address", "api_user", "token_file", "submit_as", "user_token_directory"),
    *("metrics_address", "log_root"),
)
CONNECTION = Shape(
    "ConnectionRequest",
    {name: NEW_CLUSTER.fields[name] for name in CONNECTION_FIELDS},
)
CONNECTION_TEST = Shape(
    "ConnectionTest",
    {
        "works": truth("No step is wrong."),
        "steps": many(
            Shape(
                "ConnectionTestStep",
                {
                    "name": text(),
                    "good": truth("Null where it was not tried, or there was nothing to try.", nullable=True),
                    "says": text(),
                    "advice": text("What to do; empty where nothing is wrong."),
                },
            )
        ),
    },
)

MEMBER = Shape("Member", {"user": text(get=at("user.username")), "role": text(choices=Role.values)})
QUOTA = Shape(
    "Quota",
    {"cluster": text(get=at("cluster.name")), "kind": text("Empty: every kind of work."), "gpus": number()},
)
QUOTA_USED = Shape(
    "QuotaUsed",
    {
        "team": text(get=at("team.name"), needs=("team__name",)),
        "cluster": text(get=at("cluster.name"), needs=("cluster__name",)),
        "kind": text("Empty: every kind of work."),
        "gpus": number("That jobs which may not be preempted hold at most."),
        "held": number("That they hold just now.", needs=()),
        "left": number("Of the two, what is left; negative, where a quota was made smaller.", needs=()),
    },
)
TEAM = Shape(
    "Team",
    {
        "id": text(get=at("name"), needs=("name",)),
        "name": text(),
        "title": text(),
        "members": many(
            MEMBER,
            get=lambda team: [MEMBER.show(one) for one in team.memberships.all()],
            needs=(),
            joins=("memberships__user",),
        ),
        "quotas": many(
            QUOTA,
            get=lambda team: [QUOTA.show(one) for one in team.quotas.all()],
            needs=(),
            joins=("quotas__cluster",),
        ),
    },
)

ROLE = Shape("RoleInTeam", {"team": text(), "role": text(choices=Role.values)})
ME = Shape(
    "Me",
    {
        "user": text(),
        "scope": text("What this token, or session, may do at most.", choices=Scope.values),
        "token": text("The token's prefix; null for a session.", nullable=True),
        "expires_at": moment(nullable=True),
        "superuser": truth("Every role in every team."),
        "operates_clusters": truth("May drain, resume and test nodes."),
        "teams": many(ROLE),
    },
)

# --- bodies

WISH = Shape(
    "JobRequest",
    {
        "command": text("A script or a command line; the cluster runs it, Acme never does."),
        "team": text("Needed by those who submit for several teams.", required=False),
        "cluster": text("Needed where Acme drives several.", required=False),
        "name": text("Otherwise the first word of the command.", required=False),
        "kind": text(choices=Kind, required=False),
        "workdir": text("Absolute path.", required=False),
        "environment": names(required=False),
        "nodes": number(low=1, high=100_000, required=False),
        "gpus_per_node": number(low=0, high=1000, required=False),
        "cpus_per_node": number("Otherwise the GPUs' share of a node.", low=1, high=100_000, required=False),
        "memory_per_node": either({"type": "integer"}, {"type": "string"}, says="MiB, or 512G.", required=False),
        "gpu_model": text(required=False),
        "nic_type": text(required=False),
        "time_limit": Field(schema=DURATION, required=False),
        "priority": number(low=-HIGHEST_PRIORITY, high=HIGHEST_PRIORITY, required=False),
        "preemptible": truth(required=False),
        "requeue_limit": number(low=0, high=1000, required=False),
        "begin_at": moment("With a time zone.", required=False),
        "hold": truth(required=False),
        "array": text("0-99%10", required=False),
        "dependencies": either(
            {"type": "string"},
            {"type": "array", "items": {"type": "string"}},
            says="afterok:ID,afterany:ID; @KEY names another job of the same request.",
            required=False,
        ),
        "checkpoint_dir": text("Absolute path.", required=False),
        "checkpoint_interval": Field(schema=DURATION, required=False),
        "checkpoint_signal": text(
            "Asks it to save its work before it is stopped: [B:]USR1[@seconds], as for sbatch --signal.", required=False
        ),
        "labels": names(required=False),
        "comment": text(required=False),
        "key": text("What other jobs of the same request call it.", required=False),
    },
    example={"command": "python train.py", "nodes": 2, "gpus_per_node": 8, "time_limit": "2-00:00:00"},
)

SUBMITTED = Shape(
    "Submitted",
    {
        "id": text("Of the job; of the array, if it is one."),
        "jobs": texts("The ids of all rows: one, or one for each task of the array."),
        "state": text(choices=STATES),
        "why": text("Why it does not run yet."),
    },
)

BULK = Shape(
    "JobsRequest",
    {
        "jobs": many(WISH, "At most 5,000, arrays counted by their tasks."),
        "mode": text("all: every job or none; each: every job that can be.", choices=("all", "each"), required=False),
        "team": text("For jobs that name none.", required=False),
        "cluster": text("For jobs that name none.", required=False),
    },
)
RESULT = Shape(
    "Result",
    {
        "status": number("201, or what the job alone would have been answered with."),
        "id": text(required=False),
        "jobs": texts(required=False),
        "errors": anything("Field by field.", required=False),
    },
)
BULK_DONE = Shape(
    "JobsSubmitted",
    {"accepted": number(), "refused": number(), "results": many(RESULT, "In the order asked.")},
)

WHY = Shape("Why", {"reason": text("Kept in the Event; who holds or drains should give one.", required=False)})
PRIORITY = Shape(
    "PriorityRequest",
    {"priority": number(low=-HIGHEST_PRIORITY, high=HIGHEST_PRIORITY), "reason": WHY.fields["reason"]},
)
VERBS = tuple(verbs.VERBS)
VERB_REQUEST = Shape(
    "VerbRequest",
    {
        "verb": text(choices=VERBS),
        "ids": texts("Ids of jobs, or of arrays for all their tasks; at most 1,000.", required=False),
        "filter": anything('Filters of the list of jobs, such as {"state": "PENDING"}.', required=False),
        "dry_run": truth("Say what would be done, and change nothing.", required=False),
        "priority": number("For the verb priority.", low=-HIGHEST_PRIORITY, high=HIGHEST_PRIORITY, required=False),
        "reason": WHY.fields["reason"],
    },
    example={"verb": "cancel", "filter": {"state": "PENDING", "user": "ada"}, "dry_run": True},
)
OUTCOME = Shape(
    "Outcome",
    {"id": text(), "done": truth("For a dry run: would be done."), "error": text("Why not.", required=False)},
)
OUTCOMES = Shape(
    "Outcomes",
    {
        "verb": text(choices=VERBS),
        "dry_run": truth(),
        "matched": number("Jobs that the ids or the filter name."),
        "done": number(),
        "refused": number(),
        "left": number("Matched beyond the 1,000 of one request: ask again."),
        "outcomes": many(OUTCOME),
    },
)
NODE_TEST = Shape(
    "NodeTest",
    {
        "id": number(),
        "node": text("CLUSTER/NAME."),
        "asked_at": moment(),
        "done": truth(),
        "passed": truth("Null until it is done.", nullable=True),
        "outcome": text("How far it is, or how it came out."),
        "log": text("Where its output is."),
    },
)
DRAIN = Shape(
    "DrainRequest",
    {
        "reason": text("Operators read it in the list of nodes."),
        "mode": text(
            "What becomes of running jobs: finish lets them, checkpoint requeues each after its next one, now at once.",
            choices=DrainMode.values,
            required=False,
        ),
        "dry_run": truth("Show the consequences, and change nothing.", required=False),
    },
)
