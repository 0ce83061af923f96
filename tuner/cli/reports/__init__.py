"""A machine's choices as one HTML page that needs no network: what it shows, how it is packed, how it is drawn."""
