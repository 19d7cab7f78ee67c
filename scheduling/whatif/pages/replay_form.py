"""The form of a replay. `scheduling.whatif.reads.simulations` validates the values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import Any

from django import forms
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.safestring import SafeString

from acmeweb.common.errors import InvalidField
from jobs.actions.submissions import CallerTargets
from jobs.core.lifecycle import JobKind
from jobs.core.parsing import read_timestamp
from jobs.models import TeamRole
from jobs.web.form_fields import choices_of, time_input
from scheduling.core.policy_choice import SETTING_LABELS, PolicyChoice, full_settings
from scheduling.core.policy_texts import PLACEMENT_GROUPS, POLICY_GROUPS, grouped_choices
from scheduling.engine.policies.acme import ORDER_RULES
from scheduling.engine.settings import MAX_SETTING_S, AcmeSettings
from scheduling.models import UploadedTrace
from scheduling.whatif.comparison.table import MAX_COMPARED_RUNS
from scheduling.whatif.reads.simulations import (
    BUILT_IN_TRACES,
    FIELDS_BY_TRACE_KIND,
    MAX_HISTORY_DAYS,
    MAX_TRACE_JOBS,
    trace_kind,
)
from scheduling.whatif.reads.traces import MAX_FILE_BYTES
from scheduling.whatif.replay import requests
from scheduling.whatif.replay.job_profiles import PAIR_COLUMNS, PROFILE_COLUMNS, pairs_from_rows, profiles_from_rows
from scheduling.whatif.replay.run import ReplaySetting

FORM_LOADS = (50, 200)  # percent; the API allows more
OTHER_ORDERS = [name for name in ORDER_RULES if name != AcmeSettings().order]
# `cells` needs virtual clusters, for which the form has no field
FORM_PLACEMENTS = [name for name in requests.PLACEMENT_NAMES if name != "cells"]
ACME_NUMBERS = ("aging_s", "class_s")


class PolicyCheckboxes(forms.CheckboxSelectMultiple):
    """Check boxes in groups with headings, from a template of the project."""

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        return render_to_string("scheduling/policy_checkboxes.html", self.get_context(name, value, attrs))


def _table(text: str, columns: Sequence[str], expected: str, optional: int = 0) -> list[dict[str, str]]:
    """The lines of a field as objects. The last columns may be optional. Errors name the line."""
    rows = []
    for number, line in enumerate(filter(None, map(str.strip, text.splitlines())), 1):
        cells = [cell.strip() for cell in line.split(",")]
        if not len(columns) - optional <= len(cells) <= len(columns):
            raise forms.ValidationError(f"Line {number}: expected {expected}, got {line[:60]}")
        rows.append(dict(zip(columns, cells, strict=False)))
    return rows


def _with_lines(rows: Sequence[dict[str, str]]) -> list[tuple[str, dict[str, str]]]:
    return [(f"line {number}", row) for number, row in enumerate(rows, 1)]


@contextmanager
def _sentences() -> Iterator[None]:
    """Show an invalid row as the error of its field."""
    try:
        yield
    except InvalidField as error:
        raise forms.ValidationError(f"{error.why[0].upper()}{error.why[1:]}.") from None


class ReplayForm(forms.Form):
    """A replay: the jobs, the policies and the changed conditions. Empty fields keep the defaults."""

    MAIN = (
        "trace",
        "trace_file",
        "policies",
        "cluster",
        "days",
        "until",
        "load",
        "jobs",
        "nodes",
        "gpus_per_node",
        "team",
    )

    POWER = ("power_budget_kw", "price_per_kwh", "energy", "sleep")
    PACKING = ("profiles", "pair_speeds", "draw_profiles")

    trace = forms.ChoiceField(
        label="Trace",
        help_text="history: past jobs of a cluster; acme: synthetic jobs sampled from AcmeTrace; or a file.",
    )
    trace_file = forms.FileField(
        label="Trace file",
        required=False,
        max_length=80,
        help_text="Replaces the trace above. Formats: CSV (AcmeTrace, Helios, openb, Acme export), Philly, SWF, sacct"
        f" --parsable2; optionally gz or zst. At most {MAX_FILE_BYTES >> 20} MiB.",
    )
    team = forms.ChoiceField(help_text="Members of this team can see the result.")
    policies = forms.MultipleChoiceField(
        choices=grouped_choices(requests.POLICIES_OF_EQUAL_GPUS, POLICY_GROUPS),
        widget=PolicyCheckboxes,
        help_text=f"Up to {MAX_COMPARED_RUNS} policies, compared side by side. Grouped by what they need to know.",
    )
    cluster = forms.ChoiceField(required=False, help_text="Cluster whose history is replayed.")
    days = forms.IntegerField(label="Days of history", required=False, min_value=1, max_value=MAX_HISTORY_DAYS)
    until = forms.DateTimeField(
        label="End of history, UTC", required=False, widget=time_input(), help_text="Leave empty for now."
    )
    load = forms.IntegerField(
        label="Load",
        required=False,
        min_value=FORM_LOADS[0],
        max_value=FORM_LOADS[1],
        widget=forms.NumberInput(attrs={"type": "range", "step": 10, "data-unit": "%"}),
        help_text="How fast the same jobs arrive: 100% as recorded, 200% in half the time. From 50% to 200%.",
    )
    jobs = forms.IntegerField(label="Synthetic jobs", required=False, min_value=1, max_value=MAX_TRACE_JOBS)
    nodes = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=requests.MAX_REPLAY_NODES,
        help_text="Required for a trace file. Otherwise leave empty to use the size of the cluster.",
    )
    gpus_per_node = forms.IntegerField(
        label="GPUs per node", required=False, min_value=1, max_value=requests.MAX_GPUS_PER_NODE
    )
    quota = forms.CharField(
        label="Quotas",
        required=False,
        max_length=20_000,
        widget=forms.Textarea(attrs={"rows": 3, "spellcheck": "false"}),
        help_text="One quota per line: team,kind,GPUS or, for all kinds, team,,GPUS. Leave empty for no quotas.",
    )
    order = forms.ChoiceField(
        label=f"acme: {SETTING_LABELS['order']}",
        required=False,
        choices=[("", AcmeSettings().order), *choices_of(OTHER_ORDERS)],
    )
    backfill = forms.ChoiceField(
        label=f"acme: {SETTING_LABELS['backfill']}",
        required=False,
        choices=[("", "easy"), ("conservative", "conservative")],
    )
    aging_s = forms.FloatField(
        label=f"acme: {SETTING_LABELS['aging_s']}, seconds", required=False, min_value=0, max_value=MAX_SETTING_S
    )
    class_s = forms.FloatField(
        label=f"acme: {SETTING_LABELS['class_s']}, seconds", required=False, min_value=0, max_value=MAX_SETTING_S
    )
    reserve = forms.MultipleChoiceField(
        label="acme: reserved quota kinds",
        choices=choices_of(kind.value for kind in JobKind),
        required=False,
        initial=sorted(AcmeSettings().reserve),
        widget=forms.CheckboxSelectMultiple,
        help_text="Unused quota for these kinds is lent only to preemptible jobs.",
    )
    best_effort = forms.MultipleChoiceField(
        label="acme: preemptible kinds",
        choices=choices_of(kind.value for kind in JobKind),
        required=False,
        initial=list(ReplaySetting.best_effort),
        widget=forms.CheckboxSelectMultiple,
        help_text="Jobs of these kinds may borrow unused quota and can be preempted.",
    )
    placement = forms.ChoiceField(
        required=False,
        choices=grouped_choices(FORM_PLACEMENTS, PLACEMENT_GROUPS, ReplaySetting.placement),
        help_text="Selects the nodes of a job. Grouped by what they need to know.",
    )
    nodes_per_leaf = forms.IntegerField(
        label="Nodes per leaf switch",
        required=False,
        min_value=1,
        max_value=requests.MAX_REPLAY_NODES,
        help_text="Placements keep jobs on few switches. Leave empty for one switch.",
    )
    cpus_per_node = forms.IntegerField(
        label="CPUs per node",
        required=False,
        min_value=1,
        help_text="The placement tune divides them. Leave empty to count no CPUs.",
    )
    memory_per_node_mb = forms.IntegerField(
        label="Memory per node, MB",
        required=False,
        min_value=1,
        help_text="The placement tune divides it. Leave empty to count no memory.",
    )
    preemption_cost = forms.ChoiceField(
        label="Preemption cost",
        required=False,
        choices=[("", "nothing"), ("helios", "helios: 7, 30 or 60 s, depending on job size")],
    )
    faults = forms.CharField(
        required=False, max_length=200, help_text="Node failures: rates, or name=number pairs. Leave empty for none."
    )
    noise = forms.CharField(
        required=False, max_length=20, help_text="Error of run time estimates: none, helios, or a sigma."
    )
    seed = forms.IntegerField(required=False, min_value=0, max_value=2**31 - 1)
    power_budget_kw = forms.FloatField(
        label="Power budget, kW",
        required=False,
        min_value=0,
        max_value=requests.MAX_POWER_NUMBER,
        help_text="A job starts only if the predicted power of all nodes stays within it. Empty: no limit.",
    )
    price_per_kwh = forms.FloatField(
        label="Price of a kWh",
        required=False,
        min_value=0,
        max_value=requests.MAX_POWER_NUMBER,
        help_text="Used to show the cost of energy. The default is the price in the settings of the cluster.",
    )
    energy = forms.BooleanField(
        label="Energy",
        required=False,
        help_text="Shows energy, cost and peak power, for nodes with A100 GPUs. No policy may preempt: clear “acme:"
        " preemptible kinds”.",
    )
    sleep = forms.BooleanField(
        label="Sleeping nodes", required=False, help_text="Shows what idle nodes would save if they slept."
    )

    profiles = forms.CharField(
        label="Profiles of jobs",
        required=False,
        max_length=50_000,
        widget=forms.Textarea(attrs={"rows": 4, "spellcheck": "false"}),
        help_text="One per line: name,GPU %,memory in MB, and optionally a class: 0 tiny, 1 medium, 2 jumbo. Numbers in"
        " names do not matter. A job without a profile has its GPUs to itself.",
    )
    pair_speeds = forms.CharField(
        label="Speeds of pairs",
        required=False,
        max_length=500_000,
        widget=forms.Textarea(attrs={"rows": 3, "spellcheck": "false"}),
        help_text="One per line: name,name,speed,speed. 0.8 is four fifths of the speed alone. Other pairs slow down"
        " only if their GPU % exceed 100 together.",
    )
    draw_profiles = forms.BooleanField(
        label="Profiles at random",
        required=False,
        help_text="Gives each job one of the profiles, for traces without job names.",
    )

    def __init__(self, *args: Any, places: CallerTargets, uploads: Iterable[UploadedTrace] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._clusters = places.clusters
        teams = [team.name for team in places.teams.values() if places.caller.has(TeamRole.RESEARCHER, team.pk)]
        clusters = [cluster.name for cluster in places.clusters.values()]
        built_in = choices_of(BUILT_IN_TRACES if clusters else BUILT_IN_TRACES[:-1])
        files = [(upload.trace_name, f"{upload.name} ({upload.jobs:,} jobs)") for upload in uploads]
        choices = {"team": choices_of(teams), "cluster": choices_of(clusters), "trace": built_in + files}
        for name, values in choices.items():
            self.fields[name].choices = values  # type: ignore[attr-defined]

    def main(self) -> list[forms.BoundField]:
        return [self[name] for name in self.MAIN]

    def power(self) -> list[forms.BoundField]:
        return [self[name] for name in self.POWER]

    def power_is_open(self) -> bool:
        """Whether one of the fields has an error, or a value other than the default price."""
        return any(field.errors or (field.value() and field.name != "price_per_kwh") for field in self.power())

    def more(self) -> list[forms.BoundField]:
        return [field for field in self if field.name not in (*self.MAIN, *self.POWER, *self.PACKING)]

    def packing(self) -> list[forms.BoundField]:
        return [self[name] for name in self.PACKING]

    def packing_is_open(self) -> bool:
        return any(field.errors or field.value() for field in self.packing())

    def more_is_open(self) -> bool:
        """Whether one of the fields that are usually folded has an error, or a value from a link."""
        return any(field.errors or field.name in self.initial for field in self.more() if field.name != "quota")

    def clean_until(self) -> datetime | None:
        """Apply the limits of the API to the time."""
        until = self.cleaned_data["until"]
        try:
            return read_timestamp("until", until.isoformat()) if until else None
        except InvalidField as error:
            raise forms.ValidationError(f"{error.why}.") from None

    def clean_quota(self) -> list[dict[str, str]]:
        """Parse the lines and validate them like the API's objects. Errors name the line."""
        rows = _table(self.cleaned_data["quota"], ("team", "kind", "gpus"), "team,kind,GPUS")
        with _sentences():
            if rows:
                requests.quotas_from_rows(rows, [f"line {number}" for number in range(1, len(rows) + 1)])
        return rows

    def clean_profiles(self) -> list[dict[str, str]]:
        rows = _table(self.cleaned_data["profiles"], PROFILE_COLUMNS, "name,GPU %,MB", optional=1)
        with _sentences():
            if rows:
                profiles_from_rows(_with_lines(rows))
        return rows

    def clean_pair_speeds(self) -> list[dict[str, str]]:
        """Parse the lines. Errors name the line, unless the profiles have an error that is shown instead."""
        rows = _table(self.cleaned_data["pair_speeds"], PAIR_COLUMNS, "name,name,speed,speed")
        if rows and "profiles" in self.cleaned_data:
            with _sentences():
                if not (profiles := self.cleaned_data["profiles"]):
                    raise InvalidField("pair_speeds", "needs the profiles of jobs")
                pairs_from_rows(_with_lines(rows), profiles_from_rows(_with_lines(profiles)))
        return rows

    def clean_policies(self) -> list[str]:
        policies: list[str] = self.cleaned_data["policies"]
        if len(policies) > MAX_COMPARED_RUNS:
            raise forms.ValidationError(f"{len(policies)} policies selected; at most {MAX_COMPARED_RUNS} allowed.")
        return policies

    def _default_price(self, params: Mapping[str, Any]) -> float | None:
        """The price of the cluster whose history is replayed. A price alone does not ask for figures of power."""
        if not params.keys() & {"power_budget_kw", "energy", "sleep"}:
            return None
        cluster = next((one for one in self._clusters.values() if one.name == params.get("cluster")), None)
        return cluster.kwh_price if cluster else params.get("price_per_kwh")

    def request_values(self, trace: str) -> dict[str, Any]:
        """Return the values that apply to this kind of trace and to the selected policies."""
        values = {
            name: value
            for name, value in self.cleaned_data.items()
            if value is not False and value not in (None, "", [])
        }
        kind = trace_kind(trace)
        others = {name for sort, names in FIELDS_BY_TRACE_KIND.items() if sort != kind for name in names}
        excluded = {"trace", "trace_file", "policies", "team", "order", "backfill", "reserve", "best_effort", *others}
        excluded |= set(ACME_NUMBERS)
        params = {name: value for name, value in values.items() if name not in excluded}
        if params.get("load") == ReplaySetting.load:
            del params["load"]
        if "price_per_kwh" not in self.changed_data:
            params["price_per_kwh"] = self._default_price(params)
        if "acme" in values["policies"]:
            params |= self._acme_params()
        return {name: value for name, value in params.items() if value is not None}

    def _acme_params(self) -> dict[str, Any]:
        """Return only the settings that differ from the defaults, so that the result page lists what was changed."""
        data, defaults = self.cleaned_data, AcmeSettings()
        settings = {name: data[name] for name in ("order", "backfill") if data[name]}
        settings |= {name: data[name] for name in ACME_NUMBERS if data[name] not in (None, getattr(defaults, name))}
        if set(data["reserve"]) != defaults.reserve:
            settings["reserve"] = data["reserve"]
        params: dict[str, Any] = {"policy_settings": {"acme": settings}} if settings else {}
        if sorted(data["best_effort"]) != sorted(ReplaySetting.best_effort):
            params["best_effort"] = ",".join(data["best_effort"])
        return params


# --- links to the form


def replay_link(cluster: str, policies: Iterable[str], choice: PolicyChoice | None = None) -> str:
    """Return the address of the form, filled in with the history of the cluster, these policies, and the placement and
    the settings of the choice."""
    values: dict[str, Any] = {"trace": "history", "cluster": cluster, "policies": list(dict.fromkeys(policies))}
    if choice:
        values |= _choice_values(choice)
    return f"{reverse('replays')}?{urlencode(values, doseq=True)}"


def _choice_values(choice: PolicyChoice) -> dict[str, Any]:
    """Return the fields that differ from the defaults of the form. An empty list is one empty value in an address."""
    is_linked = choice.placement in FORM_PLACEMENTS and choice.placement != ReplaySetting.placement
    values: dict[str, Any] = {"placement": choice.placement} if is_linked else {}
    if choice.is_acme:
        chosen, defaults = asdict(full_settings(choice)), asdict(AcmeSettings())
        changed = {name: value for name, value in chosen.items() if value != defaults[name]}
        values |= {name: (sorted(value) or "") if name == "reserve" else value for name, value in changed.items()}
    return values


def linked_values(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the form that an address contains. They are shown, and checked when the form is sent."""
    values: dict[str, Any] = {}
    for name, field in ReplayForm.base_fields.items():
        if name in params and name != "trace_file":
            value = field.widget.value_from_datadict(params, {}, name)
            values[name] = [part for part in value if part] if isinstance(value, list) else value
    return values
