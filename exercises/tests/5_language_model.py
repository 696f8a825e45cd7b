"""Hidden tests of sheet 5."""

import functools
import itertools
import math
import random
import re

import torch

import the_annotated_transformer as at
from exercises.course.tasks import close, is_number, shared, task


@task("sampling_by_hand", points=2, seeds=1)
class SamplingByHand:
    def probe(solve):
        return solve.draws_a

    def judge(result):
        def drawn(probs, p=1.0, temperature=1.0):
            probs = torch.tensor(probs) ** (1 / temperature)
            probs = probs / probs.sum()
            nucleus = probs.masked_fill(probs.cumsum(0) - probs >= p, 0)
            return nucleus / nucleus.sum()

        probs = [0.40, 0.30, 0.15, 0.10, 0.05]
        rights = [
            drawn(probs, 0.8),
            drawn(probs, 0.8, 0.5),
            drawn(probs[:3], 0.8),
            drawn(drawn(probs, 0.8).tolist(), 1.0, 0.5),
        ]
        good = [
            is_number(number) and close(number, right[0], 0.006)
            for number, right in zip(result, rights, strict=True)
        ]
        wrong = [str(place) for place, right in enumerate(good, 1) if not right]
        return sum(good) / 2, f"wrong: question {', '.join(wrong)}" if wrong else ""


@shared
def random_rows(seed):
    """Log-probabilities (B, V) without ties."""
    draw = random.Random(seed)
    scores = torch.randn(draw.randint(2, 5), draw.randint(4, 12)) * draw.uniform(0.5, 2.5)
    return scores.log_softmax(dim=1)


@task("typical", points=3, seeds=4)
class Typical:
    def inputs(seed):
        return random_rows(seed), random.Random(seed + 1).uniform(0.1, 0.95)

    def probe(solve, log_probs, p):
        closed = log_probs.clone()
        closed[:, 1] = -torch.inf
        closed = closed.log_softmax(dim=1)
        return solve.typical(log_probs, p), solve.typical(closed, p)

    def judge(result, log_probs, p):
        def right(row, ranked_by):
            probs = [math.exp(logp) for logp in row]
            entropy = -sum(q * math.log(q) for q in probs if q > 0)
            order = sorted(range(len(row)), key=lambda v: ranked_by(row[v], entropy))
            kept = [0.0] * len(row)
            for v in order:
                if sum(kept) < p:
                    kept[v] = probs[v]
            return [q / sum(kept) for q in kept]

        def near(logp, entropy):
            return abs(-logp - entropy)

        closed = log_probs.clone()
        closed[:, 1] = -torch.inf
        closed = closed.log_softmax(dim=1)
        if not close(result[0], [right(row, near) for row in log_probs.tolist()], 1e-3):
            if close(result[0], [right(row, lambda q, _: -q) for row in log_probs.tolist()], 1e-3):
                return 0, "this is top-p: the most likely tokens are kept"
            return 0, "other tokens are kept, or with other probabilities"
        if not close(result[1], [right(row, near) for row in closed.tolist()], 1e-3):
            return 2, "a token with a log-probability of −∞ spoils its row"
        return 3, ""


@task("per_word", points=2)
class PerWord:
    def inputs(seed):
        draw = random.Random(seed)
        sentences = draw.randint(5, 50)
        words = sentences * draw.randint(4, 12)
        return draw.uniform(2, 40), int(words * draw.uniform(1.1, 2.0)), words, sentences

    def probe(solve, *numbers):
        return solve.per_word(*numbers)

    def judge(result, perplexity, subwords, words, sentences):
        logp = -(subwords + sentences) * math.log(perplexity)  # of the whole text
        if close(result, math.exp(-logp / (words + sentences)), 1e-6):
            return 2, ""
        if close(result, perplexity ** (subwords / words), 1e-6):
            return 1, "the end tokens are missing"
        return 0, "the text does not have the same probability"


@task("rotary_terms", points=2)
class RotaryTerms:
    def inputs(seed):
        width = 2 * random.Random(seed).randint(2, 8)
        return torch.randn(width), torch.randn(width)

    def probe(solve, q, k):
        return solve.rotary_terms(q, k)

    def judge(result, q, k):
        A, B = (torch.tensor(each).double() for each in result)
        if A.shape != (len(q) // 2,) or B.shape != A.shape:
            return 0, "a number for each pair of features is needed"
        places = [(3, 3), (7, 2), (1, 9), (40, 11), (0, 1), (100, 43), (5, 60), (17, 9), (90, 8)]
        # Single pairs of features, so that no sum can hide an error.
        ones = [
            torch.zeros(len(q)).index_fill(0, torch.tensor([n, n + 1]), 1.0)
            for n in range(0, len(q), 2)
        ]

        def right(m, n):
            rotated_q = at.rotate(q.view(1, -1), torch.tensor([m]))[0]
            rotated_k = at.rotate(k.view(1, -1), torch.tensor([n]))[0]
            return [float(one * rotated_q @ rotated_k) for one in ones]

        def agrees(sign):
            for m, n in places:
                angle = (m - n) * 10_000.0 ** (-torch.arange(0, len(q), 2).double() / len(q))
                found = A * angle.cos() + sign * B * angle.sin()
                if not close(found.tolist(), right(m, n), 1e-3):
                    return False
            return True

        if agrees(1):
            return 2, ""
        if agrees(-1):
            return 1, "B has the wrong sign"
        return 0, "the sum is not the inner product of the rotated vectors"


@task("prefix_mask", points=2)
class PrefixMask:
    def inputs(seed):
        draw = random.Random(seed)
        T = draw.randint(6, 10)
        padding = [0, *(draw.randint(1, T // 2) for _ in range(draw.randint(2, 4)))]
        prefix = [draw.randint(1, T - each - 1) for each in padding]
        return torch.tensor(padding), torch.tensor(prefix), T

    def probe(solve, padding, prefix, T):
        return solve.prefix_mask(padding, prefix, T).int()

    def judge(result, padding, prefix, T):
        rows = list(zip(padding.tolist(), prefix.tolist(), strict=True))

        def tables(padding_is_closed):
            return [
                [
                    [
                        int((s <= t or s < n + p) and (s >= n or not padding_is_closed))
                        for s in range(T)
                    ]
                    for t in range(n, T)
                ]
                for n, p in rows
            ]

        if any(len(table) != T for table in result) or len(result) != len(rows):
            return 0, "the shape should be (B, T, T)"
        found = [table[n:] for table, (n, _) in zip(result, rows, strict=True)]
        if found == tables(padding_is_closed=True):
            return 2, ""
        if found == tables(padding_is_closed=False):
            return 1, "some token sees padding"
        return 0, "some token sees a wrong key"


@task("longest_conversation", points=2, seeds=4)
class LongestConversation:
    def inputs(seed):
        draw = random.Random(seed)
        groups = draw.choice([1, 2, 4])
        heads = groups * draw.choice([2, 4])
        d_model = heads * draw.choice([32, 64, 128])
        weights = draw.randint(10**8, 10**9)
        memory = weights + draw.randint(10**8, 10**10)
        return memory, weights, draw.randint(1, 9), draw.randint(2, 40), d_model, heads, groups, 2

    def probe(solve, memory, weights, *more):
        return solve.longest_conversation(memory, weights, *more), solve.longest_conversation(
            1, weights, *more
        )

    def judge(result, memory, weights, conversations, layers, d_model, heads, groups, size):
        attn = at.GroupedAttention(heads, d_model, groups=groups)
        numbers = layers * (attn.linears[1].out_features + attn.linears[2].out_features)
        right = (memory - weights) // (numbers * size * conversations)
        found, none = result
        if found == right:
            return (2, "") if none == 0 else (1, "if the weights do not fit, no token does")
        if found == (memory - weights) // (numbers // 2 * size * conversations):
            return 1, "keys and values are kept, both"
        return 0, "the bytes of one token are different"


@shared
def largest_tensor(function):
    """The result of a function, and the most numbers that a tensor on the way has."""
    from torch.overrides import TorchFunctionMode

    largest = 0

    class Watch(TorchFunctionMode):
        def __torch_function__(self, operation, types, args=(), kwargs=None):
            nonlocal largest
            made = operation(*args, **(kwargs or {}))
            for each in made if isinstance(made, list | tuple) else (made,):
                if isinstance(each, torch.Tensor):  # a view takes no memory
                    held = each.untyped_storage().nbytes() // each.element_size()
                    largest = max(largest, min(each.numel(), held))
            return made

    with Watch():
        result = function()
    return result, largest


@task("rotated_cache", points=4)
class RotatedCacheTask:
    def inputs(seed):
        draw = random.Random(seed)
        groups = draw.choice([2, 3])
        heads = groups * draw.choice([2, 3])
        attn = at.RotaryGroupedAttention(heads, heads * 4, 0.0, groups=groups).eval()
        for weight in attn.parameters():
            torch.nn.init.normal_(weight, std=0.4)
        B, beam, T = draw.randint(1, 3), 2, draw.randint(4, 7)
        rows = [draw.randrange(B * beam) for _ in range(B * beam)]
        return attn, torch.randn(B, beam, T, heads * 4), torch.tensor(rows)

    def probe(solve, attn, x, rows):
        with torch.no_grad():
            cache = solve.RotatedCache(attn)
            before = [cache(x[:, :, place], None, None, None) for place in range(x.size(2) - 1)]
            keys, values = cache.keys, cache.values
            found = {"states": torch.stack(before, dim=2), "keys": keys, "values": values}
            cache.keep(rows)
            last = x[:, :, -1]
            found["kept"], found["largest"] = largest_tensor(lambda: cache(last, None, None, None))
        return found

    def judge(result, attn, x, rows):
        with torch.no_grad():
            flat = x.flatten(0, 1)  # (rows, T, D)
            plain = attn(flat, flat, flat, at.subsequent_mask(x.size(2)))
            past = flat[:, :-1]
            reordered = torch.cat([past[rows], flat[:, -1:]], dim=1)
            kept = attn(reordered, reordered, reordered)[:, -1].view_as(x[:, :, -1])
            _, keys, values = attn.project(past, past, past)
            rotated = at.rotate(keys, torch.arange(past.size(1)))
            copies = attn.h // keys.size(1)
        if close(result["keys"], keys, 1e-3):
            return 0, "the cached keys are not rotated by their places, as in Part 7"
        if not close(result["states"], plain[:, :-1].reshape_as(x[:, :, :-1]), 1e-3):
            first = [step[0] for sentence in result["states"] for step in sentence]
            if close(first, plain[:, 0], 1e-3):
                return 0, "right at place 0 only: look at the place of the new token"
            return 0, "the states differ from those of a plain pass"
        points = 2
        messages = []
        with_copies = copies * keys.numel()  # numbers, if each head of queries had keys of its own
        if close(result["keys"], rotated, 1e-3) and close(result["values"], values, 1e-3):
            if result["largest"] < with_copies:
                points += 1
            else:
                messages.append("shared heads are copied for their queries")
        elif close(result["keys"], rotated.repeat_interleave(copies, 1), 1e-3):
            messages.append("every shared head is kept several times")
        else:
            messages.append("`keys` and `values` are not (rows, groups, length, d_k)")
        if close(result["kept"], kept, 1e-3):
            points += 1
        else:
            messages.append("after `keep` the states are wrong")
        return points, "; ".join(messages)


@functools.cache
def built_in_captions():
    """English ids of the captions for training and validation; the size of the vocabulary."""
    corpus = at.read_builtin()
    vocabularies = at.learn_words(corpus)
    ids = []
    for split in ("train", "val"):
        pairs = at.encode_pairs(corpus.pairs(split), vocabularies, corpus.languages)
        ids.append([list(english) for _, english in pairs])
    return *ids, len(vocabularies[1])


def counted(sentences, V, k):
    """log p(next | this) with counts that begin at k."""
    pairs = torch.tensor([pair for ids in sentences for pair in itertools.pairwise(ids)])
    counts = torch.bincount(pairs[:, 0] * V + pairs[:, 1], minlength=V * V).view(V, V) + k
    return counts.log() - counts.sum(1, keepdim=True).log()


@functools.cache
def right_perplexities():
    """Of the bigram model, and the lowest possible."""
    train, val, V = built_in_captions()
    log_probs = counted(train, V, 0.01)
    gains = [log_probs[a, b].item() for ids in val for a, b in itertools.pairwise(ids)]
    tables = [re.split("; |\n", text) for text in at.PHRASES.strip().split("\n\n")]
    who, what, where, does = map(len, tables)
    captions = 2 * who * what * where * does + who * what * where
    lowest = math.exp(math.log(captions) * len(val) / len(gains))
    return math.exp(-sum(gains) / len(gains)), lowest


def fault_of_bigrams(found: object, right: torch.Tensor) -> str:
    """What is wrong with a bigram model; "" if nothing is."""
    if close(found, right):
        return ""
    if found is None or isinstance(found, str):
        return found or "not answered"
    if close(found, right.exp()):
        return "these are probabilities, not their logarithms"
    found = torch.tensor(found, dtype=torch.double)
    if found.shape != right.shape:
        return f"the shape should be {tuple(right.shape)}, it is {tuple(found.shape)}"
    if not close(found.exp().sum(1).tolist(), [1.0] * len(right)):
        return "the probabilities of all next tokens must sum to one"
    return "each count of a pair should begin at k, and grow by one for each pair of neighbours"


@task("bigrams", points=2, tutor=1)
class Bigrams:
    def inputs(seed):
        draw = random.Random(seed)
        V = draw.randint(5, 9)
        middles = [[draw.randrange(2, V) for _ in range(draw.randint(1, 8))] for _ in range(6)]
        return [[0, *middle, 1] for middle in middles], V, draw.uniform(0.01, 1)

    def probe(solve, sentences, V, k):
        try:
            found = solve.bigrams(sentences, V, k)
        except NotImplementedError:
            found = None
        except Exception as error:  # the numbers may be right all the same
            found = f"{type(error).__name__}: {error}"
        numbers = solve.bigram_perplexity, solve.model_perplexity, solve.lowest_perplexity
        return None if found is None and numbers == (None, None, None) else (found, numbers)

    def judge(result, sentences, V, k):
        found, (of_bigrams, of_model, lowest) = result
        fault = fault_of_bigrams(found, counted(sentences, V, k))
        points = not fault
        messages = [f"bigrams: {fault}"] if fault else []
        right, right_lowest = right_perplexities()
        names = []
        texts = [text for text in result[1] if isinstance(text, str)]
        if texts:
            messages.append(f"a number is expected, not {texts[0]!r:.40}")
        if not is_number(of_bigrams) or not close(of_bigrams, right, 0.005):
            names.append("bigram")
        if not is_number(lowest) or not close(lowest, right_lowest, 0.005):
            names.append("lowest")
        if not is_number(of_model) or not right_lowest < of_model < 2:
            names.append("language model")
        if names:
            messages.append(f"wrong perplexity: {', '.join(names)}")
        return points + (not names), "; ".join(messages)
