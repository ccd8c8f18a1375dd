"""Sources that somebody wrote to hang, crash or fill whoever reads them; and those of unusual encodings."""

from __future__ import annotations

import pytest

from runbook.program import read_program
from runbook.program.expressions import MOST_STEPS
from runbook.program.sources import MOST_BYTES, MOST_FILES, MOST_LOOK_UPS

_PARSER = "import argparse\nparser = argparse.ArgumentParser()\n"
_PARSED = "parser.add_argument('--batch', type=int, default=2)\nparser.parse_args()\n"
_DOUBLING = "".join(f"def f{n}(parser):\n    f{n + 1}(parser)\n    f{n + 1}(parser)\n" for n in range(60))

SOURCES = {
    "brackets": f"{_PARSER}x = {'(' * 5_000}1{')' * 5_000}\n{_PARSED}",
    "a long sum": f"{_PARSER}x = {'+'.join('1' for _ in range(20_000))}\n{_PARSED}",
    "a long chain of attributes": f"{_PARSER}x = parser{'.a' * 5_000}\n{_PARSED}",
    "a function that calls itself": f"{_PARSER}def f(p):\n    return f(p)\nf(parser)\n{_PARSED}",
    "functions that call the next one twice": f"{_PARSER}{_DOUBLING}f0(parser)\n{_PARSED}",
    "a list that doubles": f"{_PARSER}x = [1]\n" + "x = x + x\n" * 200 + _PARSED,
    "a text that doubles": f"{_PARSER}x = 'xxxxxxxx'\n" + "x = x + x\n" * 200 + _PARSED,
    "a table of itself": f"{_PARSER}x = {{}}\nx['x'] = x\ny = [x]\ny.append(y)\ny.extend(y)\n{_PARSED}",
    "a list that grows while it is gone through": f"{_PARSER}x = [1]\nfor y in x:\n    x.append(y)\n{_PARSED}",
    "a loop for ever": f"{_PARSER}while True:\n    x = 1\n{_PARSED}",
    "a large range": f"{_PARSER}for a in range(10**30):\n  for b in range(10**9):\n    x = 1\n{_PARSED}",
    "loops inside each other": _PARSER
    + "".join(f"{' ' * n}for a{n} in range(999):\n" for n in range(18)) + f"{' ' * 18}x = 1\n{_PARSED}",
    "powers": f"{_PARSER}x = 9 ** 9 ** 9 ** 9\ny = 'a' * 10**12\nz = '%999999999d' % 5\nw = 1 << 10**12\n{_PARSED}",
    "a huge number": f"{_PARSER}x = 0x{'f' * 100_000}\nparser.add_argument('--x', default=x)\n{_PARSED}",
    "classes derived from each other": f"{_PARSER}class A(B): pass\nclass B(A): pass\nA(B)(parser)\n{_PARSED}",
    "a class of itself": f"{_PARSER}class A: pass\nclass A(A):\n    def __init__(self): super().__init__()\nA()\n"
    f"{_PARSED}",
    "imports of itself": f"from train import *\nimport train\nfrom train import train\n{_PARSER}{_PARSED}",
    "decorators of themselves": f"{_PARSER}@(d := lambda f: d(f))\ndef f(parser): pass\nf(parser)\n{_PARSED}",
    "a long chain of elif": f"{_PARSER}import os\nif os.x == 0:\n    pass\n"
    + "".join(f"elif os.x == {n}:\n    pass\n" for n in range(900)) + _PARSED,
    "names that do not end": f"{_PARSER}parser.add_argument('--{'x' * 100_000}')\n{_PARSED}",
    "zero bytes": f"{_PARSER}\0{_PARSED}",
    "an encoding that is none": f"# -*- coding: klingon -*-\n{_PARSER}{_PARSED}",
    "large": f"{_PARSER}{'#' * (MOST_BYTES + 1)}\n{_PARSED}",
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("title", SOURCES)
def test_a_hostile_source_comes_to_an_end_and_nothing_false_is_said(title: str) -> None:
    program = read_program("train.py", lambda path: SOURCES[title].encode() if path == "train.py" else None, search=[])
    assert program is not None
    assert program.option("--batch") is not None or not program.complete


@pytest.mark.timeout(60)
def test_as_many_files_as_there_are_limits_for() -> None:
    """Each file imports two more, and each is asked for a parser."""
    asked: list[str] = []

    def source_of(path: str) -> bytes | None:
        asked.append(path)
        name = path.removesuffix(".py")
        if not name.startswith("m"):
            return None
        one, two = f"m{name}a"[:60], f"m{name}b"[:60]
        return f"from {one} import f as g\nfrom {two} import f as h\ndef f(p):\n    g(p)\n    h(p)\nf(argv)\n".encode()

    program = read_program("m.py", source_of, search=["", "x", "y"])
    assert program is None or not program.complete
    assert len(asked) <= MOST_LOOK_UPS + 1
    assert len({path for path in asked if path.startswith("m")}) <= MOST_FILES


def test_a_program_within_the_limits_of_steps_is_read_whole() -> None:
    """The largest parser in the field has some 600 options."""
    many = "".join(f"parser.add_argument('--option-{n}', type=int, default={n})\n" for n in range(2_000))
    program = read_program("train.py", lambda path: f"{_PARSER}{many}{_PARSED}".encode(), search=[])
    assert program is not None
    assert program.complete
    assert len(program.options) == 2_001 < MOST_STEPS


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "gb2312"])
def test_other_encodings_are_read_as_python_reads_them(encoding: str) -> None:
    word = "é" if encoding == "latin-1" else "批"
    declared = f"# -*- coding: {encoding.removesuffix('-sig')} -*-\r\n"
    text = f"{declared}{_PARSER}parser.add_argument('--size', help='{word}')\r\n{_PARSED}"
    program = read_program("train.py", lambda path: text.encode(encoding), search=[])
    assert program is not None
    size = program.option("--size")
    assert size is not None
    assert size.help == word
