"""Detection of slow steps, and false alarms:  python bench/detectors.py [--series N] [--seed S] [--json FILE]

Series are generated: each step has a batch of packed sequences of log-normal lengths and takes
alpha x tokens + beta x sum of squared lengths, with noise. The lengths change with the data, in stretches of some
hundred steps; the machine drifts by up to 8 %; about every sixtieth step pauses for 2 to 20 times its length (a save,
garbage collection). Half of the series become slower by 1.2 to 3 times at some step and stay slow; the others are
healthy. A finding before that step, or in a healthy series, is false; a slow series without a later finding is missed.
The table compares the same predictor with tokens only and without input, and a detector that needs no input: Bayesian
online change-point detection (Adams and MacKay) on the same step times, where each change is checked for more than 10 %
over the time before, as in fail-slow detectors. A second table is for jobs whose batches are all alike.

Hangs are searched in generated logs of jobs that report nothing: steps of half a second to a minute, written line by
line or in blocks of 4 or 8 KiB as a pipe is flushed; announced saves and evaluations, unannounced pauses, noise. Half
of the jobs hang at some moment; half of those then print complaints. The log is checked every 15 s, as in the loop; a
finding while the job still makes steps is false.

The last figure is the cost of such a check if a log has grown by 1,500 lines, every tenth a step: 100 lines per second.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from failures.detection import training_output
from failures.detection.slow_steps import SlowStepDetector, StepTiming
from failures.detection.step_cadence import CadenceState, detect_silence, update_cadence
from jobs.logs.job_log import decode_log_text

STEPS, ONSET_RANGE = 700, (200, 500)
SLOWDOWN_FACTORS = (1.2, 1.3, 1.5, 2.0, 3.0)
ALPHA, BETA = 8e-6, 6e-10


def packed_batches(dice, steps):
    """Return tokens and squares of each step: 64 sequences, whose lengths change with the data."""
    tokens, squares = np.empty(steps), np.empty(steps)
    at = 0
    while at < steps:
        stretch = int(dice.integers(60, 250))
        middle, width = dice.uniform(6.6, 8.4), dice.uniform(0.3, 0.9)
        for step in range(at, min(steps, at + stretch)):
            lengths = np.minimum(dice.lognormal(middle, width, 64), 32768)
            tokens[step], squares[step] = lengths.sum(), (lengths**2).sum()
        at += stretch
    return tokens, squares


def uniform_batches(steps):
    """Return batches of 64 sequences of one length, as with packing to a fixed length."""
    return np.full(steps, 64 * 2048.0), np.full(steps, 64 * 2048.0**2)


def generate_series(dice, factor, steps=STEPS, packed=True):
    """Return the steps, and the number of the first slow one (None: healthy)."""
    tokens, squares = packed_batches(dice, steps) if packed else uniform_batches(steps)
    took = (ALPHA * tokens + BETA * squares) * np.exp(dice.normal(0, dice.uniform(0.005, 0.03), steps))
    took *= 1 + dice.uniform(-0.08, 0.08) * np.linspace(0, 1, steps)
    pauses = dice.random(steps) < 1 / 60
    took[pauses] *= dice.uniform(2, 20, pauses.sum())
    onset = None if factor == 1 else int(dice.integers(*ONSET_RANGE))
    if onset is not None:
        took[onset:] *= factor
    return [
        StepTiming(at=float(n), seconds=float(s), tokens=float(t), squares=float(q))
        for n, (s, t, q) in enumerate(zip(took, tokens, squares, strict=True))
    ], onset


def detect_slow_steps(steps):
    watch = SlowStepDetector()
    return [number for number, step in enumerate(steps) if watch.see(step)]


def detect_by_tokens(steps):
    """Run the same predictor without the lengths of sequences."""
    return detect_slow_steps([replace(step, squares=0.0) for step in steps])


def detect_by_time(steps):
    """Run the same predictor for a job that reports nothing about its batches."""
    return detect_slow_steps([replace(step, tokens=1.0, squares=0.0) for step in steps])


def detect_change_points(steps, hazard=1 / 500, longest=300):
    """Detect changes in normal data with unknown mean and variance: the most likely run starts anew."""
    took = np.log([step.seconds for step in steps])
    findings, prior = [], (took[:20].mean(), 1.0, 1.0, 0.05)
    mean, count, shape, spread = (np.array([value]) for value in prior)
    logs, run = np.zeros(1), 0
    lgamma = np.vectorize(math.lgamma)
    halves = lgamma(np.arange(2, longest + 10) / 2 + 0.5) - lgamma(np.arange(2, longest + 10) / 2)
    for at, value in enumerate(took):
        width = spread * (count + 1) / (shape * count)
        gamma = halves[np.round(shape * 2).astype(int) - 2]
        likelihood = gamma - 0.5 * np.log(2 * np.pi * shape * width)
        likelihood -= (shape + 0.5) * np.log1p((value - mean) ** 2 / (2 * shape * width))
        grown = logs + likelihood + np.log(1 - hazard)
        new = np.logaddexp.reduce(logs + likelihood) + np.log(hazard)
        logs = np.concatenate(([new], grown))[:longest]
        logs -= np.logaddexp.reduce(logs)
        spread = np.concatenate(([prior[3]], spread + count * (value - mean) ** 2 / (2 * (count + 1))))[:longest]
        mean = np.concatenate(([prior[0]], (count * mean + value) / (count + 1)))[:longest]
        count = np.concatenate(([prior[1]], count + 1))[:longest]
        shape = np.concatenate(([prior[2]], shape + 0.5))[:longest]
        likely = int(np.argmax(logs))
        if likely < run - 8 and likely >= 8:
            began = at - likely + 1
            before = took[max(0, began - 50) : began]
            if len(before) >= 20 and np.median(took[began : at + 1]) - np.median(before) > np.log(1.1):
                findings.append(at)
            run = likely
        elif likely >= run:
            run = likely
    return findings


def score_detector(name, judge, cases):
    true = false = missed = alarms = 0
    delays, per_factor, steps_seen = [], {factor: [0, 0] for factor in SLOWDOWN_FACTORS}, 0
    began = time.perf_counter()
    for steps, onset, factor in cases:
        findings = judge(steps)
        steps_seen += len(steps)
        early = [at for at in findings if onset is None or at < onset]
        late = [at for at in findings if onset is not None and at >= onset]
        false, alarms = false + len(early), alarms + bool(early)
        if onset is not None:
            true, missed = true + bool(late), missed + (not late)
            per_factor[factor][0] += bool(late)
            per_factor[factor][1] += 1
            delays += [late[0] - onset] if late else []
    return {
        "detector": name,
        "precision": true / (true + false) if true + false else None,
        "recall": true / (true + missed) if true + missed else None,
        "false_alarms": false,
        "series_with_false_alarms": alarms,
        "delay_steps": {"p50": percentile(delays, 50), "p95": percentile(delays, 95)},
        "recall_by_factor": {str(f): hit / all_ if all_ else None for f, (hit, all_) in per_factor.items()},
        "us_per_step": (time.perf_counter() - began) / steps_seen * 1e6,
    }


def percentile(values, part):
    return float(np.percentile(values, part)) if values else None


def compare_detectors(count, seed, packed=True):
    cases = []
    for number in range(count):
        dice = np.random.default_rng([seed, number])
        factor = 1 if number % 2 else SLOWDOWN_FACTORS[number // 2 % len(SLOWDOWN_FACTORS)]
        cases.append((*generate_series(dice, factor, packed=packed), factor))
    return [
        score_detector("by tokens and squares", detect_slow_steps, cases),
        score_detector("by tokens alone", detect_by_tokens, cases),
        score_detector("by time alone", detect_by_time, cases),
        score_detector("change points", detect_change_points, cases),
    ]


LOG_CHECK_INTERVAL_S, LOG_DURATION_S, LONGEST_LOG_STEPS = 15.0, 7200.0, 150


def generate_log_writes(dice, hangs):
    """Yield (time, lines) of each write to a log. The last write without a watchdog line is where the job hangs."""
    step_s, every, width = 10 ** dice.uniform(-0.3, 1.8), int(dice.integers(1, 4)), int(dice.integers(30, 110))
    block = int(dice.choice([0, 0, 0, 4096, 8192]))
    ends = max(LOG_DURATION_S, LONGEST_LOG_STEPS * step_s * every)
    onset = dice.uniform(0.6, 0.95) * ends if hangs else None
    at, step, held, size = dice.uniform(20, 300), 0, [], 0
    # (name, interval, shortest and longest duration), in seconds
    sections = (
        ("saving checkpoint", dice.uniform(600, 3600), 5, 120),
        ("running evaluation", dice.uniform(1200, 7200), 30, 600),
    )
    due = [at + often for _, often, _, _ in sections]
    while at < (onset or ends):
        step += 1
        at += step_s * dice.lognormal(0, 0.1) * (dice.uniform(2, 6) if dice.random() < 0.01 else 1)
        lines_written = [(at, f"iteration {step:>8} | loss 2.1 |{'.' * width}")] if step % every == 0 else []
        if dice.random() < 0.05:
            lines_written.append((at, "UserWarning: the scheduler was called before the optimizer"))
        for number, (name, often, low, high) in enumerate(sections):
            if at >= due[number]:
                lines_written.append((at, f"{name} at step {step}"))
                at += dice.uniform(low, high)
                due[number] = at + often
        for moment, line in lines_written:
            held, size = [*held, line], size + len(line) + 1
            if size >= block:
                yield moment, held
                held, size = [], 0
    if onset is None or dice.random() < 0.5:
        return
    while at < onset + 3600:
        at += dice.uniform(10, 60)
        yield at, [f"watchdog: no progress since iteration {step}"]


def hang_alarm_times(writes, ends):
    """Return the times at which the loop would report a hang; a continuing hang is reported once."""
    cadence, writes, findings, likelihood = CadenceState(), list(writes), [], False
    at, next_ = LOG_CHECK_INTERVAL_S, 0
    while at < ends:
        lines = []
        while next_ < len(writes) and writes[next_][0] <= at:
            lines += writes[next_][1]
            next_ += 1
        cadence = update_cadence(cadence, lines, at) if lines else cadence
        finding = detect_silence(cadence, at)
        findings += [at] if finding and not likelihood else []
        likelihood, at = finding is not None, at + LOG_CHECK_INTERVAL_S
    return findings


def score_hang_detection(count, seed):
    true = false = missed = healthy_alarms = 0
    delays, began, looks = [], time.process_time(), 0
    for number in range(count):
        dice, hangs = np.random.default_rng([seed, number, 7]), number % 2 == 0
        writes = list(generate_log_writes(dice, hangs))
        work = [moment for moment, lines in writes if "watchdog" not in lines[0]]
        if not work:  # the job hung before its first block was written
            missed += 1
            continue
        onset = work[-1] if hangs else None
        ends = (onset + 3600) if hangs else work[-1]
        findings, looks = hang_alarm_times(writes, ends), looks + int(ends / LOG_CHECK_INTERVAL_S)
        early = [at for at in findings if onset is None or at < onset]
        late = [at for at in findings if onset is not None and at >= onset]
        false, healthy_alarms = false + len(early), healthy_alarms + (onset is None and bool(early))
        true, missed = true + bool(late), missed + (hangs and not late)
        delays += [late[0] - onset] if late else []
    return {
        "detector": "hangs by log lines",
        "series": count,
        "precision": true / (true + false) if true + false else None,
        "recall": true / (true + missed) if true + missed else None,
        "false_alarms": false,
        "healthy_series_with_false_alarms": healthy_alarms,
        "delay_s": {"p50": percentile(delays, 50), "p95": percentile(delays, 95)},
        "us_per_look": (time.process_time() - began) / looks * 1e6,
    }


STEP_LINE = (
    "[08:15:02] iteration {step:8}/   90000 | consumed samples: {step:12} | elapsed time per iteration (ms): "
    "6120.5 | learning rate: 1.480000E-04 | global batch size:  1024 | lm loss: 2.804100E+00 | grad norm: 0.318 |"
)
OTHER_LINE = "node-{step:03}: [rank{step}] data worker waited 12 ms for shard {step} of /data/corpus/part-{step}"


def log_check_cost_ms(rounds=20):
    """Return the milliseconds of CPU time from bytes to the parsed result."""
    lines = [(OTHER_LINE if number % 10 else STEP_LINE).format(step=number) for number in range(1500)]
    raw, began = "\n".join(lines).encode(), time.process_time()
    for _ in range(rounds):
        lines_written = decode_log_text(raw).splitlines()
        update_cadence(CadenceState(), lines_written, 0.0)
        training_output.parse_training_output(lines_written)
    return (time.process_time() - began) / rounds * 1000


def detector_table(rows):
    yield f"{'':24}{'precision':>10}{'recall':>8}{'false':>7}{'delay p50':>11}{'p95':>6}{'us/step':>9}   recall at"
    for row in rows:
        delay = row["delay_steps"]
        by = "  ".join(f"{factor}x {part:.2f}" for factor, part in row["recall_by_factor"].items() if part is not None)
        right = "none" if row["precision"] is None else f"{row['precision']:.4f}"
        yield (
            f"{row['detector']:24}{right:>10}{row['recall'] or 0:>8.3f}{row['false_alarms']:>7}"
            f"{delay['p50'] or 0:>11.0f}{delay['p95'] or 0:>6.0f}{row['us_per_step']:>9.1f}   {by}"
        )


def hang_summary(row):
    delay = row["delay_s"]
    right = f"precision {row['precision']:.4f}, recall {row['recall']:.3f}, {row['false_alarms']} false"
    return f"{row['detector']}, {row['series']} logs: {right}, after {delay['p50']:.0f} s (p95 {delay['p95']:.0f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    rows, even = (compare_detectors(options.series, options.seed, packed) for packed in (True, False))
    machine = f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}"
    logs, look_ms = score_hang_detection(options.series, options.seed), log_check_cost_ms()
    likelihood = {
        "machine": machine,
        "hangs": logs,
        "look_ms": look_ms,
        "series": options.series,
        "steps": STEPS,
        "seed": options.seed,
        "detectors": rows,
        "batches_alike": even,
    }
    print(f"{options.series} series of {STEPS} steps, seed {options.seed}; {machine}")
    print("\n".join(detector_table(rows)))
    print("uniform batches:")
    print("\n".join(detector_table(even)))
    print(hang_summary(logs))
    share = look_ms * 500 / LOG_CHECK_INTERVAL_S / 1000
    print(f"Check of 1,500 lines: {look_ms:.1f} ms; 500 such logs: {share:.2f} s per second")
    if options.json:
        Path(options.json).write_text(json.dumps(likelihood, indent=2) + "\n")


if __name__ == "__main__":
    main()
