"""Generated job scripts: what is read is what bash gives, an edit touches nothing else, and can be taken back."""

from __future__ import annotations

import shlex
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runbook.model.template import Edit, ParameterNames, SettingKind, TemplateFile
from runbook.template import CannotEdit, all_settings, apply, find_settings, invert, named_files
from runbook.template.bash.syntax import parse
from tests.template import shell_run as shell
from tests.template.unmoved import outside_the_splices_nothing_moved

OPTIONS = ("--micro-batch-size", "--gradient-accumulation-steps", "--seq-length", "--save")
NAMES = tuple(ParameterNames(option.strip("-"), SettingKind.ARGUMENT, (option,)) for option in OPTIONS)


@dataclass(frozen=True)
class Written:
    """One option as it is written: the lines in front, and its words."""

    option: str
    value: str
    setup: str
    words: str


@st.composite
def written(draw: st.DrawFn, option: str) -> Written:
    value = draw(st.sampled_from(("1", "8", "4096", "/ckpt/a-b_c", "/with blank/x", "a'b", 'q"$x')))
    joint = draw(st.sampled_from((" ", "=", "  ")))
    form = draw(st.sampled_from(("literal", "single", "variable", "default", "exported", "two uses")))
    name = option.strip("-").replace("-", "_").upper()
    quoted = shlex.quote(value)
    if form == "literal":
        return Written(option, value, "", f"{option}{joint}{quoted}")
    if form == "single" and "'" not in value:
        return Written(option, value, "", f"{option}{joint}'{value}'")
    expansion = draw(st.sampled_from((f'"${name}"', f'"${{{name}}}"')))
    if form == "default" and "'" not in value and '"' not in value:
        setup = f'{name}="${{{name}:-{value}}}"\n'
    elif form == "exported":
        setup = f"export {name}={quoted}\n"
    elif form == "two uses":
        setup = f"{name}={quoted}\nOTHER_{name}=${name}/x\n"
    else:
        setup = f"{name}={quoted}\n"
    return Written(option, value, setup, f"{option}{joint}{expansion}")


@st.composite
def scripts(draw: st.DrawFn) -> tuple[str, dict[str, str]]:
    chosen = draw(st.lists(st.sampled_from(OPTIONS), min_size=1, max_size=4, unique=True))
    options = [draw(written(option)) for option in chosen]
    noise = st.sampled_from(
        ("", "# --micro-batch-size 3\n", 'echo "--seq-length 77 $HOME"\n', "cat <<EOF\n--save nowhere\nEOF\n",
         "export OMP_NUM_THREADS=4\n", "UNUSED=( --save elsewhere )\n", "if true; then\n  cd .\nfi\n")
    )
    text = "#!/bin/bash\n" + draw(st.sampled_from(("", "#SBATCH -N 2\n", "#SBATCH --job-name=ä\n#SBATCH -n 4\n")))
    for item in options:
        text += draw(noise) + item.setup
    shape = draw(st.sampled_from(("array", "long array", "command", "long command", "two arrays")))
    words = [item.words for item in options]
    if shape == "array":
        text += f"ARGS=( {' '.join(words)} )\nsrun python train.py \"${{ARGS[@]}}\"\n"
    elif shape == "long array":
        remark = draw(st.sampled_from(("", "   # é why", "\n  # --seq-length 5")))
        text += "ARGS=(\n" + "".join(f"    {word}{remark}\n" for word in words) + ")\n"
        text += 'srun torchrun --nnodes 2 train.py "${ARGS[@]}" "$@" | cat\n'
    elif shape == "two arrays":
        text += f"A=({words[0]})\nA+=( {' '.join(words[1:])} )\nsrun python train.py \"${{A[@]}}\"\n"
    elif shape == "command":
        text += f"srun --label python -u train.py {' '.join(words)}\n"
    else:
        text += "srun python train.py" + "".join(f" \\\n  {word}" for word in words) + draw(
            st.sampled_from(("\n", " 2>&1 | cat\n", " &\nwait\n"))
        )
    return text, {item.option: item.value for item in options}


NEW = st.sampled_from(("2", "16", "/ckpt/new", "expandable_segments:True,a:1"))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scripts(), st.data())
def test_reading_changing_and_undoing(script: tuple[str, dict[str, str]], data: st.DataObject) -> None:
    text, expected = script
    file = TemplateFile("job.sh", text)
    found = {item.spelling: item for item in find_settings(file, NAMES)}
    assert {option: item.value for option, item in found.items() if not item.unresolved} == expected
    listed = {item.spelling: item.value for item in all_settings((file,)) if item.kind is SettingKind.ARGUMENT}
    assert {option: listed[option] for option in expected} == expected
    changed = data.draw(st.lists(st.sampled_from(sorted(expected)), min_size=1, unique=True))
    new = {option: data.draw(NEW) for option in changed}
    edits = [
        Edit(option.strip("-"), SettingKind.ARGUMENT, (option,), value, expected[option])
        for option, value in new.items()
    ]
    patch = apply((file,), edits, names=NAMES)
    after = {item.spelling: item.value for item in find_settings(patch.files[0], NAMES) if not item.unresolved}
    assert after == {**expected, **new}
    assert invert(patch) == (file,)
    assert not parse(patch.files[0].text.encode()).has_error
    fresh = [Edit(edit.parameter, edit.kind, edit.spellings, edit.new) for edit in edits]
    assert apply(patch.files, fresh, names=NAMES).diff == ""
    outside_the_splices_nothing_moved(text, patch)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scripts(), st.sampled_from(OPTIONS), NEW)
def test_bash_gives_the_program_what_was_wanted(script: tuple[str, dict[str, str]], option: str, new: str) -> None:
    """Set or add one option, run the script, and look at the program's own arguments."""
    text, expected = script
    file = TemplateFile("job.sh", text)
    edit = Edit(option.strip("-"), SettingKind.ARGUMENT, (option,), new)
    try:
        patch = apply((file,), [edit], names=NAMES)
    except CannotEdit as refusal:
        assert option not in expected, refusal
        assert "stands at line" in refusal.what  # a dead array that mentions it: absent for certain cannot be said
        return
    with tempfile.TemporaryDirectory() as folder:
        started = shell.run_script(patch.files[0].text, Path(folder))
    assert len(started) == 1
    wanted = {**expected, option: new}
    assert {name: started[0].value((name,)) for name in OPTIONS} == {name: wanted.get(name) for name in OPTIONS}


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet=st.sampled_from("ab$\"'`\\ \n(){}[]#<>|&;=-:!*?@\t"), max_size=60), st.booleans())
def test_no_text_breaks_the_reader(tail: str, in_front: bool) -> None:
    """Whatever stands around the command, the answer is a value, an unknown or a refusal, never a crash."""
    command = "srun python train.py --micro-batch-size 8 --save /a\n"
    file = TemplateFile("job.sh", "#!/bin/bash\n" + (tail + "\n" + command if in_front else command + tail))
    find_settings(file, NAMES)
    assert all((item.value is None) == bool(item.unresolved) for item in all_settings((file,)))
    named_files(file)
    edit = Edit("micro-batch-size", SettingKind.ARGUMENT, ("--micro-batch-size",), "4")
    try:
        patch = apply((file,), [edit], names=NAMES)
    except CannotEdit as refusal:
        assert refusal.what and refusal.where and refusal.next_step
        return
    assert invert(patch) == (file,)
