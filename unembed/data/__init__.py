"""Text to shards of (tokens, vector): sources -> tokens -> vectors, or own pairs; read through `dataset.Dataset`."""
