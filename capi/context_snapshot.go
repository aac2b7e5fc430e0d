package main

/*
#include "shim.h"
*/
import "C"

import (
	"libprefixcache/core/coordinator"
	"libprefixcache/core/status"
	"libprefixcache/gpu"
)

// snapshotStore is the device memory of recurrent snapshots and partial pages
// and where the live state lies. One slot is
// one stretch of memory: its layers one after the other, K before V, state before
// convolution state.
type snapshotStore struct {
	layout         coordinator.SnapshotLayout
	recurrentBytes int64 // of one slot
	partialBytes   int64
	recurrent      slab
	partial        slab
	bytes          int64 // of both

	captured, restored, moved int64 // bytes so far
}

// describe reads the layers of the base cache and fills the slot sizes in cfg.
func (s *snapshotStore) describe(o *C.pc_context_options, cfg *coordinator.Config) error {
	attention, err := attentionLayers("options.base.attention", o.base.attention, o.base.num_attention)
	if err != nil {
		return err
	}
	recurrent, schema, err := recurrentLayers("options.base.recurrent", o.base.recurrent, o.base.num_recurrent)
	if err != nil {
		return err
	}
	if len(recurrent) == 0 {
		return status.New(status.InvalidArgument, "options.base.recurrent: no layer, expected at least one for a kind with recurrent state")
	}
	if s.recurrentBytes, err = coordinator.RecurrentSlotBytes(int32(len(recurrent)), &schema); err != nil {
		return err
	}
	p := cfg.TokensPerPage
	if p == 0 {
		p = coordinator.DefaultTokensPerPage
	}
	s.layout = coordinator.SnapshotLayout{TokensPerPage: p, Pages: cfg.Base.Pages, MaxBatch: cfg.MaxBatch, Schema: schema}
	if cfg.Kind == coordinator.KindHybrid {
		if err := s.describeAttention(attention); err != nil {
			return err
		}
	}
	for i := range recurrent {
		l := &recurrent[i]
		s.layout.Recurrent = append(s.layout.Recurrent, coordinator.RecurrentLayout{State: uint64(l.state_address), Conv: uint64(l.conv_address),
			StateStride: s.stateBytes(), ConvStride: s.convBytes(), Slots: cfg.Base.MaxBatch})
	}
	cfg.RecurrentSlotBytes, cfg.PartialSlotBytes = s.recurrentBytes, s.partialBytes
	return nil
}

func (s *snapshotStore) describeAttention(layers []C.pc_attention_layer) (err error) {
	if len(layers) > 0 {
		s.layout.KVType = coordinator.DType(layers[0]._type)
	}
	for i := range layers {
		s.layout.KV = append(s.layout.KV, coordinator.KVLayer{Heads: int32(layers[i].kv_heads), HeadDim: int32(layers[i].head_dim)})
	}
	if s.partialBytes, err = coordinator.PartialSlotBytes(s.layout.TokensPerPage, s.layout.KV, s.layout.KVType); err != nil {
		return err
	}
	for i := range layers {
		page := s.tokenBytes(i) * int64(s.layout.TokensPerPage)
		v := uint64(layers[i].v_address)
		if v == 0 {
			v = uint64(layers[i].k_address) + uint64(page)*uint64(s.layout.Pages)
		}
		s.layout.Attention = append(s.layout.Attention, coordinator.AttentionLayout{K: uint64(layers[i].k_address), V: v, PageStride: page})
	}
	return nil
}

func (s *snapshotStore) tokenBytes(layer int) int64 {
	l := s.layout.KV[layer]
	return int64(l.Heads) * int64(l.HeadDim) * s.layout.KVType.Size()
}

func (s *snapshotStore) stateBytes() int64 {
	k := &s.layout.Schema
	return int64(k.Heads) * int64(k.HeadDim) * int64(k.StateSize) * k.StateType.Size()
}

func (s *snapshotStore) convBytes() int64 {
	k := &s.layout.Schema
	return int64(k.ConvDim) * int64(k.ConvKernel) * k.ConvType.Size()
}

// open checks the live buffers and allocates the slots that the budgets pay for.
func (s *snapshotStore) open(dev gpu.Device, c *coordinator.Coordinator) (err error) {
	recurrent, partial := c.SnapshotCounts()
	if recurrent == 0 {
		return nil
	}
	s.layout.PartialSlots = partial
	if err := s.layout.Validate(); err != nil {
		return err
	}
	if err := dev.Check(gpu.UnnamedStream, s.regions()); err != nil {
		return err
	}
	if err = s.recurrent.open(dev, int64(recurrent)*s.recurrentBytes); err != nil {
		return err
	}
	s.bytes = int64(recurrent) * s.recurrentBytes
	if partial > 0 {
		err = s.partial.open(dev, int64(partial)*s.partialBytes)
		s.bytes += int64(partial) * s.partialBytes
	}
	return err
}

// regions are the live buffers, for the device to check once.
func (s *snapshotStore) regions() []gpu.Region {
	var r []gpu.Region
	add := func(name string, addr uint64, bytes int64) {
		r = append(r, gpu.Region{Name: name, Addr: uintptr(addr), Bytes: bytes, Place: gpu.OnDevice})
	}
	for i := range s.layout.Attention {
		a := &s.layout.Attention[i]
		add("options.base.attention.k_address", a.K, a.PageStride*int64(s.layout.Pages))
		add("options.base.attention.v_address", a.V, a.PageStride*int64(s.layout.Pages))
	}
	for i := range s.layout.Recurrent {
		l := &s.layout.Recurrent[i]
		add("options.base.recurrent.state_address", l.State, l.StateStride*int64(l.Slots))
		add("options.base.recurrent.conv_address", l.Conv, l.ConvStride*int64(l.Slots))
	}
	return r
}

func (s *snapshotStore) close(g *giving, dev gpu.Device) {
	s.recurrent.close(g, dev)
	s.partial.close(g, dev)
}

// exec carries out one snapshot command. Ranges were checked by core.
func (s *snapshotStore) exec(dev gpu.Device, stream gpu.Stream, c *coordinator.Command) error {
	switch c.Kind {
	case coordinator.CmdZeroRecurrent, coordinator.CmdRestoreRecurrent, coordinator.CmdCaptureRecurrent:
		return s.moveRecurrent(dev, stream, c)
	case coordinator.CmdRestorePage, coordinator.CmdCapturePage:
		return s.movePage(dev, stream, c)
	}
	return status.New(status.Internal, "snapshots: command %v is not of a snapshot", c)
}

func (s *snapshotStore) moveRecurrent(dev gpu.Device, stream gpu.Stream, c *coordinator.Command) error {
	slot := s.recurrent.at + gpu.Addr(int64(c.Snapshot)*s.recurrentBytes)
	for i := range s.layout.Recurrent {
		l := &s.layout.Recurrent[i]
		for _, part := range [...]struct {
			live  uint64
			bytes int64
		}{{l.State, l.StateStride}, {l.Conv, l.ConvStride}} {
			live := gpu.Addr(part.live) + gpu.Addr(int64(c.Slot)*part.bytes)
			var err error
			switch c.Kind {
			case coordinator.CmdZeroRecurrent:
				err = dev.Fill(stream, live, 0, part.bytes)
			case coordinator.CmdRestoreRecurrent:
				err = dev.CopyOnDevice(stream, live, slot, part.bytes)
			default:
				err = dev.CopyOnDevice(stream, slot, live, part.bytes)
			}
			if err != nil {
				return err
			}
			s.count(c.Kind, part.bytes)
			slot += gpu.Addr(part.bytes)
		}
	}
	return nil
}

// count adds bytes that were copied for a command.
func (s *snapshotStore) count(kind coordinator.CommandKind, bytes int64) {
	switch kind {
	case coordinator.CmdRestoreRecurrent, coordinator.CmdRestorePage:
		s.restored += bytes
	case coordinator.CmdCaptureRecurrent, coordinator.CmdCapturePage:
		s.captured += bytes
	}
}

// moveSlots moves live state to lower slots in ascending order, so that nothing is
// written before it was read.
func (s *snapshotStore) moveSlots(dev gpu.Device, stream gpu.Stream, oldToNew []int32, lengths uint64, recurrent bool) error {
	move := func(base uint64, bytes int64, from, to int) error {
		if base == 0 || bytes == 0 {
			return nil
		}
		err := dev.CopyOnDevice(stream, gpu.Addr(base)+gpu.Addr(int64(to)*bytes), gpu.Addr(base)+gpu.Addr(int64(from)*bytes), bytes)
		if err == nil {
			s.moved += bytes
		}
		return err
	}
	for old, to := range oldToNew {
		if to < 0 || int(to) == old {
			continue
		}
		if err := move(lengths, 4, old, int(to)); err != nil {
			return err
		}
		if !recurrent {
			continue
		}
		for i := range s.layout.Recurrent {
			l := &s.layout.Recurrent[i]
			if err := move(l.State, l.StateStride, old, int(to)); err != nil {
				return err
			}
			if err := move(l.Conv, l.ConvStride, old, int(to)); err != nil {
				return err
			}
		}
	}
	return nil
}

// movePage copies the first tokens of one page, in every layer (C-80).
func (s *snapshotStore) movePage(dev gpu.Device, stream gpu.Stream, c *coordinator.Command) error {
	slot := s.partial.at + gpu.Addr(int64(c.Snapshot)*s.partialBytes)
	for i := range s.layout.Attention {
		a := &s.layout.Attention[i]
		bytes := int64(c.Tokens) * s.tokenBytes(i)
		for _, pool := range [...]uint64{a.K, a.V} {
			page := gpu.Addr(pool) + gpu.Addr(int64(c.Page)*a.PageStride)
			dst, src := page, slot
			if c.Kind == coordinator.CmdCapturePage {
				dst, src = slot, page
			}
			if err := dev.CopyOnDevice(stream, dst, src, bytes); err != nil {
				return err
			}
			s.count(c.Kind, bytes)
			slot += gpu.Addr(a.PageStride)
		}
	}
	return nil
}
