//go:build !noasm && !purego

#include "textflag.h"

// func comparePages(words, slab, next *int32, cell int32, n, bytes, ahead int64, out *int32) int64
//
// SSE2 and PREFETCHT0 belong to every amd64, so nothing is dispatched. A second
// walk of the links runs some cells ahead of the comparison and prefetches the
// first 512 bytes of each cell, so that neither miss is waited for.
TEXT ·comparePages(SB), NOSPLIT, $0-72
	MOVQ    words+0(FP), SI
	MOVQ    slab+8(FP), DI
	MOVQ    next+16(FP), R8
	MOVLQSX cell+24(FP), AX
	MOVQ    n+32(FP), CX
	MOVQ    bytes+40(FP), R9
	MOVQ    out+56(FP), R10
	XORQ    R11, R11 // cells compared
	MOVQ    AX, R12  // cell of the walk ahead
	XORQ    R13, R13 // cells walked ahead

ahead:
	CMPQ       R13, CX
	JGE        cell
	MOVQ       R12, DX
	IMULQ      R9, DX
	ADDQ       DI, DX
	MOVLQSX    (R8)(R12*4), R12
	MOVQ       R9, BX
	CMPQ       BX, $512
	JLE        fetch
	MOVQ       $512, BX

fetch:
	PREFETCHT0 (DX)
	ADDQ       $64, DX
	SUBQ       $64, BX
	JG         fetch
	INCQ       R13
	MOVQ       R13, DX
	SUBQ       R11, DX
	CMPQ       DX, ahead+48(FP)
	JLT        ahead

cell:
	CMPQ R11, CX
	JGE  done
	MOVQ AX, DX
	IMULQ R9, DX
	ADDQ DI, DX
	MOVQ R9, BX

line:
	CMPQ     BX, $64
	JLT      quarter
	MOVOU    (SI), X0
	MOVOU    16(SI), X1
	MOVOU    32(SI), X2
	MOVOU    48(SI), X3
	MOVOU    (DX), X4
	MOVOU    16(DX), X5
	MOVOU    32(DX), X6
	MOVOU    48(DX), X7
	PCMPEQB  X4, X0
	PCMPEQB  X5, X1
	PCMPEQB  X6, X2
	PCMPEQB  X7, X3
	PAND     X1, X0
	PAND     X3, X2
	PAND     X2, X0
	PMOVMSKB X0, R14
	CMPL     R14, $0xFFFF
	JNE      done
	ADDQ     $64, SI
	ADDQ     $64, DX
	SUBQ     $64, BX
	JMP      line

quarter:
	TESTQ    BX, BX
	JZ       equal
	MOVOU    (SI), X0
	MOVOU    (DX), X4
	PCMPEQB  X4, X0
	PMOVMSKB X0, R14
	CMPL     R14, $0xFFFF
	JNE      done
	ADDQ     $16, SI
	ADDQ     $16, DX
	SUBQ     $16, BX
	JMP      quarter

equal:
	MOVL    AX, (R10)(R11*4)
	MOVLQSX (R8)(AX*4), AX
	INCQ    R11
	JMP     ahead

done:
	MOVQ R11, ret+64(FP)
	RET

// func fillPages(words, slab, next *int32, cell int32, n, bytes int64, out *int32) int32
//
// A second walk of the links, WALK cells ahead of the copy, makes their cache misses
// overlap with the stores, which go to memory anyway.
#define WALK 16
TEXT ·fillPages(SB), NOSPLIT, $0-60
	MOVQ    words+0(FP), SI
	MOVQ    slab+8(FP), DI
	MOVQ    next+16(FP), R8
	MOVLQSX cell+24(FP), AX
	MOVQ    n+32(FP), CX
	MOVQ    bytes+40(FP), R9
	MOVQ    out+48(FP), R10
	MOVQ    AX, R12 // cell of the walk ahead
	MOVQ    CX, R11
	SUBQ    $WALK, R11 // steps that it takes beside the copy
	JLE     page
	MOVQ    $WALK, R13

first:
	MOVLQSX (R8)(R12*4), R12
	DECQ    R13
	JNZ     first

page:
	MOVL    AX, (R10)
	ADDQ    $4, R10
	MOVQ    AX, DX
	IMULQ   R9, DX
	ADDQ    DI, DX
	MOVLQSX (R8)(AX*4), AX
	TESTQ   R11, R11
	JLE     copy
	MOVLQSX (R8)(R12*4), R12
	DECQ    R11

copy:
	MOVQ R9, BX

line:
	MOVOU  (SI), X0
	MOVOU  16(SI), X1
	MOVOU  32(SI), X2
	MOVOU  48(SI), X3
	MOVNTO X0, (DX)
	MOVNTO X1, 16(DX)
	MOVNTO X2, 32(DX)
	MOVNTO X3, 48(DX)
	ADDQ   $64, SI
	ADDQ   $64, DX
	SUBQ   $64, BX
	JNZ    line
	DECQ   CX
	JNZ    page
	MOVL   AX, ret+56(FP)
	RET
