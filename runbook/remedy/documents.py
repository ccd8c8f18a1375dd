"""Lever documents: one a system, read from `playbooks/oom/levers/`, checked as a whole."""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from runbook.documents import Document, DocumentsInvalid, Problem, load_folder
from runbook.model.diagnosis import Kind
from runbook.model.log import LogStory
from runbook.model.remedy import Effect
from runbook.model.template import ParameterNames, SettingKind, TemplateFile


class ParameterDocument(Document):
    """A memory parameter of the system."""

    kind: SettingKind
    spellings: tuple[str, ...] = Field(min_length=1)
    type: Literal["integer", "choice", "path", "text"]
    default: str | None = None
    """The value in force where the template sets none; None: not known, so nothing is computed from it."""
    floor: int | None = None
    allowed: tuple[str, ...] = ()
    flag: bool = False
    training_program: bool = True
    why: str
    source: str = ""


class LeverEntry(Document):
    """A lever: a named function with arguments, and what a person must know of it."""

    title: str
    function: str
    arguments: dict[str, str | tuple[str, ...]]
    effect: Effect
    cost: str
    why: str
    source: str
    needs_reshard: bool = False


class RecogniseDocument(Document):
    """Marks of the system. One mark in the template, or the framework's name from the log, is enough."""

    template: tuple[str, ...] = ()
    frameworks: tuple[str, ...] = ()


class ResumeDocument(Document):
    """How a template is made to resume."""

    parameter: str
    value: Literal["folder", "checkpoint"]
    """`folder`: the folder that holds the checkpoints and their tracker; `checkpoint`: the checkpoint itself."""


class LeverDocument(Document):
    """One system."""

    version: int = Field(ge=1, le=1)
    id: str
    title: str
    why: str
    source: str
    rank: int
    """Where several documents recognise a template, the highest rank wins."""
    recognise: RecogniseDocument
    parameters: dict[str, ParameterDocument]
    checkpoint_parameters: tuple[str, ...] = ()
    resume: ResumeDocument | None = None
    levers: dict[str, LeverEntry]
    ladders: dict[Kind, tuple[str, ...]]

    @model_validator(mode="after")
    def _consistent(self) -> LeverDocument:
        for kind, ladder in self.ladders.items():
            unknown = [name for name in ladder if name not in self.levers]
            if unknown:
                raise ValueError(f"ladder {kind.value} names levers that are not there: {', '.join(unknown)}")
        for name in (*self.checkpoint_parameters, *((self.resume.parameter,) if self.resume else ())):
            if name not in self.parameters:
                raise ValueError(f"{name!r} is no parameter of this document")
        for pattern in self.recognise.template:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"recognise.template: {pattern!r} is no regular expression: {error}") from error
        return self

    @cached_property
    def _patterns(self) -> tuple[re.Pattern[str], ...]:
        return tuple(re.compile(pattern) for pattern in self.recognise.template)

    def parameter_names(self) -> tuple[ParameterNames, ...]:
        """What the template editor looks for."""
        return tuple(
            ParameterNames(name, entry.kind, entry.spellings, entry.flag, entry.training_program)
            for name, entry in self.parameters.items()
        )

    def matches(self, templates: tuple[TemplateFile, ...], story: LogStory) -> bool:
        """Whether the templates or the log carry this system's marks."""
        if any(pattern.search(file.text) for pattern in self._patterns for file in templates):
            return True
        return bool(story.framework) and story.framework in self.recognise.frameworks


def load_levers(folder: Path) -> tuple[LeverDocument, ...]:
    """All lever documents of a folder, highest rank first. Raises `DocumentsInvalid` with every problem."""
    from runbook.remedy.functions import FUNCTIONS

    loaded = load_folder(folder, LeverDocument)
    problems = [
        Problem(
            str(path),
            1,
            f"levers.{name}.function",
            f"no lever function {entry.function!r}",
            f"use one of {', '.join(sorted(FUNCTIONS))}",
        )
        for path, document in loaded
        for name, entry in document.levers.items()
        if entry.function not in FUNCTIONS
    ]
    if problems:
        raise DocumentsInvalid(problems)
    return tuple(sorted((document for _, document in loaded), key=lambda item: -item.rank))


def recognise(
    templates: tuple[TemplateFile, ...], story: LogStory, documents: tuple[LeverDocument, ...]
) -> LeverDocument | None:
    """The system of a job: the document of highest rank whose marks are there; None: not known."""
    for document in sorted(documents, key=lambda item: -item.rank):
        if document.matches(templates, story):
            return document
    return None
