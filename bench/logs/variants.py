"""How often the diagnosis changes its answer if a log changes but its meaning does not.

    python bench/logs/variants.py LABELED.jsonl... [--leave-out]

Each log with a right diagnosis is diagnosed again with the prefixes of launchers and collectors, between the lines of
other ranks, before and after launcher output, and cut to the evidence. A diagnosis that is then neither the label nor
another acceptable one is a flip: it is counted, and listed below the table. With `--leave-out` each log is diagnosed
without the signature that decided: this estimates the result for a wording that no signature matches exactly. Nothing
here is random. Labeled logs are never part of this repository; `bench/diagnosis.py` describes their format.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.diagnosis import acceptable_labels, read_labeled_logs
from failures.diagnosis.engine import diagnose_text
from failures.diagnosis.labels import LABELS, NONE, UNKNOWN
from failures.diagnosis.scan import Scanner, shipped_scanner
from failures.diagnosis.values import FailureCategory, SignatureTrait

LabelledLog = dict[str, Any]
LogLines = list[str]
LogVariant = Callable[[LabelledLog, LogLines], LogLines | None]  # None if the change would alter the meaning

LINE_PREFIXES = {
    "srun --label": "3: ",
    "elastic": "[default3]:",
    "rank": "[rank5]: ",
    "local rank": "[local_rank 3] ",
    "mpirun": "[1,3]<stderr>:",
    "SageMaker": "[1,mpirank:3,algo-1]<stderr>:",
    "Ray": "(RayTrainWorker pid=4312, ip=10.1.2.3) ",
    "vLLM": "(EngineCore_0 pid=128) ERROR 03-16 08:31:22 [core.py:1090] ",
    "pdsh": "tern-3: ",
    "a host": "tern-3.cluster.invalid: ",
    "compose": "trainer-1  | ",
    "container": "2025-03-01T04:00:12.123456789Z stderr F ",
    "kubectl --prefix": "[pod/run9-worker-3/trainer] ",
    "stern": "run9-worker-3 trainer ",
    "journal": "Mar 01 04:00:12 tern-3 python3[4242]: ",
    "time": "[2025-03-01 04:00:12,345] ",
    "loguru": "2025-03-01 04:00:12.345 | ERROR    | __main__:main:88 - ",
    "Metaflow": "2025-03-01 04:00:12.977 [177/train/578 (pid 28936)] ",
    "a log service": "1740801612345 ",
    "a process": "(4242) ",
    "indented": "    ",
    "quoted": "> ",
}
TRAINING_LINES = [
    "lib/x.py:8: FutureWarning: tern is deprecated, please use heron instead.",
    "tern-3:42:42 [0] NCCL INFO NET/Plugin: No plugin found (libnccl-net.so)",
    "tern-3:42:90 [0] NCCL INFO comm 0x55d0 rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 7000 - Init COMPLETE",
    *(f" iteration {step}/ 5000 | lm loss: 2.{step} | grad norm: 0.31 | loss scale: 1.0 |" for step in range(100, 130)),
]
ELASTIC_ERROR_LINES = [
    "W0301 04:00:12.345000 88 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 91 closing signal",
    "E0301 04:00:13.345000 88 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 3",
    "Traceback (most recent call last):",
    '  File "torch/distributed/launcher/api.py", line 269, in launch_agent',
    "    raise ChildFailedError(",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
]
SRUN_ERROR_LINES = [
    "srun: error: tern-3: task 3: Exited with exit code 1",
    "srun: Terminating StepId=7003.0",
    "slurmstepd: error: *** STEP 7003.0 ON tern-3 CANCELLED AT 2025-03-01T04:00:12 ***",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", type=Path, nargs="+", metavar="LABELED.jsonl")
    parser.add_argument("--leave-out", action="store_true", help="diagnose each log without the signature that decided")
    options = parser.parse_args()
    rows = [row for path in options.paths for row in read_labeled_logs(path)]
    right = [row for row in rows if diagnose_text(row["log"]).root_cause in acceptable_labels(row)]
    print(f"{len(rows)} logs, {len(right)} of them right without changes")
    if options.leave_out:
        print_leave_one_out(right)
        return
    flips = [flip for name, change in log_variants().items() for flip in find_flips(name, change, right)]
    print(f"{len(flips)} flips")
    for name, row, predicted in flips:
        print(f"  {name}: {row.get('id', '?')} {row['root_cause']} → {predicted}")


def find_flips(name: str, change: LogVariant, rows: list[LabelledLog]) -> list[tuple[str, LabelledLog, str]]:
    changed = [(row, lines) for row in rows if (lines := change(row, row["log"].split("\n"))) is not None]
    predicted = [(name, row, diagnose_text("\n".join(lines)).root_cause) for row, lines in changed]
    flips = [flip for flip in predicted if flip[2] not in acceptable_labels(flip[1])]
    print(f"  {name:18s} {len(changed):5d}  flips {len(flips)}", flush=True)
    return flips


class ReducedScanner(Scanner):
    """The shipped scanner without one of its signatures; nothing is compiled again."""

    def __init__(self, name: str) -> None:
        shipped = shipped_scanner()
        self.signatures, self.version, self._known = shipped.signatures, shipped.version, shipped
        self._left_out = {index for index, row in enumerate(shipped.signatures) if row.name == name}

    def hits(self, block: bytes) -> list[tuple[int, int]]:
        return [hit for hit in self._known.hits(block) if hit[1] not in self._left_out]


def print_leave_one_out(rows: list[LabelledLog]) -> None:
    """Remove the deciding signature. Names of exceptions, GPU codes and hints stay: an unknown wording has them too."""
    named = {
        row.name
        for row in shipped_scanner().signatures
        if not {SignatureTrait.EXCEPTION, SignatureTrait.HEALTH_CODE} & set(row.traits) and "hint-" not in row.name
    }
    decided = [(row, answer.evidence[0].signature) for row in rows if (answer := diagnose_text(row["log"])).evidence]
    predicted = [
        (row, name, diagnose_text(row["log"], scanner=ReducedScanner(name)).root_cause)
        for row, name in decided
        if name in named
    ]
    lost = [one for one in predicted if one[2] not in acceptable_labels(one[0])]
    silent = sum(other in (NONE, UNKNOWN) for _, _, other in lost)
    blamed = sum(_is_infrastructure_label(row["root_cause"]) and _is_user_label(other) for row, _, other in lost)
    print(
        f"{len(predicted)} depend on a signature; without it {len(predicted) - len(lost)} stay right, {silent} unknown"
    )
    print(f"{blamed} infrastructure failures are blamed on the user")
    for row, name, other in sorted(lost, key=lambda one: (one[1], str(one[0].get("id")))):
        print(f"  {name}: {row.get('id', '?')} {row['root_cause']} → {other}")


def _is_infrastructure_label(label: str) -> bool:
    return LABELS[label].category is FailureCategory.INFRASTRUCTURE


def _is_user_label(label: str) -> bool:
    return LABELS[label].category in (FailureCategory.SCRIPT, FailureCategory.FRAMEWORK)


def log_variants() -> dict[str, LogVariant]:
    behind: dict[str, LogVariant] = {name: _prefix_lines(prefix) for name, prefix in LINE_PREFIXES.items()}
    return behind | {
        "JSON lines": lambda row, lines: [json.dumps({"log": line + "\n", "stream": "stderr"}) for line in lines],
        "two ranks mixed": lambda row, lines: [f"[rank{rank}]: {line}" for line in lines for rank in (0, 1)],
        "two ranks in turn": lambda row, lines: [f"[rank{rank}]: {line}" for rank in (0, 1) for line in lines],
        "CRLF": lambda row, lines: [line + "\r" for line in lines],
        "colored": lambda row, lines: [f"\x1b[31m{line}\x1b[0m" for line in lines],
        "after work": lambda row, lines: TRAINING_LINES + lines,
        "launcher's end": lambda row, lines: lines + ELASTIC_ERROR_LINES if _has_own_failure(row) else None,
        "Slurm's end": lambda row, lines: lines + SRUN_ERROR_LINES if _has_own_failure(row) else None,
        "ends at evidence": lambda row, lines: _cut_at_evidence(row, lines, lambda at: slice(0, at + 1)),
        "begins at evidence": lambda row, lines: _cut_at_evidence(row, lines, lambda at: slice(at, None)),
    }


def _prefix_lines(prefix: str) -> LogVariant:
    return lambda row, lines: [prefix + line for line in lines]


def _has_own_failure(row: LabelledLog) -> bool:
    return row["root_cause"] not in (NONE, UNKNOWN, "Preempted/TimeLimit")


def _cut_at_evidence(row: LabelledLog, lines: LogLines, where: Callable[[int], slice]) -> LogLines | None:
    evidence = str(row.get("evidence_line", "")).strip()
    bare = [line.strip() for line in lines]
    return lines[where(bare.index(evidence))] if _has_own_failure(row) and evidence in bare else None


if __name__ == "__main__":
    main()
