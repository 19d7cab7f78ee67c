"""Steps and metrics in log lines: the formats of common trainers, with invented values."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from failures.detection.training_output import LoggedCheckpoint, LoggedStep, TrainingOutput, parse_training_output
from jobs.logs.job_log import decode_log_text

MEGATRON = (
    " [2026-03-01 08:15:02] iteration      740/   90000 | consumed samples:       757760 | elapsed time per iteration "
    "(ms): 6120.5 | throughput per GPU (TFLOP/s/GPU): 411.7 | learning rate: 1.480000E-04 | global batch size:  1024 | "
    "lm loss: 2.804100E+00 | load_balancing_loss: 1.02 | loss scale: 1.0 | grad norm: 0.318 | num zeros: 0.0 |"
)
DEEPSPEED = (
    "[2026-03-01 08:15:02,118] [INFO] [logging.py:96:log_dist] [Rank 0] step=740, skipped=3, lr=[4.6e-05, 4.6e-05], "
    "mom=[(0.9, 0.95), (0.9, 0.95)]"
)
THROUGHPUT = (
    "[2026-03-01 08:15:02,119] [INFO] [timer.py:260:stop] epoch=0/micro_step=2960/global_step=740, "
    "RunningAvgSamplesPerSec=41.2, CurrSamplesPerSec=40.9, MemAllocated=18.2GB, MaxMemAllocated=61.0GB"
)
PIPELINE = "steps: 740 loss: 2.8041 iter time (s): 6.120 samples/sec: 167.3"
NEMO_BAR = (
    "Epoch 0: :   1%|          | 741/90000 [1:15:32<151:40:01, v_num=7, reduced_train_loss=2.804, global_step=740.0, "
    "consumed_samples=757760.0, train_step_timing in s=6.120, val_loss=3.1]"
)
NEMO = (
    "Training epoch 0, iteration 740/89999 | lr: 0.000148 | consumed_samples: 757760 | global_batch_size: 1024 | "
    "global_step: 740 | reduced_train_loss: 2.804 | train_step_timing in s: 6.12 | val_loss: 3.104"
)
LIGHTNING = "Epoch 2:  24%|██▍       | 240/1000 [24:28<1:17:30,  6.12s/it, v_num=3, train_loss=2.804, val_loss=3.10]"
TITAN = (
    "[rank0]:[titan] 2026-03-01 08:15:02,118 - root - INFO - \x1b[31mstep: 740  \x1b[32mloss:  2.8041  "
    "\x1b[38;2;180;60;0mgrad_norm:  0.3180  \x1b[36mmemory: 61.02GiB(77.1%)  \x1b[34mtps: 10,705  mfu: 41.2%\x1b[39m"
)
INTERN = (
    "2026-03-01 08:15:02,118 INFO train.py:318 in record_current_batch_training_metrics -- tflops=188.1 step=740 "
    "loss=2.8041 tgs (tokens/gpu/second)=4205.6 lr=0.000148 loss_scale=65536.0 grad_norm=0.318 micro_num=4 "
    "num_consumed_tokens=3107979264 inf_nan_skip_batches=0 fwd_bwd_time=6.02"
)
NANO = "iter 740: loss 2.8041, time 6120.50ms, mfu 41.20%"
SLIM = "step  740/90000 | loss 2.804100 (+0.12z)| norm 0.3180 (-0.4z)| lr 1.48e-04 | 6120.50 ms | 3,075,000 tok/s"
MAXTEXT = "completed step: 740, seconds: 6.120, TFLOP/s/device: 188.1, Tokens/s/device: 4205.6, loss: 2.804"
TENSORFLOW = "INFO:tensorflow:global step 740: loss = 2.8041 (6.120 sec/step)"
DIFFUSERS = "Steps:   1%|          | 740/90000 [1:15:28<151:40:01,  6.12s/it, lr=0.000148, step_loss=2.80]"
TRON = (
    "07/01/2026 08:15:02 [INFO|DP=0|PP=1|TP=1|host-1]: iteration: 740 / 90000 | consumed_tokens: 3.1G | "
    "elapsed_time_per_iteration_ms: 6.12K | tokens_per_sec: 2.9M | lm_loss: 2.804 | lr: 0.000148 | grad_norm: 0.318"
)
ENGINE = "mmengine - INFO - Iter(train) [  740/90000]  lr: 1.4800e-04  eta: 6 days  grad_norm: 0.318  loss: 2.8041"
FAIRSEQ = '| train_inner | {"epoch": 1, "loss": "2.804", "num_updates": "740", "lr": "0.000148", "gnorm": "0.318"}'
OURS = "[08:15:02] step     740 | loss 2.8041 | grad norm 0.318 | lr 1.48e-04 | tokens/s/gpu 3800 | 6.120 s/step"

FIGURES = {"loss": 2.804, "grad_norm": 0.318, "learning_rate": 1.48e-4, "step_time_s": 6.12}


def parsed(text, before=None):
    """The result for a text as the log reader passes it: without colors, one line for each update of a bar."""
    return parse_training_output(decode_log_text(text.replace("\r", "\n").encode()).splitlines(), before)


@pytest.mark.parametrize(
    ("line", "known", "total"),
    [
        (MEGATRON, "loss grad_norm learning_rate step_time_s", 90_000),
        (PIPELINE, "loss step_time_s", None),
        (NEMO_BAR, "loss step_time_s", None),
        (NEMO, "loss learning_rate step_time_s", None),
        (TITAN, "loss grad_norm", None),
        (INTERN, "loss grad_norm learning_rate", None),
        (NANO, "loss step_time_s", None),
        (SLIM, "loss learning_rate", 90_000),
        (MAXTEXT, "loss", None),
        (TENSORFLOW, "loss step_time_s", None),
        (DIFFUSERS, "loss learning_rate step_time_s", 90_000),
        (TRON, "loss grad_norm learning_rate step_time_s", 90_000),
        (ENGINE, "loss grad_norm learning_rate", 90_000),
        (FAIRSEQ, "loss grad_norm learning_rate", None),
        (OURS, "loss grad_norm learning_rate step_time_s", None),
    ],
)
@pytest.mark.parametrize("prefix", ["", "3: ", "[rank7]: ", "[default0]:"])
def test_step_and_metrics_are_read_from_common_trainers(line, known, total, prefix):
    told = parsed(prefix + line).newest

    assert (told.step, told.total) == (740, total)
    for name, value in FIGURES.items():
        found = getattr(told, name)
        assert found == (pytest.approx(value, rel=2e-3) if name in known.split() else None), name


@pytest.mark.parametrize(
    ("printed", "share"),
    [("mfu 41.20%", 0.412), ("mfu: 0.412", 0.412), ("mfu=41.2", 0.412), ("mfu: 412", None), ("mfu nan", None)],
)
def test_model_flops_utilization_is_read_as_a_share(printed, share):
    assert parsed(f"step 740 | loss 2.8 | {printed}").newest.mfu == (share and pytest.approx(share))


def test_deepspeed_step_is_read_from_two_lines_without_a_loss():
    assert parsed(DEEPSPEED).newest == LoggedStep(step=740, learning_rate=4.6e-05)
    assert parsed(THROUGHPUT).newest == LoggedStep(step=740)


def test_bar_that_restarts_in_each_epoch_counts_over_all_epochs():
    assert parsed(LIGHTNING).newest.step == 2240
    assert parsed(LIGHTNING.replace("Epoch 2", "Epoch 3")).newest.step == 3240


def test_consumed_tokens_are_read_if_printed():
    assert parsed(INTERN).newest.tokens == 3_107_979_264


@pytest.mark.parametrize(("said", "value"), [("nan", math.nan), ("NaN", math.nan), ("inf", math.inf), ("1.2E+00", 1.2)])
def test_loss_may_be_nan_or_infinite(said, value):
    assert parsed(f"step 7 | loss: {said} | lr 1e-4").newest.loss == pytest.approx(value, nan_ok=True)


BAR = "\r{percent:3d}%|{bar:<10}| {done}/{total} [08:20<2:38:20,  1.01s/it]"


def bar(done, total=1000):
    return BAR.format(percent=100 * done // total, bar="#" * (10 * done // total), done=done, total=total)


def metrics(loss, epoch):
    return f"\r{' ' * 40}\r{{'loss': {loss}, 'grad_norm': 0.31, 'learning_rate': 4.9e-05, 'epoch': {epoch}}}\n"


def test_metrics_above_a_bar_get_the_step_of_the_bar():
    told = parsed(bar(99) + bar(100) + metrics(2.31, 0.1) + bar(100) + bar(101)).newest

    assert (told.step, told.total, told.loss, told.learning_rate) == (100, 1000, 2.31, 4.9e-05)


def test_bar_of_an_evaluation_does_not_count_steps():
    trained = bar(200) + metrics(2.2, 0.2)
    evaluated = (
        "".join(bar(done, 25) for done in range(25)) + "\n{'eval_loss': 2.4, 'eval_runtime': 3.1, 'epoch': 0.2}\n"
    )

    assert parsed(trained + evaluated).newest.step == 200
    assert parsed(evaluated).newest is None


@pytest.mark.parametrize(
    ("between", "step"),
    [("{'eval_loss': 1.0, 'epoch': 1.0}\n", 510), ("{'eval_f1': 1.0, 'epoch': 1.0}\n", 510), ("", None)],
)
def test_metrics_after_an_evaluation_do_not_get_the_step_of_its_bar(between, step):
    told = parsed(bar(24, 25) + bar(25, 25) + "\n" + between + metrics(2.3, 1.0) + bar(510), before=500).newest

    assert (told and (told.step, told.total, told.loss)) == (step and (step, 1000, 2.3))


def test_evaluation_after_the_last_step_does_not_hide_it():
    text = bar(1000) + metrics(2.3, 1.0) + bar(0, 25) + bar(2, 25)

    assert (parsed(text).newest.step, parsed(text).newest.total) == (1000, 1000)
    assert parsed(metrics(2.3, 1.0) + bar(0, 25)).newest is None


def test_metrics_in_other_formats_are_read():
    line = "[INFO|08:15:02] llamafactory.train.callbacks:143 >> {'loss': '2.31', 'epoch': '0.10', 'throughput': '9'}"

    assert parsed(bar(100) + "\n" + line + "\n").newest.loss == 2.31


@pytest.mark.parametrize(
    "line",
    [
        "Epoch 3/10",
        "will evaluate at step 2000, lr 1e-4",
        "Total optimization steps = 10,000",
        "warmup steps: 500, lr: 1e-4",
        " validation loss at iteration 1000 | lm loss value: 2.104E+00 | lm loss PPL: 8.2 |",
        "evaluation step 5/100 loss 2.1",
        "mmengine - INFO - Iter(val) [  100/500]  eta: 0:01:00  time: 0.5000  loss: 0.5001",
        '| valid | {"epoch": 1, "valid_loss": "2.9", "valid_num_updates": "740", "lr": "0.000148"}',
        "Validation DataLoader 0:  50%|#####     | 50/100 [00:10<00:10,  4.9it/s, loss=1.0]",
        "Sanity Checking DataLoader 0: 100%|##########| 2/2 [00:01<00:00,  1.9it/s]",
        "Downloading shards:  50%|#####     | 2/4 [00:10<00:10,  4.9s/it]",
        "Loading checkpoint shards: 100%|##########| 4/4 [00:11<00:00,  2.8s/it]",
        "Map (num_proc=8):  40%|####      | 400/1000 [00:04<00:06, 98.11 examples/s]",
        "model.safetensors:  45%|####5     | 2.25G/4.98G [00:21<00:25, 105MB/s]",
        " 12%|#2        | 120/1000 [00:10<01:15, 11.70it/s]",
        "[Rank 0] time (ms) | fwd: 4631.17 | bwd: 15589.38 | step: 423.28",
        "step 5 of 12: install packages",
        "gsm8k: 512/1280 samples generated at step 3, loss of accuracy 0.1",
        "Skipping step 12, lr=1e-4, overflow",
        "watchdog: rank 3 waits since iteration 60",
        "max_steps=1000 learning_rate=1e-4 loss=mse",
        "{'train_runtime': 2219.1, 'train_loss': 0.72, 'epoch': 3.0}",
        "critic loss: 0.3",
        "Epoch 3 [val]: 50%|#####     | 50/100 [00:05<00:05, 10.0it/s, loss=77.0]",
        "[Eval] 50%|#####     | 50/100 [00:05<00:05, 10.0it/s, loss=77.0]",
        "[Eval] 50%|#####     | 50/100 [00:05<00:05, 10.0it/s, global_step=50, loss=77.0]",
        "[Validation] Epoch 3: 50%|#####     | 50/100 [00:05<00:05, 10.0it/s, loss=77.0]",
        "[INFO|eval.py:3] Epoch 3: 50%|#####     | 50/100 [00:05<00:05, 10.0it/s, loss=77.0]",
        "test loss at step 50: 2.31",
        "critic loss at step 50: 2.31",
        "step 5 | eval: loss 9.9",
        "step 5 [eval] loss: 9.9",
        "step 5 [val] loss: 9.9",
        "/home/ada/test/eval.py:12 step 5 | loss 2.5",
        "Epoch 100001: 50%|#####     | 50/100 [00:05<00:05, 10.0it/s, loss=2.5]",
        "Epoch 99999: 50%|#####     | 50/100000000 [00:05<00:05, 10.0it/s, loss=2.5]",
        "",
    ],
)
def test_other_counters_are_not_steps(line):
    assert parsed(line) == TrainingOutput()


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("test: step 5/9 | loss 2.5", 5),
        ("test-001: step 5 | loss 2.5", 5),
        ("Test-001.example.org:12:14 [0] step 5 | loss 2.5", 5),
        ("[INFO|DP=0|TP=1|test-001]: iteration: 5 / 9 | lm_loss: 2.5", 5),
        ("test-001  | {'step': 5, 'loss': 2.5}", 5),
        ("Mar  1 08:15:02 test-001 python[77]: step 5 | loss 2.5", 5),
        ("[test-001] 50%|#####| 5/9 [00:05<00:05, loss=2.5]", None),  # an unknown word before a bar
        ("test-002: step 5 | loss 2.5", None),
        ("test-001: evaluation step 5 | loss 2.5", None),
        ("test loss at step 50: 2.31", None),
        ("/srv/test/run.py: eval: step 5 | loss 2.5", None),
    ],
)
def test_node_name_before_a_line_does_not_change_its_meaning(line, step):
    told = parse_training_output([decode_log_text(line.encode())], None, ["test", "test-001"]).newest

    assert (told.step if told else None) == step
    assert parse_training_output([decode_log_text(line.encode())], None, ["gpu-001"]).newest is None


@pytest.mark.parametrize("host", ["test-001.example.org", "gpu-7.test.example.org"])
def test_node_is_recognized_by_short_and_long_name(host):
    for prefix in (host, host.partition(".")[0]):
        assert parse_training_output([f"{prefix}: step 5 | loss 2.5"], None, [host]).newest.step == 5


def test_node_name_after_the_counter_is_ordinary_text():
    assert (
        parse_training_output(["step 5 [test] loss: 9.9"], None, ["test"])
        == parse_training_output(["step 5 [test] loss: 9.9"])
        == TrainingOutput()
    )


def test_partial_loss_is_not_the_training_loss():
    line = "step 9 | critic loss: 0.3 | value_loss 0.4 | val_loss: 0.5 | train loss: 2.5 | lr 1e-4"

    assert parsed(line).newest.loss == 2.5
    assert parsed("step 9 | critic loss: 0.3 | lr 1e-4").newest.loss is None


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("step 5 | lr 1e-4 | eval: loss 9.9", LoggedStep(step=5, learning_rate=1e-4)),
        ("step 5 | eval loss 9.9 | train loss 2.5", LoggedStep(step=5, loss=2.5)),
        ("step 5 | val_loss: 9.9 | loss: 2.5", LoggedStep(step=5, loss=2.5)),
        ("step 9/3 | loss 2.5", LoggedStep(step=9, loss=2.5)),
        ("100%|##########| 9/3 [00:05<00:05, loss=2.5]", LoggedStep(step=9, loss=2.5)),
        ("step 5 | loss 2.5 | grad norm -0.3", LoggedStep(step=5, loss=2.5)),
        ("[2026-03-01 08:15:02] [INFO] 50%|#####| 5/9 [00:05<00:05, loss=2.5]", LoggedStep(step=5, total=9, loss=2.5)),
        ("Train loss at step 50: 2.31", LoggedStep(step=50, loss=2.31)),
        ("/home/ada/test/train.py:12 step 5 | loss 2.5", LoggedStep(step=5, loss=2.5)),
    ],
)
def test_implausible_values_are_dropped(line, told):
    assert parsed(line).newest == told


def test_same_step_from_several_ranks_counts_once():
    ranks = [f"[rank{rank}]: step: {step}  loss: {2 + rank / 10}  lr: 1e-4" for step in (8, 9) for rank in range(4)]

    assert parsed("\n".join(ranks)).newest == LoggedStep(step=9, loss=2.0, learning_rate=1e-4)
    assert parsed("\n".join(ranks[1:4]), before=9).newest is None


def test_missing_metrics_are_taken_from_earlier_steps():
    assert parsed(f"step=739, loss=2.5\n{DEEPSPEED}\n{THROUGHPUT}").newest == LoggedStep(
        step=740, loss=2.5, learning_rate=4.6e-05
    )


def test_step_goes_back_when_a_program_goes_back():
    assert parsed("step 400 | loss 2.5", before=900).newest.step == 400
    assert parsed("step 899 | loss 2.5", before=900).newest is None


@pytest.mark.parametrize(
    ("line", "saved"),
    [
        (
            "  successfully saved checkpoint from iteration     500 to /ckpt/run [ t 1/8, p 1/4 ]",
            LoggedCheckpoint(step=500, path="/ckpt/run"),
        ),
        (
            "[INFO] [torch_checkpoint_engine.py:33:commit] [Torch] Checkpoint global_step500 is ready now!",
            LoggedCheckpoint(step=500),
        ),
        (
            "Special tokens file saved in out/checkpoint-500/tokens.json",
            LoggedCheckpoint(step=500, path="out/checkpoint-500/tokens.json"),
        ),
        (
            "Saved checkpoint to `s3://runs/last/iter_0000500`",
            LoggedCheckpoint(step=500, path="s3://runs/last/iter_0000500"),
        ),
        ("[2026-03-01 08:15:02] checkpoint saved at step 500", LoggedCheckpoint(step=500)),
        ("Finished saving the checkpoint in 10.12 seconds.", LoggedCheckpoint(step=740)),
        ("Step: 500, rank 0 save ckpt use 12.3 s", LoggedCheckpoint(step=500)),
        (
            "Model weights saved in /runs/step1_sft/checkpoint-625/model.safetensors",
            LoggedCheckpoint(step=625, path="/runs/step1_sft/checkpoint-625/model.safetensors"),
        ),
        ("/home/step1/a.py: saved checkpoint to out/checkpoint-7", LoggedCheckpoint(step=7, path="out/checkpoint-7")),
        ("checkpoint saved to /runs/step1/last at step 500/900", LoggedCheckpoint(step=500, path="/runs/step1/last")),
        ("checkpoint saved at 2026/11/22 08:15:02", LoggedCheckpoint(step=740)),
        ("checkpoint saved in 2026/11/22/step_9", LoggedCheckpoint(step=9, path="2026/11/22/step_9")),
        ("saving checkpoint at iteration     500 to /ckpt/run", None),
        ("failed: checkpoint was not saved at step 500", None),
        ("[Torch] Saved /ckpt/global_step500/mp_rank_00_model_states.pt.", None),
        ("loading the checkpoint saved at step 500", None),
        ("figure saved to plots/step500.png", None),
        ("removed the checkpoint saved at step 500", None),
    ],
)
def test_checkpoint_is_read_only_after_saving_has_finished(line, saved):
    assert parsed(line, before=740).saved == saved


PARTS = st.sampled_from(
    ["step", "iteration", "loss", "nan", "=", ":", " ", "     ", "7", "1e999", "-", ",", "|", "%|", "100%|", "/", "[",
     "]", "{'loss':", "'epoch':", "global_step", "checkpoint", "saved", "to", "/x", "\x1b[31m", "\r", "lr",
     "Epoch 9:", "grad norm", "9" * 30, "it/s", "\N{NO-BREAK SPACE}", "٣", "consumed tokens"]
)  # fmt: skip


@given(st.one_of(st.text(max_size=400), st.lists(PARTS, max_size=120).map("".join), st.lists(PARTS).map(" ".join)))
def test_values_from_any_log_fit_into_the_database(text):
    printed = parsed(text)

    if told := printed.newest:
        assert 0 <= told.step < 2**62 and (told.tokens is None or 0 <= told.tokens < 2**62)
        assert told.step_time_s is None or 0 < told.step_time_s < math.inf
        assert all(isinstance(value, float | None) for value in (told.loss, told.grad_norm, told.learning_rate))
    if printed.saved:
        assert 0 <= printed.saved.step < 2**62 and len(printed.saved.path) <= 400


@given(st.lists(PARTS, min_size=1, max_size=6).map("".join))
def test_only_the_beginning_of_a_very_long_line_is_read(part):
    assert parse_training_output([part * 200]) == parse_training_output([(part * 200)[:800]])
