"""What the program answers today, kept under answers/ and compared byte for byte: `make frozen`, `make frozen-renew`.

The answers are no truth, they are what came out; a difference is read like code. Without an option the answers are made
again and what differs is shown, exit code 1; with `--renew` the files are written anew.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))

ANSWERS = Path(__file__).parent / "answers"
PROCESSES = 2
LONGEST_TEXT = 300_000
"""Characters; of a longer one only the digest is kept."""
SHOWN_LINES = 12
"""Of the difference in one case."""
SHOWN_CASES = 40
ENVIRONMENT = {
    "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TZ": "UTC", "COLUMNS": "100", "LINES": "24", "TERM": "dumb",
    "NO_COLOR": "1", "RUNBOOK_INVENTORY": "./here.yaml", "PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1",
}
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
Made = tuple[str, float, dict[str, str], int]
"""A piece's part, the processor's time for it, its files and how many cases."""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--renew", action="store_true", help="write the files anew")
    options.add_argument("--only", default="", metavar="PART", help="only this part: logs, template, nodes, …")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="runbook_frozen_", dir="/tmp") as folder:
        settle(folder)
        files = made_now(folder, chosen.only)
        os.chdir("/")
    if chosen.renew:
        return renew(files, whole=not chosen.only)
    return compare(files, whole=not chosen.only)


def made_now(folder: str, only: str) -> dict[str, str]:
    """Every file's text, made by two processes; a line is printed for each part."""
    # Only once the environment is settled: what is imported may read it.
    from tests.frozen.parts import pieces

    started_s = time.monotonic()
    wanted = [number for number, piece in enumerate(pieces()) if only in ("", piece.part)]
    files: dict[str, str] = {}
    cases = Counter[str]()
    seconds: defaultdict[str, float] = defaultdict(float)
    left = Counter(pieces()[number].part for number in wanted)
    with ProcessPoolExecutor(PROCESSES, get_context("fork"), settle, (folder,)) as pool:
        for done in as_completed([pool.submit(make, number) for number in wanted]):
            part, took_s, made, count = done.result()
            files.update(made)
            cases[part] += count
            seconds[part] += took_s
            left[part] -= 1
            if not left[part]:
                print(f"{part:<10} {cases[part]:5} cases {seconds[part]:6.1f} s of a processor", flush=True)
    print(f"{'in all':<10} {cases.total():5} cases {time.monotonic() - started_s:6.1f} s, "
          f"{sum(len(text.encode()) for text in files.values()) / 1e6:.1f} MB in {len(files)} files", flush=True)
    return files


def settle(folder: str) -> None:
    """In a folder of this process, and nothing of the machine's environment but where programs are. The folder's name
    has the same length everywhere, and no place to break it, as lines are broken around it."""
    own = Path(folder) / f"{os.getpid():08}"
    home, work = own / "home", own / "work"
    home.mkdir(parents=True)
    work.mkdir()
    path = os.environ.get("PATH", "/usr/bin:/bin")
    os.environ.clear()
    os.environ.update(ENVIRONMENT, PATH=path, HOME=str(home), TMPDIR=str(home))
    time.tzset()
    os.chdir(work)


def make(number: int) -> Made:
    """The files of one piece. A file holds `##### case` and `=== head` lines over their texts, or one text alone."""
    from tests.frozen.parts import clear, pieces

    piece = pieces()[number]
    started_s = time.process_time()
    files: dict[str, list[str]] = {}
    count = 0
    for name, title, parts in piece.answers(*piece.arguments):
        count += 1
        text = [f"##### {title}\n"] if title else []
        for head, body in parts:
            if len(body) > LONGEST_TEXT:
                body = f"{len(body)} characters, SHA-256 {sha256(plain(body).encode()).hexdigest()}"
            text.append((f"=== {head}\n" if head else "") + body + ("\n" if body and body[-1] != "\n" else ""))
        files.setdefault(name, []).extend(text)
    clear()
    made = {name: plain("".join(texts)) for name, texts in files.items()}
    return piece.part, time.process_time() - started_s, made, count


def plain(text: str) -> str:
    """Without this machine's folders, and with what no text file holds written out."""
    for folder, name in ((str(Path.cwd()), "/folder"), (str(REPOSITORY), "/repository")):
        text = text.replace(folder, name)
    text = CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
    return text.encode("utf-8", "backslashreplace").decode()


def renew(files: dict[str, str], *, whole: bool) -> int:
    changed = 0
    for name in old_files() - files.keys() if whole else ():
        (ANSWERS / name).unlink()
        changed += 1
    for name, text in files.items():
        path = ANSWERS / name
        if not path.exists() or path.read_bytes() != text.encode():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
            changed += 1
    print(f"{changed} files written or removed: read them with `git diff tests/frozen/answers`")
    return 0


def compare(files: dict[str, str], *, whole: bool) -> int:
    """Say every case that differs, with the first lines of its difference."""
    differing = 0
    for name in sorted(files.keys() | (old_files() if whole else set())):
        path = ANSWERS / name
        old = path.read_bytes().decode() if path.exists() else ""
        if old == files.get(name):
            continue
        before, after = by_case(old), by_case(files.get(name, ""))
        for title in dict.fromkeys((*before, *after)):
            if before.get(title) != after.get(title):
                differing += 1
                if differing <= SHOWN_CASES:
                    show(name, title, before.get(title, []), after.get(title, []))
    if differing > SHOWN_CASES:
        print(f"… and {differing - SHOWN_CASES} more")
    print(f"{differing} cases differ from tests/frozen/answers" if differing else "nothing differs")
    return 1 if differing else 0


def show(name: str, title: str, before: list[str], after: list[str]) -> None:
    print(f"\n{name}{f': {title}' if title else ''}")
    lines = list(difflib.unified_diff(before, after, "frozen", "now", lineterm="", n=1))[2:]
    for line in lines[:SHOWN_LINES]:
        print(f"  {line if len(line) <= 300 else line[:300] + '…'}")
    if len(lines) > SHOWN_LINES:
        print(f"  … {len(lines) - SHOWN_LINES} more lines")


def by_case(text: str) -> dict[str, list[str]]:
    """The lines below each `##### ` line; a title that stands twice keeps both."""
    found: dict[str, list[str]] = {}
    title = ""
    for line in text.splitlines():
        if line.startswith("##### "):
            title = line.removeprefix("##### ")
        else:
            found.setdefault(title, []).append(line)
    return found


def old_files() -> set[str]:
    """Those that this machine can make: without a compiler the probe's are left out, and stay as they are."""
    from tests.frozen.parts import pieces

    found = {str(path.relative_to(ANSWERS)) for path in ANSWERS.rglob("*") if path.is_file()}
    if any(piece.part == "probe" for piece in pieces()):
        return found
    print("left out: probe (no gcc)")
    return {name for name in found if not name.startswith("nodes/probe/")}


if __name__ == "__main__":
    sys.exit(main())
