"""Prefill in chunks: the rows are consecutive tokens of one sequence."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from references.k3.attention import cut, windowed
from references.k3.backend import Array
from references.k3.config import Config
from references.k3.model import Cache, Calls, Model, State
from references.k3.step import Tap, by_head, forward, kda_gates, logits, mla_rows, project


def chunk(
    model: Model, call: Calls, rows: SimpleNamespace, state: State, cache: Cache, sample: bool, tap: Tap | None = None
) -> tuple[Array, Array] | None:
    """rows: ids, page and row of each token, the sequence's table [1, pages], its tokens before these. state: of this sequence, flipped at the end.

    `sample`: the logits and the greedy token of the last row, which alone goes through the head.
    """

    def attend(i: int, w: SimpleNamespace, x: Array) -> Array:
        if i in model.config.mla:
            return mla(call, model.config, w, x, rows, cache, i)
        return kda(call, model.config, w, x, state.carry[i], state.memory[i], state.parity)

    call.place = "start"
    hidden = call("embedding", ids=rows.ids, table=model.ends.embedding)
    normed = forward(model, call, hidden, attend, tap)
    state.parity = 1 - state.parity
    return logits(model, call, normed[-1:]) if sample else None


def kda(call: Calls, c: Config, w: SimpleNamespace, x: Array, carry: Array, memory: Array, parity: int) -> Array:
    t, there = x.shape[0], 1 - parity
    p = call("gemm", a=x, w=w.qkv, split_k=1)[:, 0]
    q, k, v = (
        call("conv_silu_chunk", p=p, taps=w.taps[j], carry=carry[parity, j, 0], off=j * c.inner, commit_rows=t,
             into={"next": carry[there, j, 0]})[0] for j in range(3)
    )
    g2, beta, gate = kda_gates(call, c, w, x)
    o, _ = call("kda_chunk", q=by_head(c, q), k=by_head(c, k), v=by_head(c, v), gate=gate, dt_bias=w.dt_bias, a_log=w.a_log, beta=beta,
                state=memory[parity, 0], into={"next": memory[there, 0]})
    o = call("o_norm_gate", x=o, go=w.go, g2=g2, eps=c.eps)
    return project(call, c, o.reshape(t, c.inner), w.out)


def mla(call: Calls, c: Config, w: SimpleNamespace, x: Array, rows: SimpleNamespace, cache: Cache, layer: int) -> Array:
    """Expanded attention: keys and values of the whole context, from the pages."""
    t = x.shape[0]
    q, latent, rope, gate = mla_rows(call, c, w, x)
    cache.append(layer, rows.page, rows.row, latent, rope)
    start = call.backend.upload(np.zeros(1, np.int32))
    latent, rope = call("mla_gather", cache=cache.pool, table=rows.table, start=start, t=rows.past + t, **cache.place(layer))
    kv = by_head(c, project(call, c, latent[0], w.kv_b.reshape(c.heads * 256, -1)))  # of each head the key, then the value
    k = call("mla_expand_k", nope=kv[..., :128], rope=rope[0])
    o, _ = windowed(call.run, q, k, kv, c.scale, cut(rows.past, c.past))
    return project(call, c, call("mul_sigmoid", a=o.reshape(t, c.inner), b=gate), w.out)
