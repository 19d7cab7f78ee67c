"""What people send to change how a cluster decides, or to replay it. `choosing` and `replays` check what it means."""

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
        choices=_same_choices(LIVE_POLICIES), help_text="Decides from the next turn on; what runs stays."
    )
    placement = forms.ChoiceField(choices=_same_choices(PLACEMENTS), help_text="How a job finds its nodes.")
    order = forms.ChoiceField(
        label=SETTING_LABELS["order"].capitalize(),
        choices=_same_choices(ORDER_RULES),
        help_text="Whose order acme takes within a class.",
    )
    backfill = forms.ChoiceField(
        label=SETTING_LABELS["backfill"].capitalize(),
        choices=_same_choices(("easy", "conservative")),
        help_text="easy promises a start to the first in line, conservative to everybody.",
    )
    aging_s = forms.FloatField(label="Aging, seconds", help_text="Nobody is passed by who came so much later.")
    class_s = forms.FloatField(label="A step of priority, seconds", help_text="It is worth so long a wait.")
    reserve = forms.MultipleChoiceField(
        label="Quotas kept free for",
        choices=_same_choices(kind.value for kind in JobKind),
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text="What a team leaves of its quota for these is lent only to who gives way.",
    )
    why = forms.CharField(label="Why", max_length=1000, help_text="Operators read it in the history.")

    @staticmethod
    def filled(choice: PolicyChoice) -> dict[str, Any]:
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
        """Of a valid form. Policies other than acme leave nothing to choose."""
        given = self.cleaned_data
        settings = {}
        if given["policy"] == "acme":
            settings = {name: given[name] for name in ("order", "backfill", "aging_s", "class_s", "reserve")}
        return PolicyChoice(policy=given["policy"], placement=given["placement"], settings=settings)


class MaintenanceForm(forms.Form):
    """Times are UTC; what they and the rest mean is checked by `maintenance_actions`, which names the field."""

    name = forms.CharField(max_length=60, help_text="Jobs that wait for it name it: power, cooling-row-3.")
    reason = forms.CharField(max_length=1000, help_text="Whoever's jobs wait for it read it.")
    nodes = forms.CharField(
        required=False, max_length=100_000, help_text="gpu[001-016], as Slurm writes them. Empty: the whole cluster."
    )
    start_at = forms.DateTimeField(label="Begins, UTC", required=False, widget=_time_input(), help_text="Empty: now.")
    end_at = forms.DateTimeField(label="Ends, UTC", widget=_time_input())
    mode = forms.ChoiceField(label="Running jobs then", choices=DRAIN_MODE_CHOICES)
    lead = forms.CharField(
        label="Lead",
        initial="1-00:00:00",
        max_length=20,
        help_text="So long before it, no job starts there of which nobody knows how long it takes: without a time limit"
        ", and without a history.",
    )

    def clean_lead(self) -> timedelta:
        try:
            lead = parse_duration(self.cleaned_data["lead"])
        except BadNotation as bad:
            raise forms.ValidationError(f"{bad}.") from None
        if lead is None:
            raise forms.ValidationError("UNLIMITED would keep them off for ever.")
        return lead

    def wanted(self, now: datetime) -> MaintenanceRequest:
        given = self.cleaned_data
        return MaintenanceRequest(**given | {"start_at": given["start_at"] or now})


class MaintenanceEndForm(forms.Form):
    end_at = forms.DateTimeField(label="Ends, UTC", widget=_time_input())
    why = forms.CharField(label="Why", required=False, max_length=1000)


class ReplayForm(forms.Form):
    """What is replayed, and under what; empty fields are as they are."""

    MAIN = ("trace", "trace_file", "policies", "cluster", "days", "until", "jobs", "nodes", "gpus_per_node", "team")

    trace = forms.ChoiceField(
        label="Jobs",
        help_text="history: what ran here; acme: drawn as in the Acme study; below them files of your teams.",
    )
    trace_file = forms.FileField(
        label="Or a file",
        required=False,
        max_length=80,
        help_text="CSV of AcmeTrace, Helios, openb or our own export, Philly, SWF, sacct --parsable2; also gz or zst;"
        f" at most {MAX_FILE_BYTES >> 20} MiB.",
    )
    team = forms.ChoiceField(help_text="Its members see the result.")
    policies = forms.MultipleChoiceField(
        choices=_same_choices(POLICY_RULES),
        widget=forms.CheckboxSelectMultiple,
        help_text=f"Up to {MAX_COMPARED_RUNS}, compared side by side.",
    )
    cluster = forms.ChoiceField(required=False, help_text="Whose history.")
    days = forms.IntegerField(label="Days of history", required=False, min_value=1, max_value=MAX_HISTORY_DAYS)
    until = forms.DateTimeField(label="Until, UTC", required=False, widget=_time_input(), help_text="Empty: now.")
    jobs = forms.IntegerField(label="Jobs drawn", required=False, min_value=1, max_value=MAX_TRACE_JOBS)
    nodes = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=requests.MAX_REPLAY_NODES,
        help_text="Empty: as many as there are. Of a file nobody knows, so say how many.",
    )
    gpus_per_node = forms.IntegerField(
        label="GPUs of a node", required=False, min_value=1, max_value=requests.MAX_GPUS_PER_NODE
    )
    quota = forms.CharField(
        label="Quotas",
        required=False,
        max_length=20_000,
        widget=forms.Textarea(attrs={"rows": 3, "spellcheck": "false"}),
        help_text="One a line: team,kind,GPUS or team,,GPUS for all its work. Empty: nobody is held back.",
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
        label="acme: quotas kept free for",
        choices=_same_choices(kind.value for kind in JobKind),
        required=False,
        initial=sorted(AcmeSettings().reserve),
        widget=forms.CheckboxSelectMultiple,
        help_text="What a team leaves of its quota for these is lent only to who gives way.",
    )
    best_effort = forms.MultipleChoiceField(
        label="acme: kinds that borrow",
        choices=_same_choices(kind.value for kind in JobKind),
        required=False,
        initial=list(ReplaySetting.best_effort),
        widget=forms.CheckboxSelectMultiple,
        help_text="They may use what others leave of their quotas, and give way.",
    )
    placement = forms.ChoiceField(
        required=False, choices=[("", "consolidate"), *_same_choices(requests.PLACEMENT_NAMES[1:])]
    )
    preemption_cost = forms.ChoiceField(
        label="What a preemption costs",
        required=False,
        choices=[("", "nothing"), ("helios", "helios: 7, 30 or 60 s by width")],
    )
    faults = forms.CharField(required=False, max_length=200, help_text="rates, or name=number: nodes break.")
    noise = forms.CharField(required=False, max_length=20, help_text="Errors of expected times: none, helios, a sigma.")
    seed = forms.IntegerField(required=False, min_value=0, max_value=2**31 - 1)

    def __init__(self, *given: Any, places: CallerTargets, brought: Iterable[UploadedTrace] = (), **more: Any) -> None:
        super().__init__(*given, **more)
        mine = [team.name for team in places.teams.values() if places.caller.has(TeamRole.RESEARCHER, team.pk)]
        clusters = [cluster.name for cluster in places.clusters.values()]
        known = _same_choices(BUILT_IN_TRACES if clusters else BUILT_IN_TRACES[:-1])
        files = [(one.called, f"{one.name} ({one.jobs:,} jobs)") for one in brought]
        choices = {"team": _same_choices(mine), "cluster": _same_choices(clusters), "trace": known + files}
        for name, values in choices.items():
            self.fields[name].choices = values  # type: ignore[attr-defined]

    def main(self) -> list[forms.BoundField]:
        return [self[name] for name in self.MAIN]

    def more(self) -> list[forms.BoundField]:
        return [field for field in self if field.name not in self.MAIN]

    def more_is_wrong(self) -> bool:
        return any(field.errors for field in self.more())

    def clean_until(self) -> datetime | None:
        """Read as the API reads it."""
        until = self.cleaned_data["until"]
        try:
            return read_timestamp("until", until.isoformat()) if until else None
        except InvalidField as bad:
            raise forms.ValidationError(f"{bad.why}.") from None

    def clean_quota(self) -> list[dict[str, str]]:
        """What each line means is checked as the API's objects are, by the numbers of the lines."""
        rows, lines = [], []
        for number, line in enumerate(filter(None, map(str.strip, self.cleaned_data["quota"].splitlines())), 1):
            cells = [cell.strip() for cell in line.split(",")]
            if len(cells) != 3:
                raise forms.ValidationError(f"Line {number} is not team,kind,GPUS: {line[:60]}")
            rows.append(dict(zip(("team", "kind", "gpus"), cells, strict=True)))
            lines.append(f"line {number}")
        try:
            if rows:
                requests.quotas_from_rows(rows, lines)
        except InvalidReplaySetting as bad:
            raise forms.ValidationError(f"{bad.why[0].upper()}{bad.why[1:]}.") from None
        return rows

    def clean_policies(self) -> list[str]:
        chosen: list[str] = self.cleaned_data["policies"]
        if len(chosen) > MAX_COMPARED_RUNS:
            raise forms.ValidationError(f"{len(chosen)} are chosen; at most {MAX_COMPARED_RUNS} can be compared.")
        return chosen

    def asked(self, trace: str) -> dict[str, Any]:
        """Without what belongs to other sorts of trace, or to a policy that is not replayed: their fields stand in the
        same form."""
        given = {name: value for name, value in self.cleaned_data.items() if value not in (None, "", [])}
        kind = trace_kind(trace)
        others = {name for sort, names in FIELDS_BY_TRACE_KIND.items() if sort != kind for name in names}
        apart = {"trace", "trace_file", "policies", "team", "order", "backfill", "reserve", "best_effort", *others}
        asked = {name: value for name, value in given.items() if name not in apart}
        if "acme" in given["policies"]:
            asked |= self._acme_params()
        return asked

    def _acme_params(self) -> dict[str, Any]:
        """Only what is not as usual, so that the result's page says what was changed."""
        given, usual = self.cleaned_data, AcmeSettings()
        settings = {name: given[name] for name in ("order", "backfill") if given[name]}
        if set(given["reserve"]) != usual.reserve:
            settings["reserve"] = given["reserve"]
        asked: dict[str, Any] = {"policy_settings": {"acme": settings}} if settings else {}
        if sorted(given["best_effort"]) != sorted(ReplaySetting.best_effort):
            asked["best_effort"] = ",".join(given["best_effort"])
        return asked


class CampaignForm(forms.Form):
    """Checkpoints, one a line; the rest is as of the API, and refused by the same sentences."""

    checkpoints = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 3}), max_length=200_000, help_text="Absolute paths, one a line."
    )
    suite = forms.ChoiceField(help_text="What is measured; its newest version.")
    team = forms.ChoiceField(help_text="Its members see the results.")
    cluster = forms.ChoiceField()
    nodes = forms.IntegerField(required=False, min_value=1, max_value=100_000, help_text="At most so many at once.")
    within = forms.CharField(
        label="Through within", required=False, max_length=40, help_text="Instead of nodes: as 2:00:00."
    )
    weights_gb = forms.FloatField(
        label="GB of a checkpoint", required=False, min_value=0.001, max_value=10**5, help_text="14 if you say nothing."
    )
    again = forms.BooleanField(label="Measure again what is known", required=False)

    def __init__(self, *given: Any, places: CallerTargets, suites: list[str], **more: Any) -> None:
        super().__init__(*given, **more)
        set_choices(self, places, suites)

    def asked(self) -> dict[str, Any]:
        given = {name: value for name, value in self.cleaned_data.items() if value not in (None, "", False)}
        given["checkpoints"] = [line.strip() for line in given["checkpoints"].splitlines() if line.strip()]
        return given


class EvaluationRuleForm(forms.Form):
    """A directory and what is measured of its new checkpoints; refused by the same sentences as through the API."""

    directory = forms.CharField(max_length=250, help_text="An absolute path, as the nodes see it.")
    suite = forms.ChoiceField(help_text="Its newest version at the time.")
    which = forms.ChoiceField(
        label="Evaluate", choices=RuleSelection.choices, help_text="Of several new ones the newest alone, or every one."
    )
    pattern = forms.CharField(
        required=False, max_length=100, help_text="Only names like it, as run-*/step-*; empty: all."
    )
    interval = forms.CharField(
        label="At most every", required=False, max_length=40, help_text="As 1:00:00; empty: whenever one appears."
    )
    per_day = forms.IntegerField(
        label="Campaigns a day",
        required=False,
        min_value=1,
        max_value=MAX_CAMPAIGNS_PER_DAY,
        help_text="24 if you say nothing.",
    )
    team = forms.ChoiceField(help_text="Its members see the results.")
    cluster = forms.ChoiceField()
    nodes = forms.IntegerField(required=False, min_value=1, max_value=100_000, help_text="At most so many at once.")
    weights_gb = forms.FloatField(
        label="GB of a checkpoint", required=False, min_value=0.001, max_value=10**5, help_text="14 if you say nothing."
    )

    def __init__(self, *given: Any, places: CallerTargets, suites: list[str], **more: Any) -> None:
        super().__init__(*given, **more)
        set_choices(self, places, suites)

    def asked(self) -> dict[str, Any]:
        return {name: value for name, value in self.cleaned_data.items() if value not in (None, "")}


def set_choices(form: forms.Form, places: CallerTargets, suites: list[str]) -> None:
    """The teams one may evaluate for, and what there is to evaluate with."""
    mine = [team.name for team in places.teams.values() if places.caller.has(TeamRole.RESEARCHER, team.pk)]
    clusters = [cluster.name for cluster in places.clusters.values()]
    for name, values in {"team": mine, "cluster": clusters, "suite": suites}.items():
        form.fields[name].choices = _same_choices(values)  # type: ignore[attr-defined]
