"""Rounds for a whole batch: the denoiser's passes, the encoder's call and the gradients are shared by all vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from unembed.data.text import decode as text_of
from unembed.decode import engine
from unembed.decode.config import WRITER
from unembed.decode.feedback.ask import Asker, Encodes
from unembed.decode.feedback.compose import Composer, Filled
from unembed.decode.feedback.config import FeedbackConfig
from unembed.decode.feedback.foresight import Foresight
from unembed.decode.feedback.propose import (
    Hypothesis,
    draw_parent,
)
from unembed.decode.feedback.refill import Blank
from unembed.decode.feedback.search import Proposal, Search
from unembed.decode.feedback.target import entries, tolerance
from unembed.decode.feedback.whitebox import Differentiable, Slopes
from unembed.decode.parallel import shared_out, side_by_side
from unembed.decode.texts import generator, key_of
from unembed.errors import ConfigError, EncoderError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tokenizers import Tokenizer
    from torch import Tensor

    from unembed.decode.config import DecodeConfig
    from unembed.decode.plan import Candidate
    from unembed.model.denoiser import Denoiser
    from unembed.model.echo import Echo
    from unembed.model.surrogate import Surrogate
    from unembed.model.writer import Writer

# Passes in which the masks of a proposal are filled.
PASSES = 2
# The best hypotheses of a round get a gradient each.
SLOPES = 2
# Proposals beyond what is left of the budget: some will be known already.
SPARE = 4

Progress = Callable[[int, int], None]
"""Called after each round with what was spent of the budgets of all vectors so far, and their sum."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a search ended with."""

    row: int
    start: Candidate
    """The answer without feedback."""
    best: list[Hypothesis]
    """The answer, then others; empty if the encoder was never heard."""
    queries: int
    gradients: int
    history: list[tuple[int, str, float]]
    """Each new answer on the way: what had been spent then, the text, its cosine."""
    note: str = ""
    """Why it ended before its time; empty if it did not."""


class Runner:
    """What the searches of all vectors share."""

    def __init__(
        self,
        net: Denoiser,
        tokenizer: Tokenizer,
        encoder: Encodes,
        decoding: DecodeConfig,
        config: FeedbackConfig,
        surrogate: Surrogate | None = None,
        words: Tensor | None = None,
        writer: Writer | None = None,
        echo: Echo | None = None,
    ) -> None:
        """`words` as in `engine.decode`, of the same surrogate: they steer the first answers and what masks become.

        `writer` writes the first answers, where the settings of decoding leave it to do so.
        """
        decoding = decoding.resolved(writer is not None)
        self._net, self._tokenizer, self._decoding, self._config = net, tokenizer, decoding, config
        self._writer = writer = None if writer is None else engine.light(writer, decoding.precision)
        self._words = words
        self._echo = echo = None if echo is None else engine.light_echo(echo, decoding.precision)
        self._foresight = Foresight(surrogate, echo) if surrogate is not None and config.foresight else None
        self._slopes = _slopes(encoder, tokenizer, net.config.mask_id, config)
        self._composer = Composer(
            net, decoding, config, slopes=self._slopes, flips=self._uses("swaps"),
            foresight=self._foresight, words=words, writer=writer,
        )  # fmt: skip
        self.asker = Asker(encoder, net.config.vector_dim)

    def run(
        self,
        vectors: NDArray[np.float32],
        batch_size: int,
        progress: Progress | None = None,
        improved: Callable[[Found], None] | None = None,
    ) -> Iterator[Found]:
        """Search for every vector (n, d), `config.batch` at a time; each is handed out when it is done.

        When the encoder fails, or the user interrupts, the best texts so far of the vectors at work are handed out with
        a note; then the error is raised. `improved` is given every better answer on the way.
        """
        size, budget = self._config.batch, self._config.budget
        for first in range(0, len(vectors), size):
            part = vectors[first : first + size]
            plain = replace(self._decoding, n_best=self._config.starts if self._written else 1)
            decoded = engine.decode(
                self._net, part, plain, batch_size=batch_size, words=self._words, writer=self._writer, echo=self._echo
            )
            texts = list(decoded)
            answers = [found[0] for found in texts]
            searches = [self._search(vector) for vector in part]
            failure: BaseException | None = None
            for failure in self._until_failure(self._rounds(searches, texts)):
                if progress is not None:
                    spent = sum(budget if one.done else one.queries + one.gradients for one in searches)
                    progress(first * budget + spent, len(vectors) * budget)
                for row, search in enumerate(searches):
                    if search.handed_out:
                        continue
                    found = self._found(first + row, answers[row], search, failure)
                    if improved is not None and search.news():
                        improved(found)
                    if search.done or failure is not None:
                        search.handed_out = True
                        yield found
            if failure is not None:
                raise failure
            self.asker.forget()

    def _until_failure(self, rounds: Iterator[None]) -> Iterator[BaseException | None]:
        """None after each round; what went wrong as the last item, if something did."""
        while True:
            try:
                next(rounds)
            except StopIteration:
                return
            except (EncoderError, KeyboardInterrupt) as error:
                yield error
                return
            yield None

    def _found(self, row: int, start: Candidate, search: Search, failure: BaseException | None) -> Found:
        note = "" if search.population else "without encoder feedback: it gave no usable vector for the first text"
        if failure is not None:
            note = _note(failure)
        return Found(row, start, search.best(), search.queries, search.gradients, search.history, note)

    def _rounds(self, searches: list[Search], starts: list[list[Candidate]]) -> Iterator[None]:
        """All there is to do, a round at a time; first of all the answer without feedback of every vector."""
        for kind, first, last in (("answer", 0, 1), ("start", 1, None)):
            some = [(search, one) for search, found in zip(searches, starts, strict=True) for one in found[first:last]]
            if some:
                self._ask_candidates([(search, one) for search, one in some if not search.done], kind)
                yield
        if self._config.starts > 1 and self._decoding.length is None and not self._written:
            self._ask_blanks(self._composer.other_lengths([search for search in searches if not search.done]))
            yield
        if self._uses("guidance"):
            steps = self._config.guide_steps
            able = [search for search in searches if not search.done and search.left > steps]
            self._ask_blanks(self._composer.guided(able))
            yield
        while active := [search for search in searches if not search.done]:
            if self._uses("swaps"):
                self._differentiate(active)
            self._round(active)
            yield

    @property
    def _written(self) -> bool:
        """The first texts are the writer's."""
        return self._decoding.strategy == WRITER

    def _uses(self, what: str) -> bool:
        wanted = "swaps" if self._config.gradients == "auto" else self._config.gradients
        return self._slopes is not None and wanted in (what, "all")

    def _search(self, vector: NDArray[np.float32]) -> Search:
        config = self._config
        rng = generator(key_of(vector, config.seed))
        unit = vector / np.linalg.norm(vector)
        return Search(
            unit, config.budget, rng, tolerance(vector), config.population, config.likelihood_weight, entries(vector)
        )

    def _round(self, active: list[Search]) -> None:
        """Some changes of each population, filled and asked about."""
        shares = shared_out(active)
        self._ask_blanks([one for made in side_by_side(self._drafts, shares, self._net.bias.device) for one in made])

    def _drafts(self, active: Sequence[Search]) -> list[Filled]:
        """What to ask about for each search."""
        drafts: list[Filled] = []
        wanted = []
        for search in active:
            for tokens, sure in search.merged:
                blank = Blank(tokens, sure, torch.empty(0), torch.empty(0), 1.0)  # nothing to fill
                drafts.append((search, blank, "merge", None))
            wanted.append((search, min(self._config.proposals, search.left + SPARE) - len(search.merged)))
        if self._foresight is None:
            pairs = [(search, one) for search, n in wanted for one in self._parents(search, n)]
            drafts += self._composer.changes(pairs, 1, PASSES)
        else:
            drafts += self._foreseen(wanted, self._foresight)
        return drafts

    def _foreseen(self, wanted: list[tuple[Search, int]], foresight: Foresight) -> list[Filled]:
        """Of many changes, and changes of the best of those, as many for each search as are wanted."""
        pools: dict[int, dict[str, tuple[Hypothesis, Filled]]] = {id(search): {} for search, _ in wanted}
        best: dict[int, list[tuple[Hypothesis, Filled]]] = {}
        count = self._config.drafts
        pairs = [(search, one) for search, n in wanted for one in self._parents(search, count * n)]
        for depth in range(self._config.depth):
            changes = self._composer.changes(pairs, self._config.variants, 1)
            if not depth:
                changes += self._composer.rewrites([search for search, _ in wanted])
            texts = text_of(self._tokenizer, [blank.tokens for _, blank, _, _ in changes])
            with engine.inference(self._net, self._decoding.precision):
                seen = foresight.see(changes, texts)
            for one, (search, blank, kind, _) in zip(seen, changes, strict=True):
                if one.text and not search.knows(one.text):
                    pools[id(search)].setdefault(one.text, (one, (search, blank, kind, one.parent)))
            for search, n in wanted:
                pool = sorted(pools[id(search)].values(), key=lambda item: search.rank(item[0]))
                best[id(search)] = pool[: max(n, 0)]
            pairs = [(search, one) for search, _ in wanted for one, _ in best[id(search)]]
        return [filled for search, _ in wanted for _, filled in best[id(search)]]

    def _parents(self, search: Search, count: int) -> list[Hypothesis]:
        """Whom to change; in Vec2Text's loop every one of the beam."""
        if self._config.corrector == "only":
            return list(search.population)
        return [draw_parent(search.population, search.rng) for _ in range(count)]

    def _differentiate(self, active: list[Search]) -> None:
        """The gradient near the best hypotheses that have none yet; one query is left to use it."""
        wanted = []
        for search in active:
            for one in search.population[:SLOPES]:
                if one.slope is None and search.left > 1:
                    search.gradients += 1
                    wanted.append((search, one))
        if wanted and self._slopes is not None:
            targets = torch.from_numpy(np.stack([search.vector for search, _ in wanted]))
            slopes = self._slopes.at_texts([one.tokens for _, one in wanted], targets)
            missing = self._composer.missing_words(wanted)
            for (_, one), slope, (chances, words) in zip(wanted, slopes, missing, strict=True):
                one.slope = slope
                here = self._slopes.words[list(one.tokens)]  # (L, d)
                one.fit = (slope @ here.T).numpy()
                gain = slope @ self._slopes.words[words].T - (slope * here).sum(1, keepdim=True)
                promise = self._config.swap_scale * gain + chances
                promise[torch.tensor(one.tokens)[:, None] == words] = -torch.inf  # it stands there already
                one.flips = (words.numpy(), promise.numpy())

    def _ask_candidates(self, found: list[tuple[Search, Candidate]], kind: str) -> None:
        """Texts that were decoded without feedback."""
        nothing = torch.empty(0)
        blanks = [Blank(list(one.tokens), list(one.confidence), nothing, nothing, 1.0) for _, one in found]
        self._ask_blanks([(search, blank, kind, None) for (search, _), blank in zip(found, blanks, strict=True)])

    def _ask_blanks(self, drafts: list[Filled]) -> None:
        texts = text_of(self._tokenizer, [blank.tokens for _, blank, _, _ in drafts])
        for _ in side_by_side(self._composer.judge, shared_out(drafts), self._net.bias.device):
            pass
        by_search: dict[int, tuple[Search, list[Proposal]]] = {}
        for (search, blank, kind, parent), text in zip(drafts, texts, strict=True):
            proposal = Proposal(tuple(blank.tokens), tuple(blank.sure), text, kind, parent, blank.aim)
            by_search.setdefault(id(search), (search, []))[1].append(proposal)
        self._ask(list(by_search.values()))

    def _ask(self, proposals: list[tuple[Search, list[Proposal]]]) -> None:
        """One call of the encoder for all. Texts of a call that fails stay charged: the encoder has seen them."""
        asked = [(search, search.admit(some)) for search, some in proposals]
        vectors = self.asker.vectors(proposal.text for _, some in asked for proposal in some)
        for search, some in asked:
            search.take(some, vectors)


def _slopes(encoder: Encodes, tokenizer: Tokenizer, mask_id: int, config: FeedbackConfig) -> Slopes | None:
    if config.gradients == "off":
        return None
    if isinstance(encoder, Differentiable):
        return Slopes(encoder, tokenizer, mask_id)
    if config.gradients == "auto":
        return None
    raise ConfigError(f"gradients is {config.gradients!r}, but this encoder has none: use 'auto' or 'off'")


def _note(failure: BaseException) -> str:
    what = "interrupted" if isinstance(failure, KeyboardInterrupt) else str(failure)
    return f"the search ended early: {what}"
