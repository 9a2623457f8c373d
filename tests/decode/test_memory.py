"""A file of many vectors takes no more memory than one of few."""

import json
import subprocess
import sys

import numpy as np

from tests.decode.conftest import DIM

ROWS, WARM = 100_000, 20_000

# Its peak memory when the first rows are done and when all are. In a process of its own, with a net of hardly anything.
SCRIPT = f"""
import resource, sys
import torch
from tests.decode.conftest import DIM, MASK, VOCABULARY, make_tokenizer
from unembed import DecodeConfig, Inverter
from unembed.config import Config, ModelConfig
from unembed.model.artifact import Artifact, EncoderInfo
from unembed.model.denoiser import Denoiser

torch.set_num_threads(1)
sizes = dict(vocab_size=VOCABULARY, vector_dim=DIM, max_tokens=4, layers=1, width=8, heads=1, ffn=8)
config = ModelConfig(mask_id=MASK, **sizes)
encoder = EncoderInfo("test", DIM, True, "")
inverter = Inverter(Artifact(Denoiser(config), make_tokenizer(), Config(model=config), encoder))
settings = DecodeConfig(steps=1, strategy="sequential", repeat_penalty=0.0)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
warm = 0
for progress in inverter.invert_file(sys.argv[1], sys.argv[2], settings, batch_size=512):
    if not warm and progress.done >= {WARM}:
        warm = peak()
print(progress.done, warm, peak())
"""


def test_a_hundred_thousand_vectors_in_the_memory_of_twenty_thousand(tmp_path):
    vectors = np.random.default_rng(0).normal(size=(ROWS, DIM)).astype(np.float16)
    np.save(tmp_path / "v.npy", vectors)
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "v.npy"), str(tmp_path / "out.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rows, warm, end = map(int, done.stdout.split())
    assert rows == ROWS
    # The file itself is mapped, and what was read of it counts: 3 MB. Kept results would be a hundred.
    assert end - warm < vectors.nbytes + 10e6
    with (tmp_path / "out.jsonl").open() as file:
        for row, line in enumerate(file):
            assert json.loads(line)["row"] == row
    assert row == ROWS - 1
