"""One step: rows of hidden states through all layers. What differs between decode and prefill is how a layer mixes tokens."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

from references.k3.backend import Array, Backend
from references.k3.config import HEAD, LATENT, ROW, Config
from references.k3.model import Cache, Calls, Model, State

Attend = Callable[[int, SimpleNamespace, Array], Array]  # layer, its weights, normed rows bf16 [b, hidden] -> bf16 [b, hidden]
Tap = Callable[[int, Array], None]  # layer, its output bf16 [b, hidden]
NOT_A_TOKEN = -1


class NotANumber(ArithmeticError):
    """A logit is NaN: nothing is sampled."""


class Features:
    """A tap that keeps what it gets."""

    def __init__(self, backend: Backend):
        self.backend, self.outputs = backend, []

    def __call__(self, layer: int, hidden: Array) -> None:
        self.outputs.append(hidden)

    def rows(self) -> Array:
        """bf16 [b, taps * hidden]: the tapped outputs of a row side by side."""
        return self.backend.stack(self.outputs).reshape(self.outputs[0].shape[0], -1)


def forward(model: Model, call: Calls, hidden: Array, attend: Attend, tap: Tap | None = None) -> Array:
    """hidden bf16 [b, hidden], the embedded tokens -> bf16 [b, hidden], normed for the head. tap: gets the outputs of the layers in `config.taps`."""
    c, snapshots, prefix = model.config, [], hidden
    for i, w in enumerate(model.layers):
        call.place = f"layer {i}"
        mixed = residual(call, c, w.mix, snapshots, prefix)
        attended = attend(i, w, call("rms_norm", x=mixed, gamma=w.norm, eps=c.eps))
        if i % c.block == 0:
            snapshots = [*snapshots, prefix]
            prefix = attended
        else:
            prefix = call("add2", a=prefix, b=attended)
        mixed = residual(call, c, w.mlp_mix, snapshots, prefix)
        normed = call("rms_norm", x=mixed, gamma=w.mlp_norm, eps=c.eps)
        prefix = call("add2", a=prefix, b=dense(call, c, w.up, w.down, normed) if i == 0 else routed(model, call, w, normed))
        if tap and i in c.taps:
            tap(i, prefix)
    call.place = "end"
    mixed = residual(call, c, model.ends.mix, snapshots, prefix)
    return call("rms_norm", x=mixed, gamma=model.ends.norm, eps=c.eps)


def residual(call: Calls, c: Config, weight: Array, snapshots: list[Array], prefix: Array) -> Array:
    """The attention residual: a mixture of the snapshots and the running prefix."""
    if not snapshots:
        return prefix
    x = call.backend.stack([*snapshots, prefix])
    return call("attnres_mix", score=call("attnres_scores", x=x, sw=weight, eps=c.eps), x=x)


def project(call: Calls, c: Config, x: Array, w: Array) -> Array:
    """x bf16 [b, k], w bf16 [n, k] -> bf16 [b, n]."""
    return call("land", p=call("gemm", a=x, w=w, split_k=c.split), off=0, n=w.shape[0])


# Multilayer perceptrons


def dense(call: Calls, c: Config, up: Array, down: Array, x: Array) -> Array:
    """up: the rows of the gate, then those of the up-projection."""
    both, width = project(call, c, x, up), down.shape[1]
    return project(call, c, call("situ", g=both[:, :width], u=both[:, width:]), down)


def routed(model: Model, call: Calls, w: SimpleNamespace, x: Array) -> Array:
    c = model.config
    scores = call("gemm", a=x, w=w.router, split_k=1)[:, 0]
    ids, weight = call("router_topk", s=scores, bias=w.bias, k=c.top_k, rs=c.routing)
    latent = project(call, c, x, w.latent)
    # A token's experts differ, so none can get more entries than there are tokens.
    experts = call(model.transport, x=latent, ids=ids, w=weight, w13=w.w13, s13=w.s13, w2=w.w2, s2=w.s2, first=c.window[0], cap=len(x))
    up = project(call, c, call("rms_norm", x=experts, gamma=w.moe_norm, eps=c.eps), w.unlatent)
    return call("add2", a=up, b=dense(call, c, w.shared_up, w.shared_down, x))


# Token mixing, in what decode and prefill share


def kda_gates(call: Calls, c: Config, w: SimpleNamespace, x: Array) -> tuple[Array, Array, Array]:
    """Output gate bf16 [b, heads, 128], beta bf16 [b, heads], forget gate f32 [b, heads, 128], a partial still."""
    p = call("gemm", a=x, w=w.gate_beta_forget, split_k=c.split)
    g2 = call("land", p=p, off=0, n=c.inner)
    beta = call("land", p=p, off=c.inner, n=c.heads)
    low = call("land", p=p, off=c.inner + c.heads, n=HEAD)
    gate = call("gemm", a=low, w=w.forget, split_k=1)
    return by_head(c, g2), beta, by_head(c, gate)


def mla_rows(call: Calls, c: Config, w: SimpleNamespace, x: Array) -> tuple[Array, Array, Array, Array]:
    """Query bf16 [b, heads, 192], latent bf16 [b, 512] and rope bf16 [b, 64] of the cached row, output gate bf16 [b, inner]."""
    p = call("gemm", a=x, w=w.q_kv_gate, split_k=c.split)
    q_a = call("land_rms_norm", p=p, gamma=w.q_norm, off=0, eps=c.eps)
    kv_a = call("land", p=p, off=c.q_lora, n=ROW)
    gate = call("land", p=p, off=c.q_lora + ROW, n=c.inner)
    latent = call("rms_norm", x=kv_a[:, :LATENT], gamma=w.kv_norm, eps=c.eps)
    return by_head(c, project(call, c, q_a, w.q_b)), latent, kv_a[:, LATENT:], gate


def by_head(c: Config, x: Array) -> Array:
    return x.reshape(x.shape[0], c.heads, -1)


def logits(model: Model, call: Calls, normed: Array) -> tuple[Array, Array]:
    """bf16 [b, vocab] and the greedy token i32 [b], NOT_A_TOKEN where a logit is NaN."""
    row = call("land", p=call("gemm", a=normed, w=model.ends.head, split_k=1), off=0, n=model.config.vocab)
    return row, call("argmax", x=row)


# Decode: each row is a sequence


def decode(
    model: Model, call: Calls, rows: SimpleNamespace, state: State, parity: int, cache: Cache, attention: Callable | None = None
) -> tuple[Array, Array]:
    """One token of each row. rows: ids, table, context (the new token included), page and row to write. Logits and greedy tokens.

    attention: in place of `mla`.
    """

    def attend(i: int, w: SimpleNamespace, x: Array) -> Array:
        if i in model.config.mla:
            return (attention or mla)(call, model.config, w, x, rows, cache, i)
        return kda(call, model.config, w, x, state.carry[i], state.memory[i], parity)

    call.place = "start"
    hidden = call("embedding", ids=rows.ids, table=model.ends.embedding)
    return logits(model, call, forward(model, call, hidden, attend))


def kda(call: Calls, c: Config, w: SimpleNamespace, x: Array, carry: Array, memory: Array, parity: int) -> Array:
    b, there = x.shape[0], 1 - parity
    p = call("gemm", a=x, w=w.qkv, split_k=1)[:, 0]
    q, k, v = (
        call("conv_silu", p=p, taps=w.taps[j], carry=carry[parity, j, :b], off=j * c.inner, into={"next": carry[there, j, :b]})[0] for j in range(3)
    )
    g2, beta, gate = kda_gates(call, c, w, x)
    o, _ = call("kda_core", q=by_head(c, q), k=by_head(c, k), v=by_head(c, v), gate=gate, dt_bias=w.dt_bias, a_log=w.a_log, beta=beta,
                state=memory[parity, :b], go=w.go, g2=g2, eps=c.eps, into={"next": memory[there, :b]})
    return project(call, c, o.reshape(b, c.inner), w.out)


def mla(call: Calls, c: Config, w: SimpleNamespace, x: Array, rows: SimpleNamespace, cache: Cache, layer: int) -> Array:
    q, latent, rope, gate = mla_rows(call, c, w, x)
    cache.append(layer, rows.page, rows.row, latent, rope)
    o = call("mla_paged", q=q, w_kv_b=w.kv_b, cache=cache.pool, table=rows.table, context=rows.context, scale=c.scale,
             **cache.place(layer))
    return project(call, c, call("mul_sigmoid", a=o.reshape(x.shape[0], c.inner), b=gate), w.out)
