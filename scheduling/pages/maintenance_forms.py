"""The forms of a maintenance window. `jobs.actions.maintenance` validates the values."""

from __future__ import annotations

from datetime import datetime, timedelta

from django import forms

from acmeweb.common.errors import InvalidInput
from jobs.actions.maintenance import MaintenanceRequest
from jobs.core.slurm_notation import parse_duration
from jobs.pages.nodes import DRAIN_MODE_CHOICES
from jobs.web.form_fields import time_input


class MaintenanceForm(forms.Form):
    """A maintenance window, with times in UTC. The action validates it and names the wrong field."""

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
        label="Start, UTC", required=False, widget=time_input(), help_text="Leave empty to start now."
    )
    end_at = forms.DateTimeField(label="End, UTC", widget=time_input())
    mode = forms.ChoiceField(label="Running jobs", choices=DRAIN_MODE_CHOICES)
    lead_time = forms.CharField(
        label="Lead time",
        initial="1-00:00:00",
        max_length=20,
        help_text="Jobs of unknown length (no time limit and no history) stop starting this long before.",
    )

    def clean_lead_time(self) -> timedelta:
        try:
            lead_time = parse_duration(self.cleaned_data["lead_time"])
        except InvalidInput as error:
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
    end_at = forms.DateTimeField(label="End, UTC", widget=time_input())
    why = forms.CharField(label="Reason", required=False, max_length=1000)
