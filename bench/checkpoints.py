"""What a save costs a training, torch.save and AsyncCheckpointer:  python bench/checkpoints.py [--mb N] [--json F]

A model of the given size on the best device (a GPU, else the CPU) trains in steps of matrix products. At regular steps
it is saved, by torch.save as in most loops (written, synced, renamed) and by AsyncCheckpointer. Both run in one
process, alternating, on one disk. The stall is the time until `save` returns. What training loses while a background
writer shares the machine is the difference of the total run times. Needs torch.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "client"))
if os.environ.get("TORCH_AT"):
    sys.path.append(os.environ["TORCH_AT"])

import torch
import torch.distributed as dist
from acme_client.checkpointing import AsyncCheckpointer

LAYERS = 16


def make_state(megabytes, device):
    side = int((megabytes * 1e6 / 4 / LAYERS) ** 0.5)
    return {f"layer {n}": torch.randn(side, side, device=device) for n in range(LAYERS)}


def train(state, device):
    """Run one step, which reads and changes the whole state."""
    some = torch.randn(16, state["layer 0"].shape[0], device=device)
    for weights in state.values():
        some = torch.tanh(some @ weights)
        weights.mul_(0.999)
    if device != "cpu":
        torch.accelerator.synchronize()


def torch_saver(home):
    def save_with_torch(state, step):
        began = time.perf_counter()
        path = home / f"step_{step}.pt"
        with open(path.with_suffix(".new"), "wb") as file:
            torch.save(state, file)
            os.fsync(file.fileno())
        path.with_suffix(".new").rename(path)
        (home / f"step_{step - 2}.pt").unlink(missing_ok=True)
        return time.perf_counter() - began

    return save_with_torch


def measure_saves(save, state, device, saves, steps):
    stalls, began = [], time.perf_counter()
    for number in range(saves):
        for _ in range(steps):
            train(state, device)
        if save:
            stalls.append(save(state, number))
    return stalls, time.perf_counter() - began


def compare_savers(megabytes, saves, steps, rounds):
    device = str(torch.accelerator.current_accelerator()) if torch.accelerator.is_available() else "cpu"
    state = make_state(megabytes, device)
    rows = {"torch.save": ([], []), "AsyncCheckpointer": ([], []), "no save": ([], [])}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_AT")) as home:
            (Path(home) / "plain").mkdir()
            with AsyncCheckpointer(Path(home) / "async") as saving:
                saving.save(state, 10_000_000)  # allocates its buffers, like the first save of a run
                saving.wait()
                ways = {
                    "no save": None,
                    "torch.save": torch_saver(Path(home) / "plain"),
                    "AsyncCheckpointer": saving.save,
                }
                for name, save in ways.items():
                    stalls, whole = measure_saves(save, state, device, saves, steps)
                    rows[name][0].extend(stalls)
                    rows[name][1].append(whole)
    return device, [saver_summary(name, *row) for name, row in rows.items()]


def saver_summary(name, stalls, wholes):
    return {
        "way": name,
        "stall_s": {"p50": statistics.median(stalls), "max": max(stalls)} if stalls else {"p50": 0.0, "max": 0.0},
        "run_s": statistics.median(wholes),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=100)
    parser.add_argument("--saves", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10, help="number of steps between two saves")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    if not torch.accelerator.is_available():
        torch.set_num_threads(1)  # a trainer on a GPU leaves the CPU free; on the CPU it must be limited
    with tempfile.TemporaryDirectory() as meeting:  # one rank, so that a process writes as for many
        dist.init_process_group("gloo", init_method=f"file://{meeting}/meet", rank=0, world_size=1)
        device, rows = compare_savers(options.mb, options.saves, options.steps, options.rounds)
        dist.destroy_process_group()
    plain, ours = (next(row for row in rows if row["way"] == way) for way in ("torch.save", "AsyncCheckpointer"))
    ratio = plain["stall_s"]["p50"] / ours["stall_s"]["p50"]
    machine = f"{platform.machine()}, {os.cpu_count()} CPUs, torch {torch.__version__} on {device}"
    print(f"{options.mb} MB, {options.saves} saves of {options.steps} steps, {options.rounds} rounds; {machine}")
    for row in rows:
        stall = row["stall_s"]
        print(f"{row['way']:20} stall p50 {stall['p50']:8.3f} s  max {stall['max']:8.3f} s   run {row['run_s']:8.2f} s")
    print(f"The stall is {ratio:.1f} times shorter.")
    if options.json:
        document = {"machine": machine, "mb": options.mb, "device": device, "rows": rows, "stall_ratio": ratio}
        Path(options.json).write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
