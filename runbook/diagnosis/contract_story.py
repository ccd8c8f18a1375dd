"""What stands beside the diagnosis in `runbook diagnose --json`: progress, other findings, notes, what was read."""

from __future__ import annotations

from runbook.model.log import Finding, LogStory


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
        "notes": list(story.notes),
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
