"""Faults that a Transformer survives, put into the script one by one: its own checks must fail.

Most of them leave a model that trains, only worse than it should. Each is a literal replacement in
a copy of the script, so that a fault whose line is rewritten must be looked at again.
"""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import test_model
from conftest import PROJECT

SCRIPT = PROJECT / "the_annotated_transformer.py"
FAULTS = {
    # Attention
    "√d_k forgotten": (
        "key.transpose(-2, -1) / math.sqrt(d_k)",
        "key.transpose(-2, -1)",
        "check_attention_equals_torch",
    ),
    "softmax over the queries": (
        "scores.softmax(dim=-1)",
        "scores.softmax(dim=-2)",
        "check_attention_equals_torch",
    ),
    "mask applied after the softmax only": (
        "scores = scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)",
        "pass",
        "check_attention_equals_torch",
    ),
    "causal mask transposed": (
        "dtype=torch.bool).tril()",
        "dtype=torch.bool).triu()",
        "check_a_future_token_changes_no_earlier_output",
    ),
    "causal mask closes the present": (
        "dtype=torch.bool).tril()",
        "dtype=torch.bool).tril(-1)",
        "check_the_masks_of_a_batch",
    ),
    "heads joined without transpose": (
        "together = heads.transpose(1, 2).flatten(2)",
        "together = heads.reshape(len(heads), heads.size(2), -1)",
        "check_multi_head_attention_equals_torch",
    ),
    "heads cut without transpose": (
        "x.unflatten(-1, (self.h, -1)).transpose(1, 2)",
        "x.view(len(x), self.h, x.size(1), -1)",
        "check_multi_head_attention_equals_torch",
    ),
    "query and key swapped in the recorded map": (
        "self.record.append(weights.detach())",
        "self.record.append(weights.detach().transpose(-2, -1))",
        "check_multi_head_attention_equals_torch",
    ),
    "clones that share their initial values": (
        "part.reset_parameters()",
        "pass",
        "check_clones_differ_in_weights_and_biases",
    ),
    # The model
    "embedding not scaled": (
        "self.lut(x) * math.sqrt(self.d_model)",
        "self.lut(x)",
        "check_embeddings_start_with_unit_variance",
    ),
    "sine and cosine swapped": (
        "torch.stack([torch.sin(angle), torch.cos(angle)]",
        "torch.stack([torch.cos(angle), torch.sin(angle)]",
        "check_positional_encoding_is_the_formula",
    ),
    "unbiased variance": (
        "centred.square().mean(dim=-1, keepdim=True)",
        "x.var(dim=-1, keepdim=True)",
        "check_layer_norm_equals_torch",
    ),
    "epsilon outside the root": (
        "(variance + self.eps).sqrt()",
        "(variance.sqrt() + self.eps)",
        test_model.test_the_norm_of_a_vector_that_hardly_varies,
    ),
    "norm dropped": (
        "self.dropout(sublayer(self.norm(x)))",
        "self.dropout(sublayer(x))",
        "check_encoder_layer_equals_torch",
    ),
    "norm dropped, in the paper's order": (
        "self.norm(x + self.dropout(sublayer(x)))",
        "x + self.dropout(sublayer(x))",
        "check_encoder_layer_equals_torch",
    ),
    "no norm at the end of the stack": (
        "LayerNorm(layer.size) if layer.norm_first else nn.Identity()",
        "nn.Identity()",
        test_model.test_the_output_is_normalised_in_both_orders,
    ),
    "source mask leaked": (
        "self.src_attn(x, memory, memory, src_mask)",
        "self.src_attn(x, memory, memory, None)",
        "check_padding_changes_no_real_output",
    ),
    "one attention for self and cross": (
        "copy.deepcopy(attn), ff, dropout, norm_first), N)",
        "attn, ff, dropout, norm_first), N)",
        test_model.test_parameters_of_the_base_and_the_big_model,
    ),
    "dropout missing in a sub-layer": (
        "x + self.dropout(sublayer(self.norm(x)))",
        "x + sublayer(self.norm(x))",
        test_model.test_where_everything_is_dropped_nothing_is_left,
    ),
    "dropout missing after the embedding": (
        "self.dropout(x + self.pe[:, : x.size(1)])",
        "x + self.pe[:, : x.size(1)]",
        test_model.test_where_everything_is_dropped_nothing_is_left,
    ),
    "dropout missing in the feed-forward network": (
        "self.narrow(self.dropout(self.widen(x).relu()))",
        "self.narrow(self.widen(x).relu())",
        test_model.test_where_everything_is_dropped_nothing_is_left,
    ),
    "dropout missing in attention": (
        "self.dropout.p if self.training else 0.0",
        "0.0",
        test_model.test_where_everything_is_dropped_nothing_is_left,
    ),
    "dropout that never ends": (
        "self.dropout.p if self.training else 0.0",
        "self.dropout.p",
        "check_a_future_token_changes_no_earlier_output",
    ),
    # Training
    "target mask without padding": (
        "(self.tgt != pad).unsqueeze(1) & causal",
        "(self.tgt == self.tgt).unsqueeze(1) & causal",
        "check_the_masks_of_a_batch",
    ),
    "target not shifted": (
        "self.tgt_y = tgt[:, 1:]",
        "self.tgt_y = tgt[:, :-1]",
        "check_the_masks_of_a_batch",
    ),
    "smoothing mass on padding": (
        "wanted[:, self.padding_idx] = 0.0",
        "pass",
        "check_label_smoothing_at_probability_zero",
    ),
    "smoothing shared among too many": (
        "self.share = smoothing / (size - 2)",
        "self.share = smoothing / (size - 1)",
        "check_label_smoothing_beside_the_option_of_cross_entropy",
    ),
    "limit of smoothing": (
        "limit = (size - 2) / (size - 1)",
        "limit = (size - 1) / size",
        test_model.test_a_wrong_word_is_never_wanted_more_than_the_right_one,
    ),
    "warm-up exponent": (
        "step * warmup**-1.5)",
        "step * warmup**-1.0)",
        "check_the_rate_peaks_at_the_end_of_warm_up",
    ),
    "schedule two updates off": (
        "curve(updates + 1, size, factor, warmup)",
        "curve(updates + 3, size, factor, warmup)",
        "check_the_rate_peaks_at_the_end_of_warm_up",
    ),
    "gradient divided per micro-batch": (
        "loss_compute(states, batch.tgt_y, ntokens)",
        "loss_compute(states, batch.tgt_y, batch.ntokens)",
        "check_accumulation_equals_one_large_batch",
    ),
    "no gradient at all": (
        "            if training:\n                loss.backward()\n",
        "",
        test_model.test_an_update_follows_the_gradient_of_the_mean_over_all_tokens,
    ),
    "gradient leaks into the next update": (
        "            scheduler.step()\n            optimizer.zero_grad()\n",
        "            scheduler.step()\n",
        test_model.test_a_few_updates_give_the_losses_that_they_always_gave,
    ),
    "loss not divided by the tokens": (
        "return loss_sum, loss_sum / ntokens",
        "return loss_sum, loss_sum",
        test_model.test_an_update_follows_the_gradient_of_the_mean_over_all_tokens,
    ),
    "evaluation with dropout": (
        "    was_training = model.training\n    model.eval()\n",
        "    was_training = model.training\n",
        test_model.test_a_loss_is_judged_and_a_text_decoded_without_dropout,
    ),
    # Decoding
    "no source mask in greedy decoding": (
        "model.decode(memory[active], src_mask[active],",
        "model.decode(memory[active], src_mask[active] | True,",
        "check_greedy_decoding_in_a_batch_equals_one_by_one",
    ),
    "no source mask in the cache": (
        "F.scaled_dot_product_attention(query, self.keys, self.values, self.mask)",
        "F.scaled_dot_product_attention(query, self.keys, self.values)",
        "check_cached_and_plain_decoding_agree",
    ),
    "copies decoded one symbol short": (
        "greedy_decode(model, batch.src, batch.src_mask, T + 1, START)",
        "greedy_decode(model, batch.src, batch.src_mask, T, START)",
        test_model.test_copies_are_counted_to_their_end,
    ),
    "length penalty counts the start": (
        "torch.where(had_ended, length, length + 1)",
        "torch.where(had_ended, length, length + 2)",
        test_model.test_a_full_beam_finds_the_best_of_all_where_sentences_may_end_early,
    ),
    "a search that ends too early": (
        "going_on / length_penalty(longest, alpha)",
        "going_on / length_penalty(1, alpha)",
        test_model.test_a_full_beam_finds_the_best_of_all_where_sentences_may_end_early,
    ),
    # The engine room
    "gradient of the chunked loss": (
        "out=log_probs).sub_(share)",
        "out=log_probs)",
        "check_the_loss_in_chunks_equals_the_plain_one",
    ),
    "the last micro-batch without an exchange": (
        "waits = several and number < len(batches)",
        "waits = several and number <= len(batches)",
        "check_two_processes_make_the_updates_of_one",
    ),
    "gradient divided by the tokens of one rank": (
        "torch._foreach_mul_(gradients, ranks / tokens)",
        "torch._foreach_mul_(gradients, 1 / sum(batch.ntokens for batch in batches))",
        "check_two_processes_make_the_updates_of_one",
    ),
}


@pytest.fixture
def with_fault(tmp_path: Path, monkeypatch) -> Iterator[ModuleType]:
    """A function that makes a module of the script with a text in the place of another."""

    def load(old: str, new: str) -> ModuleType:
        text = SCRIPT.read_text("utf-8")
        assert old in text, "this line is written differently now: change the fault likewise"
        path = tmp_path / SCRIPT.name
        path.write_text(text.replace(old, new), "utf-8")
        spec = importlib.util.spec_from_file_location("faulty", path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "faulty", module)  # dataclasses look for it there
        spec.loader.exec_module(module)
        return module

    return load


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_noticed(fault, with_fault):
    old, new, check = FAULTS[fault]
    faulty = with_fault(old, new)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        faulty.EXAMPLES[check]() if isinstance(check, str) else check(faulty)


def test_without_a_fault_nothing_is_noticed(with_fault):
    sound = with_fault("", "")
    for check in {check for *_, check in FAULTS.values()}:
        sound.EXAMPLES[check]() if isinstance(check, str) else check(sound)
