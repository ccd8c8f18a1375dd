"""What is served as JSON: the stored document without its secrets, and without any other change."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from runbook.errors import BadInput
from runbook.model.incident import Incident
from runbook.model.units import GIB
from runbook.report.html import render_html
from runbook.report.json_documents import dump_incident, load_incident
from runbook.report.text.incident_text import render_text
from runbook.report.vocabulary.clean import masked_document
from tests.report.sample_incidents import FLOW, JOB, SAMPLES, hostile, recovered

SECRET = "q7w8e9r0t1y2u3i4"
# Put together here so that no scanner of repositories takes it for real.
TOKEN = "hf_" + "abcdefGHIJKLmnopqrSTUVWX01234567"


def with_secrets() -> Incident:
    """A script, a submit line, a diff, an argument and a log that hold secrets, as they do."""
    first = recovered()
    assert first.failure is not None
    assert first.patch is not None
    export = f"export SITE_TOKEN={SECRET}\n"
    patch = replace(
        first.patch,
        diff=f"--- train.sh\n+++ train.sh\n@@ -1,2 +1,2 @@\n {export}-run --a 4\n+run --a 2 --hf-token {TOKEN}\n",
        files=tuple(replace(file, text=export + file.text) for file in first.patch.files),
    )
    submit = ("sbatch", f"--export=ALL,SITE_TOKEN={SECRET}", "train.sh", "--password", SECRET)
    job = replace(JOB, submit_line=f"sbatch --export=ALL,SITE_TOKEN={SECRET} train.sh", comment=f"token={TOKEN}")
    return replace(
        first,
        failure=replace(first.failure, job=job),
        patch=patch,
        attempts=tuple(replace(attempt, patch=patch, submit_command=submit) for attempt in first.attempts),
        templates=patch.files,
        notes=(f"the job's environment had WANDB_API_KEY={SECRET}",),
    )


def test_no_secret_of_script_submit_line_diff_or_log_is_shown_anywhere() -> None:
    incident = with_secrets()
    document = dump_incident(incident, {"version": 1, "excerpt": f"--api-key {SECRET}"})
    assert SECRET in document.decode()
    shown = {
        "document": masked_document(document).decode(),
        "page": render_html(incident, FLOW, json.loads(document)["contract"]),
        "text": render_text(incident),
    }
    for text in shown.values():
        assert SECRET not in text
        assert TOKEN not in text
        assert "***" in text


def test_an_option_is_masked_where_its_value_is_the_next_word() -> None:
    served = json.loads(masked_document(dump_incident(with_secrets())))
    assert served["attempts"][0]["submit_command"][-2:] == ["--password", "***"]


@pytest.mark.parametrize("name", sorted(SAMPLES.keys() - {"hostile"}))
def test_without_secrets_the_document_says_the_same(name: str) -> None:
    document = dump_incident(SAMPLES[name](), {"version": 1, "capacity_bytes": 79 * GIB})
    assert json.loads(masked_document(document)) == json.loads(document)


def test_a_masked_document_is_an_incident_still() -> None:
    assert load_incident(masked_document(dump_incident(with_secrets()))).id == with_secrets().id


def test_a_log_line_without_end_is_cut_and_says_so() -> None:
    served = json.loads(masked_document(dump_incident(hostile())))
    assert served["failure"]["story"]["root_cause"]["excerpt"].endswith("more characters)")


def test_what_is_no_json_is_said() -> None:
    with pytest.raises(BadInput):
        masked_document(b"{")
