"""GGUF files byte by byte, sound and not."""

import struct

#: Numbers of types of settings and tensors.
U32, F32_SETTING, TEXT, LIST = 4, 6, 8, 9
F32, Q4_0 = 0, 2
_BYTES = {F32: (1, 4), Q4_0: (32, 18)}


def text(word: bytes) -> bytes:
    """A string as the format has it."""
    return struct.pack("<Q", len(word)) + word


def setting(name: bytes, value: bytes | int | float) -> bytes:
    """A text, a whole number or one with a fraction."""
    if isinstance(value, bytes):
        return text(name) + struct.pack("<I", TEXT) + text(value)
    if isinstance(value, float):
        return text(name) + struct.pack("<If", F32_SETTING, value)
    return text(name) + struct.pack("<II", U32, value)


def tensor(
    name: bytes = b"a", shape: tuple[int, ...] = (8,), kind: int = F32, at: int = 0
) -> bytes:
    """A line of the table of tensors, axes in the order of the file."""
    axes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + axes + struct.pack("<IQ", kind, at)


def made(
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    settings: tuple[bytes, ...] = (),
    tensors: tuple[bytes, ...] = (),
    counts: tuple[int, int] | None = None,
    data: bytes = b"",
) -> bytes:
    """A file of parts that may not fit."""
    count, said = counts or (len(tensors), len(settings))
    head = magic + struct.pack("<IQQ", version, count, said)
    head += b"".join(settings) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + data


def small_llama(kind: int = Q4_0) -> bytes:
    """A whole Llama: one block, 32 coordinates, two heads, four words."""
    matrices = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    shapes: dict[str, tuple[tuple[int, ...], int]] = {
        "token_embd": ((32, 4), kind),
        "output_norm": ((32,), F32),
        "blk.0.attn_norm": ((32,), F32),
        "blk.0.ffn_norm": ((32,), F32),
        **{f"blk.0.{name}": ((32, 32), kind) for name in matrices},
    }
    tensors, data = [], b""
    for number, (name, (shape, of)) in enumerate(shapes.items()):
        block, size = _BYTES[of]
        count = shape[0] * (shape[1] if len(shape) > 1 else 1) // block
        tensors.append(tensor(f"{name}.weight".encode(), shape, of, len(data)))
        one = struct.pack("<f", 1.5) if of == F32 else struct.pack("<e", 0.1) + bytes(range(16))
        data += one * count
        data += bytes(-len(data) % 32) if number < len(shapes) - 1 else b""
        assert len(one) == size
    said = {
        b"general.architecture": b"llama",
        b"llama.block_count": 1,
        b"llama.embedding_length": 32,
        b"llama.feed_forward_length": 32,
        b"llama.attention.head_count": 2,
        b"llama.attention.head_count_kv": 2,
        b"llama.attention.layer_norm_rms_epsilon": 1e-5,
        b"llama.rope.freq_base": 1e4,
    }
    words = text(b"tokenizer.ggml.tokens") + struct.pack("<IIQ", LIST, TEXT, 2)
    settings = (*(setting(name, value) for name, value in said.items()),  # type: ignore[arg-type]
                words + text(b"of") + text(b"the"))  # fmt: skip
    return made(settings=settings, tensors=tuple(tensors), data=data)
