import random

import numpy as np
import pytest
import torch

from tests.kinship.test_distances import made_up, near
from transformer_nfn.kinship import (
    Edge,
    Fingerprint,
    Forest,
    Index,
    Kinship,
    distance,
    group_copies,
)
from transformer_nfn.kinship.duplicates import linked
from transformer_nfn.kinship.joining import kin_pairs


def kin(count: int, seed: int = 0, shapes: int = 2) -> list[Fingerprint]:
    """Nets of two shapes; most are copies or near copies, also of each other's near copies."""
    rng = random.Random(seed)
    prints = [made_up(0, shape="s0")]
    for number in range(1, count):
        of = prints[rng.randrange(number)]
        share = rng.choice([0.0, 1e-6, 1e-6, 0.01, 0.15, 0.35, None])
        if share is None:
            one = made_up(seed * 1000 + number, shape=f"s{rng.randrange(shapes)}")
        else:
            one = near(of, share, number)
        parts = dict(one.parts)
        if rng.random() < 0.2:
            parts["head"] = torch.randn(16, dtype=torch.float64)
        dtype = rng.choice(["float32", "float32", "bfloat16"])
        prints.append(Fingerprint(f"f{number}", one.shape, dtype, parts))
    return prints


def by_definition(prints: list[Fingerprint]) -> list[tuple[int, int, Kinship]]:
    return [
        (i, j, kind)
        for i in range(len(prints))
        for j in range(i + 1, len(prints))
        if (kind := distance(prints[i], prints[j]).kinship) is not Kinship.STRANGER
    ]


@pytest.mark.parametrize("seed", range(3))
def test_all_pairs_of_kin_are_found_and_no_others(seed: int) -> None:
    prints = kin(60, seed)
    assert [(i, j, kind) for i, j, _, kind in Index.of(prints).pairs()] == by_definition(prints)


def test_pairs_are_found_where_no_part_is_common() -> None:
    prints = [
        Fingerprint(f"{n}", "s", "float32", {f"{n} {i}": made_up(n).parts["part 0"] for i in "ab"})
        for n in (0, 1, 2)
    ]
    assert Index.of(prints).pairs() == []
    prints.append(Fingerprint("again", "s", "float32", prints[0].parts))
    assert [pair[:2] for pair in Index.of(prints).pairs()] == [(0, 3)]


@pytest.mark.parametrize("seed", range(3))
def test_networks_and_lineages_are_those_of_all_pairs(seed: int) -> None:
    prints = kin(60, seed)
    pairs = by_definition(prints)
    found = group_copies(prints)
    copies = [(i, j) for i, j, kind in pairs if kind is Kinship.COPY]
    assert sorted(map(sorted, found.groups)) == linked(60, copies)
    lineages = [sorted(k.file for net in lineage for k in net) for lineage in found.lineages]
    assert lineages == linked(60, [(i, j) for i, j, _ in pairs])
    place = {file: n for n, file in enumerate(found.order)}
    for row, link in zip(
        found.table(), (k for f in found.lineages for g in f for k in g), strict=True
    ):
        assert row.to is None or place[link.of] < place[link.file]
        if link.of is not None:
            far = distance(prints[link.file], prints[link.of])
            assert (row.relation, row.distance) == (far.kinship, pytest.approx(far.median))


def test_what_is_known_is_not_compared_again_and_nothing_changes() -> None:
    prints = kin(80)
    whole = Index.of(prints).forest()
    known, compared = Forest(frozenset(), ()), []
    for end in (30, 31, 80):
        index = Index.of(random.Random(end).sample(prints[:end], end))  # in any order

        def watch(steps, total):
            done = 0
            for step in steps:
                done += step
                yield step
            assert done == total
            compared.append(total)

        known = index.forest(known, watch)
    assert compared[1] < 30
    assert Index.of(prints).forest(known, lambda steps, total: [total]) == known
    assert known.keys == whole.keys
    assert set(known.edges) == set(whole.edges)


def test_a_tree_that_lost_a_file_is_compared_again() -> None:
    one = made_up()
    middle = near(one, 0.3, 1)
    other = near(middle, 0.3, 2)
    stranger = made_up(5)
    known = Index.of([one, middle, other, stranger]).forest()
    for left in ([one, other, stranger], [one, stranger], [middle, other], []):
        index = Index.of(left)
        assert set(index.forest(known).edges) == set(index.forest().edges)


def test_equal_fingerprints_are_one_node() -> None:
    prints = [made_up(), near(made_up(), 0.01), made_up(), made_up()]
    index = Index.of(prints)
    assert len(index.forest().keys) == 2
    assert group_copies(index).counts() == {
        "files": 4, "networks": 2, "lineages": 1, "copies": 2, "related": 1, "unsupported": 0,
    }  # fmt: skip


def test_keys_do_not_depend_on_other_files() -> None:
    one, more = made_up(), made_up(1)
    more = Fingerprint("m", "s", "float32", {"a head": more.parts["part 0"], **more.parts})
    assert Index.of([one]).keys()[0] == Index.of([more, one]).keys()[1]
    assert Index.of([one]).keys() != Index.of([near(one, 1e-12)]).keys()
    rounded = Fingerprint("r", "s", "float16", one.parts)
    assert Index.of([one]).keys() != Index.of([rounded]).keys()


def test_the_nearest_come_first() -> None:
    one = made_up()
    prints = [made_up(1), near(one, 0.1), near(one, 1e-6), made_up(2, shape="t"), near(one, 0.01)]
    found = Index.of(prints).nearest(one, 3)
    assert [(n.file, n.kinship) for n in found] == [(2, "copy"), (4, "related"), (1, "related")]
    assert found[1].distance == pytest.approx(0.01, rel=0.1)
    assert Index.of(prints).nearest(made_up(shape="u")) == []


def test_many_rows_and_columns_are_cut_into_tiles() -> None:
    generator = np.random.default_rng(0)
    prints = [made_up(n, parts=3) for n in range(5000)]
    planted = {(int(i), 5000 + n) for n, i in enumerate(generator.choice(5000, 20, replace=False))}
    prints += [near(prints[i], 0.1, j) for i, j in sorted(planted, key=lambda pair: pair[1])]
    index = Index.of(prints)
    (shelf,) = index.shelves.values()
    blocks = list(kin_pairs(shelf.stack, np.arange(len(prints))))
    assert sum(block.pairs for block in blocks) == len(prints) * (len(prints) - 1) // 2
    assert {pair[:2] for pair in index.pairs()} == planted


def test_what_is_no_forest_is_not_believed() -> None:
    a, b, c = (letter * 16 for letter in (b"a", b"b", b"c"))
    keys = frozenset({a, b, c})
    sound = [Edge(a, b, 0.1, False), Edge(b, c, 0.1, True)]
    assert Forest.empty().is_sound()
    assert Forest(keys, sound).is_sound()
    for wrong in (
        Edge(a, c, 0.1, False),  # a circle
        Edge(a, a, 0.1, False),
        Edge(a, b"d" * 16, 0.1, False),
        Edge(a, b"d" * 16, float("nan"), False),
    ):
        assert not Forest(keys, [*sound, wrong]).is_sound()
    assert not Forest(keys, [Edge(a, b, float("nan"), False)]).is_sound()
