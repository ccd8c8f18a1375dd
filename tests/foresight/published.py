"""Published measurements of peak memory (`rows_*.jsonl`) as training runs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runbook.foresight import MemoryDocument, System, load_memory, parameters_of
from runbook.foresight.training_run import Attention, LossPath, Recompute, Sharding, TrainingRun
from runbook.model.remedy import Basis
from runbook.model.units import GIB, Bytes
from runbook.node.catalogues import load_gpu_models

PLAYBOOK = Path(__file__).resolve().parents[2] / "playbooks" / "oom"
_BYTES = {"fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0, "int8": 1.0, "8bit": 1.0, "fp8": 1.0, "int4": 0.5,
          "4bit": 0.5}
_UNITS = {"GiB": 2.0**30, "GB": 1e9, "MiB": 2.0**20, "MB": 1e6}


@dataclass(frozen=True, slots=True)
class Row:
    """One measured run, or one that ran out of memory."""

    id: str
    family: str
    source: str
    run: TrainingRun
    card_bytes: Bytes | None
    measured_bytes: Bytes | None
    """None: it ran out of memory."""
    basis: Basis
    unit_slack: float
    """By how much the figure may be off because its unit is not known (GB or GiB), as a share."""
    raw: Mapping[str, Any]


def read_rows(path: Path, document: MemoryDocument) -> list[Row]:
    """Raises KeyError for a row without family or measurement; figures in percent are left out."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [row for one in rows if (row := _row(one, document)) is not None]


def memory_document() -> MemoryDocument:
    return load_memory(PLAYBOOK / "memory.yaml")


def _row(one: Mapping[str, Any], document: MemoryDocument) -> Row | None:
    measured = one["measured"]
    out_of_memory = bool(measured.get("oom"))
    unit = measured.get("unit") or ""
    if not out_of_memory and (unit not in _UNITS or measured.get("value") is None):
        return None
    what = measured.get("what") or "unknown"
    basis = {"allocated": Basis.ALLOCATED, "active": Basis.ALLOCATED,
             "nvidia-smi": Basis.DEVICE}.get(what, Basis.RESERVED)
    seen = None if out_of_memory else Bytes(int(measured["value"] * _UNITS[unit]))
    card, world = _card(one, document), (one.get("parallel") or {}).get("world") or 1
    if seen is not None and str(one.get("scope") or "").startswith("sum_over_gpus"):
        seen = Bytes(seen // world)
    slack = 0.0 if measured.get("unit_checked") or out_of_memory else 0.07
    return Row(one["id"], one["family"], one["source"]["repo"], _run(one, document), card, seen, basis,
               slack, one)


def _card(one: Mapping[str, Any], document: MemoryDocument) -> Bytes | None:
    if one.get("card_gib"):
        return Bytes(int(float(one["card_gib"]) * GIB))
    name = re.sub(r"gb$", "g", (one.get("card") or "").lower())
    models = load_gpu_models(PLAYBOOK / "gpu_models.yaml")
    known = document.cards.get(name) or document.cards.get(name.partition("-")[0])
    size = re.search(r"-(\d+)g$", name)
    if known is not None and (size is None or name in document.cards):
        return models.capacity(known)
    return Bytes(int(int(size[1]) * 0.99 * GIB)) if size else None


def _run(one: Mapping[str, Any], document: MemoryDocument) -> TrainingRun:
    model, parallel, batch = one["model"], one["parallel"], one["batch"]
    precision, lora = one.get("precision") or {}, one.get("lora")
    system = _system(one["framework"] or "", document)
    optimizer = (one.get("optimizer") or "").lower()
    state = _BYTES.get(precision.get("optimizer") or "")
    optimizer_bytes = None
    if "8bit" in optimizer or "8-bit" in optimizer:
        optimizer_bytes = 2.0
    elif "4bit" in optimizer:
        optimizer_bytes = 1.0
    elif "adafactor" in optimizer:
        optimizer_bytes = 0.1
    elif optimizer.startswith("sgd"):
        optimizer_bytes = 0.0
    elif state is not None:
        optimizer_bytes = 2 * state
    family = next((item for item in document.models if _is(item.title, model.get("name") or "")), None)
    fields = document.families[family.family].fields if family else {}
    params = model.get("params_b")
    recompute = one.get("recompute")
    loss = one.get("loss")
    attention = model.get("attention")
    offload = one.get("offload") or "none"
    world = parallel.get("world")
    degrees = [parallel.get(name) or 1 for name in ("tp", "pp", "cp")]
    if world is None and parallel.get("dp"):
        world = parallel["dp"] * degrees[0] * degrees[1] * degrees[2]
    gpt = "gpt" in (model.get("name") or "").lower()
    run = TrainingRun(
        system=system.id, hidden=model.get("hidden"), layers=model.get("layers"), heads=model.get("heads"),
        kv_heads=model.get("kv_heads"), head_size=_head(model, family), mlp=model.get("ffn"),
        gated=bool(fields.get("gated", not gpt)), vocabulary=model.get("vocab"),
        tied=bool(model.get("tied_embeddings")), qkv_bias=bool(fields.get("qkv_bias", False)),
        query_key_norm=bool(fields.get("query_key_norm", False)), experts=model.get("experts") or 0,
        experts_per_token=model.get("experts_per_token") or 0, expert_mlp=model.get("moe_ffn"),
        parameters=int(params * 1e9) if params else None, world=world,
        sharding=Sharding(parallel["shard"]) if parallel.get("shard") not in (None, "unknown") else None,
        shards=parallel.get("shards"), tensor=degrees[0], pipeline=degrees[1], context=degrees[2],
        expert_parallel=parallel.get("ep") or 1, sequence_parallel=parallel.get("sp") if degrees[0] > 1 else None,
        micro=batch.get("micro"), sequence=batch.get("seq"), accumulation=batch.get("grad_accum"),
        weight_bytes=_BYTES.get(precision.get("param") or ""), gradient_bytes=_BYTES.get(precision.get("grad") or ""),
        optimizer_bytes=optimizer_bytes, recompute=Recompute(recompute) if recompute in list(Recompute) else None,
        loss=LossPath(loss) if loss in list(LossPath) else None,
        attention=Attention.EAGER if attention == "eager" else Attention.FUSED if attention in ("flash", "sdpa")
        else None,
        compiled=one.get("compile"), optimizer_offload=1.0 if "optimizer" in offload else 0.0,
        parameter_offload="param" in offload, activation_offload="activ" in offload,
        lora_rank=(lora.get("rank") or 16) if lora else 0, base_bits=(lora.get("base_bits") or 16) if lora else 16,
        other_models=bool(one.get("rlhf")), fp8=bool(precision.get("fp8")),
        lora_ends=bool(lora) and "(emb)" in one["family"],
    )
    return _gated(run)


def _system(framework: str, document: MemoryDocument) -> System:
    """By the first word of it that names one, then by parts of words; any other is plain PyTorch."""
    for word in (*re.findall(r"[\w-]+", framework), *re.findall(r"[A-Za-z]+", framework)):
        if (found := document.system(word)) is not None:
            return found
    found = document.system("pytorch")
    assert found is not None
    return found


def _gated(run: TrainingRun) -> TrainingRun:
    """With or without a gate in the MLP, whichever gives the published number of parameters."""
    both = [replace(run, gated=gated) for gated in (True, False)]
    counts = [(abs(count - (run.parameters or 0)), item) for item in both if (count := parameters_of(item))]
    return min(counts, key=lambda item: item[0])[1] if counts and run.parameters else run


def _is(title: str, name: str) -> bool:
    def plain(text: str) -> str:
        return re.sub(r"[^a-z0-9]", "", text.lower())

    return plain(name).startswith(plain(title))


def _head(model: Mapping[str, Any], family: Any) -> int | None:
    if model.get("head_dim"):
        return int(model["head_dim"])
    if family is not None and family.config.get("head_dim"):
        return int(family.config["head_dim"])
    return None
