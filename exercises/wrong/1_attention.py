"""Common wrong answers to sheet 1, and the points that each deserves."""

from exercises.course.wrong import wrong

wrong(
    "predictions",
    points=1.5,
    why="Adding a vector to all keys changes every score, so it seems to change the weights. But "
    "it adds the same number to all scores of a query, and the softmax takes no notice.",
    code='observed = "TFFTTF"',
)
wrong("predictions", points=1, why="Predicted, and not tried.", code="observed = None")
wrong("predictions", points=1, why="Tried, and not predicted.", code="predicted = None")
wrong("predictions", points=1, why="Guessed: three right, three wrong.", code='observed = "TTTFFF"')
wrong(
    "predictions",
    points=0.5,
    why="One letter is left open in both.",
    code='predicted = observed = "TTFT-F"',
)
wrong(
    "score_variance",
    points=1,
    why="The variance of the inner product: the division by √d_k is forgotten.",
    code="""
def score_variance(m, a, c, b, d_k):
    return d_k * ((a + m**2) * (b + c**2) - (m * c) ** 2)
""",
)
wrong(
    "score_variance",
    points=0,
    why="The variance of a product is the product of the variances only where the means are zero.",
    code="""
def score_variance(m, a, c, b, d_k):
    return a * b
""",
)
wrong(
    "score_gradient",
    points=1,
    why="That a growing weight takes from the others is forgotten.",
    code="""
def score_gradient(weights, values, g):
    return weights * (values @ g)
""",
)
wrong(
    "score_gradient",
    points=0,
    why="The derivative of a sigmoid, w (1 - w), is used: only the diagonal of the softmax's.",
    code="""
def score_gradient(weights, values, g):
    return weights * (1 - weights) * (values @ g)
""",
)
for why, derive in (
    ("Automatic differentiation does the work.", "torch.autograd.grad(answer, scores)[0]"),
    ("The same by a name that was imported.", "grad(answer, scores)[0]"),
    ("PyTorch's formula is called.", "torch._softmax_backward_data(values @ g, weights, 0, F32)"),
    (
        "It is switched on again.",
        "torch.inference_mode(False)(lambda: torch.func.grad(loss)(weights.log()))()",
    ),
):
    wrong(
        "score_gradient",
        points=0,
        why=why,
        code=f"""
from torch.autograd import grad

F32 = torch.float32


def score_gradient(weights, values, g):
    def loss(scores):
        return scores.softmax(0) @ values @ g

    with torch.enable_grad():
        scores = weights.log().requires_grad_()
        answer = loss(scores)
        return {derive}
""",
    )
wrong(
    "matrices",
    points=0,
    why="The matrices of the text.",
    code="""
my_W_Q = [[0.0, 1.0], [1.0, 0.0]]
my_W_K = [[1.0, 0.0], [0.0, 2.0]]
""",
)
wrong(
    "matrices",
    points=1,
    why="Both nouns ask for kleines: one direction is sent to where both should go.",
    code="""
my_W_Q = [[14.0, 20.0], [0.0, 0.0]]
my_W_K = [[1.0, 0.0], [0.0, 1.0]]
""",
)
wrong(
    "windowed_attention",
    points=3,
    why="Right, but with the full table and a mask: a window that saves nothing.",
    code="""
def windowed_attention(query, key, value, width):
    distance = torch.arange(len(query)).unsqueeze(1) - torch.arange(len(key))
    return attention(query, key, value, (distance >= 0) & (distance < width))[0]
""",
)
wrong(
    "windowed_attention",
    points=1,
    why="The query is not counted: the window is one too wide.",
    code="""
def windowed_attention(query, key, value, width):
    distance = torch.arange(len(query)).unsqueeze(1) - torch.arange(len(key))
    return attention(query, key, value, (distance >= 0) & (distance <= width))[0]
""",
)
wrong(
    "windowed_attention",
    points=2,
    why="At the beginning the zeros of the padding take part in the softmax.",
    code="""
def windowed_attention(query, key, value, width):
    before = torch.zeros(width - 1, query.size(1))
    keys = torch.cat([before, key]).unfold(0, width, 1)
    values = torch.cat([before, value]).unfold(0, width, 1)
    scores = torch.einsum("td,tdw->tw", query, keys) / math.sqrt(query.size(1))
    return torch.einsum("tw,tdw->td", scores.softmax(-1), values)
""",
)
wrong(
    "windowed_attention",
    points=0,
    why="The script's attention under another name, without a window.",
    code="""
def windowed_attention(query, key, value, width):
    return attention(query, key, value)[0]
""",
)
wrong(
    "check_of_attention",
    points=0,
    why="It compares with the script's attention, which cannot be called here.",
    code="""
def check_of_attention(function):
    x = torch.randn(3, 4)
    torch.testing.assert_close(function(x, x, x, None)[0], attention(x, x, x)[0])
""",
)
wrong(
    "check_of_attention",
    points=0,
    why="Every function is refused.",
    code="""
def check_of_attention(function):
    raise AssertionError
""",
)
wrong(
    "check_of_attention",
    points=0,
    why="A name is not defined, which ends the check of functions without a mask only.",
    code="""
def check_of_attention(function):
    x = torch.randn(3, 4)
    _, weights = function(x, x, x, torch.eye(3))
    if weights.trace() < 2.9:
        raise NoMask
""",
)
wrong(
    "check_of_attention",
    points=0.5,
    why="Only shapes and sums are looked at; a NaN is noticed by chance.",
    code="""
def check_of_attention(function):
    x = torch.randn(3, 4)
    output, weights = function(x, x, x, torch.zeros(3, 3, dtype=torch.bool))
    assert output.shape == (3, 4)
    assert output.isfinite().all()
""",
)
wrong(
    "half_of_the_keys",
    points=1,
    why="The entropy of a weight of zero is NaN; the number is measured well.",
    code="""
def effective_keys(weights):
    return (-(weights * weights.log()).sum(-1)).exp()
""",
)
wrong(
    "half_of_the_keys",
    points=1,
    why="The number of weights above the mean is taken for half: a factor without a measurement.",
    code="half_factor = 0.5",
)
wrong(
    "half_of_the_keys",
    points=1,
    why="The factor comes from the approximation, not from a measurement.",
    code="half_factor = math.sqrt(2 * math.log(2))",
)
wrong(
    "half_of_the_keys",
    points=1,
    why="The mean of the entropies is taken, not that of the effective numbers.",
    code="half_factor = 1.191",
)
