"""The output of the failing rank by failure reason, as a table of templates.

The texts imitate PyTorch, NCCL, torchrun and srun, and were written without regard to what recognizes them: a change
that makes a text match a signature would make the measurements of the diagnosis worthless.
"""

from __future__ import annotations

from collections.abc import Mapping

# Output of the failing rank. Some reasons have several variants. A line that starts with "@" is a stack frame: file,
# line, function, code. `_template_values` fills in the {x} placeholders.
MessageTemplate = tuple[str, ...]
MESSAGES_BY_REASON: Mapping[str, tuple[MessageTemplate, ...]] = {
    "nvlink_error": (
        (
            "@train/loop.py:214:train_step:loss.backward()",
            "@torch/autograd/graph.py:768:_engine_run_backward:return Variable._execution_engine.run_backward(",
            "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
            "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be"
            " incorrect.",
        ),
        (
            "{host}:{pid}:{tid} [{local}] transport/p2p.cc:275 NCCL WARN Cuda failure 'peer access is not supported"
            " between these two devices'",
            "@train/parallel.py:77:all_gather_params:dist.all_gather_into_tensor(flat, shard)",
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2076, unhandled cuda error, NCCL"
            " version 2.19.3",
            "Cuda failure 'uncorrectable NVLink error detected during the execution'",
        ),
    ),
    "cuda_error": (
        (
            "@train/attention.py:151:forward:out = flash_attn_varlen(q, k, v, cu_seqlens)",
            "RuntimeError: CUDA error: an illegal memory access was encountered",
            "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
        ),
        (
            "@train/loop.py:198:train_step:scaler.step(optimizer)",
            "RuntimeError: CUDA error: unspecified launch failure",
        ),
    ),
    "ecc_error": (
        (
            "@train/loop.py:209:train_step:loss = model(batch)",
            "RuntimeError: CUDA error: uncorrectable ECC error encountered",
            "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
        ),
    ),
    "gpu_off_bus": (
        (
            "@train/loop.py:31:log_memory:used = torch.cuda.memory_allocated(device)",
            "RuntimeError: CUDA error: unknown error",
            "Unable to determine the device handle for GPU{local}: {pci}: GPU is lost.  Reboot the system to recover"
            " this GPU",
        ),
    ),
    "network_error": (
        (
            "{host}:{pid}:{tid} [{local}] transport/net_ib.cc:1117 NCCL WARN NET/IB : Got completion from peer"
            " {peer_ip}<41033> with status=12 opcode=0 len=0 vendor err 129 (Recv) localGid fe80::1 remoteGids fe80::2",
            "{host}:{pid}:{tid} [{local}] NCCL INFO transport/net.cc:1146 -> 6",
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, remote process exited or"
            " there was a network error, NCCL version 2.19.3",
        ),
    ),
    "connection_error": (
        (
            "@urllib3/connectionpool.py:703:urlopen:httplib_response = self._make_request(",
            "ConnectionResetError: [Errno 104] Connection reset by peer",
            "@train/registry.py:52:fetch_tokenizer:reply = session.get(url, timeout=30)",
            "requests.exceptions.ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'Connection reset by"
            " peer'))",
        ),
        (
            "@torch/distributed/rendezvous.py:185:_create_c10d_store:return TCPStore(hostname, port, world_size)",
            "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of"
            " ({host}, 29500).",
        ),
    ),
    "s3_storage_error": (
        (
            "@train/storage.py:88:read_shard:body = client.get_object(Bucket=bucket, Key=key)['Body'].read()",
            "botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the GetObject operation (reached"
            " max retries: 4): Please reduce your request rate.",
        ),
        (
            "@train/checkpoint.py:133:upload:client.upload_file(path, bucket, key)",
            "botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL:"
            ' "http://objects.store.local:8080/checkpoints/{job}/step-{step}"',
        ),
    ),
    "nccl_timeout_error": (
        (
            "[rank{rank}]:[E ProcessGroupNCCL.cpp:563] [Rank {rank}] Watchdog caught collective operation timeout:"
            " WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn=33554432, NumelOut=33554432, Timeout(ms)=1800000) ran for"
            " 1800541 milliseconds before timing out.",
            "[rank{rank}]:[E ProcessGroupNCCL.cpp:577] Some NCCL operations have failed or timed out. To avoid data"
            " inconsistency, we are taking the entire process down.",
        ),
    ),
    "nccl_remote_error": (
        (
            "@train/parallel.py:61:reduce_grads:dist.reduce_scatter_tensor(shard, flat)",
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, remote process exited or"
            " there was a network error, NCCL version 2.19.3",
            "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        ),
    ),
    "dataloader_killed": (
        (
            "@torch/utils/data/dataloader.py:1133:_try_get_data:data = self._data_queue.get(timeout=timeout)",
            "RuntimeError: DataLoader worker (pid {tid}) is killed by signal: Killed.",
        ),
        (
            "@torch/utils/data/dataloader.py:1146:_try_get_data:raise RuntimeError(",
            "RuntimeError: DataLoader worker (pid(s) {tid}) exited unexpectedly",
        ),
    ),
    "attribute_error": (
        (
            "@train/model.py:88:build:attn = config.attention_backend.lower()",
            "AttributeError: 'NoneType' object has no attribute 'lower'",
        ),
        (
            "@train/hooks.py:19:after_step:self.ema.update(model)",
            "AttributeError: 'Trainer' object has no attribute 'ema'",
        ),
    ),
    "out_of_memory_error": (
        (
            "@train/loop.py:212:train_step:loss.backward()",
            "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU {local} has a total"
            " capacity of 79.15 GiB of which 1.12 GiB is free. Process {pid} has 78.02 GiB memory in use.",
        ),
    ),
    "runtime_error": (
        (
            "@train/model.py:143:forward:return hidden @ self.weight.t()",
            "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4096x5120 and 4096x4096)",
        ),
        (
            "@train/fsdp.py:97:load:dst.copy_(src)",
            "RuntimeError: The size of tensor a (1024) must match the size of tensor b (2048) at non-singleton"
            " dimension 1",
        ),
    ),
    "assertion_error": (
        (
            "@train/main.py:63:check:assert args.batch % world == 0, (args.batch, world)",
            "AssertionError: (1000, {ranks})",
        ),
        (
            "@train/parallel.py:24:__init__:assert hidden % tensor_parallel == 0",
            "AssertionError",
        ),
    ),
    "value_error": (
        (
            "@train/config.py:71:parse_schedule:raise ValueError(f'unknown schedule {name!r}')",
            "ValueError: unknown schedule 'cosine_with_restart'",
        ),
    ),
    "zero_division_error": (
        (
            "@train/data.py:118:epochs:return total_steps // len(self.loader)",
            "ZeroDivisionError: integer division or modulo by zero",
        ),
    ),
    "model_loading_error": (
        (
            "@torch/nn/modules/module.py:2153:load_state_dict:raise RuntimeError('Error(s) in loading state_dict...')",
            "RuntimeError: Error(s) in loading state_dict for CausalLM:",
            "\tsize mismatch for embed.weight: copying a param with shape torch.Size([103168, 4096]) from checkpoint,"
            " the shape in current model is torch.Size([92544, 4096]).",
        ),
        (
            "@transformers/modeling_utils.py:3144:from_pretrained:raise EnvironmentError(",
            "OSError: /models/{job}-base does not appear to have a file named pytorch_model.bin, model.safetensors or"
            " tf_model.h5.",
        ),
    ),
    "dataset_loading_error": (
        (
            "@datasets/load.py:1512:dataset_module_factory:raise FileNotFoundError(",
            "datasets.exceptions.DatasetNotFoundError: Dataset 'team/eval-hard' doesn't exist on the Hub or cannot be"
            " accessed.",
        ),
    ),
    "file_not_found_error": (
        (
            "@train/data.py:41:open_shard:return open(path, 'rb')",
            "FileNotFoundError: [Errno 2] No such file or directory: '/data/shards/part-00{rank}.bin'",
        ),
    ),
    "os_error": (
        (
            "@train/log.py:22:rotate:os.replace(tmp, path)",
            "OSError: [Errno 116] Stale file handle: '/logs/{job}.jsonl'",
        ),
        (
            "@train/cache.py:37:lock:fcntl.flock(fd, fcntl.LOCK_EX)",
            "OSError: [Errno 37] No locks available",
        ),
    ),
    "type_error": (
        (
            "@train/metrics.py:29:score:total += sample['score']",
            "TypeError: unsupported operand type(s) for +=: 'float' and 'NoneType'",
        ),
        (
            "@train/main.py:40:build:model = Model(config, dtype=torch.bfloat16)",
            "TypeError: Model.__init__() got an unexpected keyword argument 'dtype'",
        ),
    ),
    "name_error": (("@train/main.py:77:main:dist.barrier(group=grp)", "NameError: name 'grp' is not defined"),),
    "permission_error": (
        (
            "@train/checkpoint.py:41:save:os.makedirs(path, exist_ok=True)",
            "PermissionError: [Errno 13] Permission denied: '/checkpoints/shared/{job}'",
        ),
    ),
    "import_error": (
        (
            "@train/main.py:6:<module>:import flash_attn_2_cuda",
            "ModuleNotFoundError: No module named 'flash_attn_2_cuda'",
        ),
        (
            "@train/main.py:9:<module>:from transformer_engine import pytorch as te",
            "ImportError: /usr/lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.32' not found",
        ),
    ),
    "key_error": (("@train/data.py:64:collate:ids = [row['input_ids'] for row in rows]", "KeyError: 'input_ids'"),),
    "syntax_error": (
        (
            '  File "/opt/train/configs/run.py", line 18',
            "    lr = 3e-4,,",
            "             ^",
            "SyntaxError: invalid syntax",
        ),
    ),
    "argument_error": (
        (
            "usage: pretrain.py [-h] --config CONFIG [--resume PATH]",
            "pretrain.py: error: unrecognized arguments: --micro-bsz 2",
        ),
    ),
    "called_process_error": (
        (
            "@subprocess.py:571:run:raise CalledProcessError(retcode, process.args,",
            "subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.",
        ),
    ),
    "index_error": (("@train/data.py:132:sample:return self.index[i]", "IndexError: list index out of range"),),
    "loss_nan": (
        (
            "[rank{rank}] step {step}: loss is nan, grad norm is inf; skipped 5 updates in a row",
            "@train/loop.py:241:guard:raise FloatingPointError('the loss is not finite any more')",
            "FloatingPointError: the loss is not finite any more",
        ),
    ),
    "checkpoint_corrupt": (
        (
            "@torch/serialization.py:1005:load:with _open_zipfile_reader(opened_file) as opened_zipfile:",
            "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
        ),
    ),
    "disk_full": (
        (
            "@train/checkpoint.py:97:save:torch.save(state, tmp)",
            "OSError: [Errno 28] No space left on device",
        ),
    ),
}
# The other ranks fail while they wait for the failing rank, unless it failed before the process group was formed.
STARTUP_REASONS = frozenset({"syntax_error", "argument_error", "import_error", "name_error", "called_process_error"})
SLURM_MESSAGES: Mapping[str, MessageTemplate] = {
    "host_oom": (
        "slurmstepd: error: Detected 1 oom_kill event in StepId={job}.batch. Some of the step tasks have been OOM Killed.",
    ),
}
