"""Asynchronous checkpoints: training is blocked only while its state is copied to host memory.

    with Run() as run, AsyncCheckpointer("checkpoints", run) as saving:
        step = saving.restore(state) or 0          # the newest complete one, or the one that recovery has chosen
        ...
        saving.save(state, step)                   # returns when the state may change again

The copy is in pinned (and, between processes, shared) memory. torch.distributed.checkpoint writes it from a separate
process, so no Python code of the trainer waits for a disk. Without torch.distributed a thread writes.

If the program is killed at any moment, the newest durable checkpoint stays complete. A new one is written under a
temporary name, synced, and then renamed. A pruned one is renamed before it is deleted. A checkpoint that is saved again
is renamed until the new one has its name, and the next start restores the name if needed. A failed save is logged once
and counted; training continues, and the previous checkpoint stays.

The newest checkpoint is the one saved last, not the one with the highest step: each stores its number in the order of
saving. A training that was sent back to step 900 has abandoned its step 1000, even while that checkpoint still exists.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

log = logging.getLogger("acme")

CHECKPOINT_VARIABLE = "ACME_CHECKPOINT"  # the path that a recovery has chosen
CHECKPOINT_NAME = re.compile(r"step_(\d+)")
TEMPORARY_NAME = re.compile(r"\.(step_\d+)\.(saving|gone|aside)")
ORDER_FILE = ".order"  # in a checkpoint: its number in the order of saving


class CheckpointReporter(Protocol):
    """The part of `Run` that is used here."""

    def checkpoint_saved(
        self, path: Any, step: int | None = None, *, durable: bool = False, stall_s: float | None = None
    ) -> None: ...


class _ReusableStager(DefaultStager):
    """A stager for all saves of a training. torch 2.11 and 2.12 close its inner stager after each use, so the second
    save would fail. Here the inner stager stays open, with its buffers, until the checkpointer is closed.
    """

    def __init__(self, options: StagingOptions) -> None:
        super().__init__(options)
        self._inner = getattr(self, "_state_dict_stager", None)
        if self._inner is not None:
            self._close_inner, self._inner.close = self._inner.close, lambda: None

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close = self._close_inner
        super().close()


class AsyncCheckpointer:
    """One instance per process of a training; all call `save` with their part of the state, in the same order.

    `keep` complete checkpoints are kept. `processes=False` writes from a thread even with torch.distributed.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        run: CheckpointReporter | None = None,
        *,
        keep: int = 2,
        processes: bool = True,
    ) -> None:
        if keep < 1:
            raise ValueError("keep: must be at least 1")
        self.directory = Path(directory)
        self.run = run
        self.keep = keep
        self.saves = self.failed = 0
        self.stall_s = 0.0  # stall of the last save
        self.stalled_s = 0.0  # of all saves
        self._together = dist.is_available() and dist.is_initialized()
        self._first = not self._together or dist.get_rank() == 0
        self._group = dist.new_group(backend="gloo") if self._together else None
        self._by_process = processes and self._together
        gpu = torch.accelerator.is_available()
        self._stager = _ReusableStager(
            StagingOptions(
                use_pinned_memory=gpu,
                use_shared_memory=self._by_process,
                use_async_staging=False,
                use_non_blocking_copy=gpu,
            )
        )
        self._writing: Future[Any] | None = None
        self._done = threading.Event()
        self._done.set()
        if self._first:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._remove_incomplete()
        if self._together:
            dist.barrier(group=self._group)  # all ranks see the same checkpoints

    def __enter__(self) -> AsyncCheckpointer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- used by the trainer

    def save(self, state: dict[str, Any], step: int) -> float:
        """Start a save; return the seconds that training was blocked. It waits for the previous save, so slow storage
        causes stalls instead of accumulating copies in memory."""
        began = time.perf_counter()
        self.wait()
        self._done.clear()
        writing = self.directory / f".step_{step}.saving"
        try:
            pending = dcp.async_save(
                state,
                checkpoint_id=writing,
                process_group=self._group,
                async_checkpointer_type=AsyncCheckpointerType.PROCESS
                if self._by_process
                else AsyncCheckpointerType.THREAD,
                async_stager=self._stager,
                no_dist=not self._together,
            )
        except BaseException:
            self._done.set()
            raise
        self._writing = pending if isinstance(pending, Future) else pending.upload_completion
        self.saves += 1
        self.stall_s = time.perf_counter() - began
        self.stalled_s += self.stall_s
        if self._first and self.run is not None:
            self.run.checkpoint_saved(self._checkpoint_path(step), step, stall_s=self.stall_s)
        self._writing.add_done_callback(lambda done: self._finish_write(done, writing, step))
        return self.stall_s

    def wait(self) -> Path | None:
        """Wait until the current save is durable or has failed; return the newest durable checkpoint."""
        self._done.wait()
        return self.newest()

    def newest(self) -> Path | None:
        """Return the complete checkpoint that was saved last, or that recovery sent the training back to since."""
        complete = self._complete_checkpoints()
        return complete[-1][1] if complete else None

    def restore(self, state: dict[str, Any], path: str | os.PathLike[str] | None = None) -> int | None:
        """Load into `state`: from this path, from the checkpoint that recovery has chosen, or from the newest one.
        Return its step; None if there is no checkpoint and training starts from the beginning."""
        chosen = path or os.environ.get(CHECKPOINT_VARIABLE) or self.newest()
        if chosen is None:
            return None
        dcp.load(state, checkpoint_id=chosen, process_group=self._group, no_dist=not self._together)
        if self._first and str(chosen) == os.environ.get(CHECKPOINT_VARIABLE):
            self._mark_as_newest(Path(chosen))
        match = CHECKPOINT_NAME.fullmatch(Path(chosen).name)
        return int(match[1]) if match else None

    def close(self) -> None:
        self._done.wait()
        self._stager.close()

    # --- after a write

    def _finish_write(self, done: Future[Any], writing: Path, step: int) -> None:
        """Publish or remove what was written. Runs in the thread that waited for the writer."""
        try:
            done.result()
            if self._first:
                self._publish_checkpoint(writing, step)
        except BaseException as error:
            self.failed += 1
            log.warning("The checkpoint of step %s was not saved: %r", step, error)
            if self._first:
                self._remove_incomplete()
        finally:
            self._done.set()

    def _publish_checkpoint(self, writing: Path, step: int) -> None:
        path = self._checkpoint_path(step)
        self._write_order_number(writing)
        aside = path.with_name(f".{path.name}.aside")
        if path.exists():  # saved earlier, by an attempt before a rollback
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
        writing.rename(path)
        _sync_directory(self.directory)
        shutil.rmtree(aside, ignore_errors=True)
        if self.run is not None:
            self.run.checkpoint_saved(path, step, durable=True)
        for _, old in self._complete_checkpoints()[: -self.keep]:
            self._remove_checkpoint(old)

    def _remove_checkpoint(self, path: Path) -> None:
        gone = path.with_name(f".{path.name}.gone")
        shutil.rmtree(gone, ignore_errors=True)
        path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def _remove_incomplete(self) -> None:
        """Remove what an interrupted process or a failed save left."""
        for path in list(self.directory.iterdir()):
            match = TEMPORARY_NAME.fullmatch(path.name)
            if match and match[2] == "aside" and not path.with_name(match[1]).exists():
                path.rename(path.with_name(match[1]))
            elif match:
                shutil.rmtree(path, ignore_errors=True)

    def _mark_as_newest(self, path: Path) -> None:
        """Mark a checkpoint as the newest, so that later ones stay abandoned even for a start without a chosen path."""
        newest = self.newest()
        if newest is None or not path.is_dir() or not path.parent.samefile(self.directory) or path.samefile(newest):
            return
        try:
            self._write_order_number(path)
        except OSError as error:
            log.warning("%s could not be marked as the newest checkpoint: %s", path, error)

    def _write_order_number(self, path: Path) -> None:
        number = 1 + max((_read_order_number(other) for _, other in self._complete_checkpoints()), default=0)
        temporary = path / f"{ORDER_FILE}.coming"
        with temporary.open("w") as file:
            file.write(str(number))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path / ORDER_FILE)
        _sync_directory(path)

    def _checkpoint_path(self, step: int) -> Path:
        return self.directory / f"step_{step}"

    def _complete_checkpoints(self) -> list[tuple[int, Path]]:
        """Return the complete checkpoints, the least needed first. torch writes the metadata last.

        A checkpoint with a higher step than one saved after it was abandoned; it sorts before the current line."""
        if not self.directory.is_dir():
            return []
        named = ((CHECKPOINT_NAME.fullmatch(path.name), path) for path in self.directory.iterdir())
        whole = ((int(match[1]), path) for match, path in named if match and (path / ".metadata").is_file())
        line: list[tuple[int, Path]] = []
        abandoned: list[tuple[int, Path]] = []
        for step, path in sorted(whole, key=lambda entry: (_read_order_number(entry[1]), entry[0]), reverse=True):
            (abandoned if line and step > line[-1][0] else line).append((step, path))
        return [*reversed(abandoned), *reversed(line)]


def _read_order_number(path: Path) -> int:
    """Return the number in the order of saving; 0 for checkpoints of older versions, which are ordered by step."""
    try:
        return int((path / ORDER_FILE).read_text())
    except (OSError, ValueError):
        return 0


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
