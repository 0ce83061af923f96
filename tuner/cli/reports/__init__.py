"""Makes a machine's choices into one HTML page that needs no network: collects its content, packs it, and draws it."""
