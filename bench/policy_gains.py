"""Gains of policies next to the claims of their papers:  python bench/policy_gains.py PHILLY [OPENB] [--json FILE]

PHILLY is the week of bench/simulator.py, OPENB the pods of Alibaba's openb 2023 (normalized alike). Each row shows how
many times shorter the mean completion is than under strict FIFO on the same input in the same run. The gain depends on
queues: the same week is replayed on fewer and fewer nodes, because a policy can only shorten existing waits.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from jobs.traces.files import read_trace
from scheduling.whatif.replay import acme_trace, report
from scheduling.whatif.replay.run import ReplaySetting, run_policy

# policy: the paper's claim against its baseline
PAPER_CLAIMS = {
    "sjf": "2.5x on Philly, two months, per virtual cluster (Helios' notebook)",
    "srtf": "2.8x on Philly, two months, per virtual cluster (Helios' notebook)",
    "qssf": "2.3x on Philly, up to 6.5x on Helios (SC'21)",
    "tiresias": "up to 5.5x against YARN-CS (NSDI'19)",
    "easy": "",
}


def replay_summary(history, policy, setting):
    return report.summary(run_policy(history, policy, setting), wall_s=1, peak_rss_mb=0)


def policy_speedups(title, history, setting, policies=tuple(PAPER_CLAIMS)):
    base = replay_summary(history, "fifo", setting)
    fifo, waits = base["jct_s"]["mean"], base["queue_s"]["mean"]
    row = {"input": title, "fifo_jct_s": fifo, "fifo_queue_s": waits}
    for policy in policies:
        row[policy] = fifo / replay_summary(history, policy, setting)["jct_s"]["mean"]
    print(f"{title:<34}{fifo:>12,.0f}{waits:>12,.0f}" + "".join(f"{row[policy]:>9.2f}x" for policy in policies))
    return row


def compare_policies(week):
    print("mean completion under FIFO over that under the policy")
    print(f"{'input':<34}{'fifo jct s':>12}{'queue s':>12}" + "".join(f"{policy:>10}" for policy in PAPER_CLAIMS))
    rows = [
        policy_speedups(f"Philly week, {nodes} nodes", week, ReplaySetting(nodes=nodes)) for nodes in (80, 64, 48, 40)
    ]
    seren = acme_trace.draw_trace(acme_trace.PUBLISHED_CLUSTERS["seren"], "seren", jobs=100_000, seed=1)
    rows += [
        policy_speedups(f"Seren drawn, {nodes} nodes", seren, ReplaySetting(nodes=nodes)) for nodes in (286, 200, 160)
    ]
    for policy, claim in PAPER_CLAIMS.items():
        if claim:
            print(f"  {policy}: the paper claims {claim}")
    return rows


def compare_cpu_sharing(pods):
    """Compare CPUs as a hard limit, as in most schedulers, with CPUs returned by Synergy-Tune; both with the same jobs.

    An upper bound for Tune: jobs do not run slower here on fewer CPUs, because no trace says how much slower.
    """
    print("\nCPUs beside GPUs (Synergy, OSDI'22: up to 3.4x), openb pods with GPUs, nodes of 8 GPUs and 48 CPUs")
    with_gpus = pods.rows(((pods.gpus > 0) & (pods.cpus <= 48)).nonzero()[0])
    rows = []
    for nodes in (10, 8, 7):
        hard = ReplaySetting(nodes=nodes, cpus_per_node=48)
        one, other = (
            replay_summary(with_gpus, "fifo", replace(hard, placement=name)) for name in ("consolidate", "tune")
        )
        before, after = one["jct_s"]["mean"], other["jct_s"]["mean"]
        rows.append({"nodes": nodes, "hard_jct_s": before, "tune_jct_s": after})
        print(f"{nodes:>3} nodes: CPUs hard {before:>10,.0f} s   tune {after:>10,.0f} s   {before / after:.2f}x")
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("philly")
    parser.add_argument("openb", nargs="?")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    figures = {"ordering": compare_policies(read_trace(options.philly))}
    if options.openb:
        figures["synergy"] = compare_cpu_sharing(read_trace(options.openb))
    if options.json:
        Path(options.json).write_text(json.dumps(figures, indent=2) + "\n")
