"""The model card that every saved inverter carries."""

from __future__ import annotations

from typing import Any

TEMPLATE = """\
---
library_name: unembed
license: apache-2.0
tags: [embedding-inversion, masked-diffusion, privacy]
---
# Inverter for {spec}

Recovers text from the {dim}-dimensional vectors of `{spec}` by conditional masked diffusion, without asking the
encoder. Made with [unembed](https://github.com/unembed/unembed).

```python
import unembed
inverter = unembed.Inverter.from_pretrained("this folder or its hub id")
print(inverter.invert(vectors)[0].text)
```

Use it to measure what your own vectors give away. Texts of at most {max_tokens} tokens; scores are on what the
tokenizer can express.

## Network
{layers} layers x {width}, {heads} heads, MLP {ffn}, {vocab_size} tokens, {norm}-norm AdaLN, weights stored as {dtype}.

## Training
{training}

## Metrics
{metrics}
{extra}"""


def render_card(description: dict[str, Any]) -> str:
    """Markdown of the card, from the same description that config.json holds."""
    info = description["info"]
    training = {**{f"train.{k}": v for k, v in description["train"].items()}, **info.get("data", {})}
    return TEMPLATE.format(
        **description["encoder"],
        **description["model"],
        dtype=description["dtype"],
        training=_table(training),
        metrics=_table(info.get("metrics", {})) or "Not measured yet: run `unembed evaluate`.",
        extra=_helpers(info) + (f"\n{info['notes']}\n" if "notes" in info else ""),
    )


HELPERS = {
    "writer": "writes texts from left to right, with the words and the conditioner of the inverter; it is what decodes "
    "unless another strategy is chosen. Shown a guess and its vector, it corrects it (`unembed invert --feedback`).",
    "echo": "judges the texts that a writer has finished: a small copy of the encoder, learned from pairs, so that the "
    "encoder need not be asked.",
    "surrogate": "foresees vectors: it steers texts while they are written, and encoder feedback takes fewer queries.",
}


def _helpers(info: dict[str, Any]) -> str:
    """What is known of the nets beside the inverter, where there are any."""
    parts = []
    for name, does in HELPERS.items():
        if name in info:
            known = info[name]
            facts = {**known["data"], "seconds": known["seconds"], **known["metrics"]}
            parts.append(f"\n## {name.capitalize()}\n`{name}.safetensors` {does}\n\n{_table(facts)}\n")
    return "".join(parts)


def _table(values: dict[str, Any]) -> str:
    if not values:
        return ""
    rows = [f"| {key} | {value} |" for key, value in values.items()]
    return "\n".join(["| setting | value |", "|---|---|", *rows])
