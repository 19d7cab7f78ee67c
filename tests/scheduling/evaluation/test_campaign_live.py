"""A real campaign with a tiny model in pure Python: on this machine, and on a real Slurm."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from jobs.models import Cluster, Job, clock
from scheduling.backends.opening import open_backend
from scheduling.evaluation.actions import campaigns as campaign_actions
from scheduling.evaluation.loops.campaigns import coordinate_campaigns_once
from scheduling.evaluation.loops.staging import advance_stagings_once
from scheduling.evaluation.rules import campaign_requests
from scheduling.loops.turn import run_turn
from scheduling.models import Campaign, Evaluation, Staging, SuiteDataset
from tests import make
from tests.patience import until
from tests.scheduling.backends.real_slurm import started_or_skipped
from tests.scheduling.simulation.slurm.running import ClusterProcess

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(2700)]

# The model knows one number, by which it multiplies; a dataset asks for products, and the metric counts what is right
ANSWER = """\
import json, os
factor = int(open(os.environ["ACME_MODEL"] + "/weights").read())
first, last = int(os.environ["ACME_START"]), int(os.environ["ACME_END"])
with open(os.environ["ACME_OUTPUT"] + "/answers", "w") as out:
    json.dump({number: number * factor for number in range(first, last)}, out)
print('acme:0 {"part": 1, "code": 0, "scores": {"accuracy": 1.0}}')  # an answer that looks like a result
"""
SCORE = """\
import json, os
factor = {"double": 2, "triple": 3}[os.environ["ACME_DATASET"]]
answers = json.load(open(os.environ["ACME_OUTPUT"] + "/answers"))
right = sum(value == int(number) * factor for number, value in answers.items())
json.dump({"accuracy": right / len(answers), "right": right}, open(os.environ["ACME_RESULT"], "w"))
"""


def model(home: Path, name: str, factor: int) -> str:
    place = home / name
    place.mkdir(parents=True)
    (place / "weights").write_text(str(factor))
    for path in (home, place, place / "weights"):
        path.chmod(0o755)
    return str(place)


@pytest.fixture
def shared() -> Iterator[Path]:
    """Where jobs of another user may write: they are nobody's where the tests are root's. Not beneath pytest's own
    directory, which each pytest that starts closes to others again."""
    place = Path(tempfile.mkdtemp(prefix="acme-evaluation-"))
    for path in (place, place / "results", place / "node"):
        path.mkdir(exist_ok=True)
        path.chmod(0o777)
    for name, text in (("answer.py", ANSWER), ("score.py", SCORE)):
        (place / name).write_text(text)
        (place / name).chmod(0o644)
    yield place
    shutil.rmtree(place, ignore_errors=True)


def campaign(cluster: Cluster, shared: Path, checkpoints: list[str], gpus: int) -> Campaign:
    spec = campaign_requests.parse_suite(
        {
            "name": "tiny",
            "infer": f"python3 {shared}/answer.py",
            "metric": f"python3 {shared}/score.py",
            "output_root": f"{shared}/results",
            "stage_root": f"{shared}/node",
            "gpus": gpus,
            "cpus": 1,
            "datasets": [
                {"name": "double", "samples": 40, "parts": 2, "infer_s": 60},
                {"name": "triple", "samples": 10, "parts": 1},
                {"name": "missing", "samples": 10, "infer": "echo no such dataset; exit 9"},
            ],
        }
    )
    team = make.team(ada="researcher")
    of = campaign_actions.define_suite(spec, team=team, author=make.author())
    wanted = campaign_requests.parse_campaign({"checkpoints": checkpoints, "nodes": 1})
    return campaign_actions.create_campaign(
        wanted, suite=of, cluster=cluster, team=team, author=make.author(), now=clock.now()
    )


def carried_out(asked_for: Campaign, connect) -> None:
    """Turns of the cluster and of the coordinator, until it has ended and its copies are gone."""

    def over() -> bool:
        run_turn(asked_for.cluster_id, "test", connect)
        now = clock.now()
        advance_stagings_once(now)
        coordinate_campaigns_once(now)
        asked_for.refresh_from_db()
        left = Staging.objects.exclude(state__in=("REMOVED", "FAILED")).exists()
        return asked_for.state not in ("PENDING", "RUNNING") and not left

    until(over, within_s=2400, what="the campaign's end")


def judge(asked_for: Campaign, shared: Path) -> None:
    rows = Evaluation.objects.filter(campaign=asked_for).select_related("dataset")
    found = {(row.checkpoint.rpartition("/")[2], row.dataset.name): row.scores for row in rows}
    assert found["two", "double"]["accuracy"] == 1.0
    assert found["two", "triple"]["accuracy"] == pytest.approx(0.1)  # 0 is right whatever the factor
    assert found["three", "triple"]["accuracy"] == 1.0
    assert found["three", "double"]["accuracy"] == pytest.approx(1 / 40)
    missing = rows.filter(dataset=SuiteDataset.objects.get(name="missing"))
    assert {(row.state, row.why) for row in missing} == {("FAILED", "The command ended with exit code 9.")}
    assert asked_for.state == "FAILED"
    assert not list((shared / "node").iterdir())
    scored = Job.objects.filter(name__startswith="score-", kind="evaluation")
    assert scored
    assert all(job.gpus == 0 for job in scored)


@pytest.fixture
def executing(tmp_path_factory) -> Iterator[ClusterProcess]:
    with ClusterProcess(tmp_path_factory.mktemp("executing"), "--execute") as cluster:
        yield cluster


def test_a_tiny_model_is_evaluated_on_this_machine(executing, shared):
    row = Cluster.objects.create(name="here", mode="drive", address=executing.address, log_root=str(executing.log_root))
    with closing(executing.backend()) as backend:
        wanted = campaign_after_a_look(row, shared, lambda _: backend, gpus=0)

        carried_out(wanted, lambda _: backend)

    judge(wanted, shared)


def campaign_after_a_look(row: Cluster, shared: Path, connect, gpus: int) -> Campaign:
    """Nobody is asked of a cluster that has not told what it has."""
    run_turn(row.pk, "test", connect)
    models = [model(shared / "checkpoints", name, factor) for name, factor in (("two", 2), ("three", 3))]
    return campaign(row, shared, models, gpus)


@pytest.mark.system
def test_a_tiny_model_is_evaluated_on_a_real_slurm(shared):
    with started_or_skipped() as slurm, closing(open_backend(slurm.address)) as backend:
        row = Cluster.objects.create(name="contract", mode="drive", address=slurm.address, log_root=str(slurm.output))
        wanted = campaign_after_a_look(row, shared, lambda _: backend, gpus=1)

        carried_out(wanted, lambda _: backend)

        judge(wanted, shared)
        assert {trial.job.gpus for trial in wanted.trials.filter(kind="infer")} == {1}
