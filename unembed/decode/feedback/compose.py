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
from unembed.model.sight import guess_of

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
# The writer goes on with a text in so many ways, and writes it anew in so many.
BEAMS = {"tail": 4, "rewrite": 8}
# It corrects a text as if the vector lay so many distances between the two further away, each time another of these:
# what beams find for the same vector is always the same. It does not lie beyond the target but beyond the vector that
# the text was written for: what correction after correction has not brought is asked for more and more.
DISTANCES = (0.3, 0.0, 0.6, 1.0)
# When all of these were tried, and for endings always, it goes astray by so many distances more, anywhere.
ASTRAY = 0.5
# So many texts of a population are written anew in a round, each so many times at most.
REWRITTEN, TIMES = 2, 12
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
        self._beams = {"rewrite": config.population} if config.corrector == "only" else BEAMS
        if flips:
            self._kinds = {**self._kinds, **FLIPS}
        if self._author is not None and config.corrector != "only":
            self._kinds = {**self._kinds, **TAILS}
        beside = None if words is None else words.cpu()  # the filler chooses its words there
        self._filler = Filler(net, decoding.repeat_penalty, slopes, beside, config.steering)

    def changes(self, pairs: list[tuple[Search, Hypothesis]], variants: int, passes: int) -> list[Change]:
        """A change of each parent, its masks filled in so many ways; or what the writer makes of it."""
        changes: list[Change] = []
        owners: list[int] = []
        begun: list[Change] = []  # the writer goes on with them
        model, config = self._net.config, self._config
        for owner, (search, parent) in enumerate(pairs):
            kind = draw_kind(self._kinds, search.rng)
            if kind in BEAMS:
                count = beginning(parent, kind, search.rng)
                begun.append((search, _blank(parent.tokens[:count], parent.confidence[:count]), kind, parent))
                continue
            draft = change(parent, kind, model.mask_id, model.max_tokens, search.rng)
            for _ in range(variants if model.mask_id in draft.tokens else 1):
                sure = [parent.confidence[k] if k >= 0 else 0.0 for k in draft.origin]
                u = torch.from_numpy(search.rng.random((passes, len(draft.tokens))))
                blank = Blank(list(draft.tokens), sure, torch.empty(0), u, config.temperature * search.heat)
                blank.aim = parent.aim
                if parent.slope is not None:
                    blank.push = config.swap_scale * parent.slope[draft.aligned]
                changes.append((search, blank, kind, parent))
                owners.append(owner)
        with inference(self._net, self._decoding.precision):
            if changes:
                conditions = list(self._aimed(pairs))
                for (_, blank, _, _), owner in zip(changes, owners, strict=True):
                    blank.c = conditions[owner]  # the same object for all variants: they share a pass
                self._steer(changes)
                self._filler.fill([blank for _, blank, _, _ in changes], passes)
            return changes + self._go_on(begun, config.population if config.corrector == "only" else variants)

    def rewrites(self, active: list[Search]) -> list[Change]:
        """The best texts of each population that were not yet rewritten so often, written anew in several ways."""
        if not self._corrects or self._config.corrector == "only":
            return []
        begun: list[Change] = []
        for search in active:
            fresh = [one for one in search.population if one.rewritten < TIMES]
            begun += [(search, _blank((), ()), "rewrite", one) for one in fresh[:REWRITTEN]]
        with inference(self._net, self._decoding.precision):
            return self._go_on(begun, max(self._beams.values()))

    def _go_on(self, begun: list[Change], most: int) -> list[Change]:
        """At most so many texts with each of these beginnings, as corrections of the parents where that was learned."""
        if not begun or self._author is None:
            return []
        target, there = self._ends([(search, parent) for search, _, _, parent in begun])
        guess = None
        if self._corrects:
            guess = guess_of([list(parent.tokens) for *_, parent in begun], torch.from_numpy(there))
            units = np.stack([self._aim(search, kind, parent) for search, _, kind, parent in begun])
        else:
            units = _beyond(target, there, self._config.overshoot)
        aims = self._given(units)
        guess = guess and guess.to(aims.device)
        found: list[Change] = []
        for kind, width in self._beams.items():
            at = [k for k, one in enumerate(begun) if one[2] == kind]
            if at:
                rows = torch.tensor(at, device=aims.device)
                stems = [begun[k][1].tokens for k in at]
                shown = None if guess is None else guess.rows(rows)
                texts = author.go_on(self._author, aims[rows], stems, shown, width)
                for k, some in zip(at, texts, strict=True):
                    search, _, _, parent = begun[k]
                    for one in some[:most]:
                        blank = _blank(one.tokens, one.confidence)
                        blank.aim = units[k] if self._corrects else None
                        found.append((search, blank, kind, parent))
        return found

    def _aim(self, search: Search, kind: str, parent: Hypothesis) -> NDArray[np.float32]:
        """The unit vector (d,) for which a text is corrected; one that is written anew has another each time."""
        if self._config.corrector == "only":
            return search.vector
        gap = search.vector - parent.vector
        if kind == "rewrite":
            distance = DISTANCES[parent.rewritten % len(DISTANCES)]
            parent.rewritten += 1
        else:
            distance = float(search.rng.choice(DISTANCES))
        aim = (search.vector if parent.aim is None else parent.aim) + distance * gap
        if kind != "rewrite" or parent.rewritten >= len(DISTANCES):
            stray = search.rng.standard_normal(len(gap))
            aim = aim + ASTRAY * np.linalg.norm(gap) / np.linalg.norm(stray) * stray
        unit: NDArray[np.float32] = (aim / np.linalg.norm(aim)).astype(np.float32)
        return unit

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

    def judge(self, drafts: Sequence[Filled]) -> None:
        """How sure a word is, is the writer's to say where there is one: then all texts are judged alike."""
        if self._author is None or not drafts:
            return
        with inference(self._net, self._decoding.precision):
            vectors = self._given(np.stack([search.vector for search, *_ in drafts]))
            judged = author.judge(self._author, vectors, [blank.tokens for _, blank, _, _ in drafts])
        for (_, blank, _, _), sure in zip(drafts, judged, strict=True):
            blank.sure = list(sure)


def _blank(tokens: Sequence[int], sure: Sequence[float]) -> Blank:
    """Nothing to fill."""
    return Blank(list(tokens), list(sure), torch.empty(0), torch.empty(0), 1.0)


def _beyond(target: NDArray[np.float32], there: NDArray[np.float32], distances: float) -> NDArray[np.float32]:
    """Unit vectors that lie further from the parents than the targets do."""
    aim: NDArray[np.float32] = target + distances * (target - there)
    aim /= np.linalg.norm(aim, axis=1, keepdims=True)
    return aim
