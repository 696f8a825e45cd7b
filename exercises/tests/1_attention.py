"""Hidden tests of sheet 1."""

import functools
import math

import torch
import torch.nn.functional as F

import the_annotated_transformer as at
from exercises.course.tasks import close, flat, is_number, shared, task


@task("predictions", points=2, seeds=1)
class Predictions:
    def probe(solve):
        answers = solve.predicted, solve.observed
        return None if answers == (None, None) else answers

    def judge(result):
        predicted, observed = ("".join(map(str, letters or "")).upper() for letters in result)
        given = len(predicted) == 6 and set(predicted) <= set("TF")
        right = sum(letter == truth for letter, truth in zip(observed, "TTFTTF", strict=False))
        said = [
            *([] if given else ["predicted: six letters T or F"]),
            *([] if right == 6 else [f"observed: {right} of 6 are right"]),
        ]
        return given + max(0, 1 - (6 - right) / 2), "; ".join(said)


@task("score_variance", points=2)
class ScoreVariance:
    def inputs(seed):
        m, a, c, b = (0.5 + 2 * torch.rand(4, dtype=torch.double)).tolist()
        return m, a, -c, b, 2 ** torch.randint(2, 8, ()).item()

    def probe(solve, *given):
        return float(solve.score_variance(*given)), float(
            solve.score_variance(0.0, 1.0, 0.0, 1.0, 64)
        )

    def judge(result, m, a, c, b, d_k):
        right = a * b + a * c**2 + b * m**2
        if close(result, (right, 1.0)):
            return 2, ""
        if close(result, (right * d_k, 64.0)):
            return 1, "right for the inner product, but the division by √d_k is missing"
        if close(result, (right * math.sqrt(d_k), 8.0)):
            return 1, "the division by √d_k is counted wrongly"
        if close(result[0], a * b):
            return 0, "this is right for means of zero only"
        return 0, "not the variance of a score"


@shared
def without_autograd(function):
    """What a function returns where PyTorch records no gradient and runs no backward formula."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Forwards(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            if "backward" in str(operation) or not torch.is_inference_mode_enabled():
                raise RuntimeError("automatic differentiation is switched off")
            return operation(*args, **(kwargs or {}))

    with torch.inference_mode(), Forwards():
        return function()


@task("score_gradient", points=3)
class ScoreGradient:
    def inputs(seed):
        S, d_v = torch.randint(2, 9, (2,)).tolist()
        return torch.randn(S).softmax(0), torch.randn(S, d_v), torch.randn(d_v)

    def probe(solve, weights, values, g):
        return without_autograd(lambda: solve.score_gradient(weights, values, g))

    def judge(result, weights, values, g):
        scores = weights.log().requires_grad_()
        (scores.softmax(0) @ values @ g).backward()
        if close(result, scores.grad):
            return 3, ""
        if close(result, weights * (values @ g)):
            return 1, "weights that grow take from the others"
        if close(result, -scores.grad):
            return 2, "the sign is wrong"
        if len(result) != len(weights):
            return 0, f"{len(weights)} keys, so {len(weights)} numbers are expected"
        if not close(sum(result), 0.0):
            return 0, "the same number more for all scores changes no weight: the sum must be zero"
        return 0, "not the gradient: a small change of one score changes L by something else"


@task("matrices", points=2, seeds=1)
class Matrices:
    def probe(solve):
        if solve.my_W_Q is None or solve.my_W_K is None:
            return None
        return torch.as_tensor(solve.my_W_Q).float(), torch.as_tensor(solve.my_W_K).float()

    def judge(result):
        queries, keys = (torch.tensor(each) for each in result)
        _, weights = at.attention(at.VECTORS @ queries, at.VECTORS @ keys, at.VECTORS)
        girl, ball = (weights[2, 1] > 0.5).item(), (weights[6, 5] > 0.5).item()
        if girl and ball:
            return 2, ""
        return (
            (1, "Ball does not attend to roten")
            if girl
            else (0, "Mädchen does not attend to kleines")
        )


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


@task("windowed_attention", points=4)
class WindowedAttention:
    def inputs(seed):
        width, d_k = torch.randint(2, 6, (2,)).tolist()
        return torch.randn(200 + seed % 50, d_k), width

    def probe(solve, x, width):
        given = (x, x.flip(1), x.cos(), width)
        return largest_tensor(lambda: solve.windowed_attention(*given))

    def judge(result, x, width):
        output, largest = result
        full = torch.ones(len(x), len(x))
        for off, points, message in (
            (0, 3, ""),
            (1, 1, "the window is one too wide: the query itself is one of the `width`"),
            (-1, 1, "the window is one too narrow"),
        ):
            mask = full.tril() - full.tril(-width - off)
            right, _ = at.attention(x, x.flip(1), x.cos(), mask)
            if close(output, right) and off == 0:
                small = largest < len(x) ** 2 / 2
                return (
                    (4, "")
                    if small
                    else (3, f"a tensor on the way has {largest} numbers, T × T or more")
                )
            if close(output, right):
                return points, message
            if off == 0 and close(output[width:], right[width:]):
                return 2, "right, but not at the beginning, where there are fewer positions"
        return 0, "not the attention to the last positions"


@shared
def versions(order):
    """Attention written in eight ways, in this order; the first two of the list are right."""

    def plain(query, key, value, mask=None, divisor=None, closed=None, axis=-1, lowest=-1e30):
        scores = query @ key.T / (divisor or math.sqrt(query.size(-1)))
        if mask is not None and closed is not False:
            scores = scores.masked_fill(mask == 0 if closed is None else closed(mask), lowest)
        weights = scores.softmax(axis)
        return weights @ value, weights

    def with_exponentials(query, key, value, mask=None):
        scores = (key @ query.T).T * query.size(-1) ** -0.5
        closed = torch.zeros_like(scores) if mask is None else mask == 0
        scores = scores.masked_fill(closed.bool(), -torch.inf)
        highest = scores.amax(-1, keepdim=True).clamp(min=-1e30)  # of the open keys
        shares = (scores - highest).exp()
        weights = shares / shares.sum(-1, keepdim=True).clamp(min=1e-30)
        return weights @ value, weights

    def with_(**changes):
        return lambda query, key, value, mask=None: plain(query, key, value, mask, **changes)

    def keys_only(query, key, value, mask=None):
        _, weights = plain(query, key, value, mask)
        return weights @ value.roll(1, 0), weights

    ways = (
        plain,
        with_exponentials,
        with_(divisor=1.0),
        lambda query, key, value, mask=None: plain(query, key, value, mask, divisor=query.size(-1)),
        with_(closed=lambda mask: mask != 0),
        with_(closed=False),
        with_(lowest=-torch.inf),
        keys_only,
    )
    alike = [
        lambda query, key, value, mask=None, way=way: way(query, key, value, mask) for way in ways
    ]
    return [alike[n] for n in order]  # no name tells which is right


@task("check_of_attention", points=3)
class CheckOfAttention:
    def inputs(seed):
        return (torch.randperm(8).tolist(),)

    def probe(solve, order):
        class NotHere(Exception):
            pass

        def none_at_hand(*given, **named):
            raise NotHere("no other attention may be called here")

        kept = at.attention, F.scaled_dot_product_attention
        at.attention = F.scaled_dot_product_attention = none_at_hand
        names = solve._names
        ours = {name: each for name, each in names.items() if any(each is one for one in kept)}
        names.update(dict.fromkeys(ours, none_at_hand))
        refused = []
        try:
            for function in versions(order):
                try:
                    solve.check_of_attention(function)
                    refused.append(False)
                except AssertionError:
                    refused.append(True)
        finally:
            at.attention, F.scaled_dot_product_attention = kept
            names.update(ours)
        return refused

    def judge(result, order):
        refused = {way for way, said in zip(order, result, strict=True) if said is True}
        if refused & {0, 1}:
            return 0, "it rejects a correct function"
        missed = 6 - len(refused)
        points = (6 - missed) / 2
        faults = {
            2: "no division",
            3: "division by d_k",
            4: "the mask upside down",
            5: "no mask",
            6: "NaN where no key is open",
            7: "values of other keys",
        }
        return (
            points,
            f"missed: {', '.join(faults[n] for n in faults if n not in refused)}" if missed else "",
        )


@task("half_of_the_keys", points=2, tutor=2)
class HalfOfTheKeys:
    def inputs(seed):
        S = torch.randint(3, 12, ()).item()
        weights = torch.randn(4, S).mul(2).softmax(-1)
        weights[0] = 0
        weights[0, :2] = 0.5
        return (weights,)

    def probe(solve, weights):
        try:
            keys = solve.effective_keys(weights)
        except NotImplementedError:
            keys = None
        except Exception as error:  # the factor may still be right
            keys = f"{type(error).__name__}: {error}"
        return keys, solve.half_factor

    def judge(result, weights):
        keys, factor = result
        if keys is None and factor is None:
            return 0, "not answered"
        said = fault_of_keys(keys, weights), fault_of_factor(factor)
        return said.count(""), "; ".join(filter(None, said))


def fault_of_keys(keys: object, weights: torch.Tensor) -> str:
    """What is wrong with the effective numbers of keys; "" if nothing is."""
    entropy = torch.special.entr(weights).sum(-1)
    if close(keys, entropy.exp()):
        return ""
    if keys is None or isinstance(keys, str):
        return f"effective_keys: {keys or 'not answered'}"
    if close(keys, entropy):
        return "effective_keys: this is the entropy, without exp"
    if any(math.isnan(number) for number in flat(keys)):
        return "effective_keys: NaN where a weight is zero"
    if len([*flat(keys)]) != len(weights):
        return "effective_keys: one number for each query is expected"
    return "effective_keys: not exp of the entropy of each query's weights"


def fault_of_factor(factor: object) -> str:
    """What is wrong with the factor for half of the keys; "" if nothing is."""
    if factor is None:
        return "half_factor: not answered"
    if not is_number(factor):
        return f"half_factor: a number is expected, not {factor!r:.40}"
    if abs(factor - half_factor()) < 0.012:
        return ""
    keys = mean_of_keys(factor)
    return f"half_factor: with {factor:.4g}, the mean of exp(H) is {keys:.0f} of 256 keys, not 128"


@functools.cache
def scores_of_random_keys() -> torch.Tensor:
    """Scores of queries with 256 keys of width 64, distributed as those of random ones."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        lengths = torch.randn(20_000, 64).norm(dim=1, keepdim=True)
        return lengths * torch.randn(20_000, 256) / 8


def mean_of_keys(factor: float) -> float:
    """The mean effective number of keys with this factor, measured anew."""
    weights = (factor * scores_of_random_keys()).softmax(-1)
    return torch.special.entr(weights).sum(-1).exp().mean().item()


@functools.cache
def half_factor() -> float:
    """The factor that leaves half of 256 keys."""
    low, high = 0.5, 2.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_of_keys(middle) > 128 else (low, middle)
    return low
