"""Checkpoints in the formats of five frameworks, complete and damaged, in real directories."""

import json
import os
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from failures.recovery import checkpoint_listing
from failures.recovery.checkpoint_listing import CheckpointListingError
from failures.recovery.rules import checkpoints
from failures.recovery.rules.checkpoints import is_complete_file, to_saved_checkpoints

OPTIMIZER = "bf16_zero_pp_rank_{}_mp_rank_00_optim_states.pt"


@pytest.fixture
def shelf(tmp_path):
    return tmp_path


def write(shelf, path, content=b"x"):
    file = shelf / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def torch_file(shelf, path):
    """An uncompressed zip, as torch.save writes it."""
    file = write(shelf, path)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", b"weights" * 100)
    return file


def tensors(shelf, path, size=64):
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return write(shelf, path, len(header).to_bytes(8, "little") + header + b"w" * size)


def megatron(shelf, step=100):
    for rank in range(2):
        torch_file(shelf, f"iter_{step:07}/mp_rank_{rank:02}/model_optim_rng.pt")
    write(shelf, "latest_checkpointed_iteration.txt", f"{step}\n")


def deepspeed(shelf, step=100):
    torch_file(shelf, f"global_step{step}/mp_rank_00_model_states.pt")
    for rank in range(3):
        torch_file(shelf, f"global_step{step}/{OPTIMIZER.format(rank)}")
    write(shelf, "latest", f"global_step{step}")


def dcp(shelf, step=100):
    write(shelf, f"step-{step}/__0_0.distcp")
    write(shelf, f"step-{step}/.metadata")


def lightning(shelf, step=100):
    torch_file(shelf, f"lightning_logs/version_0/checkpoints/epoch=3-step={step}.ckpt")


def hugging_face(shelf, step=100):
    at = f"checkpoint-{step}"
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    for name in names.values():
        tensors(shelf, f"{at}/{name}")
    torch_file(shelf, f"{at}/optimizer.pt")
    write(shelf, f"{at}/model.safetensors.index.json", json.dumps({"weight_map": names}))
    write(shelf, f"{at}/trainer_state.json", json.dumps({"global_step": step}))


EVERY = {"Megatron": megatron, "DeepSpeed": deepspeed, "torch DCP": dcp, "Lightning": lightning}
EVERY |= {"Hugging Face": hugging_face}


def found(shelf, **bounds):
    return checkpoints.find_checkpoints(checkpoint_listing.list_checkpoint_files(str(shelf), "", **bounds))


def problem(shelf):
    (one,) = found(shelf)
    return one.problem


@pytest.mark.parametrize("kind", EVERY)
def test_each_format_is_recognized_and_complete(shelf, kind):
    EVERY[kind](shelf)

    (one,) = found(shelf)

    assert (one.kind, one.step, one.is_complete, one.problem) == (kind, 100, True, "")
    assert one.size > 0 and (shelf / one.path).exists()


@pytest.mark.parametrize("kind", EVERY)
def test_older_checkpoint_stays_complete_next_to_a_newer_one(shelf, kind):
    for step in (90, 100):
        EVERY[kind](shelf, step)

    assert [(one.step, one.is_complete) for one in found(shelf)] == [(100, True), (90, True)]


@pytest.mark.parametrize(
    ("kind", "path", "word"),
    [
        ("Megatron", "latest_checkpointed_iteration.txt", "may not have finished"),
        ("Megatron", "iter_0000100/mp_rank_00/model_optim_rng.pt", "rank 0 are missing"),
        ("DeepSpeed", "latest", "may not have finished"),
        ("DeepSpeed", f"global_step100/{OPTIMIZER.format(1)}", "rank 1 are missing"),
        ("DeepSpeed", "global_step100/mp_rank_00_model_states.pt", "no model states"),
        ("torch DCP", "step-100/.metadata", "written last"),
        ("torch DCP", "step-100/__0_0.distcp", "no .distcp"),
        ("Hugging Face", "checkpoint-100/trainer_state.json", "written after"),
        (
            "Hugging Face",
            "checkpoint-100/model-00002-of-00002.safetensors",
            "model-00002-of-00002.safetensors is missing",
        ),
    ],
)
def test_checkpoint_with_a_missing_file_is_not_trusted(shelf, kind, path, word):
    EVERY[kind](shelf)
    (shelf / path).unlink()

    assert word in problem(shelf)


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("Megatron", "iter_0000100/mp_rank_01/model_optim_rng.pt"),
        ("DeepSpeed", f"global_step100/{OPTIMIZER.format(2)}"),
        ("Lightning", "lightning_logs/version_0/checkpoints/epoch=3-step=100.ckpt"),
        ("Hugging Face", "checkpoint-100/model-00001-of-00002.safetensors"),
        ("Hugging Face", "checkpoint-100/optimizer.pt"),
    ],
)
@pytest.mark.parametrize("left", [0, 30])
def test_truncated_checkpoint_is_not_trusted(shelf, kind, path, left):
    EVERY[kind](shelf)
    os.truncate(shelf / path, left)

    assert ("empty" if not left else "truncated") in problem(shelf)


@pytest.mark.parametrize(
    ("kind", "path", "text", "word"),
    [
        ("Megatron", "latest_checkpointed_iteration.txt", "90", "the save did not finish"),
        ("Megatron", "latest_checkpointed_iteration.txt", "\x00\xff²", "the save did not finish"),
        ("Megatron", "latest_checkpointed_iteration.txt", "9²", "the save did not finish"),
        ("DeepSpeed", "latest", "global_step90", "the save did not finish"),
        ("DeepSpeed", "latest", "../../etc", "the save did not finish"),
        ("Hugging Face", "checkpoint-100/trainer_state.json", "[" * 100_000, "not valid JSON"),
        ("Hugging Face", "checkpoint-100/trainer_state.json", '{"global_step": 5}', "is of step 5"),
        ("Hugging Face", "checkpoint-100/model.safetensors.index.json", '{"weight_map": []}', "lists no files"),
    ],
)
def test_file_written_last_decides_whether_the_save_finished(shelf, kind, path, text, word):
    EVERY[kind](shelf)
    write(shelf, path, text)

    assert word in problem(shelf)


def test_megatron_checkpoint_in_dcp_format_is_recognized(shelf):
    write(shelf, "iter_0000100/__0_0.distcp")
    write(shelf, "latest_checkpointed_iteration.txt", "100")
    assert ".metadata" in problem(shelf)

    write(shelf, "iter_0000100/.metadata")
    assert not problem(shelf)


def test_other_directories_are_not_checkpoints(shelf):
    for path in ("100/notes.txt", "src/model.pt", "last.ckpt", "checkpoint-5/readme.md"):
        write(shelf, path)

    assert found(shelf) == ()


def test_save_order_is_read_if_it_was_recorded(shelf):
    for step, order in ((900, "3"), (1000, "2"), (1100, "many")):
        dcp(shelf, step)
        write(shelf, f"step-{step}/.order", order.encode())

    assert [(one.step, one.order) for one in found(shelf)] == [(1100, 0), (1000, 2), (900, 3)]
    assert [one.order for one in checkpoints.to_saved_checkpoints(found(shelf), "/ckpt")] == [0, 2, 3]


def test_checkpoints_saved_after_a_spike_are_bad(shelf):
    for step in (90, 100):
        dcp(shelf, step)

    saved = to_saved_checkpoints(found(shelf), "/data/run/", spike_at=95)

    assert [(one.step, one.verdict, one.is_usable) for one in saved] == [(100, "bad", False), (90, "", True)]
    assert saved[1].path == "/data/run/step-90"


# --- the reader


def test_symbolic_links_are_not_followed(shelf, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    dcp(outside)
    (shelf / "run").mkdir()
    (shelf / "run" / "step-100").symlink_to(outside / "step-100")
    (shelf / "way").symlink_to(outside)
    write(shelf, "step-7/.metadata")
    (shelf / "step-7" / "__0_0.distcp").symlink_to(outside / "step-100" / "__0_0.distcp")

    assert [(one.step, one.is_complete) for one in found(shelf)] == [(7, False)]
    with pytest.raises(CheckpointListingError):
        checkpoint_listing.list_checkpoint_files(str(shelf), "way")


@pytest.mark.parametrize("path", ["..", "a/../../b", "/etc", "missing", "nul\x00"])
def test_paths_outside_the_root_are_not_listed(shelf, path):
    with pytest.raises(CheckpointListingError):
        checkpoint_listing.list_checkpoint_files(str(shelf / "."), path)


def test_absolute_path_below_the_root_is_listed(shelf):
    dcp(shelf / "run")

    assert checkpoint_listing.list_checkpoint_files(str(shelf), str(shelf / "run")).files


def test_incomplete_listing_makes_no_checkpoint_trusted(shelf):
    for step in range(1, 6):
        dcp(shelf, step)

    several = found(shelf, most_files=4)

    assert several and all("more than 4 files" in one.problem for one in several)


def test_very_deep_directory_tree_is_not_listed_completely(shelf):
    dcp(shelf)
    write(shelf, "/".join("abcdefghijkl") + "/x")

    assert "directories deep" in problem(shelf)


def test_file_names_that_are_not_utf8_are_skipped(shelf):
    dcp(shelf)
    os.makedirs(os.fsencode(shelf) + b"/bad\xff/step-5")
    for name in (b"/bad\xff/step-5/.metadata", b"/bad\xff/step-5/__0_0.distcp", b"/bad\xff.pt"):
        write(shelf, os.fsdecode(name[1:]))

    (one,) = found(shelf)
    assert (one.step, one.problem) == (100, "")


def test_named_pipe_does_not_block_the_listing(shelf):
    dcp(shelf)
    os.mkfifo(shelf / "step-100" / "pipe.pt")

    assert not problem(shelf)


@given(st.binary(max_size=200), st.sampled_from(["a.pt", "a.ckpt", "a.safetensors", "a.txt"]))
def test_check_of_a_file_accepts_any_bytes(content, name):
    assert is_complete_file(name, len(content), lambda at, length: content[at : at + length]) in (True, False, None)


@given(st.integers(1, 100))
def test_truncated_safetensors_file_is_detected(lost):
    header = json.dumps({"__metadata__": {}, "w": {"data_offsets": [0, 100]}}).encode()
    whole = len(header).to_bytes(8, "little") + header + b"w" * 100
    part = whole[:-lost]

    assert is_complete_file("m.safetensors", len(whole), lambda at, length: whole[at : at + length])
    assert not is_complete_file("m.safetensors", len(part), lambda at, length: part[at : at + length])
