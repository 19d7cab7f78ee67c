"""A training loop that reports its progress: submit it, and its page shows loss and speed.

    acme submit --wrap "python plain_loop.py" --gpus-per-node 1 --time 1:00:00

Outside of Acme it runs the same and reports nothing. After a failure it resumes from its last checkpoint.
"""

import json
import math
import os
import random
import time
from pathlib import Path

from acme_client import Run

STEPS = int(os.environ.get("STEPS", "1000"))
CHECKPOINT_STEPS = int(os.environ.get("CHECKPOINT_EVERY", "100"))
CHECKPOINT_DIRECTORY = Path(os.environ.get("CHECKPOINT_DIR", "checkpoints"))


def newest_checkpoint() -> tuple[Path | None, int]:
    """The newest checkpoint and its step; None and -1 for a first start."""
    checkpoints = sorted(CHECKPOINT_DIRECTORY.glob("step-*.json"))
    return (checkpoints[-1], json.loads(checkpoints[-1].read_text())["step"]) if checkpoints else (None, -1)


def save(step: int, loss: float) -> Path:
    """Write a checkpoint under a temporary name and rename it, so that it is complete or missing."""
    CHECKPOINT_DIRECTORY.mkdir(parents=True, exist_ok=True)
    path = CHECKPOINT_DIRECTORY / f"step-{step:08d}.json"
    path.with_suffix(".new").write_text(json.dumps({"step": step, "loss": loss}))
    return path.with_suffix(".new").replace(path)


def main() -> None:
    path, last = newest_checkpoint()
    print(f"resuming after step {last} from {path}" if path else "first start", flush=True)
    with Run() as run:
        for step in range(last + 1, STEPS):
            began = time.perf_counter()
            loss = 2.0 + 8.0 * math.exp(-step / 300) + random.uniform(-0.05, 0.05)  # a model would go here
            run.step(step, loss=loss, tokens=(step + 1) * 4096, step_time_s=time.perf_counter() - began)
            if (step + 1) % CHECKPOINT_STEPS == 0:
                run.checkpoint_saved(save(step, loss), step)
            if run.stop_state:
                print(f"requested to end as {run.stop_state}: saving a checkpoint", flush=True)
                run.checkpoint_saved(save(step, loss), step)
                return


if __name__ == "__main__":
    main()
