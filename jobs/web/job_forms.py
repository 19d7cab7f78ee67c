"""The submit form: converts posted fields into a request for `jobs.core.spec.parse`.

The form leaves validation to the parser, so that pages and API report the same errors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.db.models import Max
from django.http import QueryDict

from jobs.actions.submit import refuse_unknown_dependencies
from jobs.core import masking, slurm_notation, spec
from jobs.core.deadlines import DeadlineAction, absolute_time, refuse_impossible
from jobs.core.gpu_shares import shards_of_milli
from jobs.core.lifecycle import JobKind
from jobs.core.preemption_contract import CONTRACT_FIELDS
from jobs.core.spec import SHARE_FIELDS, InvalidField, JobSpec, refuse_priority
from jobs.core.submit_commands import without_defaults
from jobs.models import Cluster, Job, Node, Team, TeamRole, clock

DECIMAL = re.compile(r"\d{0,9}\.\d{1,9}", re.ASCII)
NUMBER_FIELDS = (
    *("nodes", "gpus_per_node", *SHARE_FIELDS, "cpus_per_node"),
    *("priority", "requeue_limit", "preemptions_per_day"),
)
GPU_FIELDS = frozenset({"gpus_per_node", "mig_profile", *SHARE_FIELDS})  # a job states one of them
FLAG_FIELDS = ("preemptible", "preempt_at_checkpoint", "hold")
PAIRS_FIELDS = ("environment", "labels")
# All other fields are text that is passed to the parser unchanged.
TEXT_FIELDS = (
    *("name", "command", "kind", "workdir", "memory_per_node", "gpu_model", "nic_type", "time_limit", "begin_at"),
    "mig_profile",
    *("deadline_at", "deadline_action"),
    *("image", "mounts", "array", "dependencies", "checkpoint_dir", "checkpoint_interval", "checkpoint_signal"),
    *("comment", "preempt_exempt_time"),
)


def text_input(label: str, *, help_text: str = "", rows: int = 0, initial: str = "", **attrs: str) -> forms.CharField:
    widget = forms.Textarea(attrs={"rows": rows, **attrs}) if rows else forms.TextInput(attrs=attrs)
    # Multi-line text is not stripped and no length is checked: the parser reports both
    return forms.CharField(
        label=label, required=False, strip=not rows, help_text=help_text, initial=initial, widget=widget
    )


def number_input(label: str, initial: int | str = "", *, help_text: str = "") -> forms.CharField:
    return text_input(label, initial=str(initial), help_text=help_text, inputmode="numeric")


class SubmitForm(forms.Form):
    """All fields of a job. Team and cluster offer only what the user may use."""

    team = forms.ModelChoiceField(Team.objects.none(), empty_label=None)
    cluster = forms.ModelChoiceField(Cluster.objects.none(), empty_label=None)
    name = text_input("Name", help_text="Leave empty to use the first word of the command.")
    kind = forms.ChoiceField(label="Kind", choices=[(k.value, k.value) for k in JobKind], initial=JobKind.OTHER.value)
    command = text_input("Command", rows=8, spellcheck="false", placeholder="torchrun --nproc-per-node 8 train.py")
    nodes = number_input("Nodes", 1)
    gpus_per_node = text_input(
        "GPUs per node", initial="8", inputmode="decimal", help_text="Less than 1: a part of one GPU."
    )
    time_limit = text_input("Time limit", initial="12:00:00", help_text="Minutes, D-HH:MM:SS or UNLIMITED.")

    cpus_per_node = number_input(
        "CPUs per node", help_text="Leave empty for a share of the node proportional to its GPUs."
    )
    memory_per_node = text_input(
        "Memory per node", help_text="For example 512G or 1T. Leave empty for the cluster default."
    )
    gpu_model = text_input(
        "GPU model",
        help_text="As the nodes report it. Several in order of preference: h100|a100. Leave empty for any model.",
    )
    mig_profile = text_input(
        "MIG slice",
        placeholder="1g.10gb",
        help_text="Profile of a slice instead of GPUs. Leave GPUs per node empty then.",
    )
    gpu_shards = number_input(
        "GPU shards", help_text="Part of one GPU as Slurm's gres/shard. Leave GPUs per node empty then."
    )
    gpu_mps = number_input("MPS units", help_text="As GPU shards, on nodes with gres/mps.")
    nic_type = text_input("NIC type", help_text="Leave empty for any type.")
    image = text_input(
        "Container image",
        help_text="Only for clusters that run container images. Leave empty for the image of the cluster, if any.",
        spellcheck="false",
    )
    mounts = text_input(
        "Mounts", placeholder="datasets, scratch", help_text="Names of volumes that the cluster offers to containers."
    )
    workdir = text_input("Working directory", placeholder="/home/me/run")
    environment = text_input("Environment", rows=4, spellcheck="false", help_text="NAME=value, one per line.")
    priority = number_input(
        "Priority", 0, help_text="Higher values start first. Values above 0 need the role operator."
    )
    requeue_limit = number_input("Requeue limit", 3, help_text="Maximum number of restarts after platform failures.")
    preemptible = forms.BooleanField(
        label="Preemptible", required=False, help_text="Other jobs may preempt this job, within its contract."
    )
    preempt_exempt_time = text_input(
        "Protected for", placeholder="30:00", help_text="Not preempted for this long after each start."
    )
    preempt_at_checkpoint = forms.BooleanField(
        label="Only at checkpoints", required=False, help_text="Preempted only right after a checkpoint."
    )
    preemptions_per_day = number_input("Preemptions per day", help_text="At most. Leave empty for the cluster default.")
    hold = forms.BooleanField(label="Hold", required=False, help_text="The job does not start until you release it.")
    begin_at = text_input("Not before", placeholder="2026-01-31T08:00:00Z")
    deadline_at = text_input(
        "Deadline", placeholder="18:00", help_text="In UTC: a time of day, a date and time, or now+6hours."
    )
    deadline_action = forms.ChoiceField(
        label="After the deadline",
        choices=[(action.value, action.value) for action in DeadlineAction],
        initial=DeadlineAction.CONTINUE.value,
        required=False,
    )
    array = text_input("Array", placeholder="0-99%10", help_text="One job per index. %10 runs at most ten at once.")
    dependencies = text_input("Dependencies", placeholder="afterok:01k3v9q2m7t")
    checkpoint_dir = text_input("Checkpoint directory", placeholder="/ckpt/run")
    checkpoint_interval = text_input("Checkpoint interval", placeholder="30:00")
    checkpoint_signal = text_input("Checkpoint signal", placeholder="USR1@60")
    labels = text_input("Labels", rows=2, spellcheck="false", help_text="name=value, one per line.")
    comment = text_input("Comment", rows=2)

    BASIC = ("team", "cluster", "name", "kind", "command", "nodes", "gpus_per_node", "time_limit")
    GROUPS = (
        ("Resources", ("cpus_per_node", "memory_per_node", "gpu_model", "mig_profile", *SHARE_FIELDS, "nic_type")),
        ("Scheduling", ("priority", "requeue_limit", "begin_at", "dependencies", "array", "hold")),
        ("Deadline", ("deadline_at", "deadline_action")),
        ("Preemption", ("preemptible", *CONTRACT_FIELDS)),
        ("Working directory and environment", ("image", "mounts", "workdir", "environment")),
        ("Checkpoints and labels", ("checkpoint_dir", "checkpoint_interval", "checkpoint_signal", "labels", "comment")),
    )

    def __init__(self, *args: Any, user: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.user = user
        self.spec: JobSpec | None = None
        self.fields["team"].queryset = Team.objects.where(user, TeamRole.RESEARCHER).distinct()
        self.fields["cluster"].queryset = Cluster.objects.all()

    def clean(self) -> dict[str, Any]:
        values = super().clean() or {}
        if not self.errors:
            self._refuse_bad_pairs(values)
            if values["deadline_at"]:
                values["deadline_at"] = absolute_time(values["deadline_at"], clock.now())
            try:
                parsed = spec.parse(submit_request(values), Node.objects.shape(values["cluster"]))
                if parsed.deadline_at:
                    refuse_impossible(parsed.deadline_at, parsed.deadline_action, parsed.time_limit, clock.now())
                self._refuse_priority(parsed, values["team"])
                refuse_unknown_dependencies(parsed, values["team"])
                self.spec = parsed if not self.errors else None
            except InvalidField as bad:
                self.refuse(bad)
        return values

    def _refuse_priority(self, parsed: JobSpec, team: Team) -> None:
        # Without a query for the usual priority 0
        if parsed.priority > 0:
            operates = Team.objects.where(self.user, TeamRole.OPERATOR).filter(pk=team.pk).exists()
            refuse_priority(parsed.priority, operates)

    def _refuse_bad_pairs(self, values: dict[str, Any]) -> None:
        """Show invalid pairs and leave them out, so that the parser finds the errors of the other fields too."""
        for name in PAIRS_FIELDS:
            try:
                parse_pairs(name, values[name])
            except InvalidField as bad:
                self.refuse(bad)
                values[name] = ""

    def refuse(self, bad: InvalidField) -> None:
        """Show the parser's errors at the fields that they name."""
        for error in (bad, *bad.others):
            field, _, inner = error.field.partition(".")
            self.add_error(field if field in self.fields else None, f"{inner}: {error.why}" if inner else error.why)

    def basic(self) -> list[forms.BoundField]:
        return [self[name] for name in self.BASIC]

    def groups(self) -> list[tuple[str, list[forms.BoundField], bool]]:
        """The collapsible groups as (title, fields, is_open); a group with an error or a changed value is open."""
        return [(title, [self[name] for name in names], self._has_input(names)) for title, names in self.GROUPS]

    def _has_input(self, names: tuple[str, ...]) -> bool:
        changed = any(self[name].value() not in (None, "", False, self.fields[name].initial) for name in names)
        return changed or any(name in self.errors for name in names)


MISSING_COMMAND = ":"  # a valid command that does nothing


def draft_form(posted: QueryDict, user: Any) -> tuple[SubmitForm, bool]:
    """The form of a request that is still being written, and whether it has a command. Without one, everything else
    is checked and previewed as if it had."""
    has_command = bool(posted.get("command", "").strip())
    values = posted.copy()
    if not has_command:
        values["command"] = MISSING_COMMAND
    return SubmitForm(values, user=user), has_command


def api_body(values: Mapping[str, Any]) -> dict[str, Any]:
    """The form's valid values as the body of an API request."""
    return {"team": values["team"].name, "cluster": values["cluster"].name, **without_defaults(submit_request(values))}


MAX_LINK_LENGTH = 6000  # servers and proxies refuse longer URLs


def link_to_form(form: SubmitForm) -> str:
    """The query string that fills in the form again, without secrets; empty if it would be too long."""
    names = (*TEXT_FIELDS, *NUMBER_FIELDS, *FLAG_FIELDS, *PAIRS_FIELDS)
    values = {name: form.cleaned_data.get(name) or "" for name in names}
    changed = {name: value for name, value in values.items() if value != (form.fields[name].initial or "")}
    for name in PAIRS_FIELDS:
        if name in changed:
            changed[name] = format_pairs(masking.without_secrets(parse_pairs(name, changed[name])))
    for name in ("command", "comment"):
        if name in changed:
            changed[name] = masking.mask_text(changed[name])
    places = {name: form.cleaned_data[name].name for name in ("team", "cluster")}
    query = urlencode({**places, **{name: "1" if value is True else value for name, value in changed.items()}})
    return query if len(query) <= MAX_LINK_LENGTH else ""


def values_from_url(params: QueryDict) -> dict[str, Any]:
    """The initial values of the form that the URL names. Unknown teams and clusters leave the default."""
    names = (*TEXT_FIELDS, *NUMBER_FIELDS, *FLAG_FIELDS, *PAIRS_FIELDS)
    values: dict[str, Any] = {name: params[name].replace("\0", "") for name in names if name in params}
    values |= {name: values[name].lower() in ("1", "true", "on") for name in FLAG_FIELDS if name in values}
    for name, model in (("team", Team), ("cluster", Cluster)):
        if name in params and (row := model.objects.filter(name=params[name].replace("\0", "")).first()):
            values[name] = row.pk
    return values


def submit_request(values: Mapping[str, Any]) -> dict[str, Any]:
    """The form's values as a submit request, without the empty fields."""
    request: dict[str, Any] = {name: values[name] for name in TEXT_FIELDS if values.get(name)}
    request["command"] = values.get("command", "").replace(
        "\r\n", "\n"
    )  # browsers send CRLF, which breaks shell scripts
    if values.get("comment"):
        request["comment"] = values["comment"].replace("\r\n", "\n")
    request |= {name: number_or_text(values[name]) for name in NUMBER_FIELDS if values.get(name)}
    request |= {name: True for name in FLAG_FIELDS if values.get(name)}
    return request | {name: parse_pairs(name, values[name]) for name in PAIRS_FIELDS if values.get(name, "").strip()}


def number_or_text(text: str) -> float | str:
    """The text as a number if possible; otherwise the text itself, which the parser then rejects."""
    digits = text.strip().removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) < 20:
        return int(text)
    return float(text) if DECIMAL.fullmatch(digits) else text


def parse_pairs(field: str, text: str) -> dict[str, str]:
    """Parse NAME=value lines. Raises InvalidField for a line without "=" and for a repeated name."""
    pairs: dict[str, str] = {}
    for line in text.splitlines():
        name, sign, value = line.partition("=")
        if not line.strip():
            continue
        if not sign:
            raise InvalidField(field, f"{line.strip()[:40]!r} is not of the form NAME=value")
        if name.strip() in pairs:
            raise InvalidField(field, f"{name.strip()[:40]!r} is given twice")
        pairs[name.strip()] = value
    return pairs


def format_pairs(values: Mapping[str, str]) -> str:
    return "\n".join(f"{name}={value}" for name, value in values.items())


def resubmission_request(job: Job, changes: Mapping[str, str]) -> dict[str, Any]:
    """A submit request for the same job with these fields changed."""
    values = resubmit_values(job, changes, secrets=True)
    return submit_request({name: value if isinstance(value, bool) else str(value) for name, value in values.items()})


def resubmit_values(job: Job, changes: Mapping[str, Any], *, secrets: bool) -> dict[str, Any]:
    """Initial form values to submit the same job again, with these changes. `secrets` must be True only for the job's
    owner."""
    values = _values_of(job, secrets=secrets)
    if not GPU_FIELDS.isdisjoint(changes):
        values |= dict.fromkeys(GPU_FIELDS, "")  # a job has GPUs or one part of one
    return values | dict(changes)


def _values_of(job: Job, *, secrets: bool) -> dict[str, Any]:
    return {
        "team": job.team_id,
        "cluster": job.cluster_id,
        "command": job.command if secrets else masking.mask_text(job.command),
        "environment": format_pairs(job.environment if secrets else masking.without_secrets(job.environment)),
        "labels": format_pairs(job.labels if secrets else masking.without_secrets(job.labels)),
        "comment": job.comment if secrets else masking.mask_text(job.comment),
        "memory_per_node": f"{job.memory_per_node_mb}M" if job.memory_per_node_mb else "",
        "time_limit": slurm_notation.format_duration(job.time_limit),
        "checkpoint_interval": slurm_notation.format_duration(job.checkpoint_interval)
        if job.checkpoint_interval
        else "",
        "mounts": ",".join(job.mounts),
        **_contract_values(job),
        **_gpu_values(job),
        **{name: getattr(job, name) for name in ("name", "kind", "nodes", "cpus_per_node")},
        **{
            name: getattr(job, name)
            for name in ("gpu_model", "mig_profile", "nic_type", "workdir", "priority", "requeue_limit")
        },
        **{name: getattr(job, name) for name in ("image", "preemptible", "checkpoint_dir", "checkpoint_signal")},
    }


def _gpu_values(job: Job) -> dict[str, Any]:
    """The GPUs per node, or the number of shards if the job names Slurm's resource for them."""
    for field, gres in SHARE_FIELDS.items():
        if job.share_gres == gres:
            nodes = Node.objects.filter(cluster=job.cluster_id, share_gres=gres)
            per_gpu = nodes.aggregate(most=Max("shards_per_gpu"))["most"] or 1  # without nodes, the parser refuses it
            return {"gpus_per_node": "", field: shards_of_milli(job.gpu_milli, per_gpu)}
    return {"gpus_per_node": job.requested_gpus_per_node}


def _contract_values(job: Job) -> dict[str, Any]:
    """The contract of the job as form values; empty for terms that promise nothing."""
    exempt, per_day = job.preempt_exempt_time, job.preemptions_per_day
    return {
        "preempt_exempt_time": slurm_notation.format_duration(exempt) if exempt else "",
        "preempt_at_checkpoint": job.preempt_at_checkpoint,
        "preemptions_per_day": "" if per_day is None else per_day,
    }
