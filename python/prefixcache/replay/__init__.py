"""Replay of request traffic through the omni cache, with every row checked.

``python -m prefixcache.replay --help`` is the way in. Parts, in the order in
which a request passes through them:

    traces      reads a trace file
    generator   makes a trace of the same shape when there is none
    content     what a row holds: a function of all tokens before it
    blocks      KV blocks with reference counts, hashes and a free list
    scheduler   continuous batching: hits, chunked prefill, preemption, aborts
    batch       the worker's block table, as vLLM lays it out
    engine      one step after the other through the cache, as vLLM-Omni does it
    checker     compares what comes out, and says what a wrong row is
    report      progress bar and summary

The scheduler decides hits without looking at the cache, and publishes the hash
of a block when it allocates it. So a cache that loses a row, returns one of
another request, or returns it from before or after its time gives wrong bytes
here; there is no second copy of the rows to keep in step.
"""
