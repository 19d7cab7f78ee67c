"""Forms of the failure pages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django import forms

from failures.diagnosis.values import ExitStatus
from failures.queries.pasted_log import MAX_PASTED_BYTES
from jobs.core.parsing import raise_invalid_field, short_repr


class PasteForm(forms.Form):
    text = forms.CharField(
        label="Log or end of the log",
        required=False,
        max_length=MAX_PASTED_BYTES,
        strip=False,
        widget=forms.Textarea(attrs={"rows": 14, "spellcheck": "false", "autocomplete": "off"}),
    )
    file = forms.FileField(label="Log file", required=False, help_text="At most 8 MiB.")
    exit_code = forms.IntegerField(label="Exit code", required=False, min_value=-255, max_value=2**31 - 1)
    signal = forms.IntegerField(label="Signal", required=False, min_value=1, max_value=64)

    def clean_file(self) -> Any:
        file = self.cleaned_data["file"]
        if file and file.size > MAX_PASTED_BYTES:
            raise forms.ValidationError(f"The file has {file.size} bytes; the limit is {MAX_PASTED_BYTES} bytes.")
        return file

    def clean(self) -> dict[str, Any]:
        fields = super().clean() or self.cleaned_data
        if not self.errors and not fields.get("file") and not fields.get("text", "").strip():
            self.add_error("text", "Paste the log or select a file.")
        return fields

    def log(self) -> bytes:
        file = self.cleaned_data["file"]
        return file.read() if file else self.cleaned_data["text"].encode("utf-8", "replace")

    def ending(self) -> ExitStatus:
        return ExitStatus(exit_code=self.cleaned_data["exit_code"], signal=self.cleaned_data["signal"])


def parse_day(name: str, written: str) -> datetime:
    """The start of a calendar day in UTC. Raises InvalidField for other text."""
    try:
        day = datetime.strptime(written, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise_invalid_field(name, f"{short_repr(written)} is not a date. Use a date such as 2026-01-31")
    if not 1971 < day.year < 9000:
        raise_invalid_field(name, f"{short_repr(written)} is out of range")
    return day
