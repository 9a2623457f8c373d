"""How to decode, as one frozen dataclass."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Literal, TypedDict

from unembed.decode import strategies
from unembed.errors import ConfigError

# Below, logits divided by it leave the range of a float.
MIN_TEMPERATURE = 1e-3

# Only those that reveal what is surest: the others must take the word that a place asks for, and what the text lacks
# would be said in the first place that comes (docs/decoding.md has the numbers).
STEERED = {"confidence": 15.0, "entropy": 15.0}

# The net that writes from left to right, where an inverter has one; what it makes is not denoised.
AUTO, WRITER = "auto", "writer"
# Settings that only the denoiser knows: whoever gives one wants the denoiser.
OF_DENOISER = (
    "steps", "temperature", "top_p", "guidance", "length", "variant_temperature", "repeat_penalty", "steering",
    "distinct", "remask_share", "remask_threshold", "refine_share", "entropy_bound", "score", "score_passes",
    "length_weight",
)  # fmt: skip

# Up to so many expected tokens a text is decoded at several lengths, unless told otherwise.
SHORT, SHORT_LENGTHS = 13, 3

# Texts that `best` asks an echo about.
IMAGINED = 32

ScoreName = Literal["revealed", "pseudo"]
Precision = Literal["auto", "fp32", "bf16"]


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """Settings of one decoding; two runs with equal settings give equal texts."""

    strategy: str = AUTO
    """`writer`: from left to right by the inverter's writer. Or which masked positions the denoiser reveals at each
    step: a name from `strategies.names()`. `auto`: the writer, unless there is none or a setting of the denoiser is
    given; then `confidence`."""
    beams: int = 8
    """`writer`: texts that are written side by side; more find likelier ones, in more time."""
    echo: bool = True
    """`writer`: choose among what the beams have written by the inverter's echo, where it has one."""
    imagine: int = 0
    """`writer`: search on, as with encoder feedback, but asking the inverter's echo about so many texts instead of any
    encoder. Many more words and a higher cosine, for about two seconds of computing a text at 32."""
    steps: int = 8
    """The most denoising steps a text may take; whatever the number, no mask is left behind."""
    temperature: float = 0.0
    """0 takes the most probable token; from 0.001 on, tokens are drawn."""
    top_p: float = 1.0
    """Draw only from the most probable tokens that hold this share of the probability."""
    seed: int = 0
    """Decides the draws, together with the vector itself; without effect at temperature 0."""
    guidance: float = 1.0
    """Classifier-free guidance scale; anything but 1 costs a second forward pass without the vector."""
    lengths: int | None = None
    """How many lengths are denoised, the expected one and the likeliest; the score chooses. Not given: 3 for short
    texts, which are cheap and suffer most from a wrong length, 1 for others. (The writer ends its texts itself.)"""
    length: int | None = None
    """Decode to this number of tokens instead of a predicted one."""
    n_best: int = 1
    """Keep up to this many different texts: of as many lengths, and variants that are drawn at a temperature."""
    variant_temperature: float = 0.7
    """Temperature of the drawn variants when `temperature` is 0."""
    repeat_penalty: float = 1.5
    """Taken from the logit of a token for every time that it stands in the text already."""
    steering: float | None = None
    """How strongly words are preferred that the surrogate finds lacking; not given: 15 or 0, as suits the strategy."""
    distinct: bool = True
    """`confidence`: of the positions that claim the same token in one step, the surest goes before all others."""
    remask_share: float = 0.05
    """`remask`: share of the visible tokens, the least confident, that is masked again after each step."""
    remask_threshold: float | None = None
    """`remask`: mask again whatever is less confident than this, instead of a share."""
    refine_share: float = 0.3
    """`two-stage`: share of the tokens, the least confident, that the second stage decodes anew."""
    entropy_bound: float = 1.0
    """`entropy`: joint uncertainty, in nats, that the tokens revealed in one step may have."""
    score: ScoreName = "revealed"
    """`revealed`: mean log-probability of the tokens as they were chosen; `pseudo`: as the finished text has them."""
    score_passes: int = 4
    """`pseudo`: forward passes; each hides another part of the text and asks how probable it is."""
    length_weight: float = 0.1
    """Weight of the log-probability of the length in the score."""
    precision: Precision = "auto"
    """`auto` is bf16 where the machine is fast with it, else fp32. Only fp32 results are independent of the batch."""

    def __post_init__(self) -> None:
        if self.strategy not in choices():
            raise ConfigError(f"no strategy named {self.strategy!r}: choose one of {', '.join(choices())}")
        for name in ("steps", "n_best", "score_passes", "beams"):
            _whole(name, getattr(self, name), 1)
        if self.lengths is not None:
            _whole("lengths", self.lengths, 1)
        _whole("seed", self.seed, 0)
        _whole("imagine", self.imagine, 0)
        if self.length is not None:
            _whole("length", self.length, 1)
        _within("temperature", self.temperature, 0, math.inf)
        if 0 < self.temperature < MIN_TEMPERATURE:
            raise ConfigError(
                f"temperature is {self.temperature!r}: give 0, or a number of at least {MIN_TEMPERATURE:g}"
            )
        _within("variant_temperature", self.variant_temperature, MIN_TEMPERATURE, math.inf)
        _within("top_p", self.top_p, 1e-6, 1)
        _within("guidance", self.guidance, 0, math.inf)
        _within("repeat_penalty", self.repeat_penalty, 0, math.inf)
        _within("remask_share", self.remask_share, 0, 1)
        _within("refine_share", self.refine_share, 0, 1)
        _within("entropy_bound", self.entropy_bound, 0, math.inf)
        _within("length_weight", self.length_weight, -math.inf, math.inf)
        if self.steering is not None:
            _within("steering", self.steering, 0, math.inf)
        if self.remask_threshold is not None:
            _within("remask_threshold", self.remask_threshold, 0, 1)
        _one_of("score", self.score, ("revealed", "pseudo"))
        _one_of("precision", self.precision, ("auto", "fp32", "bf16"))

    def resolved(self, writer: bool) -> DecodeConfig:
        """The same with a strategy that is one, for an inverter with or without a writer."""
        plain = asdict(DecodeConfig())
        given = [name for name in OF_DENOISER if getattr(self, name) != plain[name]]
        if self.strategy == AUTO:
            return replace(self, strategy=WRITER if writer and not given else "confidence").resolved(writer)
        if self.strategy != WRITER and self.imagine:
            raise ConfigError(
                "imagine goes on from what a writer has written: leave it, or decode with strategy='writer'"
            )
        if self.strategy == WRITER and not writer:
            raise ConfigError("this inverter has no writer: choose another strategy, or unembed train --writer-of it")
        if self.strategy == WRITER and given:
            raise ConfigError(
                f"{', '.join(given)}: the writer knows no such setting; choose another strategy, or leave it"
            )
        return self

    def lengths_for(self, expected: int) -> int:
        """How many lengths are decoded where so many tokens are expected."""
        if self.lengths is None:
            return SHORT_LENGTHS if expected <= SHORT else 1
        return self.lengths

    @property
    def steers(self) -> float:
        """The steering in force."""
        return STEERED.get(self.strategy, 0.0) if self.steering is None else self.steering


def choices() -> tuple[str, ...]:
    """What `strategy` may be."""
    return (AUTO, WRITER, *strategies.names())


def fast(writer: bool) -> DecodeConfig:
    """Half the work of the default or less, for a few points of quality (docs/decoding.md has the numbers)."""
    return DecodeConfig(beams=1) if writer else DecodeConfig(steps=4, lengths=1)


def best(writer: bool, echo: bool = False) -> DecodeConfig:
    """The most that there is without asking the encoder, whatever it costs (docs/decoding.md has the numbers)."""
    if writer:
        return DecodeConfig(imagine=IMAGINED) if echo else DecodeConfig(beams=16)
    return DecodeConfig(lengths=5)


def based_on(base: DecodeConfig, given: DecodeConfig) -> DecodeConfig:
    """`base` with whatever of `given` is not the default."""
    plain = asdict(DecodeConfig())
    return replace(base, **{name: value for name, value in asdict(given).items() if value != plain[name]})


class DecodeSettings(TypedDict, total=False):
    """Single fields of `DecodeConfig`, as keywords; each means what it means there."""

    strategy: str
    beams: int
    echo: bool
    imagine: int
    steps: int
    temperature: float
    top_p: float
    seed: int
    guidance: float
    lengths: int | None
    length: int | None
    n_best: int
    variant_temperature: float
    repeat_penalty: float
    steering: float | None
    distinct: bool
    remask_share: float
    remask_threshold: float | None
    refine_share: float
    entropy_bound: float
    score: ScoreName
    score_passes: int
    length_weight: float
    precision: Precision


def _whole(name: str, value: object, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ConfigError(f"{name} is {value!r}: give a whole number of at least {low}")


def _within(name: str, value: object, low: float, high: float) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not low <= float(value) <= high or math.isinf(float(value)):  # type: ignore[arg-type]
        limits = f"from {low:g} to {high:g}" if high < math.inf else f"of at least {low:g}" if low > -math.inf else ""
        raise ConfigError(f"{name} is {value!r}: give a number {limits}".rstrip())


def _one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} is {value!r}: choose one of {', '.join(choices)}")
