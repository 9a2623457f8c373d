"""Batches that are decoded side by side: the same texts, in order, and nothing is left behind."""

import threading
import time

import pytest
import torch

from tests.decode.conftest import make_inverter, make_net, make_vectors
from tests.decode.test_feedback import Small, invert
from unembed.decode import DecodeConfig, engine
from unembed.decode.feedback import runner
from unembed.decode.parallel import MOST, shared_out, side_by_side

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_results_come_in_order_from_threads_that_share_what_torch_may_use():
    seen = set()
    meet = threading.Barrier(2, timeout=10)

    def work(item):
        if item < 2:
            meet.wait()  # two are at work at the same time, or nobody goes on
        seen.add((threading.current_thread().name, torch.get_num_threads()))
        time.sleep(0.01 * (6 - item))  # the first ones take longest
        return item

    assert list(side_by_side(work, range(6), CPU)) == [0, 1, 2, 3, 4, 5]
    assert {name for name, _ in seen} == {"decode_0", "decode_1"}
    assert {count for _, count in seen} == {1}
    assert torch.get_num_threads() == 2


def test_of_many_threads_each_batch_gets_some():
    torch.set_num_threads(3 * MOST)
    meet = threading.Barrier(MOST, timeout=10)

    def work(item):
        meet.wait()
        return torch.get_num_threads()

    assert list(side_by_side(work, range(2 * MOST), CPU)) == [3] * 2 * MOST


@pytest.mark.parametrize(("items", "count"), [([1], 2), ([1, 2], 1)])
def test_one_item_or_one_thread_stays_where_it_is(items, count):
    torch.set_num_threads(count)
    here = threading.current_thread()
    assert list(side_by_side(lambda item: threading.current_thread() is here, items, CPU)) == [True] * len(items)


@pytest.mark.parametrize("stop", [ZeroDivisionError, KeyboardInterrupt])
def test_after_an_error_nothing_more_is_begun_and_the_threads_are_as_before(stop):
    begun = []

    def work(item):
        begun.append(item)
        time.sleep(0.02)
        if item == 1:
            raise stop
        return item

    with pytest.raises(stop):
        list(side_by_side(work, range(100), CPU))
    assert len(begun) < 10
    assert torch.get_num_threads() == 2
    assert not [one for one in threading.enumerate() if one.name.startswith("decode")]


def test_texts_are_those_of_one_batch_after_the_other(monkeypatch):
    net, vectors, config = make_net(), make_vectors(24), DecodeConfig(steps=4, lengths=2)
    beside = list(engine.decode(net, vectors, config, batch_size=3))
    monkeypatch.setattr(engine, "side_by_side", lambda work, items, device: map(work, items))
    assert [[one.tokens for one in some] for some in engine.decode(net, vectors, config, batch_size=3)] == [
        [one.tokens for one in some] for some in beside
    ]


def test_the_searches_of_a_batch_are_shared_out_and_find_the_same(monkeypatch):
    inverter, vectors = make_inverter(corrects=True, foresees=True), make_vectors(5)
    shares = []
    real = runner.Runner._drafts

    def drafts(self, active):
        shares.append((len(active), threading.current_thread() is threading.main_thread()))
        return real(self, active)

    monkeypatch.setattr(runner.Runner, "_drafts", drafts)
    texts = []
    for count in (1, 2):
        torch.set_num_threads(count)
        texts.append([one.text for one in invert(inverter, vectors, Small())])
    assert texts[0] == texts[1]
    assert {5, 3, 2} <= {size for size, _ in shares}
    assert {size for size, here in shares if here} >= {5}
    assert not any(here for size, here in shares if size == 3)


@pytest.mark.parametrize(("count", "sizes"), [(0, []), (1, [1]), (2, [1, 1]), (5, [3, 2])])
def test_items_are_shared_out_as_they_stand(count, sizes):
    parts = shared_out(range(count))
    assert [len(part) for part in parts] == sizes
    assert [one for part in parts for one in part] == list(range(count))
