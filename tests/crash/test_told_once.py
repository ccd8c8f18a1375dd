"""kill -9 around a message: each event is told; one killed between delivery and remembering is told once more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.crash.test_killed_anywhere import INVENTORY, KILLED, Place
from tests.service.notify_servers import http_server

pytestmark = pytest.mark.crash


def _place(folder: Path, url: str) -> Place:
    folder.mkdir()
    place = Place(folder)
    place.inventory.write_text(
        INVENTORY.format(state=place.state) + f"notify: {{urls: ['{url}']}}\n", encoding="utf-8"
    )
    return place


def test_every_event_is_told_and_only_a_kill_between_delivery_and_remembering_repeats_one(tmp_path: Path) -> None:
    with http_server() as server:
        whole = _place(tmp_path / "whole", server.url())
        try:
            assert whole.drive("never").returncode == 0
        finally:
            whole.end()
        titles = list(server.titles)
        told = json.loads((whole.state / "incidents" / "oom-crash-1" / "told.json").read_text(encoding="utf-8"))
        assert list(told) == ["relaunched:1", "recovered:1:1"]
        assert [title.split(":")[1].split(" —")[0] for title in titles] == [" relaunched as 2", " runs again"]

        # The points around the two times that what was told is written down.
        points = (whole.folder / "points").read_text(encoding="utf-8").splitlines()
        saves = [number for number, name in enumerate(points) if name == "after scheduler.submit"]
        first = next(
            number for number, name in enumerate(points)
            if number > saves[0] and name == "before store.write_file"
        )
        for point, most in ((first, 2), (first + 1, 1)):
            server.received.clear()
            place = _place(tmp_path / f"killed-{point}", server.url())
            try:
                assert place.drive(point).returncode == KILLED, points[point]
                resumed = place.run("resume", "oom-crash-1", "--yes")
                assert resumed.returncode == 0, resumed.stderr
            finally:
                place.end()
            counts = {title: server.titles.count(title) for title in titles}
            assert counts[titles[0]] == most, (points[point], server.titles)
            assert counts[titles[1]] == 1, (points[point], server.titles)
            assert len(place.comments()) == 2


def test_an_incident_ends_well_though_nobody_can_be_told(tmp_path: Path) -> None:
    with http_server() as broken:
        broken.status = 500
        place = _place(tmp_path / "place", broken.url())
        text = place.inventory.read_text(encoding="utf-8")
        more = "'json://127.0.0.1:1/', 'nonsense://x', 'mailto://127.0.0.1:1?from=a@example.org&to=b@example.org']"
        place.inventory.write_text(text.replace("]}", f", {more}}}"), encoding="utf-8")
        try:
            assert place.drive("never").returncode == 0
            assert place.incident()["state"] == "recovered"
        finally:
            place.end()
