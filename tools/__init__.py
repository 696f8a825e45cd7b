"""What builds notebook and page, and measures the results."""
