"""Whether a checkpoint's settings and shapes fit together; headers only, no tensor is read."""

from collections.abc import Callable, Collection, Mapping
from math import isfinite, prod

from transformer_nfn.checkpoints.errors import CheckpointError
from transformer_nfn.checkpoints.family import Family, Matrix
from transformer_nfn.checkpoints.files.tensors import TensorFiles
from transformer_nfn.checkpoints.layout import Layout, bias_shape, stored_names, weight_shape
from transformer_nfn.checkpoints.settings.values import Settings
from transformer_nfn.checkpoints.tables import block_of
from transformer_nfn.space import (
    BlockSpec,
    ClassToken,
    Inputs,
    Patches,
    PatchPositions,
    Positions,
    Sound,
)

MAX_BLOCKS = 4096
#: Of a block that all depths share: its file is small, however often it is run.
MAX_DEPTH = 256
#: Heads and experts are compared all with all, however small they are.
MAX_HEADS = 1024
MAX_EXPERTS = 512


def check_settings(settings: Settings, where: str) -> None:
    """Numbers that would make NaN of every net, and words that no one should be shown."""
    activation = settings.activation
    if not activation.isprintable() or len(activation) > 60:
        raise CheckpointError(f"{where}: {activation[:60]!r} is no activation")
    for name, value in settings.flags:
        if isinstance(value, dict | list):
            raise CheckpointError(f"{where}: {name} should not be {value!r:.60}")
    if settings.heads > MAX_HEADS:
        raise CheckpointError(f"{where}: {settings.heads} heads, over {MAX_HEADS}")
    if settings.depth and settings.depth > MAX_DEPTH:
        raise CheckpointError(f"{where}: {settings.depth} depths of one block, over {MAX_DEPTH}")
    if settings.norm not in ("layer", "rms"):
        raise CheckpointError(f"norm is 'layer' or 'rms', not {settings.norm!r:.60}")
    if not 0 <= settings.eps < 1:
        raise CheckpointError(f"{where}: the norms' epsilon is {settings.eps}, not between 0 and 1")
    for rope in filter(None, (settings.rope, settings.local_rope)):
        numbers = [rope.theta]
        for _, value in rope.options:
            numbers += value if isinstance(value, tuple) else [value]
        if not (rope.theta > 0 and all(map(isfinite, numbers))):
            raise CheckpointError(f"{where}: rope_theta and its options are not finite numbers")


def count_blocks(files: TensorFiles, family: Family, block_name: Callable[[int], str]) -> int:
    """How many blocks follow each other without a gap.

    Args:
        files: The tensors.
        family: What they are.
        block_name: What stands before the names of block i.
    """
    if "{}" not in family.block:  # all depths share it
        return int(block_name(0) + family.matrices[0].weight in files)
    found = 0
    while block_name(found) + family.matrices[0].weight in files:
        found += 1
    if found > MAX_BLOCKS:
        raise CheckpointError(f"{files.path} has {found} blocks, more than {MAX_BLOCKS}")
    return found


def read_spec(files: TensorFiles, family: Family, block: str, settings: Settings) -> BlockSpec:
    """Sizes from shapes, with the head count from the settings.

    Args:
        files: The tensors.
        family: What they are.
        block: What stands before the names of the block whose shapes count.
        settings: Heads and their groups.
    """
    declared = block_of(family, settings)
    first = _matrix(family, "the queries Q", lambda matrix: "Q" in matrix.tensors)
    output = _matrix(family, "O alone", lambda matrix: matrix.tensors == ("O",))
    last = _matrix(
        family, "neurons and the stream alone", lambda matrix: {"x", "a"} <= set(_axes(matrix))
    )
    name = block + last.names(1)[0]
    shape = _shape(files, name)
    if len(shape) != 2:
        raise CheckpointError(f"{files.path}: {name} has shape {shape}, not 2 axes")
    D, D_A = (shape[_axes(last).index(label)] for label in "xa")
    heads, groups = settings.heads, settings.groups
    if heads % groups:
        raise CheckpointError(f"{files.path}: {heads} heads are no multiple of {groups} groups")
    D_k, D_v = _head_sizes(files, block, (first, output), D, heads, groups)
    sizes = {"D": D, "D_k": D_k, "D_v": D_v, "D_A": D_A}
    if "u" in declared.axes:
        sizes["experts"] = _count_experts(files, family, block, settings)
    if "j" in declared.axes:
        sizes["pairs"] = D_k // 2
    if "g" in declared.axes:
        sizes |= {"groups": groups, "heads_per_group": heads // groups}
    else:
        sizes |= {"heads": heads}
    try:
        return BlockSpec(declared, **sizes)
    except ValueError as error:
        raise CheckpointError(f"{files.path}: {error}") from None


def _matrix(family: Family, what: str, fits: Callable[[Matrix], bool]) -> Matrix:
    """The last matrix of a table that has something by which sizes are known."""
    for matrix in reversed(family.matrices):
        if fits(matrix):
            return matrix
    raise CheckpointError(f"the table {family.name!r:.60}: no matrix has {what}")


def _axes(matrix: Matrix) -> list[str]:
    return matrix.single.axes.split()


def _count_experts(files: TensorFiles, family: Family, block: str, settings: Settings) -> int:
    """As many as the router has rows, of which no more are chosen than there are."""
    router = next(m for m in family.matrices if m.axes.split()[0] == "u" and not m.spread)
    experts = max(_shape(files, block + router.weight)[:1], default=0)
    if not 0 < settings.size("chosen") <= experts <= MAX_EXPERTS:
        raise CheckpointError(
            f"{files.path}: {settings.size('chosen')} of {experts} experts cannot be chosen"
        )
    return experts


def _head_sizes(
    files: TensorFiles,
    block: str,
    matrices: tuple[Matrix, Matrix],
    D: int,
    heads: int,
    groups: int,
) -> tuple[int, int]:
    """Coordinates of queries and of values for each head.

    Args:
        files: The tensors.
        block: What stands before the names of a block.
        matrices: The one with the queries, and the one that writes.
        D: Size of the stream.
        heads: How many.
        groups: Of how many groups.
    """
    first, output = matrices
    inputs = max(D + ("z" in first.axes), 1)
    columns = prod(_shape(files, block + first.weight)) // inputs
    values = prod(_shape(files, block + output.weight)) // max(D, 1)
    counts, layout = {"h": heads, "g": groups, "m": heads // groups}, Layout.of(first)
    units = {"k": 0, "v": 0}  # how many heads of queries and keys, and of values, it has
    for part in layout.parts:
        labels = (*layout.before, *part)
        kind = "v" if "v" in labels else "k"
        units[kind] += prod(counts.get(label, 1) for label in labels)
    D_v, odd = divmod(values, heads)
    D_k, left = divmod(columns - units["v"] * D_v, units["k"])
    if not D or odd or left or D_k < 1 or D_v < 1:
        raise CheckpointError(
            f"{files.path}: {heads} heads do not divide the {columns} columns of its queries "
            f"and the {values} rows of its output; the head count is not this file's"
        )
    return D_k, D_v


def check_blocks(
    files: TensorFiles, family: Family, spec: BlockSpec, block_names: list[str]
) -> None:
    """Every weight of every block is there, and all that is there has the shape of the others.

    Args:
        files: The tensors.
        family: What they are.
        spec: Declaration and sizes of the blocks.
        block_names: What stands before the names of each block.
    """
    joined = not family.split_axes
    # Once for all blocks: there may be thousands.
    shapes = [
        (m, weight_shape(spec, m, joined=joined), bias_shape(spec, m)) for m in family.matrices
    ]
    for block in block_names:
        for matrix, weight, bias in shapes:
            for name in stored_names(spec, matrix):
                _check_tensor(files, block + name, weight)
            if matrix.bias and block + matrix.bias in files:
                _check_tensor(files, block + matrix.bias, bias)


def check_norms(files: TensorFiles, names: list[str], D: int, *, shifts: bool) -> None:
    """Every norm has a scale, and a shift or none.

    Args:
        files: The tensors.
        names: The norms.
        D: Size of the stream.
        shifts: Whether the family's norms may have a shift.
    """
    for norm in names:
        _check_tensor(files, f"{norm}.weight", (D,))
        if f"{norm}.bias" in files:
            if not shifts:
                raise CheckpointError(
                    f"{files.path}: {norm}.bias belongs to no RMSNorm; remove it, or the file is "
                    f"of a family that is not known"
                )
            _check_tensor(files, f"{norm}.bias", (D,))


def check_writers(files: TensorFiles, family: Family, names: Collection[str]) -> None:
    """What writes into the stream writes something, and a zoo's net has weight and bias.

    Args:
        files: The tensors.
        family: What they are.
        names: The writers that are there.
    """
    for name in names:
        if not prod(_shape(files, name)):
            raise CheckpointError(f"{files.path}: {name} has no rows")
    if family.inputs is Inputs.VECTORS and len(names) not in (0, len(family.writers)):
        raise CheckpointError(f"{files.path} has {' and '.join(names)}, and not the other half")


def check_places(
    files: TensorFiles, family: Family, settings: Settings, name: Callable[[str], str]
) -> None:
    """There is a vector for each patch of an image of this size, and for each token before them.

    Args:
        files: The tensors.
        family: What they are.
        settings: The size of images.
        name: The name of a tensor outside the blocks as it is in this file.
    """
    first = [step for step in family.embeddings if isinstance(step, ClassToken)]
    kernels = [name(step.weight) for step in family.embeddings if isinstance(step, Patches)]
    for step in family.embeddings:
        if isinstance(step, PatchPositions | Positions) and kernels:
            side = settings.size("image") // max(1, _shape(files, kernels[0])[-1])
            places, wanted = _shape(files, name(step.name))[-2], side * side + len(first)
            if places != wanted:
                raise CheckpointError(
                    f"{files.path}: {name(step.name)} has {places} places; an image of "
                    f"{settings.size('image')} has {wanted} with the tokens before it"
                )


def check_sound(files: TensorFiles, family: Family, D: int, name: Callable[[str], str]) -> None:
    """Convolutions of sound reach three steps and give the stream.

    Args:
        files: The tensors.
        family: What they are.
        D: Size of the stream.
        name: The name of a tensor outside the blocks as it is in this file.
    """
    for step in family.embeddings:
        if not isinstance(step, Sound):
            continue
        bins = (*_shape(files, name(f"{step.first}.weight")), 0, 0)[1]  # any number of them
        for convolution, channels in ((step.first, bins), (step.second, D)):
            _check_tensor(files, name(f"{convolution}.weight"), (D, channels, 3))
            _check_tensor(files, name(f"{convolution}.bias"), (D,))


def check_stream(files: TensorFiles, axes_by_name: Mapping[str, str], D: int) -> None:
    """Tensors outside the blocks that write or read the stream.

    Args:
        files: The tensors.
        axes_by_name: Names of those that must be there, and the labels of their axes; `x` is the
            stream's.
        D: Size of the stream.
    """
    for name, labels in axes_by_name.items():
        axis, axes = labels.split().index("x"), len(labels.split())
        shape = _shape(files, name)
        if len(shape) != axes or shape[axis] != D:
            raise CheckpointError(
                f"{files.path}: {name} has shape {shape}; {axes} axes were expected, "
                f"axis {axis} of them {D}"
            )
        _check_float(files, name)


def check_summary(
    files: TensorFiles, axes: Mapping[str, str], names: Mapping[str, str], D: int
) -> None:
    """What is made of hidden states reads tensors of the sizes that are declared.

    Args:
        files: The tensors.
        axes: As in `Summary.tensors`.
        names: Of these tensors in the file.
        D: Size of the stream.
    """
    sizes = {"x": D}
    for own, name in names.items():
        shape, labels = _shape(files, name), axes[own].split()
        for label, size in zip(labels, shape, strict=False):
            if label.isalpha():
                sizes.setdefault(label, size)
        wanted = tuple(
            int(label) if label.isdigit() else int(label[:-1] or 1) * sizes.get(label[-1], 0)
            for label in labels
        )
        if shape != wanted:
            raise CheckpointError(f"{files.path}: {name} has shape {shape}, not {wanted}")
        _check_float(files, name)


def check_head_bias(files: TensorFiles, weight: str, bias: str) -> None:
    """A head's bias has an entry for each row of its weight."""
    if files.entry(bias).shape != files.entry(weight).shape[:1]:
        raise CheckpointError(f"{files.path}: {bias} does not fit {weight}")
    _check_float(files, bias)


def check_classifier(files: TensorFiles, names: tuple[str, str, str, str], D: int) -> None:
    """Weight and bias, twice, of a zoo net's classifier."""
    shapes = [_shape(files, name) for name in names]
    first, _, second, _ = shapes
    if (
        [len(shape) for shape in shapes] != [2, 1, 2, 1]
        or first[0] != D
        or shapes[1] != first[1:]
        or second[0] != first[1]
        or shapes[3] != second[1:]
    ):
        raise CheckpointError(
            f"{files.path}: the classifier's shapes {str(shapes)[:200]} do not fit"
        )
    for name in names:
        _check_float(files, name)


def _shape(files: TensorFiles, name: str) -> tuple[int, ...]:
    if name not in files:
        raise CheckpointError(f"{files.path} has no tensor {name!r}")
    return files.entry(name).shape


def _check_tensor(files: TensorFiles, name: str, expected: tuple[int, ...]) -> None:
    shape = _shape(files, name)
    if shape != expected:
        raise CheckpointError(
            f"{files.path}: {name} has shape {shape}; "
            f"{expected} was expected from the other tensors"
        )
    _check_float(files, name)


def _check_float(files: TensorFiles, name: str) -> None:
    dtype = files.entry(name).dtype
    if not dtype.is_floating_point:
        raise CheckpointError(f"{files.path}: {name} is {dtype}, not floating point")
