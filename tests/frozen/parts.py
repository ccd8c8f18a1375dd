"""What is frozen: each part yields answers, case by case, for a file of its own under answers/.

A part is split into pieces that can be made in any order and in any process. What a piece yields may not depend on the
machine, the time, the folder, or on what was asked before.
"""

from __future__ import annotations

import getpass
import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.frozen import faces
from tests.frozen.faces import Parts, command

Answer = tuple[str, str, Parts]
"""The file's name under answers/, the case's title, and what came out."""

LOGS_A_PIECE = 60
INVENTORY = """\
version: 1
id: here
title: This machine, for frozen answers
cluster: alpha
scheduler: {kind: local}
nodes: {kind: none}
paths: {state: ./state, spool: ./state/spool}
"""


@dataclass(frozen=True, slots=True)
class Piece:
    part: str
    answers: Callable[..., Iterator[Answer]]
    arguments: tuple[int | str, ...] = ()


@cache
def pieces() -> list[Piece]:
    """The longest first, so that two processes end together."""
    by_size = sorted(faces.lever_files().items(), key=lambda item: -len(item[1]))
    found = [Piece("template", levers, (name,)) for name, _ in by_size]
    found += [Piece("logs", logs, (start,)) for start in range(0, len(faces.log_cases()), LOGS_A_PIECE)]
    found += [Piece("loop", loop, (name,)) for name in LOOPS]
    found += [Piece("probe", probe, (name,)) for name in faces.probe_scenarios()]
    found += [Piece("commands", explained, (group,)) for group in ("signatures", "kinds", *systems())]
    found += [
        Piece("template", templates), Piece("plans", plans), Piece("nodes", nodes), Piece("commands", helps),
        Piece("commands", tables), Piece("commands", mistakes), Piece("incidents", incidents),
    ]
    return found


# Logs


def logs(start: int) -> Iterator[Answer]:
    for case in faces.log_cases()[start : start + LOGS_A_PIECE]:
        paths = []
        for part in case.logs:
            path, stream, _size = part.source()
            paths.append(path.lstrip("/"))
            _write(paths[-1], stream.read())
        job = []
        if case.job and case.job.nodes:
            job += ["--nodes", ",".join(case.job.nodes)]
        if case.job and case.job.num_tasks:
            job += ["--tasks", str(case.job.num_tasks)]
        yield f"logs/{case.id}.txt", case.title, [
            ("runbook diagnose", command("diagnose", *job, *paths)),
            ("runbook diagnose --json", command("diagnose", "--json", *job, *paths)),
            *faces.judged_logs(case),
        ]
        clear()


# Templates


def levers(name: str) -> Iterator[Answer]:
    for case in faces.lever_files()[name]:
        parts, system, used = faces.lever_answers(case)
        for file in case.files:
            _write(file.path, file.text.encode("utf-8", "surrogateescape"))
        main = case.files[0].path.lstrip("/")
        parts.append(("runbook template show --all", command("template", "show", "--all", main)))
        if used:
            words = [word for lever in used for word in ("--lever", lever)]
            words += ["--kind", case.failure.get("kind", "true_oom"), "--playbook", _playbook("job", system)]
            parts.append(("runbook patch", command("patch", "--template", main, "--yes", *words)))
        yield f"levers/{name}.txt", case.title, parts
        clear()


def templates() -> Iterator[Answer]:
    for title, parts in faces.shell_cases():
        yield "template/scripts.txt", title, parts
    for title, parts in faces.configuration_cases():
        yield "template/configurations.txt", title, parts


def plans() -> Iterator[Answer]:
    for name in ("proposals", "worlds", "resumes", "checkpoints", "flow"):
        for title, parts in getattr(faces, name)():
            yield f"plans/{name}.txt", title, parts


# Nodes


def nodes() -> Iterator[Answer]:
    for title, parts in faces.node_scenarios():
        yield "nodes/scenarios.txt", title, parts
    for title, parts in faces.recorded_nodes():
        yield "nodes/recorded.txt", title, parts


def probe(scenario: str) -> Iterator[Answer]:
    yield f"nodes/probe/{scenario}.txt", scenario, faces.probed(scenario)


# Commands


def helps() -> Iterator[Answer]:
    """Each command's help, found through the help of the one above it."""
    ahead: list[tuple[str, ...]] = [()]
    while ahead:
        words = ahead.pop(0)
        text = command(*words, "--help")
        yield "commands/help.txt", " ".join(("runbook", *words, "--help")), [("printed", text)]
        listed = text.partition("\nCommands:\n")[2].split("\n\n")[0].splitlines()
        ahead += [(*words, line.split()[0]) for line in listed if line[:2] == "  " and line[2:3].strip()]


def tables() -> Iterator[Answer]:
    _write("here.yaml", INVENTORY.encode())
    for words in (
        ("signatures",), ("signatures", "nccl", "shm"), ("signatures", "--means", "harmless"), ("levers",),
        *(("levers", system) for system in systems()), ("levers", "--kind", "host_oom"),
        ("levers", "--phase", "rollout"), ("playbooks", "check"), ("deploy", "prometheus"),
        *(("completion", shell) for shell in ("bash", "zsh", "fish")),
    ):
        yield f"commands/{words[0]}.txt", " ".join(("runbook", *words)), [("printed", command(*words))]


def explained(group: str) -> Iterator[Answer]:
    for document, name in _names(group):
        words: tuple[str, ...] = ("explain", name)
        if document:
            words = (*words, "--playbook", _playbook(document, group if group in systems() else systems()[0]))
        yield f"commands/explain/{group}.txt", f"runbook explain {name}", [("printed", command(*words))]


def _playbook(signatures: str, levers: str) -> str:
    """A playbook of one document of each sort, compiled: to read all of them for each case takes minutes."""
    folder = Path(f"../{signatures}-{levers}")
    if folder.is_dir():
        return str(folder)
    for kind, name in (("signatures", signatures), ("levers", levers)):
        (folder / kind).mkdir(parents=True)
        for path in (faces.PLAYBOOK / kind).glob(f"{name}.*yaml"):
            shutil.copy(path, folder / kind)
    faces.compile_playbook(folder)
    return str(folder)


@cache
def systems() -> list[str]:
    return [item["id"] for item in faces.read_json(command("levers", "--json"))]


def _names(group: str) -> list[tuple[str, str]]:
    """What can be explained of a group (signatures, kinds, or the levers and parameters of a system), each behind the
    document of signatures that is enough for it; "" where all are needed."""
    if group == "signatures":
        return [(item["document"], item["id"]) for item in faces.read_json(command("signatures", "--json"))]
    if group == "kinds":
        listed = command("levers", "--kind", "no").partition("there are ")[2].split("\n")[0]
        others = ("consequence", "harmless", "framing", "progress", "RANK-KILLED")
        return [("", name) for name in (*listed.split(", "), *others)]
    (document,) = faces.read_json(command("levers", "--json", group))
    entries = [item["id"] for kind in ("levers", "parameters", "out_of_reach", "diagnostics")
               for item in document[kind]]
    return [("job", f"{group}:{name}") for name in dict.fromkeys(entries)]


def mistakes() -> Iterator[Answer]:
    """What is said of a command line that cannot be right."""
    _write("here.yaml", INVENTORY.encode())
    _write("job.sh", b"#!/bin/bash\nsrun torchrun train.py --micro-batch-size 8 --gradient-accumulation-steps 1\n")
    _write("empty.log", b"")
    _write("binary.log", bytes(range(256)) * 20)
    for line in MISTAKES:
        yield "commands/mistakes.txt", f"runbook {line}", [("printed", command(*line.split()))]


MISTAKES = (
    "", "nonsense", "diagnose", "diagnose missing.log", "diagnose empty.log", "diagnose binary.log", "diagnose --nope",
    "diagnose --prefix ( empty.log", "diagnose --prefix x empty.log", "diagnose --tasks 0 empty.log",
    "diagnose --nodes gpu-[ empty.log", "diagnose --template missing.sh empty.log", "diagnose --playbook no empty.log",
    "explain nonsense", "explain PT-CUDA-1", "explain", "signatures nosuchword", "levers nosuch", "levers --kind no",
    "levers --phase no", "template show missing.sh", "template show empty.log", "template show --system no job.sh",
    "patch --template job.sh", "patch --template job.sh --lever no", "patch --template job.sh --set no=1",
    "patch --template job.sh --lever smaller_micro_batch --kind no", "patch --template missing.sh --lever x",
    "patch --template job.sh --set micro_batch_size=8", "patch --template job.sh --set seq_length=128",
    "patch --template job.sh --lever smaller_micro_batch", "patch --template job.sh --lever smaller_micro_batch --json",
    "predict", "predict --template missing.sh", "predict --template job.sh", "predict --template job.sh --gpus no",
    "predict --template job.sh --set no=1", "predict --template job.sh --search layers",
    "oom", "oom --job 1 --log empty.log", "oom --job 1 --template job.sh", "oom --log missing.log", "node",
    "node gpu-1", "node gpu-[", "node --since never gpu-1", "incidents", "incidents --state no", "show nonsense",
    "show oom-alpha-1", "report oom-alpha-1", "history", "history --nodes", "history --since x",
    "history --nodes --user a", "approve oom-alpha-1", "resume oom-alpha-1", "promote oom-alpha-1",
    "rollback oom-alpha-1", "jobs", "submit missing.sh", "notify test", "metrics --textfile x", "completion tcsh",
    "incidents --inventory nosuch", "probe --nope", "token list", "serve --nope",
)


# Incidents


def incidents() -> Iterator[Answer]:
    """Each incident alone, and lists of them. The hostile one is so large that it has a store of its own."""
    samples = faces.sample_incidents()
    hostile = {"hostile": samples.pop("hostile")}
    shown: set[str] = set()
    for folder, kept, lists, addresses in (
        ("hostile", hostile, LISTS[:1], {"list-hostile": "/", "history-hostile": "/history"}),
        ("others", samples, LISTS, PAGES),
    ):
        state = Path(folder)
        _write("here.yaml", INVENTORY.replace("./state", folder).encode())
        faces.store(state, kept.values())
        for name, incident in kept.items():
            yield f"incidents/{name}.txt", name, [
                ("runbook show", command("show", incident.id)), *faces.told_people(incident),
                ("runbook report --draw", command("report", "--draw", incident.id)),
            ]
            yield f"incidents/{name}.json", "", [("", command("show", "--json", incident.id))]
            html = (state / "incidents" / incident.id / "report.html").read_text(encoding="utf-8")
            yield from _page(f"incidents/{name}.html", html, shown)
            yield from _page(f"pages/{name}.html", faces.page(state, f"/incidents/{incident.id}"), shown)
        for words in lists:
            yield f"incidents/lists-{folder}.txt", f"runbook {words}", [("printed", command(*words.split()))]
        for title, address in addresses.items():
            yield from _page(f"pages/{title}.html", faces.page(state, address), shown)


LISTS = (
    "incidents", "incidents --json", "incidents --state escalated", "history", "history --json", "history --nodes",
    "history --nodes --json", "history --user ana", "history --kind fragmentation",
)


def _page(name: str, text: str, shown: set[str]) -> Iterator[Answer]:
    """A page, and apart from it, once, the style that it has in common with others."""
    found = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    if found is not None:
        style = hashlib.sha256(found[1].encode()).hexdigest()[:12]
        text = text.replace(found[1], style)
        if style not in shown:
            yield f"pages/style-{style}.css", "", [("", found[1])]
        shown.add(style)
    yield name, "", [("", text)]


PAGES = {
    "list": "/", "list-person": "/?state=person", "list-search": "/?q=llama&user=ana", "list-none": "/?q=nosuch",
    "list-form": "/?q=&user=ana", "history": "/history", "history-user": "/history?user=ana",
    "history-none": "/history?user=nobody", "metrics": "/metrics", "healthz": "/healthz", "nothing": "/nothing",
    "no-such-incident": "/incidents/oom-alpha-999",
}


# The whole loop over files


LOOPS = ("huggingface", "megatron", "pytorch", "verl")
"""Files of lever cases whose first case with a plan goes through the whole flow."""
LOG = """\
3: step 41/100 loss 2.0100 time 1.05 s
3: step 42/100 loss 2.0000 time 1.05 s
3: [rank3]: Traceback (most recent call last):
3: [rank3]:   File "/proj/ada/train.py", line 210, in forward
3: [rank3]:     return self.layers(hidden)
3: [rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of \
79.11 GiB of which 1.20 GiB is free. Process 4711 has 77.90 GiB memory in use. Of the allocated memory 75.10 GiB is \
allocated by PyTorch, and 1.10 GiB is reserved by PyTorch but unallocated.
"""


def loop(name: str) -> Iterator[Answer]:
    """`runbook oom` over a log and a template, in a process of its own: its engine has threads that outlive it."""
    case = next(one for one in faces.lever_files()[name] if "diff" in one.parts)
    for file in case.files:
        _write(file.path, file.text.encode())
    _write("train.log", LOG.encode())
    words = ("oom", "--log", "train.log", "--template", case.files[0].path.lstrip("/"), "--output", "out")
    done = subprocess.run(
        (sys.executable, "-m", "runbook", *words), capture_output=True, encoding="utf-8", check=False, timeout=120,
    )
    said = f"{done.stdout}--- standard error\n{done.stderr}"
    user = getpass.getuser()
    for pattern, shown in (
        (r" +\d+\.\d s  ", " (time)  "), (r"\b(job |files-)[0-9a-f]{8}\b", r"\1ID"),
        (rf"( as |, ){re.escape(user)}\b", r"\1USER"),
    ):
        said = re.sub(pattern, shown, said)
    written = [(path.name, path.read_text(encoding="utf-8")) for path in sorted(Path("out").rglob("*"))
               if path.is_file() and path.suffix != ".html"]
    yield f"loop/{name}.txt", case.title, [("runbook oom", f"{said}--- exit {done.returncode}\n"), *written]
    clear()


# Files


def _write(path: str, content: bytes) -> None:
    place = Path(path.lstrip("/"))
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)


def clear() -> None:
    for path in Path().iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
