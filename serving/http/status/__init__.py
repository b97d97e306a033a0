"""What the front knows of itself and of the owners: the status API with an hour's memory, and the page at ``/``."""
