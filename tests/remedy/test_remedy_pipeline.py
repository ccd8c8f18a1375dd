"""Layers that leave a pipeline's edge: the stages in between share evenly, and nothing moves for a rank elsewhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbook.locations import data_folder
from runbook.model.job import JobClass, JobRecord, JobState
from runbook.model.log import Finding, LogStory
from runbook.model.template import Setting
from runbook.model.units import JobId, UserName
from runbook.remedy import FUNCTIONS, LeverContext, Refused, load_levers, template_settings
from runbook.report.vocabulary.sentences import in_words
from tests.kinds import Kind

MEGATRON = next(item for item in load_levers(data_folder("playbooks") / "oom" / "levers") if item.id == "megatron")
LAST = MEGATRON.parameter("decoder_last_pipeline_num_layers")
ARGUMENTS = {
    "layers": "num_layers", "stages": "pipeline_model_parallel_size", "edge": "last", "unless": "other_rank_order",
    "other": "decoder_first_pipeline_num_layers",
}


def context(settings: dict[str, int], rank: int | None = None) -> LeverContext:
    found = tuple(
        Setting(key, MEGATRON.parameter(key).kind, MEGATRON.parameter(key).spellings[0], str(value))
        for key, value in settings.items()
    )
    job = JobRecord(
        JobId("1"), "c", "train", UserName("ada"), JobState("FAILED", JobClass.FAILED), num_nodes=2, gpus_per_node=8
    )
    story = LogStory(Finding("PT-CUDA-1", Kind.TRUE_OOM, "a.log", 0, 1, "", rank=rank))
    return LeverContext(template_settings(MEGATRON, found), story, job)


def megatron(layers: int, stages: int, **more: int) -> dict[str, int]:
    return {"num_layers": layers, "pipeline_model_parallel_size": stages, **more}


@given(st.integers(1, 40), st.integers(2, 12))
def test_the_other_stages_share_evenly_what_the_edge_leaves(share: int, stages: int) -> None:
    try:
        outcome = FUNCTIONS["fewer_edge_layers"](context(megatron(share * stages, stages)), LAST, ARGUMENTS)
    except Refused:
        assert share < stages, "there was room for one step"
        return
    new = int(outcome.edits[0].new or 0)
    assert 0 < new < share
    assert (share * stages - new) % (stages - 1) == 0


@pytest.mark.parametrize(
    ("settings", "rank", "words"),
    [
        (megatron(32, 1), None, "one pipeline stage"),
        (megatron(30, 4), None, "do not divide among 4"),
        (megatron(8, 2, decoder_first_pipeline_num_layers=4), None, "have their number of layers already"),
        ({"pipeline_model_parallel_size": 4}, None, "--num-layers is not in the template"),
        (megatron(32, 4), 11, "rank 11 failed, which is on pipeline stage 3 of 4"),
    ],
)
def test_what_stands_in_the_way(settings: dict[str, int], rank: int | None, words: str) -> None:
    with pytest.raises(Refused) as refused:
        FUNCTIONS["fewer_edge_layers"](context(settings, rank), LAST, ARGUMENTS)
    assert words in in_words(refused.value.refusal.why)
