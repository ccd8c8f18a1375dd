"""Generated configuration files: what is read is what the language's reader gives, and an edit changes only that."""

from __future__ import annotations

import ast
import io
import json
import tomllib
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from runbook.model.template import Edit, ParameterNames, Patch, SettingKind, TemplateFile
from runbook.template import CannotEdit, all_settings, apply, find_settings, invert
from tests.template.unmoved import outside_the_splices_nothing_moved

KEYS = ("micro", "lr", "opt", "stage", "name_x", "n")
SCALARS: tuple[Any, ...] = (1, 16, 0.5, True, False, "text", "a b", "it's", 'q"x', "12", "true", "", "x: y", "#5", "é")
NEW = (
    "2", "0.25", "true", "false", "word", "two words", "it's \"q\"", "expandable_segments:True", "a#b", "[1, 2]",
    "x: y",
)
"""What is wanted; the last four need quotes in one language or another."""

scalars = st.sampled_from(SCALARS)
trees = st.recursive(
    st.dictionaries(st.sampled_from(KEYS), scalars, min_size=1, max_size=4),
    lambda inner: st.dictionaries(st.sampled_from(KEYS), st.one_of(scalars, inner), min_size=1, max_size=4),
    max_leaves=12,
)
Tree = dict[str, Any]


def leaves(tree: Tree, path: tuple[str, ...] = ()) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            found.update(leaves(value, (*path, key)))
        else:
            found[".".join((*path, key))] = value
    return found


def with_value(tree: Tree, path: str, value: Any) -> Tree:
    key, _, rest = path.partition(".")
    inner = with_value(tree.get(key, {}), rest, value) if rest else value
    return {**tree, key: inner}


def shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def meant(text: str, old: Any) -> Any:
    """The value that a wanted text stands for: a text that was quoted though it reads as another type stays one."""
    if text in ("true", "false") and not (isinstance(old, str) and old in ("12", "true")):
        return text == "true"
    if text[0] == "[":
        return [1, 2]
    if text[0].isdigit() and not (isinstance(old, str) and old in ("12", "true")):
        return float(text) if "." in text else int(text)
    return text


def _yaml_scalar(draw: st.DrawFn, value: Any, flow: bool) -> str:
    if not isinstance(value, str):
        return str(value) if draw(st.booleans()) else json.dumps(value)
    forms = [json.dumps(value, ensure_ascii=False), "'" + value.replace("'", "''") + "'"]
    if value in ("text", "a b", "é"):
        forms.append(value)
    return draw(st.sampled_from(forms))


def _yaml(draw: st.DrawFn, tree: Tree, indent: int, unit: int) -> list[str]:
    lines: list[str] = []
    for key, value in tree.items():
        for remark in draw(st.lists(st.sampled_from(("", "# micro: 99", "#")), max_size=1)):
            lines.append(" " * indent + remark if remark else "")
        front = " " * indent + draw(st.sampled_from((key, key, f'"{key}"'))) + ":"
        tail = draw(st.sampled_from(("", "", "  # why: 7")))
        if isinstance(value, dict):
            if draw(st.booleans()):
                lines.append(f"{front} {_flow(draw, value)}{tail}")
            else:
                lines += [f"{front}{tail}", *_yaml(draw, value, indent + unit, unit)]
        else:
            lines.append(f"{front} {_yaml_scalar(draw, value, False)}{tail}")
    return lines


def _flow(draw: st.DrawFn, tree: Tree) -> str:
    parts = [
        f"{key}: {_flow(draw, value) if isinstance(value, dict) else _yaml_scalar(draw, value, True)}"
        for key, value in tree.items()
    ]
    return "{" + ", ".join(parts) + draw(st.sampled_from(("", ","))) + "}"


def _toml(draw: st.DrawFn, tree: Tree, path: tuple[str, ...]) -> list[str]:
    plain = {key: value for key, value in tree.items() if not isinstance(value, dict)}
    tables = {key: value for key, value in tree.items() if isinstance(value, dict)}
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}{draw(st.sampled_from(('', '  # x = 1')))}"
             for key, value in plain.items()]
    if path:
        lines = [f"[{'.'.join(path)}]", *lines]
    for key, value in tables.items():
        if bool(path) or draw(st.booleans()):
            lines += ["", *_toml(draw, value, (*path, key))]
        else:
            lines += [f"[{key}]", *_dotted(value, ())]
    return lines


def _dotted(tree: Tree, path: tuple[str, ...]) -> list[str]:
    return [f"{path_} = {json.dumps(value, ensure_ascii=False)}" for path_, value in leaves(tree).items()]


def _python(draw: st.DrawFn, value: Any, depth: int) -> str:
    if not isinstance(value, dict):
        return repr(value)
    keyword = draw(st.booleans())
    items = [f"{key}={_python(draw, item, depth + 1)}" if keyword else f"{key!r}: {_python(draw, item, depth + 1)}"
             for key, item in value.items()]
    opening, closing = ("dict(", ")") if keyword else ("{", "}")
    if draw(st.booleans()):
        return f"{opening}{', '.join(items)}{closing}"
    indent = "    " * (depth + 1)
    return f"{opening}\n" + "".join(f"{indent}{item},  # micro=9\n" for item in items) + "    " * depth + closing


@st.composite
def documents(draw: st.DrawFn) -> tuple[TemplateFile, Tree]:
    tree = draw(trees)
    language = draw(st.sampled_from(("yaml", "json", "toml", "py")))
    if language == "yaml":
        text = "\n".join(_yaml(draw, tree, 0, draw(st.sampled_from((2, 4))))) + "\n"
    elif language == "json":
        text = json.dumps(tree, indent=draw(st.sampled_from((None, 2, "\t"))), ensure_ascii=draw(st.booleans())) + "\n"
    elif language == "toml":
        text = "\n".join(_toml(draw, tree, ())) + "\n"
    else:
        text = "import os\nC = " + _python(draw, tree, 0) + "\n"
    if language != "py" and draw(st.booleans()):
        text = text.replace("\n", "\r\n")
    if draw(st.booleans()):
        text = text.removesuffix("\n").removesuffix("\r")
    return TemplateFile(f"config.{language}", text), tree


def real(file: TemplateFile) -> Tree:
    """What the language's own reader makes of the file."""
    if file.path.endswith(".json"):
        found = json.loads(file.text)
    elif file.path.endswith(".toml"):
        found = tomllib.loads(file.text)
    elif file.path.endswith(".py"):
        body = ast.parse(file.text).body[1]
        assert isinstance(body, ast.Assign)
        found = _evaluated(body.value)
    else:
        found = YAML(typ="safe", pure=True).load(io.StringIO(file.text))
    assert isinstance(found, dict)
    return found


def _evaluated(node: ast.expr) -> Any:
    if isinstance(node, ast.Call):
        return {str(item.arg): _evaluated(item.value) for item in node.keywords}
    if isinstance(node, ast.Dict):
        return {ast.literal_eval(key): _evaluated(value) for key, value in zip(node.keys, node.values) if key}
    return ast.literal_eval(node)


def edit_of(path: str, new: str | None, old: str | None = None) -> Edit:
    return Edit(path, SettingKind.KEY, (path,), new, old)


def key(file: TemplateFile, path: str) -> str:
    return f"C.{path}" if file.path.endswith(".py") else path


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(documents())
def test_what_is_read_is_what_the_language_reads(document: tuple[TemplateFile, Tree]) -> None:
    file, tree = document
    assert real(file) == tree
    expected = leaves(tree)
    names = [ParameterNames(path, SettingKind.KEY, (key(file, path),)) for path in expected]
    found = {item.parameter: item.value for item in find_settings(file, names)}
    if file.path.endswith(".py"):  # by the end of its path: a deeper key of the same name makes it ambiguous
        found = {path: value if value is not None else shown(expected[path]) for path, value in found.items()}
    assert found == {path: shown(value) for path, value in expected.items()}


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(documents(), st.data())
def test_changing_undoing_and_doing_it_again(document: tuple[TemplateFile, Tree], data: st.DataObject) -> None:
    file, tree = document
    expected = leaves(tree)
    paths = data.draw(st.lists(st.sampled_from(sorted(expected)), min_size=1, max_size=3, unique=True))
    wanted = {path: data.draw(st.sampled_from(NEW)) for path in paths}
    edits = [edit_of(key(file, path), new, shown(expected[path])) for path, new in wanted.items()]
    try:
        patch = apply((file,), edits)
    except CannotEdit as refusal:
        assert file.path.endswith(".py") and "ambiguous" in refusal.what, refusal.what
        return
    after = tree
    for path, new in wanted.items():
        after = with_value(after, path, meant(new, expected[path]))
    assert real(patch.files[0]) == after
    _kept(file, patch, [edit_of(item.parameter, item.new) for item in edits])


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(documents(), st.lists(st.sampled_from(KEYS), min_size=1, max_size=3), st.sampled_from(NEW))
def test_adding_a_key(document: tuple[TemplateFile, Tree], parts: list[str], new: str) -> None:
    file, tree = document
    path = ".".join((*parts[:-1], f"further_{parts[-1]}"))
    try:
        patch = apply((file,), [edit_of(key(file, path), new)])
    except CannotEdit as refusal:
        reasons = (
            "the trail ends at", "could be added in several", "is no name", "certainly belongs", "after the change",
        )
        if file.path.endswith(".toml") and "would not be understood" in refusal.what:
            return  # a table's header where dotted keys made the table already, which TOML forbids: a person does it
        assert any(reason in refusal.what for reason in reasons), refusal.what
        below_a_value = any(".".join(parts[:size]) in leaves(tree) for size in range(1, len(parts)))
        assert below_a_value or file.path.endswith(".py"), refusal.what
        return
    assert real(patch.files[0]) == with_value(tree, path, meant(new, None))
    _kept(file, patch, [edit_of(key(file, path), new)])


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(documents(), st.data())
def test_taking_a_key_out(document: tuple[TemplateFile, Tree], data: st.DataObject) -> None:
    file, tree = document
    path = data.draw(st.sampled_from(sorted(leaves(tree))))
    try:
        patch = apply((file,), [edit_of(key(file, path), None)])
    except CannotEdit as refusal:
        reasons = ("line of its own", "comments stand beside", "ambiguous")
        assert any(reason in refusal.what for reason in reasons), refusal.what
        return
    assert leaves(real(patch.files[0])) == {name: value for name, value in leaves(tree).items() if name != path}
    _kept(file, patch, [edit_of(key(file, path), None)])


@settings(max_examples=150, deadline=None)
@given(
    st.text(alphabet=st.sampled_from("ab:-{}[],\"'#&*|>!?=.\n\t <~$()\r"), max_size=60),
    st.sampled_from(("yaml", "json", "toml", "py")), st.sampled_from(("a", "a.b")),
)
def test_no_text_breaks_the_reader(text: str, language: str, path: str) -> None:
    """Whatever the file is, the answer is a value, an unknown, a refusal or a change that can be undone."""
    file = TemplateFile(f"x.{language}", text)
    found = find_settings(file, [ParameterNames(path, SettingKind.KEY, (path,))])
    assert all((item.value is None) == bool(item.unresolved) for item in (*found, *all_settings((file,))))
    try:
        patch = apply((file,), [edit_of(path, "4")])
    except CannotEdit as refusal:
        assert refusal.what and refusal.where
        return
    assert invert(patch) == (file,)
    assert find_settings(patch.files[0], [ParameterNames(path, SettingKind.KEY, (path,))])[0].value == "4"


def _kept(file: TemplateFile, patch: Patch, edits: list[Edit]) -> None:
    """It can be undone, done again without effect, and every byte outside the splices stays."""
    assert invert(patch) == (file,)
    assert apply(patch.files, edits).diff == ""
    outside_the_splices_nothing_moved(file.text, patch)
    before, after = file.text.encode(), patch.files[0].text.encode()
    assert b"\r" not in before or before.count(b"\n") - before.count(b"\r\n") == 0
    if b"\r\n" in before:
        assert after.count(b"\n") == after.count(b"\r\n")
