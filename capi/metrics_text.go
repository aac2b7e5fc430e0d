package main

import (
	"slices"
	"strconv"
	"strings"

	"libprefixcache/core/status"
)

// A page of the Prometheus text format lists all samples of a metric together, with
// one HELP and one TYPE line before them. So the samples of all sources are collected
// by metric first, and written in the order of the table in metrics_table.go.

type metricType uint8

const (
	counter metricType = iota
	gauge
)

func (t metricType) String() string { return [...]string{"counter", "gauge"}[t] }

// family is one metric: its name without the common prefix, and what the page says
// about it. Names of counters end in _total; units are bytes, seconds and ratios.
type family struct {
	name string
	kind metricType
	help string
}

const metricPrefix = "prefixcache_"

// page collects the samples of all sources.
type page struct {
	base    string // labels of the source at hand, written out, each with a comma behind
	samples [numMetrics]strings.Builder
	seen    []string // the bases so far
	scratch []byte
}

// begin takes the next source: what is added from now on has its labels. kind names
// the cache.
func (p *page) begin(source int, kind string, labels []label) *status.Error {
	var b strings.Builder
	writeLabel(&b, "cache", kind)
	for i, l := range labels {
		if err := checkLabel(l.name); err != "" {
			return status.New(status.InvalidArgument, "sources[%d].labels[%d].name: %q, expected %s", source, i, l.name, err)
		}
		for _, earlier := range labels[:i] {
			if earlier.name == l.name {
				return status.New(status.InvalidArgument, "sources[%d].labels[%d].name: %q, expected one that is not among its labels before", source, i, l.name)
			}
		}
		writeLabel(&b, l.name, l.value)
	}
	p.base = b.String()
	if i := slices.Index(p.seen, p.base); i >= 0 {
		return status.New(status.InvalidArgument, "sources[%d]: the same kind of cache and labels as sources[%d], expected a label that tells them apart", source, i)
	}
	p.seen = append(p.seen, p.base)
	return nil
}

// label is a name and a value of the host.
type label struct{ name, value string }

// ownLabels are the names that samples of ours have.
var ownLabels = []string{"cache", "cause", "direction", "kernel", "model", "outcome", "plan", "pool", "reason", "source", "state", "tenant", "version"}

// checkLabel returns what was expected, or "".
func checkLabel(name string) string {
	for i := range len(name) {
		c := name[i]
		if !(c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || i > 0 && c >= '0' && c <= '9') {
			return "letters, digits and _, and no digit first"
		}
	}
	switch {
	case name == "":
		return "a name"
	case strings.HasPrefix(name, "__"):
		return "no name that begins with __, which Prometheus keeps for itself"
	case slices.Contains(ownLabels, name):
		return "none of the library's own labels, " + strings.Join(ownLabels, ", ")
	}
	return ""
}

var escapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// writeLabel writes name="value",. Bytes that are not UTF-8 would spoil the page.
func writeLabel(b *strings.Builder, name, value string) {
	b.WriteString(name)
	b.WriteString(`="`)
	_, _ = escapes.WriteString(b, strings.ToValidUTF8(value, "\uFFFD"))
	b.WriteString(`",`)
}

// add adds a sample: a metric, its value, and a label of ours with its value, if any.
func (p *page) add(m metric, value uint64, labels ...string) {
	p.write(m, strconv.AppendUint(p.scratch[:0], value, 10), labels)
}

// seconds adds a sample in seconds.
func (p *page) seconds(m metric, nanoseconds uint64, labels ...string) {
	p.write(m, strconv.AppendFloat(p.scratch[:0], float64(nanoseconds)/1e9, 'g', -1, 64), labels)
}

// ratio adds a part of a whole. Of nothing, none is used.
func (p *page) ratio(m metric, part, whole uint64, labels ...string) {
	v := 0.0
	if whole > 0 {
		v = float64(part) / float64(whole)
	}
	p.write(m, strconv.AppendFloat(p.scratch[:0], v, 'g', -1, 64), labels)
}

func (p *page) write(m metric, value []byte, labels []string) {
	b := &p.samples[m]
	b.WriteString(metricPrefix)
	b.WriteString(families[m].name)
	all := p.base
	if len(labels) > 0 {
		var own strings.Builder
		for i := 0; i < len(labels); i += 2 {
			writeLabel(&own, labels[i], labels[i+1])
		}
		all += own.String()
	}
	if all != "" {
		b.WriteByte('{')
		b.WriteString(strings.TrimSuffix(all, ","))
		b.WriteByte('}')
	}
	b.WriteByte(' ')
	b.Write(value)
	b.WriteByte('\n')
	p.scratch = value
}

// text writes the page out. A metric without a sample is left out.
func (p *page) text() string {
	var b strings.Builder
	for m := range p.samples {
		if p.samples[m].Len() == 0 {
			continue
		}
		f := &families[m]
		b.WriteString("# HELP " + metricPrefix + f.name + " " + f.help + "\n")
		b.WriteString("# TYPE " + metricPrefix + f.name + " " + f.kind.String() + "\n")
		b.WriteString(p.samples[m].String())
	}
	return b.String()
}
