"""The only code that rounds or orders: the words that emulators are spelled with."""

from references.arith.bits import as_bf16, as_f32, bf, hadd, hmul
from references.arith.experts import local, members, mxfp4, returned, upcast
from references.arith.gather import cached
from references.arith.ieee import absolute, add, amax, div, fma, maximum, mul, sqrt, sub
from references.arith.libdevice import exp, log, rsqrt, sigmoid, tanh
from references.arith.linear import chain_matmul
from references.arith.mma import dot16, gemm, gemm_from
from references.arith.move import asc, choose, full, hide, join, kept, reached, repeat, select, tiles, visible, zero
from references.arith.mufu import ex2_approx
from references.arith.paged import paged
from references.arith.pieces import gemm_pieces
from references.arith.quant import e4m3, round_up_pow2
from references.arith.reduce import chain, chain_fma, down, lanes, tree
from references.arith.selection import picked, top

__all__ = [
    "absolute", "add", "amax", "as_bf16", "as_f32", "asc", "bf", "cached", "chain", "chain_fma", "chain_matmul", "choose", "div", "dot16", "down",
    "e4m3", "ex2_approx", "exp", "fma", "full", "gemm", "gemm_from", "gemm_pieces", "hadd", "hide", "hmul", "join", "kept", "lanes", "local", "log",
    "maximum", "members", "mul", "mxfp4", "paged", "picked", "reached", "repeat", "returned", "round_up_pow2", "rsqrt", "select", "sigmoid", "sqrt",
    "sub", "tanh", "tiles", "top", "tree", "upcast", "visible", "zero",
]
