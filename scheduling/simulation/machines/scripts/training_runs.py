"""What a simulated training job trains: its model, the division of the model among GPUs, its loss and learning rate.

The shapes are those of published dense models with 7 to 104 billion parameters and of one mixture of experts. Loss of a
pretraining run follows the scaling law of Hoffmann et al. (2022, "Training Compute-Optimal Large Language Models"),
shifted so that it starts at the logarithm of the vocabulary, as for an untrained model. Pure and without state.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import cos, exp, inf, isclose, log, pi, pow
from random import Random

from jobs.core.lifecycle import JobKind

PEAK_FLOPS = 312e12  # of an A100 in bfloat16
SIZE_PATTERN = re.compile(r"(?:(\d{1,3})x)?(\d{1,4}(?:\.\d{1,2})?)b\b", re.IGNORECASE)
MIN_STEP_S = 2.0
ENDLESS_STEPS = 500_000  # total steps of a run that does not end by itself
MAX_WARMUP_STEPS, WARMUP_SHARE = 2_000, 0.05
FINAL_RATE_SHARE = 0.1  # of the peak learning rate

# Loss = IRREDUCIBLE + SIZE_FACTOR / parameters ^ SIZE_EXPONENT + DATA_FACTOR / tokens ^ DATA_EXPONENT
IRREDUCIBLE, SIZE_FACTOR, SIZE_EXPONENT, DATA_FACTOR, DATA_EXPONENT = 1.69, 406.4, 0.34, 410.7, 0.28


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    layers: int
    hidden: int
    heads: int
    ffn: int  # inner size of a feed-forward layer
    vocabulary: int = 103_168
    experts: int = 1
    active_experts: int = 1

    @cached_property
    def parameters(self) -> int:
        return self._count(self.experts)

    @cached_property
    def active_parameters(self) -> int:
        """The parameters that process one token."""
        return self._count(self.active_experts)

    def _count(self, experts: int) -> int:
        layer = 4 * self.hidden**2 + experts * 3 * self.hidden * self.ffn
        return self.layers * layer + 2 * self.vocabulary * self.hidden


DENSE_SHAPES = (
    ModelShape(layers=24, hidden=2048, heads=16, ffn=8192),  # 2 billion parameters
    ModelShape(layers=32, hidden=4096, heads=32, ffn=11008),  # 7
    ModelShape(layers=40, hidden=5120, heads=40, ffn=13824),  # 14
    ModelShape(layers=60, hidden=5120, heads=40, ffn=13824),  # 20
    ModelShape(layers=82, hidden=10240, heads=80, ffn=27392),  # 106
)
EXPERT_SHAPE = ModelShape(
    layers=32, hidden=4096, heads=32, ffn=14336, vocabulary=32_000, experts=8, active_experts=2
)  # 48 billion parameters, 13 of them active
DEFAULT_SHAPE = DENSE_SHAPES[1]


def shape_of_name(name: str) -> ModelShape:
    """The shape whose size is nearest to the one in a job's name: `llm-104b`, `moe-8x7b`; 7 billion without one."""
    found = SIZE_PATTERN.search(name)
    if found is None or not float(found[2]):
        return DEFAULT_SHAPE
    if found[1]:
        return EXPERT_SHAPE
    wanted = float(found[2]) * 1e9
    return min(DENSE_SHAPES, key=lambda shape: abs(log(shape.parameters / wanted)))


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """A model on its GPUs. All ranks of one data-parallel replica process the same sequences."""

    kind: JobKind
    shape: ModelShape
    ranks: int
    tensor_parallel: int
    pipeline_parallel: int
    sequence_length: int
    first_step: int  # 0, or the step of the checkpoint from which it resumes
    last_step: int
    mfu: float
    target_step_s: float = MIN_STEP_S

    @cached_property
    def data_parallel(self) -> int:
        return self.ranks // (self.tensor_parallel * self.pipeline_parallel)

    @cached_property
    def tokens_per_s_per_gpu(self) -> float:
        attention = 6 * self.shape.layers * self.shape.hidden * self.sequence_length
        return self.mfu * PEAK_FLOPS / (6 * self.shape.active_parameters + attention)

    @cached_property
    def sequences_per_replica(self) -> int:
        """Sequences of one step, so many that it takes about `target_step_s`."""
        tokens = self.target_step_s * self.tokens_per_s_per_gpu * self.tensor_parallel * self.pipeline_parallel
        return max(1, round(tokens / self.sequence_length))

    @cached_property
    def batch_tokens(self) -> int:
        return self.sequences_per_replica * self.data_parallel * self.sequence_length

    @cached_property
    def step_s(self) -> float:
        return self.batch_tokens / (self.tokens_per_s_per_gpu * self.ranks)

    @cached_property
    def peak_learning_rate(self) -> float:
        if self.kind == JobKind.PRETRAIN:
            return 3e-4 * pow(7e9 / self.shape.parameters, 1 / 3)
        return 2e-5 if self.kind == JobKind.SFT else 1e-4

    @cached_property
    def warmup_steps(self) -> int:
        return max(1, min(MAX_WARMUP_STEPS, round(WARMUP_SHARE * self.last_step)))

    def learning_rate(self, step: int) -> float:
        """Linear warm-up, then a cosine that ends at a tenth of the peak."""
        peak, warmup = self.peak_learning_rate, self.warmup_steps
        if step <= warmup:
            return peak * step / warmup
        done = min(1.0, (step - warmup) / max(1, self.last_step - warmup))
        return peak * (FINAL_RATE_SHARE + (1 - FINAL_RATE_SHARE) * (1 + cos(pi * done)) / 2)

    def first_loss(self) -> float:
        """The loss of an untrained model is that of a guess; a finetuned one has been trained before."""
        if self.kind == JobKind.PRETRAIN:
            return log(self.shape.vocabulary)
        return 1.45 if self.kind == JobKind.SFT else 4.2

    def expected_loss(self, step: int) -> float:
        if self.kind != JobKind.PRETRAIN:
            last, steps = (0.92, 150) if self.kind == JobKind.SFT else (2.1, 60)
            return last + (self.first_loss() - last) * exp(-step / steps)
        floor = IRREDUCIBLE + SIZE_FACTOR / pow(self.shape.parameters, SIZE_EXPONENT)
        tokens_before = pow(DATA_FACTOR / (self.first_loss() - floor), 1 / DATA_EXPONENT)
        return floor + DATA_FACTOR / pow(tokens_before + self._learned_steps(step) * self.batch_tokens, DATA_EXPONENT)

    def _learned_steps(self, step: int) -> float:
        """Steps at the full learning rate from which a model learns as much: the warm-up counts half."""
        warmup = self.warmup_steps
        return step * step / (2 * warmup) if step < warmup else step - warmup / 2


def training_run(
    kind: JobKind, name: str, ranks: int, *, planned_s: float, environment: Mapping[str, str], dice: str
) -> TrainingRun:
    shape = shape_of_name(name)
    tensor, pipeline = _parallel_sizes(shape, ranks)
    efficiency = (0.47 - 0.02 * (tensor > 1) - 0.03 * (pipeline > 1)) * (0.75 if shape.experts > 1 else 1.0)
    mfu = efficiency * ranks**-0.02 * (1 + 0.04 * Random(f"{dice}:mfu").uniform(-1, 1))
    step = environment.get("ACME_CHECKPOINT_STEP", "")
    first = int(step) if step.isascii() and step.isdigit() and len(step) < 10 else 0
    run = TrainingRun(
        kind=kind, shape=shape, ranks=ranks, tensor_parallel=tensor, pipeline_parallel=pipeline,
        sequence_length=4096 if kind == JobKind.PRETRAIN else 2048, first_step=first, last_step=first, mfu=mfu,
    )  # fmt: skip
    steps = ENDLESS_STEPS if planned_s == inf else max(1, round(planned_s / run.step_s))
    return replace(run, last_step=first + steps)


def with_whole_steps(run: TrainingRun, interval_s: float) -> TrainingRun:
    """The run, a little faster or slower, so that an interval takes a multiple of 5 steps. So checkpoints that are
    saved by time have the round steps of checkpoints that are saved by steps."""
    wanted = interval_s / run.step_s
    for steps in sorted(range(5, round(wanted) + 100, 5), key=lambda steps: abs(steps - wanted)):
        changed = replace(run, mfu=run.mfu * run.step_s * steps / interval_s)
        if isclose(changed.step_s * steps, interval_s, rel_tol=1e-6):  # else its batch changed too
            return changed
    return run


def _parallel_sizes(shape: ModelShape, ranks: int) -> tuple[int, int]:
    """Tensor and pipeline parallel sizes: powers of two that divide the ranks, as few as the model needs."""
    wanted_tensor = 1 if shape.parameters < 10e9 else 4 if shape.parameters < 60e9 else 8
    wanted_pipeline = 2 if shape.parameters >= 60e9 else 1
    tensor = next(size for size in (8, 4, 2, 1) if size <= wanted_tensor and ranks % size == 0)
    pipeline = wanted_pipeline if ranks % (tensor * wanted_pipeline) == 0 else 1
    return tensor, pipeline
