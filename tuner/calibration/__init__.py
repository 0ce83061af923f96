"""What measured times say about the constants of a release's model, and what they cannot say."""
