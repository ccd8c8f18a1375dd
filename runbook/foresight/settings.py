"""A training run from what a failed job leaves behind: settings of its template, and its model's config.json."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, get_args, get_type_hints

from runbook.errors import BadInput
from runbook.foresight.memory_document import Input, MemoryDocument, ModelEntry, System
from runbook.foresight.parameters import counted
from runbook.foresight.training_run import TrainingRun

_TYPES = {name: next(one for one in (get_args(kind) or (kind,)) if one is not type(None))
          for name, kind in get_type_hints(TrainingRun).items()}
_DEGREES = tuple(item.name for item in fields(TrainingRun) if item.default == 1)
_MOST = {"parameters": 10**14}
_TRUE, _FALSE = frozenset({"true", "1", "yes", "on", ""}), frozenset({"false", "0", "no", "off"})


def typed_value(name: str, value: object) -> Any:
    """A text or figure as the field of a training run has it. Raises `BadInput`."""
    kind = _TYPES.get(name)
    if kind is None:
        near = ", ".join(item.name for item in fields(TrainingRun))
        raise BadInput(f"a training run has no {name!r}", next_step=f"there are {near}")
    if kind is bool:
        text = str(value).strip().lower()
        if text in _TRUE | _FALSE:
            return text in _TRUE
        raise BadInput(f"{name}: {value!r} is neither true nor false")
    if issubclass(kind, StrEnum):
        try:
            return kind(str(value).strip().lower())
        except ValueError:
            raise BadInput(f"{name}: there is no {value!r}", next_step=f"there are {', '.join(kind)}") from None
    if kind is str:
        return str(value)
    return _number(name, value, whole=kind is int)


def field_named(name: str, system: System | None = None) -> str:
    """The field of a training run that a person means: by its name, by a longer one that begins with it
    ("micro_batch"), or as the system spells it. Raises `BadInput`."""
    plain = name.strip().lstrip("-").replace("-", "_").lower()
    if plain in _TYPES:
        return plain
    for field, entry in (system.inputs if system is not None else {}).items():
        if any(plain == item.lstrip("-").replace("-", "_").lower() for item in entry.names):
            return field
    near = [item for item in _TYPES if plain.startswith(f"{item}_")]
    if near:
        return max(near, key=len)
    typed_value(name, "")
    return name


def _number(name: str, value: object, *, whole: bool) -> int | float:
    text = str(value).strip().replace("_", "")
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,16}(?:\.[0-9]{0,9})?(?:[eE]\+?[0-9]{1,2})?", text):
        raise BadInput(f"{name}: {str(value)[:60]!r} is no number")
    number = float(text)
    if not math.isfinite(number) or number > _MOST.get(name, 10**9):
        raise BadInput(f"{name}: {text} is no size of a training run")
    if not whole:
        return number
    if number != int(number):
        raise BadInput(f"{name}: {text} is no whole number")
    return int(number)


@dataclass(frozen=True, slots=True)
class RunReading:
    """A training run, and where each of its fields was found."""

    run: TrainingRun
    found: Mapping[str, str]
    model: str = ""
    """Title of the published model whose shape was taken."""
    model_name: str = ""
    """What the template calls the model."""
    notes: tuple[str, ...] = ()


def with_changes(run: TrainingRun, changes: Mapping[str, object]) -> TrainingRun:
    """With fields set anew. Raises `BadInput`."""
    changed = replace(run, **{name: typed_value(name, value) for name, value in changes.items()})
    for name in _DEGREES:
        if getattr(changed, name) < 1:
            raise BadInput(f"{name}: {getattr(changed, name)} is no degree of parallelism")
    return changed


def shape_of_config(config: Mapping[str, Any], document: MemoryDocument) -> dict[str, Any]:
    """The fields that a model's config.json tells. Raises `BadInput` for figures that no model has."""
    inner = config.get("text_config")
    if isinstance(inner, Mapping):
        config = {**config, **inner}
    family = document.families.get(str(config.get("model_type", "")))
    told: dict[str, Any] = {name: typed_value(name, value) for name, value in (family.fields if family else {}).items()}
    for name, keys in document.keys.items():
        value = next((config[key] for key in keys if config.get(key) is not None), None)
        if value is not None and not isinstance(value, Mapping | list):
            told[name] = typed_value(name, value)
    hidden, heads = told.get("hidden"), told.get("heads")
    if hidden is not None and told.get("mlp") is None and family is not None and "mlp" not in told:
        told["mlp"] = 4 * hidden
    if hidden and heads and "head_size" not in told and hidden % heads:
        raise BadInput(f"hidden size {hidden} is not divided by {heads} heads", next_step="look at the model's config")
    kv_heads = told.get("kv_heads")
    if heads and kv_heads and heads % kv_heads:
        raise BadInput(f"{heads} heads are not divided by {kv_heads} key-value heads",
                       next_step="look at the model's config")
    for name in ("hidden", "layers", "heads", "vocabulary"):
        if told.get(name) == 0:
            raise BadInput(f"the model's config says that {name} is 0", next_step="look at the model's config")
    return told


def published_model(text: str, document: MemoryDocument) -> ModelEntry | None:
    """The published model that a name stands for; None for any other."""
    wanted = text.lower().rstrip("/").replace("_", "-")
    for item in document.models:
        if any(re.search(rf"(?:^|[/\s]){pattern}$", wanted) for pattern in item.names):
            return item
    return None


def shape_of_model(entry: ModelEntry, document: MemoryDocument) -> dict[str, Any]:
    return shape_of_config({"model_type": entry.family, **entry.config}, document)


def run_of_settings(values: Mapping[str, str], system: System, document: MemoryDocument) -> RunReading:
    """`values`: what the template sets, by parameter of the lever document and by name as it is spelt."""
    told: dict[str, Any] = {"system": system.id}
    found: dict[str, str] = {}
    notes: list[str] = []
    for name, entry in system.inputs.items():
        hit = _looked_up(name, entry, values, notes)
        if hit is not None:
            told[name], found[name] = hit
    model = name_of_model = ""
    if system.mlp_of_hidden is not None and "mlp" not in told and told.get("hidden"):
        width = system.mlp_of_hidden * told["hidden"]
        told["mlp"] = int(width * 2 / 3) // 64 * 64 if told.get("gated") else int(width)
        told.setdefault("gated", False)
        notes.append(f"the MLP is taken to be {told['mlp']} wide, for nothing says how wide it is")
    for name in system.model_names:
        name_of_model = name_of_model or values.get(name, "")
        entry_found = published_model(values[name], document) if name in values else None
        if entry_found is not None:
            told = {**shape_of_model(entry_found, document), **told}
            found["hidden"], model = f"{name}={values[name]}", entry_found.title
            break
    return RunReading(TrainingRun(**told), found, model, name_of_model, tuple(notes))


def _looked_up(name: str, entry: Input, values: Mapping[str, str], notes: list[str]) -> tuple[Any, str] | None:
    if any(values.get(key, "").strip().lower() != wanted for key, wanted in entry.where.items()):
        return None
    for key in entry.names:
        if key not in values:
            continue
        text: object = values[key].strip()
        if entry.values:
            listed = {item.lower(): meaning for item, meaning in entry.values.items()}
            text = listed.get(str(text).lower(), listed.get("*", text))
        if text is None:
            continue
        try:
            return typed_value(name, text), f"{key}={values[key]}"
        except BadInput as error:
            notes.append(f"{key}: {error}")
    return None


def parameters_of(run: TrainingRun) -> int | None:
    """All parameters: counted from the shape, else as told."""
    count = counted(run)
    return count.total if count is not None else run.parameters
