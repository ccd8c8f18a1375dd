"""The command line of the simulated nvidia-smi: which report is asked for, and how it fails."""

from __future__ import annotations

import sys
import time

from simulated_gpu import state
from simulated_gpu.fields import ALIASES, APP_ALIASES, APP_FIELDS, GPU_FIELDS, UNITS
from simulated_gpu.state import Gpu, Node

USAGE = """\
Simulated nvidia-smi of the runbook sandbox: there is no GPU behind it.
  -L, --list-gpus
  --query-gpu=FIELD,...            with --format=csv[,noheader][,nounits]
  --query-compute-apps=FIELD,...   with --format=csv[,noheader][,nounits]
  --query-remapped-rows=FIELD,...  with --format=csv[,noheader][,nounits]
  -q, --query  [-d ECC,ROW_REMAPPER,MEMORY,PIDS,...] [-x]
  -i, --id=INDEX|UUID|BUS_ID,...
"""
VALUED = {"-i": "id", "--id": "id", "-d": "display", "--display": "display", "--format": "format"}
VALUED |= {f"--query-{what}": what for what in ("gpu", "compute-apps", "remapped-rows")}
FLAGS = {"-L": "list", "--list-gpus": "list", "-q": "query", "--query": "query"}
FLAGS |= {"-x": "xml", "--xml-format": "xml", "-h": "help", "--help": "help"}


class Refused(Exception):
    """The command line or the driver says no: text for stdout and exit status."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.text = text
        self.status = status


def main(arguments: list[str]) -> int:
    """Print the report that was asked for; returns nvidia-smi's exit status."""
    try:
        text, status = answer(arguments)
    except Refused as refusal:
        text, status = refusal.text, refusal.status
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        return 1
    return status


def answer(arguments: list[str]) -> tuple[str, int]:
    """The report and the exit status."""
    options = parse(arguments)
    if "help" in options:
        return USAGE, 0
    node = state.load()
    while node.hang:
        time.sleep(3600)
    chosen = select(node, options.get("id"))
    if "list" in options:
        return listing(chosen)
    for gpu in chosen:
        if gpu.facts["lost"]:
            raise Refused(f"{no_handle(gpu)}\n", 255)
    for what in ("gpu", "compute-apps", "remapped-rows"):
        if what in options:
            return csv(node, chosen, what, options), 0
    from simulated_gpu import reports

    if "xml" in options:
        return reports.xml(node, chosen), 0
    if "query" in options:
        return reports.text(node, chosen, options.get("display", "")), 0
    return reports.table(node, chosen), 0


def parse(arguments: list[str]) -> dict[str, str]:
    """The options by name; an unknown one ends as nvidia-smi ends."""
    options: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        word, equals, value = rest.pop(0).partition("=")
        if word in FLAGS:
            options[FLAGS[word]] = ""
        elif word in VALUED:
            if not equals:
                if not rest:
                    raise Refused(f"Missing value for option {word}.\n", 2)
                value = rest.pop(0)
            options[VALUED[word]] = value
        elif word in ("-qx", "-xq"):
            options |= {"query": "", "xml": ""}
        else:
            raise Refused(f"Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n{word}\n", 2)
    return options


def select(node: Node, wanted: str | None) -> list[Gpu]:
    """The GPUs that `-i` names by index, UUID or bus id; all without it."""
    if wanted is None:
        return node.gpus
    chosen = []
    for word in wanted.split(","):
        found = [gpu for gpu in node.gpus if matches(gpu, word.strip())]
        if not found:
            raise Refused("No devices were found\n", 6)
        chosen += found
    return chosen


def matches(gpu: Gpu, word: str) -> bool:
    """Whether a word of `-i` means this GPU."""
    bus_id = str(gpu.facts["bus_id"]).lower()
    names = (str(gpu.facts["index"]), str(gpu.facts["uuid"]), bus_id, bus_id[4:], bus_id[9:])
    return word in names or word.lower() in names


def no_handle(gpu: Gpu) -> str:
    """What the driver says of a GPU that is gone; it leaves out half of the PCI domain."""
    return f"Unable to determine the device handle for GPU{str(gpu.facts['bus_id'])[4:]}: Unknown Error"


def listing(gpus: list[Gpu]) -> tuple[str, int]:
    """The lines of `-L`."""
    lines = []
    for gpu in gpus:
        facts = gpu.facts
        line = f"GPU {facts['index']}: {facts['name']} (UUID: {facts['uuid']})"
        lines.append(no_handle(gpu) if facts["lost"] else line)
    return "\n".join(lines) + "\n", 255 if any(gpu.facts["lost"] for gpu in gpus) else 0


def csv(node: Node, gpus: list[Gpu], what: str, options: dict[str, str]) -> str:
    """A CSV report of GPUs, of their processes or of their remapped rows."""
    style = options.get("format", "").replace(" ", "").split(",")
    if "csv" not in style:
        raise Refused('"--format=" is not a valid format. It has to contain csv.\n', 2)
    units = "nounits" not in style
    aliases, known = (APP_ALIASES, set(APP_FIELDS)) if what == "compute-apps" else (ALIASES, set(GPU_FIELDS))
    asked = [word.strip() for word in options[what].split(",")]
    for word in asked:
        if aliases.get(word, word) not in known:
            raise Refused(f'Field "{word}" is not a valid field to query.\n\n', 2)
    fields = [aliases.get(word, word) for word in asked]
    if what == "compute-apps":
        rows = [[APP_FIELDS[name](gpu, app, node) for name in fields] for gpu in gpus for app in gpu.processes]
        heads = fields
    else:
        rows = [[GPU_FIELDS[name](gpu, node) for name in fields] for gpu in gpus]
        heads = asked
    lines = []
    if "noheader" not in style:
        lines.append(", ".join(head(title, name) for title, name in zip(heads, fields, strict=True)))
    for row in rows:
        shown = [value if units else bare(value, name) for value, name in zip(row, fields, strict=True)]
        lines.append(", ".join(shown))
    return "".join(f"{line}\n" for line in lines)


def head(shown: str, name: str) -> str:
    """A column's title; the unit stands in brackets, with `nounits` too."""
    return f"{shown} [{UNITS[name]}]" if name in UNITS else shown


def bare(value: str, name: str) -> str:
    """A value without its unit."""
    return value.removesuffix(f" {UNITS[name]}") if name in UNITS else value
