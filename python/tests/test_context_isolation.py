"""Identities through the C ABI: sequences that differ in one field share nothing."""

import itertools

import pytest

from prefixcache.context import (
    AdapterIdentity,
    BlockKeyExtras,
    ContextCacheManager,
    ContextCacheSequenceAdmission,
    Hash128,
    MediaSpan,
    ReusePlanMode,
)

A, B, ZERO = Hash128(1, 2), Hash128(2, 1), Hash128(0, 0)
TOKENS = list(range(1, 13))


def identities():
    """Name -> extras and media digests; the tokens are the same for all."""
    found = {"plain": (None, ())}
    for h in (ZERO, A, B):
        found[f"isolation {h}"] = (BlockKeyExtras(isolation_digest=h), ())
        found[f"position {h}"] = (BlockKeyExtras(position_digest=h), ())
        found[f"embedding {h}"] = (BlockKeyExtras(custom_embedding_digest=h), ())
        for generation in (0, 1):
            found[f"adapter {h} generation {generation}"] = (BlockKeyExtras(adapter=AdapterIdentity(h, generation)), ())
    spans = [MediaSpan(A, B, 1, 0, 1), MediaSpan(B, B, 1, 0, 1), MediaSpan(A, A, 1, 0, 1), MediaSpan(A, B, 2, 0, 1)]
    spans += [MediaSpan(A, B, 1, 1, 1), MediaSpan(A, B, 1, 0, 2)]
    for i, span in enumerate(spans):
        found[f"span {i}"] = (BlockKeyExtras(media_spans=[span]), ())
    found["spans"] = (BlockKeyExtras(media_spans=spans[:2]), ())
    found["spans turned"] = (BlockKeyExtras(media_spans=spans[1::-1]), ())
    for name, media in (("a", [A]), ("b", [B]), ("a later", [None, A]), ("like the token", [Hash128(0, TOKENS[0])])):
        found[f"media {name}"] = (None, media + [None] * (len(TOKENS) - len(media)))
    return found


@pytest.mark.parametrize("mode", [ReusePlanMode.VANILLA, ReusePlanMode.SPEC])
def test_all_pairs_of_identities_stay_apart_with_every_lookup_colliding(mode):
    everyone = identities()
    assert len(everyone) == len({repr(v) for v in everyone.values()}) == 28
    for first, second in itertools.permutations(everyone, 2):
        with ContextCacheManager(
            base_pages=8, draft_pages=8, tokens_per_page=4, max_records=4, weak_hash=True
        ) as manager:
            pages = []
            for name in (first, second):
                extras, media = everyone[name]
                result = manager.acquire(ContextCacheSequenceAdmission(TOKENS, extras, media), mode)
                assert result.plan.matched_token_length == 0, (first, second, result.plan)
                manager.publish(result.lease, len(TOKENS))
                pages.append(set(result.lease.base_pages()) | {("draft", p) for p in result.lease.draft_pages()})
            assert not pages[0] & pages[1], (first, second)
            manager.check_invariants()
            for name in (first, second):  # each finds its own again, so a hit would have been seen
                extras, media = everyone[name]
                assert (
                    manager.lookup(ContextCacheSequenceAdmission(TOKENS, extras, media), mode).matched_token_length
                    == 12
                )
