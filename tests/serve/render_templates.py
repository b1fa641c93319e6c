#!/usr/bin/env python3
"""Renders published chat templates with Jinja, as Transformers does, into chat_renderings.json.

usage: render_templates.py LLAMA_CPP TEMPLATES > chat_renderings.json

LLAMA_CPP is a checkout of github.com/ggml-org/llama.cpp: models/templates holds templates of published models,
and tests/test-chat-template.cpp quotes others. Zephyr's and Llama 2's are those of the folders
HuggingFaceH4/zephyr-7b-beta (TinyLlama/TinyLlama-1.1B-Chat-v1.0 has the same) and meta-llama/Llama-2-7b-chat-hf.
TEMPLATES receives the Jinja texts: with DOFLA_CHAT_TEMPLATES=TEMPLATES the tests recognise those themselves,
and without it templates of the same structure. Needs python3-jinja2.
"""

import json
import re
import sys
from pathlib import Path

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

CONVERSATIONS = {
    "system": [["system", "You are a helpful assistant"], ["user", "Hello"], ["assistant", " Hi there\n"],
               ["user", "  Who are you? "]],
    "plain": [["user", "Hello\n\nworld"], ["assistant", "Hi"], ["user", "Übung 🙂"]],
}

# name: (where it stands, begin-of-text, end-of-text)
SOURCES = {
    "chatml": ("quoted teknium/OpenHermes-2.5-Mistral-7B", "<s>", "<|im_end|>"),
    "qwen2.5": ("file Qwen-Qwen2.5-7B-Instruct", "", "<|im_end|>"),
    "llama3": ("quoted Llama-3", "<|begin_of_text|>", "<|eot_id|>"),
    "llama3.1": ("file meta-llama-Llama-3.1-8B-Instruct", "<|begin_of_text|>", "<|eot_id|>"),
    "llama2": ("own LLAMA2", "<s>", "</s>"),
    "mistral-old": ("quoted mistralai/Mistral-7B-Instruct-v0.2 (NOTE: Old pre-v1 without a system prompt)",
                    "<s>", "</s>"),
    "mistral-v1": ("quoted mistralai/Mistral-7B-Instruct-v0.2 (mistralai 'v1' template with a system prompt)",
                   "<s>", "</s>"),
    "mistral-v3": ("quoted Mistral-Large-Instruct-2407 (mistralai 'v3' template; modified to have system prompt"
                   " at start)", "<s>", "</s>"),
    "mistral-tekken": ("quoted Mistral-Nemo-Instruct-2407 (mistralai 'v3-tekken' template; modified to have "
                       "system prompt at start)", "<s>", "</s>"),
    "zephyr": ("own ZEPHYR", "<s>", "</s>"),
}


def quoted(text, name):
    """A template that a C++ file quotes beside its name."""
    at = text.index(json.dumps(name, ensure_ascii=False).replace("\\'", "'"))
    literal = re.compile(r'template_str= \*/ "((?:[^"\\]|\\.)*)"').search(text, at)[1]
    return json.loads('"' + literal.replace("\\'", "'") + '"')


def render(template, messages, begin, end):
    def refuse(message):
        raise jinja2.exceptions.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    try:
        return environment.from_string(template).render(
            messages=[{"role": role, "content": content} for role, content in messages],
            bos_token=begin, eos_token=end, add_generation_prompt=True)
    except jinja2.exceptions.TemplateError:
        return None


def main():
    checkout, folder = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    tests = (checkout / "tests/test-chat-template.cpp").read_text()
    out = []
    for name, (source, begin, end) in SOURCES.items():
        kind, which = source.split(" ", 1)
        if kind == "quoted":
            template = quoted(tests, which)
        elif kind == "file":
            template = (checkout / f"models/templates/{which}.jinja").read_text()
        else:
            template = (folder / f"{name}.jinja").read_text()  # put there by hand, see above
        (folder / f"{name}.jinja").write_text(template)
        for conversation, messages in CONVERSATIONS.items():
            out.append({"template": name, "source": source, "conversation": conversation, "begin": begin,
                        "end": end, "messages": messages, "rendered": render(template, messages, begin, end)})
    json.dump(out, sys.stdout, indent=1, ensure_ascii=False)
    print()


if __name__ == "__main__":
    main()
