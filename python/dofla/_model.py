"""A model in memory: logits, text and tokens."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Iterator, NamedTuple

import numpy as np

from . import _dofla
from ._commands import describe, options_of, path_of, words_of
from ._functions import inspect
from ._results import Inspection

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


_DRAWING = options_of("generate")


class Token(NamedTuple):
    """One token of a generation. Its text may be empty: that of the next then has the rest of a character."""

    id: int
    text: str


class Generation(Iterator[Token]):
    """The tokens of Model.generate, drawn one by one when they are asked for. It may be left at any time."""

    def __init__(self, generation: Any) -> None:
        self._generation = generation

    def __iter__(self) -> Generation:
        return self

    def __next__(self) -> Token:
        return Token(*self._generation.next())

    @property
    def stopped(self) -> str | None:
        """Why it ended: "end-of-text", "max-tokens" or "context-full"; None as long as it has not."""
        return self._generation.stopped()


def _utf8(name: str, text: str) -> bytes:
    if not isinstance(text, str):
        raise TypeError(f"{name}: expected a text, found {type(text).__name__}")
    return re.sub("[\ud800-\udfff]", "\ufffd", text).encode("utf-8")  # a lone surrogate is no character


class Model:
    """A model's folder, softmax or student, to compute with. Threads may share one: they take turns.

    >>> model = dofla.Model(folder)
    >>> model.config.vocabulary
    512
    >>> model.logits([1, 2, 3]).shape
    (3, 512)
    >>> ids = model.encode("Once upon a time")
    >>> model.decode(ids, skip_special=True)
    'Once upon a time'
    >>> for token in model.generate("Once upon a time", max_tokens=3, temperature=0):
    ...     print(repr(token.text))
    ','
    ' there'
    ' was'
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, device: str = "auto") -> None:
        """A Hugging Face folder (default: the built-in wiki-mini). `device` is cpu, cuda, or auto: a GPU if there is
        one. On a GPU weights are bf16."""
        self.path: str = os.path.abspath(path_of("path", _dofla.built_in_model() if path is None else path))
        self._asked_device = device
        self._model = _dofla.Model(os.fsencode(self.path), device)
        self.config: Inspection = inspect(self.path)  # its shape and size

    @property
    def device(self) -> str:
        """Where it computes: cpu or cuda."""
        return self._model.device()

    def __fspath__(self) -> str:
        return self.path  # commands take a model for its folder

    def logits(self, ids: ArrayLike) -> NDArray[np.float32]:
        """Next-token logits [tokens, vocabulary] of a sequence, [batch, tokens, vocabulary] of a batch.

        `ids` are whole numbers of any type, [tokens] or [batch, tokens].
        """
        return self._model.logits(np.asarray(ids))

    def encode(self, text: str, add_special: bool = True) -> NDArray[np.int64]:
        """Token ids of a text; `add_special` adds what the tokenizer puts around one, such as <s>."""
        return self._model.encode(_utf8("text", text), add_special)

    def decode(self, ids: ArrayLike, skip_special: bool = False) -> str:
        """The text of token ids; ids that no token has give none."""
        return self._model.decode(np.asarray(ids), skip_special)

    def generate(self, prompt: str | None = None, *, ids: ArrayLike | None = None, max_tokens: int | None = None,
                 temperature: float | None = None, top_k: int | None = None, top_p: float | None = None,
                 seed: int | None = None, ignore_end: bool = False) -> Generation:
        """Tokens and their text, one by one; `prompt` is the text to continue, or `ids` are its tokens (default: the
        beginning of a document).

        >>> ids = model.encode("Once upon a time")
        >>> "".join(token.text for token in model.generate(ids=ids, max_tokens=4, temperature=0))
        ', there was a'
        """
        if ids is not None and prompt is not None:
            raise ValueError("--ids excludes --prompt")
        given = {"max_tokens": max_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed,
                 "ignore_end": ignore_end}
        return Generation(self._model.generate(b"" if prompt is None else _utf8("prompt", prompt),
                                               None if ids is None else np.asarray(ids),
                                               list(words_of(_DRAWING, given))))

    generate.__doc__ = describe(generate, described=("prompt", "ids"))

    def __repr__(self) -> str:
        return f"dofla.Model({self.path!r}, device={self.device!r})"

    def __reduce__(self) -> tuple[type[Model], tuple[str, str]]:
        return Model, (self.path, self._asked_device)  # a pickle names the folder; it holds no weights
