"""GPT-2 small with softmax or linear attention, and the layerwise losses, in plain PyTorch."""

import math

import torch
import torch.nn.functional as F
from torch import nn

LAYERS, HEADS, HEAD_SIZE, VOCABULARY, TOKENS = 12, 12, 64, 50257, 1024
WIDTH = HEADS * HEAD_SIZE
FEATURES = 64  # of a head

DEVICE = "cuda"
HALF = torch.bfloat16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def heads(self, x):
        """q, k and v, each [B, H, T, D]."""
        batch, tokens, _ = x.shape
        rows = self.project(self.norm1(x)).split(WIDTH, dim=2)
        return [r.view(batch, tokens, HEADS, HEAD_SIZE).transpose(1, 2) for r in rows]

    def finish(self, x, attended):
        """The block's output from its input and the attention's result [B, H, T, D]."""
        x = x + self.output(attended.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))

    def forward(self, x, features=None):
        q, k, v = self.heads(x)
        if features is None:
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            attended = linear_attention(q, k, v, *features)
        return self.finish(x, attended), q, k


class Gpt2(nn.Module):
    """With softmax or, given the features of every layer, with linear attention."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, ids, features=None):
        """Hidden states [B, T, C] and the queries and keys of every layer."""
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        queries_and_keys = []
        for layer, block in enumerate(self.blocks):
            x, q, k = block(x, None if features is None else features[layer])
            queries_and_keys.append((q, k))
        return self.norm(x), queries_and_keys

    def logits(self, hidden):
        return hidden @ self.tokens.weight.t()


def make_model():
    return Gpt2().to(DEVICE, HALF).requires_grad_(False)


def make_features(trained):
    """z [H, M, D] and log alpha [H, M] of every layer."""
    return [
        (
            torch.randn(HEADS, FEATURES, HEAD_SIZE, device=DEVICE, requires_grad=trained),
            torch.zeros(HEADS, FEATURES, device=DEVICE, requires_grad=trained),
        )
        for _ in range(LAYERS)
    ]


def make_optimizer(features):
    z, log_alpha = zip(*features)
    groups = [{"params": z, "lr": 0.02}, {"params": log_alpha, "lr": 0.2}]
    return torch.optim.Adam(groups, fused=True)


def positive_features(x, z, log_alpha):
    """[B, H, T, D] to [B, H, T, M], in float32."""
    x = x.float()
    exponent = torch.einsum("bhtd,hmd->bhtm", x, z) * HEAD_SIZE**-0.25
    exponent = exponent - x.square().sum(-1, keepdim=True) / (2 * math.sqrt(HEAD_SIZE))
    return torch.exp(exponent + 0.5 * log_alpha[:, None]) / math.sqrt(FEATURES)


def linear_attention(q, k, v, z, log_alpha):
    phi_q = positive_features(q, z, log_alpha).to(HALF)
    phi_k = positive_features(k, z, log_alpha).to(HALF)
    weights = torch.tril(phi_q @ phi_k.transpose(-1, -2))
    return (weights @ v) / (weights.sum(-1, keepdim=True) + 1e-6)


def scores(q, k):
    return q.float() @ k.float().transpose(-1, -2) / math.sqrt(HEAD_SIZE)


def approximate_kernel(q, k, z, log_alpha):
    phi_k = positive_features(k, z, log_alpha)
    return positive_features(q, z, log_alpha) @ phi_k.transpose(-1, -2)


def l2_loss(q, k, z, log_alpha):
    error = torch.exp(scores(q, k)) - approximate_kernel(q, k, z, log_alpha)
    return error.square().sum() / (q.shape[0] * q.shape[2])


def softmax_loss(q, k, z, log_alpha):
    kernel = approximate_kernel(q, k, z, log_alpha)
    log_rows = torch.log(kernel + 1e-9) - torch.log(kernel.sum(-1, keepdim=True) + 1e-9)
    return -(torch.softmax(scores(q, k), -1) * log_rows).sum() / (q.shape[0] * q.shape[2])


class Decoder(nn.Module):
    """One token of one sequence through the linear model, with its state in buffers."""

    def __init__(self, model, features):
        super().__init__()
        self.model = model
        z, log_alpha = (torch.stack(tensors) for tensors in zip(*features))
        self.register_buffer("z", z)
        self.register_buffer("log_alpha", log_alpha)
        self.register_buffer("mass", torch.zeros_like(log_alpha))
        self.register_buffer("weighted", torch.zeros_like(z))  # [L, H, M, D] as well

    def forward(self, token, position):
        """The next token [1, 1] after `token` [1, 1], which stands at `position` [1]."""
        x = self.model.tokens(token) + self.model.positions(position)
        for layer, block in enumerate(self.model.blocks):
            q, k, v = block.heads(x)
            z, log_alpha = self.z[layer], self.log_alpha[layer]
            phi_q = positive_features(q, z, log_alpha)[0, :, 0]  # [H, M]
            phi_k = positive_features(k, z, log_alpha)[0, :, 0]
            self.mass[layer].add_(phi_k)
            self.weighted[layer].add_(phi_k[:, :, None] * v[0, :, 0, None].float())
            sums = torch.einsum("hm,hmd->hd", phi_q, self.weighted[layer])
            total = (phi_q * self.mass[layer]).sum(-1, keepdim=True).clamp_min(1e-6)
            x = block.finish(x, (sums / total).to(HALF)[None, :, None])
        return self.model.logits(self.model.norm(x)[:, -1]).argmax(-1, keepdim=True)
