"""Launch scripts and configurations that somebody wrote to hold up whoever reads them, made rather than kept: a few
bytes that grow, nest or repeat."""

from __future__ import annotations

from collections.abc import Iterator

from runbook.model.template import TemplateFile

_HEAD = "#!/bin/bash\n#SBATCH --nodes=1\n"
_TRAIN = "srun python train.py --micro-batch-size 8 "
_ROOM = 240_000
"""Bytes that are still read of a script: what is larger is refused for its size alone."""


def _filled(line: str) -> str:
    """Lines until the script is as large as is read of any; `%d` is their number."""
    lines, size, at = [], 0, 0
    while size < _ROOM:
        lines.append(line.replace("%d", str(at)))
        size += len(lines[-1])
        at += 1
    return "".join(lines)


def cut_scripts() -> Iterator[TemplateFile]:
    """Past a budget: nothing of them is known, and nothing is changed in them."""
    scripts = {
        "doubles": 'x=a\n' + 'x="$x$x"\n' * 40 + _TRAIN + "--x $x",
        "doubles in an array": "x=(a)\n" + 'x=("${x[@]}" "${x[@]}")\n' * 40 + _TRAIN + '"${x[@]}"',
        "doubles by defaults": 'x=a\n' + 'x="${y:-$x$x}"\n' * 40 + _TRAIN,
        "doubles by export": 'export x=a\n' + 'export x="$x$x"\n' * 40 + _TRAIN,
        "appends itself": "x=a\n" + "x+=$x\n" * 40 + _TRAIN,
        "exports everywhere": _filled("export v%d=1\nsrun python a.py\n"),
        "defaults in defaults": _TRAIN + "--a " + "${a:-" * 20_000 + "1" + "}" * 20_000,
        "quotes in defaults": _TRAIN + "--a " + '"${a:-' * 20_000 + "1" + '}"' * 20_000,
        "substitutions": "x=" + "$(x=" * 40 + "1" + ")" * 40 + "\n" + _TRAIN,
        "deep substitutions": "x=" + "$(" * 20_000 + "a" + ")" * 20_000 + "\n" + _TRAIN,
        "subshells": "( " * 5_000 + "a" + " )" * 5_000 + "\n" + _TRAIN,
        "groups": "{ " * 5_000 + "a;" + " };" * 5_000 + "\n" + _TRAIN,
        "ifs in ifs": "if a; then " * 5_000 + "b" + "; fi" * 5_000 + "\n" + _TRAIN,
        "one long list": "true && " * 5_000 + "true\n" + _TRAIN,
        "one long sum": _TRAIN + "--a $((" + "1+" * 5_000 + "1))",
        "parentheses": _TRAIN + "--a $((" + "(" * 5_000 + "1" + ")" * 5_000 + "))",
        "functions of functions": "f0() { srun a; }\n"
        + "".join(f"f{at}() {{ " + f"f{at - 1}; " * 20 + "}\n" for at in range(1, 8)) + f"f7\n{_TRAIN}",
        "evals of evals": 'x="srun a;"\n' + 'x="$x$x"\n' * 11 + 'eval "$x"\n' * 300 + _TRAIN,
        "branches": _filled("v%d=1\nif a; then v%d=2; fi\n") + _TRAIN,
        "subshell copies": _filled("v%d=1\n(a)\n") + _TRAIN,
        "appends to a list": "x=(a)\n" + "x+=(aaaa)\n" * 20_000 + _TRAIN,
        "one array for many": "A=(" + "a " * 20_000 + ")\n" + 'srun python t.py "${A[@]}"\n' * 1_000,
        "commands": _filled("a b\n"),
        "too large": _TRAIN + "\n" + "# padding\n" * 40_000,
    }
    yield from (TemplateFile(f"{name}.sh", f"{_HEAD}{text}\n") for name, text in scripts.items())


def cut_configs() -> Iterator[TemplateFile]:
    """The same for configuration files."""
    merge = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n}\n  <<: [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 19))
    alias = "a0: &a0 [1, 1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 30))
    mapping = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{l: *a{n - 1}, r: *a{n - 1}}}\n" for n in range(1, 30))
    names = "a0: x\n" + "".join(f'a{n}: "' + f"${{a{n - 1}}}" * 500 + '"\n' for n in range(1, 8))
    yield TemplateFile("merge.yaml", merge)
    yield TemplateFile("alias.yaml", alias)
    yield TemplateFile("mapping.yaml", mapping)
    yield TemplateFile("references.yaml", names)
    yield TemplateFile("deep.yaml", "a: " + "[" * 20_000 + "]" * 20_000 + "\n")
    yield TemplateFile("deep_mapping.yaml", "a: " + "{a: " * 5_000 + "1" + "}" * 5_000 + "\n")
    yield TemplateFile("deep.json", '{"a": ' + "[" * 200_000 + "]" * 200_000 + "}")
    yield TemplateFile("deep_object.json", '{"a": ' * 50_000 + "1" + "}" * 50_000)
    yield TemplateFile("dotted.toml", "a." * 100_000 + "a = 1\n")
    yield TemplateFile("deep.toml", "a = " + "[" * 50_000 + "]" * 50_000 + "\n")
    yield TemplateFile("tables.toml", "a = " + "{a=" * 5_000 + "1" + "}" * 5_000 + "\n")
    yield TemplateFile("assigns.py", "a=" * 3_000 + "1\n")
    yield TemplateFile("deep.py", "a = " + "[" * 190 + "]" * 190 + "\n")
    yield TemplateFile("calls.py", "a = f" + "()" * 5_000 + "\n")
    yield TemplateFile("attributes.py", "a" + ".a" * 5_000 + " = 1\n")
    yield TemplateFile("signs.py", "a = " + "-" * 20_000 + "1\n")
    yield TemplateFile("changed.py", "a.b = 1\n" * 20_000 + "a.update(x)\n" * 20_000)
    yield TemplateFile("too_large.yaml", "a: 1\n" * 300_000)


def long_lists() -> Iterator[TemplateFile]:
    """Known where one parameter is asked for; only a list of all that they set would be too long."""
    names = [f"A{at}={at}" for at in range(3_000)]
    yield TemplateFile("words.sh", f"{_HEAD}srun env {' '.join(names)} {_TRAIN[5:]}\n")
    yield TemplateFile("commas.sh", f"{_HEAD}srun --export={','.join(names)} {_TRAIN[5:]}\n")


def endured_files() -> Iterator[TemplateFile]:
    """Read to their end, however strange they are."""
    scripts = {
        "digits": _TRAIN + "--a $((" + "1" * 5_000 + ")) --b ${" + "1" * 5_000 + "} --c ${A[" + "1" * 5_000 + "]}",
        "orphans": _filled("-a\n"),
        "comments": _filled("# --seq-length=%d\n"),
        "cases": "case $x in " + " ".join(f"a{at}) y=1;;" for at in range(10_000)) + " esac\n" + _TRAIN,
        "heredocs": _filled("cat <<E%d\n"),
        "one split value": 'A="' + "a " * 10_000 + '"\nsrun python t.py $A',
        "backquotes": "x=`" * 5_000,
        "braces": _TRAIN + "{a," * 5_000 + "}" * 5_000,
        "garbage": '(${"`((<<' * 20_000,
        "quotes": "\"'" * 50_000,
        "dollars": "$" * 100_000,
        "directives": "#SBATCH " + "-N\"'" * 20_000,
        "assignments in front": "A=1 " * 20_000 + _TRAIN,
        "scripts run": "srun " + "a.sh " * 20_000,
        "overrides": "srun python t.py " + " ".join(f"a.b{at}=1" for at in range(10_000)),
        "runtime environment": "ray job submit --runtime-env-json='" + "[" * 20_000 + "' -- python t.py",
        "nothing but ifs": "if a; then\n" * 2_000,
        "appended words": 'A=""\n' + "".join(f'A="$A --opt{at} {at}"\n' for at in range(300)) + "srun python t.py $A",
    }
    yield from (TemplateFile(f"{name}.sh", f"{_HEAD}{text}\n") for name, text in scripts.items())
    yield TemplateFile("garbage.yaml", "[{&*!: -" * 100_000)
    yield TemplateFile("anchors.yaml", "".join(f"a{at}: &a{at} 1\n" for at in range(40_000)))
    yield TemplateFile("itself.yaml", "a: &a\n  b: *a\n")
    yield TemplateFile("digits.json", '{"a": ' + "1" * 500_000 + "}")
    yield TemplateFile("many.json", "[" + "1," * 90_000 + "1]")
    yield TemplateFile("digits.toml", "a = 0x" + "f" * 5_000 + "\n")
    yield TemplateFile("arrays.toml", "[[a.b]]\n" * 40_000)
    yield TemplateFile("digits.py", "a = 0x" + "f" * 5_000 + "\n")
    yield TemplateFile("docstrings.py", '"""a"""\n' * 40_000)
    yield TemplateFile("calls_of_calls.py", "f(a=1)\n" * 40_000)
