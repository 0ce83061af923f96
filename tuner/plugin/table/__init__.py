"""Records, reader and writer of decision tables as this project's plugin reads them."""
