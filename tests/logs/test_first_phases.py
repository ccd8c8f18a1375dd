"""Where a process was, told from its traceback: one stack a framework, and what is said without one."""

from __future__ import annotations

import time

import pytest

from runbook.locations import data_folder
from runbook.logs.signatures import load_signatures
from runbook.logs.tracebacks import phase_of
from runbook.model.log import Phase

RULES = load_signatures(data_folder("playbooks") / "oom" / "signatures").phases

STACKS = {
    "FSDP1 gathers for gradients": (
        Phase.BACKWARD, [("train.py", "train"), ("torch/_tensor.py", "backward"),
                         ("torch/autograd/graph.py", "_engine_run_backward"),
                         ("torch/distributed/fsdp/_runtime_utils.py", "_pre_backward_hook")]),
    "recomputation runs forward inside backward": (
        Phase.BACKWARD, [("torch/autograd/__init__.py", "backward"), ("torch/utils/checkpoint.py", "recompute_fn"),
                         ("model.py", "forward")]),
    "FSDP2 gathers for forward": (
        Phase.FORWARD, [("torchtitan/train.py", "forward_backward_step"), ("torch/nn/modules/module.py", "_call_impl"),
                        ("torch/distributed/fsdp/_fully_shard/_fsdp_state.py", "_pre_forward")]),
    "DeepSpeed makes its states": (
        Phase.OPTIMIZER_STEP, [("deepspeed/runtime/engine.py", "_take_model_step"),
                               ("deepspeed/runtime/zero/stage_1_and_2.py", "step")]),
    "Megatron-LM trains": (
        Phase.FORWARD, [("megatron/training/training.py", "train_step"),
                        ("megatron/core/pipeline_parallel/schedules.py", "forward_backward_no_pipelining"),
                        ("megatron/core/pipeline_parallel/schedules.py", "forward_step")]),
    "Megatron-LM builds its model": (
        Phase.INIT, [("megatron/training/training.py", "setup_model_and_optimizer"),
                     ("megatron/training/training.py", "get_model"), ("torch/nn/modules/module.py", "cuda")]),
    "Lightning runs its step as a closure": (
        Phase.FORWARD, [("lightning/pytorch/loops/optimization/automatic.py", "_optimizer_step"),
                        ("torch/optim/adamw.py", "step"), ("lightning/pytorch/strategies/strategy.py", "training_step"),
                        ("model.py", "forward")]),
    "Transformers saves": (
        Phase.CHECKPOINT, [("transformers/trainer.py", "_save_checkpoint"), ("transformers/trainer.py", "save_model")]),
    "TRL's log probabilities": (
        Phase.LOG_PROBS, [("trl/trainer/grpo_trainer.py", "_get_per_token_logps"), ("model.py", "forward")]),
    "verl's reference": (
        Phase.LOG_PROBS, [("verl/workers/fsdp_workers.py", "compute_ref_log_prob"), ("model.py", "forward")]),
    "verl's actor update": (
        Phase.BACKWARD, [("verl/workers/actor/dp_actor.py", "update_policy"), ("torch/_tensor.py", "backward")]),
    "slime sends weights": (
        Phase.WEIGHT_SYNC, [("slime/backends/megatron_utils/actor.py", "update_weights"),
                            ("slime/utils.py", "all_gather_param")]),
    "AReaL rolls out": (Phase.ROLLOUT, [("areal/workflow/rlvr.py", "arun_episode"), ("engine.py", "agenerate")]),
    "vLLM executes": (
        Phase.ROLLOUT, [("vllm/v1/worker/gpu_worker.py", "execute_model"), ("qwen2.py", "forward")]),
    "SGLang serves": (
        Phase.ROLLOUT, [("sglang/srt/managers/scheduler.py", "event_loop_overlap"), ("qwen2.py", "forward")]),
    "a batch is pinned": (
        Phase.DATA_LOADING, [("torch/utils/data/_utils/pin_memory.py", "pin_memory")]),
    "a barrier": (Phase.COLLECTIVE, [("torch/distributed/distributed_c10d.py", "barrier")]),
}


@pytest.mark.parametrize("name", STACKS)
def test_a_stack_shows_its_phase(name: str) -> None:
    expected, calls = STACKS[name]
    frames = [f'  File "/venv/{file}", line 10, in {function}' for file, function in calls]
    assert phase_of(RULES, frames) is expected


def test_a_dead_worker_s_signal_strikes_anywhere() -> None:
    frames = ['  File "train.py", line 9, in backward']
    line = "RuntimeError: DataLoader worker (pid 4890) is killed by signal: Killed. "
    assert phase_of(RULES, frames, line) is Phase.DATA_LOADING


def test_without_a_traceback_the_nearest_words_count() -> None:
    before = ["Capturing CUDA graph shapes", "Saving checkpoint at step 10"]
    assert phase_of(RULES, (), "CUDA out of memory", before) is Phase.INIT
    assert phase_of(RULES, (), "CUDA out of memory", ["an ordinary line"]) is Phase.UNKNOWN


def test_an_unknown_stack_is_unknown_whatever_stands_near() -> None:
    assert phase_of(RULES, ['  File "x.py", line 1, in helper'], "", ["Saving checkpoint"]) is Phase.UNKNOWN


def test_a_hostile_stack_costs_time_in_proportion() -> None:
    frames = ["  File " + "_save_" * 600, "in " + "vllm/" * 600] * 120
    started = time.process_time()
    phase_of(RULES, frames)
    assert time.process_time() - started < 5.0
