"""Published schedulers in our engine, compared with the figures of their authors.

    python bench/zoo.py ARTEFACTS [--only FGD] [--json]

ARTEFACTS is a directory with bare clones of the authors' repositories, each in a directory whose path contains the
name of the repository. Prints one row per system: the workload, the metric, their figure, ours, and why the two differ
if they do by more than 5 %. With --json the rows go to stdout as a list of objects. Exits with 1 if a difference of
more than 5 % has no explanation.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path

# The arrays here are small. With several threads, BLAS makes fits of step times 25 times slower
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.zoo_systems import chronus, elasticflow, fgd, gavel, lucid, pollux, shockwave, sia
from bench.zoo_systems.artefacts import ArtefactMissing, Row

SYSTEMS = {
    "FGD": fgd.compare,
    "Gavel": gavel.compare,
    "Chronus": chronus.compare,
    "Pollux": pollux.compare,
    "Shockwave": shockwave.compare,
    "Sia": sia.compare,
    "Lucid": lucid.compare,
    "ElasticFlow": elasticflow.compare,
}
MAX_DIFFERENCE = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artefacts", type=Path)
    parser.add_argument("--only", choices=SYSTEMS, action="append", help="May be given several times.")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    machine = f"{os.cpu_count()} cores, {platform.python_implementation()} {platform.python_version()}"
    print(f"{machine}, load average {os.getloadavg()[0]:.1f}", file=sys.stderr)
    try:
        rows = [row for name in options.only or SYSTEMS for row in SYSTEMS[name](options.artefacts)]
    except ArtefactMissing as missing:
        sys.exit(str(missing))
    print_table(rows)
    if options.json:
        print(json.dumps([row.as_json() for row in rows], indent=1))
    sys.exit(any(not row.why and abs(row.difference) > MAX_DIFFERENCE for row in rows))


def print_table(rows: list[Row]) -> None:
    for row in rows:
        figures = f"theirs {row.theirs:10.2f}  ours {row.ours:10.2f}  {row.difference:+.1%}"
        print(f"{row.system:14} {row.workload:34} {row.metric:30} {figures}  {row.why}", file=sys.stderr)


if __name__ == "__main__":
    main()
