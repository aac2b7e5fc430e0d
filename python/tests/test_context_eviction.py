"""Config flags that change what an eviction takes, on both levels."""

import pytest
from context_host import Rig, prompt

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
