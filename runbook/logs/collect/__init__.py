"""What one pass over the logs brings together: matches with their surroundings, ranks, nodes and clocks."""

from runbook.logs.collect.collection import PASTED_BYTES, UNKNOWN_SKEW_S, Clocks, Collection, Speaker
from runbook.logs.collect.file_reader import FileReader
from runbook.logs.collect.matches import GpuRow, LogMatch, ProcessPlace, Row
from runbook.logs.collect.rank_locations import TEARDOWN_CODES, RankLocations, rank_locations

__all__ = [
    "PASTED_BYTES",
    "TEARDOWN_CODES",
    "UNKNOWN_SKEW_S",
    "Clocks",
    "Collection",
    "FileReader",
    "GpuRow",
    "LogMatch",
    "ProcessPlace",
    "RankLocations",
    "Row",
    "Speaker",
    "rank_locations",
]
