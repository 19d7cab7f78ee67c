"""Which checkpoints a directory listing contains, without a file system."""

import json
from datetime import UTC, datetime

import pytest

from failures.recovery.rules.checkpoints import (
    HEADER_LENGTH_BYTES,
    MAX_HEADER_BYTES,
    ZIP_BEGIN,
    ZIP_END,
    DirectoryListing,
    ListedFile,
    find_checkpoints,
    is_complete_file,
    to_saved_checkpoints,
)


def listed(*paths, texts=None, cut=""):
    files = [ListedFile(path=path, size=10, at=datetime(2026, 1, day, tzinfo=UTC)) for day, path in enumerate(paths, 1)]
    return find_checkpoints(DirectoryListing(files=files, texts=texts or {}, cut=cut))


def complete(content, name="a.pt"):
    return is_complete_file(name, len(content), lambda offset, length: content[offset : offset + length])


# --- single files


@pytest.mark.parametrize("name", ["a.pt", "a.ckpt"])
def test_torch_file_is_complete_if_its_zip_has_an_end(name):
    whole = ZIP_BEGIN + b"weights" * 9 + ZIP_END + b"\0" * 18

    assert complete(whole, name) is True
    assert complete(whole[:-1], name) is False
    assert complete(ZIP_BEGIN, name) is False
    assert complete(b"\x80\x02pickled", name) is None
    assert complete(whole, "a.bin") is None


def safetensors(header, tensors=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + tensors


@pytest.mark.parametrize(
    ("content", "is_complete"),
    [
        (safetensors({}), True),
        (safetensors({}, b"x"), False),
        (safetensors({"w": {"data_offsets": [0, 3]}, "__metadata__": {"data_offsets": [0, 9]}}, b"abc"), True),
        (safetensors({"w": {"data_offsets": [0, 3]}, "v": {"data_offsets": [3, 5]}}, b"abcde"), True),
        (safetensors({"w": {"data_offsets": [0, 3]}, "v": {"data_offsets": [3, 5]}}, b"abcd"), False),
        (safetensors({"w": {"data_offsets": [3]}}, b"abc"), False),
        (safetensors({"w": {"data_offsets": [0, "3"]}}, b"abc"), False),
        (safetensors({"w": {}}), False),
        (safetensors({"w": 3}, b"abc"), False),
        (safetensors(b"[]"), False),
        (safetensors(b"{"), False),
        (safetensors(b"{}")[:-1], False),
        (b"\2\0\0\0\0\0\0", False),
        (b"", False),
    ],
)
def test_safetensors_file_ends_with_its_last_tensor(content, is_complete):
    assert complete(content, "model.safetensors") is is_complete


def test_huge_header_is_not_read():
    reads = []

    def read(offset, length):
        reads.append(length)
        return (MAX_HEADER_BYTES + 1).to_bytes(8, "little")

    assert is_complete_file("m.safetensors", MAX_HEADER_BYTES * 2, read) is False
    assert reads == [HEADER_LENGTH_BYTES]


# --- formats


@pytest.mark.parametrize(
    ("path", "step", "kind"),
    [
        ("run/iter_0000100/mp_rank_00/model_optim_rng.pt", 100, "Megatron"),
        ("global_step7/mp_rank_00_model_states.pt", 7, "DeepSpeed"),
        ("checkpoint_7/mp_rank_00_model_states.pt", 7, "DeepSpeed"),
        ("checkpoint-7/model.safetensors", 7, "Hugging Face"),
        ("checkpoint-7/trainer_state.json", 7, "Hugging Face"),
        ("7/.metadata", 7, "torch DCP"),
        ("step=7/__0_0.distcp", 7, "torch DCP"),
        ("step-9/step-7/.metadata", 9, "torch DCP"),
        ("epoch=1-step=0012.ckpt", 12, "Lightning"),
        ("a/last-step=12-v1.ckpt", 12, "Lightning"),
    ],
)
def test_format_and_step_are_recognised_by_names(path, step, kind):
    (one,) = listed(path)

    assert (one.step, one.kind) == (step, kind)


@pytest.mark.parametrize(
    "path", ["checkpoint-7/notes.txt", "step-7", "7/model.safetensors", "step-x/.metadata", "a.ckpt"]
)
def test_names_without_a_step_or_format_are_no_checkpoint(path):
    assert listed(path) == ()


def test_checkpoint_has_the_size_of_all_files_and_the_time_of_the_newest():
    (one,) = listed("step-7/.metadata", "step-7/__0_0.distcp", "step-7/__1_0.distcp")

    assert (one.path, one.size, one.saved_at.day, one.problem, one.order) == ("step-7", 30, 3, "", 0)


def test_newest_step_comes_first_and_equal_steps_are_ordered_by_path():
    paths = [f"{run}/step-{step}/.metadata" for run, step in (("b", 7), ("a", 7), ("a", 10))]

    assert [one.path for one in listed(*paths)] == ["a/step-10", "a/step-7", "b/step-7"]


def megatron(*ranks, tracker="100", leaves=("model_optim_rng.pt",)):
    paths = [f"iter_0000100/{rank}/{leaf}" for rank in ranks for leaf in leaves]
    texts = {"latest_checkpointed_iteration.txt": tracker} if tracker is not None else {}
    (one,) = listed(*paths, "iter_0000100/common.pt", texts=texts)
    return one.problem


@pytest.mark.parametrize(
    ("tracker", "problem"),
    [
        ("100", ""),
        ("101\n", ""),
        ("99", "'99': the save did not finish"),
        ("release", "'release': the save did not finish"),
        ("", "'': the save did not finish"),
        (None, "is missing, so the save may not have finished"),
        ("x" * 40, f"'{'x' * 20}': the save did not finish"),
    ],
)
def test_tracker_tells_whether_a_megatron_save_finished(tracker, problem):
    found = megatron("mp_rank_00", "mp_rank_01", tracker=tracker)

    assert found.endswith(problem) and bool(found) == bool(problem)


@pytest.mark.parametrize(
    ("ranks", "problem"),
    [
        (("mp_rank_00", "mp_rank_01"), ""),
        (("mp_rank_01",), "the files of rank 0 are missing"),
        (("mp_rank_00", "mp_rank_02"), "the files of rank 1 are missing"),
        (("mp_rank_00_000", "mp_rank_00_001"), ""),
        (("other",), "it contains no mp_rank directory and no .distcp file"),
    ],
)
def test_every_megatron_rank_is_needed(ranks, problem):
    assert megatron(*ranks) == problem


def test_megatron_rank_needs_the_model_but_not_every_file_of_other_ranks():
    texts = {"latest_checkpointed_iteration.txt": "100"}
    first = [f"iter_0000100/mp_rank_00/{leaf}" for leaf in ("model_optim_rng.pt", "distrib_optim.pt")]

    (with_model,) = listed(*first, "iter_0000100/mp_rank_01/model_optim_rng.pt", texts=texts)
    (without,) = listed(*first, "iter_0000100/mp_rank_01/distrib_optim.pt", texts=texts)

    assert with_model.problem == ""
    assert without.problem == "mp_rank_01 lacks files that other ranks have"


def deepspeed(*leaves, latest="global_step100"):
    paths = [f"run/global_step100/{leaf}" for leaf in leaves]
    (one,) = listed(*paths, texts={} if latest is None else {"run/latest": latest})
    return one.problem


@pytest.mark.parametrize(
    ("latest", "problem"),
    [
        ("global_step100", ""),
        ("global_step200\n", ""),
        ("global_step99", "latest contains 'global_step99': the save did not finish"),
        ("final", "latest contains 'final': the save did not finish"),
        (None, "the file latest is missing, so the save may not have finished"),
    ],
)
def test_latest_tells_whether_a_deepspeed_save_finished(latest, problem):
    assert deepspeed("mp_rank_00_model_states.pt", latest=latest) == problem


@pytest.mark.parametrize(
    ("leaves", "problem"),
    [
        (["a_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"], ""),
        (["a_model_states.pt", "zero_pp_rank_1_mp_rank_00_optim_states.pt"], "the files of rank 0 are missing"),
        (["a_model_states.pt", "zero_pp_rank_1_mp_rank_00_other.pt", "mp_rank_05_optim_states.pt"], ""),
        (["zero_pp_rank_0_mp_rank_00_optim_states.pt"], "it contains no model states"),
    ],
)
def test_deepspeed_save_needs_model_states_and_every_optimizer_shard(leaves, problem):
    assert deepspeed(*leaves) == problem


def hugging_face(*leaves, state='{"global_step": 100}', index=None):
    texts = {"checkpoint-100/trainer_state.json": state}
    if index is not None:
        texts["checkpoint-100/model.safetensors.index.json"] = index
    (one,) = listed(*(f"checkpoint-100/{leaf}" for leaf in ("trainer_state.json", *leaves)), texts=texts)
    return one.problem


INDEX = "model.safetensors.index.json"
SHARDS = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})


@pytest.mark.parametrize(
    ("fields", "leaves", "problem"),
    [
        ({}, ["model.safetensors"], ""),
        ({}, ["adapter_model.bin"], ""),
        ({}, ["optimizer.pt"], "it contains no weights"),
        ({"state": '{"global_step": 99}'}, ["model.safetensors"], "trainer_state.json is of step 99"),
        ({"state": "{}"}, ["model.safetensors"], "trainer_state.json is of step None"),
        ({"state": json.dumps({"global_step": "9" * 30})}, ["model.safetensors"], f"is of step {'9' * 20}"),
        ({"state": "[]"}, ["model.safetensors"], "is missing or not valid JSON"),
        ({"index": SHARDS}, [INDEX, "model-1.safetensors", "model-2.safetensors"], ""),
        ({"index": SHARDS}, [INDEX, "model-1.safetensors"], f"model-2.safetensors is missing, but {INDEX} lists it"),
        ({"index": '{"weight_map": {}}'}, [INDEX, "model.safetensors"], f"{INDEX} lists no files"),
        ({"index": '{"weight_map": [1]}'}, [INDEX, "model.safetensors"], f"{INDEX} lists no files"),
        ({"index": "{}"}, [INDEX, "model.safetensors"], f"{INDEX} lists no files"),
        ({}, [INDEX, "model.safetensors"], f"{INDEX} lists no files"),
    ],
)
def test_hugging_face_save_needs_its_state_and_all_listed_weights(fields, leaves, problem):
    found = hugging_face(*leaves, **fields)

    assert found.endswith(problem) and bool(found) == bool(problem)


def one_file(name, size=10, sound=None):
    file = ListedFile(path=f"step-7/{name}", size=size, at=datetime(2026, 1, 1, tzinfo=UTC), sound=sound)
    beside = [ListedFile(path=f"step-7/{leaf}", size=5, at=file.at) for leaf in (".metadata", "__9_9.distcp")]
    files = {one.path: one for one in [*beside, file]}
    (found,) = find_checkpoints(DirectoryListing(files=list(files.values())))
    return found.problem


@pytest.mark.parametrize(
    ("name", "fields", "problem"),
    [
        ("a.pt", {"sound": True}, ""),
        ("a.pt", {"sound": False}, "a.pt is truncated or damaged"),
        ("a.pt", {"size": 0}, "a.pt is empty"),
        ("__0_0.distcp", {"size": 0}, "__0_0.distcp is empty"),
        ("notes.txt", {"size": 0}, ""),
        (".metadata", {"size": 0}, ".metadata, which is written last, is missing or empty"),
    ],
)
def test_empty_or_damaged_file_is_named(name, fields, problem):
    assert one_file(name, **fields) == problem


def test_incomplete_listing_is_the_first_reason():
    (one,) = listed("step-7/__0_0.distcp", cut="it has more than 4 files")

    assert (one.problem, one.is_complete) == ("it has more than 4 files", False)


@pytest.mark.parametrize(
    ("text", "order"), [("12\n", 12), ("9" * 15, int("9" * 15)), ("9" * 16, 0), ("²", 0), ("-1", 0), ("", 0)]
)
def test_number_of_the_save_is_read(text, order):
    (one,) = listed("step-7/.metadata", "step-7/__0_0.distcp", texts={"step-7/.order": text})

    assert one.order == order


def test_checkpoint_of_the_spike_itself_is_bad():
    found = listed(*(f"step-{step}/{leaf}" for step in (6, 7) for leaf in (".metadata", "__0_0.distcp")))

    assert [one.verdict for one in to_saved_checkpoints(found, "/run", spike_at=7)] == ["bad", ""]
    assert [one.verdict for one in to_saved_checkpoints(found, "/run", spike_at=0)] == ["bad", "bad"]
    assert [(one.verdict, one.path, one.whole) for one in to_saved_checkpoints(found, "/run//")] == [
        ("", "/run/step-7", True),
        ("", "/run/step-6", True),
    ]
