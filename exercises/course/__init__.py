"""The course: hand-outs, the bug hunt, the numbers of guide and exam."""
