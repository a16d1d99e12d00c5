"""GGUF, the format of llama.cpp, read as the checkpoint of `transformers` that it was made of."""
