"""From the script to a notebook, and from the executed notebook to one HTML page."""
