"""The parts that networks are made of, one kind a file.

A part says all that is known of it: its tensors and the kinds of their axes, which of them read the
stream and which write into it, and the function.
"""
