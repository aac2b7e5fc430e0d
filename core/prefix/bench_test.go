package prefix

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"
)

// What counts is the ratio to a bare copy, or a memcmp, of the same tokens in the
// same run.

type traced struct {
	input, output int
	hashes        []uint64
}

func trace(tb testing.TB) []traced {
	tb.Helper()
	path := os.Getenv("PREFIXCACHE_TRACE")
	if path == "" {
		path = filepath.Join("..", "..", "..", "shared", "traces", "mooncake_conversation.jsonl")
	}
	data, err := os.ReadFile(path)
	if err != nil {
		tb.Skipf("the trace is not at %s; set PREFIXCACHE_TRACE to replay it", path)
	}
	var out []traced
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		var r struct {
			In     int      `json:"input_length"`
			Out    int      `json:"output_length"`
			Hashes []uint64 `json:"hash_ids"`
		}
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			tb.Fatal(err)
		}
		out = append(out, traced{r.In, r.Out, r.Hashes})
	}
	return out
}

func splitmix(x uint64) uint64 {
	x += 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

func (r *traced) prompt(out []int32) []int32 {
	for _, h := range r.hashes {
		for i := range uint64(512) {
			if len(out) == r.input {
				return out
			}
			out = append(out, int32(splitmix(h*512+i)%150000))
		}
	}
	return out
}

type replayStats struct {
	prompt, reused                 int
	acquire, publish, grow, decode []time.Duration
	release, whole                 []time.Duration
	copy                           []time.Duration
	mallocs                        uint64
}

func (s *replayStats) least(o replayStats) {
	for _, p := range [][2][]time.Duration{{s.acquire, o.acquire}, {s.publish, o.publish}, {s.grow, o.grow}, {s.decode, o.decode},
		{s.release, o.release}, {s.whole, o.whole}, {s.copy, o.copy}} {
		for i := range p[0] {
			p[0][i] = min(p[0][i], p[1][i])
		}
	}
}

// replay runs the trace: acquire, publish at prefill end, grow for the output,
// publish at the end, release.
func replay(tb testing.TB, reqs []traced, cfg Config) replayStats {
	m, err := New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	m.Touch()
	var s replayStats
	var prompt, output []int32
	sink := make([]int32, 1<<18)
	unique := int32(1 << 20)
	fail := func(err error) {
		if err != nil {
			tb.Helper()
			tb.Fatal(err)
		}
	}
	var before, after runtime.MemStats
	p := cfg.PageTokens
	for k := range reqs {
		r := &reqs[k]
		prompt = r.prompt(prompt[:0])
		output = output[:0]
		for range r.output {
			output = append(output, unique)
			unique++
		}
		if k == len(reqs)/2 {
			runtime.ReadMemStats(&before)
		}
		t0 := time.Now()
		copy(sink, prompt)
		t1 := time.Now()
		a, err := m.Acquire(&AcquireRequest{Tokens: prompt})
		t2 := time.Now()
		fail(err)
		if a.Status != Acquired {
			tb.Fatalf("request %d of %d tokens found no room", k, len(prompt))
		}
		if len(prompt) >= p {
			_, err = m.Publish(a.Lease, len(prompt))
			fail(err)
		}
		t3 := time.Now()
		pages := (len(prompt)+len(output)+p-1)/p - (len(prompt)+p-1)/p
		ok, err := m.Grow(a.Lease, pages, 0)
		fail(err)
		if !ok {
			tb.Fatalf("request %d could not grow", k)
		}
		fail(m.Append(a.Lease, output))
		t4 := time.Now()
		if all := len(prompt) + len(output) - 1; all >= p { // the lookahead token is not resident
			_, err = m.Publish(a.Lease, all)
			fail(err)
		}
		t5 := time.Now()
		fail(m.Release(a.Lease))
		t6 := time.Now()
		s.copy = append(s.copy, t1.Sub(t0))
		s.acquire = append(s.acquire, t2.Sub(t1))
		s.publish = append(s.publish, t3.Sub(t2))
		s.grow = append(s.grow, t4.Sub(t3))
		s.decode = append(s.decode, t5.Sub(t4))
		s.release = append(s.release, t6.Sub(t5))
		s.whole = append(s.whole, t6.Sub(t1))
		s.prompt += len(prompt)
		s.reused += a.Plan.Reuse
	}
	runtime.ReadMemStats(&after)
	s.mallocs = after.Mallocs - before.Mallocs
	if err := m.Check(); err != nil {
		tb.Fatal(err)
	}
	return s
}

func quantile(d []time.Duration, q float64) time.Duration {
	slices.Sort(d)
	return d[int(q*float64(len(d)-1))]
}

func sum(d []time.Duration) (t time.Duration) {
	for _, x := range d {
		t += x
	}
	return
}

// BenchmarkTrace replays the conversation trace.
func BenchmarkTrace(b *testing.B) {
	for _, c := range []struct{ page, pages, requests int }{
		{128, 24000, 4000}, {32, 96000, 4000}, {16, 192000, 4000}, {128, 100000, 1 << 30},
	} {
		run := func(b *testing.B, shorten bool) {
			cfg := Config{PageTokens: c.page, BasePages: c.pages, MaxRecords: 1 << 20, ShortenVictims: shorten}
			reqs := trace(b)
			reqs = reqs[:min(len(reqs), c.requests)]
			for b.Loop() {
				// Every replay is the same, so the least of a few tells what a
				// request costs when nothing else runs on the machine.
				s := replay(b, reqs, cfg)
				for range 4 {
					s.least(replay(b, reqs, cfg))
				}
				n := float64(len(reqs))
				us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
				b.ReportMetric(us(sum(s.whole))/n, "mean-µs")
				b.ReportMetric(us(sum(s.copy))/n, "mean-copy-µs")
				b.ReportMetric(float64(sum(s.whole))/float64(sum(s.copy)), "x-copy")
				b.ReportMetric(float64(s.reused)/float64(s.prompt), "hit-rate")
				b.ReportMetric(us(quantile(s.acquire, 0.5)), "acquire-µs")
				b.ReportMetric(us(quantile(s.publish, 0.5)), "publish-µs")
				b.ReportMetric(us(quantile(s.grow, 0.5)), "grow-µs")
				b.ReportMetric(us(quantile(s.decode, 0.5)), "decode-µs")
				b.ReportMetric(us(quantile(s.release, 0.5)), "release-µs")
				b.ReportMetric(us(quantile(s.whole, 0.5)), "p50-µs")
				b.ReportMetric(us(quantile(s.whole, 0.999)), "p99.9-µs")
				b.ReportMetric(float64(s.mallocs)/n, "mallocs/req")
			}
		}
		name := fmt.Sprintf("page=%d/pages=%d", c.page, c.pages)
		b.Run(name, func(b *testing.B) { run(b, false) })
		b.Run(name+"/shorten", func(b *testing.B) { run(b, true) })
	}
}

// BenchmarkCold is a request that shares nothing, on a full cache: everything it
// takes must be evicted first.
func BenchmarkCold(b *testing.B) {
	for _, page := range []int{128, 32, 16} {
		b.Run(fmt.Sprintf("page=%d", page), func(b *testing.B) {
			m, err := New(Config{PageTokens: page, BasePages: 3072000 / page, MaxRecords: 1 << 20})
			if err != nil {
				b.Fatal(err)
			}
			m.Touch()
			prompt := make([]int32, 7168)
			next := int32(0)
			for b.Loop() {
				for i := range prompt {
					prompt[i] = next + int32(i)
				}
				next++
				a, err := m.Acquire(&AcquireRequest{Tokens: prompt})
				if err != nil {
					b.Fatal(err)
				}
				if _, err := m.Publish(a.Lease, len(prompt)); err != nil {
					b.Fatal(err)
				}
				if err := m.Release(a.Lease); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkTail is the ratio of the 99.9th percentile of each operation to its
// median, over requests of one size on a full cache. Each run does the same, so
// the least of three takes out what else ran on the machine.
func BenchmarkTail(b *testing.B) {
	const page, n, rounds = 32, 2048, 40000
	names := []string{"acquire", "publish", "grow", "append", "publish-end", "release"}
	run := func() [6][]time.Duration {
		m := fresh(b, Config{PageTokens: page, BasePages: 20000, MaxRecords: DefaultMaxRecords})
		r := rand.New(rand.NewPCG(1, 1))
		stem := counting(n)
		prompt, block := make([]int32, n), counting(page)
		var d [6][]time.Duration
		for k := range rounds + 1000 {
			share := r.IntN(n)
			copy(prompt, stem[:share])
			for i := share; i < n; i++ {
				prompt[i] = int32(r.IntN(1 << 20))
			}
			var t [7]time.Time
			t[0] = time.Now()
			id := first(m.Acquire(&AcquireRequest{Tokens: prompt})).Lease
			t[1] = time.Now()
			first(m.Publish(id, n))
			t[2] = time.Now()
			first(m.Grow(id, 1, 0))
			t[3] = time.Now()
			m.Append(id, block)
			t[4] = time.Now()
			first(m.Publish(id, n+page))
			t[5] = time.Now()
			m.Release(id)
			t[6] = time.Now()
			if k < 1000 { // until the cache is full
				continue
			}
			for i := range d {
				d[i] = append(d[i], t[i+1].Sub(t[i]))
			}
		}
		return d
	}
	for b.Loop() {
		d := run()
		for range 2 {
			for i, o := range run() {
				for k := range o {
					d[i][k] = min(d[i][k], o[k])
				}
			}
		}
		for i, name := range names {
			p50, p999 := quantile(d[i], 0.5), quantile(d[i], 0.999)
			b.ReportMetric(float64(p50), name+"-p50-ns")
			b.ReportMetric(float64(p999)/float64(p50), name+"-p99.9/p50")
		}
	}
}
