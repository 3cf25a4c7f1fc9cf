"""The gate on verify against plain decoding, on either side: rounds whose drafts are a golden's tokens give its tokens."""

from __future__ import annotations

import numpy as np

from conformance.steps import backend, flips, model, quantiles
from goldens import steps as goldens
from goldens.walks import PLANS, Result, walk
from references.floor import distances
from references.k3.config import SMALL
from references.k3.engine import Engine


def tracks(side: str, transport: str) -> tuple[list[str], list[str], str]:
    """The golden's tokens as drafts, six a round: other tokens beyond the floor, spent on it, and how far the logits are apart.

    After another token the golden's is fed.
    """
    golden = goldens.load(transport)
    tokens, first = golden.tokens.tolist(), PLANS[f"{transport}_verify"].first + 1
    engine, got = Engine(model(side, transport), slots=1), []
    engine.prefill(0, tokens[:first])
    while (at := int(engine.pages.length[0])) < len(tokens):
        engine.rounds.tails[0].anchor = tokens[at]
        one = engine.verify({0: tokens[at + 1 : at + 1 + SMALL.drafts]})[0]
        logits = backend(side).download(one.logits)
        got += [Result(at + i, tokens[at + i], logits[i].copy(), token, {}) for i, token in enumerate(one.tokens)]
    plain = list(walk(PLANS[transport], backend(side), tokens))[first:]
    far = np.concatenate([distances(a.logits, b.logits) for a, b in zip(got, plain, strict=True)])
    beyond, spent = flips(transport, got)
    others = f"{len(beyond) + len(spent)} of {len(got)} tokens differ"
    if 2 * len(spent) >= len(got):
        beyond.append(f"{transport}: {others}")
    told = f"{transport}, verify against plain decoding, {side}: {others}; logits apart by {quantiles(far)}"
    return beyond, spent, told
