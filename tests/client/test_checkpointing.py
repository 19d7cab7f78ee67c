"""AsyncCheckpointer with the real torch on CPUs: durable checkpoints survive any kill; stalls are reported."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import NO_TORCH

# Where `.ci/run system` has installed the CPU build, separate from the other packages
TORCH_AT = os.environ.get("TORCH_AT", "")
if TORCH_AT:
    sys.path.append(TORCH_AT)
torch = pytest.importorskip("torch", reason=NO_TORCH)

from acme_client.checkpointing import AsyncCheckpointer  # noqa: E402 - needs torch
from torch.distributed.checkpoint.staging import DefaultStager  # noqa: E402

from failures.recovery import checkpoint_listing  # noqa: E402
from failures.recovery.rules import checkpoints  # noqa: E402
from tests.patience import until  # noqa: E402

LONG_S = 800  # four processes, each of which imports torch
# A warning of torch for every save by a single process, which is intended here
IGNORED = "ignore:torch.distributed is disabled:UserWarning"
pytestmark = [pytest.mark.system, pytest.mark.filterwarnings(IGNORED)]


WITH_TORCH = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


class Said(list):
    """A fake Run that records the calls."""

    def checkpoint_saved(self, path, step=None, *, durable=False, stall_s=None):
        self.append((Path(path).name, step, durable, stall_s))


def state(value=1.0, size=64):
    return {"model": {"w": torch.full((size, size), value)}, "step": 7}


def found(directory):
    """Return the checkpoints that recovery finds, by the convention of torch DCP."""
    return checkpoints.find_checkpoints(checkpoint_listing.list_checkpoint_files(str(directory), "."))


def test_saved_state_is_restored_and_recovery_accepts_the_checkpoint(tmp_path):
    with AsyncCheckpointer(tmp_path) as saving:
        saving.save(state(3.0), 40)
        saving.wait()
    fresh = state(0.0)

    with AsyncCheckpointer(tmp_path) as other:
        step = other.restore(fresh)

    assert step == 40 and fresh["model"]["w"].eq(3.0).all()
    assert [(one.step, one.kind, one.problem) for one in found(tmp_path)] == [(40, "torch DCP", "")]


def test_first_start_has_no_checkpoint(tmp_path):
    with AsyncCheckpointer(tmp_path / "new") as saving:
        assert saving.restore(state()) is None and saving.newest() is None


def test_the_state_may_change_as_soon_as_save_returns(tmp_path):
    mine = state(1.0, size=1024)
    with AsyncCheckpointer(tmp_path) as saving:
        saving.save(mine, 1)
        mine["model"]["w"].fill_(9.0)
        saving.wait()
        again = state(0.0, size=1024)
        saving.restore(again)

    assert again["model"]["w"].eq(1.0).all()


def test_later_saves_work_where_torch_closes_its_stager_after_each_use(tmp_path, monkeypatch):
    """As torch 2.11 and 2.12 do."""
    stage = DefaultStager._stage

    def stage_and_close(stager, state_dict, **options):
        staged = stage(stager, state_dict, **options)
        stager._state_dict_stager.close()
        return staged

    monkeypatch.setattr(DefaultStager, "_stage", stage_and_close)
    with AsyncCheckpointer(tmp_path) as saving:
        for step in (1, 2, 3):
            saving.save(state(float(step)), step)
        saving.wait()
        again = state(0.0)
        assert saving.restore(again) == 3

    assert again["model"]["w"].eq(3.0).all()


def test_newest_checkpoints_stay_and_older_ones_are_pruned(tmp_path):
    with AsyncCheckpointer(tmp_path, keep=2) as saving:
        for step in range(5):
            saving.save(state(float(step)), step)
        saving.wait()

    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_3", "step_4"]


def test_step_saved_again_replaces_the_old_checkpoint(tmp_path):
    with AsyncCheckpointer(tmp_path) as saving:
        saving.save(state(1.0), 5)
        saving.save(state(2.0), 5)
        saving.wait()
        fresh = state(0.0)
        saving.restore(fresh)

    assert fresh["model"]["w"].eq(2.0).all()


def test_stall_and_durability_are_reported_when_known(tmp_path):
    said = Said()
    with AsyncCheckpointer(tmp_path, said) as saving:
        stall_s = saving.save(state(), 3)
        saving.wait()

    assert said == [("step_3", 3, False, stall_s), ("step_3", 3, True, None)]
    assert stall_s > 0 and saving.stalled_s == stall_s and saving.saves == 1


def test_checkpoint_chosen_by_recovery_is_loaded(tmp_path, monkeypatch):
    with AsyncCheckpointer(tmp_path) as saving:
        for step in (1, 2):
            saving.save(state(float(step)), step)
        saving.wait()
        monkeypatch.setenv("ACME_CHECKPOINT", str(tmp_path / "step_1"))
        fresh = state(0.0)

        assert saving.restore(fresh) == 1 and fresh["model"]["w"].eq(1.0).all()


def saved(directory):
    return {path.name for path in directory.iterdir()}


@pytest.fixture
def sent_back(tmp_path, monkeypatch):
    """A directory where recovery has chosen step 900 while 1000 and 1100 exist."""
    with AsyncCheckpointer(tmp_path, keep=9) as saving:
        for step in (800, 900, 1000, 1100):
            saving.save(state(float(step)), step)
    monkeypatch.setenv("ACME_CHECKPOINT", str(tmp_path / "step_900"))
    return tmp_path


@pytest.mark.parametrize(
    ("keep", "first", "second"),
    [
        (1, {910}, {920}),
        (2, {900, 910}, {910, 920}),
        (3, {800, 900, 910}, {900, 910, 920}),
        (4, {1100, 800, 900, 910}, {800, 900, 910, 920}),
    ],
)
def test_after_a_rollback_new_checkpoints_and_their_base_outlive_abandoned_ones(sent_back, keep, first, second):
    with AsyncCheckpointer(sent_back, keep=keep) as saving:
        assert saving.restore(state()) == 900
        assert saved(sent_back) == {f"step_{step}" for step in (800, 900, 1000, 1100)}  # nothing new is durable yet
        for step, left in ((910, first), (920, second)):
            saving.save(state(float(step)), step)

            assert saving.wait() == sent_back / f"step_{step}"
            assert saved(sent_back) == {f"step_{step}" for step in left}


@pytest.mark.parametrize("saves", [(), (910,)])
def test_restart_without_the_choice_ignores_abandoned_checkpoints(sent_back, monkeypatch, saves):
    with AsyncCheckpointer(sent_back, keep=9) as saving:
        saving.restore(state())
        for step in saves:
            saving.save(state(float(step)), step)
    monkeypatch.delenv("ACME_CHECKPOINT")
    fresh, last = state(0.0), (*saves, 900)[0]

    with AsyncCheckpointer(sent_back, keep=9) as other:
        assert other.restore(fresh) == last and fresh["model"]["w"].eq(last).all()
    assert {one.step for one in found(sent_back) if one.is_complete} == {800, 900, 1000, 1100, *saves}


def test_restore_by_path_abandons_no_checkpoint(tmp_path):
    with AsyncCheckpointer(tmp_path) as saving:
        for step in (1, 2):
            saving.save(state(float(step)), step)
        saving.wait()

        assert saving.restore(state(), tmp_path / "step_1") == 1 and saving.newest() == tmp_path / "step_2"


def test_checkpoints_without_order_numbers_are_ordered_by_step(sent_back, monkeypatch):
    for order in sent_back.glob("step_*/.order"):
        order.unlink()
    with AsyncCheckpointer(sent_back) as saving:
        assert saving.newest() == sent_back / "step_1100"
        saving.restore(state())

        assert saving.newest() == sent_back / "step_900"


def test_kill_at_any_rename_or_removal_keeps_a_step_saved_again(tmp_path, monkeypatch):
    home, moments = tmp_path / "home", []

    def watched(command):
        def with_a_copy(path, *args, **kwargs):
            done = command(path, *args, **kwargs)
            if Path(path).parent == home:
                moments.append(shutil.copytree(home, tmp_path / f"moment {len(moments)}"))
            return done

        return with_a_copy

    with AsyncCheckpointer(home, keep=1) as saving:
        saving.save(state(1.0), 5)
        saving.wait()
        with monkeypatch.context() as watching:
            watching.setattr(Path, "rename", watched(Path.rename))
            watching.setattr(shutil, "rmtree", watched(shutil.rmtree))
            saving.save(state(2.0), 5)
            saving.wait()

    assert len(moments) >= 3
    for moment in moments:
        fresh = state(0.0)
        with AsyncCheckpointer(moment) as other:
            assert other.restore(fresh) == 5 and float(fresh["model"]["w"][0, 0]) in (1.0, 2.0)
        assert saved(moment) == {"step_5"}


def test_replaced_checkpoint_is_restored_if_the_new_one_cannot_be_renamed(tmp_path, monkeypatch):
    rename = Path.rename

    def refused(path, target):
        if path.name.endswith(".saving"):
            raise OSError("the store says no")
        return rename(path, target)

    with AsyncCheckpointer(tmp_path) as saving:
        saving.save(state(1.0), 5)
        saving.wait()
        monkeypatch.setattr(Path, "rename", refused)
        saving.save(state(2.0), 5)

        assert saving.wait() == tmp_path / "step_5" and saving.failed == 1
    assert saved(tmp_path) == {"step_5"}


def test_failed_save_is_logged_and_the_previous_checkpoint_stays(tmp_path, caplog):
    with AsyncCheckpointer(tmp_path) as saving:
        saving.save(state(1.0), 1)
        saving.wait()
        (tmp_path / ".step_2.saving").write_text("a file where a directory must be")
        saving.save(state(2.0), 2)

        assert saving.wait() == tmp_path / "step_1" and saving.failed == 1
    assert "step 2 was not saved" in caplog.text


def test_incomplete_files_of_a_killed_attempt_are_removed(tmp_path):
    for name in (".step_9.saving", ".step_8.gone"):
        (tmp_path / name).mkdir()
    (tmp_path / "notes").mkdir()

    AsyncCheckpointer(tmp_path).close()

    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_at_least_one_checkpoint_must_be_kept(tmp_path):
    with pytest.raises(ValueError, match="keep"):
        AsyncCheckpointer(tmp_path, keep=0)


ENDLESS = """
import sys, torch
from acme_client.checkpointing import AsyncCheckpointer
saving, step = AsyncCheckpointer(sys.argv[1]), 0
while True:
    step += 1
    saving.save({"w": torch.full((512, 512), float(step)), "more": [torch.zeros(4096) for _ in range(40)]}, step)
"""


def test_kill_at_any_moment_keeps_the_newest_durable_checkpoint_complete(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", ENDLESS, str(tmp_path)], env=WITH_TORCH)
    try:
        until(lambda: len(found(tmp_path)) >= 2 and list(tmp_path.glob(".step_*.saving")), what="a save under way")
    finally:
        process.kill()
        process.wait()

    [newest, *_] = found(tmp_path)
    fresh = {"w": torch.zeros(512, 512), "more": [torch.ones(4096) for _ in range(40)]}
    with AsyncCheckpointer(tmp_path) as saving:
        step = saving.restore(fresh)

    assert all(one.is_complete for one in found(tmp_path)) and step == newest.step
    assert fresh["w"].eq(float(step)).all() and not list(tmp_path.glob(".*"))


TOGETHER = """
import sys, torch, torch.distributed as dist
from acme_client.checkpointing import AsyncCheckpointer
if __name__ == "__main__":
    rank = int(sys.argv[2])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/meet", rank=rank, world_size=2)
    with AsyncCheckpointer(sys.argv[1] + "/saved") as saving:
        assert saving._by_process
        for step in (1, 2):
            saving.save({"same": torch.full((8,), float(step)), f"of {rank}": torch.full((8,), float(rank))}, step)
        saving.wait()
        dist.barrier()
        fresh = {"same": torch.zeros(8), f"of {rank}": torch.full((8,), -1.0)}
        assert saving.restore(fresh) == 2
        assert fresh["same"].eq(2).all() and fresh[f"of {rank}"].eq(rank).all()
    dist.destroy_process_group()
"""


@pytest.mark.timeout(900)
def test_two_ranks_write_one_checkpoint_from_separate_processes(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TOGETHER)
    environment = {**WITH_TORCH, "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path), str(rank)], env=environment, stderr=subprocess.PIPE, text=True
        )
        for rank in (0, 1)
    ]
    try:
        told = [rank.communicate(timeout=LONG_S)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.send_signal(signal.SIGKILL)
            rank.wait()

    assert [rank.returncode for rank in ranks] == [0, 0], told
    assert [(one.step, one.problem) for one in found(tmp_path / "saved")] == [(2, ""), (1, "")]
