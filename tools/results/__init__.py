"""What trains and measures for docs/results, and what is planned there."""
