"""Lever documents: what is wrong with one is said at once; allocator settings and versions are read exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbook.documents import DocumentsInvalid
from runbook.locations import data_folder
from runbook.model.log import Phase
from runbook.model.remedy import Effect
from runbook.model.template import Setting, SettingKind
from runbook.remedy import LeverDocument, Refused, largest_divisor, load_levers, read_versions
from runbook.remedy.edits.allocator_variable import merge, read_options, write_options
from tests.kinds import Kind

FOLDER = data_folder("playbooks") / "oom" / "levers"


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("function: halve, parameter: micro", "function: shrink, parameter: micro", "no function 'shrink'"),
        ("function: halve, parameter: seq_length", "function: halve, parameter: length", "no parameter 'length'"),
        ("constraint: checkpoint_reshardable", "constraint: lucky", "no constraint 'lucky'"),
        ("levers: [more_sharding]\n", "levers: [much_sharding]\n", "no lever 'much_sharding'"),
        ("levers: [expandable_segments, cap_splitting, ", "levers: [expandable_segments, ", "stands on no ladder"),
        ("effect: training", "effect: whatever", "effect"),
        ("fallback: true", "fallbak: true", "unknown key"),
        ("- {pattern: '\\btorchrun\\b'}", "- {pattern: '(torchrun'}", "not a regular expression"),
        ("  micro: micro_batch_size", "  micro: batch", "no parameter 'batch'"),
        ("spellings: [--save]", "spellings: [--load]", "--load belongs to two parameters"),
        ("spellings: [--save]", "spellings: [{name: --save, since: '9.9'}]", "no version '9.9'"),
        ("spellings: [--save]", "until: ['9.9']\n    spellings: [--save]", "no version '9.9'"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, old: str, new: str, wanted: str) -> None:
    text = (FOLDER / "pytorch.yaml").read_text(encoding="utf-8")
    assert text.count(old) >= 1, "the document changed; so must this test"
    (tmp_path / "pytorch.yaml").write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(DocumentsInvalid) as caught:
        load_levers(tmp_path)
    assert wanted in str(caught.value)


def test_two_documents_of_one_id(tmp_path: Path) -> None:
    text = (FOLDER / "pytorch.yaml").read_text(encoding="utf-8")
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(DocumentsInvalid, match="id of two documents"):
        load_levers(tmp_path)


@pytest.mark.parametrize("document", load_levers(FOLDER), ids=lambda item: item.id)
def test_what_changes_the_experiment_comes_last(document: LeverDocument) -> None:
    for ladder in document.ladders:
        effects = [document.lever(name).effect is Effect.TRAINING for name in ladder.levers]
        assert effects == sorted(effects), f"{document.id}: {ladder.id}"
    for phase in Phase:
        assert document.ladder(Kind.TRUE_OOM, phase) is not None
        assert document.ladder(Kind.FRAGMENTATION, phase) is not None


@pytest.mark.parametrize("document", load_levers(FOLDER), ids=lambda item: item.id)
def test_no_batch_is_changed_for_what_a_load_takes(document: LeverDocument) -> None:
    for role in {"", *(cue.role for cue in document.cues)}:
        ladder = document.ladder(Kind.TRUE_OOM, Phase.RESUME, role)
        assert ladder is not None and ladder.question
        relieved = {what for name in ladder.levers for what in document.lever(name).relieves}
        assert not relieved & {"activations", "logits"}, (ladder.id, role)


RELEASES: list[dict[str, Any]] = [
    {"id": "lib-3", "series": "lib"}, {"id": "lib-2", "series": "lib"}, {"id": "2.0"}, {"id": "1.1"},
    {"id": "1.0", "defaults_known": False},
]
SPELT: list[tuple[dict[str, Any], list[str | None]]] = [
    ({"spellings": ["a"]}, ["a", "a", "a", "a", "a"]),
    ({"spellings": [{"name": "a", "since": "1.1"}]}, [None, None, "a", "a", None]),
    ({"spellings": [{"name": "a", "since": "2.0"}, {"name": "b", "until": "1.1"}]}, [None, None, "a", "b", "b"]),
    ({"spellings": [{"name": "a", "since": ["2.0", "lib-3"]}, "b"]}, ["a", None, "a", None, None]),
    ({"spellings": ["a", "b"], "since": ["lib-2", "1.1"]}, ["a", "a", "a", "a", None]),
    ({"spellings": ["a"], "since": "1.1", "until": "1.1"}, [None, None, None, "a", None]),
]


def system(parameter: dict[str, Any]) -> LeverDocument:
    return LeverDocument.model_validate({
        "version": 1, "id": "toy", "title": "toy", "why": "for tests", "source": "here", "marks": [{"pattern": "toy"}],
        "versions": [{"title": "", "source": "here", **item} for item in RELEASES],
        "parameters": [{"id": "one", "source": "here", **parameter}],
        "levers": [], "ladders": [], "checkpoint": {"source": "here"},
    })


@pytest.mark.parametrize(("parameter", "spelt"), SPELT)
def test_how_each_release_spells_a_parameter(parameter: dict[str, Any], spelt: list[str | None]) -> None:
    document = system(parameter)
    assert [document.spelt_in(document.parameters[0], item) for item in document.versions] == spelt


def test_what_each_release_takes_where_nothing_is_set() -> None:
    document = system({"spellings": ["a"], "default": "1", "defaults": [{"value": "2", "since": "lib-3"}]})
    (parameter,) = document.parameters
    assert [document.default_in(parameter, item) for item in document.versions] == ["2", "1", "1", "1", None]
    assert document.default_among(parameter, document.versions[1:4]) == "1"
    assert document.default_among(parameter, document.versions) is None


def test_a_spelling_of_some_releases_tells_which_these_are() -> None:
    document = system(SPELT[2][0])

    def told(spelling: str) -> list[str]:
        return [item.id for item in document.versions_with(Setting("one", SettingKind.KEY, spelling, "4"))]

    assert told("a") == ["2.0"]
    assert told("++b") == ["1.1", "1.0"]
    assert len(told("c")) == len(RELEASES)


@pytest.mark.parametrize(
    ("text", "lowest", "highest"),
    [
        ("2.6.0", (2, 6), (2, 6)), ("2.4-2.13", (2, 4), (2, 13)), ("<2.1", None, (2, 0)), (">=2.4", (2, 4), None),
        ("2.10.0a0+git12", (2, 10), (2, 10)), ("2.4+", (2, 4), None), ("", None, None), ("nightly", None, None),
    ],
)
def test_versions(text: str, lowest: tuple[int, int] | None, highest: tuple[int, int] | None) -> None:
    found = read_versions(text)
    assert (found.lowest, found.highest) == (lowest, highest)
    assert not (found.surely_below((2, 10)) and found.surely_at_least((2, 10)))


_KEYS = st.sampled_from(("max_split_size_mb", "backend", "roundup_power2_divisions", "pinned_use", "a"))
_VALUES = st.sampled_from(("True", "128", "[256:1,512:2,>:4]", "native", "0.8"))


@given(st.dictionaries(_KEYS, _VALUES), _KEYS, _VALUES)
def test_merging_keeps_what_is_there(options: dict[str, str], key: str, value: str) -> None:
    text = write_options(tuple(options.items()))
    read = read_options(text)
    assert dict(read) == options
    assert dict(merge(read, {key: value})) == {**options, key: value}
    assert [item for item, _ in merge(read, {key: value}) if item != key] == [item for item in options if item != key]


@pytest.mark.parametrize("text", ["a", "a:", ":b", "a:[1,2", "a:1,a:2", "a:1,,b"])
def test_an_allocator_setting_that_is_not_understood(text: str) -> None:
    with pytest.raises(Refused):
        read_options(text)


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_largest_divisor(number: int, at_most: int) -> None:
    found = largest_divisor(number, at_most)
    assert number % found == 0 and found <= at_most
    assert not any(number % candidate == 0 for candidate in range(found + 1, at_most + 1))
