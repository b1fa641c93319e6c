"""The configuration of a dofla student, as Transformers reads it from config.json.

A student is its teacher with other attention. config.json therefore holds two blocks: `teacher`, the
teacher's own config.json, and `linear_attention`, what dofla wrote about features and exact keys.
Nothing of them is repeated here; what Transformers asks of every model is looked up in them.
"""

from transformers import PretrainedConfig


class DoflaConfig(PretrainedConfig):
    model_type = "dofla"
    _auto_class = "AutoConfig"

    def __init__(self, teacher=None, linear_attention=None, **kwargs):
        self.teacher = dict(teacher or {})
        self.linear_attention = dict(linear_attention or {})
        for token in ("bos_token_id", "eos_token_id", "pad_token_id"):
            kwargs.setdefault(token, self.teacher.get(token))
        # GPT-2 shares its embedding with the head unless told otherwise, the other families do not.
        gpt2 = self.teacher.get("model_type") == "gpt2"
        kwargs["tie_word_embeddings"] = self.teacher.get("tie_word_embeddings", gpt2)
        # Where tokenizer_config.json does not say. The other families have a tokenizer.json.
        kwargs.setdefault("tokenizer_class", "GPT2Tokenizer" if gpt2 else "PreTrainedTokenizerFast")
        super().__init__(**kwargs)

    def _of_teacher(self, *names):
        return next((self.teacher[name] for name in names if name in self.teacher), None)

    @property
    def vocab_size(self):
        return self._of_teacher("vocab_size")

    @vocab_size.setter
    def vocab_size(self, size):  # by resize_token_embeddings
        self.teacher["vocab_size"] = size

    @property
    def hidden_size(self):
        return self._of_teacher("hidden_size", "n_embd")

    @property
    def num_hidden_layers(self):
        return self._of_teacher("num_hidden_layers", "n_layer")

    @property
    def num_attention_heads(self):
        return self._of_teacher("num_attention_heads", "n_head")

    @property
    def max_position_embeddings(self):
        return self._of_teacher("max_position_embeddings", "n_positions")
