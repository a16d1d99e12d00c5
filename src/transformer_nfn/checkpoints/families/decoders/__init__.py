"""Other decoders: those before Llama, and those with attention and MLP side by side."""
