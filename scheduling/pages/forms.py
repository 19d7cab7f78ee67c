"""Forms of policies, maintenance, replays, campaigns and rules. `policy_choice`, `requests` and `replays` validate the
values; the forms only read them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django import forms

from jobs.actions.maintenance import MaintenanceRequest
from jobs.actions.submissions import CallerTargets
from jobs.core.lifecycle import JobKind
from jobs.core.parsing import InvalidField, read_timestamp
from jobs.core.slurm_notation import BadNotation, parse_duration
from jobs.models import TeamRole
from jobs.pages.nodes import DRAIN_MODE_CHOICES
from scheduling.core.policy_choice import SETTING_LABELS, PolicyChoice, full_settings
from scheduling.core.replay_comparison import MAX_COMPARED_RUNS
from scheduling.engine.placements import PLACEMENTS
from scheduling.engine.policies import LIVE_POLICIES, POLICY_RULES, InvalidPolicySettings
from scheduling.engine.policies.acme import ORDER_RULES
from scheduling.engine.settings import AcmeSettings
from scheduling.evaluation.rules import MAX_CAMPAIGNS_PER_DAY
from scheduling.models import RuleSelection, UploadedTrace
from scheduling.queries.replay_settings import MAX_HISTORY_DAYS, MAX_TRACE_JOBS
from scheduling.queries.replays import BUILT_IN_TRACES, FIELDS_BY_TRACE_KIND, MAX_FILE_BYTES, trace_kind
from scheduling.replay import requests
from scheduling.replay.requests import InvalidReplaySetting
from scheduling.replay.run import ReplaySetting


def _time_input() -> forms.DateTimeInput:
    return forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M")


def _same_choices(names: Any) -> list[tuple[str, str]]:
    return [(name, name) for name in names]


_OTHER_ORDERS = [name for name in ORDER_RULES if name != AcmeSettings().order]


class PolicyForm(forms.Form):
    policy = forms.ChoiceField(
        choices=_same_choices(LIVE_POLICIES),
        help_text="Takes effect in the next scheduling turn. Running jobs are not affected.",
    )
    placement = forms.ChoiceField(choices=_same_choices(PLACEMENTS), help_text="Selects the nodes of a job.")
    order = forms.ChoiceField(
        label=SETTING_LABELS["order"].capitalize(),
        choices=_same_choices(ORDER_RULES),
        help_text="Order of jobs with the same priority under acme.",
    )
    backfill = forms.ChoiceField(
        label=SETTING_LABELS["backfill"].capitalize(),
        choices=_same_choices(("easy", "conservative")),
        help_text="easy reserves a start for the first waiting job, conservative for every waiting job.",
    )
    aging_s = forms.FloatField(
        label="Maximum overtaking, seconds", help_text="Jobs submitted this much later never start first."
    )
    class_s = forms.FloatField(
        label="Seconds per priority point", help_text="Waiting time that is worth one priority point."
    )
    reserve = forms.MultipleChoiceField(
        label="Reserved quota kinds",
        choices=_same_choices(kind.value for kind in JobKind),
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text="Unused quota for these kinds is lent only to preemptible jobs.",
    )
    why = forms.CharField(label="Reason", max_length=1000, help_text="Shown in the change history.")

    @staticmethod
    def initial_values(choice: PolicyChoice) -> dict[str, Any]:
        """Return the form values of a choice. Unreadable settings are shown as the defaults."""
        try:
            settings = full_settings(choice) if choice.is_acme else AcmeSettings()
        except InvalidPolicySettings:
            settings = AcmeSettings()
        values = {name: getattr(settings, name) for name in ("order", "backfill", "aging_s", "class_s")}
        return values | {
            "policy": choice.policy,
            "placement": choice.placement,
            "reserve": sorted(settings.reserve),
        }

    def choice(self) -> PolicyChoice:
        """Return the choice of a valid form. Only acme has settings."""
        data = self.cleaned_data
        settings = {}
        if data["policy"] == "acme":
            settings = {name: data[name] for name in ("order", "backfill", "aging_s", "class_s", "reserve")}
        return PolicyChoice(policy=data["policy"], placement=data["placement"], settings=settings)


class MaintenanceForm(forms.Form):
    """A maintenance window, with times in UTC. `maintenance_actions` validates it and names the wrong field."""

    name = forms.CharField(
        max_length=60, help_text="Shown at jobs that wait for the maintenance, for example cooling-row-3."
    )
    reason = forms.CharField(max_length=1000, help_text="Shown to users whose jobs wait for the maintenance.")
    nodes = forms.CharField(
        required=False,
        max_length=100_000,
        help_text="Slurm notation, for example gpu[001-016]. Leave empty for the whole cluster.",
    )
    start_at = forms.DateTimeField(
        label="Start, UTC", required=False, widget=_time_input(), help_text="Leave empty to start now."
    )
    end_at = forms.DateTimeField(label="End, UTC", widget=_time_input())
    mode = forms.ChoiceField(label="Running jobs", choices=DRAIN_MODE_CHOICES)
    lead_time = forms.CharField(
        label="Lead time",
        initial="1-00:00:00",
        max_length=20,
        help_text="Jobs of unknown length (no time limit and no history) stop starting this long before.",
    )

    def clean_lead(self) -> timedelta:
        try:
            lead_time = parse_duration(self.cleaned_data["lead_time"])
        except BadNotation as error:
            raise forms.ValidationError(f"{error}.") from None
        if lead_time is None:
            raise forms.ValidationError(
                "UNLIMITED is not allowed: jobs of unknown length would never start. Use a duration such as 1-00:00:00."
            )
        return lead_time

    def maintenance_request(self, now: datetime) -> MaintenanceRequest:
        data = self.cleaned_data
        return MaintenanceRequest(**data | {"start_at": data["start_at"] or now})


class MaintenanceEndForm(forms.Form):
    end_at = forms.DateTimeField(label="End, UTC", widget=_time_input())
    why = forms.CharField(label="Reason", required=False, max_length=1000)


class ReplayForm(forms.Form):
    """A replay: the jobs, the policies and the changed conditions. Empty fields keep the defaults."""

    MAIN = ("trace", "trace_file", "policies", "cluster", "days", "until", "jobs", "nodes", "gpus_per_node", "team")

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
        choices=_same_choices(POLICY_RULES),
        widget=forms.CheckboxSelectMultiple,
        help_text=f"Up to {MAX_COMPARED_RUNS} policies, compared side by side.",
    )
    cluster = forms.ChoiceField(required=False, help_text="Cluster whose history is replayed.")
    days = forms.IntegerField(label="Days of history", required=False, min_value=1, max_value=MAX_HISTORY_DAYS)
    until = forms.DateTimeField(
        label="End of history, UTC", required=False, widget=_time_input(), help_text="Leave empty for now."
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
        choices=[("", AcmeSettings().order), *_same_choices(_OTHER_ORDERS)],
    )
    backfill = forms.ChoiceField(
        label=f"acme: {SETTING_LABELS['backfill']}",
        required=False,
        choices=[("", "easy"), ("conservative", "conservative")],
    )
    reserve = forms.MultipleChoiceField(
        label="acme: reserved quota kinds",
        choices=_same_choices(kind.value for kind in JobKind),
        required=False,
        initial=sorted(AcmeSettings().reserve),
        widget=forms.CheckboxSelectMultiple,
        help_text="Unused quota for these kinds is lent only to preemptible jobs.",
    )
    best_effort = forms.MultipleChoiceField(
        label="acme: preemptible kinds",
        choices=_same_choices(kind.value for kind in JobKind),
        required=False,
        initial=list(ReplaySetting.best_effort),
        widget=forms.CheckboxSelectMultiple,
        help_text="Jobs of these kinds may borrow unused quota and can be preempted.",
    )
    placement = forms.ChoiceField(
        required=False, choices=[("", "consolidate"), *_same_choices(requests.PLACEMENT_NAMES[1:])]
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

    def __init__(self, *args: Any, places: CallerTargets, uploads: Iterable[UploadedTrace] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        teams = [team.name for team in places.teams.values() if places.caller.has(TeamRole.RESEARCHER, team.pk)]
        clusters = [cluster.name for cluster in places.clusters.values()]
        built_in = _same_choices(BUILT_IN_TRACES if clusters else BUILT_IN_TRACES[:-1])
        files = [(upload.trace_name, f"{upload.name} ({upload.jobs:,} jobs)") for upload in uploads]
        choices = {"team": _same_choices(teams), "cluster": _same_choices(clusters), "trace": built_in + files}
        for name, values in choices.items():
            self.fields[name].choices = values  # type: ignore[attr-defined]

    def main(self) -> list[forms.BoundField]:
        return [self[name] for name in self.MAIN]

    def more(self) -> list[forms.BoundField]:
        return [field for field in self if field.name not in self.MAIN]

    def more_is_wrong(self) -> bool:
        return any(field.errors for field in self.more())

    def clean_until(self) -> datetime | None:
        """Apply the limits of the API to the time."""
        until = self.cleaned_data["until"]
        try:
            return read_timestamp("until", until.isoformat()) if until else None
        except InvalidField as error:
            raise forms.ValidationError(f"{error.why}.") from None

    def clean_quota(self) -> list[dict[str, str]]:
        """Parse the lines and validate them like the API's objects. Errors name the line."""
        rows, lines = [], []
        for number, line in enumerate(filter(None, map(str.strip, self.cleaned_data["quota"].splitlines())), 1):
            cells = [cell.strip() for cell in line.split(",")]
            if len(cells) != 3:
                raise forms.ValidationError(f"Line {number}: expected team,kind,GPUS, got {line[:60]}")
            rows.append(dict(zip(("team", "kind", "gpus"), cells, strict=True)))
            lines.append(f"line {number}")
        try:
            if rows:
                requests.quotas_from_rows(rows, lines)
        except InvalidReplaySetting as error:
            raise forms.ValidationError(f"{error.why[0].upper()}{error.why[1:]}.") from None
        return rows

    def clean_policies(self) -> list[str]:
        policies: list[str] = self.cleaned_data["policies"]
        if len(policies) > MAX_COMPARED_RUNS:
            raise forms.ValidationError(f"{len(policies)} policies selected; at most {MAX_COMPARED_RUNS} allowed.")
        return policies

    def request_values(self, trace: str) -> dict[str, Any]:
        """Return the values that apply to this kind of trace and to the selected policies."""
        values = {name: value for name, value in self.cleaned_data.items() if value not in (None, "", [])}
        kind = trace_kind(trace)
        others = {name for sort, names in FIELDS_BY_TRACE_KIND.items() if sort != kind for name in names}
        excluded = {"trace", "trace_file", "policies", "team", "order", "backfill", "reserve", "best_effort", *others}
        params = {name: value for name, value in values.items() if name not in excluded}
        if "acme" in values["policies"]:
            params |= self._acme_params()
        return params

    def _acme_params(self) -> dict[str, Any]:
        """Return only the settings that differ from the defaults, so that the result page lists what was changed."""
        data, defaults = self.cleaned_data, AcmeSettings()
        settings = {name: data[name] for name in ("order", "backfill") if data[name]}
        if set(data["reserve"]) != defaults.reserve:
            settings["reserve"] = data["reserve"]
        params: dict[str, Any] = {"policy_settings": {"acme": settings}} if settings else {}
        if sorted(data["best_effort"]) != sorted(ReplaySetting.best_effort):
            params["best_effort"] = ",".join(data["best_effort"])
        return params


class CampaignForm(forms.Form):
    """A new campaign, with one checkpoint per line. Validation and its messages are those of the API."""

    checkpoints = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 3}), max_length=200_000, help_text="One absolute path per line."
    )
    suite = forms.ChoiceField(help_text="The newest version of the suite is used.")
    team = forms.ChoiceField(help_text="Members of this team can see the results.")
    cluster = forms.ChoiceField()
    nodes = forms.IntegerField(
        label="Node limit", required=False, min_value=1, max_value=100_000, help_text="Maximum number of nodes in use."
    )
    within = forms.CharField(
        label="Finish within",
        required=False,
        max_length=40,
        help_text="A duration such as 2:00:00. Use it instead of a node limit.",
    )
    checkpoint_gb = forms.FloatField(
        label="Checkpoint size, GB", required=False, min_value=0.001, max_value=10**5, help_text="Default: 14."
    )
    rerun = forms.BooleanField(label="Repeat existing evaluations", required=False)

    def __init__(self, *args: Any, places: CallerTargets, suites: list[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        set_choices(self, places, suites)

    def request_values(self) -> dict[str, Any]:
        values = {name: value for name, value in self.cleaned_data.items() if value not in (None, "", False)}
        values["checkpoints"] = [line.strip() for line in values["checkpoints"].splitlines() if line.strip()]
        return values


class EvaluationRuleForm(forms.Form):
    """A new evaluation rule. Validation and its messages are those of the API."""

    directory = forms.CharField(max_length=250, help_text="Absolute path on the nodes.")
    suite = forms.ChoiceField(help_text="Each campaign uses the newest version of the suite.")
    which = forms.ChoiceField(
        label="Evaluate", choices=RuleSelection.choices, help_text="Used when several checkpoints are new."
    )
    pattern = forms.CharField(
        required=False, max_length=100, help_text="For example run-*/step-*. Leave empty for all names."
    )
    interval = forms.CharField(
        label="Minimum interval",
        required=False,
        max_length=40,
        help_text="A duration such as 1:00:00. Leave empty to evaluate each checkpoint when it appears.",
    )
    per_day = forms.IntegerField(
        label="Campaigns per day",
        required=False,
        min_value=1,
        max_value=MAX_CAMPAIGNS_PER_DAY,
        help_text="Default: 24.",
    )
    team = forms.ChoiceField(help_text="Members of this team can see the results.")
    cluster = forms.ChoiceField()
    nodes = forms.IntegerField(
        label="Node limit", required=False, min_value=1, max_value=100_000, help_text="Maximum number of nodes in use."
    )
    checkpoint_gb = forms.FloatField(
        label="Checkpoint size, GB", required=False, min_value=0.001, max_value=10**5, help_text="Default: 14."
    )

    def __init__(self, *args: Any, places: CallerTargets, suites: list[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        set_choices(self, places, suites)

    def request_values(self) -> dict[str, Any]:
        return {name: value for name, value in self.cleaned_data.items() if value not in (None, "")}


def set_choices(form: forms.Form, places: CallerTargets, suites: list[str]) -> None:
    """Offer the teams that the caller may submit for, the clusters, and the suites."""
    teams = [team.name for team in places.teams.values() if places.caller.has(TeamRole.RESEARCHER, team.pk)]
    clusters = [cluster.name for cluster in places.clusters.values()]
    for name, values in {"team": teams, "cluster": clusters, "suite": suites}.items():
        form.fields[name].choices = _same_choices(values)  # type: ignore[attr-defined]
