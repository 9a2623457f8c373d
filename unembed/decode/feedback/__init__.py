"""Encoder feedback: guesses are embedded, compared with the vector and corrected, within a budget of queries.

- `runner.py`: rounds for a whole batch of vectors
- `search.py`: the population of one vector and its budget
- `propose.py`: what to try next: positions to fill anew, words to insert, delete, move, swap
- `compose.py`: makes those texts, by denoiser or writer, in passes that all vectors share
- `refill.py`: the denoiser fills masks
- `author.py`: the writer goes on with a text, and judges texts
- `foresight.py`: the surrogate chooses what is worth a query
- `whitebox.py`: gradients, where the encoder has them
- `ask.py`: asks the encoder, each text once
- `target.py`: when a vector is met within its own precision
"""

from unembed.decode.feedback.config import FeedbackConfig

__all__ = ["FeedbackConfig"]
