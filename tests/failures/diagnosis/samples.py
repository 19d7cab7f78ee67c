"""Logs in the shape that public frameworks print, written for these tests: invented hosts, paths, numbers and stories.

Each has the label a careful reader gives it and a part of the line that shows it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Sample:
    name: str
    label: str
    shows: str
    log: str


SAMPLES: tuple[Sample, ...] = (
    Sample(
        name="torchrun: one GPU's memory breaks, all others wait for it",
        label="ECCError",
        shows="uncorrectable ECC",
        log="""\
[rank0]: 2025-03-01 04:00:01,120 [INFO] iteration 810/ 500000 | lm loss: 2.11 | grad norm: 0.31
[rank5]: Traceback (most recent call last):
[rank0]: 2025-03-01 04:00:02,120 [INFO] iteration 811/ 500000 | lm loss: 2.10 | grad norm: 0.30
[rank5]:   File "/opt/run9/pretrain.py", line 88, in step
[rank5]:     loss.backward()
[rank5]: torch.AcceleratorError: CUDA error: uncorrectable ECC error
[rank1]:[E301 04:30:02.1 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=88, OpType=ALLREDUCE, NumelIn=1) ran for 1800345 milliseconds before timing out.
[rank2]:[E301 04:30:02.2 ProcessGroupNCCL.cpp:607] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=88, OpType=ALLREDUCE, NumelIn=1) ran for 1800348 milliseconds before timing out.
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
  exitcode  : -6 (pid: 911)
""",
    ),
    Sample(
        name="kernel log: the link breaks, the driver tears channels down",
        label="NVLinkError",
        shows="): 74,",
        log="""\
Mar  1 04:10:00 tern-3 kernel: [88100.120000] NVRM: Xid (PCI:0000:3b:00): 45, pid=911, name=python, Ch 00000010
Mar  1 04:10:00 tern-3 kernel: [88100.120100] NVRM: Xid (PCI:0000:3b:00): 74, pid=911, name=python, NVLink: fatal error detected on link 3(0x0, 0x0, 0x10000, 0x0)
Mar  1 04:10:01 tern-3 kernel: [88101.300000] NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)
""",
    ),
    Sample(
        name="kernel log: a GPU leaves the bus",
        label="GPUFallenOffBus",
        shows="79,",
        log="""\
[88123.100000] NVRM: GPU at PCI:0000:9a:00: GPU-5b1c0000-0000-0000-0000-000000000000
[88123.123456] NVRM: Xid (PCI:0000:9a:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
[88123.200000] NVRM: A GPU crash dump has been created.
""",
    ),
    Sample(
        name="Slurm: the time limit, then a traceback from the signal handler",
        label="Preempted/TimeLimit",
        shows="DUE TO TIME LIMIT",
        log="""\
Epoch 3:  41%|####1     | 410/1000 [09:11<13:14,  1.35s/it, loss=2.2]
slurmstepd: error: *** JOB 7001 ON tern-1 CANCELLED AT 2025-03-01T04:00:12 DUE TO TIME LIMIT ***
Traceback (most recent call last):
  File "train.py", line 10, in <module>
RuntimeError: DataLoader worker (pid 312) exited unexpectedly
srun: error: tern-1: task 0: Terminated
""",
    ),
    Sample(
        name="Slurm: the node dies under the job",
        label="SlurmNodeFail",
        shows="Node failure on tern-9",
        log="""\
step 100 loss 2.01
srun: error: Node failure on tern-9
srun: Job step aborted: Waiting up to 17 seconds for job step to finish.
slurmstepd: error: *** STEP 7004.0 ON tern-8 CANCELLED AT 2025-03-01T04:00:12 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***
""",
    ),
    Sample(
        name="Kubernetes: evicted, and then the node is gone too",
        label="Preempted/TimeLimit",
        shows="Evicted",
        log="""\
LAST SEEN   TYPE      REASON         OBJECT                MESSAGE
2m          Warning   Evicted        pod/llm-7b-worker-3   The node was low on resource: ephemeral-storage.
1m          Warning   NodeNotReady   pod/llm-7b-worker-3   Node is not ready
""",
    ),
    Sample(
        name="Kubernetes: the container needed more memory than it may",
        label="HostOOMKilled",
        shows="OOMKilled",
        log="""\
    State:          Terminated
      Reason:       OOMKilled
      Exit Code:    137
""",
    ),
    Sample(
        name="Ray: a node stops answering, its actor dies with it",
        label="NodeFailure",
        shows="marked dead",
        log="""\
(RayTrainWorker pid=311, ip=10.9.0.5) loss: 2.09 [ 3200/30000]
2025-03-01 04:00:00,120 WARNING worker.py:2000 -- The node with node id: 9f00aa and address: 10.9.0.7 has been marked dead because the detector has missed too many heartbeats from it.
ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.
        class_name: RayTrainWorker
""",
    ),
    Sample(
        name="NCCL: a port error on one host, completion errors on its peers",
        label="NetworkError",
        shows="port error",
        log="""\
heron-2:81:95 [3] transport/net_ib.cc:101 NCCL WARN NET/IB : mlx5_3:1 Got async event : port error
heron-4:66:70 [1] transport/net_ib.cc:1301 NCCL WARN NET/IB : Got completion from peer 10.9.0.4<40000> with status=12 opcode=1 len=0 vendor err 129 (Recv)
heron-4:66:70 [1] NCCL INFO transport/net.cc:1298 -> 6
[rank9]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:93, remote process exited or there was a network error, NCCL version 2.21.5
[rank9]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting early.
""",
    ),
    Sample(
        name="NCCL: only the survivors speak",
        label="NCCLRemoteError",
        shows="remote process exited",
        log="""\
[rank4]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2006, remote process exited or there was a network error
[rank4]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting early.
[rank4]: Last error:
[rank4]: socketProgress: Connection closed by remote peer heron-7<51000>
""",
    ),
    Sample(
        name="NCCL: time-outs and nothing before them",
        label="NCCLTimeoutError",
        shows="Watchdog caught collective operation timeout",
        log="""\
[rank0]: iteration 4000/ 500000 | lm loss: 1.9
[rank2]:[E ProcessGroupNCCL.cpp:607] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=BROADCAST, NumelIn=4) ran for 600001 milliseconds before timing out.
[rank2]:[E ProcessGroupNCCL.cpp:621] [Rank 2] To avoid data inconsistency, we are taking the entire process down.
terminate called after throwing an instance of 'c10::Error'
Fatal Python error: Aborted
""",
    ),
    Sample(
        name="PyTorch: the watchdog itself is stuck",
        label="Hang",
        shows="watchdog got stuck",
        log="""\
[rank3]:[F ProcessGroupNCCL.cpp:1301] [PG 0 Rank 3] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives.
[rank5]:[F ProcessGroupNCCL.cpp:1301] [PG 0 Rank 5] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives.
""",
    ),
    Sample(
        name="DeepSpeed: killed from outside, the launcher says -9",
        label="HostOOMKilled",
        shows="return code = -9",
        log="""\
[2025-03-01 04:00:01,819] [INFO] [launch.py:320:sigkill_handler] Killing subprocess 512
[2025-03-01 04:00:01,846] [ERROR] [launch.py:325:sigkill_handler] ['/opt/py/bin/python', '-u', 'tune.py', '--local_rank=1'] exits with return code = -9
""",
    ),
    Sample(
        name="Megatron: the batch is too large for one rank",
        label="OutOfMemoryError",
        shows="CUDA out of memory",
        log="""\
[rank6]: Traceback (most recent call last):
[rank6]:   File "/opt/megatron/training/training.py", line 1200, in train_step
[rank6]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 96.00 MiB. GPU 6 has a total capacity of 31.7 GiB of which 12.00 MiB is free.
W0301 04:00:12.0 88 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 91 closing signal SIGTERM
E0301 04:00:13.0 88 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 6 (pid: 97) of binary: /opt/py/bin/python
""",
    ),
    Sample(
        name="an index out of range inside a kernel",
        label="RuntimeError",
        shows="Assertion",
        log="""\
/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1290: indexSelectLargeIndex: block: [11,0,0], thread: [3,0,0] Assertion `srcIndex < srcSelectDimSize` failed.
Traceback (most recent call last):
  File "tune.py", line 31, in <module>
torch.AcceleratorError: CUDA error: device-side assert triggered
""",
    ),
    Sample(
        name="data workers run out of shared memory",
        label="DataloaderKilled",
        shows="DataLoader worker",
        log="""\
Traceback (most recent call last):
  File "/opt/py/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1100, in _try_get_data
RuntimeError: DataLoader worker (pid 5150) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.
""",
    ),
    Sample(
        name="object store slows down while a checkpoint is written",
        label="S3StorageError",
        shows="SlowDown",
        log="""\
saving step 400 to s3://runs/9/step_400
Traceback (most recent call last):
  File "/opt/run9/save.py", line 12, in put
botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the PutObject operation (reached max retries: 4): Please reduce your request rate.
During handling of the above exception, another exception occurred:
RuntimeError: checkpoint of step 400 was not saved
""",
    ),
    Sample(
        name="the disk is full",
        label="DiskFull",
        shows="No space left on device",
        log="""\
Traceback (most recent call last):
  File "/opt/py/lib/python3.11/site-packages/torch/serialization.py", line 850, in save
    _save(obj, opened_zipfile, pickle_module, pickle_protocol)
OSError: [Errno 28] No space left on device: '/scratch/run9/step_400.pt'
During handling of the above exception, another exception occurred:
RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 640 vs 534
""",
    ),
    Sample(
        name="a torn checkpoint",
        label="CheckpointCorrupt",
        shows="Ran out of input",
        log="""\
resuming from /scratch/run9/latest.pt
Traceback (most recent call last):
  File "/opt/py/lib/python3.11/site-packages/torch/serialization.py", line 1040, in _legacy_load
    magic_number = pickle_module.load(f, **pickle_load_args)
EOFError: Ran out of input
""",
    ),
    Sample(
        name="weights of another model",
        label="ModelLoadingError",
        shows="loading state_dict",
        log="""\
RuntimeError: Error(s) in loading state_dict for TernForCausalLM:
        size mismatch for lm_head.weight: copying a param with shape torch.Size([50, 20]) from checkpoint, the shape in current model is torch.Size([51, 20]).
""",
    ),
    Sample(
        name="a data set that does not exist",
        label="DatasetLoadingError",
        shows="DatasetNotFoundError",
        log="""\
Traceback (most recent call last):
  File "/opt/py/lib/python3.11/site-packages/datasets/load.py", line 1800, in load_dataset
datasets.exceptions.DatasetNotFoundError: Dataset 'tern/birds' doesn't exist on the Hub or cannot be accessed.
""",
    ),
    Sample(
        name="the loss is gone",
        label="LossNaNOrSpike",
        shows="Loss is nan",
        log="""\
Epoch: [4]  [ 120/5004]  eta: 0:41:00  lr: 0.0010  loss: 9.81 (6.20)  time: 0.49
Loss is nan, stopping training
""",
    ),
    Sample(
        name="the hub is not reachable",
        label="ConnectionError",
        shows="ConnectTimeout",
        log="""\
requests.exceptions.ConnectTimeout: HTTPSConnectionPool(host='models.invalid', port=443): Max retries exceeded with url: /api/tern
The above exception was the direct cause of the following exception:
OSError: We couldn't connect to 'https://models.invalid' to load the files
""",
    ),
    Sample(
        name="the rendezvous store cannot be reached",
        label="ConnectionError",
        shows="client socket has timed out",
        log="""\
[E socket.cpp:1024] [c10d] The client socket has timed out after 300s while trying to connect to (10.9.0.1, 29400).
torch.distributed.DistNetworkError: The client socket has timed out after 300000ms while trying to connect to (10.9.0.1, 29400).
""",
    ),
    Sample(name="a typing mistake in the code", label="NameError", shows="NameError", log="""\
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    modle.train()
NameError: name 'modle' is not defined. Did you mean: 'model'?
E0301 04:00:13.0 88 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 0 (pid: 97) of binary: /opt/py/bin/python
"""),
    Sample(name="a wrong option", label="ArgumentError", shows="unrecognized arguments", log="""\
usage: pretrain.py [-h] [--lr LR]
pretrain.py: error: unrecognized arguments: --lr-warmup-stepz 100
srun: error: tern-3: task 3: Exited with exit code 2
"""),
    Sample(name="a missing package", label="ImportError", shows="No module named", log="""\
Traceback (most recent call last):
  File "train.py", line 1, in <module>
    import flash_tern
ModuleNotFoundError: No module named 'flash_tern'
"""),
    Sample(name="an exception inside a data worker", label="IndexError", shows="Caught IndexError", log="""\
Traceback (most recent call last):
  File "train.py", line 30, in <module>
IndexError: Caught IndexError in DataLoader worker process 2.
Original Traceback (most recent call last):
  File "data.py", line 9, in __getitem__
IndexError: list index out of range
"""),
    Sample(name="a compiler that fails", label="CalledProcessError", shows="'ninja'", log="""\
subprocess.CalledProcessError: Command '['ninja', '-v', '-j', '8']' returned non-zero exit status 1.
The above exception was the direct cause of the following exception:
RuntimeError: Error building extension 'fused_tern'
"""),
    Sample(name="a user's error on one rank, time-outs on the others", label="KeyError", shows="KeyError: 'labels'", log="""\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/opt/run9/collate.py", line 7, in collate
[rank3]: KeyError: 'labels'
[rank0]:[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=BROADCAST, NumelIn=4) ran for 600001 milliseconds before timing out.
"""),
    Sample(
        name="a fabric adapter that makes no queue pair",
        label="NetworkError",
        shows="loopback QP",
        log="""\
trainer-0: actor failure: processing error:
trainer-0: could not create loopback QP for device rdma7: Operation not supported (os error 95)
trainer-0: stopping 8 workers
""",
    ),
    Sample(
        name="a node daemon that does not know its own name",
        label="SlurmNodeFail",
        shows="NodeName",
        log="""\
Mar 01 04:00:01 tern-4 systemd[1]: Started Slurm node daemon.
Mar 01 04:00:01 tern-4 slurmd[3136]: slurmd: fatal: Unable to determine this slurmd's NodeName
Mar 01 04:00:01 tern-4 systemd[1]: slurmd.service: main process exited, code=exited, status=1/FAILURE
""",
    ),
    Sample(
        name="an upload to a bucket that was cut",
        label="S3StorageError",
        shows="gs://tern",
        log="""\
step 800 loss 2.1
Unavailable: Unexpected response code 410
         when resuming upload gs://tern/run9/model.ckpt-800.data-00000-of-00001
Traceback (most recent call last):
  File "/opt/run9/train.py", line 91, in train
    saver.save(session, path)
""",
    ),
    Sample(
        name="a kubelet that fell silent, then its pods evicted",
        label="NodeFailure",
        shows="stopped posting",
        log="""\
node_lifecycle: node tern-4 hasn't been updated for 5m0s. Reason:Kubelet stopped posting node status. Message:}
node_lifecycle: Warning Evicted pod/run9-worker-3 TaintManagerEviction
""",
    ),
    Sample(
        name="an AMD GPU that is reset under the job",
        label="CUDAError",
        shows="gfx_0.0.0 timeout",
        log="""\
[88120.10] amdgpu 0000:c1:00.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=88, emitted seq=90
[88120.11] amdgpu 0000:c1:00.0: amdgpu: GPU reset begin!
[88121.90] amdgpu 0000:c1:00.0: amdgpu: MODE2 reset
""",
    ),
    Sample(
        name="a node that the launcher cannot reach",
        label="ConnectionError",
        shows="ssh -o",
        log="""\
Traceback (most recent call last):
  File "/opt/lib/python3.12/subprocess.py", line 373, in check_call
    raise CalledProcessError(retcode, cmd)
subprocess.CalledProcessError: Command 'ssh -o PasswordAuthentication=no tern-2 hostname' returned non-zero exit status 255.

During handling of the above exception, another exception occurred:

RuntimeError: Using hostfile at hosts but host=tern-2 was not reachable via ssh.
""",
    ),
    Sample(
        name="Ray's monitor of memory, cut off at its front",
        label="HostOOMKilled",
        shows="out of memory issue",
        log="""\
Status message: Job entrypoint command failed with exit code 1, last available logs:
95412   14.05   ray::Rollout
Refer to the documentation on how to address the out of memory issue: ray-oom-prevention.html
(Rollout pid=95409) INFO Successfully reset prefix cache
""",
    ),
)  # fmt: skip

HEALTHY: dict[str, str] = {
    "loss scale search": """\
[2025-03-01 04:00:01,903] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768
[2025-03-01 04:00:09,878] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=1, lr=[0.0001]
""",
    "no IPv6, then it runs": """\
[W socket.cpp:600] [c10d] The client socket cannot be initialized to connect to [tern-1]:29400 (errno: 97 - Address family not supported by protocol).
step 1 loss 9.1 time 0.4
""",
    "a process group left open": """\
Training done in 3 h
[rank0]:[W301 07:06:42.8 ProcessGroupNCCL.cpp:1200] WARNING: process group has NOT been destroyed before it is being destructed.
""",
    "optional libraries": """\
heron-5:20:20 [0] misc/ibvwrap.cc:70 NCCL WARN Failed to open libibverbs.so[.1]
heron-5:20:20 [0] NCCL INFO NET/Plugin: Plugin load returned 2 : libnccl-net.so: cannot open shared object file: No such file or directory
# Avg bus bandwidth    : 11.2
""",
    "warnings that name errors": """\
lib/x.py:8: FutureWarning: `torch.load` with `weights_only=False`; in future a ValueError will be raised
2025-03-01 04:00:01,120 WARNING apex is missing (ImportError: No module named 'apex'), falling back to native layer norm
 12%|#2        | 12/100 [00:10<01:10,  1.2it/s]
""",
    "a request tried again": """\
WARNING urllib3.connectionpool: Retrying (Retry(total=4, connect=4)) after connection broken by 'ReadTimeoutError': /api/tern
step 4 loss 2.2 time 0.4
""",
    "configuration that speaks of errors": """\
  exit_on_missing_checkpoint ...................... False
  check_for_nan_in_loss_and_grad .................. True
  rerun_mode ...................................... disabled
 iteration        1/  500000 | lm loss: 1.1E+01 | number of nan iterations:   0 |
""",
}
