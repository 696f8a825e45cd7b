"""Grade solutions of the exercises in README.md.

    import grading
    grading.grade("attention", my_attention)

A right solution passes in silence; for a wrong one the error of the failed check is raised.
"""

import contextlib
import functools
import inspect
import random
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch.testing import assert_close

import the_annotated_transformer as at
from tests import checks
from the_annotated_transformer import END, PAD, START, VECTORS


def check_each_noun_hears_its_own_adjective(matrices):
    queries, keys = matrices
    _, weights = at.attention(VECTORS @ queries, VECTORS @ keys, VECTORS)
    assert weights[2, 1] > 0.5, "Mädchen gives kleines half of its weight or less"
    assert weights[6, 5] > 0.5, "Ball gives roten half of its weight or less"


FAULTS = (
    "scores are not divided",
    "softmax over queries",
    "mask upside down",
    "NaN where no key is open",
    "no dropout",
    "no bias",
)


def attention_with(fault, query, key, value, mask=None, dropout=None, bias=None):
    """`attention` with one of `FAULTS`."""
    scores = query @ key.mT
    if fault != "scores are not divided":
        scores = scores / query.size(-1) ** 0.5
    if bias is not None and fault != "no bias":
        scores = scores + bias
    if mask is not None:
        closed = (mask == 0) != (fault == "mask upside down")
        nan = fault == "NaN where no key is open"
        lowest = -torch.inf if nan else torch.finfo(scores.dtype).min
        scores = scores.masked_fill(closed, lowest)
    weights = scores.softmax(-2 if fault == "softmax over queries" else -1)
    if dropout is not None and fault != "no dropout":
        weights = dropout(weights)
    return weights @ value, weights


def check_six_faults_are_noticed(check_of_attention):
    check_of_attention(at.attention)
    missed = []
    for fault in FAULTS:
        with contextlib.suppress(Exception):
            check_of_attention(functools.partial(attention_with, fault))
            missed.append(fault)
    assert not missed, f"not noticed: {', '.join(missed)}"


def check_a_norm_by_absolute_values(norm):
    x = torch.randn(2, 5, 16)
    assert_close(norm(16)(x), x / x.abs().mean(-1, keepdim=True))
    model = at.draw_weights(at.tiny_model(norm=norm))
    assert at.cache_agrees(model), "decoding with a cache gives other states"


def check_the_distribution_gives_the_loss():
    criterion = at.LabelSmoothing(9, PAD, 0.3)
    target = torch.tensor([4, 8, PAD, 0, 3, 3])
    log_probs = torch.randn(6, 9).log_softmax(-1)
    wanted = at.smoothed_target(criterion, target)
    loss = criterion(log_probs, target)
    assert_close(F.kl_div(log_probs, wanted, reduction="sum"), loss)
    cross_entropy = F.cross_entropy(log_probs, wanted, reduction="sum")
    assert_close(cross_entropy - 5 * criterion.entropy, loss)  # five positions are real


def check_greedy_decoding_equals_a_beam_of_one():
    batch = at.Batch(at.pad_ids([[4, 5, 6, 7, 8], [9, 4], [10, 7, 7]]))
    for bias in (-1.0, 0.0, 0.5, 1.0):
        model = at.tiny_model()
        model.generator.proj.bias.data[END] = bias
        given = (model, batch.src, batch.src_mask, torch.tensor([12, 8, 5]), START)
        assert torch.equal(at.greedy_decode(*given), at.beam_search(*given, beam=1))


def check_each_copy_has_its_kind(kind_of_copy):
    copies = ([4, 5, END], [6, END, PAD], [4, 5, 6], [4, 6, END])
    kinds = [kind_of_copy([4, 5], written) for written in copies]
    assert kinds == ["copied", "ended early", "ran over", "wrong token"], kinds


def check_layers_are_counted_without_gradients():
    with torch.no_grad():
        inspect.unwrap(at.check_attention_connects_all_positions_in_one_layer)()


def check_an_ended_hypothesis_keeps_its_place():
    ended = (-9.0, [START, END])
    hypotheses = [(-1.0, [START, 4]), ended, (-2.0, [START, 5])]
    grown = at.grow(hypotheses, at.random_language(7), 3)
    assert ended in grown
    assert len(grown) == 3


EXERCISES = {  # the name that a solution replaces in the script, or None; the checks
    "attention": ("attention", at.check_attention_equals_torch),
    "subsequent_mask": ("subsequent_mask", at.check_no_word_attends_to_a_later_one),
    "split": ("MultiHeadedAttention.split", at.check_multi_head_attention_equals_torch),
    "matrices": (None, check_each_noun_hears_its_own_adjective),
    "size_of_derivative": ("size_of_derivative", checks.check_the_derivative_of_the_softmax),
    "check_of_attention": (None, check_six_faults_are_noticed),
    "norm": (None, check_a_norm_by_absolute_values),
    "distribution": ("smoothed_target", check_the_distribution_gives_the_loss),
    "greedy_decode": (
        "greedy_decode",
        checks.check_greedy_decoding_in_a_batch_equals_one_by_one,
        check_greedy_decoding_equals_a_beam_of_one,
    ),
    "kind_of_copy": (None, check_each_copy_has_its_kind),
    "layers_until_connected": (
        "layers_until_connected",
        check_layers_are_counted_without_gradients,
    ),
    "token_batches": (
        "token_batches",
        at.check_batches_hold_every_sentence_once_and_keep_the_budget,
    ),
    "grow": (
        "grow",
        check_an_ended_hypothesis_keeps_its_place,
        at.check_a_batch_is_searched_like_each_sentence_alone,
    ),
    "training_flops": ("training_flops", at.check_the_count_is_that_of_pytorch),
    "without_head": ("without_head", at.check_the_output_is_a_sum_over_heads),
    "rotate": (
        "rotate",
        at.check_rotary_scores_depend_on_the_distance_only,
        checks.check_rotate_multiplies_complex_numbers,
    ),
    "attend": ("RotaryGroupedAttention.attend", checks.check_turned_keys_are_shared),
}


def grade(name: str, solution, seed: int = 0) -> None:
    """Run the checks of an exercise on a solution; what it replaces is put back in any case.

    Another `seed` draws other inputs.
    """
    place, *judges = EXERCISES[name]
    for check in judges:
        torch.manual_seed(seed)
        random.seed(seed)
        if place is None:
            check(solution)
        else:
            with patch(f"{at.__name__}.{place}", solution):
                if check in checks.CHECKS.values():
                    check(at)
                else:
                    inspect.unwrap(check)()  # without @example, which sets a seed of its own
