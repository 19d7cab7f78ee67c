"""The words of a played job: start-up, progress, and the last lines of one that fails.

A log is a fixed sequence of lines, each with its moment, computed from its index alone. So a server that comes back
counts the lines that are there and goes on with the next. All sentences are our own, in the manner of what training
and evaluation frameworks print. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from math import exp, inf
from random import Random

from jobs.lifecycle import Kind, State

from .play import Play
from .world import Job

PACE_S = 2.0  # no job says more than a line every two seconds,
MOST_LINES = 2_000  # and a long one says less
START_UP_S = 0.25  # between start-up lines, at most
STEPS_PER_LINE = 10
CHECKPOINT_EVERY = 50  # lines
TRAINING = frozenset({Kind.PRETRAIN, Kind.SFT, Kind.MLLM})
DATASETS = ("mmlu", "gsm8k", "humaneval", "bbh", "ceval", "arc_challenge", "hellaswag", "triviaqa")
FIRST_LOSS, LAST_LOSS = 10.8, 2.05


@dataclass(frozen=True, kw_only=True)
class Script:
    """One job's log, before it is written."""

    play: Play
    job_id: int
    name: str
    nodes: tuple[str, ...]
    gpus_per_node: int
    began_at: float

    @property
    def ranks(self) -> int:
        return max(len(self.nodes) * self.gpus_per_node, 1)

    @property
    def pace_s(self) -> float:
        known = 0.0 if self.play.duration_s == inf else self.play.duration_s
        return max(PACE_S, known / MOST_LINES)


def script_of(job: Job, play: Play) -> Script:
    return Script(
        play=play,
        job_id=job.id,
        name=job.request.name,
        nodes=job.nodes,
        gpus_per_node=job.request.gpus_per_node,
        began_at=job.began_at,
    )


def lines(script: Script, first: int, until_s: float) -> list[str]:
    """The lines from index `first` on whose moment, in seconds from the beginning, has come."""
    return list(_lines(script, first, min(until_s, script.play.duration_s)))


def next_due_s(script: Script, index: int) -> float:
    """When line `index` is due, in seconds from the beginning."""
    start_up = len(_start_up(script))
    gap = _start_up_gap(script)
    return index * gap if index < start_up else start_up * gap + (index - start_up) * script.pace_s


def _start_up_gap(script: Script) -> float:
    """A very short job hurries through its start-up, so that it still says what it is."""
    return min(START_UP_S, script.play.duration_s / (2 * len(_start_up(script))))


def _lines(script: Script, first: int, until_s: float) -> Iterator[str]:
    start_up = _start_up(script)
    index = first
    while (at := next_due_s(script, index)) <= until_s and at < script.play.duration_s:
        text = start_up[index] if index < len(start_up) else _progress(script, index - len(start_up))
        yield f"[{_stamp(script.began_at + at)}] {text}"
        index += 1
    if until_s >= script.play.duration_s:
        ending = _tail(script)
        yield from ending[max(index - _body_length(script), 0) :]


def _body_length(script: Script) -> int:
    """How many lines come before the tail."""
    start_up, end = len(_start_up(script)), script.play.duration_s
    if end <= 0:
        return 0
    gap = _start_up_gap(script)
    index = start_up + max(int((end - start_up * gap) / script.pace_s) - 1, 0)
    while next_due_s(script, index) < end:
        index += 1
    return index


def _stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


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


def _progress(script: Script, number: int) -> str:
    if script.play.kind in TRAINING:
        return _training_line(script, number)
    if script.play.kind == Kind.EVALUATION:
        return _evaluation_line(script, number)
    return f"step {number + 1} done"


def _training_line(script: Script, number: int) -> str:
    step = (number + 1) * STEPS_PER_LINE
    if (number + 1) % CHECKPOINT_EVERY == 0:
        return f"checkpoint saved at step {step}"
    dice = Random(f"{script.play.dice}:{number}")
    loss, norm = _loss(script, number, dice), 0.35 + 0.1 * dice.random()
    spiking = _in_spike(script, number)
    rate = 3800 * (1 + 0.02 * dice.uniform(-1, 1))
    return (
        f"step {step:>7} | loss {loss:.4f} | grad norm {norm * (40 if spiking else 1):.3f} | lr 3.00e-04 "
        f"| tokens/s/gpu {rate:.0f} | {script.pace_s / STEPS_PER_LINE:.3f} s/step"
    )


def _loss(script: Script, number: int, dice: Random) -> float:
    hint, _, _ = script.play.loss.partition(":")
    smooth = LAST_LOSS + (FIRST_LOSS - LAST_LOSS) * exp(-number / 60)
    noisy = smooth * (1 + 0.01 * dice.uniform(-1, 1))
    if hint == "flat":
        return FIRST_LOSS * (1 + 0.002 * dice.uniform(-1, 1))
    if not _in_spike(script, number):
        return noisy
    return float("nan") if hint == "nan" else noisy * 3


def _in_spike(script: Script, number: int) -> bool:
    """`SIM_LOSS=spike:0.6` leaves the curve from 60 % of the run on, `nan:0.6` becomes nan there."""
    hint, _, where = script.play.loss.partition(":")
    if hint not in ("spike", "nan"):
        return False
    try:
        share = float(where or 0.5)
    except ValueError:
        share = 0.5
    return number * script.pace_s >= share * min(script.play.duration_s, 1e9)


def _evaluation_line(script: Script, number: int) -> str:
    dataset = DATASETS[number // 10 % len(DATASETS)]
    done = number % 10 + 1
    if done == 10:
        dice = Random(f"{script.play.dice}:{number}")
        return f"{dataset}: finished, accuracy {dice.uniform(0.2, 0.8):.4f}"
    return f"{dataset}: {done * 128}/1280 samples generated"


# How a failing job ends. {rank} and {node} are drawn; a traceback reads as Python's, a device error as the library's.
TAILS: dict[str, tuple[str, ...]] = {
    "nccl_timeout": (
        "[rank{rank}] watchdog: collective ALLREDUCE (seq 48211) did not finish within 1800000 ms",
        "[rank{rank}] NCCL error: remote process exited or there was a network error on {node}",
        "torch.distributed.DistBackendError: NCCL communicator was aborted on rank {rank}",
    ),
    "nvlink": (
        "[rank{rank}] NVRM: Xid (PCI:0000:1b:00): 74, NVLink: fatal error detected on link 3 ({node})",
        "[rank{rank}] RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
    ),
    "ecc": (
        "[rank{rank}] NVRM: Xid (PCI:0000:3d:00): 48, double bit ECC error ({node})",
        "[rank{rank}] RuntimeError: CUDA error: uncorrectable ECC error encountered",
    ),
    "cuda_oom": (
        "Traceback (most recent call last):",
        '  File "/opt/train/loop.py", line 214, in step',
        "    loss.backward()",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB on device {rank} of {node}",
    ),
    "connection": (
        "Traceback (most recent call last):",
        '  File "/opt/train/storage.py", line 88, in fetch',
        "    body = session.get(url)",
        "ConnectionError: storage gateway closed the connection while rank {rank} was reading a shard",
    ),
    "file_not_found": (
        "Traceback (most recent call last):",
        '  File "/opt/train/data.py", line 41, in open_shard',
        "    return open(path, 'rb')",
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/shards/part-00{rank}.bin'",
    ),
    "assertion": (
        "Traceback (most recent call last):",
        '  File "/opt/train/main.py", line 63, in main',
        "    assert batch % world == 0, (batch, world)",
        "AssertionError: (1000, {ranks})",
    ),
    "type_error": (
        "Traceback (most recent call last):",
        '  File "/opt/train/metrics.py", line 29, in score',
        "    total += sample['score']",
        "TypeError: unsupported operand type(s) for +=: 'float' and 'NoneType'",
    ),
    "loss_nan": (
        "[rank{rank}] loss is nan for 5 steps in a row",
        "RuntimeError: training stopped: the loss is not finite",
    ),
    "host_oom": (
        "slurmstepd: error: Detected 1 oom_kill event in StepId={job}.batch. The batch step ran out of memory.",
    ),
}


def _tail(script: Script) -> list[str]:
    play = script.play
    if play.state == State.COMPLETED:
        return [f"[{_stamp(script.began_at + play.duration_s)}] all done"]
    dice = Random(f"{play.dice}:tail")
    rank, node = dice.randrange(script.ranks), dice.choice(script.nodes or ("localhost",))
    return [
        text.format(rank=rank, node=node, ranks=script.ranks, job=script.job_id) for text in TAILS.get(play.cause, ())
    ]
