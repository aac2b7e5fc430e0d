package main

/*
#include "shim.h"
*/
import "C"

import (
	"unsafe"

	"libprefixcache/core/prefix"
	"libprefixcache/core/status"
)

//export pcgo_digest_sequence
func pcgo_digest_sequence(sequence *C.pc_sequence, tokensPerPage C.int32_t, digests *C.pc_hash128, numDigests C.uint64_t, prefixDigest *C.pc_hash128) (st C.pc_status) {
	defer guard(&st)
	var args sequenceArgs
	var req prefix.AcquireRequest
	if err := args.request(sequence, false, &req); err != nil {
		return fail(err)
	}
	if err := aligned("prefix", prefixDigest); err != nil {
		return fail(err)
	}
	blocks, serr := slice[prefix.Hash128]("digests", unsafe.Pointer(digests), numDigests)
	if serr != nil {
		return fail(serr)
	}
	p := int(tokensPerPage)
	if p < 1 || len(blocks) != len(req.Tokens)/p {
		return failNew(status.InvalidArgument, "tokens_per_page and num_digests: %d and %d, expected at least 1 and one digest for each full block of %d tokens", p, len(blocks), len(req.Tokens))
	}
	all, err := prefix.Digests(blocks, req.Tokens, req.Media, req.Extras, p)
	if err == nil && prefixDigest != nil {
		*prefixDigest = C.pc_hash128{high: C.uint64_t(all.Hi), low: C.uint64_t(all.Lo)}
	}
	return fail(err)
}

//export pcgo_digest_bytes
func pcgo_digest_bytes(data unsafe.Pointer, size C.uint64_t, out128 *C.pc_hash128) (st C.pc_status) {
	defer guard(&st)
	bytes, err := slice[byte]("data", data, size)
	if err != nil {
		return fail(err)
	}
	if err := out("digest", out128); err != nil {
		return fail(err)
	}
	h := prefix.OpaqueIdentity(bytes)
	*out128 = C.pc_hash128{high: C.uint64_t(h.Hi), low: C.uint64_t(h.Lo)}
	return C.PC_OK
}
