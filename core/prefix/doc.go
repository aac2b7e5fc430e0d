// Package prefix is the CUDA-free manager level of the context cache: which
// prefixes are cached, on which pages, and who may use them. "The original" is the
// ContextCacheManager that the C++ headers replace.
//
// # Identity
//
// A block is page-many tokens, some of which may be media digests instead, or
// one 128-bit key that the caller computed (Config.Identity). Blocks are compared,
// not hashed: a table hash only finds candidates, so two different prefixes never
// share a page, whatever the hash. Extras (adapter, position, embedding,
// isolation, media spans) apply to a whole sequence; each set of them is a realm
// with a tree of its own. SHA-256 digests exist for callers that want names for
// blocks (digest.go); nothing in here decides by one.
//
// # One tree
//
// Everything cached is one path-compressed tree for each realm. A node is a run
// of blocks; its tokens lie at slab[page·P] and its pages are an array of ids, four bytes
// for each (lists.go). Whoever holds a node id keeps it across splits: the new node takes
// the upper half.
//
//	root ── [blocks 0..4) ──┬── [4..9)  ● record 7 (9 blocks)
//	        ● record 3 (2)  └── [4..6)  ● record 8 (6 blocks, +draft path)
//
// A record is a mark in the tree: the node, the block where it ends, and what
// hangs on it (draft path, snapshot slots, the tail of a checkpoint). Its page
// path is the walk from the root. Publishing therefore costs the new blocks only;
// evicting one unlinks the part that nothing covers any more.
//
// # Pages
//
//	          take                  publish
//	free ───────────────► private ───────────► indexed, pinned
//	 ▲                      │                    │        ▲
//	 │      release         │            release │        │ acquire
//	 ├──────────────────────┘                    ▼        │
//	 │                 last record goes       indexed, unpinned
//	 ├───────────────────────────────────────────┘
//	 │      release                           last record goes, pinned
//	 └────────────────────── detached ◄────────── (pages live on with their leases)
//	                            └── publish: attached again ──► indexed, pinned
//
// # Leases
//
// A lease is a list of cells (one for each block it holds) in segments: runs of
// pinned nodes, and private cells. It remembers how far its sequence is in the
// index, so nothing that matched or was published is looked at again.
//
//	Acquire ─► live ─┬─ Append, Grow, Publish, Reserve, PublishHybrid, Retire, ReleaseRestored ─┐
//	                 └──────────────────────────────◄───────────────────────────────────────────┘
//	live ─► Release ─► stale (every call is a BadHandle error)
//	live ─► Invalidate or Flush ─► live, but what it publishes is dropped
//
// # Eviction
//
// Every page that is neither free nor owned by a lease is reclaimable, so
// feasibility is a subtraction (C-42). Only a feasible demand evicts, record by
// record in the order of Order, until it fits: the shortest prefix (C-41).
// Config.ShortenVictims lets the last victim keep what is not needed.
//
// # Invariants (Check verifies them; the tests call it after every operation)
//
//   - A page is in exactly one place: free list, private, or one node.
//   - The index is prefix-closed; every leaf ends in a record (C-67, C-69).
//   - Children of a node differ in their first block (C-22).
//   - Pins of a node = leases whose segments contain it (C-68).
//   - free + pages with any count = capacity, in each pool (C-70); without leases
//     and records everything is free (C-71).
//
// # Concurrency and memory
//
// One writer: the caller serialises all calls. No goroutine, no lock, no clock.
// Big metadata is slabs of plain values linked by index, so the garbage collector
// has nothing to scan; tokens lie outside the Go heap. In the steady state no
// operation allocates, but for the lists of nodes, which are put together anew when free
// arrays of the wrong sizes fill half of their room.
package prefix
