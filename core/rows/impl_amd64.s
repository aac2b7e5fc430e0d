//go:build !noasm && !purego

#include "textflag.h"

// Register use in all kernels:
//   DI  mirror side (destination)     SI  source
//   DX  tee                           CX  bytes left
//   AX  bytes of a head or tail, < 64  R8  scratch
//
// Every kernel has the same three parts. The head moves plain bytes until DI is
// at a cache line, because a non-temporal store is worth it only for whole
// lines (a part of one is merged in memory, at many times the cost). The body
// moves whole lines. The tail moves the plain rest. Nothing outside the ranges
// is read or written. The source may have any alignment.

// MIN(AX, CX) into AX.
#define CLAMP \
	CMPQ AX, CX    \
	CMOVQGT CX, AX \
	SUBQ AX, CX

// HEADLEN sets AX to the bytes up to the next line of DI, at most CX.
#define HEADLEN \
	MOVQ DI, AX \
	NEGQ AX     \
	ANDQ $63, AX \
	CLAMP

// SMALL copies AX < 64 bytes from SI to DI and moves both on.
#define SMALL(a, b, c, d, e, f) \
	TESTB $1, AX     \
	JEQ  a           \
	MOVB (SI), R8    \
	MOVB R8, (DI)    \
	INCQ SI          \
	INCQ DI          \
a:                   \
	TESTB $2, AX     \
	JEQ  b           \
	MOVW (SI), R8    \
	MOVW R8, (DI)    \
	ADDQ $2, SI      \
	ADDQ $2, DI      \
b:                   \
	TESTB $4, AX     \
	JEQ  c           \
	MOVL (SI), R8    \
	MOVL R8, (DI)    \
	ADDQ $4, SI      \
	ADDQ $4, DI      \
c:                   \
	TESTB $8, AX     \
	JEQ  d           \
	MOVQ (SI), R8    \
	MOVQ R8, (DI)    \
	ADDQ $8, SI      \
	ADDQ $8, DI      \
d:                   \
	TESTB $16, AX    \
	JEQ  e           \
	MOVOU (SI), X0   \
	MOVOU X0, (DI)   \
	ADDQ $16, SI     \
	ADDQ $16, DI     \
e:                   \
	TESTB $32, AX    \
	JEQ  f           \
	MOVOU (SI), X0   \
	MOVOU 16(SI), X1 \
	MOVOU X0, (DI)   \
	MOVOU X1, 16(DI) \
	ADDQ $32, SI     \
	ADDQ $32, DI     \
f:

// SMALLTEE is SMALL that also stores to DX.
#define SMALLTEE(a, b, c, d, e, f) \
	TESTB $1, AX     \
	JEQ  a           \
	MOVB (SI), R8    \
	MOVB R8, (DI)    \
	MOVB R8, (DX)    \
	INCQ SI          \
	INCQ DI          \
	INCQ DX          \
a:                   \
	TESTB $2, AX     \
	JEQ  b           \
	MOVW (SI), R8    \
	MOVW R8, (DI)    \
	MOVW R8, (DX)    \
	ADDQ $2, SI      \
	ADDQ $2, DI      \
	ADDQ $2, DX      \
b:                   \
	TESTB $4, AX     \
	JEQ  c           \
	MOVL (SI), R8    \
	MOVL R8, (DI)    \
	MOVL R8, (DX)    \
	ADDQ $4, SI      \
	ADDQ $4, DI      \
	ADDQ $4, DX      \
c:                   \
	TESTB $8, AX     \
	JEQ  d           \
	MOVQ (SI), R8    \
	MOVQ R8, (DI)    \
	MOVQ R8, (DX)    \
	ADDQ $8, SI      \
	ADDQ $8, DI      \
	ADDQ $8, DX      \
d:                   \
	TESTB $16, AX    \
	JEQ  e           \
	MOVOU (SI), X0   \
	MOVOU X0, (DI)   \
	MOVOU X0, (DX)   \
	ADDQ $16, SI     \
	ADDQ $16, DI     \
	ADDQ $16, DX     \
e:                   \
	TESTB $32, AX    \
	JEQ  f           \
	MOVOU (SI), X0   \
	MOVOU 16(SI), X1 \
	MOVOU X0, (DI)   \
	MOVOU X1, 16(DI) \
	MOVOU X0, (DX)   \
	MOVOU X1, 16(DX) \
	ADDQ $32, SI     \
	ADDQ $32, DI     \
	ADDQ $32, DX     \
f:

// func prefetchAMD64(p unsafe.Pointer, n int64)
// A prefetch never faults, so the last line may lie beyond the mapping.
TEXT ·prefetchAMD64(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), SI
	MOVQ n+8(FP), CX

line:
	PREFETCHT0 (SI)
	ADDQ $64, SI
	SUBQ $64, CX
	JGT  line
	RET

// func aheadAMD64(base unsafe.Pointer, row int64, slots unsafe.Pointer, stride, n int64)
// Asks for every line of n > 0 rows, whose slots are stride bytes apart.
TEXT ·aheadAMD64(SB), NOSPLIT, $0-40
	MOVQ base+0(FP), SI
	MOVQ row+8(FP), DX
	MOVQ slots+16(FP), DI
	MOVQ stride+24(FP), BX
	MOVQ n+32(FP), CX

row:
	MOVQ  (DI), AX
	IMULQ DX, AX
	ADDQ  SI, AX
	LEAQ  -1(AX)(DX*1), R8 // the last byte: a row may end in a line more

line:
	PREFETCHT0 (AX)
	ADDQ $64, AX
	CMPQ AX, R8
	JLT  line
	PREFETCHT0 (R8)
	ADDQ BX, DI
	DECQ CX
	JNZ  row
	RET

// func fenceAMD64()
TEXT ·fenceAMD64(SB), NOSPLIT, $0-0
	SFENCE
	RET

// ---------------------------------------------------------------- SSE2 (base)

#define LOAD64_SSE \
	MOVOU (SI), X0   \
	MOVOU 16(SI), X1 \
	MOVOU 32(SI), X2 \
	MOVOU 48(SI), X3

#define NT64_SSE \
	MOVNTO X0, (DI)   \
	MOVNTO X1, 16(DI) \
	MOVNTO X2, 32(DI) \
	MOVNTO X3, 48(DI)

// func streamSSE2(dst, src unsafe.Pointer, n int64)
TEXT ·streamSSE2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	HEADLEN
	SMALL(h1, h2, h4, h8, h16, h32)

body:
	SUBQ $64, CX
	JLT  tail
	LOAD64_SSE
	NT64_SSE
	ADDQ $64, SI
	ADDQ $64, DI
	JMP  body

tail:
	LEAQ 64(CX), AX
	SMALL(t1, t2, t4, t8, t16, t32)
	RET

// func teeSSE2(dst, tee, src unsafe.Pointer, n int64)
TEXT ·teeSSE2(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ tee+8(FP), DX
	MOVQ src+16(FP), SI
	MOVQ n+24(FP), CX
	HEADLEN
	SMALLTEE(h1, h2, h4, h8, h16, h32)

body:
	SUBQ $64, CX
	JLT  tail
	LOAD64_SSE
	NT64_SSE
	MOVOU X0, (DX)
	MOVOU X1, 16(DX)
	MOVOU X2, 32(DX)
	MOVOU X3, 48(DX)
	ADDQ $64, SI
	ADDQ $64, DI
	ADDQ $64, DX
	JMP  body

tail:
	LEAQ 64(CX), AX
	SMALLTEE(t1, t2, t4, t8, t16, t32)
	RET

// func plainSSE2(dst, src unsafe.Pointer, n int64)
TEXT ·plainSSE2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX

body:
	SUBQ $64, CX
	JLT  tail
	LOAD64_SSE
	MOVOU X0, (DI)
	MOVOU X1, 16(DI)
	MOVOU X2, 32(DI)
	MOVOU X3, 48(DI)
	ADDQ $64, SI
	ADDQ $64, DI
	JMP  body

tail:
	LEAQ 64(CX), AX
	SMALL(t1, t2, t4, t8, t16, t32)
	RET

// ----------------------------------------------------------------------- AVX2

#define LOAD256_AVX \
	VMOVDQU (SI), Y0    \
	VMOVDQU 32(SI), Y1  \
	VMOVDQU 64(SI), Y2  \
	VMOVDQU 96(SI), Y3  \
	VMOVDQU 128(SI), Y4 \
	VMOVDQU 160(SI), Y5 \
	VMOVDQU 192(SI), Y6 \
	VMOVDQU 224(SI), Y7

#define NT256_AVX \
	VMOVNTDQ Y0, (DI)    \
	VMOVNTDQ Y1, 32(DI)  \
	VMOVNTDQ Y2, 64(DI)  \
	VMOVNTDQ Y3, 96(DI)  \
	VMOVNTDQ Y4, 128(DI) \
	VMOVNTDQ Y5, 160(DI) \
	VMOVNTDQ Y6, 192(DI) \
	VMOVNTDQ Y7, 224(DI)

#define STORE256_AVX(R) \
	VMOVDQU Y0, (R)    \
	VMOVDQU Y1, 32(R)  \
	VMOVDQU Y2, 64(R)  \
	VMOVDQU Y3, 96(R)  \
	VMOVDQU Y4, 128(R) \
	VMOVDQU Y5, 160(R) \
	VMOVDQU Y6, 192(R) \
	VMOVDQU Y7, 224(R)

// func streamAVX2(dst, src unsafe.Pointer, n int64)
TEXT ·streamAVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	HEADLEN
	SMALL(h1, h2, h4, h8, h16, h32)

body:
	SUBQ $256, CX
	JLT  lines
	LOAD256_AVX
	NT256_AVX
	ADDQ $256, SI
	ADDQ $256, DI
	JMP  body

lines:
	ADDQ $256, CX

line:
	SUBQ $64, CX
	JLT  tail
	VMOVDQU (SI), Y0
	VMOVDQU 32(SI), Y1
	VMOVNTDQ Y0, (DI)
	VMOVNTDQ Y1, 32(DI)
	ADDQ $64, SI
	ADDQ $64, DI
	JMP  line

tail:
	// Before the tail, which is written with SSE: mixing costs a transition.
	VZEROUPPER
	LEAQ 64(CX), AX
	SMALL(t1, t2, t4, t8, t16, t32)
	RET

// func teeAVX2(dst, tee, src unsafe.Pointer, n int64)
TEXT ·teeAVX2(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ tee+8(FP), DX
	MOVQ src+16(FP), SI
	MOVQ n+24(FP), CX
	HEADLEN
	SMALLTEE(h1, h2, h4, h8, h16, h32)

body:
	SUBQ $256, CX
	JLT  lines
	LOAD256_AVX
	NT256_AVX
	STORE256_AVX(DX)
	ADDQ $256, SI
	ADDQ $256, DI
	ADDQ $256, DX
	JMP  body

lines:
	ADDQ $256, CX

line:
	SUBQ $64, CX
	JLT  tail
	VMOVDQU (SI), Y0
	VMOVDQU 32(SI), Y1
	VMOVNTDQ Y0, (DI)
	VMOVNTDQ Y1, 32(DI)
	VMOVDQU Y0, (DX)
	VMOVDQU Y1, 32(DX)
	ADDQ $64, SI
	ADDQ $64, DI
	ADDQ $64, DX
	JMP  line

tail:
	VZEROUPPER
	LEAQ 64(CX), AX
	SMALLTEE(t1, t2, t4, t8, t16, t32)
	RET

// func plainAVX2(dst, src unsafe.Pointer, n int64)
TEXT ·plainAVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX

body:
	SUBQ $256, CX
	JLT  lines
	LOAD256_AVX
	STORE256_AVX(DI)
	ADDQ $256, SI
	ADDQ $256, DI
	JMP  body

lines:
	ADDQ $256, CX

line:
	SUBQ $64, CX
	JLT  tail
	VMOVDQU (SI), Y0
	VMOVDQU 32(SI), Y1
	VMOVDQU Y0, (DI)
	VMOVDQU Y1, 32(DI)
	ADDQ $64, SI
	ADDQ $64, DI
	JMP  line

tail:
	VZEROUPPER
	LEAQ 64(CX), AX
	SMALL(t1, t2, t4, t8, t16, t32)
	RET
