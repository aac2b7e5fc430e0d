package main

import (
	"math"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// memoryLimit is what the system lets this process have, and the file that says so.
type memoryLimit struct {
	bytes int64
	from  string
}

// limitOfMemory returns the least of physical memory and of what the control groups of
// this process and all groups above them allow. It is asked for a warning only, so a file
// that is not there or says nothing sensible is no limit. root is "/" but in tests.
func limitOfMemory(root string) (least memoryLimit, found bool) {
	take := func(bytes int64, from string) {
		if !found || bytes < least.bytes {
			least, found = memoryLimit{bytes, from}, true
		}
	}
	read := func(file string) string {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			return ""
		}
		return string(text)
	}
	for line := range strings.Lines(read("/proc/meminfo")) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "MemTotal:" && f[2] == "kB" {
			if kib, err := strconv.ParseInt(f[1], 10, 64); err == nil && kib > 0 && kib < math.MaxInt64>>10 {
				take(kib<<10, "MemTotal in /proc/meminfo")
			}
		}
	}
	groups := controlGroups(read("/proc/self/cgroup"))
	for line := range strings.Lines(read("/proc/self/mountinfo")) {
		m, ok := controlGroupMount(line)
		if !ok {
			continue
		}
		group, ok := groups[m.version]
		if !ok {
			continue
		}
		for dir := m.below(group); ; dir = path.Dir(dir) {
			for _, name := range limitFiles[m.version] {
				file := path.Join(m.point, dir, name)
				// "max" is no limit; version 1 says so by a number beyond all memory.
				if bytes, err := strconv.ParseInt(strings.TrimSpace(read(file)), 10, 64); err == nil && bytes >= 0 && bytes < 1<<62 {
					take(bytes, file)
				}
			}
			if dir == "/" {
				break
			}
		}
	}
	return least, found
}

// limitFiles are the limits of a group, by the version of its hierarchy. Beyond
// memory.high the system reclaims and slows down, beyond the others it kills.
var limitFiles = [...][]string{1: {"memory.limit_in_bytes"}, 2: {"memory.max", "memory.high"}}

// controlGroups reads /proc/self/cgroup, "id:controllers:path" a line: the path of this
// process in the hierarchies that may limit memory, by their version.
func controlGroups(text string) map[int]string {
	groups := map[int]string{}
	for line := range strings.Lines(text) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) != 3 {
			continue
		}
		if f[0] == "0" && f[1] == "" {
			groups[2] = f[2]
		} else if contains(f[1], "memory") {
			groups[1] = f[2]
		}
	}
	return groups
}

// groupMount is where a hierarchy, or the part of it from root on, is mounted.
type groupMount struct {
	version     int
	root, point string
}

// controlGroupMount reads a line of /proc/self/mountinfo:
//
//	35 31 0:32 /root /mount/point rw,relatime shared:9 - cgroup cgroup rw,memory
func controlGroupMount(line string) (m groupMount, ok bool) {
	before, after, _ := strings.Cut(line, " - ")
	f, kind := strings.Fields(before), strings.Fields(after)
	if len(f) < 5 || len(kind) < 3 {
		return m, false
	}
	m.root, m.point = unescape.Replace(f[3]), unescape.Replace(f[4])
	switch {
	case kind[0] == "cgroup2":
		m.version = 2
	case kind[0] == "cgroup" && contains(kind[2], "memory"):
		m.version = 1
	default:
		return m, false
	}
	return m, true
}

// below is a group's path from the mount point on. A container may see paths of the
// host, of which only its own group is mounted; what is not under the mount is taken
// for the mount point itself.
func (m *groupMount) below(group string) string {
	if strings.HasPrefix(group, "/..") { // above what this process may see
		return "/"
	}
	group, root := path.Clean(group), strings.TrimSuffix(path.Clean(m.root), "/")
	if rest, ok := strings.CutPrefix(group, root); ok && (rest == "" || rest[0] == '/') {
		return path.Join("/", rest)
	}
	return "/"
}

// unescape undoes what the kernel does to the four characters that would break a line.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// contains reports whether a list with commas has a word.
func contains(list, word string) bool {
	for w := range strings.SplitSeq(list, ",") {
		if w == word {
			return true
		}
	}
	return false
}
