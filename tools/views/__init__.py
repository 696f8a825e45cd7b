"""Tables and charts of the results, written from the records of results."""
