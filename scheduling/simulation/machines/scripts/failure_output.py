"""The end of a failing job's log: output of the failing rank, of other ranks, of torchrun and of srun.

Pure; drawn from the run's seed, so that a log that is restarted continues with the same text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from .failure_messages import MESSAGES_BY_REASON, SLURM_MESSAGES, STARTUP_REASONS, MessageTemplate

MAX_OTHER_RANKS = 6  # limit of other ranks with output; all ranks report the same
TRAINER_ROOT = "/opt/train"
ELASTIC_PATH = "torch/distributed/elastic/multiprocessing/api.py"


@dataclass(frozen=True, kw_only=True)
class FailureContext:
    """The job, nodes and rank of a failure."""

    job: int
    reason: str
    exit_code: int
    nodes: Sequence[str]
    gpus_per_node: int
    rank: int  # the failing rank
    step: int
    dice: str

    @property
    def ranks(self) -> int:
        return max(len(self.nodes) * self.gpus_per_node, 1)


def failure_lines(scene: FailureContext) -> list[str]:
    """All lines of the failure output."""
    random, words = Random(f"{scene.dice}:tail"), _template_values(scene)
    if scene.reason in SLURM_MESSAGES:
        return [line.format(**words) for line in SLURM_MESSAGES[scene.reason]]
    if scene.reason not in MESSAGES_BY_REASON:
        return []
    template = random.choice(MESSAGES_BY_REASON[scene.reason])
    fault = _prefix_with_rank(scene.rank, _render_template(template, words), alone=scene.ranks == 1)
    if scene.ranks == 1:
        return fault
    others = [] if scene.reason in STARTUP_REASONS else _other_ranks_lines(scene, random)
    return [*_interleave_ranks(fault, others, random), *_torchrun_lines(scene, random), *_srun_lines(scene)]


def _template_values(scene: FailureContext) -> dict[str, object]:
    dice, per_node = Random(f"{scene.dice}:words"), max(scene.gpus_per_node, 1)
    local = scene.rank % per_node
    return {
        "rank": scene.rank,
        "ranks": scene.ranks,
        "local": local,
        "host": scene.nodes[scene.rank // per_node] if scene.nodes else "localhost",
        "job": scene.job,
        "step": scene.step,
        "pid": dice.randrange(20_000, 400_000),
        "tid": dice.randrange(20_000, 400_000),
        "seq": dice.randrange(1_000, 900_000),
        "pci": f"0000:{0x0F + 0x12 * local & 0xFF:02X}:00.0",
        "peer_ip": f"10.4.{dice.randrange(256)}.{dice.randrange(1, 255)}",
    }


def _render_template(template: MessageTemplate, words: Mapping[str, object]) -> list[str]:
    """Render a template: each frame becomes Python's two lines, and each group of frames gets the traceback header."""
    lines: list[str] = []
    inside = False
    for line in template:
        if line.startswith("@"):
            lines += [] if inside else ["Traceback (most recent call last):"]
            file, number, function, code = line[1:].split(":", 3)
            where = file if "/" not in file or file.startswith("train/") else f"site-packages/{file}"
            lines += [f'  File "{TRAINER_ROOT}/{where}", line {number}, in {function}', f"    {code}"]
        else:
            lines.append(line.format(**words))
        inside = line.startswith("@")
    return lines


def _prefix_with_rank(rank: int, lines: Sequence[str], *, alone: bool) -> list[str]:
    return [line if alone or line.startswith(("[rank", "seren", " ")) else f"[rank{rank}]: {line}" for line in lines]


def _other_ranks_lines(scene: FailureContext, random: Random) -> list[list[str]]:
    """Output of a sample of the other ranks: watchdog errors or closed connections."""
    other_ranks = [rank for rank in range(scene.ranks) if rank != scene.rank]
    others = random.sample(other_ranks, k=min(MAX_OTHER_RANKS, len(other_ranks)))
    return [_lost_peer_lines(rank, random) for rank in sorted(others)]


def _lost_peer_lines(rank: int, random: Random) -> list[str]:
    seq = random.randrange(1_000, 900_000)
    if random.random() < 0.5:
        return [
            f"[rank{rank}]:[E ProcessGroupNCCL.cpp:1182] [PG 0 Rank {rank}] NCCL watchdog thread terminated with"
            " exception: NCCL error: remote process exited or there was a network error",
            f"[rank{rank}]: what():  [PG 0 Rank {rank}] NCCL watchdog thread terminated, last enqueued work: {seq}",
        ]
    return [
        f"[rank{rank}]: torch.distributed.DistBackendError: [{rank}] is setting up NCCL communicator and retrieving"
        " ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: Connection reset by"
        " peer"
    ]


def _interleave_ranks(fault: list[str], others: list[list[str]], random: Random) -> list[str]:
    """Combine the ranks' output into one file; sometimes another rank interrupts the failing rank."""
    if not others or random.random() < 0.6:
        return [*fault, *(line for lines in others for line in lines)]
    at = random.randrange(len(fault))
    return [*fault[:at], *others[0], *fault[at:], *(line for lines in others[1:] for line in lines)]


def _torchrun_lines(scene: FailureContext, random: Random) -> Iterator[str]:
    pid, local = random.randrange(20_000, 400_000), scene.rank % max(scene.gpus_per_node, 1)
    host = scene.nodes[scene.rank // max(scene.gpus_per_node, 1)] if scene.nodes else "localhost"
    for peer in range(1, min(scene.gpus_per_node, 4)):
        yield f"W {ELASTIC_PATH}:851] Sending process {pid + peer} closing signal SIGTERM"
    yield (
        f"E {ELASTIC_PATH}:826] failed (exitcode: {scene.exit_code}) local_rank: {local}"
        f" (pid: {pid}) of binary: /usr/bin/python3"
    )
    yield "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "
    yield "=" * 60
    yield f"{TRAINER_ROOT}/train/main.py FAILED"
    yield "Root Cause (first observed failure):"
    yield f"  host      : {host}"
    yield f"  rank      : {scene.rank} (local_rank: {local})"
    yield f"  exitcode  : {scene.exit_code} (pid: {pid})"
    yield "=" * 60


def _srun_lines(scene: FailureContext) -> Iterator[str]:
    if len(scene.nodes) > 1:
        task = scene.rank // max(scene.gpus_per_node, 1)
        yield f"srun: error: {scene.nodes[task]}: task {task}: Exited with exit code {scene.exit_code}"
        yield f"srun: Terminating StepId={scene.job}.0"
