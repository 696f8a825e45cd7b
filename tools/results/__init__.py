"""Trains and measures what docs/results holds, by the plan of plan.py."""
