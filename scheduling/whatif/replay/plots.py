"""Plots of replays: how long jobs waited, and how full the cluster was. SVG for viewing, PNG for pasting.

Matplotlib is optional (`acme[plots]`) and imported only when plots are requested.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from acmeweb.common.errors import InvalidInput
from scheduling.whatif.replay.run import PolicyRun

# Distinguishable with color vision deficiencies (Okabe and Ito), and by dashes
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":")
MAX_CURVE_POINTS = 2000  # per curve: more are not visible, and make the SVG too large


def check_plots(directory: str) -> None:
    """Fail before hours of replay instead of after them."""
    if find_spec("matplotlib") is None:
        raise InvalidInput("plots: plots need matplotlib; install acme[plots].")
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"plots: {error}") from error


def draw(runs: Sequence[PolicyRun], directory: Path) -> list[Path]:
    """Write `queue-delay` and `utilization`, each as .svg and .png. Return the paths."""
    return [
        *_save_plot(runs, directory / "queue-delay", _plot_queue_delay),
        *_save_plot(runs, directory / "utilisation", _plot_utilization),
    ]


def _save_plot(runs: Sequence[PolicyRun], path: Path, curves: Any) -> list[Path]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for number, run in enumerate(runs):
        style = {"color": COLORS[number % len(COLORS)], "linestyle": DASHES[number % len(DASHES)], "linewidth": 1.5}
        curves(axes, run, style)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    files = [path.with_suffix(".svg"), path.with_suffix(".png")]
    for file in files:
        # No date, so that equal replays give equal files
        figure.savefig(file, dpi=150, metadata={"Date": None} if file.suffix == ".svg" else None)
    return files


def _plot_queue_delay(axes: Any, run: PolicyRun, style: dict[str, Any]) -> None:
    delay = np.sort((run.ended_s - run.trace.submit_s - run.held_s)[np.isfinite(run.ended_s)])
    share = np.linspace(0, 100, min(MAX_CURVE_POINTS, max(2, len(delay))))
    # A log axis has no zero, so waits below one second are drawn at one second
    axes.plot(np.maximum(1.0, np.percentile(delay, share)) if len(delay) else [1, 1], share[: len(share)], **style)
    axes.lines[-1].set_label(run.policy)
    axes.set(xscale="log", xlabel="queue wait, seconds (1 and less at the edge)", ylabel="jobs, %", ylim=(0, 101))


def _plot_utilization(axes: Any, run: PolicyRun, style: dict[str, Any]) -> None:
    days = (run.course.at_s - (run.course.at_s[0] if len(run.course.at_s) else 0)) / 86_400
    axes.plot(days, run.course.held / run.setting.gpus * 100, drawstyle="steps-post", label=run.policy, **style)
    axes.set(xlabel="days", ylabel="GPUs held, %", ylim=(0, 101))
