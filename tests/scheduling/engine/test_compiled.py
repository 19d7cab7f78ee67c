"""The compiled engine decides exactly like the interpreted one, and is never used with other sources."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from acmeweb.common.env import ROOT
from jobs.traces.trace import trace_from_columns
from scheduling.compiled import BUILDS, LIBRARY, MODULES, SUFFIX, CompiledFinder, source_checksum
from scheduling.engine.engine import Engine, PolicyRules
from scheduling.engine.policies import POLICY_RULES
from scheduling.engine.resources import NodeResources
from scheduling.engine.turns.preempting import preempting_turn
from scheduling.engine.turns.sharing import sharing_turn
from scheduling.engine.turns.strict import strict_turn
from scheduling.whatif.replay.kernel import replay
from scheduling.whatif.replay.run import ReplaySetting, arrivals, replay_nodes
from tests.patience import PATIENCE_S

built = pytest.mark.skipif(
    not (BUILDS / source_checksum()).is_dir(), reason="the engine is not compiled here: make compiled"
)


def child(*words, **environment):
    return subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def told(compiled):
    done = child("-m", "tests.scheduling.engine.decisions", ACME_COMPILED=compiled)
    assert done.returncode == 0, done.stderr[-2000:]
    *rows, engine = done.stdout.splitlines()
    return rows, engine


@built
def test_compiled_engine_decides_exactly_like_its_sources():
    compiled, interpreted = told("1"), told("0")

    assert (compiled[1], interpreted[1]) == ("engine: compiled", "engine: interpreted")
    assert compiled[0] == interpreted[0]


# Policies in plain Python, as an operator might add them


class PlainSjf(PolicyRules):
    name = "sjf"
    single_queue = True

    def turn(self, engine, now):
        strict_turn(engine, now)

    def key(self, job, now):
        return job.expected_s


class PlainDrf(PolicyRules):
    """Counts GPUs only, like the replay."""

    name = "drf"
    queues_by_account = True

    def __init__(self):
        self.held = {}

    def turn(self, engine, now):
        sharing_turn(engine, now)

    def share(self, group, engine, now):
        return self.held.get(group.account, 0)

    def on_job_start(self, job, now):
        self.held[job.group.account] = self.held.get(job.group.account, 0) + job.gpus

    def on_job_release(self, job, now):
        self.held[job.group.account] -= job.gpus


class PlainTiresias(PolicyRules):
    name = "tiresias"
    preempts = True
    thresholds = (3250.0, 7200.0)

    def turn(self, engine, now):
        preempting_turn(engine, now)

    def key(self, job, now):
        return 1e12 * job.level + job.submitted

    def rank(self, job, now):
        return 1e12 * job.level + now

    def next_rank_change(self, job, now):
        if job.level == 2 or not job.gpus:
            return None
        return now + max(0.0, self.thresholds[job.level] - job.attained) / job.gpus

    def on_rank_change(self, job, now):
        job.level += 1


@pytest.mark.parametrize("plain", [PlainSjf, PlainDrf, PlainTiresias])
def test_interpreted_policy_works_with_the_compiled_engine(plain):
    dice, setting = np.random.default_rng(5), ReplaySetting(nodes=12)
    history = trace_from_columns(
        "crowd",
        submit_s=np.sort(dice.random(300) * 9_000),
        runtime_s=dice.integers(1, 9_000, 300),
        gpus=dice.choice([1, 1, 2, 4, 8, 12, 16, 40], 300),
        users=dice.choice(["a", "b", "c"], 300).tolist(),
    )

    def replayed(rules):
        engine = Engine(NodeResources(replay_nodes(setting, setting.nodes)), rules)
        return replay(engine, arrivals(history, engine, setting))

    assert replayed(plain()) == replayed(POLICY_RULES[plain.name]())


@pytest.fixture
def sources(tmp_path):
    shutil.copytree(ROOT / "scheduling" / "engine", tmp_path / "scheduling" / "engine")
    for name in MODULES:
        source = Path(*name.split(".")).with_suffix(".py")
        (tmp_path / source).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / source, tmp_path / source)
    return tmp_path


@pytest.mark.parametrize(
    "edited",
    ["scheduling/engine/resources.py", "scheduling/engine/policies/fifo.py", "scheduling/whatif/replay/kernel.py"],
)
def test_edited_line_changes_the_checksum(sources, edited):
    before = source_checksum(sources)
    with (sources / edited).open("a") as source:
        source.write("# one more\n")

    assert before == source_checksum(ROOT)
    assert source_checksum(sources) != before


def test_build_is_found_only_if_complete_and_in_its_own_directory(tmp_path):
    finder = CompiledFinder(tmp_path)
    (tmp_path / f"{LIBRARY}{SUFFIX}").touch()

    assert finder.find_spec(LIBRARY, None).origin == str(tmp_path / f"{LIBRARY}{SUFFIX}")
    assert finder.find_spec(MODULES[0], None) is None
    assert finder.find_spec("scheduling.engine.cluster", None) is None


def test_every_compiled_module_has_a_source():
    assert all((ROOT / f"{name.replace('.', '/')}.py").exists() for name in MODULES)


def test_missing_compiler_is_reported_in_one_line(tmp_path):
    script = (
        f"from pathlib import Path; from acmeweb.services.compile_engine import main; main(Path({str(tmp_path)!r}))"
    )

    done = child("-c", script, CC="/no/such/compiler")

    assert not list(tmp_path.iterdir())
    assert "C compiler /no/such/compiler is not installed" in done.stderr
    assert done.stderr.count("\n") == 1
