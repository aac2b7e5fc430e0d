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

// Digests names the full blocks of a sequence into chain, which has one entry for each:
// every block with all that is before it. It returns the digest of the whole sequence,
// partial tail included (C-9): without a tail the last of the chain, without a token
// ChainRoot (C-13). media is nil or has one entry for each token (C-10); extras apply to
// every block (C-11).
func Digests(chain []Hash128, tokens []int32, media []Hash128, extras *Extras, pageTokens int) (Hash128, error) {
	switch {
	case pageTokens <= 0:
		return Hash128{}, status.New(status.InvalidArgument, "page tokens is %d, expected > 0", pageTokens)
	case len(chain) != len(tokens)/pageTokens:
		return Hash128{}, status.New(status.InvalidArgument, "chain has %d entries, expected one for each full block of %d tokens", len(chain), len(tokens))
	case media != nil && len(media) != len(tokens):
		return Hash128{}, status.New(status.InvalidArgument, "media has %d entries, expected one for each of %d tokens", len(media), len(tokens))
	}
	d, parent, name := digester{}, ChainRoot, encodeExtras(nil, extras)
	for lo := 0; lo < len(tokens); lo += pageTokens {
		hi := min(lo+pageTokens, len(tokens))
		var part []Hash128
		if media != nil {
			part = media[lo:hi]
		}
		parent = d.block(parent, tokens[lo:hi], part, name)
		if i := lo / pageTokens; i < len(chain) {
			chain[i] = parent
		}
	}
	return parent, nil
}

// digester keeps its buffer between blocks of a chain.
type digester struct{ buf []byte }

func (d *digester) block(parent Hash128, tokens []int32, media []Hash128, extras []byte) Hash128 {
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
