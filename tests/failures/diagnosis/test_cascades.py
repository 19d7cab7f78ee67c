"""Small cascades: the cause is rarely the last line, often not the first, and never the loudest."""

from __future__ import annotations

import pytest

from failures.diagnosis.engine import diagnose_text

CASCADES: tuple[tuple[str, str], ...] = (
    (
        "ECCError",
        """\
Traceback (most recent call last):
  File "t.py", line 3, in <module>
    main()
torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:219, unhandled cuda error (run with NCCL_DEBUG=INFO for details)
ncclUnhandledCudaError: Call to CUDA function has failed.
Last error:
Cuda failure 'uncorrectable ECC error'
""",
    ),
    (
        "NetworkError",
        """\
[rank8]:[E ProcessGroupNCCL.cpp:607] [Rank 8] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=88)
Feb  3 10:00:00 n3 kernel: mlx5_core 0000:5e:00.0 ib0: Link down
""",
    ),
    (
        "HostOOMKilled",
        """\
W0301 agent/server/api.py:900] Sending process 91 closing signal SIGTERM
E0301 failed (exitcode: -9) local_rank: 3 (pid: 97) of binary: /usr/bin/python
Traceback (most recent call last):
  File "/usr/local/bin/torchrun", line 8, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2024-01-01_00:00:00
  host      : node1
  rank      : 3 (local_rank: 3)
  exitcode  : -9 (pid: 97)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 97
""",
    ),
    (
        "OutOfMemoryError",
        """\
ray.exceptions.RayTaskError(OutOfMemoryError): ray::WorkerDict.actor_rollout_update_actor() (pid=1, ip=10.0.0.1)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
""",
    ),
    (
        "ValueError",
        """\
ray.exceptions.RayTaskError(ValueError): ray::f() (pid=1, ip=10.0.0.1)
  File "x.py", line 1, in f
ValueError: bad batch
""",
    ),
    (
        "TypeError",
        """\
Process SpawnProcess-1:
Traceback (most recent call last):
TypeError: Foo.__init__() missing 1 required positional argument
(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
""",
    ),
    (
        "AssertionError",
        """\
(EngineCore pid=12) AssertionError: block size mismatch
(APIServer pid=1) vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.
""",
    ),
    (
        "KeyError",
        """\
Traceback (most recent call last):
  File "a.py", line 1, in g
KeyError: 'foo'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 3, in h
RuntimeError: could not find foo
""",
    ),
    (
        "ImportError",
        """\
Traceback (most recent call last):
  File "/x/transformers/utils/import_utils.py", line 1603, in _get_module
ModuleNotFoundError: No module named 'triton.ops'

The above exception was the direct cause of the following exception:

RuntimeError: Failed to import transformers.models because of the following error (look up to see its traceback):
No module named 'triton.ops'
""",
    ),
    (
        "CUDAError",
        """\
terminate called after throwing an instance of 'c10::Error'
  what():  CUDA error: unspecified launch failure
Exception raised from query at ../aten/src/ATen/cuda/CUDAEvent.h:95 (most recent call first):
Fatal Python error: Aborted
""",
    ),
    (
        "SlurmNodeFail",
        """\
srun: error: Node failure on n12
Traceback (most recent call last):
  File "x.py", line 3, in <module>
ConnectionResetError: [Errno 104] Connection reset by peer
BrokenPipeError: [Errno 32] Broken pipe
""",
    ),
    (
        "NodeFailure",
        """\
2024-05-01 10:00:00,000 WARNING worker.py:2052 -- The node with node id: aa and address: 10.0.0.3 and node name: 10.0.0.3 has been marked dead because the detector has missed too many heartbeats from it.
Traceback (most recent call last):
ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
RuntimeError: training failed
""",
    ),
    (
        "LossNaNOrSpike",
        """\
step 100 loss 2.1 grad_norm 0.5
step 101 loss nan grad_norm nan
step 102 loss nan grad_norm nan
step 103 loss nan grad_norm nan
""",
    ),
    (
        "Hang",
        """\
I0301 04:00:00.000000 11 distributed_c10d.py:442] Waiting in store based barrier to initialize process group for rank: 3, key: store_based_barrier_key:1 (world_size=8, worker_count=7, timeout=0:30:00)
I0301 04:00:10.000000 11 distributed_c10d.py:442] Waiting in store based barrier to initialize process group for rank: 3, key: store_based_barrier_key:1 (world_size=8, worker_count=7, timeout=0:30:00)
^CTraceback (most recent call last):
KeyboardInterrupt
""",
    ),
    (
        "DataloaderKilled",
        """\
Traceback (most recent call last):
  File "/x/multiprocessing/queues.py", line 113, in get
    raise Empty
_queue.Empty

The above exception was the direct cause of the following exception:

RuntimeError: DataLoader worker (pid(s) 111) exited unexpectedly
""",
    ),
    (
        "OSError",
        """\
Traceback (most recent call last):
  File "x.py", line 3, in <module>
OSError: [Errno 24] Too many open files: '/x'
RuntimeError: DataLoader failed
""",
    ),
    (
        "Preempted/TimeLimit",
        """\
[rank: 0] Received SIGTERM: 15
slurmstepd: error: *** JOB 9 ON n1 CANCELLED AT 2024-01-01T00:00:00 DUE TO PREEMPTION ***
torch.distributed.elastic.multiprocessing.api.SignalException: Process 31 got signal: 15
RuntimeError: CUDA error: driver shutting down
""",
    ),
    (
        "GPUFallenOffBus",
        """\
RuntimeError: CUDA error: unspecified launch failure
Feb  3 10:00:00 n3 kernel: NVRM: Xid (PCI:0000:5e:00): 79, pid=1, GPU has fallen off the bus.
NCCL WARN Cuda failure 'unspecified launch failure'
""",
    ),
    (
        "XidOther",
        """\
RuntimeError: CUDA error: unspecified launch failure
Feb  3 10:00:00 n3 kernel: NVRM: Xid (PCI:0000:5e:00): 62, pid=1, 2048a
""",
    ),
    (
        "ConnectionError",
        """\
urllib3.exceptions.MaxRetryError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /api (Caused by NewConnectionError('failed: [Errno 101] Network is unreachable'))
requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443)
OSError: We couldn't connect to 'https://huggingface.co' to load this file
""",
    ),
    (
        "FileNotFoundError",
        """\
[rank2]: FileNotFoundError: [Errno 2] No such file or directory: '/data/train_000.bin'
[rank0]: torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited or there was a network error
[rank0]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting early.
""",
    ),
    (
        "None",
        """\
WARNING: failed to connect to metrics endpoint, Connection refused
iteration 5 loss 2 time 3
saving checkpoint
""",
    ),
    (
        "None",
        """\
[rank0]: step 100 loss 2.1 time 0.4
Traceback (most recent call last):
  File "wandb/sdk.py", line 1, in send
requests.exceptions.ConnectionError: HTTPSConnectionPool(host='api.wandb.ai')
wandb: Network error (ConnectionError), entering retry loop.
[rank0]: step 101 loss 2.1 time 0.4
[rank0]: step 102 loss 2.1 time 0.4
""",
    ),
    (
        "TypeError",
        """\
Traceback (most recent call last):
  File "train.py", line 5, in <module>
TypeError: can only concatenate str (not "int") to str
Traceback (most recent call last):
  File "/usr/lib/python3.8/runpy.py", line 194, in _run_module_as_main
subprocess.CalledProcessError: Command '['/usr/bin/python', '-u', 'train.py', '--local_rank=3']' returned non-zero exit status 1.
""",
    ),
    (
        "HostOOMKilled",
        """\
Epoch 1:  10%|#         | 10/100 [00:10<01:30,  1.00it/s]
/var/spool/slurmd/job123/slurm_script: line 20: 99999 Killed                  python train.py
slurmstepd: error: Detected 1 oom-kill event(s) in StepId=123.batch. Some of your processes may have been killed by the cgroup out-of-memory handler.
""",
    ),
    (
        "NCCLTimeoutError",
        """\
[rank0]:[E ProcessGroupNCCL.cpp:629] [Rank 0] Some NCCL operations have failed or timed out. Later GPU operations may run on incomplete data.
[rank0]:[E ProcessGroupNCCL.cpp:635] [Rank 0] To avoid data inconsistency, we are taking the entire process down.
terminate called after throwing an instance of 'c10::Error'
  what():  [PG 0 Rank 0] Process group watchdog thread terminated with exception: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE)
E0301 failed (exitcode: -6) local_rank: 0 (pid: 97) of binary: /usr/bin/python
""",
    ),
    (
        "CUDAError",
        """\
[rank3]: RuntimeError: CUDA error: an illegal memory access was encountered
[rank0]:[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)
[rank1]:[E ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
""",
    ),
    (
        "NetworkError",
        """\
node1:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.3<1> with error 12, opcode 0, len 0, vendor err 129
RuntimeError: NCCL communicator was aborted on rank 0.
node2:1:2 [0] NCCL WARN Cuda failure 'an illegal memory access was encountered'
""",
    ),
    (
        "FileNotFoundError",
        """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "megatron/core/datasets/indexed_dataset.py", line 300, in __init__
[rank0]: FileNotFoundError: [Errno 2] No such file or directory: '/data/my.idx'
[rank1]:[W socket.cpp:436] [c10d] TCPStore recvValue failed: Connection reset by peer
""",
    ),
    (
        "ValueError",
        """\
(RayTrainWorker pid=9, ip=10.0.0.1) Traceback (most recent call last):
(RayTrainWorker pid=9, ip=10.0.0.1) ValueError: too many values to unpack (expected 2)
ray.train.base_trainer.TrainingFailedError: The Ray Train run failed. Please inspect the previous error messages for a cause.
""",
    ),
    (
        "S3StorageError",
        """\
Traceback (most recent call last):
  File "/x/botocore/httpsession.py", line 464, in send
urllib3.exceptions.ConnectTimeoutError: (<botocore.awsrequest.AWSHTTPSConnection object>, 'Connection to bucket.s3.amazonaws.com timed out. (connect timeout=60)')
During handling of the above exception, another exception occurred:
botocore.exceptions.ConnectTimeoutError: Connect timeout on endpoint URL: "https://bucket.s3.amazonaws.com/x"
""",
    ),
    (
        "DiskFull",
        """\
Traceback (most recent call last):
  File "/x/torch/serialization.py", line 652, in save
RuntimeError: [enforce fail at inline_container.cc:595] . unexpected pos 1216 vs 1110
During handling of the above exception, another exception occurred:
OSError: [Errno 28] No space left on device
""",
    ),
    (
        "ImportError",
        """\
[rank0]: ImportError: /x/fused.so: undefined symbol: _ZN2at4_ops
[rank1]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)
""",
    ),
    (
        "SlurmNodeFail",
        """\
[2024-01-01T10:00:00.000] error: Nodes gpu-12 not responding
[2024-01-01T10:05:00.000] error: Nodes gpu-12 not responding, setting DOWN
[2024-01-01T10:05:00.000] requeue job JobId=12 due to failure of node gpu-12
""",
    ),
    (
        "NodeFailure",
        """\
Warning  NodeNotReady  2m  node-controller  Node is not ready
Normal   TaintManagerEviction  1m  taint-eviction-controller  Cancelling deletion of Pod x
""",
    ),
    (
        "OutOfMemoryError",
        """\
(EngineCore_0 pid=12) ERROR 01-01 10:00:00 [core.py:700] EngineCore failed to start.
(EngineCore_0 pid=12) ERROR 01-01 10:00:00 [core.py:700] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.
""",
    ),
    (
        "ModelLoadingError",
        """\
OSError: /x/llama does not appear to have a file named config.json. Checkout 'https://huggingface.co/x' for available files.
During handling of the above exception, another exception occurred:
requests.exceptions.HTTPError: 404 Client Error: Not Found for url: https://huggingface.co/x/resolve/main/config.json
""",
    ),
    (
        "ConnectionError",
        """\
requests.exceptions.HTTPError: 503 Server Error: Service Temporarily Unavailable for url: https://huggingface.co/api/datasets/x
Traceback (most recent call last):
ConnectionError: Couldn't reach 'x' on the Hub (HTTPError)
""",
    ),
    (
        "DataloaderKilled",
        """\
Traceback (most recent call last):
RuntimeError: DataLoader worker (pid 99) is killed by signal: Killed.
slurmstepd: error: task 0 exited
""",
    ),
    (
        "GPUFallenOffBus",
        """\
torch.AcceleratorError: CUDA error: unknown error
$ nvidia-smi
Unable to determine the device handle for GPU 0000:5E:00.0: Unknown Error
""",
    ),
    (
        "NVLinkError",
        """\
[rank2]: RuntimeError: CUDA error: unspecified launch failure
Jan  1 10:00:00 n1 kernel: NVRM: Xid (PCI:0000:5e:00): 74, pid=1, NVLink: fatal error detected on link 2(0x0, 0x0)
Jan  1 10:00:00 n1 kernel: NVRM: Xid (PCI:0000:5e:00): 45, pid=1, Ch 00000008
""",
    ),
    (
        "AssertionError",
        """\
Traceback (most recent call last):
  File "megatron/arguments.py", line 300, in validate_args
    assert args.world_size % args.tensor_model_parallel_size == 0
AssertionError: world size (6) is not divisible by tensor parallel size (4)
E0301 failed (exitcode: 1) local_rank: 0
""",
    ),
    (
        "RuntimeError",
        """\
Traceback (most recent call last):
RuntimeError: The size of tensor a (4) must match the size of tensor b (5) at non-singleton dimension 1
[rank1]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)
""",
    ),
    (
        "LossNaNOrSpike",
        """\
iteration 10 | lm loss: 3.1 | grad norm: 900.1
RuntimeError: Rank 0, node n1, device 0, iteration 11: Unexpected result nan (message='found NaN in local forward loss calculation')
[rank1]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)
""",
    ),
    (  # a node that died because it was taken away
        "Preempted/TimeLimit",
        """\
The actor died because its node has died. Node Id: 3f
	the actor's node was preempted: the spot pool was drained
""",
    ),
    (  # an agent that tells how its worker was killed is alive itself
        "HostOOMKilled",
        """\
The node 'tern-4_211_0' has failed to send a keep-alive heartbeat to the rendezvous 'run9' due to an error
ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 1 (pid: 88)
""",
    ),
    (  # the end of a program that was done, as its watchdog tells it
        "None",
        """\
[I301 ProcessGroupNCCL.cpp:1501] main process destroyed cuda before watchdog loop exited (CUDA error: driver shutting down
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
Exception raised from c10_cuda_check_implementation at /opt/build/c10/cuda/CUDAException.cpp:43 (most recent call first):
""",
    ),
)


@pytest.mark.parametrize(("label", "text"), CASCADES, ids=[f"{at}-{row[0]}" for at, row in enumerate(CASCADES)])
def test_cause_is_distinguished_from_its_consequences(label: str, text: str) -> None:
    assert diagnose_text(text).root_cause == label
