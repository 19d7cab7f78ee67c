"""The compiled engine: it decides what the interpreted one decides, and is never one of other sources."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from acmeweb.env import ROOT
from jobs.traces.trace import made_of
from scheduling.compiled import BUILDS, LIBRARY, MODULES, SUFFIX, Finder, key
from scheduling.engine.engine import Engine
from scheduling.engine.policies import RULES
from scheduling.engine.room import Room
from scheduling.engine.rules import Rules
from scheduling.engine.turns.preempting import preempting
from scheduling.engine.turns.sharing import sharing
from scheduling.engine.turns.strict import strict
from scheduling.simulator.kernel import replay
from scheduling.simulator.run import Setting, arrivals, pool
from tests.patience import PATIENCE_S

built = pytest.mark.skipif(not (BUILDS / key()).is_dir(), reason="the engine is not compiled here: make compiled")


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
    done = child("-m", "tests.scheduling.engine_told", ACME_COMPILED=compiled)
    assert done.returncode == 0, done.stderr[-2000:]
    *rows, engine = done.stdout.splitlines()
    return rows, engine


@built
def test_it_decides_as_the_sources_do_to_the_last_digit():
    compiled, interpreted = told("1"), told("0")

    assert (compiled[1], interpreted[1]) == ("engine: compiled", "engine: interpreted")
    assert compiled[0] == interpreted[0]


# Policies as somebody would write them: plain files, that nobody compiles


class PlainSjf(Rules):
    name = "sjf"
    one_line = True

    def turn(self, engine, now):
        strict(engine, now)

    def key(self, job, now):
        return job.expected_s


class PlainDrf(Rules):
    """GPUs only, which is all that the replay counts."""

    name = "drf"
    by_account = True

    def __init__(self):
        self.held = {}

    def turn(self, engine, now):
        sharing(engine, now)

    def share(self, ask, engine, now):
        return self.held.get(ask.account, 0)

    def began(self, job, now):
        self.held[job.ask.account] = self.held.get(job.ask.account, 0) + job.gpus

    def left(self, job, now):
        self.held[job.ask.account] -= job.gpus


class PlainTiresias(Rules):
    name = "tiresias"
    preempts = True
    thresholds = (3250.0, 7200.0)

    def turn(self, engine, now):
        preempting(engine, now)

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
    dice, setting = np.random.default_rng(5), Setting(nodes=12)
    history = made_of(
        "crowd",
        submit_s=np.sort(dice.random(300) * 9_000),
        runtime_s=dice.integers(1, 9_000, 300),
        gpus=dice.choice([1, 1, 2, 4, 8, 12, 16, 40], 300),
        users=dice.choice(["a", "b", "c"], 300).tolist(),
    )

    def replayed(rules):
        engine = Engine(Room(pool(setting, setting.nodes)), rules)
        return replay(engine, arrivals(history, engine, setting))

    assert replayed(plain()) == replayed(RULES[plain.name]())


@pytest.fixture
def sources(tmp_path):
    shutil.copytree(ROOT / "scheduling" / "engine", tmp_path / "scheduling" / "engine")
    (tmp_path / "scheduling" / "simulator").mkdir()
    shutil.copy(ROOT / "scheduling" / "simulator" / "kernel.py", tmp_path / "scheduling" / "simulator")
    return tmp_path


@pytest.mark.parametrize(
    "edited", ["scheduling/engine/room.py", "scheduling/engine/policies/fifo.py", "scheduling/simulator/kernel.py"]
)
def test_an_edited_line_asks_for_another_build(sources, edited):
    before = key(sources)
    with (sources / edited).open("a") as source:
        source.write("# one more\n")

    assert before == key(ROOT)
    assert key(sources) != before


def test_it_is_looked_for_in_its_own_directory_alone_and_only_where_it_is_whole(tmp_path):
    finder = Finder(tmp_path)
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
