"""Hidden tests of sheet 2."""

import random

import torch
import torch.nn.functional as F
from torch import nn

import the_annotated_transformer as at
from exercises.course.tasks import close, is_number, shared, task


@shared
def answers(*calls):
    """What each call returns, or says when it fails; None if nothing has been answered."""
    found = []
    for call in calls:
        try:
            found.append(call())
        except NotImplementedError:
            found.append("not answered")
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}"[:100])
    return None if all(each == "not answered" for each in found) else found


@task("embedding_sizes", points=3)
class EmbeddingSizes:
    def inputs(seed):
        draw = random.Random(seed)
        return 2 * draw.randint(2, 300), draw.uniform(0.01, 2), draw.uniform(0.1, 30)

    def probe(solve, D, std, factor):
        return answers(lambda: solve.sizes(D, std, factor), lambda: solve.balanced(D))

    def judge(result, D, std, factor):
        found, balance = result
        embedding, position, logit = found if len(found) == 3 else (None, None, None)
        lengths = close([embedding, position], [D * (factor * std) ** 2, D / 2])
        logits = close(logit, D**0.5 * std)
        balanced = close(balance, [D**-0.5, (D / 2) ** 0.5])
        missing = [
            name
            for name, right in (("lengths", lengths), ("logit", logits), ("balanced", balanced))
            if not right
        ]
        return 3 - len(missing), f"wrong: {', '.join(missing)}" if missing else ""


@task("parameters", points=2)
class Parameters:
    def inputs(seed):
        draw = random.Random(seed)
        return draw.randint(5, 90), draw.randint(1, 4), 4 * draw.randint(1, 9), draw.randint(3, 80)

    def probe(solve, V, N, D, F):
        from unittest.mock import patch

        forbidden = RuntimeError("count without building a model")
        forms = ((True, False), (True, True), (False, False))
        with patch.object(nn.Module, "__init__", side_effect=forbidden):
            return [solve.parameters(V, N, D, F, *form) for form in forms]

    def judge(result, V, N, D, F):
        def built(norm_first, shared):
            form = {"norm_first": norm_first, "share_embeddings": shared}
            return at.count_parameters(at.make_model(V, V, N, D, F, 4, **form))

        pre_norm = result[:2] == [built(True, False), built(True, True)]
        post_norm = result[2] == built(False, False)
        if pre_norm and post_norm:
            return 2, ""
        if post_norm:
            return 1, "wrong for pre-norm, or where one matrix is shared"
        return (1, "wrong for post-norm") if pre_norm else (0, "wrong in every form")


@task("absolute_norm", points=2)
class AbsoluteNorm:
    def inputs(seed):
        draw = random.Random(seed)
        shape = draw.randint(2, 4), draw.randint(2, 5), draw.randint(3, 9)
        return torch.randn(shape) + 1, torch.randn(shape[-1]), draw.uniform(0.1, 0.5)

    def probe(solve, x, weight, eps):
        fresh = solve.AbsoluteNorm(x.size(-1))(x)
        norm = solve.AbsoluteNorm(x.size(-1), eps)
        names = [name for name, _ in norm.named_parameters()]
        with torch.no_grad():
            for parameter in norm.parameters():
                parameter.copy_(weight)
        return fresh, names, norm(x), norm(torch.zeros_like(x))

    def judge(result, x, weight, eps):
        fresh, names, scaled, zeros = result
        size = x.abs().mean(-1, keepdim=True)
        if not close(fresh, x / size):
            return 0, "a fresh norm does not divide by the mean absolute value of each position"
        if names != ["weight"]:
            return 1, "the learnt scale is missing, or has another name"
        if not close(scaled, weight * x / (size + eps)) or not close(zeros, 0 * x):
            return 1, "scale or eps stand in the wrong place"
        return 2, ""


@shared
def packed_sentences(rows, length, draw):
    """Random sentence numbers (rows, length): 1, 1, 1, 2, 2, ..., 0."""
    sentences = torch.zeros(rows, length, dtype=torch.long)
    for row in sentences:
        begin, number = 0, 1
        end = draw.randint(length // 2, length)
        while begin < end:
            size = draw.randint(1, 4)
            row[begin : min(begin + size, end)] = number
            begin, number = begin + size, number + 1
    return sentences


@task("packed", points=3)
class Packed:
    def inputs(seed):
        draw = random.Random(seed)
        B, T, S = draw.randint(2, 4), draw.randint(6, 12), draw.randint(6, 12)
        queries, keys = packed_sentences(B, T, draw), packed_sentences(B, S, draw)
        model = at.make_model(20, 20, draw.randint(1, 2), 16, 32, 4).eval()
        return model, torch.randint(20, (B, S)), queries, keys

    def probe(solve, model, src, queries, keys):
        return answers(
            lambda: solve.packed_mask(queries, keys).int(),
            lambda: solve.packed_places(keys),
            lambda: solve.encode_packed(model, src, keys),
            lambda: solve.packed_mask(keys, keys).int(),
        )

    def judge(result, model, src, queries, keys):
        mask, places, memory, own_mask = result
        wanted_mask = torch.zeros(len(src), queries.size(1), keys.size(1))
        wanted_places = torch.zeros_like(keys)
        wanted_memory = torch.zeros(*src.shape, 16)
        for row, numbers in enumerate(keys.tolist()):
            for number in set(numbers) - {0}:
                own = keys[row] == number
                wanted_places[row, own] = torch.arange(int(own.sum()))
                with torch.no_grad():
                    wanted_memory[row, own] = model.encode(src[row, own].unsqueeze(0), None)[0]
                for t in (queries[row] == number).nonzero():
                    wanted_mask[row, t] = own.float()
        checks = {
            "packed_mask": (mask, wanted_mask, queries > 0),
            "packed_places": (places, wanted_places, keys > 0),
            "encode_packed": (memory, wanted_memory, keys > 0),
        }
        missing = {}
        for name, given in checks.items():
            if problem := problem_of_rows(*given):
                missing[name] = problem
        if "encode_packed" in missing and len(missing) == 2:  # it may follow from the other mistake
            followed = encoded(model, src, places, own_mask)
            if followed is not None and not problem_of_rows(memory, followed, keys > 0):
                del missing["encode_packed"]
        said = ", ".join(f"{name} ({problem})" for name, problem in missing.items())
        return 3 - len(missing), f"wrong: {said}" if missing else ""


def problem_of_rows(found, wanted, where):
    """What is wrong with a result in these rows; "" if nothing is."""
    if isinstance(found, str):
        return found
    try:
        found = torch.tensor(found)
    except (ValueError, TypeError, RuntimeError):
        return "not a tensor"
    if found.shape != wanted.shape:
        return f"shape {tuple(found.shape)} instead of {tuple(wanted.shape)}"
    return "" if close(found[where].tolist(), wanted[where]) else "other values"


def encoded(model, src, places, mask):
    """The memory with these places and this mask; None where they do not fit."""
    embedding, positions = model.src_embed
    try:
        x = embedding(src) + positions.pe[0, torch.tensor(places)]
        with torch.no_grad():
            return model.encoder(x, torch.tensor(mask) != 0)
    except (ValueError, TypeError, RuntimeError, IndexError):
        return None


@task("learnt_bias", points=3)
class LearntBias:
    def inputs(seed):
        draw = random.Random(seed)
        h, reach, T = draw.randint(2, 3), draw.randint(1, 4), draw.randint(7, 10)
        x = torch.randn(2, T, 4 * h)
        return h, reach, x, torch.randn(h, 2 * reach + 1), draw.randint(2, T - 2)

    def probe(solve, h, reach, x, bias, newest):
        module = solve.LearntBias(h, x.size(-1), 0.0, reach=reach)
        learnt = isinstance(dict(module.named_parameters()).get("bias"), nn.Parameter)
        at_start = module.bias.detach().clone()
        q, k, v = (module.split(x + shift) for shift in range(3))
        mask = at.subsequent_mask(x.size(1))
        dropping = solve.LearntBias(h, x.size(-1), 0.5, reach=reach).train()

        everything, few = slice(None), slice(reach + 1)

        def attend(which, queries, keys, mask):
            try:
                found = module.attend(q[:, :, queries], k[:, :, keys], v[:, :, keys], mask)
            except Exception:
                return None
            return found[which]

        with torch.no_grad():
            module.bias.copy_(bias)
            found = [
                attend(1, everything, everything, None),
                attend(0, everything, everything, mask),
                attend(1, few, few, None),
                attend(0, slice(-newest, None), everything, mask[:, -newest:]),
            ]
            ones = torch.ones_like(v[:, :, few])
            dropped, _ = dropping.attend(q[:, :, few], k[:, :, few], ones, None)
        return learnt, at_start, found, dropped

    def judge(result, h, reach, x, bias, newest):
        learnt, at_start, (weights, masked, near, cached), dropped = result
        split = at.MultiHeadedAttention(h, x.size(-1)).split
        q, k, v = (split(x + shift) for shift in range(3))
        T = x.size(1)
        table = torch.zeros(h, T, T)
        for t in range(T):
            for s in range(T):
                table[:, t, s] = bias[:, max(-reach, min(reach, s - t)) + reach]
        right, mask = q @ k.mT / 2 + table, at.subsequent_mask(T)
        right_masked = right.masked_fill(~mask, -torch.inf).softmax(-1) @ v
        few = reach + 1
        if not close(near, right[..., :few, :few].softmax(-1)):
            return 0, "the bias of a distance is not added to its score"
        if not close(weights, right.softmax(-1)) or not close(masked, right_masked):
            return 1, "wrong beyond reach, or with a mask"
        if not learnt or not close(at_start, 0 * bias):
            return 1, "bias must be a parameter, and start at zero"
        said = []
        if not close(cached, right_masked[:, :, -newest:]):
            said.append("wrong where there are fewer queries than keys: they stand last")
        sums = torch.tensor(dropped)  # of each query's weights, once for each feature
        if close(dropped, torch.ones_like(sums)) or not close(
            dropped, sums[..., :1].expand_as(sums)
        ):
            said.append("dropout does not act on the weights")
        return 3 - len(said), "; ".join(said)


@task("without_residuals_prediction", points=1, seeds=1)
class WithoutResidualsPrediction:
    def probe(solve):
        return solve.predicted_order

    def judge(result):
        if sorted(result) == ["attention", "both", "feed-forward"]:
            return 1, ""  # a prediction may be wrong: the report of the next task gives reasons
        return 0, "each of the three names once"


@task("without_residuals", points=2, tutor=1)
class WithoutResiduals:
    def inputs(seed):
        draw = random.Random(seed)
        return (0.5 + torch.randn(draw.randint(2, 4), draw.randint(3, 7), draw.choice([6, 8])),)

    def probe(solve, x):
        def connect(norm_first):
            connection = solve.NoResidual(x.size(-1), 0.0, norm_first)
            with torch.no_grad():
                connection.norm.weight.mul_(2).add_(torch.arange(x.size(-1)))
            return connection(x, lambda inner: inner.square() + 1)

        return answers(
            lambda: connect(True),
            lambda: connect(False),
            lambda: solve.NoResidual(4, 1.0)(torch.randn(1, 2, 4), lambda inner: inner + 3),
            lambda: solve.likeness(x),
            lambda: solve.measured or "not answered",
        )

    def judge(result, x):
        *forms, dropped, likeness, measured = result
        norm = at.LayerNorm(x.size(-1))
        norm.weight.data.mul_(2).add_(torch.arange(x.size(-1)))
        right = [norm(x).square() + 1, norm(x.square() + 1)]
        connected = all(close(*pair, 1e-3) for pair in zip(forms, right, strict=True))
        connected = connected and close(dropped, torch.zeros(1, 2, 4))
        pairs = [
            F.cosine_similarity(sentence[a], sentence[b], dim=0)
            for sentence in x
            for a in range(x.size(1))
            for b in range(x.size(1))
            if a != b
        ]
        alike = close(likeness, torch.stack(pairs).mean())
        ranges = {"both": (0.3, 0.6), "attention": (0.7, 0.95), "feed-forward": (0.98, 1.0)}
        known = isinstance(measured, dict) and all(
            is_number(measured.get(kept)) and low <= measured[kept] <= high
            for kept, (low, high) in ranges.items()
        )
        if not connected:
            return int(alike), "NoResidual is not the connection without the sum"
        if not alike:
            return 1, "likeness is not the mean over pairs of different positions"
        return (2, "") if known else (1, "measured is missing, or cannot come from this experiment")


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


@task("layer_norm_backward", points=3)
class LayerNormBackward:
    def inputs(seed):
        draw = random.Random(seed)
        shape = draw.randint(2, 4), draw.randint(2, 5), draw.randint(3, 9)
        x = 2 + torch.randn(shape, dtype=torch.double)
        weight = torch.randn(shape[-1], dtype=torch.double)
        return x, weight, torch.randn(shape, dtype=torch.double), draw.uniform(0.5, 2)

    def probe(solve, x, weight, g, eps):
        def gradients(small):
            return without_autograd(lambda: solve.layer_norm_backward(x, weight, g, small))

        return [gradients(small) for small in (1e-9, eps)]

    def judge(result, x, weight, g, eps):
        found = []
        for answer, small in zip(result, (1e-9, eps), strict=True):
            inputs, scale = x.clone().requires_grad_(), weight.clone().requires_grad_()
            shift = torch.zeros_like(weight, requires_grad=True)
            F.layer_norm(inputs, weight.shape, scale, shift, small).backward(g)
            rights = (inputs.grad, scale.grad, shift.grad)
            found.append([close(*pair) for pair in zip(answer, rights, strict=True)])
        (x_plain, weight_plain, shift_plain), with_eps = found
        points = int(weight_plain and shift_plain) + int(x_plain) + int(all(with_eps))
        if points == 3:
            return 3, ""
        names = zip(("x", "weight", "bias"), found[0], strict=True)
        missing = ", ".join(name for name, right in names if not right)
        return points, f"wrong: {missing}" if missing else "wrong where eps matters"
