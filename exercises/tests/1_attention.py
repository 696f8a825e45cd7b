"""Hidden tests of sheet 1."""

import torch

from exercises.course.tasks import close, task


@task("windowed_mask", points=3)
class WindowedMask:
    def inputs(seed):
        return torch.randint(5, 12, ()).item(), torch.randint(1, 8, ()).item()

    def probe(solve, size, width):
        return solve.windowed_mask(size, width).int()

    def judge(result, size, width):
        full = torch.ones(1, size, size)
        right = full.tril() - full.tril(-width)
        if close(result, right):
            return 3, ""
        if close(result, full.tril() - full.tril(-width - 1)):
            return 1, "the window is one too wide: it counts the query itself"
        return 0, "some query sees a wrong key"
