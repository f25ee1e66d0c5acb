"""Tiny transformers models with random weights that make outputs differ; run in the torch worker, not in pytest."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers as tf

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
TEXT = {**SMALL, "vocab_size": 100, "max_position_embeddings": 40}
DECODER = {**TEXT, "num_key_value_heads": 1}
# By family: the class, its configuration, and what goes into it.
FAMILIES = {
    "bert": ("BertModel", "BertConfig", TEXT),
    "bert-classifier": ("BertForSequenceClassification", "BertConfig", TEXT),
    "bert-mlm": ("BertForMaskedLM", "BertConfig", TEXT),
    "distilbert": (
        "DistilBertForTokenClassification",
        "DistilBertConfig",
        {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "max_position_embeddings": 40, "vocab_size": 100},
    ),
    "roberta": (
        "RobertaForQuestionAnswering",
        "RobertaConfig",
        {**TEXT, "max_position_embeddings": 42, "type_vocab_size": 1},
    ),
    "albert": ("AlbertModel", "AlbertConfig", {**TEXT, "embedding_size": 16}),
    "electra": ("ElectraForSequenceClassification", "ElectraConfig", {**TEXT, "embedding_size": 16}),
    "mpnet": ("MPNetModel", "MPNetConfig", {**TEXT, "max_position_embeddings": 42}),
    "t5-encoder": (
        "T5EncoderModel",
        "T5Config",
        {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "vocab_size": 100},
    ),
    "vit": ("ViTForImageClassification", "ViTConfig", {**SMALL, "image_size": 32, "patch_size": 8}),
    "dinov2": ("Dinov2Model", "Dinov2Config", {**SMALL, "image_size": 32, "patch_size": 8}),
    "swin": (
        "SwinForImageClassification",
        "SwinConfig",
        {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4, "image_size": 32, "patch_size": 4},
    ),
    "resnet": (
        "ResNetForImageClassification",
        "ResNetConfig",
        {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"},
    ),
    "convnext": (
        "ConvNextForImageClassification",
        "ConvNextConfig",
        {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2, "image_size": 64},
    ),
    "segformer": (
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        {
            "hidden_sizes": [8, 16, 16, 32],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 1, 2, 2],
            "decoder_hidden_size": 16,
        },
    ),
    "yolos": (
        "YolosForObjectDetection",
        "YolosConfig",
        {**SMALL, "image_size": [32, 48], "patch_size": 8, "num_detection_tokens": 5},
    ),
    "ast": (
        "ASTForAudioClassification",
        "ASTConfig",
        {
            **SMALL,
            "patch_size": 8,
            "frequency_stride": 8,
            "time_stride": 8,
            "max_length": 32,
            "num_mel_bins": 16,
        },
    ),
    "wav2vec2": (
        "Wav2Vec2ForSequenceClassification",
        "Wav2Vec2Config",
        {
            **SMALL,
            "conv_dim": (16, 16),
            "conv_kernel": (10, 3),
            "conv_stride": (5, 2),
            "num_feat_extract_layers": 2,
            "num_conv_pos_embeddings": 16,
            "num_conv_pos_embedding_groups": 2,
            "classifier_proj_size": 16,
        },
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 2,
            "n_positions": 40,
            "vocab_size": 100,
            "bos_token_id": 0,
            "eos_token_id": 1,
        },
    ),
    "llama": ("LlamaForCausalLM", "LlamaConfig", DECODER),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", DECODER),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**DECODER, "sliding_window": 8}),
    "clip": (
        "CLIPModel",
        "CLIPConfig",
        {"text_config": TEXT, "vision_config": {**SMALL, "image_size": 32, "patch_size": 8}, "projection_dim": 16},
    ),
    "mamba": ("MambaForCausalLM", "MambaConfig", {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 100}),
}


def make(folder: str, family: str, **saving: object) -> str:
    """Writes a family's model below the folder; its path."""
    path = Path(folder) / family
    made(family).save_pretrained(path, **saving)
    return str(path)


def made(family: str) -> torch.nn.Module:
    """The model; as weights are drawn by default they are so small that all outputs are alike."""
    name, configuration, settings = FAMILIES[family]
    torch.manual_seed(0)
    model = getattr(tf, name)(getattr(tf, configuration)(**settings))
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.3 if weight.ndim == 2 else 0.2)
    return model.eval()


def make_bin(folder: str, family: str) -> str:
    """The same, with weights as `pytorch_model.bin`, which transformers itself no longer writes."""
    path = Path(folder) / f"{family}-bin"
    model = made(family)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(path)
    torch.save(model.state_dict(), path / "pytorch_model.bin")
    return str(path)


def answers(path: str, feeds: str, output: str) -> list[float]:
    """What the saved model's own class says to a .npz of feeds, flat."""
    import numpy as np

    with np.load(feeds) as archive:
        tensors = {name: torch.from_numpy(archive[name]) for name in archive.files}
    config = tf.AutoConfig.from_pretrained(path)
    model = getattr(tf, config.architectures[0]).from_pretrained(path).eval()
    with torch.no_grad():
        found = model(**tensors)
    return [float(value) for value in found[output].reshape(-1)]


def generated(path: str, prompt: list[int], tokens: int) -> list[int]:
    """What `generate` continues a prompt with, greedily."""
    model = tf.AutoModelForCausalLM.from_pretrained(path).eval()
    model.generation_config.eos_token_id = None
    ids = torch.tensor([prompt])
    found = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens)
    return [int(token) for token in found[0, len(prompt) :]]


def rank(folder: str, assets: str, model: str, pairs: str) -> dict[str, object]:
    """How many anchors lie closer to their paraphrase than to the distractor, by PyTorch and by the ONNX.

    Sentences are the mean of their tokens, of length 1; the tokenizer is the one beside the ONNX.
    """
    import numpy as np
    import onnxruntime

    tokenizer = tf.AutoTokenizer.from_pretrained(assets, local_files_only=True)
    source = tf.AutoModel.from_pretrained(folder).eval()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    rows = [line.split("\t") for line in Path(pairs).read_text(encoding="utf-8").splitlines() if line.strip()]

    def in_torch(feeds):
        with torch.no_grad():
            return source(**{name: torch.from_numpy(array) for name, array in feeds.items()}).last_hidden_state.numpy()

    def in_onnx(feeds):
        return session.run(["last_hidden_state"], feeds)[0]

    found: dict[str, object] = {"pairs": len(rows)}
    vectors = {}
    for name, run in (("torch", in_torch), ("onnx", in_onnx)):
        columns = []
        for texts in zip(*rows, strict=True):
            made = tokenizer(list(texts), padding=True, return_tensors="np")
            feeds = {key: made[key].astype(np.int64) for key in ("input_ids", "attention_mask", "token_type_ids")}
            mask = feeds["attention_mask"][..., None]
            pooled = (run(feeds) * mask).sum(1) / mask.sum(1)
            columns.append(pooled / np.linalg.norm(pooled, axis=1, keepdims=True))
        anchor, paraphrase, distractor = columns
        near, far = (anchor * paraphrase).sum(1), (anchor * distractor).sum(1)
        found[name] = {"correct": int((near > far).sum()), "margin": float((near - far).mean())}
        vectors[name] = np.stack(columns)
    found["largest_difference"] = float(np.abs(vectors["torch"] - vectors["onnx"]).max())
    return found
