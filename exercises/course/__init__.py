"""The course: hand-outs, marking, the bug hunt, export for nbgrader, the offline bundle."""
