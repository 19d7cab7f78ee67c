"""Finds the checkpoints in a directory listing and decides which of them are complete. Pure: the caller lists files.

Five formats are recognized by their names: Megatron, DeepSpeed, torch DCP, Lightning, Hugging Face. A checkpoint is
complete if all files of its format exist, none is empty or truncated, and the file that is written last (a tracker, an
index, the metadata) shows that the save finished. In doubt it is incomplete, with a reason.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from failures.recovery.rules.values import SavedCheckpoint

MEGATRON, DEEPSPEED, DCP = "Megatron", "DeepSpeed", "torch DCP"
LIGHTNING, HUGGING_FACE = "Lightning", "Hugging Face"

MEGATRON_TRACKER, DEEPSPEED_LATEST = "latest_checkpointed_iteration.txt", "latest"
TRAINER_STATE, DCP_METADATA = "trainer_state.json", ".metadata"
SAVE_ORDER_FILE = ".order"  # written by Acme's own checkpointer: the number of the save
STEP_DIRECTORY_PATTERN = re.compile(
    r"(?:iter_|global_step|checkpoint[-_]|step[-_=]?|ckpt[-_]?)?0*(\d{1,15})(?:\.ckpt)?"
)
LIGHTNING_FILE_PATTERN = re.compile(r"(?:.*[-_])?step=0*(\d{1,15})(?:[-_].*)?\.ckpt")
RANK_PATTERN = re.compile(r"(?:zero_pp|mp)_rank_(\d{1,9})")
INDEX_SUFFIXES = (".safetensors.index.json", ".bin.index.json")
WEIGHTS_PATTERN = re.compile(r"(?:model|pytorch_model|adapter_model)(?:\.safetensors|\.bin)")
ZIP_BEGIN, ZIP_END = b"PK\x03\x04", b"PK\x05\x06"
ZIP_TAIL_BYTES = 22  # end record of a zip without a comment, as torch writes it
HEADER_LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100 << 20


@dataclass(frozen=True, kw_only=True)
class ListedFile:
    path: str  # relative, with /
    size: int
    at: datetime
    sound: bool | None = None  # None: the file type has no check


@dataclass(frozen=True, kw_only=True)
class DirectoryListing:
    files: Sequence[ListedFile] = ()
    texts: Mapping[str, str] = field(default_factory=dict)  # contents of the small files, by path
    cut: str = ""  # why the listing may be incomplete


@dataclass(frozen=True, kw_only=True)
class ListedCheckpoint:
    step: int
    path: str  # relative to what was listed
    kind: str
    size: int
    saved_at: datetime
    problem: str = ""  # why it is not complete
    order: int = 0  # number of the save, the newest has the highest; 0: not numbered

    @property
    def is_complete(self) -> bool:
        return not self.problem


@dataclass(frozen=True, kw_only=True)
class CheckpointFiles:
    """The files of one checkpoint, with paths relative to its directory."""

    path: str
    step: int
    files: Mapping[str, ListedFile]
    listing: DirectoryListing

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def beside(self, name: str) -> str | None:
        """The contents of a file in the parent directory, if it was read."""
        parent = self.path.rpartition("/")[0]
        return self.listing.texts.get(f"{parent}/{name}" if parent else name)

    def text(self, name: str) -> str | None:
        return self.listing.texts.get(f"{self.path}/{name}")


def find_checkpoints(listing: DirectoryListing) -> tuple[ListedCheckpoint, ...]:
    """All recognized checkpoints, newest step first. Linear in the number of files."""
    files_by_directory: dict[str, dict[str, ListedFile]] = defaultdict(dict)
    checkpoints = []
    for file in listing.files:
        if (group := _checkpoint_directory(file.path)) is not None:
            files_by_directory[group][file.path.removeprefix(f"{group}/")] = file
        elif match := LIGHTNING_FILE_PATTERN.fullmatch(file.path.rpartition("/")[2]):
            checkpoints.append(_lightning_checkpoint(file, int(match[1])))
    groups = (
        CheckpointFiles(path=path, step=_directory_step(path), files=files, listing=listing)
        for path, files in files_by_directory.items()
    )
    checkpoints += [checkpoint for group in groups if (checkpoint := _checkpoint_from_files(group))]
    return tuple(sorted(checkpoints, key=lambda checkpoint: (-checkpoint.step, checkpoint.path)))


def to_saved_checkpoints(
    listed: Sequence[ListedCheckpoint], root: str, spike_at: int | None = None
) -> tuple[SavedCheckpoint, ...]:
    """The checkpoints as `decide` takes them. Those saved at a loss spike or after it are bad."""
    return tuple(
        SavedCheckpoint(
            step=checkpoint.step,
            path=f"{root.rstrip('/')}/{checkpoint.path}",
            whole=checkpoint.is_complete,
            verdict="bad" if spike_at is not None and checkpoint.step >= spike_at else "",
            order=checkpoint.order,
        )
        for checkpoint in listed
    )


def _checkpoint_directory(path: str) -> str | None:
    """The outermost directory on the path whose name is that of a step."""
    parts = path.split("/")
    for depth, part in enumerate(parts[:-1], 1):
        if STEP_DIRECTORY_PATTERN.fullmatch(part):
            return "/".join(parts[:depth])
    return None


def _directory_step(path: str) -> int:
    match = STEP_DIRECTORY_PATTERN.fullmatch(path.rpartition("/")[2])
    return int(match[1]) if match else 0


def _lightning_checkpoint(file: ListedFile, step: int) -> ListedCheckpoint:
    return ListedCheckpoint(
        step=step,
        path=file.path,
        kind=LIGHTNING,
        size=file.size,
        saved_at=file.at,
        problem=_damaged_file({file.path: file}),
    )


def _checkpoint_from_files(group: CheckpointFiles) -> ListedCheckpoint | None:
    kind = _checkpoint_format(group)
    if kind is None:
        return None
    problem = group.listing.cut or _damaged_file(group.files) or FORMAT_CHECKS[kind](group)
    files = group.files.values()
    return ListedCheckpoint(
        step=group.step, path=group.path, kind=kind, size=sum(file.size for file in files),
        saved_at=max(file.at for file in files), problem=problem, order=_save_order_number(group),
    )  # fmt: skip


def _save_order_number(group: CheckpointFiles) -> int:
    text = (group.text(SAVE_ORDER_FILE) or "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0


def _checkpoint_format(group: CheckpointFiles) -> str | None:
    names = {name.rpartition("/")[2] for name in group.files}
    if group.name.startswith("iter_"):
        return MEGATRON
    if group.name.startswith("global_step") or any(name.endswith("_model_states.pt") for name in names):
        return DEEPSPEED
    if TRAINER_STATE in group.files or (group.name.startswith("checkpoint-") and _weight_files(group)):
        return HUGGING_FACE
    return DCP if DCP_METADATA in names or any(name.endswith(".distcp") for name in names) else None


def _damaged_file(files: Mapping[str, ListedFile]) -> str:
    for name, file in sorted(files.items()):
        leaf = name.rpartition("/")[2]
        if file.sound is False or (
            not file.size and leaf.endswith((".pt", ".ckpt", ".distcp", ".safetensors", ".bin"))
        ):
            return f"{name} is {'truncated or damaged' if file.size else 'empty'}"
    return ""


# --- the checks of each format


def _megatron_defect(group: CheckpointFiles) -> str:
    text = group.beside(MEGATRON_TRACKER)
    if text is None:
        return f"{MEGATRON_TRACKER} is missing, so the save may not have finished"
    number = text.strip()[:18]
    if not (number.isascii() and number.isdigit()) or int(number) < group.step:
        return f"{MEGATRON_TRACKER} contains {text.strip()[:20]!r}: the save did not finish"
    if any(name.endswith(".distcp") for name in group.files):
        return _dcp_defect(group)
    return _rank_files_defect(group)


def _rank_files_defect(group: CheckpointFiles) -> str:
    """The defect of a checkpoint with one directory per rank: a missing rank, or missing files of a rank."""
    ranks: dict[str, set[str]] = defaultdict(set)
    for name in group.files:
        rank, slash, leaf = name.partition("/")
        if slash and RANK_PATTERN.match(rank):
            ranks[rank].add(leaf)
    if not ranks:
        return "it contains no mp_rank directory and no .distcp file"
    if missing := _missing_rank(int(match[1]) for rank in ranks if (match := RANK_PATTERN.match(rank))):
        return missing
    expected = set().union(*ranks.values())
    other = (rank for rank in sorted(ranks) if ranks[rank] != expected and not _has_model_weights(ranks[rank]))
    return f"{incomplete} lacks files that other ranks have" if (incomplete := next(other, "")) else ""


def _has_model_weights(leaves: set[str]) -> bool:
    return any(leaf.startswith("model_") for leaf in leaves)


def _deepspeed_defect(group: CheckpointFiles) -> str:
    text = group.beside(DEEPSPEED_LATEST)
    if text is None:
        return f"the file {DEEPSPEED_LATEST} is missing, so the save may not have finished"
    newest = STEP_DIRECTORY_PATTERN.fullmatch(text.strip())
    if newest is None or int(newest[1]) < group.step:
        return f"{DEEPSPEED_LATEST} contains {text.strip()[:40]!r}: the save did not finish"
    leaves = [name.rpartition("/")[2] for name in group.files]
    if not any(leaf.endswith("_model_states.pt") for leaf in leaves):
        return "it contains no model states"
    shards = (
        RANK_PATTERN.search(leaf) for leaf in leaves if leaf.endswith("_optim_states.pt") and "zero_pp_rank" in leaf
    )
    return _missing_rank(int(match[1]) for match in shards if match)


def _missing_rank(ranks: Iterable[int]) -> str:
    """The defect if a rank is missing. Ranks are numbered from 0 without gaps."""
    present = set(ranks)
    missing = next((rank for rank in range(len(present)) if rank not in present), None)
    return f"the files of rank {missing} are missing" if missing is not None else ""


def _dcp_defect(group: CheckpointFiles) -> str:
    metadata = next((file for name, file in group.files.items() if name.rpartition("/")[2] == DCP_METADATA), None)
    if metadata is None or not metadata.size:
        return f"{DCP_METADATA}, which is written last, is missing or empty"
    return "" if any(name.endswith(".distcp") for name in group.files) else "it contains no .distcp file"


def _hugging_face_defect(group: CheckpointFiles) -> str:
    state = _parse_json_object(group.text(TRAINER_STATE))
    if state is None:
        return f"{TRAINER_STATE}, which is written after the weights, is missing or not valid JSON"
    if state.get("global_step") != group.step:
        return f"{TRAINER_STATE} is of step {str(state.get('global_step'))[:20]}"
    weights = _weight_files(group)
    if not weights:
        return "it contains no weights"
    for index in (name for name in weights if name.endswith(INDEX_SUFFIXES)):
        shards = (_parse_json_object(group.text(index)) or {}).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            return f"{index} lists no files"
        if absent := sorted({str(shard) for shard in shards.values()} - set(group.files)):
            return f"{absent[0][:80]} is missing, but {index} lists it"
    return ""


def _weight_files(group: CheckpointFiles) -> list[str]:
    """The index files if there are any, else the weight files."""
    indexes = sorted(name for name in group.files if name.endswith(INDEX_SUFFIXES))
    return indexes or sorted(name for name in group.files if WEIGHTS_PATTERN.fullmatch(name))


def _parse_json_object(text: str | None) -> dict[str, object] | None:
    try:
        parsed = json.loads(text or "")
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


FORMAT_CHECKS: dict[str, Callable[[CheckpointFiles], str]] = {
    MEGATRON: _megatron_defect,
    DEEPSPEED: _deepspeed_defect,
    DCP: _dcp_defect,
    HUGGING_FACE: _hugging_face_defect,
}


# --- single files


def is_complete_file(name: str, size: int, read: Callable[[int, int], bytes]) -> bool | None:
    """Whether a file is complete, from a few bytes of it: `read(offset, length)`. None if its type has no check."""
    if name.endswith((".pt", ".ckpt")):
        if read(0, 4) != ZIP_BEGIN:
            return None  # the format before torch 1.6, or a custom one
        return read(max(0, size - ZIP_TAIL_BYTES), ZIP_TAIL_BYTES)[:4] == ZIP_END
    return _is_complete_safetensors(size, read) if name.endswith(".safetensors") else None


def _is_complete_safetensors(size: int, read: Callable[[int, int], bytes]) -> bool:
    """Whether the file ends where its header says that the last tensor ends."""
    length = int.from_bytes(read(0, HEADER_LENGTH_BYTES), "little")
    if size < HEADER_LENGTH_BYTES or not 2 <= length <= min(MAX_HEADER_BYTES, size - HEADER_LENGTH_BYTES):
        return False
    header = _parse_json_object(read(HEADER_LENGTH_BYTES, length).decode("utf-8", "replace"))
    if header is None:
        return False
    ends = [_tensor_end(tensor) for name, tensor in header.items() if name != "__metadata__"]
    return size == HEADER_LENGTH_BYTES + length + max(ends, default=0)


def _tensor_end(tensor: object) -> int:
    offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
    ok = isinstance(offsets, list) and len(offsets) == 2 and isinstance(offsets[1], int)
    return offsets[1] if ok and offsets else -1
