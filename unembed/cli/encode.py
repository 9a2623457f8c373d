"""`unembed encode`: texts to a dataset folder."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from unembed.cli import console
from unembed.errors import ConfigError

if TYPE_CHECKING:
    from unembed.data.shards import Progress

GO_ON = "Finished shards are kept: run the same command again to go on."


def encode(
    *sources: str,
    output: Annotated[Path, Parameter(name=("--output", "-o"))],
    encoder: str = "minilm",
    stage: Literal["all", "tokens", "vectors"] = "all",
    limit: int | None = None,
    tokenizer: Path | None = None,
    min_tokens: int = 3,
    max_tokens: int = 32,
    text_column: str = "text",
    exclude: tuple[str, ...] = (),
    split: Literal["all", "train", "validation", "test"] = "all",
    weight: tuple[str, ...] = (),
    part: str | None = None,
    pairs: Annotated[bool, Parameter(group="Your own pairs")] = False,
    vector_column: Annotated[str, Parameter(group="Your own pairs")] = "vector",
    encoder_name: Annotated[str | None, Parameter(group="Your own pairs")] = None,
    skip_bad: Annotated[bool, Parameter(group="Your own pairs")] = False,
    json: bool = False,
) -> None:
    """Turn texts into a dataset of token windows and their vectors.

    ```
    unembed encode corpus/ more.txt.xz -o data/corpus
    unembed encode "hf:allenai/c4?config=en" -o data/c4 --limit 2000000
    unembed encode -o data/c4 --stage vectors --encoder qwen3-embedding-0.6b
    unembed encode pairs.parquet -o data/mine --pairs --encoder-name ours
    ```

    Args:
        sources: Text files, JSON lines, Parquet (also .xz .gz .zst), folders of these, or hf:DATASET.
        output: The dataset folder. Run the same command again to go on after an interruption.
        encoder: minilm, st:MODEL, model2vec:MODEL, openai:MODEL@URL, or a known name such as qwen3-embedding-0.6b.
        stage: Tokens once, vectors once for each encoder; or both.
        limit: Stop after so many windows.
        tokenizer: A tokenizer.json for the inverter; the default is that of all-MiniLM-L6-v2.
        min_tokens: Leave out shorter texts.
        max_tokens: Length of a window; longer sentences are cut.
        text_column: Where JSON lines and Parquet keep the text.
        exclude: A source to leave out, by its name (the file's name without suffix); may be repeated.
        split: Keep only the texts of this split: test makes a set to evaluate on, without the training texts.
        weight: The share of a source in the mixture, as name=number; may be repeated.
        part: Encode only part i of n, as i/n: for several machines on one folder.
        pairs: The sources hold vectors too: .parquet or .jsonl, or a text file with an .npy beside it.
        vector_column: Where the vectors are.
        encoder_name: Which encoder made them; names the folder of the vectors.
        skip_bad: Leave out bad rows and count them, instead of stopping at the first.
        json: Print the summary as JSON.
    """
    _check(sources, stage, pairs, encoder_name)
    mixture, share = _weights(weight), _part(part)
    from unembed.data.tokens import default_tokenizer, write_tokens

    with console.resumable(GO_ON):
        if pairs:
            from unembed.data.pairs import write_pairs

            steps = write_pairs(
                sources, output, tokenizer or default_tokenizer(), str(encoder_name), text_column=text_column,
                vector_column=vector_column, max_tokens=max_tokens, limit=limit, skip_bad=skip_bad,
            )  # fmt: skip
            left_out = _follow("pairs", steps)
        else:
            left_out = {}
            if stage != "vectors":
                steps = write_tokens(
                    sources, output, tokenizer or default_tokenizer(), min_tokens=min_tokens, max_tokens=max_tokens,
                    limit=limit, text_column=text_column, weights=mixture, exclude=exclude, split=split,
                )  # fmt: skip
                left_out = _follow("tokens", steps)
            if stage != "tokens":
                from unembed.data.encoders import load
                from unembed.data.vectors import write_vectors

                _follow("vectors", write_vectors(output, load(encoder), part=share))
    _summarise(output, "pairs" if pairs else stage, encoder_name if pairs else encoder, left_out, json)


def _check(sources: tuple[str, ...], stage: str, pairs: bool, encoder_name: str | None) -> None:
    """Arguments that exclude or need one another."""
    if not sources and stage != "vectors":
        raise ConfigError("give at least one source: unembed encode SOURCES... -o FOLDER")
    if sources and stage == "vectors":
        raise ConfigError("--stage vectors takes the texts from the dataset itself: leave the sources out")
    if pairs and not encoder_name:
        raise ConfigError("--pairs needs --encoder-name: which encoder made the vectors")


def _follow(label: str, steps: Iterable[Progress]) -> dict[str, int]:
    """Run a stage under a progress bar; returns what was left out, by reason."""
    left_out: dict[str, int] = {}
    with console.progress(label) as bar:
        for step in steps:
            left_out = step.left_out
            bar.show(step.done, step.total, f"{step.rate:,.0f}/s")
    return left_out


def _weights(given: tuple[str, ...]) -> dict[str, float]:
    weights = {}
    for item in given:
        name, equals, number = item.rpartition("=")
        try:
            weights[name] = float(number)
        except ValueError:
            equals = ""
        if not equals or not name:
            raise ConfigError(f"cannot read --weight {item}: write name=number, such as --weight news=2")
    return weights


def _part(given: str | None) -> tuple[int, int]:
    """i/n, counted from 1 as Slurm arrays are; returned counted from 0."""
    if given is None:
        return 0, 1
    match = re.fullmatch(r"(\d+)/(\d+)", given)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise ConfigError(f"cannot read --part {given}: write i/n with i from 1 to n, such as --part 3/16")
    return int(match[1]) - 1, int(match[2])


def _summarise(folder: Path, stage: str, encoder: str | None, left_out: dict[str, int], json: bool) -> None:
    from unembed.data import shards
    from unembed.data.windows import SPLITS

    tokens = shards.load_manifest(shards.tokens_folder(folder), shards.TokensManifest)
    rows = {split: sum(s.splits[split] for s in tokens.shards) for split in SPLITS} if tokens else {}
    left = {reason: count for reason, count in left_out.items() if count}
    if json:
        console.print_json(
            {"folder": str(folder), "stage": stage, "encoder": encoder if stage != "tokens" else None, "texts": rows,
             "left_out": left}
        )  # fmt: skip
    elif console.is_terminal():
        reasons = "".join(f", {count:,} left out ({reason})" for reason, count in left.items())
        console.print_line(f"{sum(rows.values()):,} texts in {folder}{reasons}. Next: unembed train {folder} -o RUN")
    elif stage == "pairs" and left:  # somebody's own rows: that some are missing matters in a pipe, too
        console.warn([f"left out: {count:,} ({reason})" for reason, count in left.items()])
