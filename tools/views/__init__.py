"""The tables and charts that readers see, written from the records of docs/results."""
