"""What is asked about next: texts that the denoiser fills, and texts that the writer goes on with or corrects.

All vectors of a batch share the passes of the nets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import Tensor

from unembed.decode.engine import inference
from unembed.decode.feedback import author
from unembed.decode.feedback.propose import (
    CORRECTIONS,
    FLIPS,
    KINDS,
    TAILS,
    Hypothesis,
    beginning,
    change,
    draw_kind,
)
from unembed.decode.feedback.refill import Blank, Filler
from unembed.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unembed.decode.config import DecodeConfig
    from unembed.decode.feedback.config import FeedbackConfig
    from unembed.decode.feedback.foresight import Foresight
    from unembed.decode.feedback.search import Search
    from unembed.decode.feedback.whitebox import Slopes
    from unembed.model.denoiser import Denoiser
    from unembed.model.writer import Writer

# Passes in which the masks of a text of another length are filled.
START_PASSES = 4
# So many words are weighed for every place of a text that has a gradient.
WORDS = 400

Change: TypeAlias = "tuple[Search, Blank, str, Hypothesis]"
"""A changed text of a search, the kind of change, and of which parent; the parent may be a foreseen one."""
Filled: TypeAlias = "tuple[Search, Blank, str, Hypothesis | None]"
"""A filled text of a search, what made it, and of which parent."""


class Composer:
    """Makes texts for searches."""

    def __init__(
        self,
        net: Denoiser,
        decoding: DecodeConfig,
        config: FeedbackConfig,
        *,
        slopes: Slopes | None,
        flips: bool,
        foresight: Foresight | None,
        words: Tensor | None,
        writer: Writer | None,
    ) -> None:
        """`flips`: words are swapped where a gradient says so; the rest as in `Runner`."""
        sees = writer is not None and writer.sight is not None
        if config.corrector == "only" and not sees:
            raise ConfigError(
                "corrector is 'only', but this inverter has no writer that corrects: "
                "unembed train --writer-of makes one (--set train.guesses=0.5)"
            )
        self._net, self._decoding, self._config = net, decoding, config
        self._foresight, self._words = foresight, words
        self._author = writer if config.writer or config.corrector == "only" else None
        self._corrects = sees and self._author is not None and config.corrector != "off"
        self._kinds = CORRECTIONS if config.corrector == "only" else KINDS
        if flips:
            self._kinds = {**self._kinds, **FLIPS}
        if self._author is not None and config.corrector != "only":
            self._kinds = {**self._kinds, **TAILS}
        beside = None if words is None else words.cpu()  # the filler chooses its words there
        self._filler = Filler(net, decoding.repeat_penalty, slopes, beside, config.steering)

    def changes(self, pairs: list[tuple[Search, Hypothesis]], variants: int, passes: int) -> list[Change]:
        """A change of each parent, its masks filled in so many ways."""
        changes: list[Change] = []
        owners: list[int] = []
        model, config = self._net.config, self._config
        for owner, (search, parent) in enumerate(pairs):
            kind = draw_kind(self._kinds, search.rng)
            if kind in TAILS:
                count = beginning(parent, kind, search.rng)
                for _ in range(variants):
                    u = torch.from_numpy(search.rng.random((1, model.max_tokens)))
                    blank = Blank(
                        list(parent.tokens[:count]), list(parent.confidence[:count]), torch.empty(0), u,
                        config.temperature * search.heat,
                    )  # fmt: skip
                    changes.append((search, blank, kind, parent))
                    owners.append(owner)
                continue
            draft = change(parent, kind, model.mask_id, model.max_tokens, search.rng)
            for _ in range(variants if model.mask_id in draft.tokens else 1):
                sure = [parent.confidence[k] if k >= 0 else 0.0 for k in draft.origin]
                u = torch.from_numpy(search.rng.random((passes, len(draft.tokens))))
                blank = Blank(list(draft.tokens), sure, torch.empty(0), u, config.temperature * search.heat)
                if parent.slope is not None:
                    blank.push = config.swap_scale * parent.slope[draft.aligned]
                changes.append((search, blank, kind, parent))
                owners.append(owner)
        if changes:
            with inference(self._net, self._decoding.precision):
                conditions = list(self._aimed(pairs))
                for (_, blank, _, _), owner in zip(changes, owners, strict=True):
                    blank.c = conditions[owner]  # the same object for all variants: they share a pass
                self._steer(changes)
                self._filler.fill([blank for _, blank, kind, _ in changes if kind not in TAILS], passes)
                self._go_on([change for change in changes if change[2] in TAILS])
        return changes

    def _go_on(self, tails: list[Change]) -> None:
        """Let the writer write the rest, for vectors beyond the targets, or as a correction of the parents."""
        if not tails or self._author is None:
            return
        target, there = self._ends([(search, parent) for search, _, _, parent in tails])
        beyond = self._config.corrector_overshoot if self._corrects else self._config.overshoot
        aims, seen = self._given(_beyond(target, there, beyond)), self._given(there)
        for (_, blank, _, parent), aim, vector in zip(tails, aims, seen, strict=True):
            blank.aim = aim
            if self._corrects:
                blank.guess, blank.there = parent.tokens, vector
        author.go_on(self._author, [blank for _, blank, _, _ in tails])

    def _steer(self, drafts: Sequence[Filled]) -> None:
        """Tell the filler where texts are to arrive, and by how much the surrogate is wrong about their parents."""
        if self._foresight is None or self._words is None or not self._config.steering:
            return
        self._foresight.know([parent for *_, parent in drafts if parent is not None])
        for search, blank, _, parent in drafts:
            blank.target = torch.from_numpy(search.vector)
            blank.offset = torch.zeros_like(blank.target)
            if parent is not None and parent.foreseen is not None:
                blank.offset = torch.from_numpy(parent.vector) - parent.foreseen

    def _aimed(self, parents: list[tuple[Search, Hypothesis]]) -> Tensor:
        """The conditions under which parents are changed: what their vectors lack shall come.

        They are those of vectors beyond the targets, seen from the parents': words that these lack get likelier.
        """
        return self._conditions(_beyond(*self._ends(parents), self._config.overshoot))

    def _ends(self, parents: list[tuple[Search, Hypothesis]]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The targets, and where the parents are. (n, d) each."""
        target = np.stack([search.vector for search, _ in parents])
        return target, np.stack([parent.vector for _, parent in parents])

    def other_lengths(self, active: list[Search]) -> list[Filled]:
        """A text for each of the likeliest lengths but that of the answer."""
        if not active:
            return []
        drafts: list[Filled] = []
        with inference(self._net, self._decoding.precision):
            c = self._conditions(np.stack([search.vector for search in active]))
            count = min(self._config.starts, self._net.config.max_tokens)
            lengths = self._net.length_logits(c).topk(count, dim=1).indices.tolist()
            for search, condition, some in zip(active, c, lengths, strict=True):
                there = {len(one.tokens) for one in search.population}
                drafts += [
                    (search, self._empty(length, condition, START_PASSES), "start", None)
                    for length in some
                    if length not in there
                ]
            self._steer(drafts)
            self._filler.fill([blank for _, blank, _, _ in drafts], START_PASSES)
        return drafts

    def guided(self, able: list[Search]) -> list[Filled]:
        """A text for each vector whose denoising follows the gradient from the first step on."""
        steps = self._config.guide_steps
        if not able:
            return []
        drafts: list[Filled] = []
        with inference(self._net, self._decoding.precision):
            targets = np.stack([search.vector for search in able])
            for search, target, c in zip(able, torch.from_numpy(targets), self._conditions(targets), strict=True):
                blank = self._empty(len(search.population[0].tokens), c, steps)
                blank.guide, blank.target = self._config.guide_scale, target
                drafts.append((search, blank, "guided", None))
            self._filler.fill([blank for _, blank, _, _ in drafts], steps)
        for search, blank, _, _ in drafts:
            search.gradients += blank.gradients
        return drafts

    def _empty(self, length: int, c: Tensor, passes: int) -> Blank:
        """Nothing but masks, to be filled with the likeliest tokens."""
        return Blank([self._net.config.mask_id] * length, [0.0] * length, c, torch.zeros(passes, length), 1.0)

    def _conditions(self, units: NDArray[np.float32]) -> Tensor:
        return self._net.condition(self._given(units))

    def _given(self, units: NDArray[np.float32]) -> Tensor:
        """Unit vectors (n, d) at the length that the encoder's have."""
        given = torch.from_numpy((units * self._net.config.vector_norm).astype(np.float32))
        return given.to(self._net.bias.device)

    def missing_words(self, parents: list[tuple[Search, Hypothesis]]) -> list[tuple[Tensor, Tensor]]:
        """Of each parent the words that the bag of words wants most beyond its vector: log-probabilities and ids."""
        with inference(self._net, self._decoding.precision):
            target, there = self._ends(parents)
            c = self._conditions(_beyond(target, there, self._config.overshoot))
            hidden = self._net.bag_hidden(c) if self._net.config.bag_of_words else torch.zeros_like(c)
            chances = self._net.logits(hidden).float().log_softmax(1).topk(min(WORDS, self._net.config.vocab_size), 1)
        return list(zip(chances.values.cpu(), chances.indices.cpu(), strict=True))

    def judge(self, drafts: list[Filled]) -> None:
        """How sure a word is, is the writer's to say where there is one: then all texts are judged alike."""
        if self._author is None or not drafts:
            return
        with inference(self._net, self._decoding.precision):
            vectors = self._given(np.stack([search.vector for search, *_ in drafts]))
            judged = author.judge(self._author, vectors, [blank.tokens for _, blank, _, _ in drafts])
        for (_, blank, _, _), sure in zip(drafts, judged, strict=True):
            blank.sure = list(sure)


def _beyond(target: NDArray[np.float32], there: NDArray[np.float32], distances: float) -> NDArray[np.float32]:
    """Unit vectors that lie further from the parents than the targets do."""
    aim: NDArray[np.float32] = target + distances * (target - there)
    aim /= np.linalg.norm(aim, axis=1, keepdims=True)
    return aim
