"""The diagnosis contract: a story and a diagnosis as the JSON that other programs read. Fields are only ever added."""

from __future__ import annotations

from datetime import UTC, datetime

from runbook.model.diagnosis import Diagnosis
from runbook.model.log import Finding, LogStory, MemoryFields
from runbook.report.vocabulary.sentences import in_words

VERSION = 1

_SIZES = (
    "tried_bytes", "capacity_bytes", "free_bytes", "allocated_bytes", "reserved_unallocated_bytes", "reserved_bytes",
    "process_bytes", "limit_bytes", "private_pool_bytes",
)


def to_contract(story: LogStory, diagnosis: Diagnosis) -> dict[str, object]:
    """Plain dictionaries, lists, numbers, strings and None, ready for `json.dumps`. Times are ISO 8601 in UTC."""
    root = story.root_cause
    best = diagnosis.best
    return {
        "version": VERSION,
        "diagnosis": {
            "kind": str(best.kind),
            "detail": best.detail.value or None,
            "confidence": best.confidence,
            "reasons": list(map(in_words, best.reasons)),
            "against": list(map(in_words, best.against)),
            "missing": list(map(in_words, best.missing)),
        },
        "runners_up": [
            {"kind": str(one.kind), "detail": one.detail.value or None, "confidence": one.confidence}
            for one in diagnosis.runners_up
        ],
        "root_cause": _root(root) if root is not None else None,
        "first_failed": _first_failed(story),
        "fields": _fields(root.fields if root is not None else MemoryFields()),
        "collateral": [{"rank": one.rank, "node": one.node, "why": in_words(one.why)} for one in story.collateral],
    }


def _root(root: Finding) -> dict[str, object]:
    return {
        "signature": root.signature,
        "rank": root.rank,
        "node": root.node,
        "pid": root.pid,
        "device": root.device,
        "node_device": root.node_device,
        "phase": root.phase.value,
        "step": root.step,
        "time": _iso(root.time_s),
        "file": root.file,
        "line": root.line or None,
        "offset": root.offset,
        "excerpt": root.excerpt,
    }


def _first_failed(story: LogStory) -> dict[str, object] | None:
    """Who failed first, and by whose word: a line of its own; its launcher's, which does not say why; or nobody's, and
    it is a suspicion from who waited for whom and whose end is told first."""
    first = story.root_cause or story.ended_first or story.suspected_first
    if first is None:
        return None
    told_by = "line" if story.root_cause is not None else "launcher" if story.ended_first is not None else "suspicion"
    return {"rank": first.rank, "node": first.node, "pid": first.pid, "told_by": told_by}


def _fields(fields: MemoryFields) -> dict[str, object]:
    figures: dict[str, object] = {name: getattr(fields, name) for name in _SIZES}
    figures["other_processes"] = [{"pid": one.pid, "bytes": one.bytes} for one in fields.other_processes]
    return figures


def _iso(moment: float | None) -> str | None:
    if moment is None:
        return None
    try:
        return datetime.fromtimestamp(moment, tz=UTC).isoformat().replace("+00:00", "Z")
    except (OverflowError, OSError, ValueError):
        return None  # a stamp of the year 9999 with a zone behind UTC, or of an error.json that somebody wrote


def story_to_contract(story: LogStory) -> dict[str, object]:
    """Keys that `to_contract` does not have. Plain values, ready for `json.dumps`; what is not known is null."""
    progress = story.progress
    return {
        "progress": {
            "last_step": progress.last_step,
            "total_steps": progress.total_steps,
            "step_duration_s": progress.step_duration_s,
            "resumed_from_step": progress.resumed_from_step,
            "saved_steps": list(progress.saved_steps),
            "last_step_by_rank": {str(rank): step for rank, step in progress.last_step_by_rank.items()},
        },
        "candidates": [_finding(one) for one in story.candidates],
        "harmless": [_finding(one) for one in story.harmless],
        "framework": story.framework,
        "framework_version": story.framework_version,
        "world_size": story.world_size,
        "notes": list(map(in_words, story.notes)),
        "sources": [
            {"path": one.path, "size_bytes": one.size_bytes, "bytes_read": one.bytes_read, "note": one.note}
            for one in story.sources
        ],
    }


def _finding(finding: Finding) -> dict[str, object]:
    return {
        "signature": finding.signature,
        "rank": finding.rank,
        "node": finding.node,
        "file": finding.file,
        "line": finding.line or None,
        "offset": finding.offset,
    }
