"""What decoding gives: the recovered text, and every step on the way to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Inversion:
    """One recovered text."""

    text: str
    tokens: tuple[int, ...]
    """Token ids of the inverter's tokenizer."""
    confidence: tuple[float, ...]
    """For each token the probability it had when it was chosen."""
    score: float
    """Higher is better; comparable between texts of one vector. With encoder feedback it is the cosine."""
    steps: int
    """Denoising steps taken."""
    passes: int
    """Forward passes of the network (two a step under guidance)."""
    alternatives: tuple[Inversion, ...] = ()
    """Other texts for the same vector, best first (`n_best`)."""
    cosine: float | None = None
    """Of the text's vector with the given one; None without encoder feedback."""
    queries: int = 0
    """Texts that the encoder was asked about for this vector."""
    gradients: int = 0
    """Backward passes of the encoder for this vector."""
    note: str = ""
    """Why encoder feedback ended before its time; empty if it did not."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        plain: dict[str, Any] = {
            "text": self.text,
            "score": self.score,
            "tokens": list(self.tokens),
            "confidence": [round(p, 4) for p in self.confidence],
            "steps": self.steps,
            "passes": self.passes,
        }
        if self.cosine is not None:
            plain |= {"cosine": round(self.cosine, 6), "queries": self.queries, "gradients": self.gradients}
        if self.note:
            plain["note"] = self.note
        if self.alternatives:
            plain["alternatives"] = [other.to_dict() for other in self.alternatives]
        return plain


@dataclass(frozen=True, slots=True)
class Step:
    """The text as it stands after one denoising step."""

    step: int
    """Counts from 1."""
    tokens: tuple[str, ...]
    """Token strings; a masked position shows the mask token."""
    confidence: tuple[float, ...]
    """0 where masked."""
    masked: tuple[int, ...]
    """Positions that are still masked."""
    passes: int
    """Forward passes so far."""
    text: str
    """The text so far; a masked token shows as an underscore."""
    inversion: Inversion | None = None
    """The result; only the last step has it."""
