"""Every signature proves itself: by lines that it must match with their fields, and by near misses."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from runbook.documents import DocumentsInvalid
from runbook.locations import data_folder
from runbook.logs.signatures import MEMORY_FIELDS, OTHER_FIELDS, SENTINEL_BYTES, Match, Signature, load_signatures
from runbook.logs.signatures.signature_document import SampleEntry, load_samples
from runbook.model.log import ProcessUse

FOLDER = data_folder("playbooks") / "oom" / "signatures"
SIGNATURES = load_signatures(FOLDER)
SAMPLES = load_samples(FOLDER)


def shown(match: Match) -> dict[str, object]:
    """Captured values in the shape of a sample document."""
    values: dict[str, object] = {}
    for name, value in match.values.items():
        if isinstance(value, tuple):
            values[name] = [(one.pid, one.bytes) if isinstance(one, ProcessUse) else one for one in value]
        else:
            values[name] = round(value, 6) if isinstance(value, float) else value
    if match.rounding_bytes:
        values["rounding_bytes"] = round(match.rounding_bytes)
    return values


def holds_literal(signature: Signature, line: str) -> bool:
    return any(literal in line for literal in signature.literals)


def read(signature: Signature, line: str) -> Match | None:
    """What a signature reads of a line; a general one as the reader does, behind all others that match."""
    if not signature.general or signature in SIGNATURES.last_words:
        return signature.match(line)
    match = SIGNATURES.first_match(line, [one for one in SIGNATURES.events if holds_literal(one, line)])
    return match if match is not None and match.signature is signature else None


@pytest.mark.parametrize("entry", SAMPLES, ids=lambda entry: entry.id)
def test_a_signature_matches_its_samples_and_no_near_miss(entry: SampleEntry) -> None:
    signature = SIGNATURES.by_id[entry.id]
    for sample in entry.samples:
        of_any_line = signature.of or signature in SIGNATURES.last_words
        assert of_any_line or holds_literal(signature, sample.line), f"no literal of {entry.id} in {sample.line!r}"
        match = read(signature, sample.line)
        assert match is not None, f"{entry.id} does not match {sample.line!r}"
        assert shown(match) == sample.fields, sample.line
    for line in entry.near_misses:
        assert read(signature, line) is None, f"{entry.id} matches its near miss {line!r}"


@pytest.mark.parametrize("entry", SAMPLES, ids=lambda entry: entry.id)
def test_a_line_belongs_to_one_signature(entry: SampleEntry) -> None:
    own = SIGNATURES.by_id[entry.id]
    for sample in entry.samples:
        others = {
            other.id
            for other in SIGNATURES.all
            if other.id != own.id and not other.fallback
            and holds_literal(other, sample.line) and other.match(sample.line)
        }
        if own.means == "framing":
            # One start-up line may tell the version and the world size.
            others = {name for name in others if SIGNATURES.by_id[name].means != "framing"}
        assert not others, f"{sample.line!r} of {own.id} also belongs to {sorted(others)}"


def test_every_signature_has_samples_and_every_sample_a_signature() -> None:
    assert {entry.id for entry in SAMPLES} == set(SIGNATURES.by_id)


@pytest.mark.parametrize("signature", SIGNATURES.all, ids=lambda signature: signature.id)
def test_named_groups_are_fields_that_a_reader_knows(signature: Signature) -> None:
    names = {group.split("__")[0] for group in signature.pattern.groupindex}
    assert names <= MEMORY_FIELDS | OTHER_FIELDS


@pytest.mark.parametrize("signature", SIGNATURES.all, ids=lambda signature: signature.id)
def test_a_hostile_line_costs_linear_time(signature: Signature) -> None:
    """Lines of 16 KiB made of the pattern's own words and of digits: the worst that a cut line can hold."""
    literals = SIGNATURES.by_id[signature.of].literals if signature.of else ("ERROR", "failed to", "ASSERT(")
    literal = (signature.literals or literals)[0]
    hostile = [
        (literal + " 1") * (16_000 // (len(literal) + 2)),
        literal + " " + "1" * 16_000,
        literal + " (" * 8_000,
        (literal + ". Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 1.00 GiB of which 1.00 GiB is free. ")
        + "Process 1 has 1.00 GiB memory in use. " * 400,
        literal + " Rank 1] step:1 - iteration 1" * 500,
    ]
    for line in hostile:
        started = time.process_time()
        signature.match(line[:16_384])
        assert time.process_time() - started < 0.5, f"{signature.id} is slow on {line[:60]!r}…"


def test_rounding_follows_the_print_format() -> None:
    match = SIGNATURES.by_id["PT-CUDA-07"].match(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of "
        "79.15 GiB of which 512 bytes is free. Of the allocated memory 47.00 GiB is allocated by PyTorch, and 149.10 "
        "MiB is reserved by PyTorch but unallocated."
    )
    assert match is not None
    half_gib, half_mib = 0.005 * (1 << 30), 0.005 * (1 << 20)
    assert match.memory_fields().rounding_bytes == round(2 * half_gib + 2 * half_mib)
    assert match.memory_fields().free_bytes == 512


def test_nvml_sentinel_is_no_size() -> None:
    match = SIGNATURES.by_id["PT-CUDA-08"].match(
        "CUDA out of memory. Tried to allocate 18.63 GiB. GPU 0 has a total capacity of 45.00 GiB of which 43.66 GiB "
        "is free. Process 1459 has 17179869184.00 GiB memory in use. 2.25 GiB allowed; Of the allocated memory 0 bytes "
        "is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated."
    )
    assert match is not None
    fields = match.memory_fields()
    assert fields.other_processes == (ProcessUse(1459, None),)
    assert fields.allocated_bytes == 0
    figures = (fields.tried_bytes, fields.capacity_bytes, fields.free_bytes, fields.limit_bytes)
    assert all(figure is not None and figure < SENTINEL_BYTES for figure in figures)


GOOD = """
version: 1
id: own
title: Own
why: Because.
source: here
signatures:
  - id: OWN-01
    title: One
    why: Because.
    source: here
    literal: special words
    pattern: 'special words: <tried_bytes:size>'
    means: true_oom
"""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("literal: special words", "literal: short"), "fewer than 6 characters"),
        (("means: true_oom", "means: oom"), "means"),
        (("<tried_bytes:size>", "<tried:size>"), "unknown field 'tried'"),
        (("<tried_bytes:size>", "<tried_bytes:parsecs>"), "unknown unit 'parsecs'"),
        (("<tried_bytes:size>", "<@nowhere>"), "no part named 'nowhere'"),
        (("    means: true_oom", "    means: true_oom\n    colour: red"), "colour"),
        (("id: OWN-01", "id: own one"), "signatures.0.id"),
    ],
)
def test_a_faulty_document_is_refused_with_its_place(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    (tmp_path / "own.yaml").write_text(GOOD.replace(*change))
    with pytest.raises(DocumentsInvalid) as caught:
        load_signatures(tmp_path)
    assert said in str(caught.value)
    assert "own.yaml" in str(caught.value)


def test_a_site_adds_a_signature_by_adding_a_file(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(GOOD)
    match = load_signatures(tmp_path).by_id["OWN-01"].match("special words: 1.50 GiB")
    assert match is not None
    assert match.memory_fields().tried_bytes == 3 << 29


def test_two_files_may_not_use_one_id(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(GOOD)
    (tmp_path / "two.yaml").write_text(GOOD)
    with pytest.raises(DocumentsInvalid, match=r"already used in one\.yaml"):
        load_signatures(tmp_path)
