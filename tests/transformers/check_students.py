#!/usr/bin/env python3
"""Students in Transformers itself: loading, logits, generate, training, saving. Needs no network.

usage: check_students.py FOLDER [--device cpu|cuda] [--save DIR]
FOLDER  what write_students wrote
--save  keeps what save_pretrained writes, for `write_students FOLDER DIR` to read back with dofla
"""

import argparse
import copy
import json
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from students import all_students, read_safetensors
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer


def load(folder, device, dtype=torch.float32):
    name = "dtype" if int(transformers.__version__.split(".")[0]) >= 5 else "torch_dtype"
    return AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, **{name: dtype}).to(device).eval()


def check_logits(student, model, device):
    ids = student.expected["ids"].to(device)
    with torch.no_grad():
        whole = model(ids).logits
        worst = student.require_near(whole, student.expected["logits"], "logits")
        cache, parts = None, []
        for first in range(0, ids.shape[1], 11):
            out = model(ids[:, first : first + 11], past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            parts.append(out.logits)
    worst = max(worst, student.require_near(torch.cat(parts, 1), student.expected["logits"], "logits in parts"))
    assert cache.get_seq_length() == ids.shape[1]
    last = model(ids, logits_to_keep=1).logits
    student.require_near(last, student.expected["logits"][:, -1:], "the last logits")
    return worst


def check_generate(student, model, device):
    greedy = student.expected["greedy"]
    prompt = student.expected["ids"][:, : 43 - greedy.shape[1]].to(device)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    settings = dict(attention_mask=torch.ones_like(prompt), max_new_tokens=greedy.shape[1], do_sample=False)
    found = model.generate(prompt, **settings)
    assert torch.equal(found[:, prompt.shape[1] :].cpu(), greedy), f"{student.name}: other greedy tokens"
    slow = model.generate(prompt, use_cache=False, **settings)
    assert torch.equal(slow, found), f"{student.name}: other greedy tokens without a cache"
    with torch.no_grad():  # what many prompts begin with is read once
        start = model(prompt[:, :7], use_cache=True).past_key_values
    for _ in range(2):
        reused = model.generate(prompt, past_key_values=copy.deepcopy(start), **settings)
        assert torch.equal(reused, found), f"{student.name}: other greedy tokens from a copied cache"
    beams = model.generate(prompt, num_beams=3, **settings)
    again = model.generate(prompt, num_beams=3, use_cache=False, **settings)
    assert torch.equal(beams, again), f"{student.name}: other tokens from beams without a cache"
    sampled = model.generate(prompt, **{**settings, "do_sample": True, "num_return_sequences": 2})
    assert sampled.shape == (2 * prompt.shape[0], prompt.shape[1] + greedy.shape[1])


def check_tokenizer(student):
    """The teacher's, found without a tokenizer_config.json."""
    if "encoded" in student.expected:
        tokenizer = AutoTokenizer.from_pretrained(student.folder, trust_remote_code=True)
        ids = tokenizer("Once upon a time, a cat sat down.", return_tensors="pt").input_ids[0]
        assert torch.equal(ids, student.expected["encoded"]), f"{student.name}: other tokens: {ids.tolist()}"


def check_constant_memory(student, model, device):
    """A student whose layers are all linear or hybrid takes the same bytes at 24 and at 120 tokens."""
    if any(not exact and not features.counts for exact, features in zip(model.exact, model.linear_attention)):
        return
    sizes, cache = [], None
    with torch.no_grad():
        for step in range(5):
            ids = student.expected["ids"][:1, :24].to(device)
            cache = model(ids, past_key_values=cache, use_cache=True).past_key_values
            sizes.append(cache.bytes())
    # 24 tokens are six whole blocks of evictions, so that the caches are equally full.
    assert len(set(sizes)) == 1, f"{student.name}: memory grows: {sizes}"


def check_refusals(student, model, device):
    ids = student.expected["ids"][:, :9].to(device)
    left, right = torch.ones_like(ids), torch.ones_like(ids)
    left[0, :2] = 0
    right[0, -2:] = 0
    whole = model(ids).logits
    assert torch.equal(model(ids, attention_mask=right).logits, whole)
    for arguments in (dict(attention_mask=left), dict(attention_mask=right, use_cache=True),
                      dict(position_ids=torch.ones_like(ids)), dict(output_attentions=True)):
        try:
            model(ids, **arguments)
        except ValueError:
            continue
        raise AssertionError(f"{student.name}: {list(arguments)} was not refused")


def check_training(student, model, device):
    ids = student.expected["ids"].to(device)
    model.train()
    loss = model(ids, labels=ids).loss
    student.require_near(loss, student.expected["loss"][0], "loss")
    loss.backward()
    worst = student.require_gradients(model.named_parameters())
    assert all(x.grad is not None and torch.isfinite(x.grad).all() for x in model.parameters() if x.requires_grad)
    before = float(loss)
    torch.optim.SGD(model.parameters(), lr=1e-2).step()
    assert float(model(ids, labels=ids).loss) < before, f"{student.name}: a step of training does not help"
    return worst


def check_saved(student, model, folder):
    model.save_pretrained(folder)
    saved, original = read_safetensors(folder / "model.safetensors"), student.tensors
    assert saved.keys() == original.keys(), f"{student.name}: other names: {saved.keys() ^ original.keys()}"
    for name, tensor in original.items():
        same = saved[name].dtype == tensor.dtype and torch.equal(saved[name], tensor)
        assert same, f"{student.name}: {name} has changed"
    config = json.loads((folder / "config.json").read_text())
    for key in ("model_type", "architectures", "teacher", "linear_attention"):
        assert config[key] == student.config[key], f"{student.name}: config.json: {key} has changed"
    again = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    assert again.vocab_size == student.config["teacher"]["vocab_size"]
    for name in sorted(path.name for path in student.folder.glob("*_dofla.py")):
        assert (folder / name).read_text() == (student.folder / name).read_text(), f"{name} is not saved"


def check_half(student, device):
    """In bfloat16 the features stay in float32, where Transformers knows how to keep them there."""
    model = load(student.folder, device, torch.bfloat16)
    types = {x.dtype for x in model.linear_attention.parameters()}
    knows = hasattr(transformers.PreTrainedModel, "_keep_in_fp32_modules_strict")
    assert types <= {torch.float32} or not knows, f"{student.name}: features in {types}"
    with torch.no_grad():
        logits = model(student.expected["ids"].to(device)).logits
    assert torch.isfinite(logits).all()
    # The 8 bits of bfloat16 in the place of float32's 24.
    off = float((logits.float().cpu() - student.expected["logits"]).abs().max())
    allowed = student.tolerance(student.expected["logits"]) * 2.0**16
    assert off <= allowed, f"{student.name}: off by {off} in bfloat16, allowed {allowed}"


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folder")
    arguments.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments.add_argument("--save")
    given = arguments.parse_args()
    print(f"Transformers {transformers.__version__}, PyTorch {torch.__version__}, {given.device}")
    with tempfile.TemporaryDirectory() as scratch:
        kept, failures = Path(given.save or scratch), []
        for student in all_students(given.folder):
            try:
                model = load(student.folder, given.device)
                check_saved(student, model, kept / student.name)
                logits = check_logits(student, model, given.device)
                check_generate(student, model, given.device)
                check_constant_memory(student, model, given.device)
                check_refusals(student, model, given.device)
                gradients = check_training(student, model, given.device)
                check_half(student, given.device)
                check_tokenizer(student)
                print(f"{student.name}: ok; of the tolerance: logits {logits:.3f}, gradients {gradients:.3f}")
            except Exception as problem:  # the others are still worth knowing
                failures.append(student.name)
                print(f"{student.name}: FAILED: {type(problem).__name__}: {problem}")
    print(f"{len(failures)} failed" if failures else "all students are the same in Transformers")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
