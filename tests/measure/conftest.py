from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.measure.doubles import ListDataset, LookupInverter, make_texts


@pytest.fixture(scope="session")
def test_texts() -> list[str]:
    """Forty unseen texts."""
    return make_texts("test", 40)


@pytest.fixture
def inverter(test_texts: list[str]) -> LookupInverter:
    """Knows the forty."""
    return LookupInverter(test_texts)


@pytest.fixture(scope="session")
def training() -> Callable[[], ListDataset]:
    """Sixty training texts, fresh on each call."""
    texts = make_texts("train", 60, seed=1)
    return lambda: ListDataset(texts)
