"""`runbook snapshot` for a terminal: five lines a device first, then what is asked for; and the same for machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runbook.model.snapshots import (
    Category,
    DeviceFindings,
    Frame,
    Growth,
    Holder,
    NotReplayed,
    Replay,
    Shortage,
    SnapshotFindings,
    Stack,
)
from runbook.model.units import size
from runbook.report.text import labelled, paragraph, table
from runbook.report.vocabulary.clean import clean_line
from runbook.report.vocabulary.titles import counted

_SHOWN_HOLDERS = 12
_SHOWN_FRAMES = 12
_CACHE_WORTH_A_WORD = 1 << 30
_INSIDE = ("/torch/", "/torchgen/", "<frozen", "<string>", "/threading.py", "/contextlib.py")
"""Files whose calls say how something was allocated, not what for."""


def render_snapshots(found: Sequence[SnapshotFindings], width: int, *, verbose: bool) -> list[str]:
    """Lines. Several files are laid side by side first."""
    lines = [*_side_by_side(found, width), ""] if sum(len(one.devices) for one in found) > 1 else []
    for one in found:
        many = len(one.devices) > 1
        for device in one.devices:
            if many and not verbose and device is not _worst(one):
                continue
            lines += [*_device(one, device, width, verbose=verbose), ""]
        if not one.devices:
            lines += [f"{clean_line(one.name)}: no GPU memory was held, and nothing was recorded.", ""]
    return lines[:-1]


def _worst(found: SnapshotFindings) -> DeviceFindings:
    """The one that failed, else the fullest."""
    return max(found.devices, key=lambda one: (one.request is not None, one.highest))


def _side_by_side(found: Sequence[SnapshotFindings], width: int) -> Iterator[str]:
    rows = [
        [
            one.name, str(device.device), size(device.highest), size(device.use.reserved), size(device.use.free),
            size(device.request.size) if device.request is not None else "none",
            _main_part(device.moment.categories),
        ]
        for one in found for device in one.devices
    ]
    yield from table(
        ["file", "GPU", "most allocated", "reserved at the end", "of it free", "refused", "mostly"], rows, width
    )


def _main_part(categories: Mapping[Category, int]) -> str:
    return ", ".join(f"{name} {size(held)}" for name, held in list(categories.items())[:2])


def _device(found: SnapshotFindings, device: DeviceFindings, width: int, *, verbose: bool) -> Iterator[str]:
    yield from paragraph(f"{found.name}, GPU {device.device}: {_headline(device)}", width, "")
    yield from labelled("Held", _held(found, device), width)
    yield from labelled("Most by", "; ".join(_holder(one) for one in device.moment.holders[:3] if one.frames), width)
    yield from labelled("In pieces", _pieces(device), width)
    yield from labelled("Step by step", _growth(device.growth), width)
    yield from labelled("Replay", _replay(device.replay), width)
    if verbose:
        yield from _in_full(found, device, width)


def _headline(device: DeviceFindings) -> str:
    request, use = device.request, device.use
    if request is None:
        return (
            f"no request failed in what was recorded; {size(device.highest)} was allocated at the most, "
            f"{size(use.reserved)} is reserved at the end."
        )
    asked = f"{size(request.size)} was refused with {size(device.moment.size)} allocated and "
    asked += f"{size(request.device_free)} free on the device"
    if device.shortage is Shortage.FULL:
        return f"{asked}: {size(device.deficit)} was missing, however the memory had been arranged."
    if device.shortage is Shortage.PIECES:
        return f"{asked}: the allocator itself had enough free, but in pieces that were each too small (fragmentation)."
    if device.shortage is Shortage.APART:
        return f"{asked}: a free piece was large enough, but belongs to another stream or a private pool."
    return f"{asked}: whether what the allocator had free was in pieces or another stream's is not known."


def _held(found: SnapshotFindings, device: DeviceFindings) -> str:
    if not found.recorded:
        return (
            f"{size(device.use.allocated)}; by whom is not known: the job did not record its memory's history "
            "(runbook observe)"
        )
    when = "" if device.moment.at_failure else f", at the highest use ({size(device.moment.size)})"
    return ", ".join(f"{name} {size(held)}" for name, held in device.moment.categories.items()) + when


def _holder(one: Holder) -> str:
    return f"{place_of(one.frames)} {size(one.size)} in {counted(one.count, 'piece')} ({one.phase}, {one.category})"


def _pieces(device: DeviceFindings) -> str:
    use, request = device.use, device.request
    later = " by the time of the snapshot" if request is not None and request.events_after else ""
    largest = size(use.largest_free)
    told = [f"{size(use.free)} of {size(use.reserved)} reserved is free{later}, the largest piece {largest}"]
    if use.whole_free > _CACHE_WORTH_A_WORD:
        told.append(f"{size(use.whole_free)} of it whole segments: cache, given back before a request fails")
    if use.private_free:
        told.append(f"{size(use.private_free)} free in private pools, for CUDA graphs alone")
    if use.pending:
        told.append(f"{size(use.pending)} freed but waiting for another stream")
    if use.rounding > use.allocated // 20:
        told.append(f"{size(use.rounding)} lost to rounding")
    return "; ".join(told)


def _growth(growth: Growth) -> str:
    steps = len(growth.floors)
    if steps < 2:
        return "not known: the trace shows no two steps"
    floors = ", ".join(size(one) for one in growth.floors[-4:])
    if not growth.per_step:
        return f"no growth: {floors} when the last {counted(min(steps, 4), 'step')} began"
    holders = "; ".join(_holder(one) for one in growth.suspects[:2])
    return (
        f"each step leaves at least {size(growth.per_step)} behind ({floors}): a leak"
        + (f", held by {holders}" if holders else "; what holds it is not known")
    )


_NOT_REPLAYED = {
    NotReplayed.NOT_ASKED: "",
    NotReplayed.NO_TRACE: "not possible: the job did not record its memory's history (runbook observe)",
    NotReplayed.PRIVATE_POOLS: "not possible: private pools (CUDA graphs) are not in the model",
    NotReplayed.TOO_LONG: "not done: the trace is too long",
    NotReplayed.CONTRADICTS_ITSELF: "not possible: the trace contradicts itself",
}


def _replay(replay: Replay) -> str:
    if replay.why_not is not None:
        return _NOT_REPLAYED[replay.why_not]
    if not replay.exact:
        told = (
            f"the model does not reproduce what was recorded (it is off by up to {size(replay.off)}): what it shows of "
            "other settings is no proof"
        )
    else:
        told = "reproduces what was recorded, to the byte"
    if replay.laid_out_anew:
        told += f"; under other settings the {size(replay.laid_out_anew)} from before the trace are laid out anew"
    served = [one for one in replay.trials if one.served]
    refused = [one.settings for one in replay.trials if one.served is False]
    if served and replay.control is not None and replay.control.served:
        told += ". Laid out so, the request is served under the recorded settings too: nothing is proven"
        return told
    for one in served:
        word = "proven in replay" if replay.proves(one) else "in replay, not proven"
        told += f". Under {one.settings} the request is served, with {size(one.reserved)} reserved: {word}"
    if refused and not served:
        told += ". The request is refused under the other settings, too"
    elif refused:
        told += f". It is refused under {', '.join(refused)}"
    unasked = [f"{one.settings} {size(one.reserved)}" for one in replay.trials if one.served is None]
    if unasked and replay.control is not None:
        unasked.insert(0, f"the recorded settings {size(replay.control.reserved)}")
    if unasked:
        told += f". The most reserved was {size(replay.recorded)}; it would be: {', '.join(unasked)}"
    return told


def _in_full(found: SnapshotFindings, device: DeviceFindings, width: int) -> Iterator[str]:
    moment, settings = device.moment, found.settings
    yield from labelled("By phase", ", ".join(f"{name} {size(held)}" for name, held in moment.phases.items()), width)
    if moment.before_recording:
        said = f"{size(moment.before_recording)} was there before the recording began"
        yield from labelled("Before", said, width)
    yield from labelled("Settings", settings.text or "the allocator's defaults, or not recorded", width)
    yield from labelled("Trace", f"{device.entries} entries", width)
    if device.request is not None:
        yield from labelled("Refused at", place_of(device.request.frames), width)
        yield from _frames(device.request.frames)
    for one in moment.holders[:_SHOWN_HOLDERS]:
        yield ""
        yield from paragraph(_holder(one), width)
        yield from _frames(one.frames)


def _frames(stack: Stack) -> Iterator[str]:
    told = [frame for frame in stack if frame.file.endswith(".py")] or list(stack)
    for frame in told[:_SHOWN_FRAMES]:
        yield "      " + clean_line(f"{frame.file}:{frame.line} {frame.name}")


def place_of(stack: Stack) -> str:
    """The innermost call of the job's own code, as far as there is one; else the innermost of all."""
    python = [frame for frame in stack if frame.file.endswith(".py")]
    own = [frame for frame in python if not any(part in frame.file for part in _INSIDE)]
    for frames in (own, python):
        if frames:
            return _short(frames[0])
    names = [frame.name for frame in stack if "::" in frame.name and "Backward" in frame.name]
    names += [frame.name for frame in stack if frame.name.startswith("torch::autograd")]
    return names[0].partition("(")[0].removeprefix("torch::autograd::generated::") if names else "calls not recorded"


def _short(frame: Frame) -> str:
    return f"{'/'.join(frame.file.rsplit('/', 2)[-2:])}:{frame.line} {frame.name}"


def document_of(found: Sequence[SnapshotFindings]) -> dict[str, Any]:
    """For machines; sizes in bytes (docs/snapshots.md)."""
    return {"version": 1, "snapshots": [_file(one) for one in found]}


def _file(found: SnapshotFindings) -> dict[str, Any]:
    return {
        "file": found.name, "recorded": found.recorded, "allocator_settings": found.settings.text,
        "devices": [_told(device) for device in found.devices],
    }


def _told(device: DeviceFindings) -> dict[str, Any]:
    use, request, moment = device.use, device.request, device.moment
    return {
        "device": device.device, "entries": device.entries, "most_allocated": device.highest,
        "at_the_end": {name: getattr(use, name) for name in use.__slots__},
        "refused": None if request is None else {
            "size": request.size, "segment": request.segment, "device_free": request.device_free,
            "entries_after": request.events_after, "stack": _stack(request.frames),
        },
        "shortage": device.shortage.value, "missing": device.deficit,
        "alive": {
            "at_failure": moment.at_failure, "size": moment.size, "before_recording": moment.before_recording,
            "by_category": {name.value: held for name, held in moment.categories.items()},
            "by_phase": {name.value: held for name, held in moment.phases.items()},
            "by_stack": [_told_holder(one) for one in moment.holders],
        },
        "growth": {
            "floors": list(device.growth.floors), "per_step": device.growth.per_step,
            "suspects": [_told_holder(one) for one in device.growth.suspects],
        },
        "replay": _told_replay(device.replay),
    }


def _told_replay(replay: Replay) -> dict[str, Any]:
    if replay.why_not is not None:
        return {"done": False, "why_not": replay.why_not.value}
    return {
        "done": True, "exact": replay.exact, "off": replay.off, "laid_out_anew": replay.laid_out_anew,
        "recorded": replay.recorded, "control_served": replay.control.served if replay.control is not None else None,
        "trials": [
            {
                "settings": one.settings, "served": one.served, "failed_early": one.failed_early,
                "reserved": one.reserved, "proven": replay.proves(one),
            }
            for one in replay.trials
        ],
    }


def _told_holder(one: Holder) -> dict[str, Any]:
    return {
        "place": place_of(one.frames), "size": one.size, "count": one.count, "phase": one.phase.value,
        "category": one.category.value, "steps": one.steps, "stack": _stack(one.frames),
    }


def _stack(stack: Stack) -> list[str]:
    return [f"{frame.file}:{frame.line} {frame.name}" for frame in stack]
