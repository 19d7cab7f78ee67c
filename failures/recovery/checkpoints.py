"""Which checkpoints lie in a directory, and which of them are complete. Pure, over a listing that somebody made.

Five conventions are known by their names: Megatron, DeepSpeed, torch DCP, Lightning, Hugging Face. A checkpoint is
trusted when everything that its convention promises is there, nothing is empty or cut off, and the file that is
written last (a tracker, an index, the metadata) says that saving came to its end. Doubt means: not whole, with why.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from failures.recovery.values import SavedCheckpoint

MEGATRON, DEEPSPEED, DCP = "Megatron", "DeepSpeed", "torch DCP"
LIGHTNING, HUGGING_FACE = "Lightning", "Hugging Face"

MEGATRON_TRACKER, DEEPSPEED_LATEST = "latest_checkpointed_iteration.txt", "latest"
TRAINER_STATE, DCP_METADATA = "trainer_state.json", ".metadata"
SAVE_ORDER_FILE = ".order"  # in a checkpoint of Acme's own checkpointer: its number in the order of saving
STEP_DIRECTORY_PATTERN = re.compile(
    r"(?:iter_|global_step|checkpoint[-_]|step[-_=]?|ckpt[-_]?)?0*(\d{1,15})(?:\.ckpt)?"
)
LIGHTNING_FILE_PATTERN = re.compile(r"(?:.*[-_])?step=0*(\d{1,15})(?:[-_].*)?\.ckpt")
RANK_PATTERN = re.compile(r"(?:zero_pp|mp)_rank_(\d{1,9})")
INDEX_SUFFIXES = (".safetensors.index.json", ".bin.index.json")
WEIGHTS_PATTERN = re.compile(r"(?:model|pytorch_model|adapter_model)(?:\.safetensors|\.bin)")
NEVER_EMPTY_SUFFIXES = (".pt", ".ckpt", ".distcp", ".safetensors", ".bin")  # never empty
ZIP_BEGIN, ZIP_END = b"PK\x03\x04", b"PK\x05\x06"
ZIP_TAIL_BYTES = 22  # of a zip without a comment, which is what torch writes
HEADER_LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100 << 20


@dataclass(frozen=True, kw_only=True)
class ListedFile:
    path: str  # relative, with /
    size: int
    at: datetime
    sound: bool | None = None  # None: its kind does not tell


@dataclass(frozen=True, kw_only=True)
class DirectoryListing:
    files: Sequence[ListedFile] = ()
    texts: Mapping[str, str] = field(default_factory=dict)  # of the small files that were read
    cut: str = ""  # why there may be more than this


@dataclass(frozen=True, kw_only=True)
class ListedCheckpoint:
    step: int
    path: str  # relative to what was listed
    kind: str
    size: int
    saved_at: datetime
    trouble: str = ""  # why it is not whole
    order: int = 0  # the one saved last has the highest; 0: nobody has numbered them

    @property
    def is_complete(self) -> bool:
        return not self.trouble


@dataclass(frozen=True, kw_only=True)
class CheckpointFiles:
    """The files of one checkpoint, named from its own directory."""

    path: str
    step: int
    files: Mapping[str, ListedFile]
    listing: DirectoryListing

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def beside(self, name: str) -> str | None:
        """The text of a file in the directory around it."""
        parent = self.path.rpartition("/")[0]
        return self.listing.texts.get(f"{parent}/{name}" if parent else name)

    def text(self, name: str) -> str | None:
        return self.listing.texts.get(f"{self.path}/{name}")


def find_checkpoints(listing: DirectoryListing) -> tuple[ListedCheckpoint, ...]:
    """All that are recognised, the newest step first. Linear in the number of files."""
    inside: dict[str, dict[str, ListedFile]] = defaultdict(dict)
    found = []
    for file in listing.files:
        if (group := _checkpoint_directory(file.path)) is not None:
            inside[group][file.path.removeprefix(f"{group}/")] = file
        elif match := LIGHTNING_FILE_PATTERN.fullmatch(file.path.rpartition("/")[2]):
            found.append(_lightning_checkpoint(file, int(match[1])))
    groups = (
        CheckpointFiles(path=path, step=_directory_step(path), files=files, listing=listing)
        for path, files in inside.items()
    )
    found += [one for group in groups if (one := _checkpoint_from_files(group))]
    return tuple(sorted(found, key=lambda one: (-one.step, one.path)))


def to_saved_checkpoints(
    found: Sequence[ListedCheckpoint], root: str, spike_at: int | None = None
) -> tuple[SavedCheckpoint, ...]:
    """For the decision. What was saved at a spike or behind it holds the weights that went bad."""
    return tuple(
        SavedCheckpoint(
            step=one.step,
            path=f"{root.rstrip('/')}/{one.path}",
            whole=one.is_complete,
            verdict="bad" if spike_at is not None and one.step >= spike_at else "",
            order=one.order,
        )
        for one in found
    )


def _checkpoint_directory(path: str) -> str | None:
    """The outermost directory whose name is a step's."""
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
        trouble=_damaged_file({file.path: file}),
    )


def _checkpoint_from_files(group: CheckpointFiles) -> ListedCheckpoint | None:
    kind = _checkpoint_format(group)
    if kind is None:
        return None
    trouble = group.listing.cut or _damaged_file(group.files) or FORMAT_CHECKS[kind](group)
    files = group.files.values()
    return ListedCheckpoint(
        step=group.step, path=group.path, kind=kind, size=sum(file.size for file in files),
        saved_at=max(file.at for file in files), trouble=trouble, order=_save_order_number(group),
    )  # fmt: skip


def _save_order_number(group: CheckpointFiles) -> int:
    said = (group.text(SAVE_ORDER_FILE) or "").strip()
    return int(said) if said.isascii() and said.isdigit() and len(said) < 16 else 0


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
            return f"{name} is {'cut off or damaged' if file.size else 'empty'}"
    return ""


# --- what each convention promises


def _megatron_defect(group: CheckpointFiles) -> str:
    said = group.beside(MEGATRON_TRACKER)
    if said is None:
        return f"there is no {MEGATRON_TRACKER}, so nobody says that saving came to its end"
    number = said.strip()[:18]
    if not (number.isascii() and number.isdigit()) or int(number) < group.step:
        return f"{MEGATRON_TRACKER} says {said.strip()[:20]!r}: saving did not come to its end"
    if any(name.endswith(".distcp") for name in group.files):
        return _dcp_defect(group)
    return _rank_files_defect(group)


def _rank_files_defect(group: CheckpointFiles) -> str:
    """Each rank's directory holds the same files, and none is left out."""
    ranks: dict[str, set[str]] = defaultdict(set)
    for name in group.files:
        rank, slash, leaf = name.partition("/")
        if slash and RANK_PATTERN.match(rank):
            ranks[rank].add(leaf)
    if not ranks:
        return "there is no mp_rank directory and no .distcp file in it"
    if missing := _missing_rank(int(match[1]) for rank in ranks if (match := RANK_PATTERN.match(rank))):
        return missing
    whole = set().union(*ranks.values())
    short = [rank for rank, leaves in sorted(ranks.items()) if leaves != whole and not _has_model_weights(leaves)]
    return f"{short[0]} lacks files that other ranks have" if short else ""


def _has_model_weights(leaves: set[str]) -> bool:
    return any(leaf.startswith("model_") for leaf in leaves)


def _deepspeed_defect(group: CheckpointFiles) -> str:
    said = group.beside(DEEPSPEED_LATEST)
    if said is None:
        return f"there is no file {DEEPSPEED_LATEST}, so nobody says that saving came to its end"
    newest = STEP_DIRECTORY_PATTERN.fullmatch(said.strip())
    if newest is None or int(newest[1]) < group.step:
        return f"{DEEPSPEED_LATEST} says {said.strip()[:40]!r}: saving did not come to its end"
    leaves = [name.rpartition("/")[2] for name in group.files]
    if not any(leaf.endswith("_model_states.pt") for leaf in leaves):
        return "there are no model states in it"
    shards = (
        RANK_PATTERN.search(leaf) for leaf in leaves if leaf.endswith("_optim_states.pt") and "zero_pp_rank" in leaf
    )
    return _missing_rank(int(match[1]) for match in shards if match)


def _missing_rank(ranks: Iterable[int]) -> str:
    """Ranks count from 0 without a hole."""
    there = set(ranks)
    missing = next((rank for rank in range(len(there)) if rank not in there), None)
    return f"what rank {missing} saved is missing" if missing is not None else ""


def _dcp_defect(group: CheckpointFiles) -> str:
    metadata = next((file for name, file in group.files.items() if name.rpartition("/")[2] == DCP_METADATA), None)
    if metadata is None or not metadata.size:
        return f"there is no {DCP_METADATA}, which is written last"
    return "" if any(name.endswith(".distcp") for name in group.files) else "there is no .distcp file in it"


def _hugging_face_defect(group: CheckpointFiles) -> str:
    state = _parse_json_object(group.text(TRAINER_STATE))
    if state is None:
        return f"{TRAINER_STATE} is missing or no JSON, and it is written after the weights"
    if state.get("global_step") != group.step:
        return f"{TRAINER_STATE} speaks of step {str(state.get('global_step'))[:20]}"
    weights = _weight_files(group)
    if not weights:
        return "there are no weights in it"
    for index in (name for name in weights if name.endswith(INDEX_SUFFIXES)):
        shards = (_parse_json_object(group.text(index)) or {}).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            return f"{index} names no files"
        if absent := sorted({str(shard) for shard in shards.values()} - set(group.files)):
            return f"{absent[0][:80]} is missing; {index} names it"
    return ""


def _weight_files(group: CheckpointFiles) -> list[str]:
    """An index where there is one, or the single file."""
    indexes = sorted(name for name in group.files if name.endswith(INDEX_SUFFIXES))
    return indexes or sorted(name for name in group.files if WEIGHTS_PATTERN.fullmatch(name))


def _parse_json_object(text: str | None) -> dict[str, object] | None:
    try:
        found = json.loads(text or "")
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


FORMAT_CHECKS: dict[str, Callable[[CheckpointFiles], str]] = {
    MEGATRON: _megatron_defect,
    DEEPSPEED: _deepspeed_defect,
    DCP: _dcp_defect,
    HUGGING_FACE: _hugging_face_defect,
}


# --- single files


def is_complete_file(name: str, size: int, read: Callable[[int, int], bytes]) -> bool | None:
    """Whether a file is whole, from a few bytes of it: `read(offset, length)`. None: its kind does not tell."""
    if name.endswith((".pt", ".ckpt")):
        if read(0, 4) != ZIP_BEGIN:
            return None  # the format from before torch 1.6, or somebody's own
        return read(max(0, size - ZIP_TAIL_BYTES), ZIP_TAIL_BYTES)[:4] == ZIP_END
    return _is_complete_safetensors(size, read) if name.endswith(".safetensors") else None


def _is_complete_safetensors(size: int, read: Callable[[int, int], bytes]) -> bool:
    """Its header says where the last tensor ends."""
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
