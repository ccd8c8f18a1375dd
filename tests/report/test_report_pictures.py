"""The memory picture's arithmetic: figures of the message, never a guess where it is silent."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runbook.model.log import MemoryFields, MemorySample, ProcessUse
from runbook.model.units import GIB, Bytes
from runbook.report.charts import memory_bars, memory_chart
from runbook.report.charts.flow_chart import BOX_HEIGHT, BOX_WIDTH, lay_out
from runbook.report.memory_picture import MemoryPicture, Part, memory_after, memory_at_failure, shortfall
from tests.report.sample_incidents import FLOW, gib


def _parts(picture: MemoryPicture) -> dict[str, float | None]:
    return {
        str(part.part): None if part.bytes is None else round(part.bytes / GIB, 2) for part in picture.parts
    }


CASES = {
    "everything said": (
        MemoryFields(gib(2.5), gib(79.1), gib(1.13), gib(73.61), gib(1.24), None, gib(77.96)),
        {"allocated": 73.61, "unallocated": 1.24, "outside": 3.11, "free": 1.13},
        "still too little",
    ),
    "fragmented": (
        MemoryFields(gib(2.0), gib(79.1), gib(0.5), gib(60.0), gib(17.0), None, gib(78.6)),
        {"allocated": 60.0, "unallocated": 17.0, "outside": 1.6, "free": 0.5},
        "enough, had it been in one piece",
    ),
    "old message without the process's total": (
        MemoryFields(gib(1.0), gib(31.7), gib(0.2), gib(29.0), None, gib(30.1)),
        {"allocated": 29.0, "unallocated": 1.1, "outside": None, "unknown": 1.4, "free": 0.2},
        "enough, had it been in one piece",
    ),
    "another process of unknown size": (
        MemoryFields(
            gib(1.0), gib(80.0), gib(0.5), gib(40.0), gib(1.0), None, gib(42.0),
            other_processes=(ProcessUse(1, None), ProcessUse(2, gib(30.0))),
        ),
        {"allocated": 40.0, "unallocated": 1.0, "outside": 1.0, "others": 30.0, "unknown": 7.5, "free": 0.5},
        "enough, had it been in one piece",
    ),
    "free is more than asked for": (
        MemoryFields(gib(1.0), gib(80.0), gib(5.0), gib(70.0)),
        {"allocated": 70.0, "unallocated": None, "outside": None, "unknown": 5.0, "free": 5.0},
        "does not explain",
    ),
    "figures that cannot be": (
        MemoryFields(gib(1.0), Bytes(0), Bytes(-7), gib(10.0)),
        {"allocated": 10.0, "unallocated": None, "outside": None, "free": None},
        "",
    ),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_parts_of_the_card(name: str) -> None:
    fields, expected, remark = CASES[name]
    picture = memory_at_failure(fields)
    assert picture is not None
    assert _parts(picture) == expected
    assert remark in shortfall(picture)
    assert bool(remark) == bool(shortfall(picture))


def test_a_message_without_figures_is_no_picture() -> None:
    assert memory_at_failure(MemoryFields(tried_bytes=gib(2))) is None
    assert memory_after(MemorySample(0, 1, gib(2), None), gib(80)) is None


def test_what_pytorch_did_not_reserve_is_not_called_free() -> None:
    picture = memory_after(MemorySample(3, 9, gib(50), gib(58), gib(57.8), gib(61.2)), gib(79.1))
    assert picture is not None
    assert [(part.words, round((part.bytes or 0) / GIB, 1)) for part in picture.parts] == [
        ("Peak allocated by PyTorch", 57.8), ("Peak reserved beyond that", 3.4), ("Not reserved by PyTorch", 17.9)
    ]


_SIZES = st.none() | st.integers(-GIB, 1 << 50).map(Bytes)


_USES = st.lists(st.builds(ProcessUse, st.integers(), _SIZES), max_size=4).map(tuple)


@given(st.builds(MemoryFields, *[_SIZES] * 9, _USES))
@settings(max_examples=50, deadline=None)
def test_nothing_is_drawn_outside_the_picture(fields: MemoryFields) -> None:
    picture = memory_at_failure(fields)
    if picture is None:
        return
    bars = memory_bars((("Job 1", "When job 1 failed", picture),))
    for row in range(len(bars.rows)):
        assert sum(part.lengths[row] for part in bars.parts) <= bars.end * 1.001
    chart = str(memory_chart((("Job 1", "When job 1 failed", picture),)))
    for x, width in re.findall(r'<rect class="[a-z-]+" x="([-\d.]+)" y="[\d.]+" width="([-\d.]+)"', chart):
        assert float(x) >= 0
        assert float(width) >= 0
        assert float(x) + float(width) <= 741
    assert all(part.bytes is None or part.bytes >= 0 for part in picture.parts)
    assert sum(1 for part in picture.parts if part.part is Part.FREE) == 1


def test_boxes_do_not_overlap_and_lie_inside_the_picture() -> None:
    layout = lay_out(FLOW, frozenset({("relaunch", "report"), ("choose_lever", "escalate")}))
    for one in layout.boxes:
        assert one.x >= 0
        assert one.x + BOX_WIDTH <= layout.width
        assert one.y + BOX_HEIGHT <= layout.height
        for other in layout.boxes:
            apart = abs(one.x - other.x) >= BOX_WIDTH or abs(one.y - other.y) >= BOX_HEIGHT
            assert one is other or apart, (one.name, other.name)


@pytest.mark.parametrize(
    "taken",
    [frozenset(), frozenset({("relaunch", "report"), ("choose_lever", "escalate"), ("identify", "report")})],
    ids=["nothing taken", "long ways taken"],
)
def test_no_arrow_runs_through_a_box(taken: frozenset[tuple[str, str]]) -> None:
    layout = lay_out(FLOW, taken)
    through = []
    for arrow in layout.arrows:
        for (x1, y1), (x2, y2) in zip(arrow.points, arrow.points[1:], strict=False):
            for box in layout.boxes:
                if (
                    max(x1, x2) > box.x + 1 and min(x1, x2) < box.x + BOX_WIDTH - 1
                    and max(y1, y2) > box.y + 1 and min(y1, y2) < box.y + BOX_HEIGHT - 1
                ):
                    through.append((arrow.source, arrow.target, box.name))
    assert through == []
