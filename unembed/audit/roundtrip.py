"""Do vectors come back when they are inverted and embedded again? The last word on which encoder made them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from unembed.audit import fingerprint, forms
from unembed.audit.topics import labelled
from unembed.measure.metrics import cosine

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unembed.audit.forms import Form
    from unembed.data.encoders import Encoder
    from unembed.inverter import Inverter

ROUND_TRIPS, STEPS = 16, 4
# A round trip must bring vectors back so much nearer than its controls. Measured at 4 steps: MiniLM .51 nearer, its
# bits .27, with noise of half its length .37; e5-small, rotated vectors and half of MiniLM's layers at most .10.
GAP = 0.2
# The same for vectors that look like the encoder's by their fingerprint, as a share of what its own vectors of known
# sentences reach. Measured, in floats, int8 and bits: its vectors of sentences .9 to 1, of long or alike documents .4
# to .6. Models that share its axes and not its meaning (3 of its 6 layers, weights with noise) .16 to .27: these are
# refused. One without the last layer has .23 in floats and .5 in int8 by range and in bits, like documents: it is
# called less likely, and not more can be told from there.
FOREIGN, DOUBTFUL = 1 / 3, 2 / 3
DOUBT = 0.6  # the most confidence that is left then


@dataclass(frozen=True, slots=True)
class Trip:
    """Mean cosines of vectors that were inverted and embedded again, and of what they are compared with."""

    spec: str
    count: int
    own: float
    others: float
    """What came back, to the vectors of other rows."""
    random: float
    """Vectors of no text."""
    known: float
    """The encoder's own vectors, of sentences that we have."""

    @property
    def gap(self) -> float:
        """How much nearer the vectors come back than the controls."""
        return self.own - max(self.others, self.random)

    @property
    def share(self) -> float | None:
        """Of what the encoder's own vectors reach above chance; None where an inverter brings not even those back."""
        return None if self.known - self.random < GAP else (self.own - self.random) / (self.known - self.random)

    @property
    def told(self) -> str:
        """In words."""
        return (
            f"{self.count} vectors, inverted and embedded again by {self.spec}, come back with cosine "
            f"{self.own:.2f} (random vectors {self.random:.2f}, other rows {self.others:.2f}, its own vectors of "
            f"known sentences {self.known:.2f})"
        )


def travel(
    stored: NDArray[np.float32], form: Form, inverter: Inverter, encoder: Encoder, rng: np.random.Generator
) -> Trip:
    """Invert, embed again, compare: stored vectors, random ones, and the encoder's own in the same form."""
    spec = inverter.encoder.spec
    ready, _ = forms.usable(stored, form, fingerprint.find(spec), form.dim)
    ours = forms.unit(ready[rng.choice(len(ready), min(ROUND_TRIPS, len(ready)), replace=False)])
    chance = forms.unit(rng.standard_normal((len(ours), form.dim)).astype(np.float32))
    sentences = [str(text) for text in rng.choice(labelled("check")[0], len(ours), replace=False)]
    known = forms.unit(forms.as_stored(encoder.encode(sentences), form))
    asked = np.concatenate([ours, chance, known])
    again = encoder.encode([one.text for one in inverter.invert(asked, steps=STEPS)])
    own, random, best = (float(part.mean()) for part in np.split(cosine(again, asked), 3))
    others = float(cosine(again[: len(ours)], np.roll(ours, 1, axis=0)).mean())
    return Trip(spec, len(ours), own, others, random, best)
