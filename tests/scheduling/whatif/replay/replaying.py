"""Small replays for tests, and naive simulators to compare with: slow, short and obviously correct."""

from __future__ import annotations

from bisect import insort

from hypothesis import strategies as st

from jobs.traces.trace import trace_from_columns
from scheduling.whatif.replay.kernel import ReplayCallbacks, replay
from scheduling.whatif.replay.run import ReplaySetting, arrivals, replay_engine, run_policy

SMALL = ReplaySetting(nodes=3, gpus_per_node=4)
COUNT = ReplaySetting(nodes=3, gpus_per_node=4, placement="count")


def trace(*jobs, **columns):
    """Jobs as (submit, runtime, gpus)."""
    submit, runtime, gpus = zip(*jobs, strict=True) if jobs else ((), (), ())
    return trace_from_columns("test", submit_s=submit, runtime_s=runtime, gpus=gpus, **columns)


# Few values, so that equal times and equal requests, where mistakes are likely, are common
job_lists = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(1, 12)), min_size=1, max_size=25)


def outcome(history, policy, setting=SMALL):
    """(start, end) of each job, in the order of the trace."""
    done = run_policy(history, policy, setting)
    return list(zip(done.started_s.tolist(), done.ended_s.tolist(), strict=True))


def watched(history, policy, setting, look, **given):
    """Replay and call `look(engine, now)` after every decision."""
    engine = replay_engine(policy, setting, setting.nodes, trace=history)
    callbacks = ReplayCallbacks(on_decision=lambda now: look(engine, now))
    return replay(engine, arrivals(history, engine, setting), callbacks=callbacks, **given)


def naive_queue(history, gpus, *, key, skipping=False):
    """One count of GPUs and one list; everything is checked at every event."""
    jobs = list(zip(history.submit_s.tolist(), history.runtime_s.tolist(), history.gpus.tolist(), strict=True))
    order = sorted(range(len(jobs)), key=lambda n: (key(*jobs[n]), n))
    start, running, free = {}, [], gpus
    times = sorted({job[0] for job in jobs})
    while times:
        now = times.pop(0)
        while running and running[0][0] <= now:
            free += running.pop(0)[1]
        for number in [n for n in order if n not in start and jobs[n][0] <= now]:
            if jobs[number][2] > free:
                if skipping:
                    continue
                break
            free -= jobs[number][2]
            start[number] = now
            end = now + jobs[number][1]
            insort(running, (end, jobs[number][2]))
            if end not in times:
                insort(times, end)
    return [(start[n], start[n] + jobs[n][1]) for n in range(len(jobs))]


def naive_easy(history, gpus):
    """EASY backfilling with one count of GPUs; the reservation is computed again at every event."""
    jobs = list(zip(history.submit_s.tolist(), history.runtime_s.tolist(), history.gpus.tolist(), strict=True))
    start, free, times = {}, gpus, sorted({job[0] for job in jobs})
    while times:
        now = times.pop(0)
        free = gpus - sum(jobs[n][2] for n in start if start[n] + jobs[n][1] > now)
        reserved, spare = None, 0
        for number in [n for n in range(len(jobs)) if n not in start and jobs[n][0] <= now]:
            _, runs, width = jobs[number]
            if width > free and reserved is None:
                ends = sorted((start[n] + jobs[n][1], jobs[n][2]) for n in start if start[n] + jobs[n][1] > now)
                later = [(end, free + sum(more for at, more in ends if at <= end)) for end, _ in ends]
                reserved, spare = next((end, have - width) for end, have in later if have >= width)
            elif width <= free and (reserved is None or now + runs <= reserved or width <= spare):
                spare -= width if reserved is not None and now + runs > reserved else 0
                free -= width
                start[number] = now
                times = sorted({*times, now + runs} - {now})
    return [(start[n], start[n] + jobs[n][1]) for n in range(len(jobs))]


def naive_srtf(history, gpus):
    """Walk over all jobs in order of remaining time at every event; return the ends."""
    jobs = list(zip(history.submit_s.tolist(), history.runtime_s.tolist(), history.gpus.tolist(), strict=True))
    left, end, running, now = {}, {}, set(), -1.0
    while len(end) < len(jobs):
        coming = [job[0] for n, job in enumerate(jobs) if n not in left]
        then = min(coming + [now + left[n] for n in running])
        for n in running:
            left[n] -= then - now
        now = then
        for n in [n for n in running if left[n] <= 0]:
            running.discard(n)
            end[n] = now
        left |= {n: job[1] for n, job in enumerate(jobs) if n not in left and job[0] <= now}
        free, chosen = gpus, set()
        for n in sorted(set(left) - set(end), key=lambda n: (left[n], n not in running, n)):
            if jobs[n][2] <= free:
                free -= jobs[n][2]
                chosen.add(n)
        running = chosen
    return [end[n] for n in range(len(jobs))]
