"""Where in the training loop a process was, told from the frames of its traceback.

Sources: the call stacks of PyTorch, FSDP, DeepSpeed, Megatron-LM, Transformers and verl. Rules are tried in order over
the whole stack, because the outer frame says more than the inner one: recomputation runs `forward` inside backward.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from runbook.model.log import Phase

_RULES: tuple[tuple[Phase, re.Pattern[str]], ...] = tuple(
    (phase, re.compile(expression))
    for phase, expression in (
        (Phase.WEIGHT_SYNC, r"in (?:update_weights\w*|wake_up|resume_memory|sync_weights|_update_weights\w*)\b"),
        (Phase.LOG_PROBS, r"in (?:compute_(?:ref_)?log_probs?|compute_values|infer_batch|_get_per_token_logps\w*)\b"),
        (Phase.ROLLOUT, r"in (?:generate_sequences|rollout|_generate\w*|generate_and_score\w*)\b"),
        (Phase.CHECKPOINT, r"in (?:_?save_checkpoint|save_state|save_model|async_save|dcp_save|_save_\w*checkpoint)\b"
                           r"|dist_checkpointing|distributed/checkpoint/"),
        (Phase.BACKWARD, r"in (?:backward|_engine_run_backward|backward_step|backward_epilogue|_backward\w*)\b"
                         r"|\.backward\("),
        (Phase.OPTIMIZER_STEP, r"in (?:optimizer_step|_init_group|prepare_grads|_multi_tensor_\w+|clip_grad_norm_?)\b"
                               r"|optim/\w+\.py|optimizer\.step\(|in _foreach_\w+|zero/stage\w*\.py.{0,40}in step\b"),
        (Phase.DATA_LOADING, r"utils/data/|in (?:pin_memory|_pin_memory_loop|_next_data|collate\w*|default_collate)\b"
                             r"|DataLoader"),
        (Phase.FORWARD, r"in (?:forward|forward_step|_call_impl|_wrapped_call_impl|compute_loss|training_step"
                        r"|cross_entropy|log_softmax|loss_function)\b"),
        (Phase.COLLECTIVE, r"distributed_c10d\.py|in (?:all_gather\w*|all_reduce|reduce_scatter\w*|barrier)\b"),
        (Phase.INIT, r"in (?:setup_model_and_optimizer|get_model|load_checkpoint|load_model|init_model|build_model"
                     r"|__init__|from_pretrained|init_process_group|init_device\w*|to|cuda|_apply|prepare)\b"),
    )
)


def phase_of(frames: Sequence[str]) -> Phase:
    """The phase that a traceback's lines show; UNKNOWN where none of the known frames is among them."""
    text = "\n".join(frames)
    for phase, pattern in _RULES:
        if pattern.search(text):
            return phase
    return Phase.UNKNOWN
