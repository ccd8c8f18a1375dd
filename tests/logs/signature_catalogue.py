"""The catalogue of messages as a table: name, release or variety, and what shows that wording. See its test."""

from __future__ import annotations

CATALOGUE: dict[str, dict[str, str]] = {
    # What stands in front of PyTorch's text, and what wrappers put around it.
    "PT-EXC-01": {"up to 1.12": r"^RuntimeError: CUDA out of memory"},
    "PT-EXC-02": {"1.13-2.3": r"^torch\.cuda\.OutOfMemoryError: CUDA out of memory"},
    "PT-EXC-03": {
        "2.4 and later": r"^torch\.OutOfMemoryError: CUDA out of memory",
        "behind an engine's stamp": r"^\(EngineCore pid=207\) ERROR [^\n]* torch\.OutOfMemoryError: CUDA",
    },
    "PT-EXC-04": {
        "up to 2.7": "^RuntimeError: CUDA error: ", "2.8 and later": r"^torch\.AcceleratorError: CUDA error: ",
    },
    # PyTorch's allocators.
    "PT-CUDA-01": {"1.0": r"allocate 1\.12 MiB \(GPU", "1.0-1.3": r"KiB cached\)"},
    "PT-CUDA-02": {"1.4-1.12": r"free; [\d.]+ GiB reserved in total by PyTorch\)$"},
    "PT-CUDA-03": {"1.8-2.0, a fraction set": r"GiB allowed; [\d.]+ GiB reserved in total by PyTorch\)$"},
    "PT-CUDA-04": {
        "1.10-2.0": r"MiB free; [\d.]+ GiB reserved in total by PyTorch\) If reserved memory is >> allocated",
        "1.10-2.0, a fraction set": r"allowed; [\d.]+ GiB reserved in total by PyTorch\) If reserved",
    },
    "PT-CUDA-05": {
        "2.1": r"total capacty of .* max_split_size_mb", "2.1, wrapped": r"NonRetryableExceptionWrapper: .* capacty",
        "2.1, a fraction set and not printed": r"capacty of 79\.15 GiB of which 38\.09 GiB is free",
    },
    "PT-CUDA-06": {"2.2": r"torch\.cuda\.OutOfMemoryError: .* capacity of", "2.3, GPU 3": "GPU \x03 has a total"},
    "PT-CUDA-06T": {"2.3, GPU 0": r"GPU ?$"},
    "PT-CUDA-06N": {"2.3, GPU 10": "GPU \n has a total"},
    "PT-CUDA-07": {
        "2.4-2.9": r"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "private pools": r"allocated in private pools \(e\.g\., CUDA Graphs\), and",
        "name stripped": "^OutOfMemoryError: CUDA", "no name": "what\\(\\):  CUDA",
        "no TiB in PyTorch": r"3725\.29 GiB",
    },
    "PT-CUDA-08": {
        "2.5-2.9": r"memory in use\. 2\.25 GiB allowed; Of the allocated",
        "with private pools": r"allowed; Of the allocated memory .* private pools",
    },
    "PT-CUDA-08a": {"2.10": " PYTORCH_ALLOC_CONF="},
    "PT-CUDA-08b": {
        "2.11 and later": r"docs\.pytorch\.org/docs/stable/notes/cuda\.html#optimizing",
        "2.15": "expandable_segments is enabled. If instead",
    },
    "PT-CUDA-09": {
        "only another process": r"free\. Process \d+ has [\d.]+ GiB memory in use\. Of the",
        "this process in the middle": r"Process \d+ has .* Including non-PyTorch memory, this .* Process \d+",
    },
    "PT-CUDA-10": {"1.x-2.13": "CUDA out of memory. Tried to allocate more than 1EB memory"},
    "PT-CUDA-11": {
        "2.12 and later": "preemptively rejected", "the warning before": "Preemptively rejecting allocation",
    },
    "PT-CUDA-12": {"mapping": "memory mapping failed with OOM", "allocation": "memory allocation failed with OOM"},
    "PT-CUDA-13": {
        "out of memory": "CUDA driver error: out of memory", "unknown": "CUDA driver error: unknown error",
        "not ready": "CUDA driver error: device not ready",
    },
    "PT-CUDA-14": {
        "no fraction": r"17179869184\.00 GiB$", "a fraction, GPU 3 as a character": "device \x03 would exceed",
    },
    "PT-CUDA-14T": {"2.3-2.9, GPU 0": "Allocation on device $"},
    "PT-CUDA-15": {"the result": "NVML_SUCCESS == r INTERNAL", "the call": "NVML_SUCCESS == DriverAPI"},
    "PT-CUDA-16": {"2.15": r"\(VSZ\) exhaustion", "the reserve": "exceeds the expandable-segment reserve"},
    "PT-HIP-01": {"older": "PYTORCH_HIP_ALLOC_CONF", "with processes": r"HIP out of memory.*Process 4711"},
    "PT-XPU-01": {"no fraction": r"free\. Of the allocated", "a fraction": r"free\. 40\.00 GiB allowed; Of the"},
    "PT-XPU-02": {"from below": "UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"},
    "PT-NPU-01": {
        "no fraction": r"current active; [\d.]+ GiB free; [\d.]+ GiB reserved", "a fraction": "GiB allowed",
    },
    "PT-NPU-02": {"HEAD": "NPU out of memory. Allocation was preemptively rejected"},
    "PT-NPU-03": {
        "device": "device id: 3", "workspace": "NPUWorkspaceAllocator tried",
        "pinned host": "Malloc pin memory failed",
    },
    "PT-MPS-01": {"2.4": "max allowed: "},
    # CUDA, its libraries, other frameworks.
    "CU-01": {
        "up to 2.7": "^RuntimeError: CUDA error: out of memory", "2.8": "AcceleratorError: CUDA error: out of memory",
        "HIP": "HIP error", "pinned, TensorFlow": "could not allocate pinned host memory of size",
    },
    "CU-02": {"2.1 and later": "CUDA driver error: out of memory"},
    "CU-03": {"cuBLAS": "CUBLAS_STATUS_ALLOC_FAILED", "TensorRT-LLM": "Failed to create cublas handle"},
    "CU-03b": {"cuDNN": "CUDNN_STATUS_ALLOC_FAILED", "cuSPARSE": "CUSPARSE_STATUS_ALLOC_FAILED"},
    "CU-04": {
        "cuBLAS": "CUBLAS_STATUS_NOT_INITIALIZED", "cuDNN": "CUDNN_STATUS_NOT_INITIALIZED",
        "layout": "CUDNN_STATUS_NOT_SUPPORTED", "cuSOLVER": "CUSOLVER_STATUS_INTERNAL_ERROR",
    },
    "CU-05": {
        "driver": "CUDA_ERROR_OUT_OF_MEMORY: out of memory", "runtime": "cudaMalloc failed: out of memory",
        "RMM": "std::bad_alloc: CUDA error at: ", "newer RMM": "std::bad_alloc: out_of_memory: CUDA error at: ",
        "pinned host": "bytes on host: CUDA_ERROR_OUT_OF_MEMORY",
    },
    "CU-06": {
        "first try": r"cuMemCreate CUDA_ERROR_OUT_OF_MEMORY \(may", "fatal": r"CUresult error: 2 \(out of memory\)",
        "fatal, another error": r"CUresult error: 1 \(invalid argument\)",
    },
    "CU-07": {"triton": r"Triton Error \[CUDA\]: out of memory"},
    "CU-08": {
        "shared": "resource: shared memory", "threads": "resource: threads", "tensor": "resource: tensor memory",
    },
    "CU-09": {"ops.cu": r"at line \d+ in file \S+ops\.cu"},
    "JAX-01": {"older": r"17179869184 bytes", "newer": r"4\.50GiB\. \[executable_name"},
    "JAX-02": {"rounded": r"\(rounded to \d+\)", "a tensor": "OOM when allocating tensor"},
    # NCCL.
    "NCCL-01": {
        "runtime": "Cuda failure 'out of memory'", "driver": "Cuda failure 2 'out of memory'",
        "calloc": "Failed to CUDA calloc 6291456 bytes", "malloc": "Failed to CUDA malloc",
    },
    "NCCL-02": {"torch": r"unhandled cuda error \(run with NCCL_DEBUG=INFO"},
    "NCCL-03": {
        "extend": r"to 9637892 bytes$", "extend, errno": r"to 9637892 bytes, error: No space",
        "creating": "while creating",
        "attaching, errno": r"while attaching to .*, error: No space left on device \(28\)",
    },
    "NCCL-04": {"malloc": "Failed to malloc 524288 bytes", "mmap": "Call to mmap failed"},
    "NCCL-05": {"2.1-2.13": "Watchdog caught collective operation timeout: WorkNCCL"},
    "NCCL-06": {
        "2.4": "detected by watchdog at work: 121", "2.8": "failure detected by watchdog at work sequence id",
    },
    "NCCL-07": {
        "operations": "Some NCCL operations have failed", "stuck": "watchdog got stuck for", "closed": "remote peer",
        "terminated": "watchdog thread terminated with exception",
    },
    "NCCL-08": {"after a timeout": "more than 1EB"},
    # Engines.
    "VLLM-01": {"0.6": r"initializing the engine\.$", "0.33": "conserving_memory"},
    "VLLM-02": {"0.6": "larger than the maximum number of tokens"},
    "VLLM-03": {
        "0.8": r"models's max seq len .*available memory, Try", "0.33": r"model's max seq len .*length is 25392",
    },
    "VLLM-04": {"0.11": r"Free memory on device \(30", "0.33": r"Free memory on device cuda:2 \("},
    "VLLM-05": {"all": "Error in memory profiling"},
    "VLLM-06": {"0.6-0.33": "warming up sampler"},
    "VLLM-07": {
        "62": r"cumem_allocator\.cpp:62", "139": r"cumem_allocator\.cpp:139",
        "newer": "Wake-up failed on Rank 3: CUDA",
    },
    "VLLM-08": {"0.8-0.1x": "Expandable segments are not compatible with memory pool"},
    "VLLM-09": {"0.33": "KV connector NixlConnector is incompatible"},
    "VLLM-10": {
        "cache": "Available KV cache memory: 31", "CuMem": "CuMemAllocator: sleep freed", "sleep": "Sleep mode freed",
        "grown": "Memory usage increased after sleeping",
    },
    "SGL-01": {"0.4": r"--mem-fraction-static\.$", "0.5": "Current value: mem_fraction_static="},
    "SGL-02": {"0.4": "Capture CUDA graph failed", "0.5": "Capture cuda graph failed", "list": "to a smaller value"},
    "SGL-03": {"0.4": "Decode out of memory happened", "0.5": "KV cache pool is full. Retract requests"},
    "SGL-04": {"prefill": "Prefill out of memory", "decode": "Decode out of memory", "slots": "alloc_req_slots runs"},
    "SGL-05": {"0.4-0.5": "memory capacity is unbalanced"},
    "SGL-06": {"0.4-0.5": "didn't finish loading"},
    "SGL-07": {"0.5": "fewer than --context-length"},
    "TRT-01": {
        "with figures": r"Free GPU memory before component creation attempt \(GiB\): ", "alone": r"GPU memory\.$",
    },
    "TRT-02": {"runtime": r"CUDA runtime error in ::cudaMallocAsync"},
    "TRT-03": {"memory of its own": "Process 7310 has .* 0 bytes is allocated by PyTorch"},
    # Slurm.
    "SL-OOM-01": {
        "17.11, step": "Exceeded step memory limit at some", "17.11, job": "Exceeded job memory limit at some",
    },
    "SL-OOM-02": {"18.08": r"oom-kill event\(s\) in step 123\.0 cgroup\.$"},
    "SL-OOM-03": {"19.05, 20.02": r"oom-kill event\(s\) in step 123\.batch cgroup\. Some of your processes"},
    "SL-OOM-04": {"20.11": r"in StepId=123\.0 cgroup\. Some of", "interactive": r"StepId=123\.interactive cgroup"},
    "SL-OOM-05": {
        "21.08": r"event\(s\) in StepId=123\.0\. Some of your", "named daemon": "^slurmstepd-gpu-21: error",
    },
    "SL-OOM-06": {
        "23.02-26.05, one": "1 oom_kill event in StepId", "several": "4 oom_kill events in StepId=123.extern",
    },
    "SL-OOM-07": {
        "job": "Job 123 exceeded memory limit", "step": "Step 123.0 exceeded",
        "20.11": r"StepId=123\.0 exceeded memory",
        "virtual": "exceeded virtual memory limit", "notice": "Exceeded job memory limit$",
    },
    "SL-OOM-08": {"info": "hit memory limit at least once"},
    "SL-TASK-01": {"one": "nid002680: task 0: Out Of Memory", "several": "tasks 0-3,7: Out Of Memory"},
    "SL-TASK-02": {"one": "task 3: Exited with exit code 1", "several": r"gpu-\[21-22\]: tasks 0-2,4-7: Exited"},
    "SL-TASK-03": {"killed": "task 3: Killed", "terminated": "task 3: Terminated", "dumped": r"\(core dumped\)"},
    "SL-TASK-04": {
        "now": "srun: Terminating StepId=", "waiting": "Job step aborted: Waiting",
        "first": "First task exited 60s ago",
        "forcing": "forcing job termination", "older": "_step_signal: Terminating",
        "oldest": "Terminating job step 123",
    },
    "SL-CANCEL-01": {"plain": r"CANCELLED AT \S+ \*\*\*$", "25.05": "DUE to SIGNAL Terminated",
    "tasks": "TASK FAILURE",
                     "reason": r"\*\*\* REASON: ", "failed": r"FAILED \(non-zero exit code or other failure mode\)"},
    "SL-CANCEL-02": {"time limit": "DUE TO TIME LIMIT"},
    "SL-CANCEL-03": {"preempted": "DUE TO PREEMPTION", "node": "DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS"},
    "SL-STATE": {"cut": r"OUT_OF_ME\+ +0:125", "wide": "OUT_OF_MEMORY +0:125", "parsable": r"\|OUT_OF_MEMORY\|"},
    "SL-EXIT": {"torchelastic": r"Signal 9 \(SIGKILL\)", "bash": "line 31: 4711 Killed  ", "dash": "^Killed$"},
    # Kernel.
    "KRN-01": {"dmesg": "invoked oom-killer: gfp_mask="},
    "KRN-02": {
        "cgroup": "CONSTRAINT_MEMCG", "node": "CONSTRAINT_NONE.*global_oom", "cpuset": "CONSTRAINT_CPUSET",
        "policy": "CONSTRAINT_MEMORY_POLICY",
    },
    "KRN-03": {
        "cgroup": r"Memory cgroup out of memory: Killed process .* shmem-rss:2048kB, UID",
        "node": r"\] Out of memory: Killed process", "older": r"sacrifice child\n.*Killed process .* shmem-rss",
        "oldest": r"sacrifice child\n.*Killed process .* file-rss:64kB$", "older, cut": "sacrifice child$",
    },
    "KRN-04": {"v1": "killed as a result of limit of /slurm/uid_1000/job_771"},
    # Processes.
    "HOST-01": {"1.13-2.13": "DefaultCPUAllocator: can't allocate memory: you tried"},
    "HOST-02": {
        "Python": "^MemoryError$", "NumPy 1": r"^numpy\.core\._exceptions", "NumPy 2": r"^numpy\._core\._exceptions",
        "system call": r"^OSError: \[Errno 12\]", "fork": "fork: Cannot allocate",
        "C++": "instance of 'std::bad_alloc'",
    },
    "HOST-03": {"all": "is killed by signal: Killed"},
    "HOST-04": {
        "signal": "is killed by signal: Bus error", "message": "Unexpected bus error encountered in worker",
        "file": r"unable to write to file </torch_\w+>: No space", "object": "unable to open shared memory object",
    },
    "HOST-05": {"worker": r"\(pid\(s\) 4890, 4891\) exited unexpectedly", "pinning": "Pin memory thread exited"},
    "HOST-06": {"newer table": r"exitcode  : -9 \(pid: 4711\) \(SIGKILL\)", "traceback": r"received by PID 4711"},
    "HOST-07": {"SGLang HiCache": "CUDA error: invalid argument"},
    # Ray.
    "RAY-01": {"killed": "2 Workers", "ten are not none": "^10 Workers", "none": "^0 Workers"},
    "RAY-02": {
        "up to 2.54": r"Task was killed due to the node running low on memory\.\nMemory on the node .*used=1\.25GB",
    },
    "RAY-03": {"2.55": r"was 28\.62GB / 30\.00GB", "2.60": r"110\.69GB used / 124\.35GB limit"},
    "RAY-04": {"2.9-2.40": "There are some potential root causes", "2.60": "Some common causes include"},
    "RAY-05": {
        "put": "ObjectStoreFullError", "full": "local object store is full of objects", "disk": "OutOfDiskError",
    },
    "RAY-06": {
        "actor": "RayActorError: The actor died", "newer": "ActorDiedError: The actor died",
        "process": "The actor is dead because its worker process has died",
    },
}
"""Name in the catalogue -> release (or variety) -> what one sample of it must show."""
