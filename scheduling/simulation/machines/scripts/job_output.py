"""The output of a simulated job: start-up, progress, and the last lines of a failing job.

A log is a fixed sequence of lines with times, computed from the line index only. Therefore a server that restarts
counts the existing lines and continues with the next one. The texts imitate training and evaluation frameworks. No I/O,
no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from math import ceil, inf
from random import Random

from jobs.core.lifecycle import JobKind, State
from scheduling.simulation.machines.failure_reasons import TRAINING_KINDS
from scheduling.simulation.machines.values import SimulatedJob

from .failure_output import FailureContext, failure_lines
from .play import SimulatedRun
from .training_runs import TrainingRun, training_run

MIN_LINE_INTERVAL_S = 2.0  # at most one line about every two seconds,
MAX_LINES = 2_000  # and fewer for long jobs
MAX_STARTUP_INTERVAL_S = 0.25  # maximum time between start-up lines
CHECKPOINT_EVERY = 50  # in lines
DATASET_SCORES = {
    "mmlu": 0.51, "gsm8k": 0.31, "humaneval": 0.16, "mbpp": 0.21, "bbh": 0.37, "ceval": 0.53, "arc_challenge": 0.43,
    "hellaswag": 0.68, "triviaqa": 0.45,
}  # fmt: skip
NOISE_SHARE = 0.03  # of the lines
NOISE_TEMPLATES = (
    "[rank{rank}] data worker waited {number} ms for shard {number}",
    "{node}: NCCL INFO Channel 0{rank}/0 : 0[0] -> 1[1] via P2P/CUMEM",
    "/opt/train/train/optim.py:44: UserWarning: lr_scheduler.step() was called before optimizer.step()",
    "{node}: warning: clock of the storage gateway is {number} ms ahead",
    "tokenizer: FutureWarning: clean_up_tokenization_spaces was not set, it will be True by default",
    "[rank{rank}] gc collected {number} objects in generation 2",
    "wandb: WARNING retrying the upload of {number} files",
)


@dataclass(frozen=True, kw_only=True)
class PlannedLog:
    """One job's log before it is written."""

    play: SimulatedRun
    job_id: int
    name: str
    nodes: tuple[str, ...]
    gpus_per_node: int
    began_at: float
    clock_offset_s: float = 0.0  # of the clock that timestamps its lines
    gpus: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    training: TrainingRun | None = None  # None for other kinds of jobs
    max_lines: int = MAX_LINES
    checkpoint_steps: int = 0  # from checkpoint to checkpoint; 0: one checkpoint every CHECKPOINT_EVERY lines

    @cached_property
    def ends_s(self) -> float:
        """When the regular output ends; only failure output follows, and none from a hanging job."""
        return min(self.play.duration_s, self.play.silent_s)

    @cached_property
    def ranks(self) -> int:
        return max(len(self.nodes) * self.gpus_per_node, 1)

    @cached_property
    def steps_per_line(self) -> int:
        if self.training is None:
            return 1
        step_s = self.training.step_s
        fewest = max(1, round(MIN_LINE_INTERVAL_S / step_s), ceil(self._known_duration_s / self.max_lines / step_s))
        # Fit the lines to the checkpoints, so that each checkpoint has a line at its step
        fitting = (steps for steps in range(fewest, self.checkpoint_steps) if self.checkpoint_steps % steps == 0)
        return next(fitting, fewest)

    @cached_property
    def line_interval_s(self) -> float:
        if self.training is None:
            return max(MIN_LINE_INTERVAL_S, self._known_duration_s / self.max_lines)
        return self.steps_per_line * self.training.step_s

    @cached_property
    def startup_lines(self) -> list[str]:
        return _startup_lines(self)

    @cached_property
    def startup_interval_s(self) -> float:
        """The time between start-up lines; a very short job writes them faster, so that it still identifies itself."""
        return min(MAX_STARTUP_INTERVAL_S, self.play.planned_s / (2 * len(self.startup_lines)))

    @cached_property
    def first_progress_s(self) -> float:
        """When the first progress line is due. A line that reports many steps is written after them."""
        late_s = max(0.0, self.line_interval_s - MIN_LINE_INTERVAL_S)
        return len(self.startup_lines) * self.startup_interval_s + late_s

    @cached_property
    def benchmarks(self) -> list[str]:
        """The benchmark after which the job is named, or all of them."""
        return [name for name in DATASET_SCORES if name in self.name.lower()] or list(DATASET_SCORES)

    @property
    def _known_duration_s(self) -> float:
        return 0.0 if self.play.planned_s == inf else self.play.planned_s

    def step_after_line(self, lines: int) -> int:
        """The step of the program after this many progress lines."""
        return (self.training.first_step if self.training else 0) + lines * self.steps_per_line

    def checkpoint_at_line(self, number: int) -> int | None:
        """The step of the checkpoint that this progress line reports."""
        step = self.step_after_line(number + 1)
        if not self.checkpoint_steps:
            return None if (number + 1) % CHECKPOINT_EVERY else step
        newest = step // self.checkpoint_steps * self.checkpoint_steps
        return newest if newest > self.step_after_line(number) else None


def plan_log(job: SimulatedJob, play: SimulatedRun) -> PlannedLog:
    training = None
    if play.kind in TRAINING_KINDS and not play.lines:
        ranks = max(len(job.nodes) * job.request.gpus_per_node, 1)
        training = training_run(
            play.kind,
            job.request.name,
            ranks,
            planned_s=play.planned_s,
            environment=job.request.environment,
            dice=play.dice,
        )
    return PlannedLog(
        play=play,
        job_id=job.id,
        name=job.request.name,
        nodes=job.nodes,
        gpus_per_node=job.request.gpus_per_node,
        began_at=job.began_at,
        clock_offset_s=job.start_offset_s,
        gpus=job.gpus,
        training=training,
    )


def lines_until(script: PlannedLog, first: int, until_s: float) -> list[str]:
    """The lines from index `first` that are due at `until_s` seconds after the start."""
    until_s = min(until_s, script.play.duration_s)
    return list((_trial_lines if script.play.lines else _generated_lines)(script, first, until_s))


def next_due_s(script: PlannedLog, index: int) -> float:
    """When line `index` is due, in seconds after the start; infinity after the end."""
    lines = script.play.lines
    if lines and index >= len(lines):
        return inf
    at = script.play.slowed_time_s(lines[index][0]) if lines else _line_due_s(script, index)
    return at if at < script.ends_s else inf


def _trial_lines(script: PlannedLog, first: int, until_s: float) -> Iterator[str]:
    """Lines of a job with a predetermined log, followed by failure output if a fault ended it."""
    body = [text for at, text in script.play.lines if script.play.slowed_time_s(at) < script.ends_s]
    yield from (text for at, text in script.play.lines[first : len(body)] if script.play.slowed_time_s(at) <= until_s)
    if until_s >= script.play.duration_s and script.play.state != State.COMPLETED:
        yield from final_lines(script)[max(first - len(body), 0) :]


def _line_due_s(script: PlannedLog, index: int) -> float:
    if (number := index - len(script.startup_lines)) < 0:
        return script.play.slowed_time_s(index * script.startup_interval_s)
    return script.play.slowed_time_s(script.first_progress_s + number * script.line_interval_s)


def _generated_lines(script: PlannedLog, first: int, until_s: float) -> Iterator[str]:
    start_up = script.startup_lines
    index = first
    while (at := _line_due_s(script, index)) <= until_s and at < script.ends_s:
        text = start_up[index] if index < len(start_up) else _progress_line(script, index - len(start_up), at)
        yield f"[{_timestamp(script, at)}] {text}"
        index += 1
    if until_s >= script.play.duration_s:
        ending = final_lines(script)
        yield from ending[max(index - body_line_count(script), 0) :]


def body_line_count(script: PlannedLog) -> int:
    """The number of lines before the final ones. Line times increase with the index, so a binary search finds it."""
    low, high = 0, 1
    while _line_due_s(script, high) < script.ends_s:
        high *= 2
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if _line_due_s(script, middle) < script.ends_s else (low, middle)
    return low


def _timestamp(script: PlannedLog, at_s: float) -> str:
    return datetime.fromtimestamp(script.began_at + script.clock_offset_s + at_s, UTC).isoformat(" ", "seconds")[:-6]


def _startup_lines(script: PlannedLog) -> list[str]:
    where = ", ".join(script.nodes[:4]) + (" ..." if len(script.nodes) > 4 else "")
    common = [
        f"job {script.job_id} ({script.name}): {script.ranks} ranks on {len(script.nodes)} nodes: {where}",
        f"rank 0 of {script.ranks} is ready; waiting for the others",
    ]
    if script.training:
        return [*common, *_training_startup_lines(script.training)]
    if script.play.kind == JobKind.EVALUATION:
        return [*common, "loading model weights from checkpoint", "model is on the GPU; prompts are being tokenized"]
    return common


def _training_startup_lines(run: TrainingRun) -> list[str]:
    shape = run.shape
    experts = f", {shape.experts} experts, {shape.active_experts} per token" if shape.experts > 1 else ""
    resumed = [f"loading checkpoint of step {run.first_step}"] if run.first_step else []
    return [
        f"process group formed: backend nccl, world size {run.ranks}",
        f"parallelism: data {run.data_parallel}, tensor {run.tensor_parallel}, pipeline {run.pipeline_parallel}",
        f"building model: {shape.layers} layers, hidden {shape.hidden}, heads {shape.heads}, "
        f"vocabulary {shape.vocabulary}{experts}, {shape.parameters / 1e9:.1f}B parameters",
        f"sequence length {run.sequence_length}, global batch {run.batch_tokens // run.sequence_length} sequences",
        f"peak lr {run.peak_learning_rate:.2e}, warm-up of {run.warmup_steps} steps, cosine until step {run.last_step}",
        "optimizer state is sharded over the data parallel group",
        *resumed,
        "starting training loop",
    ]


def _progress_line(script: PlannedLog, number: int, at_s: float) -> str:
    if (noise := _noise_line(script, number)) is not None:
        return noise
    if script.training:
        return _training_line(script, script.training, number, at_s)
    if script.play.kind == JobKind.EVALUATION:
        return _evaluation_line(script, number)
    return f"step {number + 1} done"


def _noise_line(script: PlannedLog, number: int) -> str | None:
    """A meaningless line, as found in every log, or None."""
    dice = Random(f"{script.play.dice}:noise:{number}")
    if dice.random() >= NOISE_SHARE or script.checkpoint_at_line(number) is not None:
        return None
    rank, node = dice.randrange(script.ranks), dice.choice(script.nodes or ("localhost",))
    return dice.choice(NOISE_TEMPLATES).format(rank=rank, node=node, number=dice.randrange(2, 90))


def _training_line(script: PlannedLog, run: TrainingRun, number: int, at_s: float) -> str:
    step = script.step_after_line(number + 1)
    if (saved := script.checkpoint_at_line(number)) is not None:
        return f"checkpoint saved at step {saved}"
    dice = Random(f"{script.play.dice}:{number}")
    loss, norm = _draw_loss(script, run, number, at_s, dice), 0.35 + 0.1 * dice.random()
    norm *= 40 if _is_loss_spike(script, number, at_s) else 1
    slow = (1 + 0.02 * dice.uniform(-1, 1)) / script.play.pace(at_s)
    return (
        f"step {step:>7} | loss {loss:.4f} | grad norm {norm:.3f} | lr {run.learning_rate(step):.3e} "
        f"| tokens/s/gpu {run.tokens_per_s_per_gpu / slow:.0f} | mfu {run.mfu / slow:.1%} "
        f"| {run.step_s * slow:.3f} s/step | consumed tokens {step * run.batch_tokens}"
    )


def _draw_loss(script: PlannedLog, run: TrainingRun, number: int, at_s: float, dice: Random) -> float:
    hint, _, _ = script.play.loss.partition(":")
    if hint == "flat":
        return run.first_loss() * (1 + 0.002 * dice.uniform(-1, 1))
    noisy = run.expected_loss(script.step_after_line(number + 1)) * (1 + 0.01 * dice.uniform(-1, 1))
    if not _is_loss_spike(script, number, at_s):
        return noisy
    return float("nan") if hint == "nan" else noisy * 3


def _is_loss_spike(script: PlannedLog, number: int, at_s: float) -> bool:
    """Whether the loss deviates: `SIM_LOSS=spike:0.6` spikes from 60 % of the run on, `nan:0.6` is nan from there."""
    if at_s >= script.play.spike_s:
        return True
    hint, _, where = script.play.loss.partition(":")
    if hint not in ("spike", "nan"):
        return False
    try:
        share = float(where or 0.5)
    except ValueError:
        share = 0.5
    return number * script.line_interval_s >= share * min(script.play.planned_s, 1e9)


def _evaluation_line(script: PlannedLog, number: int) -> str:
    dataset, done = script.benchmarks[number // 10 % len(script.benchmarks)], number % 10 + 1
    if done == 10:
        score = DATASET_SCORES[dataset] * Random(f"{script.play.dice}:{number}").uniform(0.9, 1.1)
        return f"{dataset}: finished, accuracy {score:.4f}"
    return f"{dataset}: {done * 128}/1280 samples generated"


def final_lines(script: PlannedLog) -> list[str]:
    play = script.play
    if play.state == State.COMPLETED:
        return [f"[{_timestamp(script, play.duration_s)}] all done"]
    return failure_lines(
        FailureContext(
            job=script.job_id,
            reason=play.cause,
            exit_code=play.exit.code or 1,
            nodes=script.nodes,
            gpus_per_node=script.gpus_per_node,
            rank=rank_at_fault(script),
            step=script.step_after_line(max(body_line_count(script) - len(script.startup_lines), 0)),
            dice=play.dice,
        )
    )


def rank_at_fault(script: PlannedLog) -> int:
    node, gpu = script.play.culprit or ("", -1)
    if node in script.nodes and gpu >= 0:
        indices = script.gpus.get(node, ())
        place = indices.index(gpu) if gpu in indices else 0
        return script.nodes.index(node) * script.gpus_per_node + place
    return Random(f"{script.play.dice}:rank").randrange(script.ranks)
