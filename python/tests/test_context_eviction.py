"""What an eviction takes: the config flags, on both levels, and who looks on."""

import pytest
from context_host import Rig, prompt

from prefixcache import PrefixCacheError
from prefixcache.context import ContextCacheManager


@pytest.mark.parametrize("shorten", [False, True])
def test_an_eviction_takes_whole_records_or_what_it_needs(shorten):
    """16 pages of 4: the second prompt needs 3 pages, 2 are free; with the flag the first keeps most of its own."""
    m = ContextCacheManager(base_pages=16, tokens_per_page=4, shorten_victims=shorten)
    for n, seed in ((56, 1), (12, 2)):
        with m.acquire(prompt(n, seed)).lease as lease:
            m.publish(lease, n)
    kept = m.lookup(prompt(57, 1)).reuse_token_length
    assert kept == (28 if shorten else 0)
    assert m.lookup(prompt(13, 2)).reuse_token_length == 12
    m.check_invariants()


@pytest.mark.parametrize("shorten", [False, True])
def test_the_coordinator_takes_the_flag(shorten):
    rig = Rig(pages=9, tokens_per_page=4, shorten_victims=shorten)
    rig.publish(prompt(25, 1))
    rig.publish(prompt(17, 2))
    assert rig.hit(prompt(26, 1)) == (12 if shorten else 0)


class Beside:
    """The library, with what another thread does right before each call of one name."""

    def __init__(self, library, name: str, act) -> None:
        self._library, self._name, self._act = library, name, act

    def __getattr__(self, name):
        if name == self._name:
            self._act()
        return getattr(self._library, name)


def test_records_that_go_while_they_are_listed_are_left_out():
    """Any thread may call: a listing is no error because another thread evicts."""
    with ContextCacheManager(base_pages=8, tokens_per_page=4) as cache:
        for seed in (1, 2, 3):
            with cache.acquire([seed] * 8).lease as lease:
                cache.publish(lease, 8)
        library, gone = cache._library, [2, 3]
        cache._library = Beside(library, "manager_record_pages", lambda: gone and cache.evict(gone.pop(0)))
        assert [(r.id, r.full_block_count, len(r.base_pages)) for r in cache.records()] == [(1, 2, 2)]
        with pytest.raises(PrefixCacheError, match="record 2 is not resident"):
            cache.record_pages(2)
        cache._library = library


def test_a_record_that_is_shortened_while_it_is_listed_has_as_many_blocks_as_pages():
    with ContextCacheManager(base_pages=8, tokens_per_page=4, shorten_victims=True) as cache:
        with cache.acquire(list(range(24))).lease as lease:
            cache.publish(lease, 24)
        library, wanted = cache._library, [16]
        leases = []
        cache._library = Beside(
            library,
            "manager_record_pages",
            lambda: wanted and leases.append(cache.acquire([-1] * wanted.pop()).lease),
        )
        (record,) = cache.records()
        assert record.full_block_count == len(record.base_pages) < 6
        cache._library = library
