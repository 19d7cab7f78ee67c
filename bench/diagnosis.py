"""Accuracy and speed of the diagnosis.

    python bench/diagnosis.py accuracy LABELED.jsonl [--half develop|report] [--seed N] [--misses]
    python bench/diagnosis.py speed [--mb 1000] [--drain-mb 20]     (Drain3 is measured where drain3 is installed)
    python bench/diagnosis.py tail [--jobs 500] [--lines 100] [--seconds 10]

Labeled logs are never part of this repository. A line of the JSONL has `log` and `root_cause`, and optionally
`acceptable`, `cascade` and `evidence_line`. The halves are drawn by the seed within each label, so that one half can be
used for development and the other for the report.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from failures.diagnosis import engine
from failures.diagnosis.labels import LABELS, NONE
from failures.diagnosis.values import FailureCategory, LogDiagnosis

READ_CHUNK_BYTES = 1 << 20
LAST_ERROR = re.compile(r"\b(?:\w+\.)*(\w*Error)\b")
CONFIDENCE_BINS = (0.0, 0.5, 0.7, 0.8, 0.85, 0.9, 0.95, 1.01)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    accuracy = verbs.add_parser("accuracy")
    accuracy.add_argument("path", type=Path)
    accuracy.add_argument("--half", choices=("develop", "report"))
    accuracy.add_argument("--seed", type=int, default=7)
    accuracy.add_argument("--misses", action="store_true")
    speed = verbs.add_parser("speed")
    speed.add_argument("--mb", type=int, default=1000)
    speed.add_argument("--drain-mb", type=int, default=20)
    speed.add_argument("--one", choices=("acme", "compress", "drain3"), help="used by the bench itself")
    speed.add_argument("--file", type=Path)
    tail = verbs.add_parser("tail")
    tail.add_argument("--jobs", type=int, default=500)
    tail.add_argument("--lines", type=int, default=100)
    tail.add_argument("--seconds", type=int, default=10)
    options = parser.parse_args()
    if options.verb == "accuracy":
        print_accuracy(select_half(read_labeled_logs(options.path), options.half, options.seed), options.misses)
    elif options.verb == "tail":
        measure_log_followers(options.jobs, options.lines, options.seconds)
    elif options.one:
        measure_runner(options.one, options.file)
    else:
        compare_speed(options.mb, options.drain_mb)


# -- accuracy ----------------------------------------------------------------------------------------------------------


def read_labeled_logs(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def select_half(rows: list[dict[str, Any]], half: str | None, seed: int) -> list[dict[str, Any]]:
    """Return one half, drawn label by label; the odd log of a label goes to either half."""
    if half is None:
        return rows
    dice, groups = random.Random(seed), defaultdict(list)
    for row in rows:
        groups[row["root_cause"]].append(row)
    picked: list[dict[str, Any]] = []
    for label in sorted(groups):
        group = sorted(groups[label], key=lambda row: str(row.get("id", row["log"])))
        dice.shuffle(group)
        cut = (len(group) + dice.randint(0, 1)) // 2
        picked += group[:cut] if half == "develop" else group[cut:]
    return picked


def last_error_name(log: str) -> str:
    """Return the last word that ends in Error, as a quick look at a log would."""
    errors = LAST_ERROR.findall(log)
    return errors[-1] if errors else NONE


def print_accuracy(rows: list[dict[str, Any]], misses: bool) -> None:
    diagnoses = [engine.diagnose_text(row["log"]) for row in rows]
    truth, predicted = [row["root_cause"] for row in rows], [diagnosis.root_cause for diagnosis in diagnoses]
    cascades = [index for index, row in enumerate(rows) if row.get("cascade")]
    print(f"logs                       {len(rows)}  rules {diagnoses[0].rules_version if diagnoses else '-'}")
    print(f"strict                     {format_share(map(str.__eq__, truth, predicted))}")
    acceptable = [label in acceptable_labels(row) for label, row in zip(predicted, rows, strict=True)]
    print(f"lenient                    {format_share(acceptable)}")
    print(f"macro F1                   {macro_f1(truth, predicted):.3f}")
    print(f"cascades                   {format_share(truth[index] == predicted[index] for index in cascades)}")
    print(f"evidence line hit          {format_share(evidence_hits(rows, diagnoses))}")
    print(f"  as the first line        {format_share(evidence_hits(rows, diagnoses, first=True))}")
    healthy = [label for want, label in zip(truth, predicted, strict=True) if want == NONE]
    print(f"healthy called a failure   {sum(label != NONE for label in healthy)} of {len(healthy)}")
    print(f"infrastructure, user blamed {infrastructure_blamed_on_user(truth, predicted)}")
    print(
        f"naive last ...Error        {format_share(last_error_name(row['log']) == row['root_cause'] for row in rows)}"
    )
    print_calibration(rows, diagnoses)
    print_confusions(truth, predicted)
    if misses:
        print_misses(rows, diagnoses)


def acceptable_labels(row: dict[str, Any]) -> set[str]:
    return {row["root_cause"], *row.get("acceptable", ())}


def format_share(outcomes: Any) -> str:
    outcomes = list(outcomes)
    return f"{sum(outcomes) / len(outcomes):.3f} ({sum(outcomes)} of {len(outcomes)})" if outcomes else "-"


def macro_f1(truth: list[str], predicted: list[str]) -> float:
    """Return the macro F1 over the labels of the truth; a prediction outside them costs recall there."""
    scores = []
    for label in sorted(set(truth)):
        right = sum(want == got == label for want, got in zip(truth, predicted, strict=True))
        scores.append(2 * right / (truth.count(label) + predicted.count(label)))
    return sum(scores) / len(scores) if scores else 0.0


def evidence_hits(rows: list[dict[str, Any]], diagnoses: list[LogDiagnosis], first: bool = False) -> Iterator[bool]:
    for row, diagnosis in zip(rows, diagnoses, strict=True):
        want = str(row.get("evidence_line", "")).strip()
        if want and row["root_cause"] != NONE:
            shown = diagnosis.evidence[:1] if first else diagnosis.evidence
            yield any(
                label.text.strip() and (label.text.strip() in want or want in label.text.strip()) for label in shown
            )


def infrastructure_blamed_on_user(truth: list[str], predicted: list[str]) -> str:
    pairs = [(want, got) for want, got in zip(truth, predicted, strict=True)
             if LABELS[want].category is FailureCategory.INFRASTRUCTURE]  # fmt: skip
    users = (FailureCategory.SCRIPT, FailureCategory.FRAMEWORK)
    return f"{sum(LABELS[got].category in users for _, got in pairs)} of {len(pairs)}"


def print_calibration(rows: list[dict[str, Any]], diagnoses: list[LogDiagnosis]) -> None:
    print("\ncalibration (lenient)    stated   right     n")
    for low, high in itertools.pairwise(CONFIDENCE_BINS):
        inside = [(diagnosis.confidence, diagnosis.root_cause in acceptable_labels(row))
                  for row, diagnosis in zip(rows, diagnoses, strict=True)
                  if low <= diagnosis.confidence < high]  # fmt: skip
        if inside:
            said, right = (sum(column) / len(inside) for column in zip(*inside, strict=True))
            bar = "#" * round(40 * right)
            print(f"  {low:.2f} to {min(high, 1):.2f}            {said:.2f}   {right:.2f}  {len(inside):5d}  {bar}")


def print_confusions(truth: list[str], predicted: list[str]) -> None:
    wrong = Counter((want, got) for want, got in zip(truth, predicted, strict=True) if want != got)
    print("\nconfusions (truth → predicted)")
    for (want, got), count in wrong.most_common():
        print(f"  {count:3d}  {want} → {got}")


def print_misses(rows: list[dict[str, Any]], diagnoses: list[LogDiagnosis]) -> None:
    for row, diagnosis in zip(rows, diagnoses, strict=True):
        if row["root_cause"] != diagnosis.root_cause:
            seen = diagnosis.evidence[0].text[:150] if diagnosis.evidence else "-"
            print(f"\n{row.get('id')}: {row['root_cause']} → {diagnosis.root_cause} {diagnosis.confidence}\n  {seen}")


# -- speed -------------------------------------------------------------------------------------------------------------


def generate_log(size: int, seed: int = 3) -> Iterator[bytes]:
    """Yield the log of 40 ranks with metrics and NCCL output. At the end one GPU fails and the others wait."""
    dice, written, step = random.Random(seed), 0, 0
    pool = [dice.random() for _ in range(4096)]
    while written < size - 20_000:
        step += 1
        block = "".join(_step_line(rank, step, pool[(step * 40 + rank) % 4096]) for rank in range(40)).encode()
        written += len(block)
        yield block
    yield "".join(_failure_lines()).encode()


def _step_line(rank: int, step: int, draw: float) -> str:
    minute, second = divmod(step % 3600, 60)
    stamp = f"2025-03-01 04:{minute:02d}:{second:02d},{int(draw * 1000):03d}"
    if rank % 8 == 0 and step % 50 == 0:
        host = f"heron-{rank // 8}:{900 + rank}:{950 + rank} [{rank % 8}]"
        channel = f"Channel {step % 32:02d}/0 : {rank}[{rank % 8}] -> {rank + 1}[0] via NET/IB/{rank % 4}/GDRDMA"
        return f"{host} NCCL INFO {channel}\n"
    if step % 100 == 0:
        return f"[rank{rank}]: {stamp} [INFO] saved checkpoint shard {rank} of step {step} in {draw * 9:.2f} s\n"
    return (
        f"[rank{rank}]: {stamp} [INFO] iteration {step:8d}/ 500000 | consumed samples: {step * 512} | "
        f"elapsed time per iteration (ms): {900 + draw * 50:.1f} | learning rate: {1.5e-4 * draw:.3E} | "
        f"lm loss: {1.9 + draw:.6E} | grad norm: {draw:.3f} |\n"
    )


def _failure_lines() -> Iterator[str]:
    yield "heron-2 kernel: [88123.123456] NVRM: Xid (PCI:0000:3b:00): 48, pid=917, DBE (double bit error) ECC\n"
    yield "[rank17]: RuntimeError: CUDA error: uncorrectable ECC error\n"
    for rank in range(40):
        if rank != 17:
            yield (
                f"[rank{rank}]:[E ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective operation "
                "timeout: WorkNCCL(SeqNum=88, OpType=ALLREDUCE) ran for 1800345 milliseconds before timing out.\n"
            )
    yield "srun: error: heron-2: task 17: Exited with exit code 1\n"


def compare_speed(size_mb: int, drain_mb: int) -> None:
    """Measure each runner in a separate process, so that its peak memory is its own."""
    folder = Path(tempfile.mkdtemp(prefix="acme-bench-"))
    try:
        whole, part = folder / "whole.log", folder / "part.log"
        for path, size in ((whole, size_mb), (part, drain_mb)):
            with path.open("wb") as out:
                out.writelines(generate_log(size * 1_000_000))
        print(f"{'runner':12s} {'MB':>6s} {'s':>8s} {'MB/s':>8s} {'peak MB':>8s}  answer")
        ours = _run_in_subprocess("acme", whole)
        _run_in_subprocess("compress", whole)
        _time_grep(whole)
        drain = _run_in_subprocess("drain3", part)
        if drain:
            print(f"\nAcme is {ours / drain:.0f} times as fast as Drain3 on the same lines")
    finally:
        shutil.rmtree(folder)


def _run_in_subprocess(name: str, path: Path) -> float:
    options = [sys.executable, __file__, "speed", "--one", name, "--file", str(path)]
    out = subprocess.run(options, capture_output=True, text=True, check=False)
    if out.returncode:
        print(f"{name:12s} not measured: {(out.stderr.strip().splitlines() or ['?'])[-1]}")
        return 0.0
    print(out.stdout.strip())
    return float(out.stdout.split()[3])


def _time_grep(path: Path) -> None:
    began = time.perf_counter()
    subprocess.run(["grep", "-F", "-c", "uncorrectable ECC", str(path)], capture_output=True, check=False)
    _print_speed_row("grep -F", path, time.perf_counter() - began, 0, "one word")


def _print_speed_row(name: str, path: Path, seconds: float, peak: float, diagnosis: str) -> None:
    size = path.stat().st_size / 1e6
    print(f"{name:12s} {size:6.0f} {seconds:8.2f} {size / seconds:8.1f} {peak:8.0f}  {diagnosis}")


def measure_runner(name: str, path: Path) -> None:
    run: Callable[[Path], str] = {"acme": _run_diagnosis, "compress": _run_compressor, "drain3": _run_drain3}[name]
    engine.diagnose_text("")  # compile the rules first, once per process
    began = time.process_time()
    diagnosis = run(path)
    _print_speed_row(
        name, path, time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, diagnosis
    )


def read_chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(READ_CHUNK_BYTES):
            yield piece


def _run_diagnosis(path: Path) -> str:
    diagnosis = engine.diagnose(read_chunks(path))
    return f"{diagnosis.root_cause} line {diagnosis.evidence[0].line} of {diagnosis.lines}"


def _run_compressor(path: Path) -> str:
    from failures.diagnosis import compress

    compressor = compress.LogCompressor()
    for piece in read_chunks(path):
        compressor.feed(piece)
    bundle = compressor.bundle()
    stored = "cause kept" if "uncorrectable ECC" in bundle.text else "CAUSE LOST"
    return f"{path.stat().st_size / max(1, len(bundle.text.encode())):.0f} times smaller, {stored}"


def _run_drain3(path: Path) -> str:
    from drain3 import TemplateMiner
    from drain3.template_miner_config import TemplateMinerConfig

    miner = TemplateMiner(config=TemplateMinerConfig())
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            miner.add_log_message(line)
    return f"{len(miner.drain.clusters)} templates"


# -- tail --------------------------------------------------------------------------------------------------------------


def measure_log_followers(jobs: int, lines: int, seconds: int) -> None:
    """Follow the logs of all jobs with one worker, in virtual seconds; below 1 s of CPU per second it keeps up.

    Between two checks, the state of a job's follower is stored in the database; the cost of storing and restoring it is
    printed per check. A worker checks a job every five minutes, or sooner if much is unread.
    """
    from failures.diagnosis.following import LogFollower, restore_follower

    followers = [LogFollower() for _ in range(jobs)]
    spent, worst = 0.0, 0.0
    for second in range(seconds):
        text = "".join(_step_line(line % 40, second * lines + line, 0.5) for line in range(lines)).encode()
        began = time.process_time()
        for follower in followers:
            follower.feed(text)
        worst = max(worst, time.process_time() - began)
        spent += time.process_time() - began
    began = time.process_time()
    states = [follower.frozen() for follower in followers]
    stored = [state for state in states if state is not None and restore_follower(state) is not None]
    look = (time.process_time() - began) / jobs
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{jobs} jobs x {lines} lines/s: {spent / seconds:.2f} s of CPU per second, worst {worst:.2f}, {peak:.0f} MB")
    print(f"store and restore: {look * 1000:.1f} ms of CPU and {sum(map(len, stored)) / jobs / 1000:.1f} KB per check")


if __name__ == "__main__":
    main()
