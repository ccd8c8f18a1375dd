"""Single files of PyTorch, such as `ckpt_100.pt`."""

from __future__ import annotations

import posixpath
import re

from runbook.checkpoints.folders import Found, Listing, Sharding, checkpoint_format, torn, whole

_FORM = "full"
_SINGLE = re.compile(
    r"(?:.{0,80}[-_.])?(?:checkpoint|ckpt|step|iter|iteration|epoch|state)[-_=]?([0-9]{1,12})\.(?:pt|pth|ckpt)\Z"
)
_SMALLEST_SHARE = 0.9
"""A single file is taken as written whole when it has this share of the largest one's size."""


@checkpoint_format(asked=110, takes=())
def judge_single_files(listing: Listing, folder: str) -> tuple[Found, ...]:
    """Files such as `ckpt_100.pt`. Nothing in a listing shows that one is whole but the size of the others."""
    named = [
        (entry, int(match[1]))
        for entry in listing.files(folder)
        if (match := _SINGLE.fullmatch(posixpath.basename(entry.path)))
    ]
    largest = max((entry.size_bytes for entry, _ in named), default=0)
    found = []
    for entry, step in named:
        if entry.size_bytes == 0:
            found.append(torn(entry.path, step, "the file is empty", form=_FORM))
        elif entry.size_bytes < _SMALLEST_SHARE * largest:
            found.append(torn(entry.path, step, "it is shorter than the others: it was not written whole", form=_FORM))
        elif len(named) == 1:
            why = "a single file, with no other to compare its size with: whether it was written whole cannot be told"
            found.append(torn(entry.path, step, why, form=_FORM))
        else:
            found.append(whole(entry.path, step, Sharding(reshardable=True), form=_FORM))
    return tuple(found)
