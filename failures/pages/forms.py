"""What people type on the pages of failures."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django import forms

from failures.diagnosis.values import ExitStatus
from failures.queries.pasted_log import MAX_PASTED_BYTES
from jobs.core.parsing import raise_invalid_field, short_repr


class PasteForm(forms.Form):
    text = forms.CharField(
        label="The log, or its end",
        required=False,
        max_length=MAX_PASTED_BYTES,
        strip=False,
        widget=forms.Textarea(attrs={"rows": 14, "spellcheck": "false", "autocomplete": "off"}),
    )
    file = forms.FileField(label="Or a file", required=False, help_text="At most 8 MiB.")
    exit_code = forms.IntegerField(label="Exit code", required=False, min_value=-255, max_value=2**31 - 1)
    signal = forms.IntegerField(label="Signal", required=False, min_value=1, max_value=64)

    def clean_file(self) -> Any:
        file = self.cleaned_data["file"]
        if file and file.size > MAX_PASTED_BYTES:
            raise forms.ValidationError(f"The file has {file.size} bytes, more than the {MAX_PASTED_BYTES} allowed.")
        return file

    def clean(self) -> dict[str, Any]:
        given = super().clean() or self.cleaned_data
        if not self.errors and not given.get("file") and not given.get("text", "").strip():
            self.add_error("text", "Paste some lines, or choose a file.")
        return given

    def log(self) -> bytes:
        file = self.cleaned_data["file"]
        return file.read() if file else self.cleaned_data["text"].encode("utf-8", "replace")

    def ending(self) -> ExitStatus:
        return ExitStatus(exit_code=self.cleaned_data["exit_code"], signal=self.cleaned_data["signal"])


def parse_day(name: str, written: str) -> datetime:
    """A day of a calendar, in UTC."""
    try:
        found = datetime.strptime(written, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise_invalid_field(name, f"{short_repr(written)} is no day such as 2026-01-31")
    if not 1971 < found.year < 9000:
        raise_invalid_field(name, f"{short_repr(written)} is out of range")
    return found
