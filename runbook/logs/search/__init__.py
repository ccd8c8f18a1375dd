"""The bytes of logs: literals searched at memory speed, on threads, from files' ends where they are large."""

from runbook.logs.search.file_formats import NOTE, is_gzip, is_zstandard, opened_error_file
from runbook.logs.search.literals import LiteralSearch
from runbook.logs.search.pool import InOrder, Parts, Searched, SearchPool, Segment, batches, parts_of, segments_of
from runbook.logs.search.scan import (
    CHUNK_BYTES,
    FEW,
    FREELY,
    FREELY_BYTES,
    KEPT_BYTES,
    View,
    binary,
    decode,
    excerpt,
    passed_over,
    positions_of_lines,
    scan_stream,
    tell_lines,
)
from runbook.logs.search.tails import HEAD_BYTES, TAIL_BYTES, RepeatedTail, TailPlan, tail_plan, worth_reading_tails

__all__ = [
    "CHUNK_BYTES",
    "FEW",
    "FREELY",
    "FREELY_BYTES",
    "HEAD_BYTES",
    "KEPT_BYTES",
    "NOTE",
    "TAIL_BYTES",
    "InOrder",
    "LiteralSearch",
    "Parts",
    "RepeatedTail",
    "SearchPool",
    "Searched",
    "Segment",
    "TailPlan",
    "View",
    "batches",
    "binary",
    "decode",
    "excerpt",
    "is_gzip",
    "is_zstandard",
    "opened_error_file",
    "parts_of",
    "passed_over",
    "positions_of_lines",
    "scan_stream",
    "segments_of",
    "tail_plan",
    "tell_lines",
    "worth_reading_tails",
]
