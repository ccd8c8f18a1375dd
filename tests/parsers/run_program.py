"""Run a program with command lines, each in a process of its own. For .venv-parsers' Python; reads one JSON document.

In: {"folder": …, "file": …, "lines": [[words], …]}. Out, a JSON list: of each command line whether the program took it
(ended with 0).
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback


def main() -> None:
    job = json.load(sys.stdin)
    os.chdir(job["folder"])
    sys.path.insert(0, job["folder"])
    sys.path.insert(0, os.path.join(job["folder"], os.path.dirname(job["file"])))
    print(json.dumps([taken(job["file"], words) for words in job["lines"]]))


def taken(file: str, words: list[str]) -> bool:
    child = os.fork()
    if child == 0:
        status = 0
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 1)
            sys.argv = [file, *words]
            try:
                runpy.run_path(file, run_name="__main__")
            except SystemExit as end:
                status = 0 if end.code in (0, None) else 1
            except BaseException:
                traceback.print_exc()
                status = 1
            sys.stdout.flush()
        os._exit(status)
    _, ended = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(ended) == 0


if __name__ == "__main__":
    main()
