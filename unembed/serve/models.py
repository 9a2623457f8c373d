"""The JSON that comes in and goes out, as it stands in the OpenAPI description."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from unembed.decode import DecodeConfig
from unembed.decode.config import MIN_TEMPERATURE, choices
from unembed.serve.limits import (
    MAX_DIM,
    MAX_FIELDS,
    MAX_GUIDANCE,
    MAX_N_BEST,
    MAX_SEED,
    MAX_STEPS,
    MAX_TEMPERATURE,
    MAX_VECTORS,
)

_DEFAULT = DecodeConfig()
_Number = Annotated[float, Field(allow_inf_nan=False)]
# FailFast: a body has room for a million mistakes, and a report on each would stop the event loop for half a minute.
Vector = Annotated[list[_Number], Field(min_length=1, max_length=MAX_DIM), FailFast()]


class _Request(BaseModel):
    # strict: "1" is no number and true is no 1. Unknown fields are mistakes.
    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, data: Any) -> Any:
        """Each unknown field is a mistake with a report of its own."""
        if isinstance(data, dict) and len(data) > MAX_FIELDS:
            raise PydanticCustomError("extra_forbidden", "too many fields")
        return data


class EncodeRequest(_Request):
    """A text to embed."""

    text: str = Field(
        min_length=1, description="The text; the server's limit is 2,000 characters unless set otherwise."
    )


class Decoding(_Request):
    """How to decode; what is left out has the default."""

    strategy: str = Field(
        _DEFAULT.strategy,
        description="Which net decodes, and which masked positions it reveals at each step; auto is the best there is.",
        json_schema_extra={"enum": list(choices())},
    )
    steps: int = Field(_DEFAULT.steps, ge=1, le=MAX_STEPS, description="The most denoising steps.")
    guidance: _Number = Field(
        _DEFAULT.guidance, ge=0, le=MAX_GUIDANCE, description="Classifier-free guidance; 1 is none."
    )
    seed: int = Field(_DEFAULT.seed, ge=0, le=MAX_SEED, description="Decides the draws at a temperature above 0.")
    temperature: _Number = Field(
        _DEFAULT.temperature,
        ge=0,
        le=MAX_TEMPERATURE,
        description="0 takes the most probable token; else 0.001 or more.",
    )
    length: int | None = Field(None, ge=1, description="Decode to so many tokens instead of a predicted number.")

    @field_validator("strategy")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in choices():
            raise ValueError(f"choose one of {', '.join(choices())}")
        return value

    @field_validator("temperature")
    @classmethod
    def _not_tiny(cls, value: float) -> float:
        if 0 < value < MIN_TEMPERATURE:
            raise ValueError(f"give 0, or a number of at least {MIN_TEMPERATURE:g}")
        return value

    def config(self, lengths: int | None = 1, n_best: int = 1) -> DecodeConfig:
        """The settings as the library takes them; who watches a text wants to see one length."""
        return DecodeConfig(
            strategy=self.strategy,
            steps=self.steps,
            guidance=self.guidance,
            seed=self.seed,
            temperature=self.temperature,
            length=self.length,
            lengths=lengths,
            n_best=n_best,
        )


class DecodeRequest(Decoding):
    """One vector to decode, step by step."""

    vector: Vector = Field(description="As many numbers as the inverter's encoder has dimensions.")
    feedback: bool = Field(
        False, description="Search on with the encoder's help after decoding, where /models says that it can."
    )


class InvertRequest(Decoding):
    """Some vectors to decode."""

    vectors: Annotated[list[Vector], Field(min_length=1, max_length=MAX_VECTORS), FailFast()] = Field(
        description="One list of numbers for each; the server's limit is 128 vectors unless set otherwise."
    )
    n_best: int = Field(1, ge=1, le=MAX_N_BEST, description="Keep up to so many different texts for each vector.")


class ErrorBody(BaseModel):
    """What went wrong."""

    error: str = Field(description="A fixed word for programs.", examples=["wrong_dimension"])
    message: str = Field(description="One sentence: what is wrong, and what to do.")


class EncodeAnswer(BaseModel):
    """The vector of a text, and what an inverter could give back of it at best."""

    vector: list[float]
    dim: int
    tokens: list[str] = Field(description="The first tokens of the text, as many as the inverter can write.")
    text: str = Field(description="The text of those tokens.")
    truncated: bool = Field(description="Whether the text has more tokens.")
    encoder: str
    ms: float


class QueuedEvent(BaseModel):
    """Event `queued`: sent when the position changes; 0 means that decoding starts."""

    position: int
    expected_wait_ms: int


class StepEvent(BaseModel):
    """Event `step`: the text after one denoising step, or a better one that a search with encoder feedback found."""

    step: int
    tokens: list[str] = Field(description="A masked one is [MASK].")
    confidence: list[float] = Field(description="Of each token; 0 where masked.")
    masked: list[int] = Field(description="Positions that are masked.")
    passes: int = Field(description="Forward passes so far.")
    text: str
    ms: float = Field(description="Since decoding started.")


class DoneEvent(BaseModel):
    """Event `done`: the result, the last event."""

    text: str
    tokens: list[str]
    confidence: list[float]
    score: float
    steps: int
    passes: int
    ms: float = Field(description="From the start of decoding to the last step.")
    wait_ms: float = Field(description="From the request to the start of decoding.")
    cosine: float | None = Field(description="Between the vector and that of the text; null without an encoder.")
    encoder_queries: int = Field(description="How often the encoder was asked to find the text, gradients included.")
    check_queries: int = Field(description="1 when the cosine was computed, after decoding.")


class ErrorEvent(ErrorBody):
    """Event `error`: why there is no result; the last event."""


class Recovered(BaseModel):
    """One recovered text, as `Inversion.to_dict` gives it."""

    text: str
    score: float
    tokens: list[int] = Field(description="Token ids of the inverter's tokenizer.")
    confidence: list[float]
    steps: int
    passes: int
    alternatives: list[dict[str, Any]] | None = Field(None, description="Other texts, best first, with `n_best`.")


class InvertAnswer(BaseModel):
    """The recovered texts, in the order of the vectors."""

    results: list[Recovered]
    ms: float


class RandomAnswer(BaseModel):
    """An example sentence."""

    text: str
    source: str = Field(description="Where the sentence is from.")


class HealthAnswer(BaseModel):
    """How the server is."""

    status: Literal["loading", "ready", "stopping", "failed"]
    model: str
    encoder: str | None
    dim: int
    max_tokens: int
    versions: dict[str, str]
    uptime_s: float


class QueueAnswer(BaseModel):
    """How busy the server is."""

    waiting: int = Field(description="Requests that wait for a place.")
    running: int = Field(description="Texts that are decoded now.")
    capacity: int = Field(description="The most texts decoded at once.")
    limit: int = Field(description="The most requests that may wait.")


class Defaults(BaseModel):
    """Settings of a request that names none."""

    strategy: str
    steps: int
    guidance: float
    seed: int


class ModelInfo(BaseModel):
    """One inverter."""

    name: str
    encoder: str = Field(description="The encoder whose vectors it reads.")
    dim: int
    max_tokens: int
    parameters: int
    strategies: list[str]
    defaults: Defaults
    feedback: bool = Field(description="Whether it can ask the encoder while it decodes.")


class ModelsAnswer(BaseModel):
    """The inverters of this server."""

    models: list[ModelInfo]
