"""The simulated training job under the command lines of other systems: their options become the simulation's own.

The words of the process stay those of the system, so that what a lever changed can be seen in them. Nothing of the
systems themselves is here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import train


def run_as(system: str, options: Mapping[str, object]) -> int:
    """Run the simulated job with these options; a value of None leaves one out."""
    words = [word for name, value in options.items() if value is not None for word in (f"--{name}", str(value))]
    print(f"simulation of {system}: only its command line and its names are like the system's", flush=True)
    sys.argv = [sys.argv[0], *words]
    return train.main()


def overrides(words: Sequence[str]) -> dict[str, str]:
    """`key=value`, `+key=value` and `++key=value` as on a Hydra command line; the last of a key wins."""
    found = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key.startswith("-"):
            raise SystemExit(f"simulation: {word!r} is no override")
        found[key.lstrip("+")] = value.strip("'\"")
    return found


def flat_yaml(path: str) -> dict[str, str]:
    """The `key: value` lines of a YAML file without nesting."""
    found = {}
    with open(path, encoding="utf-8") as stream:
        for number, line in enumerate(stream, 1):
            text = line.split(" #")[0].strip()
            if not text or text.startswith("#"):
                continue
            key, colon, value = text.partition(":")
            if not colon:
                raise SystemExit(f"simulation: {path}:{number} is no 'key: value'")
            found[key.strip()] = value.strip().strip("'\"")
    return found
