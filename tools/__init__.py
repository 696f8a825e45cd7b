"""What builds notebook and page, measures the results, and converts models."""
