"""`runbook template show`: what a launch script sets, where each value is written, and what is not known."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from runbook.cli.files.job_files import JobFiles, SeenMark, contenders, marks_of, read_job_files
from runbook.cli.files.levers import lever_documents, named_system, terminal_width, titled
from runbook.cli.say import echo
from runbook.locations import playbook_folder
from runbook.model.log import LogStory
from runbook.model.template import Setting, condition_of
from runbook.remedy import (
    LeverDocument,
    Parameter,
    RestarterFindings,
    ResumeFindings,
    VersionMark,
    find_restarters,
    load_restarters,
    resume_findings,
)
from runbook.report.text import labelled, paragraph, table
from runbook.report.vocabulary.sentences import in_words
from runbook.steps.shared.template_reading import TemplateReading
from runbook.template.text_files import language_of


def template_show(file: Path, show_all: bool, system: str | None, as_json: bool, playbook: Path | None) -> int:
    """`runbook template show`."""
    documents = lever_documents(playbook)
    chosen = named_system(system, documents) if system is not None else None
    job = read_job_files(file)
    language_of(job.script)
    view = view_of(job, job.reading(documents, LogStory(root_cause=None), chosen), playbook, with_rest=show_all)
    if as_json:
        echo(json.dumps(view.plain(), indent=2, ensure_ascii=True))
        return 0
    for number, line in enumerate(view.lines(terminal_width())):
        bold = number == 0 or (line.endswith(":") and not line.startswith(" "))
        echo(line, bold=bold)
    return 0


_MANY = 3
"""From so many on, parameters that are not known for the same reason are listed together."""


@dataclass(frozen=True, slots=True)
class Row:
    """A parameter of the system, as the template has it."""

    parameter: Parameter
    setting: Setting | None
    default: str | None
    """In force where nothing is set; None: not known."""


@dataclass(frozen=True, slots=True)
class View:
    """Everything that is known of a template. `document` None: no system was recognised."""

    job: JobFiles
    document: LeverDocument | None
    marks: tuple[SeenMark, ...]
    alike: tuple[LeverDocument, ...]
    """Where no system was recognised: those that it looks like as much as each other."""
    versions: tuple[VersionMark, ...]
    rows: tuple[Row, ...]
    rest: tuple[Setting, ...] | None
    """What else is set; None: not asked for."""
    checkpoint: ResumeFindings | None
    restarters: RestarterFindings | None

    def lines(self, width: int) -> list[str]:
        lines = [*self._system(width), *self._files(width)]
        known = [row for row in self.rows if row.setting is not None and row.setting.value is not None]
        lines += _part("memory parameters that are set", [_known(row) for row in known], width)
        open_ones = [row.setting for row in self.rows if row.setting is not None and row.setting.value is None]
        lines += _not_known(open_ones, width)
        absent = [row for row in self.rows if row.setting is None]
        defaults = [
            (_value(row.default), _bare(row.parameter.spellings[0])) for row in absent if row.default is not None
        ]
        lines += _part("not set, with the default that is in force", defaults, width)
        unknown = ", ".join(dict.fromkeys(_bare(row.parameter.spellings[0]) for row in absent if row.default is None))
        if unknown:
            lines += ["", "not set, and the default is not known:", *paragraph(unknown, width)]
        if self.rest is not None:
            lines += _part("what else is set", [_else(item) for item in self.rest], width)
        return [*lines, *self._going_on(width)]

    def plain(self) -> dict[str, object]:
        """For `--json`."""
        document = self.document
        return {
            "system": document.id if document is not None else None,
            "recognised_by": [asdict(item) for item in self.marks],
            "could_be": [item.id for item in self.alike],
            "versions": [item.id for item in self.versions],
            "files": [
                {"path": self.job.script.path, "source": str(self.job.path), "named": None},
                *({"path": item.file.path, "source": item.source, "named": item.named} for item in self.job.companions),
            ],
            "unread": list(self.job.unread),
            "parameters": [_row_document(row) for row in self.rows],
            "other_settings": None if self.rest is None else [asdict(item) for item in self.rest],
            "checkpoint": None if self.checkpoint is None else {
                "notes": [*map(in_words, self.checkpoint.notes)], "to_do": [*map(in_words, self.checkpoint.to_do)],
                "stops": [
                    {**asdict(item), "why": in_words(item.why), "question": in_words(item.question)}
                    for item in self.checkpoint.refusals
                ],
            },
            "restarters": None if self.restarters is None else {
                "notes": [*map(in_words, self.restarters.notes)], "to_do": [*map(in_words, self.restarters.to_do)],
            },
        }

    def _system(self, width: int) -> list[str]:
        if self.document is None:
            named = " as much as like ".join(item.title for item in self.alike)
            why = f"it looks like {named}" if len(self.alike) > 1 else "no mark of one that is known here"
            return paragraph(f"system not known: {why}; name it with --system", width, "  ", "")
        by = ", ".join(f"{item.text} ({item.place})" for item in self.marks[:4]) or "as the command line says"
        lines = paragraph(f"{titled(self.document)}, by {by}", width, "  ", "")
        if not self.document.versions:
            return lines
        if not self.versions:
            text = "the template mixes spellings of several versions"
        elif len(self.versions) == 1:
            text = f"{self.versions[0].id}: {self.versions[0].title}"
        elif len(self.versions) == sum(not item.by_mark for item in self.document.versions):
            text = f"any of {', '.join(item.id for item in self.versions)}: nothing in the template tells them apart"
        else:
            text = f"one of {', '.join(item.id for item in self.versions)}"
        return [*lines, *labelled("version", text, width)]

    def _files(self, width: int) -> list[str]:
        lines: list[str] = []
        for item in self.job.companions:
            program = ", the program" if item.program else ""
            lines += labelled("reads", f"{item.file.path} ({item.named}{program})", width)
        for unread in self.job.unread:
            lines += labelled("not read", unread, width)
        return lines

    def _going_on(self, width: int) -> list[str]:
        lines: list[str] = []
        if self.checkpoint is not None and self.checkpoint.refusals:
            lines += ["", "going on from a checkpoint would be stopped by:"]
            for refusal in self.checkpoint.refusals:
                lines += paragraph(in_words(refusal.why), width, "    ", "  ")
                lines += paragraph(in_words(refusal.question), width, "    ", "    ")
        notes = [*(self.checkpoint.notes if self.checkpoint is not None else ())]
        notes += [item for item in (self.checkpoint.to_do if self.checkpoint is not None else ()) if item not in notes]
        if notes:
            lines += ["", "on checkpoints:"]
            for note in notes:
                lines += paragraph(in_words(note), width, "    ", "  ")
        if self.restarters is not None and self.restarters.notes:
            lines += ["", "what else starts this job again:"]
            for note in (*self.restarters.notes, *self.restarters.to_do):
                lines += paragraph(in_words(note), width, "    ", "  ")
        return lines


def view_of(job: JobFiles, reading: TemplateReading, playbook: Path | None, *, with_rest: bool) -> View:
    """Look at a template as it was read. `with_rest`: also at what else it sets; where no system is known, always."""
    told = reading.told
    if told is None:
        return View(job, None, (), contenders(reading), (), (), _rest(reading), None, None)
    document, versions = told.system, told.releases
    rows = tuple(
        Row(entry, told.setting(entry.id), told.default(entry.id))
        for entry in document.parameters
        if told.setting(entry.id) is not None or _exists(document, entry, versions)
    )
    return View(
        job, document, marks_of(document, reading), (), versions, rows, _rest(reading) if with_rest else None,
        resume_findings(told, None, made_steps=None),
        find_restarters(told, load_restarters(playbook_folder(playbook) / "restarters.yaml")),
    )


def _rest(reading: TemplateReading) -> tuple[Setting, ...]:
    """What is set beside the parameters of the document."""
    shown = {(item.file, item.line, _bare(item.spelling)) for item in reading.settings}
    return tuple(
        item for item in reading.everything if (item.file, item.line, _bare(item.spelling)) not in shown
    )


def _exists(document: LeverDocument, entry: Parameter, versions: Sequence[VersionMark]) -> bool:
    """Whether a version that the template can be for has it."""
    return not versions or any(document.spelt_in(entry, item) is not None for item in versions)


def _part(title: str, rows: Sequence[tuple[str, ...]], width: int) -> list[str]:
    return ["", f"{title}:", *table((), rows, width)] if rows else []


def _not_known(settings: Sequence[Setting], width: int) -> list[str]:
    """Where each trail ended; those that end at one place for one reason are told together."""
    why = Counter((_place(item), str(item.unresolved)) for item in settings)
    alone = [item for item in settings if why[_place(item), str(item.unresolved)] < _MANY]
    lines = _part("not known", [(_bare(item.spelling), _place(item), str(item.unresolved)) for item in alone], width)
    for (place, reason), number in why.items():
        if number < _MANY:
            continue
        names = ", ".join(
            _bare(item.spelling) for item in settings if (_place(item), str(item.unresolved)) == (place, reason)
        )
        lines += ["", f"{number} not known:", *paragraph(f"{reason}{f' ({place})' if place else ''}", width)]
        lines += paragraph(names, width, "    ")
    return lines


def _known(row: Row) -> tuple[str, ...]:
    setting = row.setting
    assert setting is not None
    trail = "; ".join(setting.trail)
    return _bare(setting.spelling), _value(setting.value), f"{_place(setting)}{f'  ({trail})' if trail else ''}"


def _else(setting: Setting) -> tuple[str, ...]:
    name = _bare(setting.spelling) or "(a file that cannot be read)"
    if setting.value is None:
        return name, "not known", f"{_place(setting)}  {setting.unresolved}"
    by = setting.trail[0] if setting.trail else ""
    return name, _value(setting.value), f"{_place(setting)}{f'  ({by})' if by else ''}"


def _row_document(row: Row) -> dict[str, object]:
    setting = row.setting
    return {
        "parameter": row.parameter.id,
        "spelling": _bare(setting.spelling if setting is not None else row.parameter.spellings[0]),
        "state": "not set" if setting is None else "not known" if setting.value is None else "set",
        "value": setting.value if setting is not None else None,
        "default": row.default,
        "file": setting.file if setting is not None else None,
        "line": setting.line if setting is not None else None,
        "trail": list(setting.trail) if setting is not None else [],
        "unresolved": str(setting.unresolved or "") if setting is not None else "",
    }


def _bare(spelling: str) -> str:
    return condition_of(spelling)[0]


def _value(value: str | None) -> str:
    if value is None:
        return "not known"
    return '""' if not value else value if len(value) <= 200 else f"{value[:200]}…"


def _place(setting: Setting) -> str:
    if not setting.file:
        return ""
    return f"{setting.file}:{setting.line}" if setting.line else setting.file
