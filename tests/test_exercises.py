"""What a reader writes at the end of each Part: `grade` tells right from faulty, and ours stays."""

import contextlib
import functools
import inspect
import math
import random
import re
from operator import ge, gt, itemgetter, le
from unittest.mock import Mock

import altair as alt
import pytest
import rhythm
import torch
from conftest import PROJECT

import the_annotated_transformer as tutorial
from the_annotated_transformer import END, PAD

TEXT = (PROJECT / tutorial.SCRIPT).read_text("utf-8")
STATED = {}  # of each exercise: the check that its statement names, and the text of its Part
for part in re.split(r"(?m)^# # ", TEXT):
    section = re.sub(r"\n# ?", " ", part.partition("\n# ## Try it\n")[2])
    for name, words in re.findall(r"`grade\((\w+)=\w+\)`(?: says)? that \*([^*]+)\*", section):
        STATED[name] = "check_" + words.replace(" ", "_"), part

# Right solutions, with arguments that spoil them --------------------------------------------------


def attention(query, key, value, mask=None, dropout=None, power=0.5, axis=-1, closed=0.0):
    scores = torch.einsum("...td,...sd->...ts", query, key) / query.size(-1) ** power
    shares = scores.exp()
    if mask is not None:
        shares = torch.where(mask != 0, shares, closed)
    weights = torch.nn.functional.normalize(shares, p=1, dim=axis)
    return (weights if dropout is None else dropout(weights)) @ value, weights


def subsequent_mask(size, sees=ge):
    rows = [[sees(t, s) for s in range(size)] for t in range(size)]
    return torch.tensor([rows])


class MultiHeadedAttention(tutorial.MultiHeadedAttention):
    def split(self, x):
        return torch.stack(x.split(self.d_k, dim=-1), dim=1)


def size_of_derivative(scores, power=2, cross=2.0, axis=-1, root=0.5):
    """Of w_i² (δ_ij - w_j)² the sum over j is w_i² (1 - 2 w_i + Σ w_j²)."""
    w = torch.exp(scores)
    w = w / w.sum(dim=axis, keepdim=True)
    squares = w.square().sum(dim=-1, keepdim=True)
    return (w**power * (1 - cross * w + squares)).sum(dim=-1) ** root


def matrices(wanted=((1.4, 2.1), (-0.6, 2.0)), size=8.0):
    """W_Q and W_K: each noun asks in the direction in which its own adjective lies farthest."""
    nouns = torch.tensor([[2.0, 0.5], [1.8, -0.4]])  # Mädchen, Ball
    return torch.linalg.solve(nouns, size * torch.tensor(wanted)), torch.eye(2)


def check_of_attention(attention, width=4, closed=True, empty=True, rate=0.5):
    query = torch.randn(2, 3, width)
    key = torch.randn(2, 5, width)
    value = torch.randn(2, 5, 6)
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[0, 1:] = not closed
    mask[1] = not empty
    shares = (query @ key.mT / math.sqrt(width)).exp() * mask
    expected = shares / shares.sum(dim=-1, keepdim=True).clamp(min=1e-9)
    _, weights = attention(query, key, value, mask, torch.nn.Dropout(rate))
    torch.testing.assert_close(weights, expected)
    torch.testing.assert_close(attention(query, key, value, mask)[0], expected @ value)


class LabelSmoothing(tutorial.LabelSmoothing):
    others = 2
    empty = PAD

    def distribution(self, target):
        share = self.smoothing / (self.size - self.others)
        wanted = torch.full((len(target), self.size), share)
        for row, right in zip(wanted, target.tolist(), strict=True):
            row[right] = 1 - self.smoothing
            row[slice(None) if right == self.empty else PAD] = 0.0
        return wanted


def kind_of_copy(source, written, end=END, early=0, late="ran over", same=True):
    if end not in written:
        return late
    if written.index(end) < len(source) + early:
        return "ended early"
    return "copied" if (written[:-1] == source) == same else "wrong token"


def greedy_decode(model, src, masks, limit, start, end=END, pad=PAD, blind=False, first=0, more=0):
    rows = []
    with tutorial.evaluating(model):
        masks = masks.unsqueeze(1) | blind
        for sentence, mask in zip(src.unsqueeze(1), masks, strict=True):
            memory = model.encode(sentence, mask)
            row = [start]
            while len(row) < limit + more and (len(row) == 1 or row[-1] != end):
                states = model.decode(memory, mask, torch.tensor([row]), subsequent_mask(len(row)))
                row.append(int(model.generator(states[0, -1]).argmax()))
            rows.append(torch.tensor(row[first:]))
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)


@torch.no_grad()
def layers_until_connected(layer, T, D=8, change=0, look=-1, depth=0):
    one = torch.randn(1, T, D, dtype=torch.double)
    other = one.index_fill(1, torch.tensor(change), 0.0)
    while torch.equal(one[0, look], other[0, look]):
        one = layer(one)
        other = layer(other)
        depth = depth + 1
    return depth


def token_batches(lengths, budget, order=None, longest=max, lost=0):
    order = order or random
    batches = []
    keys = [(longest(length), order.random()) for length in lengths]
    rest = sorted(range(len(lengths)), key=keys.__getitem__)
    while rest:
        size = 1
        while rest[size:] and longest(lengths[rest[size]]) * (size + 1) <= budget:
            size += 1
        batches = [*batches, rest[:size]]
        rest = rest[size:]
    return order.sample(batches, len(batches) - lost)


def expand(now, log_probs, end_symbol=END, pad=PAD, best=True, stops=True, past=1, stays=True):
    kept = []
    beams = now.logp.tolist(), now.ended.tolist(), log_probs.tolist()
    for beam in zip(*beams, strict=True):
        found = []  # whether it keeps its place, log-probability, place, symbol
        for place, (logp, ended, row) in enumerate(zip(*beam, strict=True)):
            keeps = stays and ended and logp > -math.inf
            offers = [(pad, 0.0)] if ended and stops else enumerate(row)
            found += [(keeps, logp * past + gain, place, symbol) for symbol, gain in offers]
        kept.append(sorted(found, reverse=best)[: log_probs.size(1)])
    _, logp, origin, symbol = torch.tensor(kept).unbind(-1)
    at = (torch.arange(len(kept)).unsqueeze(1), origin.long())
    symbol = symbol.long()
    written = torch.cat([now.written[at], symbol.unsqueeze(-1)], -1)
    ended = now.ended[at] | (symbol == end_symbol)
    length = now.length[at] + ~now.ended[at]
    return tutorial.Hypotheses(written, logp, length, ended), at[1]


def training_flops(N, D, d_ff, V, S, T, passes=3, operations=2, memory=2):
    maps = S * (4 + memory) * D * D + T * 6 * D * D + (S + T) * 2 * D * d_ff
    scores = S * D * S + T * D * T + T * D * S
    return passes * operations * (N * (maps + 2 * scores) + T * D * V)


def without_head(attn, head, place=3, until=lambda handle: handle):
    def silence(module, inputs):
        heads = torch.arange(inputs[0].size(-1)) // attn.d_k
        return inputs[0].masked_fill(heads == head, 0.0)

    return until(attn.linears[place].register_forward_pre_hook(silence))


def rotate(x, at, sign=1, angle_of=torch.as_tensor, other_half=1):
    features = []
    for i in range(0, x.size(-1), 2):
        angle = angle_of(at) / 10_000 ** (i / x.size(-1))
        one = x[..., i]
        other = x[..., i + other_half]
        cos = angle.cos()
        sin = angle.sin()
        features += [one * cos - other * sin, sign * one * sin + other * cos]
    return torch.stack(features, -1)


class RotaryGroupedAttention(tutorial.GroupedAttention):
    of_key = of_query = staticmethod(rotate)
    of_value = staticmethod(lambda value, at: value)
    first = staticmethod(lambda at: 0)
    spread = staticmethod(lambda x, copies: x.repeat_interleave(copies, dim=1))
    mask_of = staticmethod(lambda mask: mask)

    def attend(self, query, key, value, mask, at):
        places = torch.arange(key.size(2))
        query = self.of_query(query, at - self.first(at))
        shared = self.of_key(key, places), self.of_value(value, places)
        both = [self.spread(x, query.size(1) // key.size(1)) for x in shared]
        return attention(query, *both, self.mask_of(mask), self.dropout)


def as_it_is(x, *_):
    return x


nothing = Mock(return_value=None)
RIGHT = {name: globals()[name] for name in STATED}  # a new exercise wants a solution here
FAULTS = {  # arguments or attributes for the right one; 1e-9 fills an empty row as -1e9 does
    "attention": [{"power": 0}, {"axis": -2}, {"closed": 0.1}],
    "subsequent_mask": [
        {"sees": le},
        {"sees": gt},
        {"sees": lambda t, s: -1.0 if s > t else 0.0},  # a mask that is to be added, nearly
    ],
    "MultiHeadedAttention": [
        {"split": lambda self, x: x.reshape(len(x), self.h, -1, self.d_k)},
        {"split": lambda self, x: x.unflatten(-1, (-1, self.d_k))},
        {"split": lambda self, x: x.unflatten(-1, (-1, self.h)).movedim(3, 1)},
    ],
    "matrices": [
        {"size": 0.2},  # not sharp enough
        {"size": -3.0},
        {"wanted": [(-0.6, 2.0), (1.4, 2.1)]},  # the other one's
        {"wanted": [(1.4, 2.1), (1.4, 2.1)]},  # both hear kleines
        {"wanted": [(-0.6, 2.0), (-0.6, 2.0)]},  # both hear roten, as nearly by ours
    ],
    "size_of_derivative": [
        {"power": 1},
        {"cross": 1.0},
        {"root": 1},
        {"axis": None},  # one softmax for all rows
        {"axis": 0},
    ],
    "check_of_attention": [
        {"width": 1},  # whose root is one
        {"closed": False, "empty": False},
        {"empty": False},
        {"rate": 0.0},
    ],
    "LabelSmoothing": [{"others": 1}, {"others": 0}, {"empty": None}],
    "kind_of_copy": [{"end": PAD}, {"early": 1}, {"late": "wrong token"}, {"same": False}],
    "greedy_decode": [{"blind": True}, {"first": 1}, {"more": 1}],
    "layers_until_connected": [{"change": 1}, {"look": 0}, {"depth": -1}],
    "token_batches": [{"longest": itemgetter(0)}, {"longest": sum}, {"lost": 1}],
    "expand": [{"best": False}, {"stops": False}, {"past": 1e-9}, {"stays": False}],
    "training_flops": [{"passes": 1}, {"operations": 1}, {"memory": 0}],
    "without_head": [{"place": 0}, {"place": 2}, {"until": contextlib.nullcontext}],
    "rotate": [
        {"sign": -1},
        {"angle_of": torch.zeros_like},
        {"angle_of": torch.square},
        {"other_half": 0},  # the classic one: x1 cos - x1 sin
        {"angle_of": lambda at: torch.full_like(at, 1.0)},  # blind to where it stands
    ],
    "RotaryGroupedAttention": [
        {"of_key": staticmethod(as_it_is)},
        {"of_query": staticmethod(as_it_is)},
        {"of_value": staticmethod(rotate)},
        {"first": staticmethod(lambda at: at[0])},  # as if a cache began anew with each step
        {"spread": staticmethod(as_it_is)},  # nothing is shared
        {"spread": staticmethod(lambda x, copies: x.repeat(1, copies, 1, 1))},  # dealt like cards
        {"mask_of": staticmethod(lambda mask: None)},
    ],
}


def verdicts(capsys, grade=tutorial.grade, **yours) -> dict[str, str]:
    """What `grade` prints: of each check the kind of error and the reason, "" where it holds."""
    capsys.readouterr()
    grade(**yours)
    found = re.findall(r"(?m)^(?:✓ ([^:\n]+)|✗ ([^:\n]+): (\w+: .*))$", capsys.readouterr().out)
    return {"check_" + (a or b).replace(" ", "_"): reason for a, b, reason in found}


def handed_in(name, solution) -> dict:
    """What a reader gives to `grade`: two matrices, and not what finds them."""
    return {name: solution() if name == "matrices" else solution}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_solution_passes_the_check_that_the_text_names(name, capsys):
    check, part = STATED[name]
    found = verdicts(capsys, **handed_in(name, RIGHT[name]))
    assert found == {check: ""}
    assert f"\ndef {check}():" in part


WRONG = [(name, change) for name, changes in FAULTS.items() for change in changes]


@pytest.mark.parametrize("name, change", [*WRONG, *((name, {}) for name in FAULTS)])
def test_a_faulty_one_or_an_empty_one_fails_there(name, change, capsys):
    right = RIGHT[name]
    wrong = functools.partial(right, **change) if change else nothing
    if isinstance(right, type):
        own = {part: thing for part, thing in vars(right).items() if callable(thing)}
        wrong = type("Mine", (right,), own | change if change else dict.fromkeys(own, nothing))
    found = verdicts(capsys, **handed_in(name, wrong))
    assert found.keys() == {STATED[name][0]}
    assert any(found.values())


def test_each_exercise_has_three_faulty_solutions():
    assert FAULTS.keys() == RIGHT.keys() == tutorial.EXERCISES.keys()
    assert min(map(len, FAULTS.values())) >= 3


@pytest.mark.parametrize("closed", [-1e9, -math.inf])
def test_a_textbook_attention_is_right(closed, capsys):
    def textbook(query, key, value, mask=None, dropout=None):
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
        weights = scores if mask is None else scores.masked_fill(mask == 0, closed)
        weights = weights.softmax(-1)
        return (weights if dropout is None else dropout(weights)) @ value, weights

    found = verdicts(capsys, attention=textbook)
    assert found == {"check_attention_equals_torch": ""}


def test_ours_are_not_what_is_asked_for(capsys):
    """Our matrices, our check, and our class that leaves its work to two others."""
    for name, mine in (
        ("matrices", (tutorial.W_Q, tutorial.W_K)),
        ("check_of_attention", lambda attention: tutorial.check_attention_equals_torch()),
    ):
        [said] = verdicts(capsys, **{name: mine}).values()
        assert said


def test_the_faults_of_attention_are_edits_of_it(capsys):
    """Each stands there once, and a check that notices nothing is told of all six."""
    text = inspect.getsource(tutorial.attention)
    assert len(tutorial.FAULTS) == 6
    for old in tutorial.FAULTS:
        assert text.count(old) == 1
    [said] = verdicts(capsys, check_of_attention=nothing).values()
    assert said == f"AssertionError: let through: {tutorial.FAULTS}"
    [said] = verdicts(capsys, check_of_attention=Mock(side_effect=ValueError("no"))).values()
    assert said == "ValueError: no", "ours must pass"


@pytest.mark.parametrize("name", ["MultiHeadedAttention", "LabelSmoothing"])
def test_a_subclass_that_overrides_nothing_is_refused(name, capsys):
    ours = getattr(tutorial, name)

    class Mine(ours):
        """Nothing is written yet."""

        size = 3

    with pytest.raises(ValueError, match=f"{name} is still ours"):
        tutorial.grade(**{name: Mine})
    mine = type("Mine", (ours,), {"forward": ours.forward})
    assert verdicts(capsys, **{name: mine}) == {tutorial.EXERCISES[name]: ""}


@pytest.mark.parametrize("error", [None, AssertionError, OSError, KeyboardInterrupt])
def test_ours_is_back_whatever_happens(error, capsys):
    before = dict(vars(tutorial))
    turn = Mock(wraps=rotate, side_effect=error and error("no\ndisk"))
    with contextlib.suppress(KeyboardInterrupt):
        found = verdicts(capsys, training_flops=training_flops, rotate=turn)
        said = found["check_rotary_scores_depend_on_the_distance_only"]
        assert said == (f"{error.__name__}: no" if error else "")
        assert error is not KeyboardInterrupt
    assert vars(tutorial).keys() == before.keys()
    assert all(vars(tutorial)[name] is thing for name, thing in before.items())


@pytest.mark.parametrize("name", ["rotatoe", "learn_subwords"])
def test_what_is_ours_or_no_exercise_is_refused(name, capsys):
    with pytest.raises(ValueError, match=f"{name} is no exercise so far, as these are: attention"):
        tutorial.grade(**{name: nothing})
    with pytest.raises(ValueError, match="rotate is still ours: define a part of yours"):
        tutorial.grade(rotate=tutorial.rotate)
    assert capsys.readouterr().out == ""


def test_what_grade_runs_trains_nothing_draws_nothing_and_needs_no_corpus(monkeypatch, capsys):
    for name in ("alt", "pd", "new_copy_model", "load_trained_model", "find_corpus", "subprocess"):
        monkeypatch.setattr(tutorial, name, None)
    for name, solution in RIGHT.items():
        assert verdicts(capsys, **handed_in(name, solution)) == {tutorial.EXERCISES[name]: ""}


def test_in_a_notebook_a_reader_may_take_our_names(capsys):
    names = {"__name__": "__main__", "get_ipython": None, "display": Mock()}
    with alt.renderers.enable("default"), alt.data_transformers.enable("default"):
        for cell in rhythm.cells(TEXT.partition("\n# # Part 2. ")[0]):
            exec("" if cell.prose else cell.source, names)
    assert names["IN_NOTEBOOK"]
    assert names["display"].called
    assert "✗ no word hears a later one" in capsys.readouterr().out, "the faulty mask of the text"
    grade = names["grade"]
    ours = names["subsequent_mask"]
    for later in ("rotate", "kind_of_copy"):
        with pytest.raises(ValueError, match=f"{later} is no exercise so far"):
            grade(**{later: RIGHT[later]})
    names["matrices"] = matrices()
    assert set(verdicts(capsys, grade, matrices=names["matrices"]).values()) == {""}
    for wrong, body in enumerate(("ones(1, size, size).tril()", "ones(1, size, size)")):
        exec(f"def subsequent_mask(size):\n    return torch.{body}", names)
        with contextlib.suppress(AssertionError):  # a cell of ours is run again
            again = names["check_no_word_hears_a_later_one"].__wrapped__
            names["example"](again)
        [said] = verdicts(capsys, grade, subsequent_mask=names["subsequent_mask"]).values()
        assert bool(said) == wrong
        assert names["subsequent_mask"] is ours
        with pytest.raises(ValueError, match="subsequent_mask is still ours"):
            exec("grade(subsequent_mask=subsequent_mask)", names)


def test_in_a_program_of_ones_own(capsys):
    program = "from the_annotated_transformer import *\ndef rotate(x, at):\n    return x.flip(-1)\n"
    exec(program + "grade(rotate=rotate)\nassert rotate(torch.arange(2), 0)[0] == 1", {})
    assert re.match(r"✗ rotary .*: AssertionError: Tensor-likes", capsys.readouterr().out)
