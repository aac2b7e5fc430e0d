"""Quotas and statistics of tenants, through the C ABI."""

import pytest

from prefixcache import PrefixCacheError
from prefixcache.context import (
    BlockKeyExtras,
    ContextCacheManager,
    ContextCacheSequenceAdmission,
    Hash128,
)

ONE, TWO = Hash128(1, 0), Hash128(2, 0)


def prompt(first, tenant, length=16):
    extras = BlockKeyExtras(isolation_digest=tenant) if tenant else None
    return ContextCacheSequenceAdmission(list(range(first, first + length)), extras)


def serve(manager, first, tenant, length=16):
    result = manager.acquire(prompt(first, tenant, length))
    if result.lease is None:
        return False
    manager.publish(result.lease, length)
    result.lease.release()
    return True


def tenant(manager, isolation):
    return {t.isolation: t for t in manager.tenants()}[isolation]


@pytest.mark.parametrize("quota, left", [(0, 0), (1000, 0), (500, 16)])
def test_one_tenant_cannot_flush_another(quota, left):
    with ContextCacheManager(base_pages=40, tokens_per_page=4, tenant_quota=quota) as manager:
        for i in range(4):
            serve(manager, 100 * i, ONE)
        for i in range(50):
            serve(manager, 100 * i, TWO)
        assert sum(manager.lookup(prompt(100 * i, ONE)).matched_token_length for i in range(4)) == 4 * left
        manager.check_invariants()
        if quota == 0:
            assert manager.tenants() == []
            with pytest.raises(PrefixCacheError, match="tenant_quota is 0"):
                manager.set_quota(ONE, 100)
            return
        one, two = tenant(manager, ONE), tenant(manager, TWO)
        assert (one.leases, one.query_tokens, one.hit_tokens, two.leases) == (4, 64, 0, 50)
        assert one.evicted_by_others == two.evicted_others == (4 if quota == 1000 else 0)
        assert (two.pages, two.quota_pages) == ((40, 40) if quota == 1000 else (20, 20))


def test_what_is_refused_says_quota_and_changes_nothing():
    with ContextCacheManager(base_pages=40, tokens_per_page=4, tenant_quota=250) as manager:
        lease = manager.acquire(prompt(0, ONE, 24)).lease  # 6 of 10 pages
        before = manager.dump()
        assert manager.acquire(prompt(500, ONE, 20)).lease is None
        assert not manager.grow(lease, 5)
        assert manager._library.last_error().decode().startswith("quota")
        assert manager.dump() == before
        assert tenant(manager, ONE).refused == 2
        assert manager.grow(lease, 4)
        other = manager.acquire(prompt(500, None, 40)).lease  # those without a key are a tenant, too
        assert other is not None
        assert tenant(manager, None).active_pages == 10
        manager.set_quota(None, 100)
        manager.set_quota(ONE, 1000)
        assert manager.grow(lease, 5)
        assert (tenant(manager, ONE).quota, tenant(manager, None).quota_pages) == (1000, 4)
        manager.check_invariants()


def test_hits_are_counted_for_their_tenant():
    with ContextCacheManager(base_pages=40, tokens_per_page=4, tenant_quota=1000) as manager:
        serve(manager, 0, ONE)
        serve(manager, 0, ONE)
        serve(manager, 0, TWO)
        assert [tenant(manager, t).hit_tokens for t in (ONE, TWO)] == [12, 0]


def test_more_tenants_than_room():
    with ContextCacheManager(base_pages=400, tokens_per_page=4, tenant_quota=1000) as manager:
        for i in range(100):
            serve(manager, 0, Hash128(i + 1, 0), 4)
        assert len(manager.tenants()) == 100
