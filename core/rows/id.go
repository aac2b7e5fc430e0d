package rows

// makeID packs the index of a buffer and its generation. Generations start at 1,
// so 0 is never an id and a zeroed struct never names a buffer. A generation
// comes round after 2^32 uses of one index.
func makeID(index int32, gen uint32) uint64 { return uint64(gen)<<32 | uint64(uint32(index)) }

func splitID(id uint64) (index uint32, gen uint32) { return uint32(id), uint32(id >> 32) }

// nextGen skips 0.
func nextGen(gen uint32) uint32 {
	if gen++; gen == 0 {
		gen = 1
	}
	return gen
}

// none ends a list of indexes.
const none int32 = -1
