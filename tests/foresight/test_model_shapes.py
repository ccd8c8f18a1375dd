"""Parameters are counted exactly, and a model's config.json is not believed when it cannot be true."""

from __future__ import annotations

from typing import Any

import pytest

from runbook.errors import BadInput
from runbook.foresight import parameters_of, published_model, shape_of_config, shape_of_model
from runbook.foresight.training_run import TrainingRun
from tests.foresight.published import memory_document

COUNTS = {
    # As the models' authors and model cards count them.
    "gpt2": 124_439_808, "gpt2-xl": 1_557_611_200, "meta-llama/Llama-2-7b-hf": 6_738_415_616,
    "meta-llama/Meta-Llama-3-8B": 8_030_261_248, "meta-llama/Llama-3.1-70B-Instruct": 70_553_706_496,
    "meta-llama/Llama-3.2-1B": 1_235_814_400, "meta-llama/Llama-3.2-3B": 3_212_749_824,
    "mistralai/Mistral-7B-v0.1": 7_241_732_096, "mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
    "Qwen/Qwen2.5-0.5B": 494_032_768, "Qwen/Qwen2.5-7B": 7_615_616_512, "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-8B": 8_190_735_360, "Qwen/Qwen3-32B": 32_762_123_264, "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 1_100_048_384, "google/gemma-2b": 2_506_172_416,
}


@pytest.mark.parametrize(("name", "count"), COUNTS.items())
def test_the_parameters_of_a_published_model_are_counted_exactly(name: str, count: int) -> None:
    document = memory_document()
    entry = published_model(name, document)
    assert entry is not None
    assert parameters_of(TrainingRun(**shape_of_model(entry, document))) == count


def test_a_name_that_only_contains_a_published_one_is_another_model() -> None:
    document = memory_document()
    assert published_model("somebody/not-gpt2-at-all", document) is None
    assert published_model("/models/my-llama-3-8b-pruned", document) is None


LLAMA = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
         "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256}


@pytest.mark.parametrize(("change", "said"), [
    ({"hidden_size": -4096}, "hidden"),
    ({"hidden_size": "a lot"}, "hidden"),
    ({"num_hidden_layers": 10**12}, "layers"),
    ({"num_attention_heads": 33}, "not divided"),
    ({"num_key_value_heads": 5}, "not divided"),
    ({"vocab_size": 0}, "vocabulary"),
    ({"num_hidden_layers": 31.5}, "no whole number"),
    ({"intermediate_size": True}, "mlp"),
    ({"tie_word_embeddings": "perhaps"}, "tied"),
])
def test_a_config_that_no_model_has_is_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        shape_of_config({**LLAMA, **change}, memory_document())


def test_a_multimodal_model_has_its_language_part_inside() -> None:
    inside = shape_of_config({"model_type": "some_vlm", "text_config": LLAMA}, memory_document())
    assert inside == shape_of_config(LLAMA, memory_document())
