"""The same rows with other programs' formulas: torch-preflight, vramcalc, agilerl-arena, where they can answer.

Run by `score.py --peers PYTHON` with the Python of an environment that has them and not this project:
runs as JSON lines on standard input, predictions in bytes on standard output. None of them takes a figure of the job.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def config_of(run: dict[str, Any]) -> dict[str, Any]:
    """As config.json would have it."""
    config = {
        "model_type": "qwen2" if run["qkv_bias"] else "llama", "hidden_size": run["hidden"],
        "num_hidden_layers": run["layers"], "num_attention_heads": run["heads"],
        "num_key_value_heads": run["kv_heads"] or run["heads"], "intermediate_size": run["mlp"],
        "vocab_size": run["vocabulary"], "tie_word_embeddings": bool(run["tied"]),
    }
    return config | ({"head_dim": run["head_size"]} if run["head_size"] else {})


def one_gpu(run: dict[str, Any]) -> bool:
    degrees = run["tensor"] * run["pipeline"] * run["context"]
    return degrees == 1 and ((run["world"] or 1) == 1 or run["sharding"] in ("none", "ddp"))


def vramcalc(run: dict[str, Any], _card: int) -> int | None:
    """One GPU, dense Llama-like models."""
    if not one_gpu(run) or run["experts"] or not run["gated"] or run["base_bits"] != 16:
        return None
    from vramcalc.estimate import estimate

    pure = run["weight_bytes"] == 2
    told = estimate(
        config_of(run), mode="train", dtype="bf16" if pure else "fp32", batch=run["micro"], seq_len=run["sequence"],
        lora_rank=run["lora_rank"] or None, grad_checkpoint=run["recompute"] == "full",
        precision="pure" if pure else "amp", attn_impl="eager" if run["attention"] == "eager" else "sdpa",
        overhead_gb=0.0)
    return int(told.total)


def torch_preflight(run: dict[str, Any], _card: int) -> int | None:
    """Dense models without tensor, pipeline or context parallelism and without chunked loss."""
    if run["tensor"] * run["pipeline"] * run["context"] != 1 or run["experts"] or run["base_bits"] != 16:
        return None
    from torch_preflight.vram import costmodel
    from torch_preflight.vram.types import (
        Confidence,
        ModelKind,
        ModelProfile,
        OptimizerKind,
        PrecisionMode,
        RunConfig,
        Sharding,
        TransformerShape,
    )

    shape = TransformerShape(
        layers=run["layers"], hidden=run["hidden"], heads=run["heads"], vocab=run["vocabulary"],
        intermediate=run["mlp"], kv_heads=run["kv_heads"], tied_embeddings=bool(run["tied"]),
        gated_mlp=bool(run["gated"]), has_lm_head=True)
    count = costmodel.params_from_transformer_shape(shape)
    profile = ModelProfile("row", count, count, "formula", Confidence.MEDIUM, kind=ModelKind.TRANSFORMER, shape=shape)
    divided = {"none": Sharding.NONE, "ddp": Sharding.DDP, "zero1": Sharding.ZERO1, "distopt": Sharding.ZERO1,
               "zero2": Sharding.ZERO2}.get(run["sharding"] or "none", Sharding.ZERO3)
    mode = PrecisionMode.AMP
    if run["weight_bytes"] == 2:
        mode = PrecisionMode.FP16_MASTER if run["master_bytes"] else PrecisionMode.PURE_BF16
    told = costmodel.estimate(profile, RunConfig(
        batch_size=run["micro"], seq_len=run["sequence"], precision=mode,
        optimizer=OptimizerKind.ADAM_8BIT if run["optimizer_bytes"] == 2 else OptimizerKind.ADAMW,
        gradient_checkpointing=run["recompute"] == "full", flash_attention=run["attention"] != "eager",
        accumulation_steps=run["accumulation"] or 1, world_size=run["world"] or 1, sharding=divided,
        offload_optimizer=run["optimizer_offload"] > 0, frozen_fraction=0.99 if run["lora_rank"] else 0.0))
    return int(told.breakdown.total - told.breakdown.cuda_context) if told.breakdown.total else None


def agilerl_arena(run: dict[str, Any], card: int) -> int | None:
    """LoRA on one GPU or by FSDP2: its gradients are those of adapters."""
    if run["tensor"] * run["pipeline"] * run["context"] != 1 or not run["lora_rank"] or run["base_bits"] != 16:
        return None
    if run["experts"]:
        return None
    from agilerl.arena.memory import DeviceSpec, ModelArch, ModelSpec, TrainingSettings, estimate_training
    from agilerl.arena.models.fsdp import FSDPConfig

    sharded = run["sharding"] in ("fsdp", "zero3", "hsdp") and (run["world"] or 1) > 1
    told = estimate_training(
        ModelSpec(model_id="row", arch=ModelArch.from_hf_config(config_of(run))), DeviceSpec(total_bytes=card),
        TrainingSettings(
            algorithm="sft", max_model_len=run["sequence"], micro_batch_size=run["micro"], lora_rank=run["lora_rank"],
            gradient_checkpointing=run["recompute"] == "full", n_training_gpus=(run["world"] or 1) if sharded else 1,
            fsdp=FSDPConfig() if sharded else None, activation_offload=run["activation_offload"]))
    return int(sum(item.n_bytes for item in told.components if "context" not in item.key))


def main() -> int:
    for line in sys.stdin:
        asked = json.loads(line)
        told: dict[str, int | str | None] = {}
        for peer in (torch_preflight, vramcalc, agilerl_arena):
            try:
                told[peer.__name__] = peer(asked["run"], asked["card_bytes"] or 80 << 30)
            except Exception as error:  # whatever another program does with a row is its answer
                told[peer.__name__] = f"{type(error).__name__}: {error}"[:200]
        print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
