"""Formatting of values in the admin: Slurm's terms and notation, exact times as tooltip, icons beside colors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from jobs.core.display_text import safe_display_text
from jobs.core.lifecycle import StateBadge
from jobs.core.slurm_notation import format_duration
from jobs.models import Attempt, Job

MISSING_TEXT = "-"  # the same as Django's
SECRET_NAME_PATTERN = re.compile(r"key|token|secret|passw|credential", re.IGNORECASE)


def badge(look: StateBadge) -> SafeString:
    return format_html(
        '<span class="acme-badge acme-{}" title="{}"><span aria-hidden="true">{}</span> {}</span>',
        look.tone,
        look.label,
        look.icon,
        look.code,
    )


def long_badge(look: StateBadge) -> SafeString:
    return format_html(
        '<span class="acme-badge acme-{}"><span aria-hidden="true">{}</span> {}</span>',
        look.tone,
        look.icon,
        look.label if look.label.lower() == look.code else f"{look.label} ({look.code})",
    )


def duration(length: timedelta | None) -> SafeString | str:
    """A measured duration. None is shown as missing, not as UNLIMITED as for time limits."""
    return MISSING_TEXT if length is None else format_html('<span class="acme-time">{}</span>', format_duration(length))


def age(length: timedelta) -> str:
    """The duration in at most two units: 3d4h, 4h10m, 12m, 40s."""
    seconds = int(abs(length).total_seconds())
    units = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
    first = next((i for i, (_, size) in enumerate(units) if seconds >= size), 3)
    name, size = units[first]
    text = f"{seconds // size}{name}"
    if first > 1 or not (rest := seconds % size // units[first + 1][1]):
        return text
    return f"{text}{rest}{units[first + 1][0]}"


def relative_time(at: datetime | None, now: datetime | None = None) -> SafeString | str:
    """`12m ago` or `in 12m`, with the exact UTC time as tooltip."""
    if at is None:
        return MISSING_TEXT
    distance = (now or timezone.now()) - at
    text = f"{age(distance)} ago" if distance >= timedelta(0) else f"in {age(distance)}"
    machine = at.isoformat(timespec="seconds")
    return format_html('<time class="acme-time" datetime="{}" title="{}">{}</time>', machine, exact(at), text)


def exact(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def exact_and_relative_time(at: datetime | None) -> SafeString | str:
    """The exact time with the relative time in parentheses, for pages of one row."""
    if at is None:
        return MISSING_TEXT
    return format_html("{} ({})", exact(at), relative_time(at))


def link(row: Job | Attempt | object | None, text: object = None) -> SafeString | str:
    if row is None:
        return MISSING_TEXT
    meta = row._meta  # type: ignore[attr-defined]
    url = reverse(f"admin:{meta.app_label}_{meta.model_name}_change", args=[row.pk])  # type: ignore[attr-defined]
    return format_html('<a href="{}">{}</a>', url, text or row)


def clip_text(text: str, most: int = 60) -> SafeString | str:
    if len(text) <= most:
        return text or MISSING_TEXT
    return format_html('<span title="{}">{}…</span>', text, text[: most - 1].rstrip())


def block(text: str) -> SafeString | str:
    return format_html('<pre class="acme-block">{}</pre>', text) if text else MISSING_TEXT


def masked_environment(variables: Mapping[str, object]) -> SafeString | str:
    """NAME=value lines with secrets hidden, because users put keys into environments and labels."""
    shown = (
        (k, "(hidden)" if SECRET_NAME_PATTERN.search(k) else safe_display_text(str(v)))
        for k, v in sorted(variables.items())
    )
    return pairs(shown)


def pairs(rows: Iterable[tuple[str, object]]) -> SafeString | str:
    lines = format_html_join("\n", "{}={}", rows)
    return format_html('<pre class="acme-block">{}</pre>', lines) if lines else MISSING_TEXT


def text_with_title(text: str, more: str) -> SafeString:
    return format_html('<span title="{}">{}</span>', more, text)


def join_texts(first: object, second: object) -> SafeString:
    return format_html("{} {}", first, second) if second else format_html("{}", first)


def gpu_value_list(values: Iterable[str]) -> SafeString | str:
    return pairs((f"GPU {index}", value) for index, value in enumerate(values))
