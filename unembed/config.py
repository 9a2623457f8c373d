"""All settings, as frozen dataclasses; a preset is a function that returns one.

`paper()` is the published method, `cpu()` what learns on two cores, `tiny()` is for tests. Every deviation
of `cpu()` from the paper is a named field here, so that each can be switched off and measured.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_type_hints

from unembed.errors import ConfigError
from unembed.typed import build, suggest

ScheduleName = Literal["log_linear", "linear", "paper"]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Architecture of the denoiser (paper, section 3.3)."""

    vocab_size: int = 30522
    """Number of tokens of the inverter's tokenizer."""
    mask_id: int = 103
    """Token id of [MASK]."""
    vector_dim: int = 384
    """Dimension d of the embedding vectors."""
    max_tokens: int = 32
    """Longest text, in tokens."""
    layers: int = 8
    width: int = 768
    """Hidden dimension D_h."""
    heads: int = 12
    ffn: int = 3072
    dropout: float = 0.1
    norm: Literal["pre", "post"] = "pre"
    """Where the modulated layer norm stands: before each branch (DiT, the paper) or after it (BERT)."""
    init: Literal["random", "encoder"] = "random"
    """Start from random weights, or from the layers of the MiniLM encoder itself (same width needed)."""
    freeze_embeddings: bool = True
    """Token embeddings are tied; the paper keeps them frozen."""
    prefix_tokens: int = 0
    """Positions in front of the text that carry the vector into attention."""
    conv: bool = False
    """Depthwise convolutions over neighbouring positions, width 5 before attention and 3 before the MLP."""
    bag_of_words: bool = False
    """A path vector -> MLP -> vocabulary, added to every position's logits."""
    shortcuts: bool = False
    """Linear paths around the two MLPs that the vector goes through: the conditioner and the bag of words."""
    reader: bool = False
    """A bag of words that reads the whitened vector by itself; its vocabulary matrix starts from the data."""
    account: bool = False
    """The condition also sees the mean of the visible tokens: what has been said already."""
    vector_norm: float = 1.0
    """Typical length of the vectors, taken from the data when the encoder does not normalise."""

    def __post_init__(self) -> None:
        _at_least("model", self, 1, "vocab_size", "vector_dim", "max_tokens", "layers", "width", "heads", "ffn")
        _at_least("model", self, 0, "prefix_tokens", "mask_id")
        if self.width % self.heads:
            raise ConfigError(f"model.width {self.width} is not a multiple of model.heads {self.heads}: change one")
        if self.mask_id >= self.vocab_size:
            raise ConfigError(f"model.mask_id {self.mask_id} is outside the vocabulary of {self.vocab_size} tokens")
        if self.reader and not self.bag_of_words:
            raise ConfigError("model.reader adds to the bag of words: set model.bag_of_words=true too")
        if not self.vector_norm > 0:
            raise ConfigError(f"model.vector_norm is {self.vector_norm}: give the length of a typical vector")


@dataclass(frozen=True, slots=True)
class DiffusionConfig:
    """The noising process and the weight of its loss (paper, section 3.2)."""

    schedule: ScheduleName = "log_linear"
    """`log_linear` and `linear` carry their own ELBO weight; `paper` is the printed pair: log-linear masking, 1/t."""
    rate: float = 5.0
    """lambda of the log-linear schedule."""
    masking: Literal["bernoulli", "count"] = "bernoulli"
    """Mask each position on its own (eq. 2), or exactly ceil(t L) of them (`linear` only: same bound, less noise)."""
    weighting: Literal["elbo", "root"] = "elbo"
    """Loss weight of a masked token: the bound's own (eq. 4), or its root, under which texts with few masks and texts
    with many are equally noisy."""
    condition_dropout: float = 0.1
    """Share of training texts whose vector is hidden, for classifier-free guidance."""

    def __post_init__(self) -> None:
        if self.masking == "count" and self.schedule != "linear":
            raise ConfigError(
                f"diffusion.masking=count belongs to diffusion.schedule=linear, not {self.schedule}: "
                "use masking=bernoulli"
            )


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """The recipe."""

    steps: int = 200_000
    batch_texts: int = 400
    """Texts per optimizer step, over all processes."""
    accumulate: int = 1
    """Micro-batches, sorted by length, that one step is computed in: same result, less memory and padding."""
    bag_steps: int = 0
    """Steps of pretraining for conditioner, bag of words and length, before the denoiser learns."""
    bag_trains: Literal["all", "reader"] = "all"
    """What those steps train: all that reads the vector, or only the reader, on top of what stays as it is."""
    bag_batch_texts: int = 2048
    bag_lr: float = 3e-3
    optimizer: Literal["adamw", "muon"] = "adamw"
    """`muon`: Muon on the block matrices, AdamW on the rest."""
    lr: float = 1e-4
    muon_lr: float = 1e-3
    embedding_lr_scale: float = 1.0
    """Factor on lr for token embeddings that start pretrained."""
    weight_decay: float = 0.01
    warmup_steps: int = 1000
    decay: Literal["cosine", "wsd", "none"] = "cosine"
    decay_share: float = 0.33
    """Last share of the steps in which `wsd` falls to zero."""
    clip: float = 1.0
    ema: float = 0.9999
    sampled_softmax: int = 0
    """Number of drawn negatives; 0 is the full softmax."""
    guesses: float = 0.0
    """A writer: share of the texts that it learns as the correction of a guess of its own."""
    grow: int = 0
    """A writer: so many new blocks between those that it has, before it goes on learning."""
    bf16: bool = True
    compile: bool = False
    """Compile what lies between the matrix products (needs a C++ compiler; half a minute at the start)."""
    validate_every: int = 1000
    validate_texts: int = 512
    preview_texts: int = 64
    """Texts decoded end to end at each validation."""
    save_every: int = 1000
    milestone_every: int = 0
    """Keep a copy of the weights every so many steps (0: never)."""
    patience: int = 0
    """Stop after so many validations without improvement (0: never)."""
    seed: int = 0

    def __post_init__(self) -> None:
        _at_least("train", self, 1, "steps", "batch_texts", "accumulate", "bag_batch_texts")
        _at_least("train", self, 1, "validate_every", "validate_texts", "save_every")
        _at_least("train", self, 0, "bag_steps", "warmup_steps", "sampled_softmax", "preview_texts", "seed")
        _at_least(
            "train", self, 0, "milestone_every", "patience", "grow", "lr", "muon_lr", "bag_lr", "weight_decay", "ema"
        )
        if not 0 <= self.guesses <= 1:
            raise ConfigError(f"train.guesses is {self.guesses}, but it is a share of the texts: give 0 to 1")


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that decides what a training run makes."""

    model: ModelConfig = field(default_factory=ModelConfig)
    diffusion: DiffusionConfig = field(default_factory=DiffusionConfig)
    train: TrainConfig = field(default_factory=TrainConfig)


def paper() -> Config:
    """The published configuration (its Table 6); the defaults above are its values."""
    return Config()


def cpu() -> Config:
    """What learns on two cores within hours; every difference to `paper()` is measured in docs/LOG.md."""
    return Config(
        ModelConfig(
            layers=6, width=384, heads=12, ffn=1536, dropout=0.0, norm="post", init="encoder",
            freeze_embeddings=False, prefix_tokens=2, conv=False, bag_of_words=True, shortcuts=True, reader=True,
            account=True,
        ),
        DiffusionConfig(schedule="linear", masking="count", condition_dropout=0.05),
        TrainConfig(
            steps=20_000, batch_texts=128, accumulate=2, bag_steps=1500, bag_batch_texts=512, optimizer="adamw",
            lr=4e-4, embedding_lr_scale=0.3, warmup_steps=40, decay="wsd", ema=0.998, sampled_softmax=4096,
            validate_every=500, save_every=100,
        ),
    )  # fmt: skip


def tiny() -> Config:
    """Small enough to train in a test, with every path of `cpu()` switched on."""
    return Config(
        ModelConfig(
            layers=2, width=48, heads=4, ffn=96, dropout=0.0, norm="post", max_tokens=16,
            freeze_embeddings=False, prefix_tokens=2, conv=True, bag_of_words=True, shortcuts=True, reader=True,
            account=True,
        ),
        DiffusionConfig(schedule="linear", masking="count", condition_dropout=0.05),
        TrainConfig(
            steps=30, batch_texts=32, accumulate=2, bag_steps=5, bag_batch_texts=64, optimizer="muon", lr=3e-3,
            muon_lr=1e-2, warmup_steps=3, decay="wsd", ema=0.9, sampled_softmax=64, validate_every=10,
            validate_texts=32, preview_texts=4, save_every=10,
        ),
    )  # fmt: skip


PRESETS = {"paper": paper, "cpu": cpu, "tiny": tiny}

T = TypeVar("T")


def preset(name: str) -> Config:
    """The preset of that name."""
    if name not in PRESETS:
        raise ConfigError(f"no preset named {name!r}: choose one of {', '.join(PRESETS)}")
    return PRESETS[name]()


def to_dict(config: Any) -> dict[str, Any]:
    """Plain dictionary of a config, for JSON."""
    return dataclasses.asdict(config)


def from_dict(kind: type[T], values: dict[str, Any], where: str = "config") -> T:
    """Rebuild a config dataclass; unknown keys and values of the wrong type are errors."""
    return build(kind, values, where, ConfigError)


def override(config: Config, settings: list[str]) -> Config:
    """Apply `section.field=value` settings, as given on the command line."""
    values = to_dict(config)
    for setting in settings:
        path, equals, text = setting.partition("=")
        section, dot, name = path.partition(".")
        if not equals or not dot:
            raise ConfigError(f"cannot read {setting!r}: write section.field=value, such as train.steps=500")
        if section not in values:
            raise ConfigError(f"no section {section!r}{suggest(section, values)}")
        kinds = get_type_hints(type(getattr(config, section)))
        values[section][name] = _parse(kinds.get(name), text, path)
    return from_dict(Config, values)


def _parse(kind: Any, text: str, where: str) -> Any:
    """A value as it stands on a command line."""
    try:
        if kind is bool:
            return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
        return kind(text) if kind in (int, float) else text
    except (ValueError, KeyError):
        raise ConfigError(f"{where} is {text!r}, not a {kind.__name__}") from None


def _at_least(section: str, config: object, low: int, *names: str) -> None:
    for name in names:
        if not getattr(config, name) >= low:
            raise ConfigError(f"{section}.{name} is {getattr(config, name)!r}: it must be at least {low}")
