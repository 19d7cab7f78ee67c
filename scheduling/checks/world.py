"""Can these nodes talk to each other? An all-gather over all processes of a world, checked byte by byte and timed.

One process a node (or a GPU, under torchrun) runs this file; it needs nothing but Python's standard library. Where
torch is installed the exchange is torch.distributed's, by NCCL on GPUs and by gloo on CPUs; elsewhere it is plain TCP,
through the process of rank 0. Prints one line of JSON. Exit code 0: passed; 1: failed; 2: it was started wrongly.

Rank, number of processes and meeting point come from the arguments, from torchrun's variables or from Slurm's. All
processes need the same ACME_TEST_KEY, so that a stranger on the port is not taken for a peer.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

MOST_BYTES = 16 << 30
PIECE = 1 << 20
GREETING_S = 5  # a stranger who says nothing holds nobody up for longer
ENOUGH = 0.5  # of the bandwidth that is expected


class Failed(Exception):
    """The message is the `why` of the answer."""


class BadStart(Exception):
    """The message names the argument."""


@dataclass(frozen=True, kw_only=True)
class World:
    rank: int
    size: int
    host: str
    port: int
    key: bytes
    block_bytes: int  # what each process sends
    patience_s: float

    def mine(self, rank: int) -> Iterator[bytes]:
        """What a rank sends, in pieces that differ, so that a lost or doubled one is seen."""
        block = random.Random(rank).randbytes(PIECE)
        for at in range(0, self.block_bytes, PIECE):
            piece = at.to_bytes(8, "big") + block[8:]
            yield piece[: self.block_bytes - at]


# --- plain TCP


def over_tcp(world: World) -> tuple[float, int]:
    """Seconds, and the bytes that went through this process."""
    with ExitStack() as closing:
        if world.rank == 0:
            return _hub(world, closing)
        return _spoke(world, closing)


def _hub(world: World, closing: ExitStack) -> tuple[float, int]:
    """Everybody's block comes here, and everybody gets those of all others."""
    deadline = time.monotonic() + world.patience_s
    server = closing.enter_context(socket.create_server(("", world.port)))
    peers: dict[int, socket.socket] = {}
    while len(peers) < world.size - 1:
        server.settimeout(_left(deadline, f"{world.size - 1 - len(peers)} of {world.size - 1} peers did not come"))
        try:
            connection, _ = server.accept()
        except TimeoutError:
            continue  # the next look at the clock says who is missing
        closing.enter_context(connection)
        rank = _greeted(world, connection)
        connection.settimeout(world.patience_s)
        if rank is not None and rank not in peers:
            peers[rank] = connection
    for peer in peers.values():
        peer.sendall(b"go")
    began = time.monotonic()
    for rank, peer in sorted(peers.items()):
        _receive(world, peer, rank)
    for rank, peer in sorted(peers.items()):
        for other in range(world.size):
            if other != rank:
                _send(world, peer, other)
    return _finished(world, began, [*peers.values()], moved=world.size * (world.size - 1) * world.block_bytes)


def _spoke(world: World, closing: ExitStack) -> tuple[float, int]:
    hub = closing.enter_context(_reach(world))
    hub.settimeout(world.patience_s)
    hub.sendall(_greeting(world, world.rank))
    if _exactly(hub, 2) != b"go":
        raise Failed("rank 0 did not answer as a peer of this test")
    began = time.monotonic()
    _send(world, hub, world.rank)
    for other in range(world.size):
        if other != world.rank:
            _receive(world, hub, other)
    hub.sendall(b"ok")
    return time.monotonic() - began, world.size * world.block_bytes


def _finished(world: World, began: float, peers: list[socket.socket], moved: int) -> tuple[float, int]:
    """Only what arrived whole at everybody counts."""
    if any(_exactly(peer, 2) != b"ok" for peer in peers):
        raise Failed("a peer did not confirm what it got")
    return time.monotonic() - began, moved


def _reach(world: World) -> socket.socket:
    """Rank 0 may start later than this one."""
    deadline = time.monotonic() + world.patience_s
    while True:
        left = _left(deadline, f"rank 0 at {world.host}:{world.port} cannot be reached")
        try:
            return socket.create_connection((world.host, world.port), left)
        except OSError:
            time.sleep(min(0.05, left))


def _left(deadline: float, why: str) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise Failed(why)
    return left


def _greeting(world: World, rank: int) -> bytes:
    return hashlib.sha256(world.key + b"|%d|%d" % (rank, world.size)).digest() + rank.to_bytes(4, "big")


def _greeted(world: World, connection: socket.socket) -> int | None:
    """The peer's rank; None for somebody who has no business here."""
    connection.settimeout(min(GREETING_S, world.patience_s))
    try:
        said = _exactly(connection, 36)
    except (Failed, OSError):
        return None
    rank = int.from_bytes(said[32:], "big")
    return rank if 0 < rank < world.size and said == _greeting(world, rank) else None


def _send(world: World, to: socket.socket, rank: int) -> None:
    for piece in world.mine(rank):
        to.sendall(piece)


def _receive(world: World, peer: socket.socket, rank: int) -> None:
    for number, piece in enumerate(world.mine(rank)):
        if _exactly(peer, len(piece)) != piece:
            raise Failed(f"what rank {rank} sent arrived changed, in MiB {number}")


def _exactly(peer: socket.socket, size: int) -> bytearray:
    got = bytearray(size)
    rest = memoryview(got)
    while rest:
        count = peer.recv_into(rest)
        if not count:
            raise Failed("a peer closed the connection")
        rest = rest[count:]
    return got


# --- torch


def over_torch(world: World, torch: Any) -> tuple[float, int]:
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or 0))
    os.environ.update(
        MASTER_ADDR=world.host, MASTER_PORT=str(world.port), RANK=str(world.rank), WORLD_SIZE=str(world.size)
    )
    group = torch.distributed
    group.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(seconds=world.patience_s))
    try:
        return _gathered(world, torch, "cuda" if cuda else "cpu")
    finally:
        group.destroy_process_group()


def _gathered(world: World, torch: Any, device: str) -> tuple[float, int]:
    def block(rank: int) -> Any:
        return ((torch.arange(world.block_bytes, device=device) + rank) % 251).to(torch.uint8)

    def gather() -> list[Any]:
        got = [torch.zeros(world.block_bytes, dtype=torch.uint8, device=device) for _ in range(world.size)]
        torch.distributed.all_gather(got, mine)
        if device == "cuda":
            torch.cuda.synchronize()
        return got

    mine = block(world.rank)
    gather()  # the first one makes the connections
    began = time.monotonic()
    got = gather()
    took = time.monotonic() - began
    for rank, found in enumerate(got):
        if not torch.equal(found, block(rank)):
            raise Failed(f"what rank {rank} sent arrived changed")
    return took, (world.size - 1) * world.block_bytes


# --- the program


def main(argv: list[str] | None = None) -> int:
    answer: dict[str, Any] = {"host": socket.gethostname(), "passed": False, "why": "", "how": ""}
    try:
        asked = _asked(argv)
        code = _run(asked, answer)
    except BadStart as error:
        answer["why"], code = str(error), 2
    print(json.dumps(answer), flush=True)
    return code


def _run(asked: argparse.Namespace, answer: dict[str, Any]) -> int:
    world = _world(asked)
    answer |= {"rank": world.rank, "size": world.size, "bytes": world.block_bytes, "expected_gbps": asked.expect_gbps}
    torch = None if asked.how == "tcp" else _torch(required=asked.how == "torch")
    answer["how"] = "tcp" if torch is None else "nccl" if torch.cuda.is_available() else "gloo"
    try:
        seconds, moved = over_tcp(world) if torch is None else over_torch(world, torch)
        gbps = moved * 8 / max(seconds, 1e-9) / 1e9
        answer |= {"seconds": round(seconds, 6), "gbps": round(gbps, 3)}
        if gbps < ENOUGH * asked.expect_gbps:
            raise Failed(f"{gbps:.2f} Gbit/s, less than {ENOUGH:.0%} of the {asked.expect_gbps:g} that are expected")
    except (Failed, OSError, RuntimeError) as error:  # torch says everything with RuntimeError
        answer["why"] = str(error).partition("\n")[0][:500] or type(error).__name__
        return 1
    answer["passed"] = True
    return 0


def _torch(*, required: bool) -> Any:
    """torch where it is installed and whole; a broken installation is no fault of the network."""
    try:
        import torch
        import torch.distributed
    except (ImportError, OSError) as error:
        if required:
            raise BadStart(f"--how torch: it cannot be imported ({error})") from None
        return None
    if required and not torch.distributed.is_available():
        raise BadStart("--how torch: this build has no torch.distributed")
    return torch if torch.distributed.is_available() else None


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise BadStart(message)


def _asked(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser(description="An all-gather over all processes of a world, checked and timed.")
    parser.add_argument("--rank", default=_variable("RANK", "SLURM_PROCID"))
    parser.add_argument("--size", default=_variable("WORLD_SIZE", "SLURM_NTASKS"))
    parser.add_argument("--master", default=_variable("MASTER_ADDR"), help="host or host:port of rank 0")
    parser.add_argument("--mib", type=float, default=64, help="how much each process sends")
    parser.add_argument("--expect-gbps", type=float, default=float(_variable("ACME_EXPECT_GBPS") or 0))
    parser.add_argument("--patience", type=float, default=60, help="seconds")
    parser.add_argument("--how", choices=["auto", "torch", "tcp"], default="auto")
    return parser.parse_args(argv)


def _variable(*names: str) -> str:
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def _world(asked: argparse.Namespace) -> World:
    host, _, port = asked.master.rpartition(":")
    if not host:
        host, port = asked.master, _variable("MASTER_PORT") or "29517"
    if not host:
        raise BadStart("--master: nobody said where rank 0 is")
    size = _number("--size", asked.size, 2, 1 << 20)
    return World(
        rank=_number("--rank", asked.rank, 0, size - 1),
        size=size,
        host=host,
        port=_number("--master", port, 1, 65535),
        key=_variable("ACME_TEST_KEY").encode(),
        block_bytes=_number("--mib", asked.mib * (1 << 20), 1, MOST_BYTES),
        patience_s=_number("--patience", asked.patience, 1, 3600),
    )


def _number(name: str, value: str | float, least: int, most: int) -> int:
    try:
        number = int(value)
    except (ValueError, OverflowError):
        raise BadStart(f"{name}: {value!r} is not a number") from None
    if not least <= number <= most:
        raise BadStart(f"{name}: {number} is not between {least} and {most}")
    return number


if __name__ == "__main__":
    sys.exit(main())
