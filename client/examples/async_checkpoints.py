"""A plain torch loop with asynchronous checkpoints: each blocks training only for the copy to host memory.

    acme submit --wrap "torchrun --nproc-per-node 8 async_checkpoints.py" --gpus-per-node 8 --time 4:00:00

It resumes from the checkpoint that a recovery has chosen, or from the newest complete one. With Lightning, do the same
in a callback: `save` in `on_train_batch_end`, `restore` in `on_fit_start`, `close` in `on_fit_end`.
"""

import os
import time
from typing import Any

import torch
import torch.distributed as dist
from acme_client import Run
from acme_client.checkpointing import AsyncCheckpointer
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

STEPS = int(os.environ.get("STEPS", "1000"))
CHECKPOINT_STEPS = int(os.environ.get("CHECKPOINT_EVERY", "50"))
CHECKPOINT_DIRECTORY = os.environ.get("CHECKPOINT_DIR", "checkpoints")


def training_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


def main() -> None:
    if "RANK" in os.environ:
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    model = torch.nn.Linear(256, 256)
    optimizer = torch.optim.AdamW(model.parameters())
    with Run() as run, AsyncCheckpointer(CHECKPOINT_DIRECTORY, run) as saving:
        state = training_state(model, optimizer)
        last = saving.restore(state) or 0
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        for step in range(last + 1, STEPS + 1):
            began = time.perf_counter()
            loss = model(torch.randn(32, 256)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.step(step, loss=loss, step_time_s=time.perf_counter() - began)
            if step % CHECKPOINT_STEPS == 0 or run.stop_state:
                saving.save(training_state(model, optimizer), step)
            if run.stop_state:
                saving.wait()  # the requested checkpoint is durable before the program ends
                return
    print(f"{saving.saves} saves blocked training for {saving.stalled_s:.3f} s in total", flush=True)


if __name__ == "__main__":
    main()
