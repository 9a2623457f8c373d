"""Starting from the encoder: the denoiser begins as exactly that network."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from unembed.config import cpu, override, tiny
from unembed.data.encoders.minilm import MiniLM
from unembed.errors import ConfigError
from unembed.model import warmstart
from unembed.model.denoiser import Denoiser


@torch.inference_mode()
def test_the_denoiser_starts_as_the_encoder() -> None:
    """Behind [CLS] and [SEP] the last hidden states, pooled, are the encoder's own vector of the text."""
    encoder = MiniLM(dtype=torch.float32)
    text = "the parcel will arrive on tuesday morning."
    ids = encoder.tokenizer.encode(text).ids[1:-1]
    plain = ["model.account=false", "model.bag_of_words=false", "model.reader=false"]
    net = Denoiser(override(cpu(), plain).model).eval()
    warmstart.from_minilm(net)
    net.prefix_vector.weight.zero_()
    net.final = torch.nn.Sequential()  # look at what the blocks hand over
    seen = []
    net.blocks[-1].register_forward_hook(lambda block, given, out: seen.append(out))
    net(torch.tensor([ids]), torch.zeros(1), net.condition(torch.randn(1, 384)))
    pooled = F.normalize(seen[0].mean(1), dim=-1).numpy()
    assert float(np.dot(pooled[0], encoder.encode([text])[0])) > 0.9999


def test_another_shape_is_refused() -> None:
    for setting in ("model.width=192", "model.norm=pre", "model.layers=8", "model.heads=6", "model.ffn=768"):
        with pytest.raises(ConfigError, match=r"model.init=random"):
            warmstart.from_minilm(Denoiser(override(cpu(), [setting]).model))


def test_unigram_bias_is_the_log_frequency() -> None:
    net = Denoiser(override(cpu(), ["model.vocab_size=4", "model.mask_id=3"]).model)
    warmstart.set_unigram(net, np.array([70, 20, 10, 0]))
    share = net.bias.detach().softmax(0)
    assert share[:3].tolist() == pytest.approx([0.7, 0.2, 0.1], abs=0.003)


@pytest.mark.parametrize("same", [True, False])
def test_another_inverter_hands_over_its_language_and_for_the_same_encoder_its_conditioner(same: bool) -> None:
    small = ["model.layers=1", "model.vocab_size=40", "model.mask_id=3", "model.width=24", "model.ffn=24"]
    config = override(tiny(), small).model
    torch.manual_seed(0)
    source, net = Denoiser(config), Denoiser(config)
    warmstart.from_inverter(net, source, same_encoder=same)
    for name, tensor in net.state_dict().items():
        taken = torch.equal(tensor, source.state_dict()[name])
        random = name.startswith(("project", "reader")) and (name.endswith("weight") or name.startswith("reader"))
        random &= not name.startswith(("reader.mlp.2", "reader.words", "reader_said"))  # these start at zero
        assert taken == (same or not random), name


def test_an_inverter_of_another_width_is_refused() -> None:
    small = ["model.layers=1", "model.vocab_size=40", "model.mask_id=3"]
    net, other = (Denoiser(override(tiny(), [*small, f"model.width={width}"]).model) for width in (24, 32))
    with pytest.raises(ConfigError, match="width 32"):
        warmstart.from_inverter(net, other, same_encoder=True)
