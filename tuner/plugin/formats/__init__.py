"""Decision tables in the formats of others, read and written."""
