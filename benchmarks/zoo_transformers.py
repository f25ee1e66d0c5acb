"""Small models of the usual families from transformers' own code, with seeded random weights.

Each takes and returns tensors only, so that both exporters see the same interface.
"""

from __future__ import annotations

import torch
import transformers as tr
from torch import nn

_TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 100,
}


class Encoder(nn.Module):
    """A text encoder under its mask."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:  # noqa: D102
        return self.model(input_ids=input_ids, attention_mask=attention_mask)[0]


class MaskedEncoder(Encoder):
    """A text encoder that gets its mask ready made: transformers' own way to one looks at sizes when it is traced."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:  # noqa: D102
        hidden = (1.0 - attention_mask[:, None, None, :].to(torch.float32)) * torch.finfo(torch.float32).min
        return self.model(input_ids=input_ids, attention_mask=hidden)[0]


class Image(nn.Module):
    """A network of images."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: torch.Tensor) -> torch.Tensor:  # noqa: D102
        return self.model(pixel_values=image)[0]


class Audio(nn.Module):
    """A network of waveforms or spectrograms."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, audio: torch.Tensor) -> torch.Tensor:  # noqa: D102
        return self.model(audio)[0]


class Decoder(nn.Module):
    """A causal language model without a cache."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:  # noqa: D102
        return self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits


class CachedDecoder(nn.Module):
    """A causal language model of two layers that takes and gives keys and values."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(  # noqa: D102
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        key0: torch.Tensor,
        value0: torch.Tensor,
        key1: torch.Tensor,
        value1: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        cache = tr.DynamicCache([(key0, value0), (key1, value1)])
        made = self.model(input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache, use_cache=True)
        layers = made.past_key_values.layers
        return (made.logits, *(tensor for layer in layers for tensor in (layer.keys, layer.values)))


def _made(kind: type, wrapper: type, config: object) -> nn.Module:
    torch.manual_seed(0)
    config._attn_implementation = "eager"  # the fast one looks whether the mask hides anything, which no graph can
    model = kind(config).eval()
    with torch.no_grad():  # as trained weights are: initial ones make every logit about nothing
        for name, weight in model.named_parameters():
            if weight.ndim > 1 and "embed" not in name:
                weight.mul_(3.0)
    return wrapper(model).eval()


def bert() -> nn.Module:
    """BERT."""
    return _made(tr.BertModel, MaskedEncoder, tr.BertConfig(**_TEXT))


def distilbert() -> nn.Module:
    """DistilBERT."""
    config = tr.DistilBertConfig(dim=32, n_layers=2, n_heads=4, hidden_dim=64, vocab_size=100)
    return _made(tr.DistilBertModel, MaskedEncoder, config)


def roberta() -> nn.Module:
    """RoBERTa, whose positions are counted from the tokens."""
    return _made(tr.RobertaModel, MaskedEncoder, tr.RobertaConfig(**_TEXT, pad_token_id=1))


def deberta() -> nn.Module:
    """DeBERTa-v2, with relative positions by gathers."""
    config = tr.DebertaV2Config(
        **_TEXT, relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=8, max_relative_positions=16
    )
    return _made(tr.DebertaV2Model, Encoder, config)


def t5_encoder() -> nn.Module:
    """The encoder of T5, with bucketed relative positions."""
    config = tr.T5Config(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=100)
    return _made(tr.T5EncoderModel, MaskedEncoder, config)


def vit() -> nn.Module:
    """ViT."""
    config = tr.ViTConfig(image_size=32, patch_size=8, **{k: v for k, v in _TEXT.items() if k != "vocab_size"})
    return _made(tr.ViTModel, Image, config)


def convnext() -> nn.Module:
    """ConvNeXt."""
    config = tr.ConvNextConfig(depths=[1, 1, 2, 1], hidden_sizes=[8, 16, 24, 32], num_labels=5)
    return _made(tr.ConvNextForImageClassification, Image, config)


def swin() -> nn.Module:
    """Swin: windows of rank 6, shifted and masked."""
    config = tr.SwinConfig(
        image_size=64, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=5
    )
    return _made(tr.SwinForImageClassification, Image, config)


def segformer() -> nn.Module:
    """SegFormer: a hierarchical encoder and a decoder that resizes its levels to one."""
    config = tr.SegformerConfig(
        depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 24, 32], num_attention_heads=[1, 2, 3, 4], decoder_hidden_size=16
    )
    return _made(tr.SegformerForSemanticSegmentation, Image, config)


def mobilevit() -> nn.Module:
    """MobileViT: patches unfolded and folded between convolutions."""
    config = tr.MobileViTConfig(
        image_size=64,
        hidden_sizes=[16, 24, 32],
        neck_hidden_sizes=[8, 8, 16, 16, 24, 32, 64],
        num_labels=5,
    )
    model = _made(tr.MobileViTForImageClassification, Image, config).train()
    with torch.no_grad():
        for _ in range(30):  # statistics of its batch norms, without which every plane fades away
            model(torch.randn(4, 3, 64, 64))
    return model.eval()


def dinov2() -> nn.Module:
    """DINOv2, whose positions are resized to the image."""
    config = tr.Dinov2Config(image_size=56, patch_size=14, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    return _made(tr.Dinov2Model, Image, config)


def gpt2() -> nn.Module:
    """GPT-2."""
    config = tr.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=100, n_positions=64)
    return _made(tr.GPT2LMHeadModel, Decoder, config)


def llama() -> nn.Module:
    """Llama with grouped keys and a cache as inputs and outputs."""
    config = tr.LlamaConfig(**_TEXT, num_key_value_heads=2, max_position_embeddings=64)
    return _made(tr.LlamaForCausalLM, CachedDecoder, config)


def qwen3() -> nn.Module:
    """Qwen3: normalized queries and keys, and a cache."""
    config = tr.Qwen3Config(**_TEXT, num_key_value_heads=2, head_dim=8, max_position_embeddings=64)
    return _made(tr.Qwen3ForCausalLM, CachedDecoder, config)


def whisper_encoder() -> nn.Module:
    """The encoder of Whisper."""
    config = tr.WhisperConfig(
        d_model=32, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=64, decoder_layers=1,
        decoder_attention_heads=4, decoder_ffn_dim=64, num_mel_bins=16, max_source_positions=50, vocab_size=100,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    torch.manual_seed(0)
    return Audio(tr.WhisperModel(config).encoder.eval()).eval()


def wav2vec2() -> nn.Module:
    """wav2vec 2.0: convolutions over the waveform, a weight-normed position convolution, a CTC head."""
    config = tr.Wav2Vec2Config(
        **{**_TEXT, "vocab_size": 32}, conv_dim=[16, 16, 16], conv_stride=[5, 2, 2], conv_kernel=[10, 3, 3],
        num_feat_extract_layers=3, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4,
    )  # fmt: skip
    return _made(tr.Wav2Vec2ForCTC, Audio, config)
