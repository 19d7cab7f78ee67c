"""How pages show the states of replays, campaigns and evaluations. Pure."""

from __future__ import annotations

from jobs.core.lifecycle import StatusBadge

RUN_STYLES: dict[str, tuple[str, str]] = {
    "PENDING": ("waiting", "…"),
    "RUNNING": ("running", "▶"),
    "COMPLETED": ("good", "✓"),
    "FAILED": ("bad", "✗"),
}


def run_badge(state: str) -> StatusBadge:
    tone, icon = RUN_STYLES.get(state, ("quiet", "■"))
    return StatusBadge(tone=tone, icon=icon, label=state)
