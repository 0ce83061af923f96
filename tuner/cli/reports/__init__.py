"""A machine's choices as one HTML page that needs no network: its content, how it is packed, how it is drawn."""
