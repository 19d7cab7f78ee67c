"""What the path of a checkpoint says: its run and its step. Also the default name of a campaign. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from failures.recovery.rules.checkpoints import LIGHTNING_FILE_PATTERN, STEP_DIRECTORY_PATTERN
from jobs.core.display_text import strip_control_characters

MAX_CAMPAIGN_NAME = 120


@dataclass(frozen=True, kw_only=True)
class CheckpointPlace:
    """The directory of the run that saved a checkpoint, and the step; None if the path names none."""

    run: str
    step: int | None

    @property
    def run_name(self) -> str:
        return self.run.rpartition("/")[2]


def checkpoint_place(path: str) -> CheckpointPlace:
    """The run and the step of a checkpoint: `/c/run/step-1000/hf` is step 1000 of `/c/run`.

    The names are those that recovery recognizes as checkpoints.
    """
    names = path.rstrip("/").split("/")
    for at in range(len(names) - 1, 1, -1):
        if match := STEP_DIRECTORY_PATTERN.fullmatch(names[at]) or LIGHTNING_FILE_PATTERN.fullmatch(names[at]):
            return CheckpointPlace(run="/".join(names[:at]), step=int(match[1]))
    return CheckpointPlace(run="/".join(names[:-1]) or "/", step=None)


def default_campaign_name(checkpoints: Sequence[str], suite: str) -> str:
    """The name of a campaign that was given none: its run, its steps and its suite."""
    places = [checkpoint_place(path) for path in checkpoints]
    steps = sorted({place.step for place in places if place.step is not None})
    is_one_run = len({place.run for place in places}) == 1
    tail = ", ".join([*([_steps_text(steps)] if steps and is_one_run else []), suite])
    run = strip_control_characters(_run_text(checkpoints, places))
    return f"{run[: MAX_CAMPAIGN_NAME - len(tail) - 2]}, {tail}"


def _run_text(checkpoints: Sequence[str], places: Sequence[CheckpointPlace]) -> str:
    runs = {place.run for place in places}
    if len(runs) > 1:
        return f"{len(runs)} runs"
    # A finished model is known by its own name
    if len(checkpoints) == 1 and places[0].step is None:
        return checkpoints[0].rstrip("/").rpartition("/")[2] or "model"
    return places[0].run_name or "checkpoints"


def _steps_text(steps: Sequence[int]) -> str:
    if len(steps) == 1:
        return f"step {steps[0]:,}"
    return f"{len(steps)} checkpoints of steps {steps[0]:,} to {steps[-1]:,}"
