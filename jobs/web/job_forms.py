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

from acmeweb.common.errors import InvalidField
from jobs.actions.submit import refuse_unknown_dependencies
from jobs.core import masking, slurm_notation, spec
from jobs.core.deadlines import absolute_time, refuse_impossible
from jobs.core.gpu_shares import shards_of_milli
from jobs.core.request_fields import FIELD_GROUPS, REQUEST_FIELDS, Input, Notation, RequestField
from jobs.core.spec import CHOICES, SHARE_FIELDS, JobSpec, refuse_priority
from jobs.core.submit_commands import without_defaults
from jobs.models import Cluster, Job, Node, Team, TeamRole, clock

DECIMAL = re.compile(r"\d{0,9}\.\d{1,9}", re.ASCII)
GPU_FIELDS = frozenset({"gpus_per_node", "mig_profile", *SHARE_FIELDS})  # a job states one of them
FORM_FIELDS = {name: field for name, field in REQUEST_FIELDS.items() if field.input}
# What the help says about the value, after the help of the field
WRITTEN_IN_FORMS = {
    Notation.PATH: "An absolute path.",
    Notation.PAIRS: "NAME=value, one per line.",
    Notation.NAMES: "Separated by commas.",
    Notation.MEMORY: "For example 512G or 1T.",
    Notation.DURATION: "Minutes, HH:MM:SS or D-HH:MM:SS.",
}


def form_input(name: str, field: RequestField) -> forms.Field:
    """The input of a field. The parser checks lengths and whether a field is missing."""
    notation, extra = field.value.notation, field.input or Input()
    help_text = " ".join(filter(None, (field.help, WRITTEN_IN_FORMS.get(notation, ""))))
    common: dict[str, Any] = {"label": field.label, "required": False, "help_text": help_text}
    if notation == Notation.FLAG:
        return forms.BooleanField(**common)
    if notation == Notation.CHOICE:
        choices = [(choice.value, choice.value) for choice in CHOICES[name]]
        return forms.ChoiceField(choices=choices, initial=extra.initial, **common)
    attrs = {"spellcheck": "false"}
    if extra.placeholder:
        attrs["placeholder"] = extra.placeholder
    if notation == Notation.NUMBER:
        attrs["inputmode"] = "decimal"
    widget = forms.Textarea(attrs={"rows": extra.rows, **attrs}) if extra.rows else forms.TextInput(attrs=attrs)
    # Text of several lines is not stripped
    return forms.CharField(strip=not extra.rows, initial=extra.initial, widget=widget, **common)


class SubmitForm(forms.Form):
    """All fields of a job. Team and cluster offer only what the user may use."""

    team = forms.ModelChoiceField(Team.objects.none(), empty_label=None)
    cluster = forms.ModelChoiceField(Cluster.objects.none(), empty_label=None)

    def __init__(self, *args: Any, user: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields.update({name: form_input(name, field) for name, field in FORM_FIELDS.items()})
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
        for name in _names_of(Notation.PAIRS):
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
        return [self[name] for name in ("team", "cluster", *_form_groups()[0][1])]

    def groups(self) -> list[tuple[str, list[forms.BoundField], bool]]:
        """The collapsible groups as (title, fields, is_open); a group with an error or a changed value is open."""
        return [(title, [self[name] for name in names], self._has_input(names)) for title, names in _form_groups()[1:]]

    def _has_input(self, names: list[str]) -> bool:
        changed = any(self[name].value() not in (None, "", False, self.fields[name].initial) for name in names)
        return changed or any(name in self.errors for name in names)


def _form_groups() -> list[tuple[str, list[str]]]:
    return [(title, [name for name in fields if name in FORM_FIELDS]) for title, fields in FIELD_GROUPS.items()]


def _names_of(notation: Notation) -> list[str]:
    return [name for name, field in FORM_FIELDS.items() if field.value.notation == notation]


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
    values = {name: form.cleaned_data.get(name) or "" for name in FORM_FIELDS}
    changed = {name: value for name, value in values.items() if value != (form.fields[name].initial or "")}
    for name in changed.keys() & _names_of(Notation.PAIRS):
        changed[name] = format_pairs(masking.without_secrets(parse_pairs(name, changed[name])))
    for name in changed.keys() & _names_of(Notation.LINES):
        changed[name] = masking.mask_text(changed[name])
    places = {name: form.cleaned_data[name].name for name in ("team", "cluster")}
    query = urlencode({**places, **{name: "1" if value is True else value for name, value in changed.items()}})
    return query if len(query) <= MAX_LINK_LENGTH else ""


def values_from_url(params: QueryDict) -> dict[str, Any]:
    """The initial values of the form that the URL names. Unknown teams and clusters leave the default."""
    values: dict[str, Any] = {name: params[name].replace("\0", "") for name in FORM_FIELDS if name in params}
    flags = values.keys() & _names_of(Notation.FLAG)
    values |= {name: values[name].lower() in ("1", "true", "on") for name in flags}
    for name, model in (("team", Team), ("cluster", Cluster)):
        if name in params and (row := model.objects.filter(name=params[name].replace("\0", "")).first()):
            values[name] = row.pk
    return values


def submit_request(values: Mapping[str, Any]) -> dict[str, Any]:
    """The form's values as a submit request, without the empty fields."""
    stated = {name: values[name] for name in FORM_FIELDS if values.get(name)}
    request = {name: _request_value(name, value) for name, value in stated.items()}
    return {"command": "", **{name: value for name, value in request.items() if value != {}}}


def _request_value(name: str, value: Any) -> Any:
    match FORM_FIELDS[name].value.notation:
        case Notation.LINES:
            return value.replace("\r\n", "\n")  # browsers send CRLF, which breaks shell scripts
        case Notation.NUMBER:
            return number_or_text(value)
        case Notation.PAIRS:
            return parse_pairs(name, value)
        case Notation.FLAG:
            return True
        case _:
            return value


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
    repeated = [name for name, field in FORM_FIELDS.items() if field.stored and field.repeats]
    return {
        "team": job.team_id,
        "cluster": job.cluster_id,
        **{name: _form_value(job, name, secrets) for name in repeated},
        "time_limit": slurm_notation.format_duration(job.time_limit),
        **_gpu_values(job),
    }


def _form_value(job: Job, name: str, secrets: bool) -> Any:
    value = getattr(job, FORM_FIELDS[name].value.column or name)
    match FORM_FIELDS[name].value.notation:
        case Notation.LINES:
            return value if secrets else masking.mask_text(value)
        case Notation.PAIRS:
            return format_pairs(value if secrets else masking.without_secrets(value))
        case Notation.NAMES:
            return ",".join(value)
        case Notation.MEMORY:
            return f"{value}M" if value else ""
        case Notation.DURATION:
            return slurm_notation.format_duration(value) if value else ""
        case _:
            return "" if value is None else value


def _gpu_values(job: Job) -> dict[str, Any]:
    """The GPUs per node, or the number of shards if the job names Slurm's resource for them."""
    for field, gres in SHARE_FIELDS.items():
        if job.share_gres == gres:
            nodes = Node.objects.filter(cluster=job.cluster_id, share_gres=gres)
            per_gpu = nodes.aggregate(most=Max("shards_per_gpu"))["most"] or 1  # without nodes, the parser refuses it
            return {"gpus_per_node": "", field: shards_of_milli(job.gpu_milli, per_gpu)}
    return {"gpus_per_node": job.requested_gpus_per_node}
