"""How often the diagnosis is right, and how fast it reads.

    python bench/diagnosis.py accuracy LABELLED.jsonl [--half develop|report] [--seed N] [--misses]
    python bench/diagnosis.py speed [--mb 1000] [--drain-mb 20]     (Drain3 is measured where drain3 is installed)
    python bench/diagnosis.py tail [--jobs 500] [--lines 100] [--seconds 10]

Labelled logs are never part of this repository. A line of the JSONL has `log`, `root_cause`, and where known
`acceptable`, `cascade` and `evidence_line`. The halves are drawn by the seed within each label, so that one can develop
on the one and report on the other.
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
    words = parser.parse_args()
    if words.verb == "accuracy":
        print_accuracy(select_half(read_labelled_logs(words.path), words.half, words.seed), words.misses)
    elif words.verb == "tail":
        measure_log_followers(words.jobs, words.lines, words.seconds)
    elif words.one:
        measure_runner(words.one, words.file)
    else:
        compare_speed(words.mb, words.drain_mb)


# -- accuracy ----------------------------------------------------------------------------------------------------------


def read_labelled_logs(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def select_half(rows: list[dict[str, Any]], half: str | None, seed: int) -> list[dict[str, Any]]:
    """One half, drawn label by label; labels with an odd count give their odd one to either."""
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
    """What a quick look does: take the last word that ends in Error."""
    found = LAST_ERROR.findall(log)
    return found[-1] if found else NONE


def print_accuracy(rows: list[dict[str, Any]], misses: bool) -> None:
    answers = [engine.diagnose_text(row["log"]) for row in rows]
    truth, told = [row["root_cause"] for row in rows], [answer.root_cause for answer in answers]
    cascades = [index for index, row in enumerate(rows) if row.get("cascade")]
    print(f"logs                       {len(rows)}  rules {answers[0].rules_version if answers else '-'}")
    print(f"strict                     {format_share(map(str.__eq__, truth, told))}")
    acceptable = [one in acceptable_labels(row) for one, row in zip(told, rows, strict=True)]
    print(f"lenient                    {format_share(acceptable)}")
    print(f"macro F1                   {macro_f1(truth, told):.3f}")
    print(f"cascades                   {format_share(truth[index] == told[index] for index in cascades)}")
    print(f"evidence line hit          {format_share(evidence_hits(rows, answers))}")
    print(f"  as the first line        {format_share(evidence_hits(rows, answers, first=True))}")
    healthy = [one for want, one in zip(truth, told, strict=True) if want == NONE]
    print(f"healthy called a failure   {sum(one != NONE for one in healthy)} of {len(healthy)}")
    print(f"infrastructure, user told  {infrastructure_blamed_on_user(truth, told)}")
    print(
        f"naive last ...Error        {format_share(last_error_name(row['log']) == row['root_cause'] for row in rows)}"
    )
    print_calibration(rows, answers)
    print_confusions(truth, told)
    if misses:
        print_misses(rows, answers)


def acceptable_labels(row: dict[str, Any]) -> set[str]:
    return {row["root_cause"], *row.get("acceptable", ())}


def format_share(outcomes: Any) -> str:
    outcomes = list(outcomes)
    return f"{sum(outcomes) / len(outcomes):.3f} ({sum(outcomes)} of {len(outcomes)})" if outcomes else "-"


def macro_f1(truth: list[str], told: list[str]) -> float:
    """Over the labels that occur in the truth; an answer outside them costs recall there."""
    scores = []
    for label in sorted(set(truth)):
        right = sum(want == got == label for want, got in zip(truth, told, strict=True))
        scores.append(2 * right / (truth.count(label) + told.count(label)))
    return sum(scores) / len(scores) if scores else 0.0


def evidence_hits(rows: list[dict[str, Any]], answers: list[LogDiagnosis], first: bool = False) -> Iterator[bool]:
    for row, answer in zip(rows, answers, strict=True):
        want = str(row.get("evidence_line", "")).strip()
        if want and row["root_cause"] != NONE:
            shown = answer.evidence[:1] if first else answer.evidence
            yield any(one.text.strip() and (one.text.strip() in want or want in one.text.strip()) for one in shown)


def infrastructure_blamed_on_user(truth: list[str], told: list[str]) -> str:
    pairs = [(want, got) for want, got in zip(truth, told, strict=True)
             if LABELS[want].category is FailureCategory.INFRASTRUCTURE]  # fmt: skip
    users = (FailureCategory.SCRIPT, FailureCategory.FRAMEWORK)
    return f"{sum(LABELS[got].category in users for _, got in pairs)} of {len(pairs)}"


def print_calibration(rows: list[dict[str, Any]], answers: list[LogDiagnosis]) -> None:
    print("\ncalibration (lenient)      said   right     n")
    for low, high in itertools.pairwise(CONFIDENCE_BINS):
        inside = [(answer.confidence, answer.root_cause in acceptable_labels(row))
                  for row, answer in zip(rows, answers, strict=True)
                  if low <= answer.confidence < high]  # fmt: skip
        if inside:
            said, right = (sum(column) / len(inside) for column in zip(*inside, strict=True))
            bar = "#" * round(40 * right)
            print(f"  {low:.2f} to {min(high, 1):.2f}            {said:.2f}   {right:.2f}  {len(inside):5d}  {bar}")


def print_confusions(truth: list[str], told: list[str]) -> None:
    wrong = Counter((want, got) for want, got in zip(truth, told, strict=True) if want != got)
    print("\nconfusions (truth → told)")
    for (want, got), count in wrong.most_common():
        print(f"  {count:3d}  {want} → {got}")


def print_misses(rows: list[dict[str, Any]], answers: list[LogDiagnosis]) -> None:
    for row, answer in zip(rows, answers, strict=True):
        if row["root_cause"] != answer.root_cause:
            seen = answer.evidence[0].text[:150] if answer.evidence else "-"
            print(f"\n{row.get('id')}: {row['root_cause']} → {answer.root_cause} {answer.confidence}\n  {seen}")


# -- speed -------------------------------------------------------------------------------------------------------------


def generate_log(size: int, seed: int = 3) -> Iterator[bytes]:
    """40 ranks interleaved, metrics and NCCL chatter; in the last lines one GPU fails and all others wait for it."""
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
    """Each runner in a process of its own, so that its peak memory is its own."""
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
            print(f"\nacme is {ours / drain:.0f} times as fast as Drain3 on the same lines")
    finally:
        shutil.rmtree(folder)


def _run_in_subprocess(name: str, path: Path) -> float:
    words = [sys.executable, __file__, "speed", "--one", name, "--file", str(path)]
    out = subprocess.run(words, capture_output=True, text=True, check=False)
    if out.returncode:
        print(f"{name:12s} not measured: {(out.stderr.strip().splitlines() or ['?'])[-1]}")
        return 0.0
    print(out.stdout.strip())
    return float(out.stdout.split()[3])


def _time_grep(path: Path) -> None:
    began = time.perf_counter()
    subprocess.run(["grep", "-F", "-c", "uncorrectable ECC", str(path)], capture_output=True, check=False)
    _print_speed_row("grep -F", path, time.perf_counter() - began, 0, "one word")


def _print_speed_row(name: str, path: Path, seconds: float, peak: float, answer: str) -> None:
    size = path.stat().st_size / 1e6
    print(f"{name:12s} {size:6.0f} {seconds:8.2f} {size / seconds:8.1f} {peak:8.0f}  {answer}")


def measure_runner(name: str, path: Path) -> None:
    run: Callable[[Path], str] = {"acme": _run_diagnosis, "compress": _run_compressor, "drain3": _run_drain3}[name]
    engine.diagnose_text("")  # compiling the rules is once per process, not per log
    began = time.process_time()
    answer = run(path)
    _print_speed_row(
        name, path, time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, answer
    )


def read_chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(READ_CHUNK_BYTES):
            yield piece


def _run_diagnosis(path: Path) -> str:
    answer = engine.diagnose(read_chunks(path))
    return f"{answer.root_cause} line {answer.evidence[0].line} of {answer.lines}"


def _run_compressor(path: Path) -> str:
    from failures.diagnosis import compress

    compressor = compress.LogCompressor()
    for piece in read_chunks(path):
        compressor.feed(piece)
    bundle = compressor.bundle()
    kept = "cause kept" if "uncorrectable ECC" in bundle.text else "CAUSE LOST"
    return f"{path.stat().st_size / max(1, len(bundle.text.encode())):.0f} times smaller, {kept}"


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
    """Each virtual second every job writes its lines and one worker follows them all; under 1 s each, it keeps up.

    Between two looks a job's follower lies frozen in the database: what setting it down and taking it up costs is told
    for one look. A worker looks at a job every five minutes, or sooner when much is unread.
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
    kept = [state for state in states if state is not None and restore_follower(state) is not None]
    look = (time.process_time() - began) / jobs
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{jobs} jobs x {lines} lines/s: {spent / seconds:.2f} s of CPU per second, worst {worst:.2f}, {peak:.0f} MB")
    print(f"set down and taken up: {look * 1000:.1f} ms of CPU and {sum(map(len, kept)) / jobs / 1000:.1f} KB a look")


if __name__ == "__main__":
    main()
