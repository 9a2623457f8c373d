"""The corrector: the denoiser that also sees a guess, the guess's vector, and how far that is from the target.

    c = corrector.condition(target, seen)           (n, d), (n, d)   -> (n, width)
    h = corrector(tokens, t, c, guess)              (n, L), (n,), (n, width), (n, L) -> (n, L, width)
    logits = corrector.net.logits(h)

It is Vec2Text's idea inside one diffusion model: p(x_0 | x_t, t, e, g, e_g). Its layers begin as copies of the
inverter's, and what tells them of the guess begins at zero, so an untrained corrector is the inverter itself. Words,
positions and the conditioner stay the inverter's own: they are shared, never trained here and not in its file.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unembed.model.denoiser import Denoiser
from unembed.model.reader import reader_size

# Parts of the inverter that the corrector uses as they are.
SHARED = ("embed", "embed_norm", "position", "project", "project_shortcut", "bias", "no_vector", "forbidden", "reader")
SHARED_IN_BLOCKS = ("from_time", "from_vector")
# Adam's steps are of one size: without this it takes thousands until the words of the guess are heard as words.
GAIN = 64.0
# The opposite here: hundreds of inputs that each take a step at once move the condition far. Not measured by itself.
CALM = 0.1


class Corrector(nn.Module):
    """What the true text may be, given a wrong one and both vectors."""

    def __init__(self, base: Denoiser) -> None:
        super().__init__()
        width, dim = base.config.width, base.config.vector_dim
        shared = {id(p): p for name, p in [*base.named_parameters(), *base.named_buffers()] if _is_shared(name)}
        self.net = copy.deepcopy(base, shared)  # the memo: these tensors are not copied
        self.guess = nn.Linear(width, width, bias=False)
        self.guess_gate = nn.Parameter(torch.zeros(width))
        self.sight = nn.Sequential(nn.Linear(2 * dim, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.sight_shortcut = nn.Linear(2 * dim, width, bias=False)
        for parameter in (self.guess.weight, *self.sight[2].parameters(), self.sight_shortcut.weight):
            nn.init.zeros_(parameter)

    @property
    def own(self) -> dict[str, nn.Parameter]:
        """The parameters that are the corrector's: those that are trained, and its file."""
        return {name: p for name, p in self.named_parameters() if not _is_shared(name.removeprefix("net."))}

    def load_own(self, tensors: dict[str, Tensor]) -> None:
        """Put saved parameters in place."""
        own = self.own
        if own.keys() != tensors.keys() or any(own[name].shape != tensor.shape for name, tensor in tensors.items()):
            raise RuntimeError("it is the corrector of another inverter: copy the whole folder again")
        with torch.no_grad():
            for name, tensor in tensors.items():
                own[name].copy_(tensor)

    def condition(self, targets: Tensor, seen: Tensor) -> Tensor:
        """What the target (n, d) and the guess's vector (n, d) say: (n, width)."""
        both = torch.cat([seen, targets - seen], 1) * self.net.vector_scale
        heard = CALM * (self.sight(both) + self.sight_shortcut(both))
        return self.net.condition(targets) + F.pad(heard, (0, reader_size(self.net.config)))

    def forward(
        self,
        tokens: Tensor,
        t: Tensor,
        c: Tensor,
        guess: Tensor,
        valid: Tensor | None = None,
        at: Tensor | None = None,
    ) -> Tensor:
        """As the denoiser; `guess` (n, L) is the wrong text, stretched to the length of this one."""
        words = self.net.embed(guess)
        beside = self.guess(words) + GAIN * self.guess_gate * words
        hidden: Tensor = self.net(tokens, t, c, valid, at, beside)
        return hidden


def stretch(guess: list[int], length: int) -> list[int]:
    """The guess at another length: its first token stays the first and its last the last."""
    if len(guess) == length:
        return guess
    step = (len(guess) - 1) / max(1, length - 1)
    return [guess[int(k * step + 0.5)] for k in range(length)]


def _is_shared(name: str) -> bool:
    first, *rest = name.split(".")
    return first in SHARED or (first == "blocks" and rest[1] in SHARED_IN_BLOCKS)
