"""Which files a job script names, and the script pointed at copies of them."""

from __future__ import annotations

import pytest

from runbook.model.template import Edit, SettingKind, SubmitContext, TemplateFile
from runbook.template import CannotEdit, apply, invert, named_files, point_to_copies, wire_copies


def script(*lines: str) -> TemplateFile:
    return TemplateFile("job.sh", "\n".join(["#!/bin/bash", *lines, ""]))


@pytest.mark.parametrize(
    ("line", "option", "path"),
    [
        ("python train.py --config x.yaml", "--config", "x.yaml"),
        ("torchrun --nnodes 2 train.py --job.config_file=./c/x.toml", "--job.config_file", "./c/x.toml"),
        ("deepspeed train.py --deepspeed ds.json --lr 1", "--deepspeed", "ds.json"),
        ("deepspeed train.py --deepspeed --deepspeed_config ds.json", "--deepspeed_config", "ds.json"),
        ("accelerate launch --config_file fsdp.yaml train.py --lr 1", "--config_file", "fsdp.yaml"),
        ("python train.py --config-path=/etc/conf --config-name ppo", "--config-name", "/etc/conf/ppo.yaml"),
        ("python -m verl.trainer.main_ppo --config-name='ppo_trainer' a.b=1", "--config-name", "ppo_trainer.yaml"),
        ("srun bash -c 'python train.py --config x.yaml'", "--config", "x.yaml"),
        ("trl sft recipe.yaml", "", "recipe.yaml"),
        ("python run_clm.py args.json", "", "args.json"),
        ("ray job submit --runtime-env=env.yaml -- python train.py", "--runtime-env", "env.yaml"),
    ],
)
def test_a_file_is_found_by_the_option_that_names_it(line: str, option: str, path: str) -> None:
    found = [item for item in named_files(script(line)) if not item.program]
    assert [(item.option, item.path, item.line, item.unresolved) for item in found] == [(option, path, 2, "")]


def test_what_is_no_configuration_is_not_named() -> None:
    lines = (
        "# python train.py --config old.yaml", "cp --config x.yaml /tmp", "echo --config x.yaml",
        "python train.py --data data.json --deepspeed --config gpt2 --out result.toml",
    )
    assert [item.path for item in named_files(script(*lines)) if not item.program] == []


def test_the_program_is_named_too() -> None:
    found = named_files(script("cd /proj", "python src/train.py"))
    (named,) = found
    assert (named.path, named.program) == ("src/train.py", True)
    assert named.folder is not None
    assert (named.folder.said, named.folder.path) == ("cd /proj at line 2", "/proj")


def test_variables_are_followed_and_what_is_computed_says_why() -> None:
    lines = ("C=conf", "python train.py --config ${C}/x.yaml")
    assert named_files(script(*lines))[0].path == "conf/x.yaml"
    computed = named_files(script("python train.py --config $(pick).yaml"))[0]
    assert computed.path is None and "$(pick)" in computed.unresolved
    given = script("python train.py --config $1")
    assert named_files(given)[0].path is None
    assert named_files(given, SubmitContext({}, ("x.yaml",)))[0].path == "x.yaml"


def test_a_file_given_only_sometimes_is_not_known() -> None:
    lines = ("ARGS=(--lr 1)", 'if [ -n "$X" ]; then ARGS+=(--config x.yaml); fi', 'python train.py "${ARGS[@]}"')
    found = named_files(script(*lines))[0]
    assert found.path is None and "only inside the `if` at line 3" in found.unresolved


def test_the_script_is_pointed_at_a_copy_and_back() -> None:
    file = script("C=x.yaml", "# --config x.yaml", 'python train.py --config "$C" --lr 1')
    patch = point_to_copies(file, {"x.yaml": "/incident/1/x.yaml"})
    assert patch.files[0].text == file.text.replace("C=x.yaml", "C=/incident/1/x.yaml")
    assert invert(patch) == (file,)
    assert named_files(patch.files[0])[0].path == "/incident/1/x.yaml"


def test_several_files_at_once() -> None:
    file = script("accelerate launch --config_file a.yaml train.py --deepspeed ds.json")
    patch = point_to_copies(file, {"a.yaml": "/c/a.yaml", "ds.json": "/c/ds.json", "train.py": "train.py"})
    assert patch.files[0].text.splitlines()[1] == (
        "accelerate launch --config_file /c/a.yaml train.py --deepspeed /c/ds.json"
    )


def test_edit_the_file_and_wire_its_copy() -> None:
    file = script("torchrun train.py --job.config_file conf/x.toml --metrics.log_freq 1")
    config = TemplateFile("conf/x.toml", "[training]\nlocal_batch_size = 8\n")
    edit = Edit("mbs", SettingKind.KEY, ("training.local_batch_size",), "4", "8")
    patch = apply((file, config), (edit,))
    assert [item.text == before.text for item, before in zip(patch.files, (file, config))] == [True, False]
    wired = point_to_copies(patch.files[0], {"conf/x.toml": "/incident/1/x.toml"})
    assert "--job.config_file /incident/1/x.toml --metrics" in wired.files[0].text


def test_hydra_takes_the_copy_by_another_name_from_a_further_folder() -> None:
    file = script("python -m verl.trainer.main_ppo --config-name ppo a.b=1")
    patch = point_to_copies(file, {"ppo.yaml": "/c/ppo-attempt-1.yaml"})
    line = patch.files[0].text.splitlines()[1]
    assert "--config-name ppo-attempt-1" in line and "--config-dir /c" in line and line.endswith("a.b=1")
    assert invert(patch) == (file,)


@pytest.mark.parametrize(
    ("lines", "copies", "reason"),
    [
        (("python train.py --config x.yaml",), {"y.yaml": "/c/y.yaml"}, "does not name y.yaml"),
        (("python train.py --lr 1",), {"train.py": "/c/train.py"}, "is the program"),
        (("python train.py --config-name x",), {"x.yaml": "/c/x.yaml"}, "has the name x of the original"),
        (("python train.py --config-name x -cd /d",), {"x.yaml": "/c/y.yaml"}, "--config-dir is given already"),
        (("python train.py --config-name x",), {"x.yaml": "c/y.yaml"}, "an absolute path"),
        (("python train.py --config x.yaml",), {"x.yaml": "/c/a b\n.yaml"}, "line end"),
    ],
)
def test_a_script_that_cannot_be_pointed_there(lines: tuple[str, ...], copies: dict[str, str], reason: str) -> None:
    with pytest.raises(CannotEdit) as caught:
        point_to_copies(script(*lines), copies)
    assert reason in caught.value.what


def test_a_file_that_is_no_script_names_nothing() -> None:
    assert named_files(TemplateFile("x.yaml", "config: y.yaml\n")) == ()
    assert named_files(TemplateFile("job.sh", "\0")) == ()


def job(**texts: str) -> tuple[TemplateFile, ...]:
    """A script and the files that it names; `_` in a name stands for its dot."""
    return tuple(
        TemplateFile(name.replace("_", "."), text) for name, text in texts.items()
    )


def test_the_copies_of_a_whole_job_name_each_other() -> None:
    files = job(
        job_sh="#!/bin/bash\nsrun bash train.sh --fast\n",
        train_sh="#!/bin/bash\n# --config t.yaml\npython train.py --config t.yaml\n",
        t_yaml="lr: 1\ndeepspeed: ds.json  # ds.json\n",
        ds_json='{"train_micro_batch_size_per_gpu": 8}',
    )
    named = [(item.path, item.script, item.program) for file in files for item in named_files(file)]
    assert named == [
        ("train.sh", True, False), ("t.yaml", False, False), ("train.py", False, True), ("ds.json", False, False)
    ]
    copies = {"train.sh": "/i/train.sh", "t.yaml": "/i/t.yaml", "ds.json": "/i/ds.json"}
    edited = apply(files, [Edit("k", SettingKind.KEY, ("train_micro_batch_size_per_gpu",), "4", "8")])
    wired = wire_copies(edited.files, copies)
    assert [file.text for file in wired.files] == [
        "#!/bin/bash\nsrun bash /i/train.sh --fast\n",
        "#!/bin/bash\n# --config t.yaml\npython train.py --config /i/t.yaml\n",
        "lr: 1\ndeepspeed: /i/ds.json  # ds.json\n",
        '{"train_micro_batch_size_per_gpu": 4}',
    ]
    assert invert(wired) == edited.files and invert(edited) == files


@pytest.mark.parametrize(
    ("copied", "texts", "reason"),
    [
        ("ds.json", {"t_yaml": "deepspeed: ds.json\n", "ds_json": "{}"}, "t.yaml names ds.json, so it has to change"),
        ("x.json", {"t_yaml": "lr: 1\n", "x_json": "{}"}, "none of the files names x.json"),
        ("t.yaml", {"t_yaml": "_base_: ../base.yaml\nlr: 1\n"}, "from the folder it lies in"),
        ("t.yaml", {"t_yaml": "# all\ndefaults:\n  # one\n  - base\nlr: 1\n"}, "from the folder it lies in"),
        ("t.yaml", {"t_yaml": "lr: 1\nmodel: !include model.yaml\n"}, "from the folder it lies in"),
        ("train.sh", {"train_sh": '#!/bin/bash\n# $0\ncd "$(dirname "$0")"\n'}, "from the folder it lies in"),
        ("env.sh", {"env_sh": "export X=1\n"}, "env.sh is sourced"),
    ],
)
def test_copies_that_cannot_be_wired_are_refused(copied: str, texts: dict[str, str], reason: str) -> None:
    text = "#!/bin/bash\nsource env.sh\nsrun bash train.sh\npython train.py --config t.yaml\n"
    with pytest.raises(CannotEdit) as caught:
        wire_copies(job(job_sh=text, **texts), {copied: f"/i/{copied}"})
    assert reason in caught.value.what and caught.value.next_step


@pytest.mark.parametrize("tie", ["defaults:\n  - base\n", "_base_: base.yaml\n", "extends: [./base.yaml]\n"])
def test_a_copy_beside_its_original_finds_the_same_files(tie: str) -> None:
    files = job(job_sh="#!/bin/bash\npython train.py --config conf/t.yaml\n", t_yaml=tie)
    wired = wire_copies((files[0], TemplateFile("conf/t.yaml", tie)), {"conf/t.yaml": "conf/runbook-t.yaml"})
    assert "--config conf/runbook-t.yaml" in wired.files[0].text


def test_a_key_that_is_only_called_base_ties_nothing() -> None:
    files = job(job_sh="#!/bin/bash\npython train.py --config t.yaml\n", t_yaml="base: 10\ndefaults: {lr: 1}\n")
    assert "/i/t.yaml" in wire_copies(files, {"t.yaml": "/i/t.yaml"}).files[0].text
