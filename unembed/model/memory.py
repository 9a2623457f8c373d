"""What the blocks of a writer remember while it writes: keys and values of all places so far, of all beams of a text.

Nothing is ever moved when beams are chosen. Every place of every beam stays where it was put, what all beams of a text
have in common once for all of them, and each beam is told which places are its own past. So a step reads what is
remembered and copies none of it; where every beam has keys and values to itself, that was two fifths of the work.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

Past = tuple[Tensor, ...]
"""Keys and values of places, (n, heads, places, d) each.

In this order in memory: products of other views take seven times as long. Where a guess stands before them, a third
says which of its places (n, m) are none."""

# Room is made for so many places of every beam at a time: a view of a larger room would be copied by every product.
AT_ONCE = 4
NOT_THERE = -1e9


class Memory:
    """Of texts that are written together."""

    def __init__(self, kept: list[Past]) -> None:
        """`kept`: for every block the places that all beams of a text share."""
        self._keys, self._values = [one[0] for one in kept], [one[1] for one in kept]
        first = self._keys[0]
        n, _, self._filled, _ = first.shape
        none = kept[0][2] if len(kept[0]) > 2 else torch.zeros(n, 0, dtype=torch.bool, device=first.device)
        none = F.pad(none, (0, self._filled - none.shape[1]))
        self._bias = (none[:, None].float() * NOT_THERE)[:, None]  # (n, 1, beams, room): 0 where a beam may look
        self._beams = 1

    def begin_place(self) -> None:
        """One more place of every beam, which sees itself and the beam's past."""
        if self._filled + self._beams > self._bias.shape[3]:
            more = AT_ONCE * self._beams
            self._bias = F.pad(self._bias, (0, more), value=NOT_THERE)
            self._keys = [F.pad(one, (0, 0, 0, more)) for one in self._keys]
            self._values = [F.pad(one, (0, 0, 0, more)) for one in self._values]
        self._filled += self._beams
        new = self._bias[..., self._filled - self._beams : self._filled]
        new.copy_((1 - torch.eye(self._beams, device=new.device)) * NOT_THERE)

    def attend(self, block: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Of a block's new places (n * beams, heads, 1, d): what they see, (n * beams, 1, width)."""
        keys, values = self._keys[block], self._values[block]
        q, k, v = (one.view(len(keys), self._beams, *one.shape[1::2]).transpose(1, 2) for one in (q, k, v))
        new = slice(self._filled - self._beams, self._filled)
        keys[:, :, new], values[:, :, new] = k, v
        scores = (q * q.shape[-1] ** -0.5) @ keys.transpose(-1, -2)  # (n, heads, beams, room)
        share = scores.float().add_(self._bias).softmax(-1).to(values.dtype)
        seen: Tensor = (share @ values).transpose(1, 2).reshape(len(keys) * self._beams, 1, -1)
        return seen

    def choose(self, texts: Tensor | None, beams: Tensor) -> None:
        """Go on with some texts (None: all of them), each with beams that follow these (texts, new beams)."""
        if texts is not None:
            self._bias = self._bias[texts]
            self._keys, self._values = [one[texts] for one in self._keys], [one[texts] for one in self._values]
        self._beams = beams.shape[1]
        index = beams[:, None, :, None].expand(-1, 1, -1, self._bias.shape[3])
        self._bias = self._bias.gather(2, index)
