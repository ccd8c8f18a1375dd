"""The document of memory constants: bounds with their sources, what systems do by default, and how they name things."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from runbook.compiled import Compiled, CompiledDocuments
from runbook.documents import Document, load_document
from runbook.foresight.training_run import TrainingRun

_RUN = frozenset(item.name for item in fields(TrainingRun))


class Constant(Document):
    """A figure that no formula gives. The true one lies between `low` and `high` nineteen times of twenty."""

    low: float
    high: float
    likely: float | None = None
    source: str
    fitted: bool = False
    """Whether measured rows of `make foresight` were looked at when it was set."""

    @model_validator(mode="after")
    def _ordered(self) -> Constant:
        if not self.low <= self.middle <= self.high:
            raise ValueError(f"expected low <= likely <= high, got {self.low}, {self.middle}, {self.high}")
        return self

    @property
    def middle(self) -> float:
        return self.likely if self.likely is not None else (self.low + self.high) / 2

    @property
    def deviation(self) -> float:
        """Standard deviation of a normal distribution with these bounds."""
        return (self.high - self.low) / 4


class Constants(Document):
    """What the terms are made with."""

    states: Constant
    """Weights, gradients and optimizer states, as a multiple of what the types say."""
    kept: Constant
    """Activations kept without recomputation, as a multiple of the formula."""
    compiled: Constant
    """What a compiler leaves of them."""
    selective: Constant
    """What selective recomputation leaves of them."""
    full: Constant
    """Inputs of layers under full recomputation, as a multiple of 2 bytes a token and hidden unit."""
    working: Constant
    """The layer that is being computed, as a multiple of what it keeps."""
    scores: Constant
    """Layers whose attention scores are there at once although the attention is said to be fused."""
    filled: Constant
    """How long the longest sequence of a batch is, as a share of the length that is set; another with each length."""
    offloaded: Constant
    """What activation offload leaves of what is kept."""
    layout: Constant
    """What a layout over tensor-parallel ranks adds to or takes from activations, beyond the formula."""
    imbalance: Constant
    """Tokens that the fullest rank's experts get, as a multiple of its share."""
    frozen_base: Constant
    """Activations under LoRA, as a multiple of those of full training."""
    quantised: Constant
    """Activations beside a quantised base, as a multiple of those beside one in 16 bit."""
    ends: Constant
    """Bytes of a frozen weight of embedding or output beside a quantised base."""
    plain: Constant
    """Bytes an element of the logits, loss computed at once."""
    chunked: Constant
    """Likewise in chunks."""
    fused: Constant
    """Likewise fused with the last matrix, as bytes a token and hidden unit."""
    copies_before: Constant
    """Bytes an element of the logits that are there when a further copy of them is asked for."""
    gathered: Constant
    """Layers whose gathered weights are there at once."""
    reduced: Constant
    """Layers whose gradients wait to be reduced, in fp32."""
    buckets: Constant
    """Communication buckets of ZeRO 1 and 2, in bytes."""
    copies: Constant
    """Gradients that buckets of DDP hold a second time, as a share of all."""
    at_loss: Constant
    """Share of the gradients that is there when activations are most."""
    load: Constant
    """Share of all weights, in 16 bit and unsharded, that is on the card beside its own part while the model is
    loaded."""
    update: Constant
    """What the optimizer's step takes for a while, as a multiple of the weights that it updates."""
    gap: Constant
    """What the allocator reserves beyond the peak, as a share of what comes and goes."""
    workspace: Constant
    """Bytes for workspaces of libraries inside the allocator."""
    outside: Constant
    """Bytes outside the allocator: context, libraries."""
    collectives: Constant
    """Bytes of NCCL's buffers where there are other ranks."""
    noise: Constant
    """By how much two runs of one configuration differ, as a share of the peak."""
    jitter: Constant
    """By how much what is reserved differs with other sizes of tensors, as a share of what comes and goes."""
    otherwise: Constant
    """By how much the formulas as a whole are off, as a share of what comes and goes."""


class Input(Document):
    """How a system names a field of `TrainingRun`."""

    names: tuple[str, ...] = Field(min_length=1)
    """Parameters of the lever document, or options and keys as they are spelt; the first that is set counts."""
    values: Mapping[str, str | float | bool | None] = {}
    """What its values mean; one that is not listed is taken as it is. `*` stands for any other."""
    where: Mapping[str, str] = {}
    """It says this only beside these values of other parameters."""


class OpenChoice(Document):
    """Fields of `TrainingRun` that go together, and what they may be, the likeliest first."""

    choices: tuple[Mapping[str, str | float | bool], ...] = Field(min_length=2)

    @property
    def fields(self) -> frozenset[str]:
        return frozenset(name for choice in self.choices for name in choice)


class System(Document):
    """A framework: what it keeps, and how it says what is to be trained."""

    id: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    title: str
    also: tuple[str, ...] = ()
    """Names that published measurements give it."""
    source: str
    defaults: Mapping[str, str | float | bool] = {}
    """Fields of `TrainingRun` where nothing is set."""
    open: tuple[OpenChoice, ...] = ()
    """What a template often leaves open."""
    constants: Mapping[str, Constant] = {}
    """In place of those of the document."""
    inputs: Mapping[str, Input] = {}
    model_names: tuple[str, ...] = ()
    """What names the model, likewise."""
    mlp_of_hidden: float | None = None
    """Width of the MLP where it is not set, as a multiple of the hidden size; two thirds of it beside a gate."""

    @model_validator(mode="after")
    def _names(self) -> System:
        for part in (self.defaults, self.inputs, *(item.fields for item in self.open)):
            if strange := sorted(set(part) - _RUN):
                raise ValueError(f"{', '.join(strange)}: a training run has no such field")
        if strange := sorted(set(self.constants) - set(Constants.model_fields)):
            raise ValueError(f"{', '.join(strange)}: there is no such constant")
        return self


class Price(Document):
    """What changes cost, as shares of the speed: by it one of several is chosen."""

    source: str
    relaunch: float
    """A relaunch that runs out again: the queue, the load and the steps up to the failure, on all nodes."""
    halved: float
    """Half of the tokens of a pass."""
    steps: Mapping[str, Mapping[str, float]]
    """By field of `TrainingRun` and value, beside a run without; a value that is not listed costs nothing."""

    @model_validator(mode="after")
    def _names(self) -> Price:
        if strange := sorted(set(self.steps) - _RUN):
            raise ValueError(f"{', '.join(strange)}: a training run has no such field")
        return self

    def of(self, before: TrainingRun, after: TrainingRun) -> float:
        """Of the change alone; less than nothing where the new run is faster."""
        tokens = [(run.micro or 1) * (run.sequence or 1) for run in (before, after)]
        steps = [
            sum(prices.get(str(getattr(run, name)), 0.0) for name, prices in self.steps.items())
            for run in (before, after)
        ]
        return self.halved * math.log2(tokens[0] / tokens[1]) + steps[1] - steps[0]


class ModelEntry(Document):
    """A published model's shape, from its public config.json."""

    names: tuple[str, ...] = Field(min_length=1)
    """Patterns on what a template or a log calls it, in lower case."""
    title: str
    family: str
    config: Mapping[str, Any]


class Family(Document):
    """What a `model_type` of config.json means beyond its figures."""

    fields: Mapping[str, bool | int | str] = {}

    @model_validator(mode="after")
    def _names(self) -> Family:
        if strange := sorted(set(self.fields) - _RUN):
            raise ValueError(f"{', '.join(strange)}: a training run has no such field")
        return self


class MemoryDocument(Document):
    """`memory.yaml`."""

    version: Literal[1]
    id: str
    title: str
    why: str
    source: str
    date: datetime.date
    constants: Constants
    unchanged: tuple[OpenChoice, ...]
    """What may be unknown where a figure of the job is there and the same holds for both."""
    carried: tuple[str, ...]
    """Fields of a run whose change leaves a figure of the job worth something: a batch is such, a layout over cards is
    not."""
    price: Price
    systems: tuple[System, ...]
    keys: Mapping[str, tuple[str, ...]]
    """How config.json calls a field."""
    families: Mapping[str, Family]
    models: tuple[ModelEntry, ...]
    cards: Mapping[str, str]
    """What people call a GPU model, and its name in the catalogue."""

    def system(self, name: str) -> System | None:
        """By its id or by a name of published measurements, whatever its case."""
        wanted = name.strip().lower().replace("-", "_")
        for item in self.systems:
            if wanted == item.id or wanted in (other.lower().replace("-", "_") for other in item.also):
                return item
        return None

    def constants_of(self, system: System | None) -> Constants:
        if system is None or not system.constants:
            return self.constants
        return self.constants.model_copy(update=dict(system.constants))


def load_memory(path: Path) -> MemoryDocument:
    """Raises `DocumentsInvalid`."""
    return compiled_memory(path).load()


def compiled_memory(path: Path) -> CompiledDocuments[MemoryDocument]:
    return CompiledDocuments(
        Compiled.of(path, [path], [Path(__file__), Path(__file__).with_name("training_run.py")]),
        lambda: load_document(path, MemoryDocument),
        lambda made: made.model_dump(mode="json", exclude_defaults=True),
        MemoryDocument.model_validate,
    )
