"""Hidden tests of sheet 4."""

import contextlib
import functools
import itertools
import math
import random

import torch
from torch import nn

import the_annotated_transformer as at
from exercises.course import faults
from exercises.course.tasks import close, is_number, shared, task


@task("break_even", points=1, seeds=4)
class BreakEven:
    def inputs(seed):
        draw = random.Random(seed)
        alpha = draw.choice([0.0, 0.3, 0.6, 1.0, 1.7])
        return -draw.uniform(0.5, 30), draw.randint(1, 40), alpha

    def probe(solve, logp, length, alpha):
        return solve.break_even(logp, length, alpha)

    def judge(result, logp, length, alpha):
        before = logp / at.length_penalty(length, alpha)
        after = before * at.length_penalty(length + 1, alpha)
        if close(result, after - logp, 1e-6):
            return 1, ""
        return 0, "with this token the score changes"


@task("beam_by_hand", points=2, seeds=1)
class BeamByHand:
    def probe(solve):
        answers = (
            solve.held_after_the_step,
            solve.stops_with_alpha_0,
            solve.largest_limit_with_alpha_1,
        )
        return None if answers == (None, None, None) else answers

    def judge(result):
        held, stops, limit = result
        tokens = "a.bc"  # `grow` sees numbers, and the end is number 1
        after = {"a b": [-1.3, -1.5, -4.0, -1.1], "b c": [-2.8, -0.1, -3.5, -4.0]}
        language = {tuple(map(tokens.index, text.split())): row for text, row in after.items()}
        start = [(-1.0, [0, 2]), (-1.6, [2, 3]), (-2.4, [0, 1])]
        best = at.grow(start, lambda written: torch.tensor(language[tuple(written)]), 3)
        right = {" ".join(tokens[n] for n in written): logp for logp, written in best}
        held = [" ".join(str(text).split()) for text in held or ()]
        points = 0
        messages = []
        if sorted(held) == sorted(right):
            points += 1
        elif "a ." not in held:
            messages.append("a hypothesis that has ended keeps its place")
        else:
            messages.append("these are not the best continuations")

        def may_stop(alpha, longest):
            ended = [
                p / at.length_penalty(len(t.split()), alpha) for t, p in right.items() if "." in t
            ]
            open_ones = [p for t, p in right.items() if "." not in t]
            return max(ended) >= max(open_ones) / at.length_penalty(longest, alpha)

        largest = max(limit for limit in range(3, 99) if may_stop(1.0, limit))
        if stops is may_stop(0.0, 99) and limit == largest:
            points += 1
        else:
            messages.append("an unfinished one can at best keep its log-probability")
        return points, "; ".join(messages)


@task("expected_similarity", points=2)
class ExpectedSimilarity:
    def inputs(seed):
        draw = random.Random(seed)
        number = draw.randint(2, 7)
        candidates = [draw.choices("abcdef", k=draw.randint(1, 8)) for _ in range(number)]
        log_probs = [draw.uniform(-4, 0) for _ in range(number)]
        return candidates, log_probs

    def probe(solve, candidates, log_probs):
        def similarity(written, reference):
            return sum(token in reference for token in written) / len(written)

        found = []
        for shift in (0.0, 2000.0):
            given = [each - shift for each in log_probs]
            try:
                found.append(list(solve.expected_similarity(candidates, given, similarity)))
            except ArithmeticError:
                found.append([])
        return found

    def judge(result, candidates, log_probs):
        table = torch.tensor(
            [
                [sum(token in other for token in one) / len(one) for other in candidates]
                for one in candidates
            ]
        ).double()
        right = table @ torch.tensor(log_probs).double().softmax(0)
        if not close(result[0], right):
            if close(result[0], table.T @ torch.tensor(log_probs).double().softmax(0)):
                return 0, "the candidate comes first, the reference second"
            return 0, "the mean over references, weighted by their probabilities, is different"
        if not close(result[1], right):
            return 1, "the probability of a long sentence is below the smallest number"
        return 2, ""


@shared
def random_weights(model):
    """Give a model weights that are all different, and dropout that shows."""
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    return model


@shared
def encoder_and_source(draw):
    """A random model, and sources (B, S) of which the last is padded."""
    heads = draw.choice([2, 3])
    sizes = {"N": draw.randint(1, 3), "d_model": 4 * heads, "d_ff": 8, "h": heads}
    model = random_weights(at.make_model(11, 11, dropout=0.4, **sizes))
    src = torch.randint(4, 11, (draw.randint(2, 4), draw.randint(4, 7)))
    src[-1, draw.randint(1, 3) :] = at.PAD
    return model, src, (src != at.PAD).unsqueeze(1)


@task("head_entropies", points=2)
class HeadEntropies:
    def inputs(seed):
        return encoder_and_source(random.Random(seed))

    def probe(solve, model, src, src_mask):
        model.train()
        found = solve.head_entropies(model, src, src_mask)
        training = model.training
        model.eval()
        solve.head_entropies(model, src, src_mask)
        return {"found": found, "mode": training and not model.training}

    def judge(result, model, src, src_mask):
        model.eval()
        model.encode(src, src_mask)
        entropies = []
        with_padding = []
        for layer in model.encoder.layers:
            for weights in layer.self_attn.attn.unbind(1):  # (B, S, S)
                bits = [[entropy_of(row) for row in rows] for rows in weights.tolist()]
                real = src_mask[:, 0].tolist()
                pairs = [
                    (b, r)
                    for one, two in zip(bits, real, strict=True)
                    for b, r in zip(one, two, strict=True)
                ]
                entropies.append(sum(b for b, r in pairs if r) / sum(r for _, r in pairs))
                with_padding.append(sum(b for b, _ in pairs) / len(pairs))
        shape = len(model.encoder.layers), -1
        right = torch.tensor(entropies).view(shape)
        found = result["found"]
        if close(found, right, 1e-3):
            return (2, "") if result["mode"] else (1, "the mode of the model has changed")
        if close(found, right * math.log(2), 1e-3):
            return 1, "this is in nats, not in bits"
        if close(found, torch.tensor(with_padding).view(shape), 1e-3):
            return 1, "padded queries count, too"
        if any(number != number for row in found for number in row):
            return 0, "a weight of 0 gives NaN"
        return 0, "the mean entropy of the rows of real tokens, in eval mode, is different"


def entropy_of(row):
    """Entropy of probabilities in bits."""
    return -sum(p * math.log2(p) for p in row if p > 0)


@shared
def attention_and_input(draw):
    """A random attention in eval mode, its input, two heads, and what they may give instead."""
    heads = draw.randint(3, 5)
    attn = random_weights(at.MultiHeadedAttention(heads, 4 * heads, dropout=0.3)).eval()
    x = torch.randn(2, draw.randint(3, 6), 4 * heads)
    off = sorted(draw.sample(range(heads), 2))
    return attn, x, off, torch.randn(heads, 4)


@task("heads_off", points=3)
class HeadsOff:
    def inputs(seed):
        return attention_and_input(random.Random(seed))

    def probe(solve, attn, x, off, instead):
        before = {name: value.clone() for name, value in attn.state_dict().items()}

        def unchanged():
            return all(
                torch.equal(value, before[name]) for name, value in attn.state_dict().items()
            )

        found = {}
        with torch.no_grad():
            with solve.heads_off(attn, off):
                found["zeros"] = attn(x, x, x)
                found["weights"] = unchanged()
            found["after"] = attn(x, x, x)
            try:
                with solve.heads_off(attn, off, instead):
                    found["instead"] = attn(x, x, x)
            except TypeError:
                found["instead"] = []
            with solve.heads_off(attn, off[:1]):
                with solve.heads_off(attn, off[1:]):
                    found["nested"] = attn(x, x, x)
                found["outer"] = attn(x, x, x)
            calls = []
            foreign = attn.linears[3].register_forward_pre_hook(lambda *_: calls.append(1))
            with solve.heads_off(attn, off):
                attn(x, x, x)
            attn(x, x, x)
            foreign.remove()
            found["calls"] = len(calls)
            try:
                with solve.heads_off(attn, off):
                    raise KeyError
            except KeyError:
                pass
            found["after an error"] = attn(x, x, x)
        return found

    def judge(result, attn, x, off, instead):
        with torch.no_grad():
            heads, _ = attn.attend(*attn.project(x, x, x), None)  # (B, H, T, d_k)
            whole = attn.join(heads)
            heads[:, off[:1]] = 0.0
            outer = attn.join(heads)
            heads[:, off] = 0.0
            zeros = attn.join(heads)
            heads[:, off] = instead[off].unsqueeze(1)
            replaced = attn.join(heads)
        if not close(result["zeros"], zeros) or not close(result["after"], whole):
            return 0, "the output without these heads is different"
        points = 1
        messages = []
        if close(result["instead"], replaced):
            points += 1
        else:
            messages.append("`instead` does not stand in the place of the heads")
        if not result["weights"]:
            messages.append("a weight has changed meanwhile")
        elif result["calls"] != 2:
            messages.append("the hook of another is lost")
        elif not close(result["nested"], zeros) or not close(result["outer"], outer):
            messages.append("two nested blocks do not work")
        elif not close(result["after an error"], whole):
            messages.append("after an error the heads stay off")
        else:
            points += 1
        return points, "; ".join(messages)


@shared
def decoder_and_batch(draw):
    """A random model and a batch of one sentence, a place in it, and two tokens."""
    sizes = {"N": draw.randint(2, 4), "d_model": 12, "d_ff": 16, "h": 3}
    model = random_weights(at.make_model(11, 13, dropout=0.3, **sizes))
    length = draw.randint(3, 6)
    src = torch.randint(4, 11, (1, length))
    tgt = torch.randint(4, 13, (1, length))
    first, second = draw.sample(range(13), 2)
    return model, at.Batch(src, tgt), draw.randrange(length - 1), first, second


@task("contributions", points=3)
class Contributions:
    def inputs(seed):
        return decoder_and_batch(random.Random(seed))

    def probe(solve, model, batch, place, first, second):
        model.train()
        return solve.contributions(model, batch, place, first, second)

    def judge(result, model, batch, place, first, second):
        model.eval()
        states = []
        hooks = [
            layer.register_forward_hook(
                lambda _, inputs, output: states.extend([inputs[0], output])
            )
            for layer in model.decoder.layers
        ]
        with torch.no_grad():
            model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
        for hook in hooks:
            hook.remove()
        states = torch.stack([states[0], *states[1::2]])[:, 0, place].detach()  # (N + 1, D)
        norm = model.decoder.norm
        matrix = model.generator.proj.weight.detach()
        lead = matrix[first] - matrix[second]

        def through_norm(x, deviation):
            return (x - x.mean(-1, keepdim=True)) / deviation * norm.weight.detach() @ lead

        deviation = (states[-1].var(correction=0) + norm.eps).sqrt()
        sums = through_norm(states, deviation)
        right = torch.cat([sums[:1], sums.diff()])
        if close(result, right, 1e-3):
            return 3, ""
        if close(result, sums, 1e-3):
            return 1, "these are sums up to each layer, not what each adds"
        own = through_norm(states, (states.var(-1, correction=0) + norm.eps).sqrt().unsqueeze(1))
        if close(result, torch.cat([own[:1], own.diff()]), 1e-3):
            return 1, "each state was divided by its own standard deviation, not by the last one's"
        return 0, "the terms are different"


@functools.cache
def largest_excess():
    """The pair of encoder heads of the published model that stand in for each other, with costs."""
    translator = at.load_trained_model("pretrained")
    model = translator.model
    pairs = at.read_builtin().pairs("test")[:20]
    batch = at.collate(at.encode_pairs(pairs, translator.vocabularies, translator.languages))

    def loss_without(*heads):
        with contextlib.ExitStack() as off:
            for layer, head in heads:
                attn = model.encoder.layers[layer - 1].self_attn
                off.enter_context(at.without_head(attn, head - 1))
            return at.evaluate_loss(model, [batch])["nll"]

    whole = loss_without()
    heads = list(itertools.product((1, 2, 3), repeat=2))
    alone = {head: loss_without(head) - whole for head in heads}
    both = {pair: loss_without(*pair) - whole for pair in itertools.combinations(heads, 2)}
    best = max(both, key=lambda pair: both[pair] - alone[pair[0]] - alone[pair[1]])
    return best, [alone[head] for head in best], both[best]


@task("stand_ins", points=2, seeds=1, tutor=1)
class StandIns:
    def probe(solve):
        answers = solve.stand_ins, solve.costs_alone, solve.cost_of_both
        return None if answers == (None, None, None) else answers

    def judge(result):
        heads, alone, both = result
        best, costs, cost = largest_excess()
        given = sorted(zip(map(tuple, heads), alone, strict=True))
        if [head for head, _ in given] != sorted(best):
            return 0, "another pair has a larger excess"
        numbers = [number for _, number in given]
        if close([*numbers, both], [*costs, cost], 0.005) and is_number(both):
            return 2, ""
        return 1, "the right pair, but not its costs"


@shared
def what_a_part_gives(part, function, seed):
    """What a part of the hunt's model returns for random arguments."""
    torch.manual_seed(seed)
    src = torch.tensor([[4, 9, 7, 2, 2], [5, 6, 11, 8, 10], [7, 7, 4, 5, 2]])
    if part == "rate":
        return [float(function(step)) for step in (1, 20, 50, 51, 117, 400)]
    if part == "dropout":
        return function(torch.ones(40, 50), 0.25, False), function(torch.ones(40, 50), 0.25, True)
    if part == "update":
        weight = nn.Parameter(torch.randn(3))
        optimizer = torch.optim.SGD([weight], 0.1)
        for factor in (1.0, 2.0, -1.0):
            function(factor * weight.square().sum(), optimizer)
        return weight
    scores = torch.randn(3, 2, 4, 5)
    arguments = {
        "embed": (torch.randn(12, 8), torch.randint(12, (3, 5))),
        "add_positions": (torch.randn(2, 5, 8), torch.randn(5, 8)),
        "split": (torch.randn(2, 5, 8), 2 + 2 * (seed % 2)),
        "scores": (torch.randn(2, 2, 3, 6), torch.randn(2, 2, 5, 6)),
        "weights": (scores, torch.rand(3, 1, 4, 5).lt(0.7).index_fill(3, torch.tensor([0]), True)),
        "residual": (torch.randn(2, 3, 4), torch.randn(2, 3, 4)),
        "memory": (torch.randn(2, 3, 4),),
        "log_probs": (torch.randn(2, 3, 7),),
        "frame": (src,),
        "source_mask": (src,),
        "causal": (4 + seed % 5,),
        "shift": (torch.randint(12, (3, 6)),),
        "loss": (torch.randn(3, 5, 12).log_softmax(-1), src),
        "first": (src,),
        "choose": (torch.randn(6, 12),),
    }
    return function(*arguments[part])


def repaired_right(part: str, given, seed: int) -> bool:
    """Whether a part returned what it should."""
    if part == "dropout":
        outside, inside = (torch.tensor(each) for each in given)
        kept = (inside != 0).float().mean().item()
        scaled = close(inside[inside != 0].tolist(), torch.full((int((inside != 0).sum()),), 4 / 3))
        return bool((outside == 1).all()) and 0.7 < kept < 0.8 and scaled
    right = what_a_part_gives(part, vars(faults.Right)[part], seed)
    if isinstance(right, tuple):
        return len(given) == len(right) and all(map(close, given, right))
    return close(given, right)


@task("bug_hunt", points=4)
class BugHunt:
    def inputs(seed):
        return (seed,)

    def probe(solve, seed):
        if solve.case_number is None or solve.diagnosis is None:
            return None
        try:
            given = what_a_part_gives(solve.diagnosis, solve.repaired, seed)
        except Exception:
            given = None
        return int(solve.case_number), solve.diagnosis, given

    def judge(result, seed):
        case, diagnosis, given = result
        part = faults.fault_of(case)
        if diagnosis != part:
            return 0, f"case {case}: another part is faulty"
        if given is None or not repaired_right(part, given, seed):
            return 2, f"case {case}: the diagnosis is right, the repaired part is not"
        return 4, f"case {case}"
