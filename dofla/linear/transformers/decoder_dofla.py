"""The decoder of a dofla student, in plain torch: one block for all families of teachers.

GPT-2, GPT-NeoX, Llama, Mistral, Qwen2 and Qwen3 are one architecture with different switches, which
`read_teacher` takes from the teacher's config.json, and different names of their tensors, which stand in
NAMES. Only the attention is not the teacher's: attention_dofla.py.
"""

import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

from .attention_dofla import ExactKeys, hybrid_attention, linear_attention, softmax_attention
from .features_dofla import Features

NAMES = {
    "gpt2": dict(
        tokens="transformer.wte", positions="transformer.wpe", layers="transformer.h", norm="transformer.ln_f",
        head="lm_head", attention_norm="ln_1", qkv="attn.c_attn", out="attn.c_proj", mlp_norm="ln_2",
        up="mlp.c_fc", down="mlp.c_proj"),
    "gpt_neox": dict(
        tokens="gpt_neox.embed_in", layers="gpt_neox.layers", norm="gpt_neox.final_layer_norm",
        head="embed_out", attention_norm="input_layernorm", qkv="attention.query_key_value",
        out="attention.dense", mlp_norm="post_attention_layernorm", up="mlp.dense_h_to_4h",
        down="mlp.dense_4h_to_h"),
    "llama": dict(
        tokens="model.embed_tokens", layers="model.layers", norm="model.norm", head="lm_head",
        attention_norm="input_layernorm", q="self_attn.q_proj", k="self_attn.k_proj",
        v="self_attn.v_proj", q_norm="self_attn.q_norm", k_norm="self_attn.k_norm",
        out="self_attn.o_proj", mlp_norm="post_attention_layernorm", gate="mlp.gate_proj",
        up="mlp.up_proj", down="mlp.down_proj"),
}
ACTIVATIONS = {
    "gelu": F.gelu, "gelu_python": F.gelu, "silu": F.silu, "swish": F.silu, "relu": F.relu,
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_accurate", "gelu_pytorch_tanh"),
                    lambda x: F.gelu(x, approximate="tanh")),
}


def read_rope(config, theta_name, fraction_name, fraction, head_size):
    """Transformers 5 keeps all rotary settings in one block; before, theta stood beside it."""
    block = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = block.get("rope_theta") or config.get(theta_name) or 10000.0
    fraction = block.get("partial_rotary_factor") or config.get(fraction_name) or fraction
    kind = block.get("rope_type") or block.get("type") or "default"
    return SimpleNamespace(theta=theta, dims=int(head_size * fraction), llama3=block if kind == "llama3" else None)


def read_teacher(config):
    """What a teacher's config.json says, in one vocabulary for all families. dofla has refused what it
    does not know when it made the student."""
    family = config.get("model_type")
    if family == "gpt2":
        width, heads = config["n_embd"], config["n_head"]
        return SimpleNamespace(
            names=NAMES["gpt2"], layers=config["n_layer"], heads=heads, key_heads=heads,
            head_size=width // heads, width=width, mlp_width=config.get("n_inner") or 4 * width,
            vocabulary=config["vocab_size"], context=config["n_positions"], rope=None,
            norm_epsilon=config.get("layer_norm_epsilon", 1e-5), rms_norm=False, qk_norm=False,
            activation=config.get("activation_function", "gelu_new"), gated=False,
            parallel_residual=False, qkv_bias=True, out_bias=True, mlp_bias=True, input_major=True,
            tied_head=config.get("tie_word_embeddings", True))
    if family not in ("gpt_neox", "llama", "mistral", "qwen2", "qwen3"):
        raise ValueError(f"config.json: teacher: model_type {family!r} is not one that dofla makes students of")
    width, heads = config["hidden_size"], config["num_attention_heads"]
    head_size = config.get("head_dim") or width // heads
    common = dict(
        layers=config["num_hidden_layers"], heads=heads, head_size=head_size, width=width,
        key_heads=config.get("num_key_value_heads") or heads, mlp_width=config["intermediate_size"],
        vocabulary=config["vocab_size"], context=None, input_major=False,
        tied_head=config.get("tie_word_embeddings", False))
    if family == "gpt_neox":
        bias = config.get("attention_bias", True)
        return SimpleNamespace(
            names=NAMES["gpt_neox"], rope=read_rope(config, "rotary_emb_base", "rotary_pct", 0.25, head_size),
            norm_epsilon=config.get("layer_norm_eps", 1e-5), rms_norm=False, qk_norm=False,
            activation=config.get("hidden_act", "gelu"), gated=False, qkv_bias=bias, out_bias=bias,
            mlp_bias=True, parallel_residual=config.get("use_parallel_residual", True), **common)
    bias = config.get("attention_bias", False) and family in ("llama", "qwen3")
    return SimpleNamespace(
        names=NAMES["llama"], rope=read_rope(config, "rope_theta", "partial_rotary_factor", 1, head_size),
        norm_epsilon=config.get("rms_norm_eps", 1e-6), rms_norm=True, qk_norm=family == "qwen3",
        activation=config.get("hidden_act", "silu"), gated=True, parallel_residual=False,
        qkv_bias=bias or family == "qwen2", out_bias=bias, mlp_bias=config.get("mlp_bias", False), **common)


class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * y.to(x.dtype)


class InputMajorLinear(nn.Module):
    """A dense layer whose weight is stored [inputs, outputs], as GPT-2 has it."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(0.02 * torch.randn(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return x @ self.weight + self.bias


def add_at(module, path, child):
    """Adds a module under a path such as "mlp.c_fc", with plain modules on the way there."""
    *folders, name = path.split(".")
    for folder in folders:
        if folder not in module._modules:
            module.add_module(folder, nn.Module())
        module = module._modules[folder]
    module.add_module(name, child)


def rotary_angles(rope, first, tokens, device):
    """The angles of `tokens` positions from `first`, [T, F] for F pairs of coordinates."""
    frequency = float(rope.theta) ** -(torch.arange(0, rope.dims, 2).double() / rope.dims)
    if rope.llama3 is not None:  # long wavelengths are stretched, those in between partly
        factor, context = rope.llama3["factor"], rope.llama3["original_max_position_embeddings"]
        low, high = rope.llama3["low_freq_factor"], rope.llama3["high_freq_factor"]
        turns = context * frequency / (2 * math.pi)  # within the original context
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        frequency = kept * frequency + (1 - kept) * frequency / factor
    positions = torch.arange(first, first + tokens, device=device)
    return positions.float()[:, None] * frequency.float().to(device)


def rotate(x, angles):
    """Turns the coordinates (i, i + F) of x [B, H, T, D] by angle i of their token."""
    pairs = angles.shape[-1]
    a, b, rest = x[..., :pairs].float(), x[..., pairs : 2 * pairs].float(), x[..., 2 * pairs :]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([(a * cos - b * sin).to(x.dtype), (b * cos + a * sin).to(x.dtype), rest], dim=-1)


class Block(nn.Module):
    """A decoder block. Its parts have the names of the teacher's family."""

    def __init__(self, spec):
        super().__init__()
        self.spec = spec
        heads, key_heads = spec.heads * spec.head_size, spec.key_heads * spec.head_size
        if "qkv" in spec.names:
            self.dense("qkv", spec.width, heads + 2 * key_heads, spec.qkv_bias)
        else:
            self.dense("q", spec.width, heads, spec.qkv_bias)
            self.dense("k", spec.width, key_heads, spec.qkv_bias)
            self.dense("v", spec.width, key_heads, spec.qkv_bias)
        if spec.qk_norm:
            add_at(self, spec.names["q_norm"], RMSNorm(spec.head_size, spec.norm_epsilon))
            add_at(self, spec.names["k_norm"], RMSNorm(spec.head_size, spec.norm_epsilon))
        self.dense("out", heads, spec.width, spec.out_bias)
        if spec.gated:
            self.dense("gate", spec.width, spec.mlp_width, spec.mlp_bias)
        self.dense("up", spec.width, spec.mlp_width, spec.mlp_bias)
        self.dense("down", spec.mlp_width, spec.width, spec.mlp_bias)
        for norm in ("attention_norm", "mlp_norm"):
            add_at(self, spec.names[norm], make_norm(spec))

    def dense(self, role, inputs, outputs, bias):
        kind = InputMajorLinear(inputs, outputs) if self.spec.input_major else nn.Linear(inputs, outputs, bias=bias)
        add_at(self, self.spec.names[role], kind)

    def part(self, role):
        return self.get_submodule(self.spec.names[role])

    def heads(self, x):
        """Queries [B, H, T, D], keys and values [B, G, T, D] of x [B, T, C]."""
        spec = self.spec
        if "qkv" not in spec.names:
            q, k, v = (self.part(role)(x).unflatten(-1, (-1, spec.head_size)) for role in "qkv")
        elif spec.input_major:  # GPT-2: all queries, then all keys, then all values
            q, k, v = self.part("qkv")(x).unflatten(-1, (3, -1, spec.head_size)).unbind(-3)
        else:  # GPT-NeoX: every head has its q, k and v together
            q, k, v = self.part("qkv")(x).unflatten(-1, (-1, 3, spec.head_size)).unbind(-2)
        if spec.qk_norm:
            q, k = self.part("q_norm")(q), self.part("k_norm")(k)
        return (y.transpose(1, 2) for y in (q, k, v))

    def feed_forward(self, x):
        activation = ACTIVATIONS[self.spec.activation]
        if self.spec.gated:
            return self.part("down")(activation(self.part("gate")(x)) * self.part("up")(x))
        return self.part("down")(activation(self.part("up")(x)))

    def forward(self, x, angles, attend):
        """x [B, T, C]; `attend` gives the attention of q, k and v."""
        q, k, v = self.heads(self.part("attention_norm")(x))
        if angles is not None:
            q, k = rotate(q, angles), rotate(k, angles)
        mixed = attend(q, k, v).transpose(1, 2).flatten(-2)
        attended = x + self.part("out")(mixed)
        middle = x if self.spec.parallel_residual else attended
        return attended + self.feed_forward(self.part("mlp_norm")(middle))


def make_norm(spec):
    kind = RMSNorm if spec.rms_norm else nn.LayerNorm
    return kind(spec.width, eps=spec.norm_epsilon)


class DecoderMixin:
    """Makes a torch module a student: `build` adds its parts, `decode` runs it."""

    def build(self, teacher, student):
        """`teacher` and `student` are the blocks "teacher" and "linear_attention" of config.json."""
        spec = self.spec = read_teacher(teacher)
        untied = student["feature_map"] == "untied"
        exact = student.get("exact_keys") or [None] * spec.layers
        self.exact = [ExactKeys(**layer) if layer else None for layer in exact]
        self.linear_attention = nn.ModuleList(
            Features(counts, spec.heads, spec.key_heads, spec.head_size, untied,
                     subtract_norm=student["feature_map"] != "dijiang",
                     coordinates=student.get("coordinates", "raw") != "raw")
            for counts in student["features"])
        add_at(self, spec.names["tokens"], nn.Embedding(spec.vocabulary, spec.width))
        if "positions" in spec.names:
            add_at(self, spec.names["positions"], nn.Embedding(spec.context, spec.width))
        for layer in range(spec.layers):
            add_at(self, f"{spec.names['layers']}.{layer}", Block(spec))
        add_at(self, spec.names["norm"], make_norm(spec))
        if not spec.tied_head:
            add_at(self, spec.names["head"], nn.Linear(spec.width, spec.vocabulary, bias=False))

    def part(self, role):
        return self.get_submodule(self.spec.names[role])

    def attend(self, layer, q, k, v, states):
        """The attention of a layer. states[layer] is read, and then replaced."""
        features, exact, state = self.linear_attention[layer], self.exact[layer], states[layer]
        with torch.autocast(q.device.type, enabled=False):
            if exact is not None:
                out, states[layer] = hybrid_attention(q, k, v, features, exact, state)
            elif features.counts:
                out, states[layer] = linear_attention(q, k, v, features, state)
            else:
                out, states[layer] = softmax_attention(q, k, v, state)
        return out

    def decode(self, ids, states=None, past=0):
        """The last hidden rows [B, T, C] of ids [B, T], which follow `past` tokens. `states` has what
        every layer remembers of those, None before the first, and is brought up to date."""
        spec, tokens = self.spec, ids.shape[1]
        states = [None] * spec.layers if states is None else states
        x, angles = self.part("tokens")(ids), None
        if spec.rope is None:
            if past + tokens > spec.context:
                raise ValueError(f"{past + tokens} tokens: this student has positions for {spec.context}")
            x = x + self.part("positions")(torch.arange(past, past + tokens, device=ids.device))
        else:
            angles = rotary_angles(spec.rope, past, tokens, ids.device)
        for layer in range(spec.layers):
            block = self.get_submodule(f"{spec.names['layers']}.{layer}")
            x = block(x, angles, lambda q, k, v, at=layer: self.attend(at, q, k, v, states))
        return self.part("norm")(x)

    def logits(self, x):
        """[B, T, V] of the last hidden rows x [B, T, C]."""
        return F.linear(x, self.part("tokens").weight) if self.spec.tied_head else self.part("head")(x)


class Decoder(DecoderMixin, nn.Module):
    """A student without Transformers."""

    def __init__(self, teacher, student):
        super().__init__()
        self.build(teacher, student)
