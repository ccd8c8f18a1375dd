"""What has to hold of every patch of one file: outside its splices no byte moved."""

from __future__ import annotations

from runbook.model.template import Patch


def outside_the_splices_nothing_moved(text: str, patch: Patch) -> None:
    before, after = text.encode(), patch.files[0].text.encode()
    position, shift = 0, 0
    for splice in sorted(patch.splices, key=lambda item: item.start):
        assert before[position : splice.start] == after[position + shift : splice.start + shift]
        position = splice.start + len(splice.before.encode())
        shift += len(splice.after.encode()) - len(splice.before.encode())
    assert before[position:] == after[position + shift :]
