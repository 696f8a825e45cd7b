"""Faults that a Transformer survives, put into the script one by one: its own checks must fail.

Most of them leave a model that trains, only worse than it should. Each is a literal replacement in
a copy of the script, so that a fault whose line is rewritten must be looked at again.
"""

import functools
import re
import sys
from collections.abc import Callable
from types import CodeType, ModuleType

import pytest
import test_looking_inside
import test_model
import test_recipe
from draw_faults import SCRIPT, module_of

LISTED = """\
mask applied after the softmax only: check_attention_equals_torch
- scores = scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)
+ pass
causal mask transposed: check_no_word_hears_a_later_one
- dtype=torch.bool).tril()
+ dtype=torch.bool).triu()
heads joined without transpose: check_multi_head_attention_equals_torch
- self.linears[3](heads.transpose(1, 2).flatten(2))
+ self.linears[3](heads.reshape(len(heads), heads.size(2), -1))
unbiased variance: check_layer_norm_equals_torch
- centred.square().mean(dim=-1, keepdim=True)
+ x.var(dim=-1, keepdim=True)
epsilon outside the root: check_layer_norm_equals_torch
- (variance + self.eps).sqrt()
+ (variance.sqrt() + self.eps)
norm dropped, in the paper's order: check_layers_equal_torch
- self.norm(x + self.dropout(sublayer(x)))
+ x + self.dropout(sublayer(x))
no norm at the end of the stack: test_a_stack_is_its_layers_one_after_the_other_and_a_norm
- copy.deepcopy(layer.sublayer[0].norm) if layer.norm_first else nn.Identity()
+ nn.Identity()
source mask leaked: check_padding_changes_no_real_output
- self.src_attn(x, memory, memory, src_mask)
+ self.src_attn(x, memory, memory, None)
one attention for self and cross: check_the_parameters_are_those_of_the_formulas
- part["decoder_layer"](d_model, self_attn, src_attn, ff, *around)
+ part["decoder_layer"](d_model, self_attn, self_attn, ff, *around)
dropout missing in a sub-layer: check_layers_equal_torch
- x + self.dropout(sublayer(self.norm(x)))
+ x + sublayer(self.norm(x))
dropout missing after the embedding: test_where_everything_is_dropped_nothing_is_left
- self.dropout(x + self.pe[:, : x.size(1)])
+ x + self.pe[:, : x.size(1)]
dropout missing in the feed-forward network: check_layers_equal_torch
- self.narrow(self.dropout(self.widen(x).relu()))
+ self.narrow(self.widen(x).relu())
dropout missing in attention: check_layers_equal_torch
- weights = dropout(weights)
+ pass
dropout that never ends: test_fast_dropout_drops_nothing_once_a_model_is_in_use
- if not self.training or self.p == 0
+ if self.p == 0
target mask without padding: check_the_masks_of_a_batch
- (self.tgt != pad).unsqueeze(1) & causal
+ (self.tgt == self.tgt).unsqueeze(1) & causal
target not shifted: check_the_masks_of_a_batch
- self.tgt_y = tgt[:, 1:]
+ self.tgt_y = tgt[:, :-1]
smoothing mass on padding: test_the_loss_is_the_divergence_from_its_distribution
- t[:, self.padding_idx] = 0.0
+ pass
schedule two updates off: check_two_updates_are_those_of_the_formula
- rate(updates + 1, size, factor, warmup)
+ rate(updates + 3, size, factor, warmup)
gradient divided per micro-batch: check_accumulation_equals_one_large_batch
- loss_compute(states, batch.tgt_y, ntokens)
+ loss_compute(states, batch.tgt_y, batch.ntokens)
gradient leaks into the next update: check_accumulation_equals_one_large_batch
-             scheduler.step()
-             optimizer.zero_grad()
+             scheduler.step()
loss not divided by the tokens: check_the_loss_is_a_mean_over_real_tokens
- loss_sum.detach(), loss_sum / norm
+ loss_sum.detach(), loss_sum
decoding with dropout: test_a_text_is_decoded_without_dropout_and_without_gradients
-     was_training = model.training
-     model.eval()
+     was_training = model.training
no source mask in the cache: check_cached_and_plain_decoding_agree
- self.attn.attend(q, self.keys, self.values, mask.unsqueeze(1))
+ self.attn.attend(q, self.keys, self.values, None)
length penalty counts the start: check_a_batch_is_searched_like_each_sentence_alone
- torch.where(had_ended, length.gather(1, place), step)
+ torch.where(had_ended, length.gather(1, place), step + 1)
a search that ends too early: check_a_batch_is_searched_like_each_sentence_alone
- amax(1) / length_penalty(limit, alpha)
+ amax(1) / length_penalty(1, alpha)
source embedding not tied: check_the_parameters_are_those_of_the_formulas
- model.src_embed[0].lut.weight = model.tgt_embed[0].lut.weight
+ pass
output not tied: check_the_parameters_are_those_of_the_formulas
- model.generator.proj.weight = model.tgt_embed[0].lut.weight
+ pass
weights that do not start by the rule of Glorot: check_a_new_model_starts_as_described
- nn.init.xavier_uniform_(module.weight)
+ pass
an extra sub-layer: check_the_parameters_are_those_of_the_formulas
- clones(SublayerConnection(size, dropout, norm_first, norm), 2)
+ clones(SublayerConnection(size, dropout, norm_first, norm), 3)
Adam with its usual betas: check_two_updates_are_those_of_the_formula
- betas=(0.9, 0.98)
+ betas=(0.9, 0.999)
Adam with its usual epsilon: check_two_updates_are_those_of_the_formula
- eps=1e-9, fused=True
+ eps=1e-8, fused=True
source without its end: check_words_of_the_test_are_unknown_and_ids_have_their_ends
- return [([*a, END], [START, *b, END])
+ return [([*a], [START, *b, END])
dropout left on where a loop judges: test_judging_is_without_dropout_and_changes_nothing
- model.train(training)
+ model.train()
another length penalty: check_the_length_penalty_at_two_lengths
- return ((5 + length) / 6) ** alpha
+ return ((1 + length) / 2) ** alpha
ended hypotheses that lose their place: check_a_batch_is_searched_like_each_sentence_alone
- masked_fill(ended, torch.inf)
+ masked_fill(ended, -1000.0)
an average of the last model alone: test_an_average_is_the_mean_of_every_weight
- total[name] + value
+ value * (count + 1)
sampling that ignores the temperature: test_temperature_and_top_k
- (likeliest.values / temperature)
+ likeliest.values
sampling that ignores top-k: test_temperature_and_top_k
- len(log_probs) if top_k is None else top_k
+ len(log_probs)
values turned too: test_rotary_attention_knows_distances_and_no_places
- attend(q, rotate(k, places), v, mask)
+ attend(q, rotate(k, places), rotate(v, places), mask)
a straight line that stays level: test_the_line_rises_to_the_peak_of_the_curve_and_ends_at_zero
- min(step / warmup, falling)
+ min(step / warmup, 1.0)
vocabulary from all splits: check_words_of_the_test_are_unknown_and_ids_have_their_ends
- for pair in sample_of(corpus.pairs("train"))
+ for pair in itertools.chain(*corpus.splits.values())
BLEU that does not see capitals: check_case_counts_and_an_unknown_word_is_one
- BLEU(tokenize=bleu_tokenization(language))
+ BLEU(tokenize=bleu_tokenization(language), lowercase=True)
an unknown word as three: check_case_counts_and_an_unknown_word_is_one
- text.replace(SPECIALS[UNKNOWN], UNKNOWN_WORD)
+ text
heads that take each other's columns: check_the_output_is_a_sum_over_heads
- .chunk(attn.h, dim=1)[head]
+ .chunk(attn.h, dim=1)[0]
a head that takes rows for columns: check_the_output_is_a_sum_over_heads
- .chunk(attn.h, dim=1)[head]
+ .chunk(attn.h, dim=0)[head]
language model without a mask: check_a_language_model_is_a_decoder_without_cross_attention
- return self.decoder(self.tgt_embed(tgt), tgt_mask)
+ return self.decoder(self.tgt_embed(tgt), None)
root of the mean square plus epsilon: check_rms_norm_equals_torch
- (mean_square + self.eps).sqrt()
+ (mean_square.sqrt() + self.eps)
RMSNorm that takes the mean away: check_rms_norm_equals_torch
- return self.weight * x / (mean_square
+ return self.weight * (x - x.mean(-1, keepdim=True)) / (mean_square
the wrong half through the gate: check_swiglu_is_the_formula
- F.silu(self.gate(x)) * self.widen(x)
+ self.gate(x) * F.silu(self.widen(x))
groups of heads dealt like cards: check_grouped_attention_equals_torch
- k = k.repeat_interleave(copies, dim=1)
+ k = k.repeat(1, copies, 1, 1)
angles that do not grow evenly: check_rotary_scores_depend_on_the_distance_only
- angle = places.unsqueeze(1) * frequency
+ angle = places.unsqueeze(1).sqrt() * frequency
the same frequency in each pair: test_rotary_attention_knows_distances_and_no_places
-     angle = places
+     frequency = torch.ones_like(frequency)
+     angle = places
keys not turned: test_rotary_attention_knows_distances_and_no_places
- attend(q, rotate(k, places), v, mask)
+ attend(q, k, v, mask)
a cache that forgets where it is: check_a_batch_is_searched_like_each_sentence_alone
- x = model.tgt_embed(written.flatten(0, 1))[:, -1]
+ x = model.tgt_embed(written.flatten(0, 1)[:, -1:])[:, -1]
a loss that counts padding: test_padding_costs_nothing_whatever_its_probability
- loss.masked_fill(target == self.padding_idx, 0.0).sum()
+ loss.sum()
bias without its sign: test_a_bias_is_added_to_the_scores
- scores = scores + bias
+ scores = scores - bias
weights with their graph: test_the_weights_of_the_last_call_are_kept_without_their_graph
- else weights.detach()
+ else weights
padding among the other words: check_label_smoothing_beside_the_option_of_cross_entropy
- log_probs[..., self.padding_idx + 1 :].sum(-1)
+ log_probs[..., self.padding_idx :].sum(-1)
the right word among the other words: test_the_loss_is_the_divergence_from_its_distribution
- -(1 - self.smoothing - self.share) * right
+ -(1 - self.smoothing) * right
a cache that keeps hypotheses in their old order: check_cached_and_plain_decoding_agree
- self.keys = self.keys[rows]
+ pass
queries at the first places: test_the_cache_serves_a_language_model
- rotate(q, places[-q.size(-2) :])
+ rotate(q, places[: q.size(-2)])
a kernel that takes closed for open: test_fused_attention_computes_what_plain_attention_does
-         mask = mask != 0
-     if bias
+         mask = mask == 0
+     if bias
"""
ENTRY = r"(?m)^(\S[^-+].*): (\w+)\n((?:- .*\n)+)((?:\+ .*\n)*)"  # name, check, before, after
FAULTS = re.findall(ENTRY, LISTED)


@functools.cache
def compiled(cell: str) -> CodeType:
    """The code of a cell; all but one are the same in every copy."""
    return compile(cell, SCRIPT, "exec")


@pytest.fixture
def with_fault(monkeypatch) -> Callable:
    """A function that makes a module of the script with some lines in the place of others."""

    def load(before: str, after: str) -> ModuleType:
        old, new = (re.sub("(?m)^..", "", lines).rstrip() for lines in (before, after))
        text = SCRIPT.read_text("utf-8")
        assert old in text, "this line is written differently now: change the fault likewise"
        monkeypatch.setitem(sys.modules, "faulty", None)  # not there any more after the test
        cells = re.split(r"(?m)^(?=# %%)", text.replace(old, new))
        return module_of(map(compiled, cells))

    return load


def run(check: str, module: ModuleType) -> None:
    """Run a check of the script, or a test that takes it."""
    tests = vars(test_model) | vars(test_looking_inside) | vars(test_recipe)
    module.EXAMPLES[check]() if check in module.EXAMPLES else tests[check](module)


@pytest.mark.parametrize("fault", FAULTS, ids=[name for name, *_ in FAULTS])
def test_a_fault_is_noticed(with_fault, fault):
    _, check, before, after = fault
    faulty = with_fault(before, after)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        run(check, faulty)


def test_without_a_fault_nothing_is_noticed(with_fault):
    assert re.sub(ENTRY, "", LISTED) == "", "each line belongs to a fault"
    sound = with_fault("", "")
    for check in {check for _, check, *_ in FAULTS}:
        run(check, sound)
