"""The form of a cluster's scheduling policy. `policy_choice` validates the values."""

from __future__ import annotations

from typing import Any

from django import forms

from jobs.core.lifecycle import JobKind
from jobs.web.form_fields import choices_of
from scheduling.core.policy_choice import SETTING_LABELS, PolicyChoice, full_settings
from scheduling.core.policy_texts import PLACEMENT_GROUPS, POLICY_GROUPS, grouped_choices
from scheduling.engine.placements import PLACEMENTS
from scheduling.engine.policies import LIVE_POLICIES, InvalidPolicySettings
from scheduling.engine.policies.acme import ORDER_RULES
from scheduling.engine.settings import AcmeSettings


class PolicyForm(forms.Form):
    policy = forms.ChoiceField(
        choices=grouped_choices(LIVE_POLICIES, POLICY_GROUPS),
        help_text="Takes effect in the next scheduling turn. Running jobs are not affected.",
    )
    placement = forms.ChoiceField(
        choices=grouped_choices(PLACEMENTS, PLACEMENT_GROUPS), help_text="Selects the nodes of a job."
    )
    order = forms.ChoiceField(
        label=SETTING_LABELS["order"].capitalize(),
        choices=choices_of(ORDER_RULES),
        help_text="Order of jobs with the same priority under acme.",
    )
    backfill = forms.ChoiceField(
        label=SETTING_LABELS["backfill"].capitalize(),
        choices=choices_of(("easy", "conservative")),
        help_text="easy reserves a start for the first waiting job, conservative for every waiting job.",
    )
    aging_s = forms.FloatField(
        label="Maximum overtaking, seconds", help_text="Jobs submitted this much later never start first."
    )
    class_s = forms.FloatField(
        label="Seconds per priority point", help_text="Queue wait that is worth one priority point."
    )
    reserve = forms.MultipleChoiceField(
        label="Reserved quota kinds",
        choices=choices_of(kind.value for kind in JobKind),
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
