"""A forecast for a terminal: a table by term, the card as a bar, and what the verdict rests on."""

from __future__ import annotations

from collections.abc import Sequence

from runbook.foresight import Forecast, Interval, Part, parameters_of
from runbook.model.remedy import Basis, Fit
from runbook.model.units import GIB
from runbook.report.text import labelled, paragraph, table

_LETTERS = {
    Part.WEIGHTS: "W", Part.GRADIENTS: "G", Part.OPTIMIZER: "O", Part.GATHERED: "g", Part.ACTIVATIONS: "A",
    Part.WORKING: "a", Part.LOGITS: "L", Part.UPDATE: "u", Part.LOAD: "m", Part.ENGINE: "E", Part.WORKSPACE: "w",
    Part.REST: "r", Part.GAP: "c", Part.OUTSIDE: "x",
}
_NAMES = {
    "micro": "the micro-batch", "sequence": "the sequence length", "world": "the number of ranks",
    "hidden": "the hidden size", "layers": "the number of layers", "heads": "the number of attention heads",
    "mlp": "the width of the MLP", "vocabulary": "the size of the vocabulary", "recompute": "recomputation",
    "loss": "how the loss is made", "sharding": "the sharding", "attention": "the attention",
    "weight_bytes": "the type of weights", "gradient_bytes": "the type of gradients",
    "master_bytes": "master copies", "optimizer_bytes": "the type of the optimizer's states",
    "other_models": "how large the models beside the trained one are",
    "accumulation": "gradient accumulation", "compiled": "whether it is compiled",
}
_PEAKS = (
    (Basis.ALLOCATED, "peak allocated"), (Basis.RESERVED, "peak reserved"), (Basis.DEVICE, "on the card, in all"),
)
_BAR = 64


def lines_of(told: Forecast, before: Forecast | None, width: int, words: Sequence[str]) -> list[str]:
    """All that is said of a forecast; the first line is its verdict."""
    lines = paragraph(_verdict(told), width, "  ", "")
    if told.missing:
        return [*lines, *_remarks(told, words, width)]
    lines += ["", *table(("GiB", "between", "term", "how"), [
        (_gib(term.bytes.middle), _between(term.bytes), term.title, term.how) for term in told.terms
        if abs(term.bytes.high) >= 0.005 * GIB
    ], width)]
    lines += ["", *table((), [
        (_gib(told.peaks[basis].middle), _between(told.peaks[basis]), title) for basis, title in _PEAKS
    ], width)]
    scale = max(item.peaks[Basis.DEVICE].high for item in (told, *([before] if before is not None else ())))
    scale = max(scale, told.card_bytes or 0)
    rows = [("now", before), ("then", told)] if before is not None else [("", told)]
    lines += ["", *(f"  {label:5}{bar(item, scale)}" for label, item in rows if item is not None)]
    lines += paragraph(_legend(told), width, "       ")
    return [*lines, "", *_remarks(told, words, width)]


def bar(told: Forecast, scale: float) -> str:
    """One character a part of the card: letters for what is likely, `~` for what may be on top, `|` for its end."""
    if not told.peaks:
        return "not known"
    text = ""
    reached = 0.0
    positive = sum(max(0.0, term.bytes.middle) for term in told.terms)
    share = told.peaks[Basis.DEVICE].middle / positive if positive else 0.0  # less than 1: formulas alone are too high
    for term in told.terms:
        reached += max(0.0, term.bytes.middle) * share
        text += _LETTERS.get(Part(term.title), "?") * (round(reached / scale * _BAR) - len(text))
    text += "~" * (round(told.peaks[Basis.DEVICE].high / scale * _BAR) - len(text))
    text = text.ljust(_BAR)
    if told.card_bytes is None:
        return text.rstrip()
    end = round(told.card_bytes / scale * _BAR)
    return f"{text[:end]}|{text[end:]}".rstrip()


def _verdict(told: Forecast) -> str:
    if told.missing:
        names = ", ".join(_named(name) for name in told.missing)
        return f"cannot say: the files do not tell {names}"
    device = told.peaks[Basis.DEVICE]
    bounds = f"{_gib(device.low)} to {_gib(device.high)}"
    needs = f"{bounds} GiB"
    if told.card_bytes is None:
        return f"cannot say: it needs {needs}, and the card is not known (--gpus h100-80g)"
    card = _gib(told.card_bytes)
    if told.verdict is Fit.FITS:
        spare = _gib(told.card_bytes - device.high)
        return f"fits: it needs {bounds} of {card} GiB, so at least {spare} GiB stay free"
    if told.verdict is Fit.DOES_NOT_FIT:
        return f"does not fit: it needs {needs}, and the card has {card} GiB"
    return f"cannot say: it needs {needs}, and the card has {card} GiB"


def _remarks(told: Forecast, words: Sequence[str], width: int) -> list[str]:
    lines: list[str] = []
    if told.anchors:
        for anchor in told.anchors:
            figure = anchor.figure
            least = "at least " if figure.at_least else ""
            lines += labelled("anchor", f"{least}{_gib(figure.bytes)} GiB {figure.basis}: {figure.source}", width)
    else:
        lines += labelled("anchor", "none: no figure of the job is here, so formulas alone speak; name a log", width)
    count = parameters_of(told.run)
    if count is not None:
        ranks = f" on {told.run.world} ranks" if told.run.world else ""
        lines += labelled("model", f"{count / 1e9:.3f}e9 parameters{ranks}", width)
    if told.assumed:
        names = ", ".join(f"{_named(name)} {getattr(told.run, name)}" for name in told.assumed)
        lines += labelled("taken", f"as the system has it by default: {names}", width)
    if told.open:
        names = ", ".join(_named(name) for name in told.open)
        lines += labelled("open", f"{names}: not known, so every choice counts in the bounds (--set)", width)
    for word in words:
        lines += labelled("note", word, width)
    return lines


def _named(field: str) -> str:
    return _NAMES.get(field, field.replace("_", " "))


def _legend(told: Forecast) -> str:
    shown = [f"{_LETTERS[Part(term.title)]} {term.title}" for term in told.terms if term.bytes.middle > 0.3 * GIB]
    return ", ".join([*shown, "~ may be on top", "| the card"])


def _gib(value: float) -> str:
    return f"{value / GIB:.2f}"


def _between(interval: Interval) -> str:
    return f"{_gib(interval.low)} to {_gib(interval.high)}"
