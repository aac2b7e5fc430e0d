package main

import (
	"os"
	"path/filepath"
	"testing"
)

// system writes files of a system under a root.
func system(t *testing.T, files map[string]string) (root string) {
	t.Helper()
	root = t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

const (
	meminfo = "MemTotal:       16 kB\nMemFree:        4 kB\n" // 16384 bytes
	mount1  = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n" +
		"35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
	mount2 = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n" +
		"30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 master:1 - cgroup2 cgroup2 rw,nsdelegate\n"
	none = "9223372036854771712\n" // what version 1 says for no limit
)

func TestTheLimitOfMemoryIsTheLeastThatAnyFileSays(t *testing.T) {
	const v1, v2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"
	for _, c := range []struct {
		name  string
		files map[string]string
		bytes int64
		from  string
	}{
		{"an empty system", map[string]string{}, 0, ""},
		{"physical memory alone", map[string]string{"/proc/meminfo": meminfo}, 16384, "MemTotal in /proc/meminfo"},
		{"version 2", map[string]string{"/proc/meminfo": meminfo, "/proc/self/cgroup": "0::/a/b\n", "/proc/self/mountinfo": mount2,
			v2 + "/a/b/memory.max": "4096\n", v2 + "/a/b/memory.high": "max\n", v2 + "/a/memory.max": "max\n"}, 4096, v2 + "/a/b/memory.max"},
		{"version 2, memory.high is lower", map[string]string{"/proc/self/cgroup": "0::/a\n", "/proc/self/mountinfo": mount2,
			v2 + "/a/memory.max": "4096\n", v2 + "/a/memory.high": "2048\n"}, 2048, v2 + "/a/memory.high"},
		{"version 2, an ancestor is lower", map[string]string{"/proc/self/cgroup": "0::/a/b/c\n", "/proc/self/mountinfo": mount2,
			v2 + "/a/b/c/memory.max": "4096\n", v2 + "/a/memory.max": "1024\n", v2 + "/a/b/memory.high": "2048\n"}, 1024, v2 + "/a/memory.max"},
		{"version 2, only max, so physical memory", map[string]string{"/proc/meminfo": meminfo, "/proc/self/cgroup": "0::/a\n", "/proc/self/mountinfo": mount2,
			v2 + "/a/memory.max": "max\n", v2 + "/a/memory.high": "max\n"}, 16384, "MemTotal in /proc/meminfo"},
		{"version 2, physical memory is less", map[string]string{"/proc/meminfo": meminfo, "/proc/self/cgroup": "0::/a\n", "/proc/self/mountinfo": mount2,
			v2 + "/a/memory.max": "1048576\n"}, 16384, "MemTotal in /proc/meminfo"},
		{"version 2, a container with its own view", map[string]string{"/proc/self/cgroup": "0::/\n", "/proc/self/mountinfo": mount2,
			v2 + "/memory.max": "8192\n"}, 8192, v2 + "/memory.max"},
		{"version 2, nothing is allowed", map[string]string{"/proc/self/cgroup": "0::/\n", "/proc/self/mountinfo": mount2,
			v2 + "/memory.high": "0\n"}, 0, v2 + "/memory.high"},
		{"version 1", map[string]string{"/proc/self/cgroup": "4:memory:/a/b\n1:cpu:/x\n0::/\n", "/proc/self/mountinfo": mount1,
			v1 + "/a/b/memory.limit_in_bytes": "4096\n", v1 + "/a/memory.limit_in_bytes": none, v1 + "/memory.limit_in_bytes": none,
			"/sys/fs/cgroup/cpu/x/memory.limit_in_bytes": "1\n"}, 4096, v1 + "/a/b/memory.limit_in_bytes"},
		{"version 1, an ancestor is lower", map[string]string{"/proc/self/cgroup": "4:cpu,memory:/a/b\n", "/proc/self/mountinfo": mount1,
			v1 + "/a/b/memory.limit_in_bytes": "4096\n", v1 + "/memory.limit_in_bytes": "1024\n"}, 1024, v1 + "/memory.limit_in_bytes"},
		{"version 1, no limit", map[string]string{"/proc/meminfo": meminfo, "/proc/self/cgroup": "4:memory:/a\n", "/proc/self/mountinfo": mount1,
			v1 + "/a/memory.limit_in_bytes": none}, 16384, "MemTotal in /proc/meminfo"},
		{"version 1, a container that sees the host's path", map[string]string{"/proc/self/cgroup": "4:memory:/docker/12\n",
			"/proc/self/mountinfo":        "35 31 0:32 /docker/12 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
			v1 + "/memory.limit_in_bytes": "512\n", v1 + "/docker/12/memory.limit_in_bytes": "1\n"}, 512, v1 + "/memory.limit_in_bytes"},
		{"version 1, a path that is mounted elsewhere", map[string]string{"/proc/self/cgroup": "4:memory:/other\n",
			"/proc/self/mountinfo":        "35 31 0:32 /docker/12 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
			v1 + "/memory.limit_in_bytes": "512\n"}, 512, v1 + "/memory.limit_in_bytes"},
		{"a path above the view", map[string]string{"/proc/self/cgroup": "0::/../../secret\n", "/proc/self/mountinfo": mount2,
			v2 + "/memory.max": "8192\n", v2 + "/secret/memory.max": "1\n", "/sys/fs/secret/memory.max": "1\n", "/secret/memory.max": "1\n"}, 8192, v2 + "/memory.max"},
		{"both versions", map[string]string{"/proc/self/cgroup": "4:memory:/a\n0::/b\n", "/proc/self/mountinfo": mount1 + mount2,
			v1 + "/a/memory.limit_in_bytes": "4096\n", v2 + "/b/memory.max": "2048\n"}, 2048, v2 + "/b/memory.max"},
		{"a mount point with a space", map[string]string{"/proc/self/cgroup": "0::/a\n",
			"/proc/self/mountinfo": `30 22 0:26 / /my\040groups rw - cgroup2 cgroup2 rw` + "\n", "/my groups/a/memory.max": "77\n"}, 77, "/my groups/a/memory.max"},
		{"a path with a colon", map[string]string{"/proc/self/cgroup": "0::/a:b\n", "/proc/self/mountinfo": mount2,
			v2 + "/a:b/memory.max": "99\n"}, 99, v2 + "/a:b/memory.max"},
		{"nonsense everywhere", map[string]string{"/proc/meminfo": "MemTotal:\nMemTotal: x kB\nMemTotal", "/proc/self/cgroup": "\n::\n0\n0:\nmemory\n0::/a",
			"/proc/self/mountinfo": "-\n - \n1 2 3 - cgroup2\n\n1 2 3 4 5 - cgroup2 a b\n" + mount2,
			v2 + "/memory.max":     "", v2 + "/memory.high": "-5\n", v2 + "/a/memory.max": "12 monkeys\n", v2 + "/a/memory.high": "99999999999999999999999\n"}, 0, ""},
		{"folders instead of files", map[string]string{"/proc/meminfo/x": "", "/proc/self/cgroup": "0::/\n", "/proc/self/mountinfo": mount2,
			v2 + "/memory.max/x": ""}, 0, ""},
	} {
		got, found := limitOfMemory(system(t, c.files))
		if found != (c.from != "") || got.bytes != c.bytes || got.from != c.from {
			t.Errorf("%s: %d bytes by %q (%v), expected %d by %q", c.name, got.bytes, got.from, found, c.bytes, c.from)
		}
	}
}

// This system, whatever it is, has a figure at least for its physical memory.
func TestTheLimitOfThisSystem(t *testing.T) {
	got, found := limitOfMemory("/")
	if !found || got.bytes < 64<<20 || got.from == "" {
		t.Errorf("%d bytes by %q (%v)", got.bytes, got.from, found)
	}
}
