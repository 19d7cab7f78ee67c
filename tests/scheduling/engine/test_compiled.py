"""The compiled engine: it decides what the interpreted one decides, and is never one of other sources."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from acmeweb.common.env import ROOT
from jobs.traces.trace import trace_from_columns
from scheduling.compiled import BUILDS, LIBRARY, MODULES, SUFFIX, CompiledFinder, source_checksum
from scheduling.engine.engine import Engine
from scheduling.engine.policies import POLICY_RULES
from scheduling.engine.room import NodeResources
from scheduling.engine.rules import PolicyRules
from scheduling.engine.turns.preempting import preempting_turn
from scheduling.engine.turns.sharing import sharing_turn
from scheduling.engine.turns.strict import strict_turn
from scheduling.replay.kernel import replay
from scheduling.replay.run import ReplaySetting, arrivals, replay_nodes
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
def test_it_decides_as_the_sources_do_to_the_last_digit():
    compiled, interpreted = told("1"), told("0")

    assert (compiled[1], interpreted[1]) == ("engine: compiled", "engine: interpreted")
    assert compiled[0] == interpreted[0]


# Policies as somebody would write them: plain files, that nobody compiles


class PlainSjf(PolicyRules):
    name = "sjf"
    one_line = True

    def turn(self, engine, now):
        strict_turn(engine, now)

    def key(self, job, now):
        return job.expected_s


class PlainDrf(PolicyRules):
    """GPUs only, which is all that the replay counts."""

    name = "drf"
    by_account = True

    def __init__(self):
        self.held = {}

    def turn(self, engine, now):
        sharing_turn(engine, now)

    def share(self, ask, engine, now):
        return self.held.get(ask.account, 0)

    def began(self, job, now):
        self.held[job.ask.account] = self.held.get(job.ask.account, 0) + job.gpus

    def left(self, job, now):
        self.held[job.ask.account] -= job.gpus


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

    def next_change(self, job, now):
        if job.level == 2 or not job.gpus:
            return None
        return now + max(0.0, self.thresholds[job.level] - job.attained) / job.gpus

    def changed(self, job, now):
        job.level += 1


@pytest.mark.parametrize("plain", [PlainSjf, PlainDrf, PlainTiresias])
def test_a_policy_that_nobody_compiles_works_beside_it(plain):
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
    (tmp_path / "scheduling" / "simulator").mkdir()
    shutil.copy(ROOT / "scheduling" / "simulator" / "kernel.py", tmp_path / "scheduling" / "simulator")
    return tmp_path


@pytest.mark.parametrize(
    "edited", ["scheduling/engine/room.py", "scheduling/engine/policies/fifo.py", "scheduling/replay/kernel.py"]
)
def test_an_edited_line_asks_for_another_build(sources, edited):
    before = source_checksum(sources)
    with (sources / edited).open("a") as source:
        source.write("# one more\n")

    assert before == source_checksum(ROOT)
    assert source_checksum(sources) != before


def test_it_is_looked_for_in_its_own_directory_alone_and_only_where_it_is_whole(tmp_path):
    finder = CompiledFinder(tmp_path)
    (tmp_path / f"{LIBRARY}{SUFFIX}").touch()

    assert finder.find_spec(LIBRARY, None).origin == str(tmp_path / f"{LIBRARY}{SUFFIX}")
    assert finder.find_spec(MODULES[0], None) is None
    assert finder.find_spec("scheduling.engine.cluster", None) is None


def test_every_module_of_it_has_its_source():
    assert all((ROOT / f"{name.replace('.', '/')}.py").exists() for name in MODULES)


def test_without_a_compiler_one_line_says_so(tmp_path):
    script = (
        f"from pathlib import Path; from acmeweb.services.compile_engine import main; main(Path({str(tmp_path)!r}))"
    )

    done = child("-c", script, CC="/no/such/compiler")

    assert not list(tmp_path.iterdir())
    assert "there is no C compiler /no/such/compiler here" in done.stderr
    assert done.stderr.count("\n") == 1
