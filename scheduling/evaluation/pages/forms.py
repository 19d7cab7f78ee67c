"""The forms of evaluation campaigns and rules. The API's code validates the values, with its messages."""

from __future__ import annotations

from typing import Any

from django import forms

from jobs.actions.submissions import CallerTargets
from jobs.models import TeamRole
from jobs.web.form_fields import choices_of
from scheduling.evaluation.reads import campaigns as campaign_reads
from scheduling.evaluation.rules.evaluation_rules import MAX_CAMPAIGNS_PER_DAY
from scheduling.models import RuleSelection


class EvaluationForm(forms.Form):
    """What a campaign and a rule have in common: which suite runs where. The team is that of the suite."""

    suite = forms.ChoiceField()
    cluster = forms.ChoiceField()
    nodes = forms.IntegerField(
        label="Node limit", required=False, min_value=1, max_value=100_000, help_text="Maximum number of nodes in use."
    )
    checkpoint_gb = forms.FloatField(
        label="Checkpoint size, GB", required=False, min_value=0.001, max_value=10**5, help_text="Default: 14."
    )

    def __init__(self, *args: Any, places: CallerTargets, **kwargs: Any) -> None:
        """Offer the clusters, and the suites of the teams that the caller may submit for."""
        super().__init__(*args, **kwargs)
        caller = places.caller
        self.teams = [team for team in places.teams.values() if caller.has(TeamRole.RESEARCHER, team.pk)]
        suites = campaign_reads.suites(caller).filter(team__in=self.teams).values_list("team__name", "name")
        self.suites = sorted(set(suites))
        clusters = [cluster.name for cluster in places.clusters.values()]
        self.fields["cluster"].choices = choices_of(clusters)  # type: ignore[attr-defined]
        self.fields["suite"].choices = [  # type: ignore[attr-defined]
            (f"{team}/{suite}", f"{suite} of {team}") for team, suite in self.suites
        ]

    def request_values(self) -> dict[str, Any]:
        """Return the fields that were filled in."""
        values = {name: value for name, value in self.cleaned_data.items() if value not in (None, "", False)}
        values["team"], _, values["suite"] = values["suite"].partition("/")
        return values


class CampaignForm(EvaluationForm):
    """A new campaign, with one checkpoint per line."""

    field_order = ("checkpoints", "name", "suite", "cluster", "nodes", "within", "checkpoint_gb", "rerun")

    suite = forms.ChoiceField(help_text="Its newest version is used. Members of its team can see the results.")
    checkpoints = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 3}), max_length=200_000, help_text="One absolute path per line."
    )
    name = forms.CharField(
        required=False, max_length=120, help_text="Leave empty to use the run, its steps and the suite."
    )
    within = forms.CharField(
        label="Finish within",
        required=False,
        max_length=40,
        help_text="A duration such as 2:00:00. Use it instead of a node limit.",
    )
    rerun = forms.BooleanField(label="Repeat existing evaluations", required=False)

    def request_values(self) -> dict[str, Any]:
        values = super().request_values()
        values["checkpoints"] = [line.strip() for line in values["checkpoints"].splitlines() if line.strip()]
        return values


class EvaluationRuleForm(EvaluationForm):
    """A new evaluation rule."""

    field_order = (
        "directory", "suite", "which", "pattern", "interval", "per_day", "cluster", "nodes", "checkpoint_gb",
    )  # fmt: skip

    suite = forms.ChoiceField(help_text="Each campaign uses the newest version of the suite.")
    directory = forms.CharField(max_length=250, help_text="Absolute path on the nodes.")
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
