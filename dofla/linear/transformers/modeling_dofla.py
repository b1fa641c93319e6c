"""A dofla student in Transformers:

    AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)

decoder_dofla.py is the model and attention_dofla.py its attention. This file is what Transformers asks
for around them: loading, the loss, and a cache for `generate`.
"""

import torch
import torch.nn.functional as F
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast

# Transformers takes along the files that this one imports, but not those that they import in turn.
from .attention_dofla import linear_attention  # noqa: F401
from .configuration_dofla import DoflaConfig
from .decoder_dofla import DecoderMixin
from .features_dofla import Features  # noqa: F401


class DoflaCache(Cache):
    """What every layer remembers of the tokens seen: of a fixed size, but for layers that kept their
    softmax attention. It cannot go back, so that it cannot be cropped. `generate` wants a Cache; of what
    that keeps (keys and values of all tokens) nothing is used, nor is its __init__."""

    is_compileable = False

    def __init__(self, layers):
        self.states = [None] * layers
        self.tokens = 0

    def __len__(self):
        return len(self.states)

    def __repr__(self):
        return f"DoflaCache({self.tokens} tokens, {self.bytes()} bytes)"

    def get_seq_length(self, layer_idx=0):
        return self.tokens

    def get_max_cache_shape(self, layer_idx=0):
        return None

    def bytes(self):
        return sum(x.numel() * x.element_size() for state in self.states for x in _tensors(state))

    def _replace(self, change):
        self.states = [_changed(state, change) for state in self.states]
        return self

    def reorder_cache(self, beam_idx):
        return self._replace(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_select_indices(self, indices):
        return self._replace(lambda x: x[indices.to(x.device)])

    def batch_repeat_interleave(self, repeats):
        return self._replace(lambda x: x.repeat_interleave(repeats, dim=0))

    def crop(self, *_, **__):
        raise ValueError("a dofla student has forgotten what came before: its cache cannot be cropped")


def _tensors(state):
    if isinstance(state, torch.Tensor):
        yield state
    elif state is not None:
        for part in state:
            yield from _tensors(part)


def _changed(state, change):
    if state is None or isinstance(state, torch.Tensor):
        return None if state is None else change(state)
    return type(state)(*(_changed(part, change) for part in state))


class DoflaForCausalLM(DecoderMixin, PreTrainedModel, GenerationMixin):
    config_class = DoflaConfig
    _auto_class = "AutoModelForCausalLM"  # save_pretrained then writes these Python files, too
    base_model_prefix = ""
    _no_split_modules = ["Block"]
    _is_stateful = True
    _supports_cache_class = True  # asked for by Transformers 4
    # Features are exponents: 16 bits are not enough for them.
    _keep_in_fp32_modules = ["linear_attention"]
    _keep_in_fp32_modules_strict = ["linear_attention"]

    def __init__(self, config):
        super().__init__(config)
        self.build(config.teacher, config.linear_attention)
        self.post_init()

    def _init_weights(self, module):
        """A student comes from its folder, where all of its weights are."""

    @classmethod
    def _supports_default_dynamic_cache(cls):
        return False  # forward() makes a DoflaCache

    def get_input_embeddings(self):
        return self.part("tokens")

    def set_input_embeddings(self, embedding):
        self._set_part("tokens", embedding)

    def get_output_embeddings(self):
        return None if self.spec.tied_head else self.part("head")

    def set_output_embeddings(self, head):
        self._set_part("head", head)

    def _set_part(self, role, module):
        *folders, name = self.spec.names[role].split(".")
        setattr(self.get_submodule(".".join(folders)), name, module)

    def prepare_inputs_for_generation(self, input_ids, past_key_values=None, attention_mask=None, **kwargs):
        seen = 0 if past_key_values is None else past_key_values.get_seq_length()
        inputs = {"input_ids": input_ids[:, seen:], "past_key_values": past_key_values,
                  "attention_mask": attention_mask, "use_cache": kwargs.get("use_cache", True)}
        if kwargs.get("logits_to_keep") is not None:
            inputs["logits_to_keep"] = kwargs["logits_to_keep"]
        return inputs

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, past_key_values=None,
                labels=None, use_cache=None, logits_to_keep=0, return_dict=None, inputs_embeds=None,
                output_attentions=None, output_hidden_states=None, num_items_in_batch=None, **kwargs):
        """Without a cache the ids are whole texts. With one (`use_cache=True`, or the cache of an earlier
        call) they follow the tokens that it has seen."""
        if input_ids is None or inputs_embeds is not None or output_attentions or output_hidden_states:
            raise ValueError("a dofla student takes input_ids and returns logits: inputs_embeds, "
                             "output_attentions and output_hidden_states are not supported")
        cache = past_key_values
        if cache is None and use_cache:
            cache = DoflaCache(self.spec.layers)
        if cache is not None and not isinstance(cache, DoflaCache):
            raise ValueError(f"past_key_values: expected a DoflaCache or None, found {type(cache).__name__}")
        past = 0 if cache is None else cache.tokens
        refuse_padding(attention_mask, with_cache=cache is not None)
        refuse_positions(position_ids, past, input_ids)
        x = self.decode(input_ids, None if cache is None else cache.states, past)
        if cache is not None:
            cache.tokens += input_ids.shape[1]
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.logits(x[:, keep])
        loss = None if labels is None else next_token_loss(logits, labels, num_items_in_batch)
        if return_dict is False:
            return tuple(part for part in (loss, logits, cache) if part is not None)
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=cache)


def refuse_padding(attention_mask, with_cache):
    """Padding at the end is harmless as long as nothing follows it: no earlier token sees it. Other
    padding would be read as text, and count as the first tokens of a cache."""
    if attention_mask is None or bool((attention_mask != 0).all()):
        return
    if attention_mask.dim() == 2 and not with_cache:
        mask = (attention_mask != 0).int()
        if bool((mask[:, 1:] <= mask[:, :-1]).all()):
            return
    raise ValueError("attention_mask hides tokens: a dofla student reads batches of equally long texts. Pad at "
                     "the end and pass use_cache=False to train or score; call generate for prompts of one "
                     "length at a time")


def refuse_positions(position_ids, past, input_ids):
    if position_ids is None:
        return
    own = torch.arange(past, past + input_ids.shape[1], device=position_ids.device)
    if not bool((position_ids == own).all()):
        raise ValueError("position_ids: a dofla student counts positions itself, from the first token on")


def next_token_loss(logits, labels, items=None):
    """The mean over all labels but −100, or the sum divided by `items` where the Trainer counts them."""
    logits, labels = logits[:, :-1].float().flatten(0, 1), labels[:, 1:].flatten()
    if items is None:
        return F.cross_entropy(logits, labels.to(logits.device), ignore_index=-100)
    return F.cross_entropy(logits, labels.to(logits.device), ignore_index=-100, reduction="sum") / items
