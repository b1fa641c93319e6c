"""The features of a dofla student's attention, in plain torch.

Softmax attention weighs values by the kernel K(q, k) = exp(q·k/√D) of a query and a key. A student
estimates it by M positive features,

    K̂(q, k) = Σ_m φ_q,m(q) φ_k,m(k),
    log φ_k,m(k) = z_m·k/D^¼ − η |k|²/(2√D) + ½ (log α_m − log M),
    log φ_q,m(q) = u_m·q/D^¼ −   |q|²/(2√D) + ½ (log α_m − log M).

*Untied* features belong to a key head: z, α and η are its own, and every query head that shares it has
directions u of its own. *Tied* ones, the paper's, belong to a query head, with u = z and η = 1.

Letters: B sequences, T tokens, H query heads, G key heads, D size of a head, M features. S is the number
of heads that have features and a state: the key heads if features are untied, else the query heads.
"""

import math

import torch
from torch import nn


class Features(nn.Module):
    """The features of one layer. Its tensors have the names that they have in model.safetensors."""

    def __init__(self, counts, heads, key_heads, head_size, untied, subtract_norm, coordinates):
        """`counts`: M of every head with a state, or nothing where the layer has no features."""
        super().__init__()
        self.counts = list(counts or [])
        self.group = heads // len(self.counts) if self.counts else 0  # query heads to a state
        self.untied, self.subtract_norm = untied, subtract_norm
        self._places = {}  # by device, what _rows() returns
        total = sum(self.counts)
        if self.counts:
            self.z = nn.Parameter(torch.randn(total, head_size))
            self.log_alpha = nn.Parameter(torch.zeros(total))
            if untied:
                self.u = nn.Parameter(torch.randn(self.group * total, head_size))
                self.norm_weight = nn.Parameter(torch.ones(len(self.counts)))
        # The change of coordinates that the projections of queries and keys contain already. It is
        # kept for the record, and computes nothing.
        if coordinates:
            self.register_buffer("map", torch.zeros(key_heads, head_size, head_size))
            self.register_buffer("shift", torch.zeros(key_heads, head_size))

    def _rows(self):
        """Heads may have different M. Where the features of every head lie in z, [S, M], and in u,
        [S, group, M], with M the largest; which of these there are, [S, M]; and log M, [S, 1]."""
        device = self.z.device
        if device in self._places:
            return self._places[device]
        most, z_rows, u_rows, there = max(self.counts), [], [], []
        first = 0
        for count in self.counts:
            row = [m if m < count else 0 for m in range(most)]
            z_rows.append([first + m for m in row])
            u_rows.append([[self.group * first + r * count + m for m in row] for r in range(self.group)])
            there.append([m < count for m in range(most)])
            first += count
        log_m = [[math.log(count)] for count in self.counts]
        with torch.inference_mode(False):  # training may come after generating
            places = tuple(torch.tensor(x, device=device) for x in (z_rows, u_rows, there, log_m))
        return self._places.setdefault(device, places)

    def _log_weights(self, states):
        """½ (log α − log M), [S, M]; a feature that is not there has the logarithm of 0."""
        z_rows, _, there, log_m = (x[states] for x in self._rows())
        return (0.5 * (self.log_alpha[z_rows] - log_m)).masked_fill(~there, -math.inf)

    def of_queries(self, q, states=slice(None)):
        """log φ_q of q [B, H, T, D]: [B, S, R, T, M], R the query heads to a state. `states` picks
        some heads with a state; q is then of theirs alone."""
        z_rows, u_rows = (x[states] for x in self._rows()[:2])
        directions = self.u[u_rows] if self.untied else self.z[z_rows][:, None]  # [S, R, M, D]
        q = q.reshape(q.shape[0], -1, self.group, *q.shape[2:])
        log_phi = q @ directions.to(q.dtype).transpose(-1, -2) / q.shape[-1] ** 0.25
        if self.subtract_norm:
            log_phi = log_phi - half_norm(q)
        return log_phi + self._log_weights(states).to(q.dtype)[:, None, None]

    def of_keys(self, k, states=slice(None)):
        """log φ_k of k [B, G, T, D]: [B, S, T, M]."""
        z_rows = self._rows()[0][states]
        k = per_state(k, len(z_rows))
        log_phi = k @ self.z[z_rows].to(k.dtype).transpose(-1, -2) / k.shape[-1] ** 0.25
        if self.subtract_norm:
            eta = self.norm_weight.to(k.dtype)[states, None, None] if self.untied else 1
            log_phi = log_phi - eta * half_norm(k)
        return log_phi + self._log_weights(states).to(k.dtype)[:, None]


class SomeFeatures:
    """The features of some of a layer's heads with a state, as if there were no others."""

    def __init__(self, features, states):
        self.features, self.states = features, states
        self.counts = [features.counts[state] for state in states]

    def of_queries(self, q):
        return self.features.of_queries(q, self.states)

    def of_keys(self, k):
        return self.features.of_keys(k, self.states)


def half_norm(x):
    """|x|²/(2√D), with a last dimension of 1."""
    return (x * x).sum(-1, keepdim=True) / (2 * math.sqrt(x.shape[-1]))


def per_state(x, states):
    """Keys or values of G heads, [B, G, …], for S states: those of a query head if it has its own."""
    return x if x.shape[1] == states else x.repeat_interleave(states // x.shape[1], dim=1)
