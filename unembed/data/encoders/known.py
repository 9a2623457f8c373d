"""Models ready by name: which repository, and what each side (query, document, ...) sets.

The models carry their own pooling, Dense layers, prompts and normalisation; a side only says which of the
prompts and which task adapter a store of that kind uses. `document` is the default: it is what stores hold.
"""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_SIDE = "document"


@dataclass(frozen=True)
class Side:
    """How texts of one kind are embedded."""

    prompt: str
    """Name of one of the model's own prompts."""
    task: str | None = None
    """Task adapter, for models whose code takes one."""


@dataclass(frozen=True)
class Known:
    """A model with its sides."""

    hub_id: str
    sides: dict[str, Side]
    remote_code: bool = False
    """Whether the repository's own Python code is needed."""


def _jina_task(task: str) -> Side:
    return Side(prompt=task, task=task)


KNOWN = {
    "qwen3-embedding-0.6b": Known(
        hub_id="Qwen/Qwen3-Embedding-0.6B",
        sides={"query": Side("query"), "document": Side("document")},
    ),
    "jina-embeddings-v3": Known(
        hub_id="jinaai/jina-embeddings-v3",
        sides={
            "query": _jina_task("retrieval.query"),
            "document": _jina_task("retrieval.passage"),
            "text-matching": _jina_task("text-matching"),
            "classification": _jina_task("classification"),
            "separation": _jina_task("separation"),
        },
        remote_code=True,
    ),
    "embeddinggemma-300m": Known(
        hub_id="google/embeddinggemma-300m",
        sides={
            "query": Side("query"),
            "document": Side("document"),
            "clustering": Side("Clustering"),
            "classification": Side("Classification"),
            "similarity": Side("STS"),
        },
    ),
}
