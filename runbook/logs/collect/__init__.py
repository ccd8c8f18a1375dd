"""What one pass over the logs brings together: matches with their surroundings, ranks, nodes and clocks."""

from runbook.logs.collect.collection import Collection
from runbook.logs.collect.file_reader import FileReader
from runbook.logs.collect.matches import LogMatch, ProcessPlace, Row
from runbook.logs.collect.node_clocks import Skew, skew
from runbook.logs.collect.rank_locations import TEARDOWN_CODES, RankLocations, rank_locations

__all__ = [
    "TEARDOWN_CODES",
    "Collection",
    "FileReader",
    "LogMatch",
    "ProcessPlace",
    "RankLocations",
    "Row",
    "Skew",
    "rank_locations",
    "skew",
]
