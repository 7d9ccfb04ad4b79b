"""KVStorage: values per request, safe under threads."""

from __future__ import annotations

import threading

import pytest

from headrace_flow import KVStorage, RequestNotFoundError


def test_values_are_kept_per_request():
    storage = KVStorage()
    storage.add("a")
    storage.add("b")
    storage.insert("a", "k", 1)
    storage.insert_or_assign("a", "k", 2)
    storage.insert_or_assign("b", "k", 3)
    assert (storage.get("a", "k"), storage.get("b", "k")) == (2, 3)
    assert storage.get("a", "none") is None
    assert storage.get("a", "none", 7) == 7
    assert len(storage) == 2
    storage.remove("a")
    assert not storage.contains("a")
    assert storage.contains("b")


def test_what_is_there_already_is_a_key_error():
    storage = KVStorage()
    storage.add("a")
    storage.insert("a", "k", None)
    with pytest.raises(KeyError):
        storage.add("a")
    with pytest.raises(KeyError):
        storage.insert("a", "k", 1)
    assert storage.contains("a", "k")
    assert not storage.contains("a", "other")


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.insert("x", "k", 1),
        lambda s: s.insert_or_assign("x", "k", 1),
        lambda s: s.get("x", "k"),
        lambda s: s.get("x", "k", 1),
        lambda s: s.items("x"),
        lambda s: s.remove("x"),
    ],
)
def test_an_unknown_request_is_an_error_of_its_own(call):
    with pytest.raises(RequestNotFoundError) as caught:
        call(KVStorage())
    assert isinstance(caught.value, KeyError)
    assert caught.value.request_id == "x"


def test_contains_takes_an_unknown_request():
    assert not KVStorage().contains("x")
    assert not KVStorage().contains("x", "k")


def test_items_are_a_copy():
    storage = KVStorage()
    storage.add("a")
    storage.insert("a", "k", 1)
    storage.items("a")["k"] = 2
    assert storage.items("a") == {"k": 1}


def test_of_many_threads_one_inserts_and_no_value_is_lost():
    storage, start = KVStorage(), threading.Barrier(8)
    won = []

    def work(number):
        start.wait()
        for i in range(200):
            try:
                storage.add(i)
                won.append(i)
            except KeyError:
                pass
            storage.insert(i, f"k{number}", number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == list(range(200))
    assert all(len(storage.items(i)) == 8 for i in range(200))
