//go:build !noasm && !purego

#include "textflag.h"

// func comparePages(words, slab, cells *int32, n, bytes, ahead int64) int64
//
// SSE2 and PREFETCHT0 belong to every amd64, so nothing is dispatched. The first 512
// bytes of each cell are prefetched some cells ahead of the comparison.
TEXT ·comparePages(SB), NOSPLIT, $0-56
	MOVQ words+0(FP), SI
	MOVQ slab+8(FP), DI
	MOVQ cells+16(FP), R8
	MOVQ n+24(FP), CX
	MOVQ bytes+32(FP), R9
	XORQ R11, R11 // cells compared
	XORQ R13, R13 // cells asked for

ahead:
	CMPQ    R13, CX
	JGE     cell
	MOVLQSX (R8)(R13*4), DX
	IMULQ   R9, DX
	ADDQ    DI, DX
	MOVQ    R9, BX
	CMPQ    BX, $512
	JLE     fetch
	MOVQ    $512, BX

fetch:
	PREFETCHT0 (DX)
	ADDQ       $64, DX
	SUBQ       $64, BX
	JG         fetch
	INCQ       R13
	MOVQ       R13, DX
	SUBQ       R11, DX
	CMPQ       DX, ahead+40(FP)
	JLT        ahead

cell:
	CMPQ    R11, CX
	JGE     done
	MOVLQSX (R8)(R11*4), DX
	IMULQ   R9, DX
	ADDQ    DI, DX
	MOVQ    R9, BX

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
	INCQ R11
	JMP  ahead

done:
	MOVQ R11, ret+48(FP)
	RET

// func fillPages(words, slab, cells *int32, n, bytes int64)
TEXT ·fillPages(SB), NOSPLIT, $0-40
	MOVQ words+0(FP), SI
	MOVQ slab+8(FP), DI
	MOVQ cells+16(FP), R8
	MOVQ n+24(FP), CX
	MOVQ bytes+32(FP), R9

page:
	MOVLQSX (R8), DX
	ADDQ    $4, R8
	IMULQ   R9, DX
	ADDQ    DI, DX
	MOVQ    R9, BX

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
	RET
