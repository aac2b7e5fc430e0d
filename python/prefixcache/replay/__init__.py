"""Replay of request traffic through both caches, with everything checked that comes out.

``prefixcache replay --help`` is the way in. What all parts use:

    traces      reads a trace file
    generator   makes a trace of the same shape when there is none
    options     of the command line; cli carries them out
    progress    progress bar, and Ctrl-C
    series      counters as the run went on; histogram: times of calls

The omni part, in the order in which a request passes through it (needs torch):

    content     what a row holds: a function of all tokens before it
    blocks      KV blocks with reference counts, hashes and a free list
    scheduler   continuous batching: hits, chunked prefill, preemption, aborts
    batch       the worker's block table, as vLLM lays it out
    engine      one step after the other through the cache, as vLLM-Omni does it
    checker     compares what comes out, and says what a wrong row is
    costs       what the calls cost, beside a bare copy
    omni        the loop around them, and the summary

Its scheduler decides hits without looking at the cache, and publishes the hash of a
block when it allocates it. So a cache that loses a row, returns one of another request,
or returns it from before or after its time gives wrong bytes here; there is no second
copy of the rows to keep in step.

The context part and the sweep (need the library alone):

    tokens      token ids that agree where hash ids do
    context     one request after the other, every reused page checked
    bounds      what a least-recent and what an optimal cache would reach
    sweep       the library at several sizes, beside the bounds

Results:

    document    a run as JSON, and two runs compared
    charts      its charts and tables as data
    page        the HTML report, with page.css and page.js inside
"""
