"""The attention of a dofla student, in plain torch and nothing else.

Linear attention replaces the kernel K(q, k) = exp(q·k/√D) of softmax attention by K̂(q, k), a product of
positive features (features_dofla.py), so that sums over keys can be kept instead of the keys:

    out = Σ K̂(q, k) v / Σ K̂(q, k).

A hybrid student holds a few keys exactly and estimates only those that have left its cache, under one
denominator:

    out = (Σ_held K(q, k) v + Σ_left K̂(q, k) v) / (Σ_held K(q, k) + Σ_left K̂(q, k)).

These exponentials leave every floating-point range, so that all of them live as logarithms, and sums
are kept relative to their largest term. Nothing is clipped, and no ε is added to a denominator.

Each of the three functions at the end attends T new tokens to themselves and to what `state` holds of
earlier ones, and returns the new state. A whole text in one call is the form for training, a part of a
prompt at a time the form for reading, one token at a time the form for generating: all are the same
function, and give the same numbers up to rounding.

Letters: B sequences, T tokens, H query heads, G key heads, R query heads to a key head or to a state, D
size of a head, M features, S heads that have features and a state.
"""

import math
from typing import NamedTuple, Optional

import torch

from .features_dofla import SomeFeatures, per_state

# ---- Sums of exponentials ------------------------------------------------------------------------


class Terms(NamedTuple):
    """Some of the terms of an attention row: e^top · total is the sum of their weights and
    e^top · weighted the sum of their weighted values."""

    top: torch.Tensor  # [..., T, 1]: about the largest logarithm of a weight
    total: torch.Tensor  # [..., T, 1]
    weighted: torch.Tensor  # [..., T, D]


def terms_of_pairs(logits, v):
    """From the logarithms of the weights, [..., T, N], of N keys with the values v [..., N, D]."""
    top = logits.amax(-1, keepdim=True).detach()  # cancels in the end: no gradient
    weights = torch.exp(logits - top)
    return Terms(top, weights.sum(-1, keepdim=True), weights @ v)


def divide(parts):
    """What attention returns: the weighted sum over all terms, divided by the sum of weights."""
    top = parts[0].top
    for part in parts[1:]:
        top = torch.maximum(top, part.top)
    scales = [torch.exp(part.top - top) for part in parts]
    total = sum(scale * part.total for scale, part in zip(scales, parts))
    return sum(scale * part.weighted for scale, part in zip(scales, parts)) / total


class Sums(NamedTuple):
    """What linear attention remembers of all keys seen, whatever their number. The sums of feature m
    are kept relative to its largest value so far, e^log_max."""

    log_max: torch.Tensor  # [B, S, M]
    a: torch.Tensor  # [B, S, M]: Σ_j exp(log φ_k(k_j) − log_max)
    b: torch.Tensor  # [B, S, M, D]: the same, weighted with v_j


def add_keys(sums: Optional[Sums], log_k, v):
    """The sums with more keys: log_k [B, S, T, M] their log features, v [B, S, T, D]."""
    log_max = log_k.amax(-2).detach()
    if sums is not None:
        log_max = torch.maximum(log_max, sums.log_max)
    shift = log_max.masked_fill(log_max == -math.inf, 0)  # features that are not there
    phi = torch.exp(log_k - shift[..., None, :])
    a, b = phi.sum(-2), phi.transpose(-1, -2) @ v
    if sums is not None:
        decay = torch.exp(sums.log_max - shift)  # at most 1: the maximum only grows
        a, b = a + decay * sums.a, b + decay[..., None] * sums.b
    return Sums(log_max, a, b)


def terms_of_sums(log_q, sums):
    """What the sums contribute to the rows of queries with log features log_q [B, S, R, T, M]."""
    logits = log_q + sums.log_max[:, :, None, None]
    top = logits.amax(-1, keepdim=True).detach()
    weights = torch.exp(logits - top)  # the largest is 1, and its sum `a` at least 1
    return Terms(top, weights @ sums.a[:, :, None, :, None], weights @ sums.b[:, :, None])


def causal(logits, earlier):
    """Hides keys that come after the query: of N keys the first `earlier` come before all T queries,
    the others with them. logits [..., T, N]."""
    tokens, keys = logits.shape[-2:]
    rows = torch.arange(tokens, device=logits.device)[:, None] + earlier
    later = torch.arange(keys, device=logits.device)[None, :] > rows
    return logits.masked_fill(later, -math.inf)


def exact_logits(q, k):
    """log K of q [B, H, T, D] and k [B, G, N, D]: [B, G, R, T, N]."""
    q = q.reshape(q.shape[0], k.shape[1], -1, *q.shape[2:])
    return q @ k[:, :, None].transpose(-1, -2) / math.sqrt(q.shape[-1])


def _like_queries(x):
    """[B, S, R, T, D] to [B, H, T, D]."""
    return x.flatten(1, 2)


def _precise(*tensors):
    """In float32 at least: half the digits are not enough for exponentials."""
    return tuple(x if x.dtype == torch.float64 else x.float() for x in tensors)


# ---- The three kinds of attention ----------------------------------------------------------------


def linear_attention(q, k, v, features, state: Optional[Sums] = None, chunk=16):
    """q [B, H, T, D], k and v [B, G, T, D]. Returns [B, H, T, D] and the state.

    Works through the tokens `chunk` at a time. Within a chunk every pair is estimated by itself, as
    log K̂ = log Σ_m exp(log φ_q + log φ_k); what came before the chunk is in the sums.
    """
    out_type = v.dtype
    q, k, v = _precise(q, k, v)
    log_q, log_k = features.of_queries(q), features.of_keys(k)
    v = per_state(v, log_k.shape[1])
    out = []
    for first in range(0, q.shape[2], chunk):
        tokens = slice(first, first + chunk)
        here_q, here_k, here_v = log_q[:, :, :, tokens], log_k[:, :, tokens], v[:, :, tokens]
        pairs = torch.logsumexp(here_q[..., :, None, :] + here_k[:, :, None, None], dim=-1)
        parts = [terms_of_pairs(causal(pairs, 0), here_v[:, :, None])]
        if state is not None:
            parts.append(terms_of_sums(here_q, state))
        out.append(divide(parts))
        state = add_keys(state, here_k, here_v)
    return _like_queries(torch.cat(out, dim=3)).to(out_type), state


class ExactKeys(NamedTuple):
    """How a cache of exact keys is kept: the block `exact_keys` of a layer in config.json."""

    keys: int  # K: the most that a key head holds; a list where key heads hold different numbers
    sinks: int  # the first tokens, which never leave
    recent: int  # the newest, which do not leave yet; 0: half of K
    block: int  # how many leave together when the cache is full
    policy: str  # "attended": the least attended lately leave; "recent": the oldest
    decay: float  # γ: what a score keeps from one token to the next

    def first_score(self, group):
        """Of a new key: as if always attended half as much as the average of a full cache."""
        return 0.5 * group / self.keys / (1 - self.decay) if self.policy == "attended" else 0.0


class Cache(NamedTuple):
    """What a hybrid layer remembers: the keys it holds, oldest first, and the sums of the others."""

    k: torch.Tensor  # [B, G, N, D], N at most K
    v: torch.Tensor  # [B, G, N, D]
    score: torch.Tensor  # [B, G, N]: how much each was attended lately
    left: Optional[Sums]


def evict(cache, features, exact):
    """Of a full cache the `block` keys with the lowest scores leave, of equal ones the older first.
    They join the sums or, in a layer without features, are forgotten."""
    k, v, score, left = cache
    newest = exact.recent or exact.keys // 2
    candidates = score[..., exact.sinks : exact.keys - newest]
    lowest = torch.sort(candidates, dim=-1, stable=True).indices[..., : exact.block] + exact.sinks
    leaves = torch.zeros_like(score, dtype=torch.long).scatter(-1, lowest, 1)
    places = torch.sort(leaves, dim=-1, stable=True).indices  # those that stay, then the others
    stay, leave = places[..., : -exact.block], places[..., -exact.block :]

    def rows(x, at):
        return x.gather(2, at[..., None].expand(-1, -1, -1, x.shape[-1]))

    if features.counts:
        old_k, old_v = _precise(rows(k, leave), rows(v, leave))
        left = add_keys(left, features.of_keys(old_k), per_state(old_v, len(features.counts)))
    return Cache(rows(k, stay), rows(v, stay), score.gather(-1, stay), left)


@torch.no_grad()
def scored(score, logits, exact):
    """The scores after T queries, c_j ← γ c_j + Σ_heads A_ij for one query i after the other, with A
    the attention among held keys. `score` [B, G, N] is that before the first of the T queries, or
    before a key's own query if it is new; logits [B, G, R, T, N]."""
    tokens, keys = logits.shape[-2:]
    gamma = torch.tensor(exact.decay, dtype=torch.float32).double()
    steps = torch.arange(tokens).flip(0)  # queries after this one
    alive = (torch.arange(keys) - (keys - tokens)).clamp(min=0)  # queries before the key came
    attention = torch.softmax(logits, dim=-1).sum(2)  # over the query heads of a key head
    later = (gamma**steps).to(score)[:, None]
    return score * (gamma ** (tokens - alive)).to(score) + (later * attention).sum(-2)


def hybrid_attention(q, k, v, features, exact, state: Optional[Cache] = None):
    """q [B, H, T, D], k and v [B, G, T, D]. Returns [B, H, T, D] and the state.

    Between two evictions the cache only grows: the tokens that still fit into it form a segment, which
    is attended to at once.
    """
    if isinstance(exact.keys, (list, tuple)):
        return _heads_apart(q, k, v, features, exact, state)
    out_type, group = v.dtype, q.shape[1] // k.shape[1]
    if state is None:
        state = Cache(k[:, :, :0], v[:, :, :0], _precise(q.new_zeros(k.shape[:2] + (0,)))[0], None)
    out, first = [], 0
    while first < q.shape[2]:
        if state.k.shape[2] == exact.keys:
            state = evict(state, features, exact)
        held = state.k.shape[2]
        tokens = slice(first, first + exact.keys - held)
        all_k = torch.cat([state.k, k[:, :, tokens]], dim=2)
        all_v = torch.cat([state.v, v[:, :, tokens]], dim=2)
        here_q, here_k, here_v = _precise(q[:, :, tokens], all_k, all_v)
        logits = causal(exact_logits(here_q, here_k), held)
        parts = [Terms(*map(_like_queries, terms_of_pairs(logits, here_v[:, :, None])))]
        if state.left is not None:
            left = terms_of_sums(features.of_queries(here_q), state.left)
            parts.append(Terms(*map(_like_queries, left)))
        out.append(divide(parts))
        fresh = state.score.new_full(k[:, :, tokens].shape[:3], exact.first_score(group))
        score = torch.cat([state.score, fresh], dim=2)
        if exact.policy == "attended":
            score = scored(score, logits, exact)
        state = Cache(all_k, all_v, score, state.left)
        first += here_q.shape[2]
    return torch.cat(out, dim=2).to(out_type), state


class Parts(tuple):
    """What key heads that attend apart remember: a Cache for each number of keys."""

    def __new__(cls, *caches):
        return super().__new__(cls, caches)

    def __getnewargs__(self):  # so that a copy is made of caches as well, not of a tuple of them
        return tuple(self)


def _heads_apart(q, k, v, features, exact, state: Optional[Parts]):
    """Key heads that hold equally many keys attend together, the others apart."""
    group, states = q.shape[1] // k.shape[1], len(features.counts) // k.shape[1]
    out, order, caches = [], [], []
    for part, keys in enumerate(sorted(set(exact.keys))):
        heads = [head for head, count in enumerate(exact.keys) if count == keys]
        queries = [head * group + r for head in heads for r in range(group)]
        own = SomeFeatures(features, [head * states + s for head in heads for s in range(states)])
        attended, cache = hybrid_attention(q[:, queries], k[:, heads], v[:, heads], own,
                                           exact._replace(keys=keys), state[part] if state else None)
        out.append(attended)
        order += queries
        caches.append(cache)
    places = torch.tensor(order, device=q.device).argsort()
    return torch.cat(out, dim=1)[:, places], Parts(*caches)


class KeysAndValues(NamedTuple):
    """What a layer with softmax attention remembers: everything."""

    k: torch.Tensor  # [B, G, N, D]
    v: torch.Tensor  # [B, G, N, D]


def softmax_attention(q, k, v, state: Optional[KeysAndValues] = None):
    """q [B, H, T, D], k and v [B, G, T, D]. Returns [B, H, T, D] and the state."""
    held = 0 if state is None else state.k.shape[2]
    if state is not None:
        k, v = torch.cat([state.k, k], dim=2), torch.cat([state.v, v], dim=2)
    precise_q, precise_k, precise_v = _precise(q, k, v)
    logits = causal(exact_logits(precise_q, precise_k), held)
    out = divide([terms_of_pairs(logits, precise_v[:, :, None])])
    return _like_queries(out).to(v.dtype), KeysAndValues(k, v)
