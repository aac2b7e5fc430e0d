package omni

// requests finds what is known about a request number: whether it is live, and
// its open deferred write. Go's map would allocate as numbers come and go; this
// is a hash index over a slab, so entry numbers are stable and nothing grows with
// the requests ever served.
type requests struct {
	slab  []request
	free  int32
	index []int32 // open addressing, entry+1, 0 empty; length is a power of two
	used  int
	live  int
	gen   uint64 // changes when an entry goes: entry numbers kept elsewhere are stale
	epoch uint32 // of the marks below
}

// request is one entry.
type request struct {
	num  uint64
	open int32 // open deferred write, or none (O-18)
	next int32 // free list
	live bool
	mark uint32 // epoch of the StepBegin that finishes this request
	born uint32 // epoch of the StepBegin that made this entry
}

const none int32 = -1

func (r *requests) init() {
	r.free = none
	r.index = make([]int32, 64)
}

func (r *requests) hash(num uint64) int {
	h := num * 0x9E3779B97F4A7C15
	return int((h^h>>32)&0xFFFFFFFF) & (len(r.index) - 1)
}

// find returns the entry of num, or none.
func (r *requests) find(num uint64) int32 {
	for i := r.hash(num); ; i = (i + 1) & (len(r.index) - 1) {
		e := r.index[i] - 1
		if e < 0 {
			return none
		}
		if r.slab[e].num == num {
			return e
		}
	}
}

// get returns the entry of num, a fresh one if there is none.
func (r *requests) get(num uint64) int32 {
	if e := r.find(num); e != none {
		return e
	}
	if 2*(r.used+1) > len(r.index) {
		r.grow()
	}
	e := r.free
	if e == none {
		r.slab = append(r.slab, request{})
		e = int32(len(r.slab) - 1)
	} else {
		r.free = r.slab[e].next
	}
	r.slab[e] = request{num: num, open: none, next: none}
	r.place(e)
	r.used++
	return e
}

func (r *requests) place(e int32) {
	i := r.hash(r.slab[e].num)
	for r.index[i] != 0 {
		i = (i + 1) & (len(r.index) - 1)
	}
	r.index[i] = e + 1
}

func (r *requests) grow() {
	old := r.index
	r.index = make([]int32, 2*len(old))
	for _, v := range old {
		if v != 0 {
			r.place(v - 1)
		}
	}
}

// remove forgets entry e. Later entries of the probe chain move up, so that no
// tombstones pile up.
func (r *requests) remove(e int32) {
	mask := len(r.index) - 1
	i := r.hash(r.slab[e].num)
	for r.index[i] != e+1 {
		i = (i + 1) & mask
	}
	for j := i; ; {
		j = (j + 1) & mask
		v := r.index[j]
		if v == 0 {
			break
		}
		if home := r.hash(r.slab[v-1].num); (j-home)&mask >= (j-i)&mask {
			r.index[i] = v
			i = j
		}
	}
	r.index[i] = 0
	if r.slab[e].live {
		r.live--
	}
	r.slab[e] = request{next: r.free, open: none}
	r.free = e
	r.used--
	r.gen++
}

func (r *requests) setLive(e int32) {
	r.slab[e].live = true
	r.live++
}
