package omni

import (
	"slices"
	"unsafe"

	"libprefixcache/core/status"
)

// area is a piece of the caller's memory that a call writes, and the read it is of.
type area struct {
	from, to uintptr
	read     int
}

// beyond reports whether n bytes at p reach past the end of the address space. Such
// memory cannot be, and sums of addresses would wrap.
func beyond(p unsafe.Pointer, n int64) bool { return uintptr(p)+uintptr(n) < uintptr(p) }

// overlap compares addresses only; the ranges may be of any memory.
func overlap(a unsafe.Pointer, an int64, b unsafe.Pointer, bn int64) bool {
	return uintptr(a) < uintptr(b)+uintptr(bn) && uintptr(b) < uintptr(a)+uintptr(an)
}

// checkReadOverlap refuses reads that would write over each other.
func (c *Cache) checkReadOverlap(reads []Read) error {
	// Hosts name the requests of a buffer in order, so there are few ascending rows of
	// reads, and these need not be looked at one by one unless two of them meet.
	if _, _, meet := c.meet(reads, true); !meet {
		return nil
	}
	if i, j, meet := c.meet(reads, false); meet {
		return status.New(status.InvalidArgument, "dst of reads[%d], key %s, overlaps the dst of reads[%d], key %s",
			j, c.keys[reads[j].Key].name, i, c.keys[reads[i].Key].name)
	}
	return nil
}

// meet finds two areas that overlap. With joined, an area is a whole row of reads
// whose destinations ascend.
func (c *Cache) meet(reads []Read, joined bool) (i, j int, found bool) {
	areas := c.areas[:0]
	for i := range reads {
		r := &reads[i]
		if r.Key == NoKey || r.DstBytes == 0 {
			continue
		}
		from := uintptr(r.Dst)
		to := from + uintptr(r.DstBytes)
		if n := len(areas); joined && n > 0 && areas[n-1].to <= from {
			areas[n-1].to = to
			continue
		}
		areas = append(areas, area{from, to, i})
	}
	c.areas = areas
	slices.SortFunc(areas, func(a, b area) int {
		switch {
		case a.from < b.from:
			return -1
		case a.from > b.from:
			return 1
		}
		return a.read - b.read
	})
	for k := 1; k < len(areas); k++ {
		if areas[k].from < areas[k-1].to {
			return min(areas[k-1].read, areas[k].read), max(areas[k-1].read, areas[k].read), true
		}
	}
	return 0, 0, false
}
