"""Tests whether nodes can communicate: an all-gather over all processes of a group, checked byte by byte and timed.

One process per node (or per GPU, under torchrun) runs this file; it uses only Python's standard library. If torch is
installed, torch.distributed exchanges the data, with NCCL on GPUs and gloo on CPUs; otherwise plain TCP does, through
the process of rank 0. Prints one line of JSON. Exit code 0: passed; 1: failed; 2: invalid arguments.

The rank, the number of processes and the address of rank 0 come from the arguments, from torchrun's variables or from
Slurm's. All processes need the same ACME_TEST_KEY, so that no other program on the port is taken for a peer.
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

MAX_BLOCK_BYTES = 16 << 30
PIECE_BYTES = 1 << 20
GREETING_TIMEOUT_S = 5  # limits how long a connection that sends nothing delays the test
MIN_BANDWIDTH_RATIO = 0.5  # of the expected bandwidth


class AllGatherFailed(Exception):
    """The message is the `why` of the result."""


class InvalidArguments(Exception):
    """The message names the argument."""


@dataclass(frozen=True, kw_only=True)
class AllGatherGroup:
    rank: int
    size: int
    host: str
    port: int
    key: bytes
    block_bytes: int  # what each process sends
    patience_s: float

    def mine(self, rank: int) -> Iterator[bytes]:
        """The data that a rank sends, in pieces that differ, so that a lost or repeated piece is detected."""
        block = random.Random(rank).randbytes(PIECE_BYTES)
        for at in range(0, self.block_bytes, PIECE_BYTES):
            piece = at.to_bytes(8, "big") + block[8:]
            yield piece[: self.block_bytes - at]


# --- plain TCP


def all_gather_over_tcp(world: AllGatherGroup) -> tuple[float, int]:
    """The seconds taken, and the bytes that went through this process."""
    with ExitStack() as closing:
        if world.rank == 0:
            return _run_hub(world, closing)
        return _run_spoke(world, closing)


def _run_hub(world: AllGatherGroup, closing: ExitStack) -> tuple[float, int]:
    """Receive every peer's data and send each peer the data of all others."""
    deadline = time.monotonic() + world.patience_s
    server = closing.enter_context(socket.create_server(("", world.port)))
    peers: dict[int, socket.socket] = {}
    while len(peers) < world.size - 1:
        server.settimeout(
            _remaining_s(deadline, f"{world.size - 1 - len(peers)} of {world.size - 1} peers did not connect")
        )
        try:
            connection, _ = server.accept()
        except TimeoutError:
            continue  # _remaining_s reports the missing peers once the time is over
        closing.enter_context(connection)
        rank = _authenticate_peer(world, connection)
        connection.settimeout(world.patience_s)
        if rank is not None and rank not in peers:
            peers[rank] = connection
    for peer in peers.values():
        peer.sendall(b"go")
    began = time.monotonic()
    for rank, peer in sorted(peers.items()):
        _receive_payload(world, peer, rank)
    for rank, peer in sorted(peers.items()):
        for other in range(world.size):
            if other != rank:
                _send_payload(world, peer, other)
    return _confirm_delivery(world, began, [*peers.values()], moved=world.size * (world.size - 1) * world.block_bytes)


def _run_spoke(world: AllGatherGroup, closing: ExitStack) -> tuple[float, int]:
    hub = closing.enter_context(_connect_to_hub(world))
    hub.settimeout(world.patience_s)
    hub.sendall(_peer_greeting(world, world.rank))
    if _receive_exactly(hub, 2) != b"go":
        raise AllGatherFailed("rank 0 did not answer as a peer of this test")
    began = time.monotonic()
    _send_payload(world, hub, world.rank)
    for other in range(world.size):
        if other != world.rank:
            _receive_payload(world, hub, other)
    hub.sendall(b"ok")
    return time.monotonic() - began, world.size * world.block_bytes


def _confirm_delivery(world: AllGatherGroup, began: float, peers: list[socket.socket], moved: int) -> tuple[float, int]:
    """The result, once all peers have confirmed that they received everything."""
    if any(_receive_exactly(peer, 2) != b"ok" for peer in peers):
        raise AllGatherFailed("a peer did not confirm the data that it received")
    return time.monotonic() - began, moved


def _connect_to_hub(world: AllGatherGroup) -> socket.socket:
    """Connect to rank 0, which may start later than this process."""
    deadline = time.monotonic() + world.patience_s
    while True:
        remaining = _remaining_s(deadline, f"rank 0 at {world.host}:{world.port} cannot be reached")
        try:
            return socket.create_connection((world.host, world.port), remaining)
        except OSError:
            time.sleep(min(0.05, remaining))


def _remaining_s(deadline: float, why: str) -> float:
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise AllGatherFailed(why)
    return remaining


def _peer_greeting(world: AllGatherGroup, rank: int) -> bytes:
    return hashlib.sha256(world.key + b"|%d|%d" % (rank, world.size)).digest() + rank.to_bytes(4, "big")


def _authenticate_peer(world: AllGatherGroup, connection: socket.socket) -> int | None:
    """The peer's rank; None if the connection is not from a peer of this test."""
    connection.settimeout(min(GREETING_TIMEOUT_S, world.patience_s))
    try:
        greeting = _receive_exactly(connection, 36)
    except (AllGatherFailed, OSError):
        return None
    rank = int.from_bytes(greeting[32:], "big")
    return rank if 0 < rank < world.size and greeting == _peer_greeting(world, rank) else None


def _send_payload(world: AllGatherGroup, to: socket.socket, rank: int) -> None:
    for piece in world.mine(rank):
        to.sendall(piece)


def _receive_payload(world: AllGatherGroup, peer: socket.socket, rank: int) -> None:
    for number, piece in enumerate(world.mine(rank)):
        if _receive_exactly(peer, len(piece)) != piece:
            raise AllGatherFailed(f"the data of rank {rank} arrived changed, in MiB {number}")


def _receive_exactly(peer: socket.socket, size: int) -> bytearray:
    received = bytearray(size)
    unfilled = memoryview(received)
    while unfilled:
        count = peer.recv_into(unfilled)
        if not count:
            raise AllGatherFailed("a peer closed the connection")
        unfilled = unfilled[count:]
    return received


# --- torch


def all_gather_over_torch(world: AllGatherGroup, torch: Any) -> tuple[float, int]:
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or 0))
    os.environ.update(
        MASTER_ADDR=world.host, MASTER_PORT=str(world.port), RANK=str(world.rank), WORLD_SIZE=str(world.size)
    )
    group = torch.distributed
    group.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(seconds=world.patience_s))
    try:
        return _timed_all_gather(world, torch, "cuda" if cuda else "cpu")
    finally:
        group.destroy_process_group()


def _timed_all_gather(world: AllGatherGroup, torch: Any, device: str) -> tuple[float, int]:
    def rank_block(rank: int) -> Any:
        return ((torch.arange(world.block_bytes, device=device) + rank) % 251).to(torch.uint8)

    def run_all_gather() -> list[Any]:
        got = [torch.zeros(world.block_bytes, dtype=torch.uint8, device=device) for _ in range(world.size)]
        torch.distributed.all_gather(got, mine)
        if device == "cuda":
            torch.cuda.synchronize()
        return got

    mine = rank_block(world.rank)
    run_all_gather()  # the first run opens the connections
    began = time.monotonic()
    got = run_all_gather()
    took = time.monotonic() - began
    for rank, found in enumerate(got):
        if not torch.equal(found, rank_block(rank)):
            raise AllGatherFailed(f"the data of rank {rank} arrived changed")
    return took, (world.size - 1) * world.block_bytes


# --- the program


def main(argv: list[str] | None = None) -> int:
    result: dict[str, Any] = {"host": socket.gethostname(), "passed": False, "why": "", "how": ""}
    try:
        arguments = _parse_arguments(argv)
        code = _run_test(arguments, result)
    except InvalidArguments as error:
        result["why"], code = str(error), 2
    print(json.dumps(result), flush=True)
    return code


def _run_test(args: argparse.Namespace, result: dict[str, Any]) -> int:
    world = _group_from_arguments(args)
    result |= {"rank": world.rank, "size": world.size, "bytes": world.block_bytes, "expected_gbps": args.expect_gbps}
    torch = None if args.how == "tcp" else _import_torch(required=args.how == "torch")
    result["how"] = "tcp" if torch is None else "nccl" if torch.cuda.is_available() else "gloo"
    try:
        seconds, moved = all_gather_over_tcp(world) if torch is None else all_gather_over_torch(world, torch)
        gbps = moved * 8 / max(seconds, 1e-9) / 1e9
        result |= {"seconds": round(seconds, 6), "gbps": round(gbps, 3)}
        if gbps < MIN_BANDWIDTH_RATIO * args.expect_gbps:
            raise AllGatherFailed(
                f"{gbps:.2f} Gbit/s, less than {MIN_BANDWIDTH_RATIO:.0%} of the expected {args.expect_gbps:g}"
            )
    except (AllGatherFailed, OSError, RuntimeError) as error:  # torch reports most failures as RuntimeError
        result["why"] = str(error).partition("\n")[0][:500] or type(error).__name__
        return 1
    result["passed"] = True
    return 0


def _import_torch(*, required: bool) -> Any:
    """torch if it is installed and works; a broken installation is not a network fault."""
    try:
        import torch
        import torch.distributed
    except (ImportError, OSError) as error:
        if required:
            raise InvalidArguments(f"--how torch: torch cannot be imported ({error})") from None
        return None
    if required and not torch.distributed.is_available():
        raise InvalidArguments("--how torch: this build has no torch.distributed")
    return torch if torch.distributed.is_available() else None


class RaisingArgumentParser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise InvalidArguments(message)


def _parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = RaisingArgumentParser(description="Run an all-gather over all processes of a group, check it and time it.")
    parser.add_argument("--rank", default=_environment_value("RANK", "SLURM_PROCID"))
    parser.add_argument("--size", default=_environment_value("WORLD_SIZE", "SLURM_NTASKS"))
    parser.add_argument("--master", default=_environment_value("MASTER_ADDR"), help="host or host:port of rank 0")
    parser.add_argument("--mib", type=float, default=64, help="MiB that each process sends")
    parser.add_argument("--expect-gbps", type=float, default=float(_environment_value("ACME_EXPECT_GBPS") or 0))
    parser.add_argument("--patience", type=float, default=60, help="timeout in seconds")
    parser.add_argument("--how", choices=["auto", "torch", "tcp"], default="auto")
    return parser.parse_args(argv)


def _environment_value(*names: str) -> str:
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def _group_from_arguments(arguments: argparse.Namespace) -> AllGatherGroup:
    host, _, port = arguments.master.rpartition(":")
    if not host:
        host, port = arguments.master, _environment_value("MASTER_PORT") or "29517"
    if not host:
        raise InvalidArguments("--master: the address of rank 0 is missing")
    size = _integer_in_range("--size", arguments.size, 2, 1 << 20)
    return AllGatherGroup(
        rank=_integer_in_range("--rank", arguments.rank, 0, size - 1),
        size=size,
        host=host,
        port=_integer_in_range("--master", port, 1, 65535),
        key=_environment_value("ACME_TEST_KEY").encode(),
        block_bytes=_integer_in_range("--mib", arguments.mib * (1 << 20), 1, MAX_BLOCK_BYTES),
        patience_s=_integer_in_range("--patience", arguments.patience, 1, 3600),
    )


def _integer_in_range(name: str, value: str | float, least: int, most: int) -> int:
    try:
        number = int(value)
    except (ValueError, OverflowError):
        raise InvalidArguments(f"{name}: {value!r} is not a number") from None
    if not least <= number <= most:
        raise InvalidArguments(f"{name}: {number} is not between {least} and {most}")
    return number


if __name__ == "__main__":
    sys.exit(main())
