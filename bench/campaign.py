"""A campaign next to a pretraining job, live:  python bench/campaign.py [--trial-speed N] [--only PART] [--json FILE]

Runs a simulated cluster of ten nodes as a separate process, and the real loops on a real PostgreSQL: turns, copies of
models, the coordinator. Pretraining runs on nine nodes and is requeued once, ten seconds after the evaluation was
requested. Three runs with the same seed: pretraining alone; with 63 datasets of a 7B model as one job each, which loads
the model over the node's link and scores on its GPU; with the same datasets as a campaign (`--nodes 1`).

Prints for both methods: the queue wait of GPU jobs of the evaluation (median, p90), the GPU-seconds that they held
without inference, when datasets had their results, and the effect on pretraining. The cluster plays the evaluation
`--trial-speed` times as fast, and seconds are given in its time. So a turn of our loops, which cannot be sped up,
counts that many times. Loaders of one node do not slow each other down here, which favors one job per dataset. Takes
about five minutes.

Then pretraining arrives while a campaign holds all ten nodes (`--only arrival` runs only this). Prints how long it
waits for nine of them, how much work of the preempted trials must be repeated, and whether each sample was evaluated
once. Here the evaluation is only four times as fast, because the grace period is in real time; so are the seconds.
Takes about five more minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from loops import clear_database, start_database

NODES, PRETRAINING_NODES = 10, 9
RESTART_S, HORIZON_S = 10.0, 60.0  # in real time, after the evaluation was requested
RUN_TIMEOUT_S = 1800.0
# Pretraining arrives in the middle of the campaign's slices, and ends after a minute
ARRIVAL_SPEED, ARRIVAL_DELAY_S, SHORT_JOB_S = 4.0, 20.0, 60.0
TURN_INTERVAL_S = 0.1
EVALUATION_ROOT = "/shared/evaluations"


@dataclass(frozen=True, kw_only=True)
class PretrainingResult:
    started_s: float
    restarted_s: float
    attempts: int
    lines: int  # of progress, ten steps each, in the first `HORIZON_S`


@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    datasets: int
    gpu_jobs: int
    cpu_jobs: int
    queued_p50_s: float
    queued_p90_s: float
    gpu_held_s: float
    gpu_idle_s: float
    result_p50_s: float
    result_p90_s: float
    makespan_s: float


@dataclass(frozen=True, kw_only=True)
class ArrivalResult:
    """The result of the arrival; in seconds of real time."""

    held_gpus: int  # by the evaluation, when pretraining arrived
    started_s: float  # pretraining, since its submission
    alone_s: float  # the same on the empty cluster, after the campaign
    attempts: int
    asked_s: float  # until the first trial was asked to stop
    gave_way: int  # number of preempted trials
    longest_wait_s: float  # from the request to the end of the last of them
    begun_s: float  # GPU-seconds since their last finished slices; this work is repeated
    held_s: float  # GPU-seconds of all trials
    makespan_s: float
    samples: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trial-speed", type=float, default=60.0)
    parser.add_argument("--only", choices=("beside", "arrival"))
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    print(
        f"{machine}\n{NODES} nodes of 8 GPUs, pretraining on {PRETRAINING_NODES}, evaluation {options.trial_speed:g}x"
    )
    with ExitStack() as stack:
        start_database(stack)
        kinds = {} if options.only == "arrival" else EVALUATION_METHODS
        results = {name: run_method(kind(options.trial_speed), options.trial_speed) for name, kind in kinds.items()}
        if results:
            print("\n".join(result_lines(results)))
        arrived = None if options.only == "beside" else measure_arrival()
        if arrived:
            print("\n".join(arrival_lines(arrived)))
    if options.json:
        runs = {name: {part: one and asdict(one) for part, one in parts.items()} for name, parts in results.items()}
        document = {"machine": machine, "trial_speed": options.trial_speed, "runs": runs}
        document |= {"arrival": arrived and asdict(arrived)}
        Path(options.json).write_text(json.dumps(document, indent=2) + "\n")


def run_method(kind: Any, speed: float) -> dict[str, Any]:
    with start_bench_cluster(speed) as place:
        return place.live(kind)


@contextmanager
def start_bench_cluster(speed: float) -> Iterator[BenchCluster]:
    from tests.scheduling.simulation.slurm.running import ClusterProcess

    clear_database()
    with tempfile.TemporaryDirectory(prefix="acme-bench-") as home:
        options = ("--nodes", str(NODES), "--trial-speed", str(speed), "--seed", "0")
        with ClusterProcess(Path(home), *options) as cluster:
            yield BenchCluster(cluster, speed)


def measure_arrival() -> ArrivalResult:
    with start_bench_cluster(ARRIVAL_SPEED) as place:
        kind = CampaignEvaluation(ARRIVAL_SPEED)
        kind.prepare(place)
        requested = kind.ask(place.cluster, nodes=NODES)
        place.until(lambda: count_allocated_gpus(requested) >= 8 * PRETRAINING_NODES)
        since = time.monotonic()
        place.until(lambda: time.monotonic() - since > ARRIVAL_DELAY_S)
        held, job = count_allocated_gpus(requested), place.pretraining(SHORT_JOB_S)
        place.until(lambda: job_has_ended(job) and kind.over(requested))
        after = place.pretraining(1.0)
        place.until(lambda: job_has_ended(after))
        return arrival_result(requested, job, after, held)


def count_allocated_gpus(campaign: Any) -> int:
    from jobs.models import Allocation

    held = Allocation.objects.filter(attempt__job__trial__campaign=campaign, released_at=None, gpu__isnull=False)
    return int(held.count())


def job_has_ended(job: Any) -> bool:
    from jobs.core.lifecycle import FINAL_STATES

    job.refresh_from_db()
    return job.state in FINAL_STATES


def arrival_result(campaign: Any, pretraining: Any, after: Any, held: int) -> ArrivalResult:
    from django.db.models import Max, Sum

    from jobs.models import Event, Job
    from scheduling.models import Shard

    if (campaign.state, pretraining.state) != ("COMPLETED", "COMPLETED"):
        raise RuntimeError(f"The campaign is {campaign.state}, pretraining is {pretraining.state}: {campaign.why}")
    jobs = Job.objects.filter(trial__campaign=campaign, trial__kind="infer", started_at__isnull=False)
    requested = dict(Event.objects.filter(job__in=jobs, type="job.preempt_requested").values_list("job", "at"))
    gone = list(jobs.filter(pk__in=requested).annotate(last_s=Max("trial__inferred__inferred_at_s")))
    came_at = pretraining.submitted_at
    shards = Shard.objects.filter(evaluation__campaign=campaign)
    return ArrivalResult(
        held_gpus=held,
        started_s=_start_wait_s(pretraining),
        alone_s=_start_wait_s(after),
        attempts=pretraining.attempts.count(),
        asked_s=min(((at - came_at).total_seconds() for at in requested.values()), default=0.0),
        gave_way=len(gone),
        longest_wait_s=max(((job.ended_at - requested[job.pk]).total_seconds() for job in gone), default=0.0),
        begun_s=sum(max(_job_gpu_seconds(job) - (job.last_s or 0.0), 0.0) for job in gone),
        held_s=sum(_job_gpu_seconds(job) for job in jobs),
        makespan_s=(campaign.ended_at - campaign.created_at).total_seconds(),
        samples=shards.aggregate(Sum("samples"))["samples__sum"],
    )


def _start_wait_s(job: Any) -> float:
    first = job.attempts.order_by("number").first()
    return float((first.confirmed_at - job.submitted_at).total_seconds())


def _job_gpu_seconds(job: Any) -> float:
    return float((job.ended_at - job.started_at).total_seconds() * job.gpus)


class BenchCluster:
    """One cluster, its pretraining job, and the loops that the workers would run."""

    def __init__(self, process: Any, speed: float) -> None:
        from tests import make

        place = {"address": process.address, "log_root": str(process.log_root)}
        secret = {"token_file": str(process.state / "token"), "api_user": "root", "is_bundled": True}
        self.cluster = make.cluster("beside", nodes=0, policy="acme", **place, **secret)
        self.speed = speed
        make.team(ada="admin")
        self.turn()

    def turn(self) -> None:
        from jobs.models import clock
        from scheduling.clusters.connections import connect
        from scheduling.evaluation.loops.campaigns import coordinate_campaigns_once
        from scheduling.evaluation.loops.staging import advance_stagings_once
        from scheduling.loops.turn import run_turn

        run_turn(self.cluster.pk, "bench", connect)
        now = clock.now()
        advance_stagings_once(now)
        coordinate_campaigns_once(now)

    def until(self, over: Callable[[], bool]) -> None:
        began = time.monotonic()
        while not over():
            if time.monotonic() - began > RUN_TIMEOUT_S:
                raise RuntimeError("The run did not finish in time.")
            self.turn()
            time.sleep(TURN_INTERVAL_S)

    def live(self, kind: Any) -> dict[str, Any]:
        from jobs.actions.stop import requeue
        from tests import make

        kind.prepare(self)
        job = self.pretraining()
        self.until(lambda: job_is_running(job))
        requested, began = kind.ask(self.cluster), time.monotonic()
        self.until(lambda: time.monotonic() - began > RESTART_S)
        job.refresh_from_db()
        requeue(job, author=make.author(), why="Restart from the newest checkpoint.")
        self.until(lambda: time.monotonic() - began > HORIZON_S and kind.over(requested))
        return {"pretraining": pretraining_result(job), "evaluation": kind.result(requested)}

    def pretraining(self, lasts_s: float = 3600.0) -> Any:
        from tests import make

        resources = {"nodes": PRETRAINING_NODES, "gpus_per_node": 8, "cpus_per_node": 64, "memory_per_node": "400G"}
        hints = {"SIM_DURATION_S": f"{lasts_s:g}", "SIM_END": "COMPLETED"}
        return make.job(cluster=self.cluster, kind="pretrain", name="pretrain", environment=hints, **resources)


def job_is_running(job: Any) -> bool:
    job.refresh_from_db()
    return bool(job.state == "RUNNING" and job.attempts.filter(confirmed_at__isnull=False, ended_at=None).exists())


def pretraining_result(job: Any) -> PretrainingResult:
    from jobs.models import Event

    first, *later = job.attempts.order_by("number")
    requested = Event.objects.get(job=job, type="job.requeue_requested").at
    return PretrainingResult(
        started_s=(first.confirmed_at - job.submitted_at).total_seconds(),
        restarted_s=(later[-1].confirmed_at - requested).total_seconds(),
        attempts=1 + len(later),
        lines=sum(_count_progress_lines(job, attempt) for attempt in (first, *later)),
    )


def _count_progress_lines(job: Any, attempt: Any) -> int:
    from datetime import UTC, datetime

    until = datetime.fromtimestamp(job.submitted_at.timestamp() + HORIZON_S, UTC).strftime("[%Y-%m-%d %H:%M:%S]")
    text = Path(attempt.log_path).read_text() if attempt.log_path else ""
    return sum(line.startswith("[") and line[: len(until)] <= until for line in text.splitlines())


# --- methods of evaluation


class NoEvaluation:
    def __init__(self, speed: float) -> None:
        pass

    def prepare(self, site: BenchCluster) -> None:
        pass

    def ask(self, cluster: Any) -> None:
        return None

    def over(self, requested: None) -> bool:
        return True

    def result(self, requested: None) -> None:
        return None


class OneJobPerDataset:
    """Each dataset is a job that starts, loads over the link, infers and scores on its GPU, as users submit it."""

    def __init__(self, speed: float) -> None:
        self._speed = speed

    def prepare(self, site: BenchCluster) -> None:
        pass

    def ask(self, cluster: Any) -> list[Any]:
        from jobs.actions import jobs as job_actions
        from jobs.models import clock
        from scheduling.evaluation.rules.work import datasets
        from tests import make

        specs = [self._job_spec(number, one) for number, one in enumerate(datasets())]
        team = make.team()
        return job_actions.submit(specs, cluster=cluster, team=team, author=make.author(), now=clock.now())

    def _job_spec(self, number: int, dataset: Any) -> Any:
        from scheduling.evaluation.rules import orders

        part = orders.TrialPart(
            shard=number,
            dataset=dataset.name,
            start=0,
            samples=dataset.samples,
            output=f"{EVALUATION_ROOT}/{number}",
            command="answer && score",
            scores=True,
            expected_s=3600.0,
        )
        instructions = orders.trial_instructions(
            [part], checkpoint="/checkpoints/run/step-1000", serve="", nonce="each"
        )
        requested = {"gpus_per_node": 1, "cpus_per_node": 4}
        return orders.inference_job(
            f"each-{dataset.name}", "", "", [part], {orders.INSTRUCTIONS_VARIABLE: instructions}, **requested
        )

    def over(self, jobs: list[Any]) -> bool:
        from jobs.core.lifecycle import FINAL_STATES
        from jobs.models import Job

        return not Job.objects.filter(pk__in=[job.pk for job in jobs]).exclude(state__in=FINAL_STATES).exists()

    def result(self, requested: list[Any]) -> EvaluationResult:
        from jobs.models import Job
        from scheduling.evaluation.loops.campaigns import read_job_output
        from scheduling.evaluation.rules.work import datasets

        jobs = list(Job.objects.filter(pk__in=[job.pk for job in requested]).select_related("cluster").order_by("id"))
        failed = [job.name for job in jobs if job.state != "COMPLETED"]
        if failed:
            raise RuntimeError(f"These jobs did not complete: {failed}")
        took = {part.part: part.took_s for job in jobs for part in read_job_output(job, "each", 1 << 20).parts}
        inferring = sum(took[number] * _inference_share(one) for number, one in enumerate(datasets()))
        done = [(job.ended_at - job.submitted_at).total_seconds() for job in jobs]
        return evaluation_result(self._speed, gpu_jobs=jobs, cpu_jobs=0, inferring=inferring, done=done)


def _inference_share(dataset: Any) -> float:
    """Return the share of inference in a job that does both; random factors stretch both alike."""
    from scheduling.simulation.machines.scripts.evaluation_jobs import dataset_cost

    cost = dataset_cost(dataset.name, dataset.samples)
    return float(cost.gpu_s / (cost.gpu_s + cost.score))


class CampaignEvaluation:
    """A campaign. An earlier one with a small dataset has measured how long a trial takes to start."""

    def __init__(self, speed: float) -> None:
        self._speed = speed

    def prepare(self, site: BenchCluster) -> None:
        known = self._start_campaign(
            site.cluster, "/checkpoints/run/step-500", [_dataset_prior("warmup", 200, 30.0, 1.0)]
        )
        site.until(lambda: self.over(known))

    def ask(self, cluster: Any, nodes: int = 1) -> Any:
        from scheduling.evaluation.rules.work import PhaseCosts, datasets

        costs = [(one, PhaseCosts.calibrate().cost(one, one.samples)) for one in datasets()]
        priors = [
            _dataset_prior(one.name, one.samples, cost.gpu_s / self._speed, cost.score / self._speed)
            for one, cost in costs
        ]
        return self._start_campaign(cluster, "/checkpoints/run/step-1000", priors, nodes)

    def _start_campaign(self, cluster: Any, checkpoint: str, priors: list[dict[str, Any]], nodes: int = 1) -> Any:
        from jobs.models import clock
        from scheduling.evaluation.actions import campaigns as campaign_actions
        from scheduling.evaluation.rules import campaign_requests
        from tests import make

        commands = {"infer": "answer", "metric": "score", "output_root": EVALUATION_ROOT, "stage_root": "/dev/shm"}
        team = make.team()
        spec = campaign_requests.parse_suite({"name": "study", "datasets": priors, **commands})
        suite = campaign_actions.define_suite(spec, team=team, author=make.author())
        campaign_request = campaign_requests.parse_campaign({"checkpoints": [checkpoint], "nodes": nodes})
        return campaign_actions.create_campaign(
            campaign_request, suite=suite, cluster=cluster, team=team, author=make.author(), now=clock.now()
        )

    def over(self, campaign: Any) -> bool:
        campaign.refresh_from_db()
        return campaign.state not in ("PENDING", "RUNNING")

    def result(self, campaign: Any) -> EvaluationResult:
        from django.db.models import Sum

        from jobs.models import Job
        from scheduling.models import Evaluation, Shard

        if campaign.state != "COMPLETED":
            raise RuntimeError(f"The campaign is {campaign.state}: {campaign.why}")
        jobs = Job.objects.filter(trial__campaign=campaign).order_by("id")
        inferring = Shard.objects.filter(evaluation__campaign=campaign).aggregate(Sum("infer_s"))["infer_s__sum"]
        ended = Evaluation.objects.filter(campaign=campaign).values_list("ended_at", flat=True)
        done = [(at - campaign.created_at).total_seconds() for at in ended]
        gpu_jobs = list(jobs.filter(trial__kind="infer"))
        cpu_jobs = jobs.filter(trial__kind="score").count()
        return evaluation_result(self._speed, gpu_jobs=gpu_jobs, cpu_jobs=cpu_jobs, inferring=inferring, done=done)


def _dataset_prior(name: str, samples: int, infer_s: float, score_s: float) -> dict[str, Any]:
    return {"name": name, "samples": samples, "infer_s": infer_s, "score_s": score_s}


def evaluation_result(
    speed: float, *, gpu_jobs: list[Any], cpu_jobs: int, inferring: float, done: list[float]
) -> EvaluationResult:
    queued = sorted(wait for job in gpu_jobs for wait in _queue_waits(job))
    held = sum((job.ended_at - job.started_at).total_seconds() * job.gpus for job in gpu_jobs if job.started_at)
    ready = sorted(done)
    return EvaluationResult(
        datasets=len(done),
        gpu_jobs=len(gpu_jobs),
        cpu_jobs=cpu_jobs,
        queued_p50_s=speed * _quantile(queued, 0.5),
        queued_p90_s=speed * _quantile(queued, 0.9),
        gpu_held_s=speed * held,
        gpu_idle_s=speed * (held - inferring),
        result_p50_s=speed * _quantile(ready, 0.5),
        result_p90_s=speed * _quantile(ready, 0.9),
        makespan_s=speed * ready[-1],
    )


def _queue_waits(job: Any) -> Iterator[float]:
    if job.started_at:
        yield (job.started_at - job.submitted_at).total_seconds()


def _quantile(values: list[float], share: float) -> float:
    return values[int(share * (len(values) - 1) + 0.5)]


EVALUATION_METHODS = {"alone": NoEvaluation, "one job each": OneJobPerDataset, "decoupled": CampaignEvaluation}


# --- output

RESULT_COLUMNS = {
    "gpu_jobs": "GPU jobs",
    "cpu_jobs": "CPU jobs",
    "queued_p50_s": "queued p50",
    "queued_p90_s": "queued p90",
    "gpu_held_s": "GPU-s held",
    "gpu_idle_s": "idle held",
    "result_p50_s": "result p50",
    "result_p90_s": "result p90",
    "makespan_s": "makespan",
}


def result_lines(results: dict[str, Any]) -> Iterator[str]:
    yield f"\n{'evaluation':<14}" + "".join(f"{title:>14}" for title in RESULT_COLUMNS.values())
    for name, run in results.items():
        if one := run["evaluation"]:
            yield f"{name:<14}" + "".join(f"{getattr(one, column):>14,.0f}" for column in RESULT_COLUMNS)
    each, ours = results["one job each"]["evaluation"], results["decoupled"]["evaluation"]
    yield f"{'ratio':<14}" + "".join(
        f"{getattr(each, column) / getattr(ours, column):>13.1f}x" if getattr(ours, column) else f"{'':>14}"
        for column in RESULT_COLUMNS
    )
    yield f"\n{'pretraining':<14}{'start s':>14}{'restart s':>14}{'attempts':>14}{f'steps in {HORIZON_S:.0f} s':>14}"
    for name, run in results.items():
        one = run["pretraining"]
        yield f"{name:<14}{one.started_s:>14.1f}{one.restarted_s:>14.1f}{one.attempts:>14}{one.lines * 10:>14}"


def arrival_lines(one: ArrivalResult) -> Iterator[str]:
    yield f"\nPretraining arrives while the evaluation holds {one.held_gpus} of {8 * NODES} GPUs, {ARRIVAL_SPEED:g}x:"
    yield f"  started after {one.started_s:.1f} s, {one.alone_s:.1f} s on the empty cluster, attempts: {one.attempts}"
    yield f"  {one.gave_way} trials were preempted: the first request came after {one.asked_s:.1f} s,"
    yield f"  the slowest took {one.longest_wait_s:.1f} s to end"
    yield f"  {one.begun_s:,.0f} of {one.held_s:,.0f} GPU-seconds must be repeated"
    yield f"  the campaign took {one.makespan_s:.0f} s, {one.samples:,} samples, each evaluated once"


if __name__ == "__main__":
    main()
