"""Tasks from configurations, in the ecosystem's names; in a process of its own, since transformers is imported."""

from __future__ import annotations

import json

import pytest

from deploykit.errors import ModelError, UsageError
from deploykit.isolation import run_isolated, workers
from deploykit.lazy import installed

pytestmark = pytest.mark.skipif(not installed("transformers") or not installed("torch"), reason="no transformers here")
MODULE = "deploykit.exporters.huggingface_tasks"


@pytest.fixture(scope="module", autouse=True)
def pool():
    with workers() as found:
        yield found


def chosen(tmp_path, config, task=None):
    (tmp_path / "config.json").write_text(json.dumps(config))
    return run_isolated("torch", f"{MODULE}:task_job", {"folder": str(tmp_path), "task": task})


@pytest.mark.parametrize(
    ("model_type", "architecture", "task"),
    [
        ("bert", "BertModel", "feature-extraction"),
        ("bert", "BertForMaskedLM", "fill-mask"),
        ("distilbert", "DistilBertForSequenceClassification", "text-classification"),
        ("roberta", "RobertaForTokenClassification", "token-classification"),
        ("electra", "ElectraForQuestionAnswering", "question-answering"),
        ("gpt2", "GPT2LMHeadModel", "text-generation-with-past"),
        ("llama", "LlamaForCausalLM", "text-generation-with-past"),
        ("t5", "T5EncoderModel", "feature-extraction"),
        ("vit", "ViTForImageClassification", "image-classification"),
        ("vit", "ViTModel", "image-feature-extraction"),
        ("yolos", "YolosForObjectDetection", "object-detection"),
        ("segformer", "SegformerForSemanticSegmentation", "semantic-segmentation"),
        ("wav2vec2", "Wav2Vec2ForSequenceClassification", "audio-classification"),
        ("wav2vec2", "Wav2Vec2ForCTC", "automatic-speech-recognition"),
    ],
)
def test_the_class_of_the_configuration_tells_the_task(tmp_path, model_type, architecture, task):
    found = chosen(tmp_path, {"model_type": model_type, "architectures": [architecture]})
    assert found["task"] == task
    assert task in found["fitting"]


def test_a_model_that_does_not_use_its_cache_is_exported_without(tmp_path):
    found = chosen(tmp_path, {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "use_cache": False})
    assert found["task"] == "text-generation"


@pytest.mark.parametrize(
    ("config", "task", "error", "code", "said"),
    [
        ({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}, None, UsageError, "DK679", "T5ForCond"),
        (
            {"model_type": "bart", "architectures": ["BartForConditionalGeneration"]},
            None,
            UsageError,
            "DK679",
            "BartFor",
        ),
        ({"model_type": "bert"}, None, UsageError, "DK679", "names no class"),
        ({"model_type": "bert", "architectures": ["BertModel"]}, "fill-masks", UsageError, "DK679", "no task"),
        ({"model_type": "vit", "architectures": ["ViTModel"]}, "fill-mask", UsageError, "DK679", "no model for"),
        ({"model_type": "no-such-type"}, None, ModelError, "DK680", "knows no model type"),
        ({"model_type": "bert", "hidden_size": "wide"}, None, ModelError, "DK680", "not a configuration"),
        ({"model_type": "mine", "auto_map": {"AutoModel": "m.Net"}}, None, ModelError, "DK678", "m.Net"),
    ],
)
def test_what_fits_is_listed_where_the_task_is_not_known(tmp_path, config, task, error, code, said):
    with pytest.raises(error) as refused:
        chosen(tmp_path, config, task)
    assert refused.value.code == code
    assert said in refused.value.message
    assert refused.value.hint
    if code == "DK679":
        assert "feature-extraction" in refused.value.context[0]
