"""Which part of the training loop failed and who says so: a short log for each cue of each system."""

from __future__ import annotations

import io

import pytest

from runbook.model.log import Finding, Phase
from tests.logs.corpus import reader

_OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
    "79.11 GiB of "
    "which 1.00 GiB is free. Including non-PyTorch memory, this process has 78.11 GiB memory in use. Of the allocated "
    "memory 76.20 GiB is allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated."
)

STACKS: tuple[tuple[str, Phase, str], ...] = (
    # verl: the remote call stands at the head; what is inside decides for the trained model.
    ("verl generates", Phase.ROLLOUT,
     "ray::WorkerDict.actor_rollout_generate_sequences() | fsdp_workers.py generate_sequences"),
    ("verl's agent loop", Phase.ROLLOUT, "ray::AgentLoopWorker.generate_sequences() | decorator.py inner"),
    ("verl's old log probabilities", Phase.LOG_PROBS,
     "ray::WorkerDict.actor_rollout_compute_log_prob() | fsdp_workers.py compute_log_prob"
     " | dp_actor.py _forward_micro_batch"),
    ("verl's old log probabilities, by the remote call alone", Phase.LOG_PROBS,
     "ray::WorkerDict.actor_rollout_ref_compute_log_prob() | decorator.py inner"),
    ("verl's reference", Phase.LOG_PROBS, "ray::WorkerDict.ref_compute_ref_log_prob() | dp_actor.py forward"),
    ("verl's critic values", Phase.LOG_PROBS, "ray::WorkerDict.critic_compute_values() | dp_critic.py compute_values"),
    ("verl's critic update goes forward", Phase.FORWARD,
     "ray::WorkerDict.critic_update_critic() | dp_critic.py update_critic | module.py _call_impl"),
    ("verl's critic update goes back", Phase.BACKWARD,
     "ray::WorkerDict.critic_update_critic() | dp_critic.py update_critic | _tensor.py backward"),
    ("verl's actor goes forward", Phase.FORWARD,
     "ray::WorkerDict.actor_rollout_update_actor() | dp_actor.py update_policy | module.py _wrapped_call_impl"),
    ("verl's actor goes back", Phase.BACKWARD,
     "ray::WorkerDict.actor_rollout_update_actor() | dp_actor.py update_policy | graph.py _engine_run_backward"),
    ("verl's actor recomputes", Phase.BACKWARD,
     "ray::WorkerDict.actor_rollout_ref_update_actor() | utils/checkpoint.py unpack_hook | model.py forward"),
    ("verl's actor steps", Phase.OPTIMIZER_STEP,
     "ray::WorkerDict.actor_rollout_update_actor() | dp_actor.py update_policy | dp_actor.py _optimizer_step"),
    ("verl's entropy", Phase.FORWARD,
     "ray::WorkerDict.actor_rollout_update_actor() | torch_functional.py entropy_from_logits"),
    ("verl's logits", Phase.FORWARD, "dp_actor.py update_policy | torch_functional.py logprobs_from_logits_v2"),
    ("verl infers a batch", Phase.LOG_PROBS, "engine_workers.py infer_batch | transformer_impl.py forward_step"),
    ("verl trains a batch", Phase.FORWARD, "engine_workers.py train_batch | transformer_impl.py forward_step"),
    ("verl wakes its engine", Phase.ROLLOUT, "vllm_rollout.py resume | worker.py wake_up"),
    ("verl sends weights", Phase.WEIGHT_SYNC, "fsdp_workers.py rollout_mode | vllm_rollout.py update_weights"),
    ("verl sends weights, by the remote call alone", Phase.WEIGHT_SYNC,
     "ray::WorkerDict.actor_rollout_update_weights() | decorator.py inner"),
    ("verl starts", Phase.INIT, "ray::WorkerDict.actor_rollout_init_model() | fsdp_workers.py _build_model_optimizer"),
    ("verl goes on", Phase.RESUME, "ray::WorkerDict.actor_rollout_load_checkpoint() | decorator.py inner"),
    ("the trainer reads the optimizer's states", Phase.RESUME,
     "trainer.py _inner_training_loop | trainer.py _load_optimizer_and_scheduler | optimizer.py load_state_dict"),
    ("Megatron reads a distributed checkpoint", Phase.RESUME,
     "training.py setup_model_and_optimizer | checkpointing.py load_checkpoint | state_dict_loader.py load"),
    ("a program of its own reads its checkpoint", Phase.RESUME, "train.py main | train.py load_checkpoint"),
    ("weights of a model that others trained", Phase.INIT,
     "train.py main | modeling_utils.py from_pretrained | modeling_utils.py load_state_dict"),
    ("verl saves", Phase.CHECKPOINT, "ray::WorkerDict.actor_rollout_save_checkpoint() | decorator.py inner"),
    ("verl validates", Phase.VALIDATION, "ray_trainer.py fit | ray_trainer.py _validate | base.py func"),
    ("verl's engine runs out", Phase.ROLLOUT, "gpu_worker.py execute_model | gpu_model_runner.py _model_forward"),
    ("verl's other engine runs out", Phase.ROLLOUT, "scheduler.py event_loop_normal | model_runner.py forward_extend"),
    # AReaL
    ("AReaL's log probabilities", Phase.LOG_PROBS, "actor.py compute_logp | fsdp_engine.py forward_batch"),
    ("AReaL's forward without gradients", Phase.LOG_PROBS, "fsdp_engine.py forward_batch | module.py _call_impl"),
    ("AReaL trains forward", Phase.FORWARD,
     "actor.py ppo_update | fsdp_engine.py train_batch | fsdp_engine.py forward_backward_batch | module.py _call_impl"),
    ("AReaL trains back", Phase.BACKWARD, "actor.py ppo_update | fsdp_engine.py train_batch | _tensor.py backward"),
    ("AReaL steps", Phase.OPTIMIZER_STEP, "actor.py ppo_update | fsdp_engine.py optimizer_step"),
    ("AReaL sends weights", Phase.WEIGHT_SYNC, "fsdp_engine.py _update_weights_from_distributed"),
    ("AReaL writes weights", Phase.WEIGHT_SYNC, "fsdp_engine.py _update_weights_from_disk"),
    ("AReaL's episode", Phase.ROLLOUT, "rlvr.py arun_episode | remote_inf_engine.py agenerate"),
    # Relax and slime
    ("slime trains forward", Phase.FORWARD,
     "actor.py train_actor | model.py train_one_step | schedules.py forward_step"),
    ("slime's own log probabilities, trained", Phase.FORWARD,
     "actor.py train_actor | loss.py policy_loss_function | loss.py get_log_probs_and_entropy"),
    ("slime's log probabilities", Phase.LOG_PROBS,
     "actor.py compute_log_prob | model.py forward_only | loss.py forward_step"),
    ("Relax's reference", Phase.LOG_PROBS, "actor.py compute_ref_log_prob | module.py _call_impl"),
    ("Relax's actor", Phase.LOG_PROBS, "actor.py compute_actor_log_prob"),
    ("slime sends weights", Phase.WEIGHT_SYNC,
     "ray::MegatronTrainRayActor.update_weights() | update_weight_utils.py _update_bucket_weights_from_tensor"),
    ("slime rolls out", Phase.ROLLOUT, "ray::RolloutManager.generate() | sglang_rollout.py generate_rollout"),
    ("slime saves", Phase.CHECKPOINT, "ray::MegatronTrainRayActor.save_model() | checkpointing.py save_checkpoint"),
    ("slime starts", Phase.INIT, "ray::MegatronTrainRayActor.init() | model.py initialize_model_and_optimizer"),
    # any PyTorch job, FSDP, torchtitan
    ("a module", Phase.FORWARD, "nn/modules/module.py _call_impl | model.py forward"),
    ("the loss", Phase.FORWARD, "nn/functional.py cross_entropy"),
    ("the loss's softmax", Phase.FORWARD, "nn/functional.py log_softmax"),
    ("recomputation", Phase.BACKWARD, "_tensor.py backward | utils/checkpoint.py recompute_fn | model.py forward"),
    ("the engine of autograd", Phase.BACKWARD, "autograd/graph.py _engine_run_backward"),
    ("AdamW's states", Phase.OPTIMIZER_STEP, "torch/optim/adamw.py _init_group"),
    ("AdamW's foreach", Phase.OPTIMIZER_STEP, "torch/optim/adamw.py _multi_tensor_adamw"),
    ("FSDP2 gathers", Phase.FORWARD,
     "_fsdp_state.py _pre_forward | _fsdp_param_group.py unshard | c.py foreach_all_gather"),
    ("FSDP1 gathers", Phase.FORWARD, "_flat_param.py _alloc_padded_unsharded_flat_param"),
    ("FSDP2 gathers for gradients", Phase.BACKWARD,
     "_tensor.py backward | _fsdp_state.py _pre_backward | a.py unshard"),
    ("a collective", Phase.COLLECTIVE, "torch/distributed/distributed_c10d.py all_gather_into_tensor"),
    ("a full state dict", Phase.CHECKPOINT, "train.py save | _state_dict_utils.py _full_state_dict"),
    ("DCP saves", Phase.CHECKPOINT, "distributed/checkpoint/state_dict_saver.py save"),
    ("DCP saves beside training", Phase.CHECKPOINT, "distributed/checkpoint/state_dict_saver.py async_save"),
    ("torchtitan validates", Phase.VALIDATION, "torchtitan/components/validate.py validate | module.py _call_impl"),
    ("a loop of one's own evaluates", Phase.VALIDATION, "train.py evaluate | module.py _call_impl"),
    ("a batch is pinned", Phase.DATA_LOADING, "utils/data/_utils/pin_memory.py pin_memory"),
    ("a batch is read", Phase.DATA_LOADING, "torch/utils/data/dataloader.py _next_data"),
    # DeepSpeed
    ("DeepSpeed goes forward", Phase.FORWARD, "deepspeed/runtime/engine.py forward | module.py _call_impl"),
    ("DeepSpeed goes back", Phase.BACKWARD, "deepspeed/runtime/engine.py backward"),
    ("DeepSpeed's buckets", Phase.BACKWARD, "zero/stage_1_and_2.py reduce_independent_p_g_buckets_and_remove_grads"),
    ("DeepSpeed averages", Phase.BACKWARD, "zero/stage_1_and_2.py average_tensor"),
    ("DeepSpeed steps", Phase.OPTIMIZER_STEP, "deepspeed/runtime/engine.py step | zero/stage_1_and_2.py step"),
    ("DeepSpeed steps with stage 3", Phase.OPTIMIZER_STEP, "zero/stage3.py step"),
    ("DeepSpeed's Adam on the host", Phase.OPTIMIZER_STEP, "deepspeed/ops/adam/cpu_adam.py step"),
    ("DeepSpeed starts its states", Phase.INIT,
     "deepspeed/__init__.py initialize | engine.py _configure_optimizer"
     " | zero/stage_1_and_2.py initialize_optimizer_states"),
    ("DeepSpeed cuts parameters", Phase.INIT, "zero/partition_parameters.py _post_init_method"),
    ("DeepSpeed fetches", Phase.FORWARD,
     "partitioned_param_coordinator.py fetch_sub_module | partition_parameters.py all_gather"),
    ("DeepSpeed evaluates in a pipeline", Phase.VALIDATION, "deepspeed/runtime/pipe/engine.py eval_batch"),
    # Megatron-LM, NeMo
    ("Megatron-LM goes forward", Phase.FORWARD,
     "training.py pretrain | training.py train_step | schedules.py forward_backward_no_pipelining"
     " | schedules.py forward_step"),
    ("Megatron-LM goes back", Phase.BACKWARD,
     "training.py train_step | schedules.py forward_backward_pipelining_with_interleaving"
     " | schedules.py backward_step"),
    ("Megatron-LM reduces gradients", Phase.BACKWARD,
     "schedules.py forward_backward_no_pipelining | finalize_model_grads.py finalize_model_grads"),
    ("Megatron-LM prepares gradients", Phase.OPTIMIZER_STEP, "training.py train_step | optimizer.py prepare_grads"),
    ("Megatron-LM's optimizer", Phase.OPTIMIZER_STEP,
     "training.py train_step | megatron/core/optimizer/optimizer.py step"),
    ("Megatron-LM starts", Phase.INIT,
     "training.py pretrain | training.py setup_model_and_optimizer | training.py get_model"),
    ("Megatron-LM's buffers", Phase.INIT, "distributed_data_parallel.py __init__ | param_and_grad_buffer.py __init__"),
    ("Megatron-LM loads", Phase.RESUME, "training.py setup | checkpointing.py load_checkpoint"),
    ("Megatron-LM evaluates", Phase.VALIDATION,
     "training.py evaluate_and_print_results | training.py evaluate | s.py forward_step"),
    ("Megatron-LM saves", Phase.CHECKPOINT, "training.py train | checkpointing.py save_checkpoint"),
    ("Megatron-LM's logits", Phase.FORWARD, "cross_entropy.py vocab_parallel_cross_entropy"),
    ("Lightning validates", Phase.VALIDATION,
     "evaluation_loop.py _evaluation_step | strategy.py validation_step | model.py forward"),
    ("Lightning's sanity check", Phase.VALIDATION, "trainer.py _run_sanity_check | evaluation_loop.py run"),
    # Transformers, accelerate, TRL
    ("Transformers goes forward", Phase.FORWARD,
     "trainer.py training_step | trainer.py compute_loss | module.py _call_impl"),
    ("accelerate goes back", Phase.BACKWARD, "trainer.py training_step | accelerator.py backward"),
    ("accelerate steps", Phase.OPTIMIZER_STEP, "accelerate/optimizer.py step | torch/optim/adamw.py step"),
    ("Transformers evaluates", Phase.VALIDATION,
     "trainer.py _maybe_log_save_evaluate | trainer.py evaluate | trainer.py evaluation_loop"
     " | trainer.py prediction_step"),
    ("Transformers saves", Phase.CHECKPOINT, "trainer.py _maybe_log_save_evaluate | trainer.py _save_checkpoint"),
    ("Transformers resumes", Phase.RESUME,
     "trainer.py train | trainer.py _load_from_checkpoint | fsdp_utils.py load_fsdp_model"),
    ("TRL generates", Phase.ROLLOUT,
     "trainer.py training_step | grpo_trainer.py _prepare_inputs | grpo_trainer.py _generate_and_score_completions "
     "| grpo_trainer.py _generate_single_turn"),
    ("TRL scores what it generated", Phase.LOG_PROBS,
     "grpo_trainer.py _generate_and_score_completions | grpo_trainer.py _get_per_token_logps_and_entropies"
     " | m.py forward"),
    ("TRL's loss asks for log probabilities", Phase.FORWARD,
     "trainer.py training_step | grpo_trainer.py compute_loss | grpo_trainer.py _get_per_token_logps_and_entropies"),
    ("TRL's reference of DPO", Phase.LOG_PROBS, "dpo_trainer.py compute_ref_log_probs | module.py _call_impl"),
    # engines while they start
    ("vLLM profiles", Phase.INIT,
     "gpu_worker.py determine_available_memory | gpu_model_runner.py profile_run | m.py forward"),
    ("vLLM captures graphs", Phase.INIT, "gpu_worker.py compile_or_warm_up_model | gpu_model_runner.py capture_model"),
    ("SGLang captures graphs", Phase.INIT, "scheduler.py run_scheduler_process | cuda_graph_runner.py capture"),
    # what looks like validation and is none
    ("settings are validated", Phase.INIT, "pydantic/main.py validate | config.py __init__"),
)

WORDS: tuple[tuple[str, Phase, str], ...] = (
    ("slime's log probabilities", Phase.LOG_PROBS, "Timer train_wait end (elapsed time: 1.0s)\nTimer log_probs start"),
    ("Relax's reference", Phase.LOG_PROBS, "Timer ref_log_probs start"),
    ("Relax's teacher", Phase.LOG_PROBS, "Timer teacher_log_probs start"),
    ("slime's weights", Phase.WEIGHT_SYNC, "Timer update_weights start"),
    ("Relax's weights, asynchronous", Phase.WEIGHT_SYNC, "Timer update_weights_fully_async start"),
    ("Relax receives weights", Phase.WEIGHT_SYNC, "Timer recv_weight_fully_async start"),
    ("slime saves", Phase.CHECKPOINT, "Timer save_model start"),
    ("slime starts", Phase.INIT, "Timer init_actor start"),
    ("slime reads its batch", Phase.DATA_LOADING, "Timer train_get_data start"),
    ("a timer that ended is over", Phase.UNKNOWN, "Timer log_probs start\nTimer log_probs end (elapsed time: 3.1s)"),
    ("training may be any part of it", Phase.UNKNOWN, "Timer actor_train start"),
    ("verl resumes weights", Phase.WEIGHT_SYNC,
     "Before resume weights, memory allocated (GB): 10.20, memory reserved (GB): 11.00"),
    ("verl resumed its cache", Phase.WEIGHT_SYNC, "After resume kv_cache, memory allocated (GB): 10.20"),
    ("verl starts", Phase.INIT,
     "After offload model during init, memory allocated (GB): 0.20, memory reserved (GB): 1.00"),
    ("AReaL's reference", Phase.LOG_PROBS, "enter train.ref_logp"),
    ("AReaL evaluates", Phase.VALIDATION, "enter train.eval"),
    ("AReaL saves", Phase.CHECKPOINT, "enter train.save"),
)


def _traceback(calls: str) -> str:
    lines = ["Traceback (most recent call last):"]
    for call in (part.strip() for part in calls.split(" | ")):
        if call.startswith("ray::"):
            lines = [f"{call} (pid=4711, ip=10.0.0.3, actor_id=ab, repr=<worker object at 0x7f>)"]
        else:
            file, _, function = call.partition(" ")
            lines += [f'  File "/venv/lib/{file}", line 10, in {function}', "    result = handle(batch)"]
    return "\n".join([*lines, _OOM, ""])


def _root(text: str, path: str = "train.log") -> Finding:
    content = text.encode()
    root = reader().read([(path, io.BytesIO(content), len(content))]).root_cause
    assert root is not None
    return root


@pytest.mark.parametrize(("phase", "calls"), [row[1:] for row in STACKS], ids=[row[0] for row in STACKS])
def test_a_traceback_tells_the_part_of_the_loop(phase: Phase, calls: str) -> None:
    root = _root(_traceback(calls))
    assert root.phase is phase
    wanted = [call.removeprefix("ray::").partition("(")[0] if call.startswith("ray::") else call.split(" ")[1]
              for call in (part.strip() for part in calls.split(" | "))]
    assert list(root.frames) == wanted


@pytest.mark.parametrize(("phase", "words"), [row[1:] for row in WORDS], ids=[row[0] for row in WORDS])
def test_without_a_traceback_the_words_before_tell_it(phase: Phase, words: str) -> None:
    assert _root(f"{words}\n{_OOM}\n").phase is phase


def test_a_timer_that_is_open_tells_it_where_the_frames_do_not() -> None:
    own = _traceback("plugin.py reward_of_group")
    assert _root(f"Timer ref_log_probs start\n{own}").phase is Phase.LOG_PROBS
    ended = "Timer ref_log_probs start\nTimer ref_log_probs end (elapsed time: 1.0s)\n"
    assert _root(ended + own).phase is Phase.UNKNOWN
    trained = _traceback("actor.py train_actor | module.py _call_impl")
    assert _root(f"Timer log_probs start\n{trained}").phase is Phase.FORWARD


SPEAKERS = {
    "verl's worker": ("(WorkerDict pid=4711) ", "train.log", "WorkerDict"),
    "verl's driver": ("(TaskRunner pid=4711, ip=10.0.0.3) ", "train.log", "TaskRunner"),
    "slime's rollout": ("(RolloutManager pid=4711) ", "train.log", "RolloutManager"),
    "slime's trainer": ("\x1b[36m(MegatronTrainRayActor pid=4711)\x1b[0m ", "train.log", "MegatronTrainRayActor"),
    "vLLM's engine": ("(EngineCore_0 pid=4711) ", "train.log", "EngineCore"),
    "vLLM's engine of a data parallel rank": ("(EngineCore_DP1 pid=4711) ", "train.log", "EngineCore"),
    "vLLM's worker": ("(Worker_DP0_TP3 pid=4711) ", "train.log", "Worker"),
    "vLLM's older worker": ("(VllmWorker rank=3 pid=4711) ", "train.log", "VllmWorker"),
    "AReaL's actor": ("", "logs/ada/trial/actor.log", "actor"),
    "AReaL's servers": ("", "logs/ada/trial/llm_server.log", "llm_server"),
    "AReaL's evaluation": ("", "logs/ada/trial/eval-rollout.log", "eval-rollout"),
    "nobody": ("[rank3]: ", "logs/slurm-4711.out", ""),
}


@pytest.mark.parametrize(("prefix", "path", "name"), SPEAKERS.values(), ids=SPEAKERS)
def test_the_process_that_speaks_is_named(prefix: str, path: str, name: str) -> None:
    text = "".join(f"{prefix}{line}\n" for line in _traceback("train.py main | module.py _call_impl").splitlines())
    assert _root(text, path).speaker == name


def test_sglang_s_scheduler_is_named_by_its_own_words() -> None:
    head = "[2026-03-21 08:00:31 TP0] Scheduler hit an exception: "
    root = _root(head + _traceback("scheduler.py event_loop_overlap | qwen2.py forward"))
    assert (root.speaker, root.phase, root.frames) == ("Scheduler", Phase.ROLLOUT, ("event_loop_overlap", "forward"))


def test_vllm_s_logger_in_front_of_every_line_hides_no_traceback() -> None:
    lines = _traceback("gpu_worker.py determine_available_memory | qwen2.py forward").splitlines()
    prefix = "(EngineCore_DP0 pid=207) ERROR 10-19 09:40:35 [core.py:708] "
    root = _root("".join(f"{prefix}{line}\n" for line in lines))
    assert (root.frames, root.phase) == (("determine_available_memory", "forward"), Phase.INIT)
    assert root.excerpt.splitlines()[-1].startswith("torch.OutOfMemoryError: CUDA out of memory.")


def test_a_deep_recursion_keeps_both_ends() -> None:
    calls = " | ".join(["train.py main", *["tree.py visit"] * 100, "leaf.py forward"])
    root = _root(_traceback(calls))
    assert len(root.frames) == 80
    assert (root.frames[0], root.frames[-1]) == ("main", "forward")


def test_the_message_is_quoted_and_not_the_source_that_raises_it() -> None:
    root = _root(
        "Traceback (most recent call last):\n"
        '  File "/venv/lib/vllm/v1/core/kv_cache_utils.py", line 526, in check_enough_kv_cache_memory\n'
        '    raise ValueError("No available memory for the cache blocks. "\n'
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.\n"
    )
    assert root.line == 4
    assert root.excerpt.splitlines()[-1].startswith("ValueError: No available memory")
