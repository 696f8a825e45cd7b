"""Trains and measures what results holds, by the plan of plan.py."""
