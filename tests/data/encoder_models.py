"""Tiny random models with the file layout and module structure of the real repositories, made on the spot."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

TEXT = """a b c d e f the cat dog house river old red runs sleeps sings Instruct Given web search query retrieve
relevant passages that answer Query task result title none text Represent document for retrieval evidence documents
retrieving : | , ."""
WORDS = TEXT.split()
SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>"]
SENTENCES = ["the cat sleeps", "the old dog runs , the river sings .", "red house", "a b c d e f"]
WIDTH = 16

QWEN_PROMPTS = {
    "query": "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:",
    "document": "",
}
GEMMA_PROMPTS = {"query": "task: search result | query: ", "document": "title: none | text: "}
JINA_PROMPTS = {
    "retrieval.query": "Represent the query for retrieving evidence documents: ",
    "retrieval.passage": "Represent the document for retrieval: ",
    "separation": "",
    "classification": "",
    "text-matching": "",
}
# Like jina-embeddings-v3's: an old-style module that takes a task in its forward and adds that task's low-rank change.
JINA_CODE = """
from pathlib import Path
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModel, AutoTokenizer

TASKS = ["retrieval.query", "retrieval.passage", "separation", "classification", "text-matching"]

class Transformer(nn.Module):
    save_in_root = True

    def __init__(self, model_name_or_path, max_seq_length=None, model_args=None, tokenizer_args=None, config_args=None,
                 cache_dir=None, **unused):
        super().__init__()
        self.auto_model = AutoModel.from_pretrained(model_name_or_path)
        self.tokenizer = AutoTokenizer.from_pretrained(model_name_or_path)
        self.max_seq_length = 64
        self.adapters = nn.ParameterDict(
            {k.replace(".", "_"): nn.Parameter(v)
             for k, v in load_file(Path(model_name_or_path) / "adapters.safetensors").items()})

    def forward(self, features, task=None):
        inputs = {k: features[k] for k in ("input_ids", "attention_mask")}
        hidden = self.auto_model(**inputs).last_hidden_state
        if task is not None:
            name = task.replace(".", "_")
            hidden = hidden + hidden @ self.adapters[name + "_a"] @ self.adapters[name + "_b"]
        features["token_embeddings"] = hidden
        return features

    def get_word_embedding_dimension(self):
        return self.auto_model.config.hidden_size

    def tokenize(self, texts):
        return self.tokenizer(texts, padding=True, truncation=True, return_tensors="pt", max_length=self.max_seq_length)

    def save(self, path, safe_serialization=True):
        self.auto_model.save_pretrained(path)

    @staticmethod
    def load(input_path):
        return Transformer(input_path)
"""


def word_tokenizer(template: str) -> Tokenizer:
    """A tokenizer of whole words that puts special tokens around a text."""
    vocabulary = {word: number for number, word in enumerate(SPECIAL + WORDS)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    special = [(token, vocabulary[token]) for token in SPECIAL]
    tokenizer.post_processor = TemplateProcessing(single=template, special_tokens=special)
    return tokenizer


def qwen_like(folder: Path) -> Path:
    """Qwen3-Embedding: causal Qwen3, the end token's state, unit length; an instruction for queries."""
    from transformers import Qwen3Config, Qwen3Model

    torch.manual_seed(1)
    config = Qwen3Config(
        vocab_size=64, hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, max_position_embeddings=128, initializer_range=0.5,
    )  # fmt: skip
    Qwen3Model(config).save_pretrained(folder)
    _tokenizer_files(folder, "$A <eos>", padding_side="left")
    _write(folder / "1_Pooling/config.json", {**_pooling("lasttoken"), "include_prompt": True})
    _modules(folder, ["Transformer", "Pooling", "Normalize"], QWEN_PROMPTS)
    return folder


def gemma_like(folder: Path) -> Path:
    """EmbeddingGemma: bidirectional Gemma 3, mean, two Dense layers, unit length; a prompt for every side."""
    from transformers import Gemma3TextConfig, Gemma3TextModel

    torch.manual_seed(2)
    config = Gemma3TextConfig(
        vocab_size=64, hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, max_position_embeddings=128, sliding_window=16, query_pre_attn_scalar=8,
        use_bidirectional_attention=True, initializer_range=0.5,
    )  # fmt: skip
    Gemma3TextModel(config).save_pretrained(folder)
    _tokenizer_files(folder, "<bos> $A <eos>", padding_side="right")
    _write(folder / "1_Pooling/config.json", {**_pooling("mean_tokens"), "include_prompt": True})
    for path, (inside, outside) in {"2_Dense": (WIDTH, 48), "3_Dense": (48, 24)}.items():
        identity = "torch.nn.modules.linear.Identity"
        settings = {"in_features": inside, "out_features": outside, "bias": False, "activation_function": identity}
        _write(folder / path / "config.json", settings)
        save_file({"linear.weight": torch.randn(outside, inside)}, folder / path / "model.safetensors")
    _modules(folder, ["Transformer", "Pooling", "Dense", "Dense", "Normalize"], GEMMA_PROMPTS)
    return folder


def jina_like(folder: Path) -> Path:
    """jina-embeddings-v3: the repository's own Transformer module with a task argument, mean, unit length."""
    from transformers import XLMRobertaConfig, XLMRobertaModel

    torch.manual_seed(3)
    config = XLMRobertaConfig(
        vocab_size=64, hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=128, pad_token_id=0, bos_token_id=2, eos_token_id=1, initializer_range=0.5,
    )  # fmt: skip
    XLMRobertaModel(config).save_pretrained(folder)
    adapters = {}
    for task in JINA_PROMPTS:
        adapters[f"{task}_a"], adapters[f"{task}_b"] = torch.randn(WIDTH, 4), torch.randn(4, WIDTH)
    save_file(adapters, folder / "adapters.safetensors")
    (folder / "custom_st.py").write_text(JINA_CODE)
    _tokenizer_files(folder, "<bos> $A <eos>", padding_side="right")
    _write(folder / "1_Pooling/config.json", _pooling("mean_tokens"))
    _modules(folder, ["Transformer", "Pooling", "Normalize"], JINA_PROMPTS)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0] |= {"type": "custom_st.Transformer", "kwargs": ["task"]}
    _write(folder / "modules.json", modules)
    return folder


def static_model(folder: Path, normalize: bool = True) -> Path:
    """A model2vec table of random token vectors."""
    from model2vec import StaticModel

    tokenizer = word_tokenizer("$A")
    vectors = np.random.default_rng(4).normal(size=(len(SPECIAL) + len(WORDS), 12)).astype(np.float32)
    StaticModel(vectors, tokenizer, config={"normalize": normalize}, normalize=normalize).save_pretrained(folder)
    return folder


def without_module(source: Path, folder: Path, path: str) -> Path:
    """A copy of a model with one of its modules taken out."""
    import shutil

    shutil.copytree(source, folder)
    modules = [module for module in json.loads((folder / "modules.json").read_text()) if module["path"] != path]
    _write(folder / "modules.json", modules)
    return folder


def hidden_states(folder: Path, text: str) -> torch.Tensor:
    """The transformer's own last states for one text, (length, width): no padding, no sentence-transformers."""
    from transformers import AutoModel

    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    with torch.inference_mode():
        states = AutoModel.from_pretrained(folder).eval()(input_ids=torch.tensor([ids])).last_hidden_state
    return states[0]


def _tokenizer_files(folder: Path, template: str, padding_side: str) -> None:
    from transformers import PreTrainedTokenizerFast

    PreTrainedTokenizerFast(
        tokenizer_object=word_tokenizer(template), pad_token="<pad>", eos_token="<eos>", bos_token="<bos>",
        unk_token="<unk>", padding_side=padding_side, model_max_length=64,
    ).save_pretrained(folder)  # fmt: skip


def _pooling(mode: str) -> dict[str, object]:
    modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    return {"word_embedding_dimension": WIDTH, **{f"pooling_mode_{name}": name == mode for name in modes}}


def _modules(folder: Path, kinds: list[str], prompts: dict[str, str]) -> None:
    modules = []
    for number, kind in enumerate(kinds):
        path = f"{number}_{kind}" if number else ""
        named = f"sentence_transformers.models.{kind}"
        modules.append({"idx": number, "name": str(number), "path": path, "type": named})
    _write(folder / "modules.json", modules)
    _write(folder / "sentence_bert_config.json", {"max_seq_length": 64, "do_lower_case": False})
    settings = {"prompts": prompts, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    _write(folder / "config_sentence_transformers.json", settings)


def _write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2))
