"""Common wrong answers to sheet 2, and the points that each deserves."""

from exercises.course.wrong import wrong

wrong(
    "embedding_sizes",
    points=2,
    why="The paper's factor √D is taken, but positions are shorter than that.",
    code="""
def balanced(D):
    return D**-0.5, D**0.5
""",
)
wrong(
    "embedding_sizes",
    points=1,
    why="A deviation is added up like a variance; each sine is thought to have length one.",
    code="""
def sizes(D, std, factor):
    return D * (factor * std) ** 2, D, D * std
""",
)
wrong(
    "embedding_sizes",
    points=0,
    why="The factor is not squared, and logits are scaled, too.",
    code="""
def sizes(D, std, factor):
    return D * factor * std**2, D / 2, math.sqrt(D) * std * factor


def balanced(D):
    return D**-0.5, D / 2
""",
)
wrong(
    "embedding_sizes",
    points=2,
    why="The second function is left out.",
    code="""
def balanced(D):
    raise NotImplementedError
""",
)
COUNT = """
def parameters(V, N, D, F, norm_first, shared):
    norm = {norm}
    attention = {attention}
    feed_forward = 2 * D * F + F + D
    layers = 3 * attention + 2 * feed_forward + 5 * norm
    return N * layers + {final} + {matrices} * V * D + V
"""
RIGHT = {
    "norm": "2 * D",
    "attention": "4 * (D * D + D)",
    "final": "(4 * D if norm_first else 0)",
    "matrices": "(1 if shared else 3)",
}
for points, why, change in (
    (1, "Post-norm stacks have no final norm, and this counts one.", {"final": "4 * D"}),
    (1, "The final norms of pre-norm are forgotten.", {"final": "0"}),
    (1, "The shared matrix is counted twice.", {"matrices": "(2 if shared else 3)"}),
    (0, "The biases of attention are forgotten.", {"attention": "4 * D * D"}),
    (0, "Norms are thought to have a scale only.", {"norm": "D"}),
):
    wrong("parameters", points=points, why=why, code=COUNT.format(**RIGHT | change))
wrong(
    "parameters",
    points=0,
    why="The model is built and counted.",
    code="""
def parameters(V, N, D, F, norm_first, shared):
    form = {"norm_first": norm_first, "share_embeddings": shared}
    return count_parameters(make_model(V, V, N, D, F, 1, **form))
""",
)
NORM = """
class AbsoluteNorm(nn.Module):
    def __init__(self, features, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = {weight}

    def forward(self, x):
        {forward}
"""
LEARNT = "nn.Parameter(torch.ones(features))"
for points, why, weight, forward in (
    (
        0,
        "The mean is subtracted first, as in layer norm.",
        LEARNT,
        "x = x - x.mean(-1, keepdim=True); "
        "return self.weight * x / (x.abs().mean(-1, keepdim=True) + self.eps)",
    ),
    (
        0,
        "The root mean square is taken: RMSNorm.",
        LEARNT,
        "return self.weight * x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt()",
    ),
    (
        0,
        "The mean runs over the whole batch.",
        LEARNT,
        "return self.weight * x / (x.abs().mean() + self.eps)",
    ),
    (
        0,
        "The sum is taken for the mean.",
        LEARNT,
        "return self.weight * x / (x.abs().sum(-1, keepdim=True) + self.eps)",
    ),
    (
        1,
        "There is no eps: a vector of zeros becomes NaN.",
        LEARNT,
        "return self.weight * x / x.abs().mean(-1, keepdim=True)",
    ),
    (
        1,
        "The scale is a plain tensor, which no optimizer sees.",
        "torch.ones(features)",
        "return self.weight * x / (x.abs().mean(-1, keepdim=True) + self.eps)",
    ),
):
    wrong("absolute_norm", points=points, why=why, code=NORM.format(weight=weight, forward=forward))
ENCODE = """

def encode_packed(model, src, sentences):
    embedding, positions = model.src_embed
    x = embedding(src) + positions.pe[0, packed_places(sentences)]
    return model.encoder(x, packed_mask(sentences, sentences))
"""
wrong(
    "packed",
    points=0,
    why="Only padding is hidden, and places run through the whole row.",
    code="""
def packed_mask(query_sentences, key_sentences):
    return (key_sentences > 0).unsqueeze(1).expand(-1, query_sentences.size(1), -1)


def packed_places(sentences):
    return torch.arange(sentences.size(1)).expand(sentences.shape)
"""
    + ENCODE,
)
wrong(
    "packed",
    points=2,
    why="The mask is right, but positions are those of the row.",
    code="""
def encode_packed(model, src, sentences):
    return model.encode(src, packed_mask(sentences, sentences))
""",
)
wrong(
    "packed",
    points=2,
    why="The embedding is not scaled: its matrix is used instead of the module.",
    code="""
def encode_packed(model, src, sentences):
    embedding, positions = model.src_embed
    x = embedding.lut(src) + positions.pe[0, packed_places(sentences)]
    return model.encoder(x, packed_mask(sentences, sentences))
""",
)
wrong(
    "packed",
    points=2,
    why="The mask has an axis for heads.",
    code="""
def packed_mask(query_sentences, key_sentences):
    return (query_sentences.unsqueeze(2) == key_sentences.unsqueeze(1)).unsqueeze(1)


def packed_places(sentences):
    first = packed_mask(sentences, sentences)[:, 0].int().argmax(-1)
    return torch.arange(sentences.size(1)) - first


def encode_packed(model, src, sentences):
    embedding, positions = model.src_embed
    x = embedding(src) + positions.pe[0, packed_places(sentences)]
    return model.encoder(x, packed_mask(sentences, sentences)[:, 0])
""",
)
wrong(
    "packed",
    points=2,
    why="Places count from 1; the memory follows from that.",
    code="""
def packed_places(sentences):
    same = packed_mask(sentences, sentences)
    return same.tril().sum(-1)
"""
    + ENCODE,
)
wrong(
    "packed",
    points=2,
    why="The causal mask is put in everywhere, so an encoder's words cannot look ahead.",
    code="""
def packed_mask(query_sentences, key_sentences):
    same = query_sentences.unsqueeze(2) == key_sentences.unsqueeze(1)
    return same.tril()


def packed_places(sentences):
    return packed_mask(sentences, sentences).sum(-1) - 1


def encode_packed(model, src, sentences):
    embedding, positions = model.src_embed
    x = embedding(src) + positions.pe[0, packed_places(sentences)]
    return model.encoder(x, sentences.unsqueeze(2) == sentences.unsqueeze(1))
""",
)
BIAS = """
class LearntBias(MultiHeadedAttention):
    def __init__(self, h, d_model, dropout=0.1, reach=8):
        super().__init__(h, d_model, dropout)
        self.reach = reach
        self.bias = {bias}

    def attend(self, q, k, v, mask):
        keys = torch.arange(k.size(2))
        queries = {queries}
        distance = {distance}
        row = {row}
        bias = self.bias[:, row]
        {last}
"""
RIGHT_BIAS = {
    "bias": "nn.Parameter(torch.zeros(h, 2 * reach + 1))",
    "queries": "keys[-q.size(2) :]",
    "distance": "keys - queries.unsqueeze(1)",
    "row": "distance.clamp(-self.reach, self.reach) + self.reach",
    "last": "return attention(q, k, v, mask, self.dropout, bias=bias)",
}
AFTER = "mixed, weights = attention(q, k, v, mask, self.dropout); "
for points, why, change in (
    (2, "Queries are taken to stand first.", {"queries": "torch.arange(q.size(2))"}),
    (2, "Dropout is forgotten.", {"last": "return attention(q, k, v, mask, bias=bias)"}),
    (
        2,
        "Dropout acts on the output.",
        {
            "last": "mixed, weights = attention(q, k, v, mask, bias=bias); "
            "return self.dropout(mixed), weights"
        },
    ),
    (
        1,
        "Queries are taken to stand first, and dropout is forgotten.",
        {
            "queries": "torch.arange(q.size(2))",
            "last": "return attention(q, k, v, mask, bias=bias)",
        },
    ),
    (0, "The sign of the distance is turned round.", {"distance": "queries.unsqueeze(1) - keys"}),
    (
        1,
        "Distances beyond reach start again.",
        {"row": "(distance + self.reach) % (2 * self.reach + 1)"},
    ),
    (1, "Distances beyond reach raise an error.", {"row": "distance + self.reach"}),
    (
        0,
        "The bias is added to the weights.",
        {"last": AFTER + "return (weights + bias) @ v, weights + bias"},
    ),
    (1, "The bias is no parameter.", {"bias": "torch.zeros(h, 2 * reach + 1)"}),
    (
        1,
        "The bias starts at random values.",
        {"bias": "nn.Parameter(torch.randn(h, 2 * reach + 1))"},
    ),
    (
        1,
        "The mask is not handed on.",
        {"last": "return attention(q, k, v, None, self.dropout, bias=bias)"},
    ),
):
    wrong("learnt_bias", points=points, why=why, code=BIAS.format(**RIGHT_BIAS | change))
wrong(
    "learnt_bias",
    points=0,
    why="The bias exists and is not used.",
    code="""
class LearntBias(MultiHeadedAttention):
    def __init__(self, h, d_model, dropout=0.1, reach=8):
        super().__init__(h, d_model, dropout)
        self.bias = nn.Parameter(torch.zeros(h, 2 * reach + 1))
""",
)
wrong(
    "without_residuals_prediction",
    points=0,
    why="One name is missing.",
    code="""
predicted_order = ["both", "attention"]
""",
)
wrong(
    "without_residuals_prediction",
    points=0,
    why="One name stands twice.",
    code="""
predicted_order = ["both", "attention", "attention"]
""",
)
wrong(
    "without_residuals",
    points=1,
    why="Every position is also compared with itself.",
    code="""
def likeness(states):
    directions = F.normalize(states, dim=-1)
    return (directions @ directions.mT).mean().item()
""",
)
wrong(
    "without_residuals",
    points=1,
    why="The norm is left out together with the sum.",
    code="""
class NoResidual(SublayerConnection):
    def forward(self, x, sublayer):
        return self.dropout(sublayer(x))
""",
)
wrong(
    "without_residuals",
    points=1,
    why="Only pre-norm is thought of.",
    code="""
class NoResidual(SublayerConnection):
    def forward(self, x, sublayer):
        return self.dropout(sublayer(self.norm(x)))
""",
)
wrong(
    "without_residuals",
    points=1,
    why="The class is ours, with the sum.",
    code="""
class NoResidual(SublayerConnection):
    pass
""",
)
wrong(
    "without_residuals",
    points=1,
    why="The numbers were invented from the prediction, not measured.",
    code="""
measured = {"both": 0.1, "attention": 0.5, "feed-forward": 0.9}
""",
)
wrong(
    "without_residuals",
    points=1,
    why="Only likeness is answered.",
    code="""
class NoResidual(SublayerConnection):
    def forward(self, x, sublayer):
        raise NotImplementedError


measured = None
""",
)
BACKWARD = """
def layer_norm_backward(x, weight, g, eps):
    centred = x - x.mean(-1, keepdim=True)
    deviation = {deviation}
    normed = centred / deviation
    scaled = weight * g
    along = (scaled * normed).mean(-1, keepdim=True)
    return {for_x}, {for_weight}, {for_bias}
"""
RIGHT_BACKWARD = {
    "deviation": "(centred.square().mean(-1, keepdim=True) + eps).sqrt()",
    "for_x": "(scaled - scaled.mean(-1, keepdim=True) - normed * along) / deviation",
    "for_weight": "(g * normed).sum((0, 1))",
    "for_bias": "g.sum((0, 1))",
}
for points, why, change in (
    (1, "Mean and variance are taken as constants.", {"for_x": "scaled / deviation"}),
    (
        1,
        "The variance is taken as a constant.",
        {"for_x": "(scaled - scaled.mean(-1, keepdim=True)) / deviation"},
    ),
    (2, "eps is left out.", {"deviation": "centred.square().mean(-1, keepdim=True).sqrt()"}),
    (
        0,
        "The variance is divided by D - 1.",
        {"deviation": "(x.var(-1, keepdim=True) + eps).sqrt()"},
    ),
    (
        1,
        "The gradient for weight and bias is a mean.",
        {"for_weight": "(g * normed).mean((0, 1))", "for_bias": "g.mean((0, 1))"},
    ),
):
    wrong(
        "layer_norm_backward",
        points=points,
        why=why,
        code=BACKWARD.format(**RIGHT_BACKWARD | change),
    )
wrong(
    "layer_norm_backward",
    points=0,
    why="Automatic differentiation does the work.",
    code="""
def layer_norm_backward(x, weight, g, eps):
    x = x.clone().requires_grad_()
    weight = weight.clone().requires_grad_()
    bias = torch.zeros_like(weight, requires_grad=True)
    F.layer_norm(x, weight.shape, weight, bias, eps).backward(g)
    return x.grad, weight.grad, bias.grad
""",
)
wrong(
    "layer_norm_backward",
    points=0,
    why="The same by a name that was imported.",
    code="""
from torch.autograd import grad


def layer_norm_backward(x, weight, g, eps):
    inputs = [x.clone(), weight.clone(), torch.zeros_like(weight)]
    inputs = [each.requires_grad_() for each in inputs]
    normed = F.layer_norm(inputs[0], weight.shape, *inputs[1:], eps)
    return grad(normed, inputs, g)
""",
)
wrong(
    "layer_norm_backward",
    points=0,
    why="PyTorch's own formula is called.",
    code="""
def layer_norm_backward(x, weight, g, eps):
    sizes = [x.size(-1)]
    bias = torch.zeros_like(weight)
    _, mean, rstd = torch.native_layer_norm(x, sizes, weight, bias, eps)
    every = [True, True, True]
    return torch.ops.aten.native_layer_norm_backward(g, x, sizes, mean, rstd, weight, bias, every)
""",
)
