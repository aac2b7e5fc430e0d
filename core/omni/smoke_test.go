package omni

import (
	"bytes"
	"testing"
	"unsafe"
)

func TestSmoke(t *testing.T) {
	c, err := New(Config{NumBlocks: 8, BlockSize: 4})
	if err != nil {
		t.Fatal(err)
	}
	id, err := c.OpenKey(HiddenKey, 8, 1, JoinNextStep)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.StepBegin(nil, []NewRequest{{Request: 7}}, nil); err != nil {
		t.Fatal(err)
	}
	src := bytes.Repeat([]byte{1, 2, 3, 4, 5, 6, 7, 8}, 8)
	dst := make([]byte, 64)
	step, err := c.Save(&SaveArgs{Requests: []uint64{7}, Counts: []int64{8}, Slots: []int64{0, 1, 2, 3, 4, 5, 6, 7},
		Rows: []KeyRows{{Key: id, Rows: unsafe.Pointer(&src[0]), Stride: 8, Dst: unsafe.Pointer(&dst[0]), DstBytes: 64}}})
	if err != nil || !bytes.Equal(src, dst) {
		t.Fatal(err, dst)
	}
	if err := c.Materialize(step, nil); err != nil {
		t.Fatal(err)
	}
	acc := make([]bool, 1)
	if err := c.StepBegin(nil, []NewRequest{{Request: 8, HitTokens: 8, Blocks: []int64{0, 1, 2}}}, acc); err != nil || !acc[0] {
		t.Fatal(err)
	}
	d2 := make([]byte, 72)
	step, err = c.Save(&SaveArgs{Requests: []uint64{8}, Counts: []int64{1}, Slots: []int64{8},
		Rows: []KeyRows{{Key: id, Rows: unsafe.Pointer(&src[0]), Stride: 8, Dst: unsafe.Pointer(&d2[0]), DstBytes: 72}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Check(); err != nil {
		t.Fatal(err)
	}
	if err := c.Materialize(step, []Read{{Key: id, Count: 1, Dst: unsafe.Pointer(&d2[0]), DstBytes: 72}}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(d2[:64], src) {
		t.Fatal(d2)
	}
	if err := c.Check(); err != nil {
		t.Fatal(err)
	}
	c.Shutdown()
	if err := c.Free(); err != nil {
		t.Fatal(err)
	}
}
