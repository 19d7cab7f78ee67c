"""The fields of a job request, one row per field. Pure, and without imports from the server.

From this table follow how a request is read (`spec`), the request and the response of the API, the submit form, the
job's page, the commands that submit the same job, and the options of `acme submit`. The client has the table too:
`client/acme_client/request_fields.py` is this file, as a link in the repository and as a copy in the wheel.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

MAX_PRIORITY = 1_000_000
MAX_IMAGE_LENGTH = 500
MAX_WCKEY_LENGTH = 100
DEFAULT_REQUEUE_LIMIT = 3


class Notation(StrEnum):
    """How a value is written. Forms and command lines have text, which most fields of the API accept too."""

    TEXT = "text"
    LINES = "lines"  # of text, which may contain secrets
    PATH = "path"
    CHOICE = "choice"
    NUMBER = "number"
    FLAG = "flag"
    PAIRS = "pairs"  # names and texts, which may contain secrets
    NAMES = "names"  # several words
    MEMORY = "memory"
    DURATION = "duration"
    TIME = "time"


@dataclass(frozen=True)
class Value:
    notation: Notation = Notation.TEXT
    low: int = 0  # of a number
    high: int = 0
    most: int = 200  # bytes of a text
    example: Any = None  # the same in requests and responses
    column: str = ""  # of `JobSpec` and `Job`; empty: the name of the field
    null: str = ""  # what null means in responses; empty: it is never null


@dataclass(frozen=True)
class Input:
    """The input of the submit form."""

    initial: str = ""
    placeholder: str = ""
    rows: int = 0


@dataclass(frozen=True)
class Option:
    """The option of `acme submit`, with its short form and with what the help calls its value: "-N, --nodes N"."""

    usage: str
    help: str = ""  # if the option means something else than the field
    gres: str = ""  # the beginning of the value of --gres, which several fields share
    sbatch: bool = False  # sbatch has the same option

    @property
    def name(self) -> str:
        return self.usage.rpartition(", ")[2].partition(" ")[0]

    @property
    def short(self) -> str:
        return self.usage.partition(", ")[0] if ", " in self.usage else ""


@dataclass(frozen=True, kw_only=True)
class RequestField:
    """A field. `help` is shown by the API, the form and the command line, each of which adds how a value is written."""

    label: str
    help: str = ""
    value: Value = Value()
    input: Input | None = Input()
    option: Option | None = None  # None: the client has code for it
    stored: bool = True  # in the column of the job
    repeats: bool = True  # a job that is submitted again has the value too
    in_lists: bool = True  # lists of the API show it
    on_page: bool = False  # the job's pages show it as text under its label


# Title of a group of the form and of the help of `acme submit` → its fields. The form always shows the first group
FIELD_GROUPS: dict[str, dict[str, RequestField]] = {
    "Job": {
        "name": RequestField(
            label="Name",
            help="Default: the first word of the command.",
            value=Value(most=120, example="llama-7b"),
            option=Option("-J, --job-name NAME", help="Default: the script's file name.", sbatch=True),
        ),
        "kind": RequestField(
            label="Kind",
            help="pretrain, sft, mllm, evaluation, debug or other. Policies and quotas distinguish them.",
            value=Value(Notation.CHOICE, example="pretrain"),
            input=Input(initial="other"),
            option=Option("--kind KIND"),
        ),
        "command": RequestField(
            label="Command",
            help="A script or a command line. It runs on the cluster, never on the Acme server.",
            value=Value(Notation.LINES, most=64 * 1024, example="torchrun --nnodes 2 train.py --config llama-7b.yaml"),
            input=Input(placeholder="torchrun --nproc-per-node 8 train.py", rows=8),
            in_lists=False,
        ),
        "nodes": RequestField(
            label="Nodes",
            help="The job starts on all of them at once. Default: 1.",
            value=Value(Notation.NUMBER, low=1, high=100_000, example=2),
            input=Input(initial="1"),
            option=Option("-N, --nodes N", sbatch=True),
        ),
        "gpus_per_node": RequestField(
            label="GPUs per node",
            help="Less than 1: a part of one GPU, if the cluster allows it for this kind of job.",
            value=Value(Notation.NUMBER, high=1000, example=8),
            input=Input(initial="8"),
            option=Option("--gpus-per-node [MODEL:]N", help="GPUs of each node: 8, or h100:8."),
        ),
        "time_limit": RequestField(
            label="Time limit",
            help="UNLIMITED if it is not given. Jobs with a short limit start earlier.",
            value=Value(Notation.DURATION, example=172800, null="UNLIMITED"),
            input=Input(initial="12:00:00"),
            option=Option("-t, --time LIMIT", sbatch=True),
        ),
    },
    "Resources": {
        "cpus_per_node": RequestField(
            label="CPUs per node",
            help="Default: a share of the node proportional to its GPUs.",
            value=Value(Notation.NUMBER, low=1, high=100_000, example=128),
            option=Option("-c, --cpus-per-task N"),
        ),
        "memory_per_node": RequestField(
            label="Memory per node",
            help="Default: that of the cluster.",
            value=Value(Notation.MEMORY, example=1048576, column="memory_per_node_mb"),
            option=Option("--mem SIZE", sbatch=True),
        ),
        "gpu_model": RequestField(
            label="GPU model",
            help="As the nodes report it. Several in order of preference: h100|a100. Default: any.",
            value=Value(example="h100"),
            option=Option("--gpu-model MODEL"),
        ),
        "mig_profile": RequestField(
            label="MIG slice",
            help="Profile of a MIG slice such as 1g.10gb. Leave out the GPUs per node then.",
            value=Value(example="1g.10gb"),
            input=Input(placeholder="1g.10gb"),
            option=Option("--gres", gres="nvidia.com/mig-"),
        ),
        "gpu_shards": RequestField(
            label="GPU shards",
            help="A part of one GPU, as for sbatch --gres=shard:N. Leave out the GPUs per node then.",
            value=Value(Notation.NUMBER, low=1, high=1000, example=2),
            option=Option("--gres", gres="shard:", sbatch=True),
            stored=False,
        ),
        "gpu_mps": RequestField(
            label="MPS units",
            help="A part of one GPU, as for sbatch --gres=mps:N; usually a hundred are a GPU.",
            value=Value(Notation.NUMBER, low=1, high=1000, example=25),
            option=Option("--gres", gres="mps:", sbatch=True),
            stored=False,
        ),
        "nic_type": RequestField(
            label="NIC type",
            help="Only nodes with this network card. Default: any.",
            value=Value(example="ib-400"),
            option=Option("--nic-type TYPE"),
        ),
    },
    "Scheduling": {
        "priority": RequestField(
            label="Priority",
            help="Higher values start first. Values above 0 need the role operator.",
            value=Value(Notation.NUMBER, low=-MAX_PRIORITY, high=MAX_PRIORITY, example=0),
            input=Input(initial="0"),
            option=Option("--priority N"),
        ),
        "requeue_limit": RequestField(
            label="Requeue limit",
            help="Maximum number of restarts after platform failures.",
            value=Value(Notation.NUMBER, high=1000, example=DEFAULT_REQUEUE_LIMIT),
            input=Input(initial=str(DEFAULT_REQUEUE_LIMIT)),
            option=Option("--requeue-limit N"),
        ),
        "begin_at": RequestField(
            label="Not before",
            help="The job does not start before this time.",
            value=Value(Notation.TIME, example="2026-01-31T12:00:00Z", null="none"),
            input=Input(placeholder="2026-01-31T08:00:00Z"),
            option=Option("-b, --begin TIME"),
            repeats=False,
        ),
        "dependencies": RequestField(
            label="Dependencies",
            help="afterok:ID, afterany:ID or afternotok:ID.",
            value=Value(Notation.NAMES, example=[]),
            input=Input(placeholder="afterok:01k3v9q2m7t"),
            option=Option("-d, --dependency LIST", sbatch=True),
            stored=False,
        ),
        "array": RequestField(
            label="Array",
            help="One task per index: 0-99, or 0-99%10 for at most ten at once.",
            value=Value(most=2000),
            input=Input(placeholder="0-99%10"),
            option=Option("-a, --array INDEXES", sbatch=True),
            stored=False,
        ),
        "hold": RequestField(
            label="Hold",
            help="The job does not start until you release it.",
            value=Value(Notation.FLAG),
            option=Option("-H, --hold"),
            repeats=False,
        ),
    },
    "Deadline": {
        "deadline_at": RequestField(
            label="Deadline",
            help="When the job should have ended. A request may also say now+6hours, or 18:00 for the next one in UTC.",
            value=Value(Notation.TIME, null="none"),
            input=Input(placeholder="18:00"),
            option=Option("--deadline TIME", help="When the job should have ended. A time without a zone is local."),
            repeats=False,
        ),
        "deadline_action": RequestField(
            label="After the deadline",
            help="continue (default), or cancel: the job ends at its deadline, as with sbatch --deadline.",
            value=Value(Notation.CHOICE, example="continue"),
            input=Input(initial="continue"),
            option=Option("--deadline-action ACTION"),
            repeats=False,
        ),
    },
    "Preemption": {
        "preemptible": RequestField(
            label="Preemptible",
            help="Other jobs may preempt it, within its contract, and it may borrow unused quota.",
            value=Value(Notation.FLAG),
            option=Option("--preemptible"),
        ),
        "preempt_exempt_time": RequestField(
            label="Protection after a start",
            help="Not preempted for this long after each start.",
            value=Value(Notation.DURATION, example=1800),
            input=Input(placeholder="30:00"),
            option=Option("--preempt-exempt-time TIME"),
        ),
        "preempt_at_checkpoint": RequestField(
            label="Preemption only at checkpoints",
            help="Preempted only right after a checkpoint, if the cluster offers it.",
            value=Value(Notation.FLAG, example=True),
            option=Option("--preempt-at-checkpoint"),
        ),
        "preemptions_per_day": RequestField(
            label="Preemptions per day",
            help="Preempted at most this often within 24 hours, if the cluster offers it.",
            value=Value(Notation.NUMBER, high=1000, example=2, null="no limit"),
            option=Option("--preemptions-per-day N"),
        ),
    },
    "Working directory and environment": {
        "image": RequestField(
            label="Container image",
            help="On clusters that run container images. Default: that of the cluster, if any.",
            value=Value(most=MAX_IMAGE_LENGTH, example="nvcr.io/nvidia/pytorch:24.01-py3"),
            option=Option("--image IMAGE"),
            in_lists=False,
            on_page=True,
        ),
        "mounts": RequestField(
            label="Mounts",
            help="Names of volumes that the cluster offers to containers, at most 20.",
            value=Value(Notation.NAMES, example=["datasets"]),
            input=Input(placeholder="datasets, scratch"),
            option=Option("--mount NAMES"),
            in_lists=False,
            on_page=True,
        ),
        "workdir": RequestField(
            label="Working directory",
            value=Value(Notation.PATH, example="/home/ada/llama"),
            input=Input(placeholder="/home/me/run"),
            option=Option("-D, --chdir PATH", sbatch=True),
            in_lists=False,
            on_page=True,
        ),
        "environment": RequestField(
            label="Environment",
            help="Environment variables.",
            value=Value(Notation.PAIRS, example={"OMP_NUM_THREADS": "8"}),
            input=Input(rows=4),
            option=Option("--env NAME=VALUE"),
            in_lists=False,
        ),
    },
    "Checkpoints and labels": {
        "checkpoint_dir": RequestField(
            label="Checkpoint directory",
            help="Directory in which the job saves checkpoints.",
            value=Value(Notation.PATH, example="/checkpoints/llama-7b"),
            input=Input(placeholder="/ckpt/run"),
            option=Option("--checkpoint-dir PATH"),
            in_lists=False,
        ),
        "checkpoint_interval": RequestField(
            label="Checkpoint interval",
            help="How often the job saves a checkpoint.",
            value=Value(Notation.DURATION, example=1800, null="none"),
            input=Input(placeholder="30:00"),
            option=Option("--checkpoint-interval TIME"),
            in_lists=False,
        ),
        "checkpoint_signal": RequestField(
            label="Checkpoint signal",
            help="Signal that makes the job save a checkpoint before it is stopped: [B:]USR1[@seconds].",
            value=Value(example="USR1@60"),
            input=Input(placeholder="USR1@60"),
            option=Option("--signal SIGNAL", sbatch=True),
            in_lists=False,
        ),
        "labels": RequestField(
            label="Labels",
            help="For filters and reports.",
            value=Value(Notation.PAIRS, example={"run": "7b"}),
            input=Input(rows=2),
            option=Option("--label NAME=VALUE"),
        ),
        "comment": RequestField(
            label="Comment",
            help="Free text, shown on the job's page.",
            value=Value(Notation.LINES, most=4000, example="Baseline of the ablation."),
            input=Input(rows=2),
            option=Option("--comment TEXT", sbatch=True),
            in_lists=False,
        ),
        "wckey": RequestField(
            label="Workload key",
            help="Project or cost center of the cluster's accounting, as for sbatch --wckey.",
            value=Value(most=MAX_WCKEY_LENGTH, example="climate-2026"),
            option=Option("--wckey KEY", sbatch=True),
            in_lists=False,
            on_page=True,
        ),
        "key": RequestField(
            label="Key",
            help="Name by which other jobs of the same request refer to it, as @KEY.",
            input=None,
            stored=False,
        ),
    },
}
REQUEST_FIELDS = {name: field for fields in FIELD_GROUPS.values() for name, field in fields.items()}
TEXTS_ON_PAGE = {name: field for name, field in REQUEST_FIELDS.items() if field.on_page}
