#!/usr/bin/env python3
"""The workloads of gpu_bench in plain PyTorch, as a user would write them today.

Prints one JSON line a figure: its engine ("eager" or "compiled"), its name as in bench/gpu, and
milliseconds per sample, token or run; or the reason why it is missing. A section that fails does
not stop the others.

Where the two sides differ, PyTorch has the easier task: its losses take all pairs of a query and a
key, which is cheaper for it than masking half of them; exponentials are not kept from overflowing;
and denominators get a small constant.
"""

import argparse
import functools
import json
import math
import sys
import time
import traceback

import torch
import torch.nn.functional as F

from linear_gpt2 import (
    DEVICE,
    HALF,
    HEAD_SIZE,
    HEADS,
    LAYERS,
    TOKENS,
    VOCABULARY,
    Decoder,
    l2_loss,
    make_features,
    make_model,
    make_optimizer,
    softmax_loss,
)

BATCH = 32
MICRO_BATCH = 8  # losses store T x T matrices of every head: the whole batch at once is too much
SAMPLES = 2048  # of a head, for its degrees of freedom
DECODED = 100  # tokens
RUNS, WARM_UPS = 5, 2  # the best of RUNS counts


# Figures


def write(engine, name, **fields):
    print(json.dumps({"engine": engine, "name": name, **fields}), flush=True)


def milliseconds(work):
    for _ in range(WARM_UPS):
        work()
    best = math.inf
    for _ in range(RUNS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return 1e3 * best


def reason(error):
    """The first line of an exception, for the table; the rest goes to stderr."""
    traceback.print_exc()
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def measure(engine, name, per, count, make_work):
    """One figure: make_work() returns what is timed, which handles `count` of `per`."""
    try:
        write(engine, name, milliseconds=milliseconds(make_work()) / count, per=per)
    except Exception as error:  # whatever it is, it is this figure's affair
        write(engine, name, missing=reason(error))
    torch._dynamo.reset()
    torch.cuda.empty_cache()


def measure_both(options, name, per, count, make_work, compiler=torch.compile):
    """Eager and compiled; make_work takes what compiles a function, or leaves it as it is."""
    measure("eager", name, per, count, lambda: make_work(lambda function: function))
    if options.compile:
        measure("compiled", name, per, count, lambda: make_work(compiler))
    else:
        write("compiled", name, missing="skipped with --no-compile")


def without_gradients(function):
    def run(*arguments):
        with torch.no_grad():
            return function(*arguments)

    return run


# Sections


def random_ids():
    return torch.randint(VOCABULARY, (BATCH, TOKENS), device=DEVICE)


def ceilings(options):
    n = 8192
    x, y = (torch.randn(n, n, device=DEVICE, dtype=HALF) for _ in range(2))
    product = 2 * n**3 / (1e-3 * milliseconds(lambda: x @ y))
    source = torch.randn(1 << 28, device=DEVICE)
    target = torch.empty_like(source)
    copy = 2 * 4 * source.numel() / (1e-3 * milliseconds(lambda: target.copy_(source)))
    write("eager", "ceilings", product=product, copy=copy)


def teacher(options):
    model, ids = make_model(), random_ids()

    def make_work(compiler):
        forward = without_gradients(compiler(model))
        return lambda: forward(ids)

    measure_both(options, "teacher_forward", "sample", BATCH, make_work)


def layerwise(options):
    model, ids = make_model(), random_ids()
    for name, loss in (("layerwise_l2", l2_loss), ("layerwise_softmax", softmax_loss)):

        def make_work(compiler):
            forward, layer_loss = without_gradients(compiler(model)), compiler(loss)
            features = make_features(trained=True)
            optimizer = make_optimizer(features)

            def step():
                optimizer.zero_grad(set_to_none=True)
                for part in ids.split(MICRO_BATCH):
                    for (q, k), layer in zip(forward(part)[1], features):
                        layer_loss(q, k, *layer).backward()
                optimizer.step()

            return step

        measure_both(options, name, "sample", BATCH, make_work)


def direct(options):
    model, ids = make_model(), random_ids()

    def make_work(compiler):
        forward = compiler(model)
        features = make_features(trained=True)
        optimizer = make_optimizer(features)

        def step():
            optimizer.zero_grad(set_to_none=True)
            for part in ids.split(MICRO_BATCH):
                logits = model.logits(forward(part, features)[0][:, :-1])
                targets = part[:, 1:].reshape(-1)
                F.cross_entropy(logits.reshape(-1, VOCABULARY).float(), targets).backward()
            optimizer.step()

        return step

    measure_both(options, "direct_step", "sample", BATCH, make_work)


def dof(options):
    """Of every head, N = J - lambda tr (G + lambda I)^-1, a layer's heads at a time."""
    strength = 2.0**-8

    def make_work():
        x = torch.randn(LAYERS, HEADS, SAMPLES, HEAD_SIZE, device=DEVICE, dtype=torch.float64)
        ridge = strength * torch.eye(SAMPLES, device=DEVICE, dtype=torch.float64)

        def work():
            for heads in x:
                gram = torch.exp(heads @ heads.transpose(1, 2) / math.sqrt(HEAD_SIZE))
                inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram + ridge))
                SAMPLES - strength * inverse.diagonal(dim1=-2, dim2=-1).sum(-1)

        return work

    measure("eager", "dof", "run", 1, make_work)


def prefill(options):
    model, ids, features = make_model(), random_ids(), make_features(trained=False)

    def make_work(compiler):
        forward = without_gradients(compiler(model))
        return lambda: forward(ids, features)

    measure_both(options, "linear_prefill", "sample", BATCH, make_work)


def decode(options):
    model, features = make_model(), make_features(trained=False)
    positions = torch.arange(TOKENS, device=DEVICE).split(1)

    def make_work(compiler):
        step = without_gradients(compiler(Decoder(model, features)))

        def work():
            token = torch.zeros(1, 1, dtype=torch.long, device=DEVICE)
            for position in positions[:DECODED]:
                token = step(token, position).clone()  # a captured graph writes there again

        return work

    # Captured in CUDA graphs, where PyTorch can: the most that it offers for small steps.
    compiler = functools.partial(torch.compile, mode="reduce-overhead")
    measure_both(options, "linear_decode", "token", DECODED, make_work, compiler)


def kernels(options):
    """PyTorch's own fused softmax attention, once for every layer."""
    shape = (BATCH, HEADS, TOKENS, HEAD_SIZE)

    def make_forward():
        q, k, v = (torch.randn(shape, device=DEVICE, dtype=HALF) for _ in range(3))
        return lambda: [
            F.scaled_dot_product_attention(q, k, v, is_causal=True) for _ in range(LAYERS)
        ]

    def make_gradients():
        *inputs, gradient = (torch.randn(shape, device=DEVICE, dtype=HALF) for _ in range(4))
        for tensor in inputs:
            tensor.requires_grad_()

        def work():
            for _ in range(LAYERS):
                out = F.scaled_dot_product_attention(*inputs, is_causal=True)
                torch.autograd.grad(out, inputs, gradient)

        return work

    measure("eager", "softmax_attention", "sample", BATCH, make_forward)
    measure("eager", "softmax_attention_gradients", "sample", BATCH, make_gradients)


SECTIONS = {
    section.__name__: section
    for section in (ceilings, teacher, layerwise, direct, dof, prefill, decode, kernels)
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS, metavar="SECTION",
                        help=f"some of {', '.join(SECTIONS)} (left out: all)")
    parser.add_argument("--no-compile", dest="compile", action="store_false",
                        help="leave torch.compile out, which takes up to a minute a figure")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("pytorch.py: PyTorch finds no GPU")
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    write("eager", "environment", version=torch.__version__, device=torch.cuda.get_device_name())
    for name in options.only:
        try:
            SECTIONS[name](options)
        except Exception as error:  # a section that cannot even be set up
            write("eager", name, missing=reason(error))


if __name__ == "__main__":
    main()
