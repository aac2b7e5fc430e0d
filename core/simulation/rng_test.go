package simulation

import "math/bits"

// rng is the only source of choice in a run: splitmix64, a word of state, so that
// every operation of a plan can have one of its own.
type rng struct{ x uint64 }

func (r *rng) next() uint64 {
	r.x += 0x9e3779b97f4a7c15
	return scramble(r.x)
}

func scramble(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// n is a number in [0, n).
func (r *rng) n(n int) int {
	hi, _ := bits.Mul64(r.next(), uint64(n))
	return int(hi)
}

func (r *rng) in(low, high int) int { return low + r.n(high-low+1) }
func (r *rng) oneIn(n int) bool     { return r.n(n) == 0 }

// pick is an index of weights, each as likely as its weight; -1 when all are 0.
func (r *rng) pick(weights []int) int {
	sum := 0
	for _, w := range weights {
		sum += w
	}
	if sum == 0 {
		return -1
	}
	at := r.n(sum)
	for i, w := range weights {
		if at -= w; at < 0 {
			return i
		}
	}
	panic("pick")
}
