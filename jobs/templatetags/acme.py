"""Template filters and tags that format values. Models and views decide what is shown.

Relative times use the `now` of the view, so all times on a page refer to the same moment.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from django import template
from django.conf import settings
from django.template.defaultfilters import floatformat
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.module_loading import import_string
from django.utils.safestring import SafeString, mark_safe

from jobs.core import slurm_notation
from jobs.core.charts.timeline import TimelineBar
from jobs.core.lifecycle import StateBadge, StatusBadge
from jobs.models import Job

register = template.Library()

# The pages that belong to an entry of the navigation, besides the page of that name
SECTION_PAGES: dict[str, frozenset[str]] = {
    "jobs": frozenset({"job", "log"}),
    "queue": frozenset({"policy", "why"}),
    "submit": frozenset({"submit-preview"}),
    "nodes": frozenset({"node"}),
    "failures": frozenset({"incident", "paste-log", "rules"}),
    "campaigns": frozenset({"campaign", "evaluation-rules"}),
    "replays": frozenset({"replay", "compare"}),
    "settings": frozenset({"teams", "team", "clusters", "cluster", "cluster-add", "model", "account"}),
}

EXACT_TIME_FORMAT = "%Y-%m-%d %H:%M:%S UTC"
MISSING_TEXT = "–"


@register.simple_tag(takes_context=True)
def nav_link(context: Any, name: str, label: str) -> SafeString:
    """A link of the navigation, marked if the current page is or belongs to this one."""
    match = context["request"].resolver_match
    current = match.url_name if match else ""
    is_current = current in {name, *SECTION_PAGES.get(name, ())}
    mark = mark_safe(' aria-current="page"') if is_current else ""
    return format_html('<a href="{}"{}>{}</a>', reverse(name), mark, label)


@register.simple_tag(takes_context=True)
def extras(context: Any, slot: str, subject: Any = None) -> SafeString:
    """What other apps add at this place of a page (setting PAGE_EXTRAS)."""
    renderers = map(import_string, settings.PAGE_EXTRAS.get(slot, ()))
    return mark_safe("".join(render(context["request"], subject) for render in renderers))  # noqa: S308 - templates


@register.simple_tag
@lru_cache(maxsize=1000)  # a few dozen distinct badges, rendered in every table row
def badge(look: StateBadge) -> SafeString:
    """A state's icon and label. In narrow tables the style sheet shows Slurm's short code instead of the label."""
    return format_html(
        '<span class="badge {}" title="{}"><span class="icon" aria-hidden="true">{}</span>'
        '<span class="word">{}</span><span class="code" aria-hidden="true">{}</span></span>',
        look.tone,
        look.label,
        look.icon,
        look.label,
        look.code,
    )


@register.simple_tag(takes_context=True)
def status_badge(context: Any, look: StatusBadge) -> SafeString:
    """An icon and a label, or the time since the status has lasted."""
    return format_html(
        '<span class="badge {}"{}><span class="icon" aria-hidden="true">{}</span>{}</span>',
        look.tone,
        format_html(' title="{}"', look.title) if look.title else "",
        look.icon,
        ago(look.since, context["now"]) if look.since else look.label,
    )


@register.inclusion_tag("timeline_bar.html")
def timeline_bar(bars: Iterable[TimelineBar], label: str = "") -> dict[str, Any]:
    """A timeline. Without a label, screen readers read the names of its bars in order."""
    shown = list(bars)
    return {"bars": shown, "label": label or ", then ".join(bar.name for bar in shown)}


@register.filter
def ago(moment: datetime | None, now: datetime) -> SafeString | str:
    """`12m ago` or `in 12m`, with the exact time as tooltip."""
    if moment is None:
        return MISSING_TEXT
    text = f"{age(now - moment)} ago" if moment <= now else f"in {age(moment - now)}"
    return _ticking_time("ago", moment, text)


@register.filter
def expected(moment: datetime, now: datetime) -> SafeString:
    """`in 12m`, or `now` once an estimate has passed."""
    return _ticking_time("expected", moment, f"in {age(moment - now)}" if moment > now else "now")


def _ticking_time(form: str, moment: datetime, text: str) -> SafeString:
    """A time that live.js keeps up to date, between two responses and in cached fragments."""
    return format_html(
        '<time datetime="{}" data-{}="{}" title="{}">{}</time>',
        moment.isoformat(),
        form,
        int(moment.timestamp()),
        moment.strftime(EXACT_TIME_FORMAT),
        text,
    )


@register.filter
def time_of_day(moment: datetime) -> SafeString:
    """`12:34:56`, with the exact time as tooltip."""
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        moment.isoformat(),
        moment.strftime(EXACT_TIME_FORMAT),
        moment.strftime("%H:%M:%S"),
    )


@register.filter
def exact(moment: datetime | None) -> SafeString | str:
    if moment is None:
        return MISSING_TEXT
    return format_html('<time datetime="{}">{}</time>', moment.isoformat(), moment.strftime(EXACT_TIME_FORMAT))


@register.simple_tag
def author_and_time(author: str, moment: datetime | None, now: datetime) -> SafeString:
    """`by ada, 12m ago`, without the part that is not known."""
    parts = [f"by {author}"] if author else []
    return format_html_join(", ", "{}", ((part,) for part in [*parts, *([ago(moment, now)] if moment else [])]))


@register.filter
def age(duration: timedelta) -> str:
    """The duration as kubectl prints it: 45s, 12m, 3h5m, 3d4h. live.js has the same rules."""
    seconds = max(0, int(duration.total_seconds()))
    days, hours, minutes = seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60
    if days:
        return f"{days}d{hours}h" if hours and days < 10 else f"{days}d"
    if hours:
        return f"{hours}h{minutes}m" if minutes else f"{hours}h"
    return f"{minutes}m" if minutes else f"{seconds}s"


@register.filter
def since(moment: datetime, now: datetime) -> SafeString:
    return _ticking_time("since", moment, age(now - moment))


@register.filter
def time_until(moment: datetime, now: datetime) -> SafeString:
    return _ticking_time("until", moment, age(moment - now))


@register.filter
def duration(value: timedelta | None) -> str:
    """`D-HH:MM:SS`, or UNLIMITED for None."""
    return slurm_notation.format_duration(value)


@register.filter
def shares_label(parts: Iterable[Any]) -> str:
    """The parts of a bar of GPU-hours for screen readers: `productive 81.5 percent, idle 18.5 percent`."""
    return ", ".join(f"{part.group.name} {floatformat(part.share, 1)} percent" for part in parts)


@register.filter
def ran(job: Job, now: datetime) -> SafeString | str:
    """squeue's TIME. For running jobs the element carries the start time, from which live.js updates the text."""
    elapsed = job.elapsed(now)
    if elapsed is None or job.started_at is None:
        return MISSING_TEXT
    if not job.is_live:
        return slurm_notation.format_duration(elapsed)
    return format_html(
        '<time data-started="{}" title="since {}">{}</time>',
        int(job.started_at.timestamp()),
        job.started_at.strftime(EXACT_TIME_FORMAT),
        slurm_notation.format_duration(elapsed),
    )


@register.filter
def hours(value: float) -> str:
    """GPU-hours with up to three significant digits."""
    if not value:
        return "0"
    if 0 < value < 0.01:
        return "<0.01"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


@register.filter
def hours_or_unbounded(value: float | None) -> str:
    return "unbounded" if value is None else hours(value)


@register.filter
def minutes(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


@register.filter
def memory(megabytes: int) -> str:
    return slurm_notation.format_memory(megabytes) if megabytes else MISSING_TEXT


@register.filter
def grouped(count: int) -> str:
    """The number with thousands separators: 12,300,000."""
    return f"{count:,}"


@register.filter
def size(count: int) -> str:
    """A number of bytes as B, KiB or MiB."""
    if count < 1024:
        return f"{count} B"
    return f"{count / 1024:.0f} KiB" if count < 1024**2 else f"{count / 1024**2:.1f} MiB"


@register.simple_tag
def currency() -> str:
    return settings.CURRENCY


@register.filter
def amount(money: float) -> str:
    """`12.40`; without cents from 1,000 on."""
    return f"{money:,.0f}" if money >= 1000 else f"{money:.2f}"


@register.filter
def money(sum_: float) -> str:
    """`12.40 USD`."""
    return f"{amount(sum_)} {settings.CURRENCY}"


@register.filter
def kilowatts(watts: float) -> str:
    return f"{watts / 1000:.1f} kW"


@register.filter
def gib(mebibytes: float) -> str:
    return f"{mebibytes / 1024:.1f} GiB"


@register.filter
def place(job: Job) -> str:
    """squeue's NODELIST(REASON): the nodes of a running or finished job, or Slurm's reason why it waits."""
    if job.is_live:
        return getattr(job, "nodelist", "")
    return f"({job.reason or 'None'})" if not job.is_final else getattr(job, "nodelist", "")


@register.filter
def exit_text(row: object) -> str:
    """`code:signal`, as sacct shows it."""
    code, signal = getattr(row, "exit_code", None), getattr(row, "signal", None)
    return "" if code is None and signal is None else f"{code or 0}:{signal or 0}"
