"""Common wrong answers to sheet 1, and the points that each deserves."""

from exercises.course.wrong import wrong

wrong(
    "windowed_mask",
    points=1,
    why="The window is counted without the query itself.",
    code="""
def windowed_mask(size, width):
    distance = torch.arange(size).unsqueeze(1) - torch.arange(size)
    return ((distance >= 0) & (distance <= width)).unsqueeze(0)
""",
)
wrong(
    "windowed_mask",
    points=0,
    why="Rows and columns are confused: a query sees what comes after it.",
    code="""
def windowed_mask(size, width):
    distance = torch.arange(size) - torch.arange(size).unsqueeze(1)
    return ((distance >= 0) & (distance < width)).unsqueeze(0)
""",
)
