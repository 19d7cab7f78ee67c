"""The words of a played job: start-up, progress, and the last lines of one that fails.

A log is a fixed sequence of lines, each with its moment, computed from its index alone. So a server that comes back
counts the lines that are there and goes on with the next. All sentences are our own, in the manner of what training
and evaluation frameworks print. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import exp, inf
from random import Random

from jobs.lifecycle import Kind, State

from .lastwords import Scene, last_words
from .play import Play
from .reasons import TRAINING
from .troubles import SLOWDOWN
from .values import Job

PACE_S = 2.0  # no job says more than a line every two seconds,
MOST_LINES = 2_000  # and a long one says less
START_UP_S = 0.25  # between start-up lines, at most
STEPS_PER_LINE = 10
CHECKPOINT_EVERY = 50  # lines
DATASETS = ("mmlu", "gsm8k", "humaneval", "bbh", "ceval", "arc_challenge", "hellaswag", "triviaqa")
FIRST_LOSS, LAST_LOSS = 10.8, 2.05
NOISE = 0.03  # of the lines
NOISES = (
    "[rank{rank}] data worker waited {number} ms for shard {number}",
    "{node}: NCCL INFO Channel 0{rank}/0 : 0[0] -> 1[1] via P2P/CUMEM",
    "/opt/train/train/optim.py:44: UserWarning: lr_scheduler.step() was called before optimizer.step()",
    "{node}: warning: clock of the storage gateway is {number} ms ahead",
    "tokenizer: FutureWarning: clean_up_tokenization_spaces was not set, it will be True by default",
    "[rank{rank}] gc collected {number} objects in generation 2",
    "wandb: WARNING retrying the upload of {number} files",
)


@dataclass(frozen=True, kw_only=True)
class Script:
    """One job's log, before it is written."""

    play: Play
    job_id: int
    name: str
    nodes: tuple[str, ...]
    gpus_per_node: int
    began_at: float
    clock_offset_s: float = 0.0  # of the clock by which its lines are stamped
    gpus: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def ends_s(self) -> float:
        """After this it says nothing more but its last words; one that hangs has none."""
        return min(self.play.duration_s, self.play.silent_s)

    @property
    def ranks(self) -> int:
        return max(len(self.nodes) * self.gpus_per_node, 1)

    @property
    def pace_s(self) -> float:
        known = 0.0 if self.play.planned_s == inf else self.play.planned_s
        return max(PACE_S, known / MOST_LINES)


def script_of(job: Job, play: Play) -> Script:
    return Script(
        play=play,
        job_id=job.id,
        name=job.request.name,
        nodes=job.nodes,
        gpus_per_node=job.request.gpus_per_node,
        began_at=job.began_at,
        clock_offset_s=job.start_offset_s,
        gpus=job.gpus,
    )


def lines(script: Script, first: int, until_s: float) -> list[str]:
    """The lines from index `first` on whose moment, in seconds from the beginning, has come."""
    until_s = min(until_s, script.play.duration_s)
    return list((_known if script.play.said else _lines)(script, first, until_s))


def next_due_s(script: Script, index: int) -> float:
    """When line `index` is due, in seconds from the beginning; never, for what comes after the end."""
    said = script.play.said
    if said and index >= len(said):
        return inf
    at = script.play.stretched(said[index][0]) if said else _moment_s(script, index)
    return at if at < script.ends_s else inf


def _known(script: Script, first: int, until_s: float) -> Iterator[str]:
    """Of a job whose lines are known beforehand; where it was struck, with its last words."""
    lived = [text for at, text in script.play.said if script.play.stretched(at) < script.ends_s]
    yield from (text for at, text in script.play.said[first : len(lived)] if script.play.stretched(at) <= until_s)
    if until_s >= script.play.duration_s and script.play.state != State.COMPLETED:
        yield from _tail(script)[max(first - len(lived), 0) :]


def _moment_s(script: Script, index: int) -> float:
    start_up, gap = len(_start_up(script)), _start_up_gap(script)
    work = index * gap if index < start_up else start_up * gap + (index - start_up) * script.pace_s
    return script.play.stretched(work)


def _start_up_gap(script: Script) -> float:
    """A very short job hurries through its start-up, so that it still says what it is."""
    return min(START_UP_S, script.play.planned_s / (2 * len(_start_up(script))))


def _lines(script: Script, first: int, until_s: float) -> Iterator[str]:
    start_up = _start_up(script)
    index = first
    while (at := _moment_s(script, index)) <= until_s and at < script.ends_s:
        text = start_up[index] if index < len(start_up) else _progress(script, index - len(start_up), at)
        yield f"[{_stamp(script, at)}] {text}"
        index += 1
    if until_s >= script.play.duration_s:
        ending = _tail(script)
        yield from ending[max(index - _body_length(script), 0) :]


def _body_length(script: Script) -> int:
    """How many lines come before the tail: the moments of lines only grow, so it is found by halving."""
    low, high = 0, 1
    while _moment_s(script, high) < script.ends_s:
        high *= 2
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if _moment_s(script, middle) < script.ends_s else (low, middle)
    return low


def _stamp(script: Script, at_s: float) -> str:
    return datetime.fromtimestamp(script.began_at + script.clock_offset_s + at_s, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _start_up(script: Script) -> list[str]:
    where = ", ".join(script.nodes[:4]) + (" ..." if len(script.nodes) > 4 else "")
    common = [
        f"job {script.job_id} ({script.name}): {script.ranks} ranks on {len(script.nodes)} nodes: {where}",
        f"rank 0 of {script.ranks} is ready; waiting for the others",
    ]
    if script.play.kind in TRAINING:
        return [*common, *_training_start(script)]
    if script.play.kind == Kind.EVALUATION:
        return [*common, "loading model weights from checkpoint", "model is on the GPU; prompts are being tokenised"]
    return common


def _training_start(script: Script) -> list[str]:
    return [
        f"process group formed: backend nccl, world size {script.ranks}",
        "building model: 32 layers, hidden 4096, heads 32, vocabulary 103168",
        "optimizer state is sharded over the data parallel group",
        "data index loaded, sampler is at sample 0",
        "starting training loop",
    ]


def _progress(script: Script, number: int, at_s: float) -> str:
    if (noise := _noise(script, number)) is not None:
        return noise
    if script.play.kind in TRAINING:
        return _training_line(script, number, at_s)
    if script.play.kind == Kind.EVALUATION:
        return _evaluation_line(script, number)
    return f"step {number + 1} done"


def _noise(script: Script, number: int) -> str | None:
    """What every log is full of and means nothing."""
    dice = Random(f"{script.play.dice}:noise:{number}")
    if dice.random() >= NOISE or (number + 1) % CHECKPOINT_EVERY == 0:
        return None
    rank, node = dice.randrange(script.ranks), dice.choice(script.nodes or ("localhost",))
    return dice.choice(NOISES).format(rank=rank, node=node, number=dice.randrange(2, 90))


def _training_line(script: Script, number: int, at_s: float) -> str:
    step = (number + 1) * STEPS_PER_LINE
    if (number + 1) % CHECKPOINT_EVERY == 0:
        return f"checkpoint saved at step {step}"
    dice = Random(f"{script.play.dice}:{number}")
    loss, norm = _loss(script, number, at_s, dice), 0.35 + 0.1 * dice.random()
    norm *= 40 if _in_spike(script, number, at_s) else 1
    slow = SLOWDOWN if script.play.is_slow(at_s) else 1.0
    rate = 3800 * (1 + 0.02 * dice.uniform(-1, 1)) / slow
    return (
        f"step {step:>7} | loss {loss:.4f} | grad norm {norm:.3f} | lr 3.00e-04 "
        f"| tokens/s/gpu {rate:.0f} | {slow * script.pace_s / STEPS_PER_LINE:.3f} s/step"
    )


def _loss(script: Script, number: int, at_s: float, dice: Random) -> float:
    hint, _, _ = script.play.loss.partition(":")
    smooth = LAST_LOSS + (FIRST_LOSS - LAST_LOSS) * exp(-number / 60)
    noisy = smooth * (1 + 0.01 * dice.uniform(-1, 1))
    if hint == "flat":
        return FIRST_LOSS * (1 + 0.002 * dice.uniform(-1, 1))
    if not _in_spike(script, number, at_s):
        return noisy
    return float("nan") if hint == "nan" else noisy * 3


def _in_spike(script: Script, number: int, at_s: float) -> bool:
    """`SIM_LOSS=spike:0.6` leaves the curve from 60 % of the run on, `nan:0.6` becomes nan there."""
    if at_s >= script.play.spike_s:
        return True
    hint, _, where = script.play.loss.partition(":")
    if hint not in ("spike", "nan"):
        return False
    try:
        share = float(where or 0.5)
    except ValueError:
        share = 0.5
    return number * script.pace_s >= share * min(script.play.planned_s, 1e9)


def _evaluation_line(script: Script, number: int) -> str:
    dataset = DATASETS[number // 10 % len(DATASETS)]
    done = number % 10 + 1
    if done == 10:
        dice = Random(f"{script.play.dice}:{number}")
        return f"{dataset}: finished, accuracy {dice.uniform(0.2, 0.8):.4f}"
    return f"{dataset}: {done * 128}/1280 samples generated"


def _tail(script: Script) -> list[str]:
    play = script.play
    if play.state == State.COMPLETED:
        return [f"[{_stamp(script, play.duration_s)}] all done"]
    return last_words(
        Scene(
            job=script.job_id,
            reason=play.cause,
            exit_code=play.exit.code or 1,
            nodes=script.nodes,
            gpus_per_node=script.gpus_per_node,
            rank=rank_at_fault(script),
            step=_body_length(script) * STEPS_PER_LINE,
            dice=play.dice,
        )
    )


def rank_at_fault(script: Script) -> int:
    node, gpu = script.play.culprit or ("", -1)
    if node in script.nodes and gpu >= 0:
        indices = script.gpus.get(node, ())
        place = indices.index(gpu) if gpu in indices else 0
        return script.nodes.index(node) * script.gpus_per_node + place
    return Random(f"{script.play.dice}:rank").randrange(script.ranks)
