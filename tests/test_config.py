"""Settings: typed, closed, and the presets are what the documentation says."""

import pytest

from unembed.config import Config, ModelConfig, from_dict, override, paper, preset, tiny, to_dict
from unembed.errors import ConfigError


@pytest.mark.parametrize("name", ["paper", "cpu", "tiny"])
def test_presets_survive_json(name: str) -> None:
    assert from_dict(Config, to_dict(preset(name))) == preset(name)


def test_paper_has_the_published_values() -> None:
    model, diffusion, train = paper().model, paper().diffusion, paper().train
    assert (model.layers, model.width, model.heads, model.ffn, model.dropout) == (8, 768, 12, 3072, 0.1)
    assert (model.norm, model.freeze_embeddings) == ("pre", True)
    assert (model.conv, model.bag_of_words, model.account, model.prefix_tokens) == (False, False, False, 0)
    assert (diffusion.schedule, diffusion.rate) == ("log_linear", 5.0)
    assert (train.optimizer, train.lr, train.weight_decay, train.ema) == ("adamw", 1e-4, 0.01, 0.9999)
    assert (train.batch_texts, train.steps, train.sampled_softmax) == (400, 200_000, 0)


def test_overrides_are_typed() -> None:
    changed = override(tiny(), ["train.steps=7", "train.lr=0.5", "model.conv=false", "diffusion.schedule=paper",
                      "diffusion.masking=bernoulli"])  # fmt: skip
    assert changed.train.steps == 7
    assert changed.train.lr == 0.5
    assert changed.model.conv is False
    assert changed.diffusion.schedule == "paper"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.stesp=7", "did you mean 'steps'"),
        ("trian.steps=7", "did you mean 'train'"),
        ("train.steps", "section.field=value"),
        ("steps=7", "section.field=value"),
        ("train.steps=many", "not a int"),
        ("model.conv=maybe", "not a bool"),
        ("model.norm=middle", "choose one of pre, post"),
        ("model.heads=5", "not a multiple of model.heads"),
        ("model.mask_id=99999", "outside the vocabulary"),
        ("train.validate_every=0", "at least 1"),
        ("train.batch_texts=-3", "at least 1"),
        ("train.lr=nan", "not a float"),
        ("diffusion.schedule=log_linear", "use masking=bernoulli"),
    ],
)
def test_bad_overrides_name_the_problem(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        override(tiny(), [setting])


def test_wrong_types_and_presets() -> None:
    with pytest.raises(ConfigError, match="not a int"):
        from_dict(ModelConfig, {"layers": 2.5})
    with pytest.raises(ConfigError, match="group of settings"):
        from_dict(Config, {"model": [1]})
    with pytest.raises(ConfigError, match="paper, cpu, tiny"):
        preset("large")
