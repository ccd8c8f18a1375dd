"""Job scripts with the settings found in them, and edits with the text that comes out or the refusal."""

from __future__ import annotations

import re

import pytest

from runbook.model.template import Edit, Setting
from runbook.template import CannotEdit, apply, find_settings, invert
from tests.template.template_cases import ALL, NAMES, Case, with_part


@pytest.mark.parametrize("case", with_part("settings"))
def test_the_value_in_force_or_where_the_trail_ended(case: Case) -> None:
    found: dict[str, Setting] = {item.parameter: item for item in find_settings(case.file, NAMES, case.known)}
    for line in case.parts["settings"].splitlines():
        parameter, sign, rest = re.fullmatch(r"(\w+) ([=?!]) ?(.*)", line).groups()  # type: ignore[union-attr]
        if sign == "!":
            assert parameter not in found
            continue
        assert parameter in found, f"{parameter} was not found"
        setting = found[parameter]
        if sign == "=":
            value, _, at = rest.rpartition(" @ ")
            assert (setting.value, setting.line, setting.unresolved) == (value, int(at), None)
        else:
            assert setting.value is None
            assert rest in str(setting.unresolved)


@pytest.mark.parametrize("case", [*with_part("diff"), *with_part("text")])
def test_an_edit_changes_exactly_the_lines_of_the_case(case: Case) -> None:
    names = () if "without names" in case.parts else NAMES
    patch = apply((case.file,), case.edits, names=names, known=case.known)
    if "text" in case.parts:
        assert patch.files[0].text == case.parts["text"].replace("␍", "\r")
    else:
        changed = [line for line in patch.diff.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
        assert "\n".join(changed) == case.parts["diff"]
    assert invert(patch) == (case.file,)
    again = apply(patch.files, [_as_wanted(edit) for edit in case.edits], names=names, known=case.known)
    assert (again.splices, again.diff, again.files) == ((), "", patch.files)
    if "note" in case.parts:
        assert any(case.parts["note"] in note for note in patch.notes), patch.notes


@pytest.mark.parametrize("case", with_part("refused"))
def test_a_refusal_says_what_where_and_what_next(case: Case) -> None:
    with pytest.raises(CannotEdit) as caught:
        apply((case.file,), case.edits, names=NAMES, known=case.known)
    assert case.parts["refused"], "the case must say what the refusal is about"
    for wanted in case.parts["refused"].splitlines():
        assert wanted in f"{caught.value.what} {caught.value.where}"
    assert caught.value.what and caught.value.where and caught.value.next_step


def test_every_case_checks_something() -> None:
    assert len(ALL) >= 40
    assert not [case.title for case in ALL if not {"settings", "diff", "text", "refused"} & set(case.parts)]


def _as_wanted(edit: Edit) -> Edit:
    return Edit(edit.parameter, edit.kind, edit.spellings, edit.new, None, edit.flag)
