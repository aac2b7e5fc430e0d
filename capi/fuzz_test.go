package main

import (
	"encoding/binary"
	"os"
	"reflect"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"libprefixcache/core/status"
)

// exported is every function of the table that reaches Go.
var exported = map[string]any{
	"kernel_name": pcgo_kernel_name, "reserve_threads": pcgo_reserve_threads, "buffer_acquire": pcgo_buffer_acquire,
	"buffer_release": pcgo_buffer_release, "buffer_get_stats": pcgo_buffer_get_stats, "omni_create": pcgo_omni_create,
	"omni_shutdown": pcgo_omni_shutdown, "omni_destroy": pcgo_omni_destroy, "omni_set_policy": pcgo_omni_set_policy,
	"omni_open_key": pcgo_omni_open_key, "omni_step_begin": pcgo_omni_step_begin, "omni_save": pcgo_omni_save,
	"omni_materialize": pcgo_omni_materialize, "omni_discard": pcgo_omni_discard, "omni_get_stats": pcgo_omni_get_stats,
	"omni_inspect": pcgo_omni_inspect, "omni_check": pcgo_omni_check, "omni_fail_write": pcgo_omni_fail_write,
	"digest_sequence": pcgo_digest_sequence, "digest_bytes": pcgo_digest_bytes, "manager_create": pcgo_manager_create,
	"manager_destroy": pcgo_manager_destroy, "manager_acquire": pcgo_manager_acquire, "manager_append": pcgo_manager_append,
	"manager_grow": pcgo_manager_grow, "manager_publish": pcgo_manager_publish, "manager_advance": pcgo_manager_advance,
	"manager_publish_keys": pcgo_manager_publish_keys, "manager_reserve": pcgo_manager_reserve,
	"manager_publish_hybrid": pcgo_manager_publish_hybrid, "manager_publish_hybrid_keys": pcgo_manager_publish_hybrid_keys,
	"manager_retire": pcgo_manager_retire, "manager_release_restored": pcgo_manager_release_restored,
	"manager_lease_pages": pcgo_manager_lease_pages, "manager_release": pcgo_manager_release, "manager_lookup": pcgo_manager_lookup,
	"manager_invalidate": pcgo_manager_invalidate, "manager_flush": pcgo_manager_flush, "manager_evict": pcgo_manager_evict,
	"manager_records": pcgo_manager_records, "manager_record_pages": pcgo_manager_record_pages,
	"manager_references": pcgo_manager_references, "manager_get_stats": pcgo_manager_get_stats, "manager_check": pcgo_manager_check,
	"manager_dump": pcgo_manager_dump, "manager_tenants": pcgo_manager_tenants, "manager_set_quota": pcgo_manager_set_quota,
	"table_create": pcgo_table_create, "table_destroy": pcgo_table_destroy, "table_set_identity": pcgo_table_set_identity,
	"table_set_rows": pcgo_table_set_rows, "table_compact_rows": pcgo_table_compact_rows, "table_upload": pcgo_table_upload,
	"table_get_row": pcgo_table_get_row, "table_get_info": pcgo_table_get_info, "table_check": pcgo_table_check,
	"context_validate_deployment": pcgo_context_validate_deployment, "context_create": pcgo_context_create,
	"context_destroy": pcgo_context_destroy, "context_manager": pcgo_context_manager, "context_begin": pcgo_context_begin,
	"context_report": pcgo_context_report, "context_prepare_prefill": pcgo_context_prepare_prefill,
	"context_capture_prefill": pcgo_context_capture_prefill, "context_finalize_prefill": pcgo_context_finalize_prefill,
	"context_prepare_decode": pcgo_context_prepare_decode, "context_complete_decode": pcgo_context_complete_decode,
	"context_begin_compaction": pcgo_context_begin_compaction, "context_compact": pcgo_context_compact,
	"context_move_slots": pcgo_context_move_slots, "context_finish": pcgo_context_finish, "context_abandon": pcgo_context_abandon,
	"context_shutdown": pcgo_context_shutdown, "context_synchronize": pcgo_context_synchronize,
	"context_get_request": pcgo_context_get_request, "context_get_sequence": pcgo_context_get_sequence,
	"context_sequence_pages": pcgo_context_sequence_pages, "context_sequence_tokens": pcgo_context_sequence_tokens,
	"context_get_metrics": pcgo_context_get_metrics, "metrics_text": pcgo_metrics_text,
}

// prototype is a function of the table as the header has it: Go's types do not tell a
// handle from a number.
type prototype struct {
	name      string
	arguments []string // names
}

func prototypes(t testing.TB) []prototype {
	header, err := os.ReadFile("../include/prefixcache.h")
	ok(t, err)
	_, table, _ := strings.Cut(string(header), "typedef struct pc_api {")
	table, _, _ = strings.Cut(table, "} pc_api;")
	var all []prototype
	for _, m := range regexp.MustCompile(`\(\*(\w+)\)\(([^;]*)\);`).FindAllStringSubmatch(table, -1) {
		p := prototype{name: m[1]}
		for _, a := range regexp.MustCompile(`(\w+)\s*(?:,|$)`).FindAllStringSubmatch(m[2], -1) {
			p.arguments = append(p.arguments, a[1])
		}
		all = append(all, p)
	}
	return all
}

// Whoever adds a function to the table adds it to exported, or says here that it never reaches Go.
func TestEveryFunctionOfTheTableIsFuzzed(t *testing.T) {
	inC := map[string]bool{"version": true, "status_name": true, "last_error": true, "set_log": true}
	all := prototypes(t)
	if len(all) < 84 {
		t.Fatalf("%d functions in the table: it was not read", len(all))
	}
	for _, p := range all {
		f, known := exported[p.name]
		if known == inC[p.name] {
			t.Errorf("pc_%s: fuzzed %v, in C only %v", p.name, known, inC[p.name])
		} else if known && p.name != "kernel_name" && reflect.TypeOf(f).NumIn() != len(p.arguments) {
			t.Errorf("pc_%s: %d arguments, the header has %d", p.name, reflect.TypeOf(f).NumIn(), len(p.arguments))
		}
	}
}

// world is what one input plays with: memory that arguments lie in, and objects by the
// name that arguments of their kind have.
type world struct {
	data    []byte
	base    unsafe.Pointer // 16 MiB: arguments, then what stands for device memory
	used    uintptr
	objects map[string][]uint64
}

const (
	worldBytes  = 16 << 20
	deviceFrom  = 8 << 20
	fuzzStream  = 0x51
	fewElements = 6
)

func (w *world) byte() byte {
	if len(w.data) == 0 {
		return 0
	}
	b := w.data[0]
	w.data = w.data[1:]
	return b
}

// number is small, or far out; nothing between, which would be memory that is really taken.
func (w *world) number(bits int) uint64 {
	switch b := w.byte(); {
	case b < 224:
		return uint64(b % 18)
	case b < 232:
		return ^uint64(0) // -1
	case b < 240:
		return 1 << (bits - 1)
	case b < 248:
		return 1<<(bits-1) - 1
	}
	return ^uint64(0) - uint64(w.byte())
}

// value fills one argument, field or element. Pointers lead to fewElements of what they point to.
func (w *world) value(v reflect.Value, name string, depth int) {
	p := unsafe.Pointer(v.UnsafeAddr())
	switch v.Kind() {
	case reflect.Pointer, reflect.UnsafePointer:
		var a unsafe.Pointer
		if w.byte() < 240 && depth < 5 {
			elem := reflect.TypeFor[uint8]()
			if v.Kind() == reflect.Pointer {
				elem = v.Type().Elem()
			}
			a = w.take(elem, name, depth)
		}
		*(*uintptr)(p) = uintptr(a)
	case reflect.Struct:
		for i := range v.NumField() {
			w.value(v.Field(i), v.Type().Field(i).Name, depth)
		}
		if f := v.FieldByName("struct_size"); f.IsValid() && w.byte() < 250 {
			*(*uint32)(unsafe.Pointer(f.UnsafeAddr())) = uint32(v.Type().Size())
		}
	case reflect.Array:
		for i := range v.Len() {
			w.value(v.Index(i), name, depth)
		}
	default:
		n := w.scalar(name, int(v.Type().Size())*8)
		switch v.Type().Size() {
		case 1:
			*(*uint8)(p) = uint8(n)
		case 4:
			*(*uint32)(p) = uint32(n)
		case 8:
			*(*uint64)(p) = n
		}
	}
}

func (w *world) scalar(name string, bits int) uint64 {
	odd := w.byte() >= 250
	if list := w.objects[name]; !odd && len(list) > 0 && bits == 64 {
		return list[int(w.byte())%len(list)]
	}
	switch {
	case strings.HasPrefix(name, "reserved") && !odd:
		return 0
	case strings.HasPrefix(name, "num_") || name == "space" || name == "count" || strings.HasSuffix(name, "_bytes") || name == "size" || name == "name_size":
		if odd {
			return 1<<62 + uint64(w.byte()) // believed lengths have to be true
		}
		return uint64(w.byte() % (fewElements + 1))
	case strings.HasSuffix(name, "_address") || name == "lengths" || name == "device_mapping":
		return uint64(uintptr(w.base)) + deviceFrom + uint64(w.byte())<<8
	case name == "stream":
		return fuzzStream
	case name == "claim_timeout_ns":
		return ^uint64(0)
	case name == "threads":
		return uint64(w.byte()%8) + uint64(w.byte()/200)<<20
	case (name == "flags" || name == "event") && !odd:
		return 0
	}
	return w.number(bits)
}

// take lays out elements at the end of what is used.
func (w *world) take(elem reflect.Type, name string, depth int) unsafe.Pointer {
	size := elem.Size()
	w.used = (w.used + 63) &^ 63
	if w.used+fewElements*size+4096 > deviceFrom {
		return nil
	}
	p := unsafe.Add(w.base, w.used)
	w.used += max(fewElements*size, 4096) // outputs of few elements of any type fit
	for i := range uintptr(fewElements) {
		w.value(reflect.NewAt(elem, unsafe.Add(p, i*size)).Elem(), name, depth+1)
	}
	if elem.Size() == 8 && strings.HasSuffix(name, "offsets") { // else hardly ever legal
		for i := range uintptr(fewElements) {
			*(*uint64)(unsafe.Add(p, i*8)) = uint64(i) * uint64(1+w.byte()%2)
		}
	}
	return p
}

// call draws arguments by the header's names and calls.
func (w *world) call(p prototype) status.Code {
	w.used = 0
	f := reflect.ValueOf(exported[p.name])
	in := make([]reflect.Value, f.Type().NumIn())
	for i := range in {
		v := reflect.New(f.Type().In(i)).Elem()
		w.value(v, p.arguments[i], 0)
		in[i] = v
		// struct_size and flags that a device would need.
		if v.Kind() == reflect.Pointer && !v.IsNil() && v.Type().Elem().Kind() == reflect.Struct {
			if flags := v.Elem().FieldByName("flags"); flags.IsValid() && (p.name == "table_create" || p.name == "context_create") {
				*(*uint32)(unsafe.Pointer(flags.UnsafeAddr())) |= 4 // PC_HOST_MEMORY
			}
		}
	}
	out := f.Call(in)
	if p.name == "kernel_name" {
		return 0
	}
	st := status.Code(out[0].Int())
	if st == 0 { // new handles are used from now on
		for i, name := range p.arguments {
			known := name == "lease" || name == "request" || name == "buffer" || name == "manager" || name == "context" || name == "table" || name == "cache"
			if known && in[i].Kind() == reflect.Pointer && !in[i].IsNil() {
				if h := *(*uint64)(in[i].UnsafePointer()); h != 0 && len(w.objects[name]) < 8 {
					w.objects[name] = append(w.objects[name], h)
				}
			}
		}
	}
	return st
}

// one of everything, with the arguments of the tests in other languages.
func (w *world) make(t testing.TB, name, result string, fields map[string]uint64) {
	f := reflect.ValueOf(exported[name])
	options := reflect.New(f.Type().In(0).Elem())
	fields["struct_size"] = uint64(options.Elem().Type().Size())
	for field, n := range fields {
		v := options.Elem()
		for _, part := range strings.Split(field, ".") {
			v = v.FieldByName(part)
		}
		b := unsafe.Slice((*byte)(unsafe.Pointer(v.UnsafeAddr())), v.Type().Size())
		var wide [8]byte
		binary.LittleEndian.PutUint64(wide[:], n)
		copy(b, wide[:])
	}
	handle := reflect.New(f.Type().In(1).Elem())
	if st := f.Call([]reflect.Value{options, handle})[0].Int(); st != 0 {
		t.Fatalf("%s: %d", name, st)
	}
	w.objects[result] = append(w.objects[result], handle.Elem().Uint())
}

func newWorld(t testing.TB, data []byte, base unsafe.Pointer) *world {
	w := &world{data: data, base: base, objects: map[string][]uint64{}}
	kind := uint64(w.byte())
	w.make(t, "omni_create", "cache", map[string]uint64{"flags": kind % 2, "num_blocks": 8, "block_size": 4, "claim_timeout_ns": ^uint64(0)})
	w.make(t, "manager_create", "manager", map[string]uint64{"tokens_per_page": 4, "base_pages": 16, "draft_pages": 16, "recurrent_slots": 4, "partial_slots": 4, "flags": kind / 2 % 2 * 2})
	w.make(t, "table_create", "table", map[string]uint64{"flags": 4, "max_batch": 4, "row_width": 4, "num_pages": 16})
	w.make(t, "context_create", "context", map[string]uint64{"flags": 4, "tokens_per_page": 4, "max_batch": 4, "max_requests": 2, "stream": fuzzStream,
		"base.table": w.objects["table"][0], "base.num_pages": 16, "base.max_batch": 4, "base.capacity_tokens": 16})
	return w
}

// end destroys what was made, in an order in which nothing is in use.
func (w *world) end() {
	for _, kind := range [...]struct{ name, destroy string }{{"cache", "omni_destroy"}, {"context", "context_destroy"}, {"manager", "manager_destroy"}, {"table", "table_destroy"}} {
		f := reflect.ValueOf(exported[kind.destroy])
		for _, h := range w.objects[kind.name] {
			if kind.name == "context" {
				for _, r := range w.objects["request"] {
					abandon(h, r)
				}
			}
			p := reflect.New(f.Type().In(0).Elem())
			p.Elem().SetUint(h)
			f.Call([]reflect.Value{p})
		}
	}
	for _, h := range w.objects["buffer"] {
		f := reflect.ValueOf(pcgo_buffer_release)
		f.Call([]reflect.Value{reflect.ValueOf(h).Convert(f.Type().In(0))})
	}
}

func abandon(context, request uint64) {
	f := reflect.ValueOf(pcgo_context_abandon)
	f.Call([]reflect.Value{reflect.ValueOf(context).Convert(f.Type().In(0)), reflect.ValueOf(request).Convert(f.Type().In(1)), reflect.ValueOf(uint32(1)).Convert(f.Type().In(2))})
}

// dump is every manager as text: what a refused call may not change.
func (w *world) dump() string {
	var s strings.Builder
	for _, h := range w.objects["manager"] {
		e, err := handles.enter(handle(h), kindManager, "manager")
		if err != nil {
			continue
		}
		_ = e.object.(*manager).m.Dump(&s)
		e.leave()
	}
	return s.String()
}

// FuzzABI calls exports with arguments that the input makes up: `go test ./capi -fuzz FuzzABI`.
func FuzzABI(f *testing.F) {
	all := prototypes(f)
	memory, err := syscall.Mmap(-1, 0, worldBytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	ok(f, err)
	for seed := range byte(16) {
		b := make([]byte, 400)
		for i := range b {
			b[i] = byte(i*i*31+i*7)*seed + byte(i>>3)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		w := newWorld(t, data, unsafe.Pointer(&memory[0]))
		defer w.end()
		for n := 0; n < 48 && len(w.data) > 0; n++ {
			p := all[int(w.byte())%len(all)]
			if exported[p.name] == nil {
				continue
			}
			before := w.dump()
			st := w.call(p)
			if st == status.Internal {
				t.Fatalf("pc_%s: an internal error", p.name)
			}
			if st < 0 && p.name != "manager_advance" && w.dump() != before {
				t.Fatalf("pc_%s: %d, and something changed", p.name, st)
			}
		}
	})
}
