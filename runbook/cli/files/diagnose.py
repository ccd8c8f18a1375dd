"""`runbook diagnose`: which rank failed first and why, from log files alone. Nothing is touched."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runbook.adapters.log_files import THREADS, LogFile, find_logs, on_threads, open_logs, total_bytes
from runbook.cli.say import clean_console, echo
from runbook.diagnosis import diagnose as judge
from runbook.errors import BadInput, Interrupted, Unavailable
from runbook.kinds import load_kinds
from runbook.locations import playbook_folder
from runbook.logs.reader import LogReader
from runbook.logs.signatures import MEMORY_FIELDS, Signature, Signatures, load_signatures
from runbook.model.diagnosis import Diagnosis, Died
from runbook.model.job import JobClass, JobRecord, JobState
from runbook.model.log import DerivedSignature, Finding, LogSource, LogStory
from runbook.model.sentences import as_written
from runbook.model.units import JobId, NodeName, UserName, size
from runbook.report.contract import story_to_contract, to_contract
from runbook.report.text import paragraph
from runbook.report.text.diagnosis_text import WIDTH, render_diagnosis
from runbook.report.vocabulary.clean import clean_line, shorten
from runbook.report.vocabulary.sentences import in_words

if TYPE_CHECKING:
    from runbook.cli.files.job_files import JobFiles


_SHOWN_AFTER_S = 0.8
_PLAIN_EVERY_S = 5.0
_GROUPS = frozenset({"rank", "local_rank", "node", "pid"})
_EXIT_CODES = {Died.UNKNOWN: 4, Died.PROGRAM: 5}


def diagnose(
    paths: tuple[str, ...],
    as_json: bool,
    nodes: str | None,
    tasks: int | None,
    template: Path | None,
    prefixes: tuple[str, ...],
    full: bool,
    threads: int,
    playbook: Path | None,
    why: bool,
) -> int:
    """`runbook diagnose`."""
    if not paths:
        raise BadInput("no log is named", next_step="runbook diagnose FILE…, a folder, or - for standard input")
    _check(prefixes)
    files = find_logs(paths)
    job = _job(nodes, tasks)
    job_files = None
    if template is not None:
        from runbook.cli.files.job_files import read_job_files

        job_files = read_job_files(template, pipe=True)
    signatures = load_signatures(playbook_folder(playbook) / "signatures", load_kinds(playbook))
    with _Bar(total_bytes(files), sum(not file.refused for file in files)) as bar:
        how = HowToRead(bar.update, threads, tail_first=False if full else None, prefixes=prefixes)
        story = read_logs(files, signatures, job=job, how=how)
    settings = _settings(job_files, story, playbook) if job_files is not None else {}
    diagnosis = judge(story, job=job, meanings=signatures.meanings, settings=settings)
    try:
        _print(story, diagnosis, signatures, as_json=as_json, why=why)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Unavailable(f"the answer could not be written: {(error.strerror or str(error)).lower()}") from error
    return _EXIT_CODES.get(diagnosis.best.kind.entry.died, 0)


def _check(prefixes: tuple[str, ...]) -> None:
    """A prefix that cannot be used is bad input, said before anything is read."""
    for prefix in prefixes:
        try:
            groups = set(re.compile(prefix).groupindex)
        except re.error as error:
            raise BadInput(f"--prefix: {prefix!r} is no regular expression: {error}") from error
        if not groups or not groups <= _GROUPS:
            raise BadInput(
                f"--prefix: {prefix!r} needs named groups out of {', '.join(sorted(_GROUPS))}",
                next_step=r"for example '\[(?P<node>[\w-]+):(?P<local_rank>\d+)\] '",
            )


def _print(story: LogStory, diagnosis: Diagnosis, signatures: Signatures, *, as_json: bool, why: bool) -> None:
    if as_json:
        told = {**to_contract(story, diagnosis), **story_to_contract(story)}
        told |= {"lines": list(_lines_read(story, signatures))} if why else {}
        echo(json.dumps(told, indent=2, ensure_ascii=True))
        return

    width = min(WIDTH, max(60, shutil.get_terminal_size((WIDTH, 24)).columns))
    text = render_diagnosis(story, diagnosis, signatures.meanings, width)
    head, _, rest = text.partition("\n")
    echo(head, bold=True)
    echo(rest, nl=False)
    if why:
        echo("\nLines that were read:")
        for one in _lines_read(story, signatures):
            echo("\n".join(_told_line(one, width)))


def _lines_read(story: LogStory, signatures: Signatures) -> Iterator[dict[str, object]]:
    """The lines that the answer rests on and those that were set aside, in the logs' order: what each says, who says
    it, whether it speaks of memory, its figures, and what was made of it."""
    root, quiet = story.root_cause, {id(one) for one in story.harmless}
    found = [*([root] if root is not None else []), *story.candidates, *story.harmless]
    for one in sorted(found, key=lambda each: (each.file, each.offset)):
        signature = signatures.by_id.get(one.signature)
        said = [line for line in one.excerpt.splitlines() if line.strip()]
        own = next((line for line in reversed(said) if signature is not None and signature.match(line)), said[-1:])
        yield {
            "file": one.file, "line": one.line or None,
            "text": own if isinstance(own, str) else "".join(own),
            "signature": one.signature, "says": signature.title if signature is not None else None,
            "who": {
                name: value for name in ("rank", "local_rank", "node", "pid", "device")
                if (value := getattr(one, name)) is not None
            } | ({"name": one.speaker} if one.speaker else {}),
            "memory": one.means.entry.died.of_memory,
            "figures": {
                name: value for name in sorted(MEMORY_FIELDS - {"other_processes"})
                if (value := getattr(one.fields, name)) is not None
            },
            "taken_as": "first failure" if one is root else "set aside" if id(one) in quiet else "another failure",
            "because": _because(one, one is root, id(one) in quiet, signature),
        }
    for each in story.collateral:
        yield {
            "file": None, "line": None, "text": None, "signature": each.signature,
            "says": in_words(each.why),
            "who": {name: value for name in ("rank", "node") if (value := getattr(each, name)) is not None},
            "memory": False, "figures": {}, "taken_as": "consequence", "because": "it follows from the first failure",
        }


def _because(one: Finding, first: bool, quiet: bool, signature: Signature | None) -> str:
    if first:
        return "nothing that ended the job stands before it"
    if one.quoted:
        return "it stands inside a sentence, which may quote it"
    if quiet and signature is not None and signature.means.entry.died.of_memory:
        return "the job went on behind it, or words near it say that it was handled"
    if one.signature in frozenset(DerivedSignature):
        return one.excerpt
    return signature.why if signature is not None else ""


def _told_line(one: Mapping[str, Any], width: int) -> Iterator[str]:
    place = f"{one['file']}:{one['line'] or '?'}" if one["file"] else "no line of its own"
    who = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in one["who"].items()) or "nobody is named"
    named = {name.removesuffix("_bytes").replace("_", " "): value for name, value in one["figures"].items()}
    figures = ", ".join(f"{name} {size(value)}" for name, value in named.items())
    yield clean_line(f"- {one['taken_as']} at {place}")
    rows = (("line", one["text"]), ("who", who), ("what", f"{one['says'] or ''} ({one['signature']})"),
            ("memory", "yes" if one["memory"] else "no"), ("figures", figures), ("because", one["because"]))
    for name, words in rows:
        if words:
            yield from paragraph(shorten(clean_line(words), 600), width, " " * 11, f"  {name:<8} ", cut_words=True)


def _job(nodes: str | None, tasks: int | None) -> JobRecord | None:
    """What the command line says of the job; its state stays unknown."""
    if nodes is None and tasks is None:
        return None
    names: tuple[NodeName, ...] = ()
    if nodes is not None:
        from runbook.host_lists import expand_hosts

        names = expand_hosts(nodes)
        if not names:
            raise BadInput(f"--nodes: {nodes!r} is no host list", next_step="write it as Slurm does: gpu-[21-24,30]")
    return JobRecord(
        JobId("files"), "files", "", UserName(""), JobState("UNKNOWN", JobClass.UNKNOWN), nodes=names,
        num_nodes=len(names) or None, num_tasks=tasks,
    )


def _settings(template: JobFiles, story: LogStory, playbook: Path | None) -> dict[str, str]:
    """The memory parameters that the launch script and the files that it names set."""
    from runbook.remedy import load_levers

    return template.reading(load_levers(playbook_folder(playbook) / "levers", load_kinds(playbook)), story).values


class _Bar:
    """A bar with bytes and rate on a terminal, a line now and then elsewhere; nothing where it is quick."""

    def __init__(self, total: int, files: int) -> None:
        self._total = total
        self._what = "reading" if files == 1 else f"reading {files} files"
        self._started_s = time.monotonic()
        self._told_s = self._started_s
        self._move: Callable[[int], None] | None = None
        self._stop: Callable[[], None] | None = None

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stop is not None:
            self._stop()

    def update(self, done: int, total: int) -> None:
        """Called by the reader with bytes done."""
        if self._move is not None:
            self._move(done)
            return
        now = time.monotonic()
        if now - self._started_s < _SHOWN_AFTER_S:
            return
        if sys.stderr.isatty():
            self._start()
        elif now - self._told_s >= _PLAIN_EVERY_S:
            self._told_s = now
            rate = done / (now - self._started_s) / 1e9
            share = f" of {self._total / 1e9:.1f}" if self._total else ""
            echo(f"{self._what}: {done / 1e9:.1f}{share} GB, {rate:.2f} GB/s", err=True)

    def _start(self) -> None:
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        bar = Progress(
            TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
            TimeRemainingColumn(), console=clean_console(sys.stderr), transient=True,
        )
        task = bar.add_task(self._what, total=self._total or None)
        bar.start()
        self._move = lambda done: bar.update(task, completed=done)
        self._stop = bar.stop


@dataclass(frozen=True, slots=True)
class HowToRead:
    """As `LogReader.read` takes it."""

    progress: Callable[[int, int], None] | None = None
    threads: int = THREADS
    tail_first: bool | None = None
    prefixes: Sequence[str] = ()


def read_logs(
    files: Sequence[LogFile], signatures: Signatures, *, job: JobRecord | None, how: HowToRead = HowToRead()
) -> LogStory:
    """What files that `find_logs` found say; those that are refused are among its sources and its notes.

    Raises `NotFound` for a file that may not be opened, `Interrupted` at Ctrl-C."""
    reader = LogReader(signatures)
    try:
        with ExitStack() as stack:
            story = reader.read(
                open_logs(files, stack), job=job, progress=how.progress, in_order=on_threads(how.threads),
                tail_first=how.tail_first, prefixes=how.prefixes,
            )
    except KeyboardInterrupt:
        raise Interrupted("interrupted while reading; nothing was touched") from None
    note = refused_note(files)
    if not note:
        return story
    refused = tuple(LogSource(one.path, one.size_bytes, 0, f"not read: {one.refused}") for one in files if one.refused)
    return replace(story, notes=(as_written(note), *story.notes), sources=(*refused, *story.sources))


def refused_note(files: Sequence[LogFile]) -> str:
    """What could not be read is said: the first failure may stand there. "" where all was."""
    refused = [one for one in files if one.refused]
    if not refused:
        return ""
    several = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
    return f"Not read: {refused[0].path}{several}. The first failure may stand there."
