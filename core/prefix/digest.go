package prefix

import (
	"crypto/sha256"
	"encoding/binary"

	"libprefixcache/core/status"
)

// Digests are for callers that need a name for a block outside this cache:
// events, remote tiers, a runtime that keys blocks itself. The cache never
// decides by one. They are SHA-256 cut to 128 bits over an unambiguous form, the
// same on every host (C-1).
//
// The form of a block: a domain byte; the parent's 16 bytes; the number of
// positions; all token words, zero at media positions; a presence byte for
// media, and then a bitmap of the media positions and their digests; the extras.
// Tokens and media thus lie in separate fields, so that a (text, media) pair
// never equals a (media, text) pair (D-2).

const (
	domainBlock  = 1
	domainOpaque = 2
)

// ChainRoot is the parent of block 0.
var ChainRoot = Hash128{0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F}

func cut(sum [sha256.Size]byte) Hash128 {
	return Hash128{binary.BigEndian.Uint64(sum[0:]), binary.BigEndian.Uint64(sum[8:])}
}

// OpaqueIdentity names arbitrary bytes: an adapter name, an image. Length and
// trailing zeros matter; empty input has a non-zero identity.
func OpaqueIdentity(data []byte) Hash128 {
	h := sha256.New()
	var head [9]byte
	head[0] = domainOpaque
	binary.LittleEndian.PutUint64(head[1:], uint64(len(data)))
	h.Write(head[:])
	h.Write(data)
	var sum [sha256.Size]byte
	h.Sum(sum[:0])
	return cut(sum)
}

// BlockDigest names a block and everything before it. media is nil or has one
// entry for each token.
func BlockDigest(parent Hash128, tokens []int32, media []Hash128, extras *Extras) (Hash128, error) {
	if media != nil && len(media) != len(tokens) {
		return Hash128{}, status.New(status.InvalidArgument, "media has %d entries, expected one for each of %d tokens", len(media), len(tokens))
	}
	d := digester{}
	return d.block(parent, tokens, media, extras), nil
}

// digester keeps its buffer between blocks of a chain.
type digester struct{ buf, extras []byte }

func (d *digester) block(parent Hash128, tokens []int32, media []Hash128, extras *Extras) Hash128 {
	d.extras = encodeExtras(d.extras[:0], extras)
	return d.encoded(parent, tokens, media, d.extras)
}

func (d *digester) encoded(parent Hash128, tokens []int32, media []Hash128, extras []byte) Hash128 {
	le := binary.LittleEndian
	b := append(d.buf[:0], domainBlock)
	b = le.AppendUint64(le.AppendUint64(b, parent.Hi), parent.Lo)
	b = le.AppendUint64(b, uint64(len(tokens)))
	for i, t := range tokens {
		if media != nil && !media[i].IsZero() {
			t = 0
		}
		b = le.AppendUint32(b, uint32(t))
	}
	if media == nil || !hasMedia(media) { // an all-zero array is no array (C-7)
		b = append(b, 0)
	} else {
		b = append(b, 1)
		bits := len(b)
		b = append(b, make([]byte, (len(media)+7)/8)...)
		for i := range media {
			if !media[i].IsZero() {
				b[bits+i/8] |= 1 << (i % 8)
				b = le.AppendUint64(le.AppendUint64(b, media[i].Hi), media[i].Lo)
			}
		}
	}
	b = append(b, extras...)
	d.buf = b
	return cut(sha256.Sum256(b))
}

// FullBlockChain returns the digests of the full blocks of a prompt, one for
// each; the tail is ignored (C-9). extras is nil or has one
// entry for each full block; media is nil or has one entry for each token (C-10).
func FullBlockChain(tokens []int32, pageTokens int, extras []Extras, media []Hash128) ([]Hash128, error) {
	chain, _, err := digestPrefix(tokens, pageTokens, extras, media, false)
	return chain, err
}

// ExactPrefix returns the digest of the whole prompt, its partial last block
// included. For an aligned prompt it equals the last digest of the chain, for an
// empty one ChainRoot (C-13). extras is nil or has one entry for each touched block.
func ExactPrefix(tokens []int32, pageTokens int, extras []Extras, media []Hash128) (Hash128, error) {
	_, last, err := digestPrefix(tokens, pageTokens, extras, media, true)
	return last, err
}

func digestPrefix(tokens []int32, pageTokens int, extras []Extras, media []Hash128, tail bool) ([]Hash128, Hash128, error) {
	if pageTokens <= 0 {
		return nil, Hash128{}, status.New(status.InvalidArgument, "page tokens is %d, expected > 0", pageTokens)
	}
	if media != nil && len(media) != len(tokens) {
		return nil, Hash128{}, status.New(status.InvalidArgument, "media has %d entries, expected one for each of %d tokens", len(media), len(tokens))
	}
	blocks := len(tokens) / pageTokens
	if tail {
		blocks = (len(tokens) + pageTokens - 1) / pageTokens
	}
	if extras != nil && len(extras) != blocks {
		return nil, Hash128{}, status.New(status.InvalidArgument, "extras has %d entries, expected none or one for each of %d blocks", len(extras), blocks)
	}
	d, parent, out := digester{}, ChainRoot, make([]Hash128, 0, blocks)
	for i := range blocks {
		lo, hi := i*pageTokens, min((i+1)*pageTokens, len(tokens))
		var e *Extras
		if extras != nil {
			e = &extras[i]
		}
		var digests []Hash128
		if media != nil {
			digests = media[lo:hi]
		}
		parent = d.block(parent, tokens[lo:hi], digests, e)
		out = append(out, parent)
	}
	return out, parent, nil
}

// RecordDigests appends the chain of a record's path: one digest for each full
// block, as FullBlockChain would give for its tokens, and one more for the tail of
// a checkpoint that is not aligned (C-13). On the keys level these are the
// caller's own keys. Computed now, from the content, for whoever asks.
func (m *Manager) RecordDigests(id RecordID, out []Hash128) ([]Hash128, error) {
	i := m.recordByID(id)
	if i < 0 {
		return out, status.New(status.NotFound, "record %d is not resident", id)
	}
	r := &m.records[i]
	cells := make([]int32, r.at, r.at+1)
	m.fillCells(r.node, r.at, cells)
	if r.tail >= 0 {
		cells = append(cells, r.tail)
	}
	extras := []byte(m.realms[m.nodes[r.node].realm].name)[1:] // behind the attention byte
	d, parent := digester{}, ChainRoot
	for at, c := range cells {
		words, media := m.content.cell(c), m.content.digests(c)
		if m.cfg.Identity == Keys {
			parent = keyOf(words)
		} else {
			if at == int(r.at) { // the tail fills a part of its cell
				n := int(r.exact) % m.cfg.PageTokens
				words, media = words[:n], media[:min(n, len(media))]
			}
			parent = d.encoded(parent, words, media, extras)
		}
		out = append(out, parent)
	}
	return out, nil
}
