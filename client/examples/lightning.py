"""A PyTorch Lightning callback: add it with `Trainer(callbacks=[AcmeProgress()])`.

Only rank 0 reports. No hook waits for the network or a GPU: the loss is passed as a tensor and read by the sending
thread. The step is Lightning's own, so a resumed run continues its count.
"""

import time
from typing import Any

from acme_client import Run

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    try:
        from pytorch_lightning.callbacks import Callback
    except ImportError:
        Callback = object  # so that this file can be imported and tested without Lightning


class AcmeProgress(Callback):
    def __init__(self, run: Run | None = None, tokens_per_step: int | None = None) -> None:
        self.run = run or Run()
        self.tokens_per_step = tokens_per_step
        self.began = time.perf_counter()

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self.began = time.perf_counter()

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        step = trainer.global_step
        self.run.step(
            step,
            loss=outputs.get("loss") if isinstance(outputs, dict) else outputs,
            grad_norm=trainer.callback_metrics.get("grad_norm"),
            step_time_s=time.perf_counter() - self.began,
            tokens=self.tokens_per_step * step if self.tokens_per_step else None,
            learning_rate=_learning_rate(trainer),
        )
        if self.run.stop_state:
            trainer.should_stop = True  # ends after this step, with its checkpoint

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        path = getattr(trainer.checkpoint_callback, "dirpath", None)
        if path:
            self.run.checkpoint_saved(path, trainer.global_step)

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        self.run.close()


def _learning_rate(trainer: Any) -> Any:
    optimizers = getattr(trainer, "optimizers", None)
    return optimizers[0].param_groups[0].get("lr") if optimizers else None
