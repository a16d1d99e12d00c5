"""Two checkpoints of which one has heads or poolers that the other has not."""

from dataclasses import replace

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity.verdict import Answer, Verdict, same


def compare_bodies(ours: Checkpoint, theirs: Checkpoint, verdict: Verdict) -> Verdict:
    """The verdict, and what is to be said of both without heads where only one has them.

    Exports often leave out a pooler or a head. The answer stays what it is: with and without a head
    are two functions.

    Args:
        ours: The first.
        theirs: The second.
        verdict: Of both.
    """
    if verdict.answer is not Answer.UNDECIDED or ours.family is not theirs.family:
        return verdict
    if ours.only is not None or ours.family.hidden_head is not None:
        return verdict
    one, two = (
        {name.removeprefix(c.prefix) for name in (*c.heads, *c.pooled_heads, *c.summaries)}
        for c in (ours, theirs)
    )
    if not (one < two or two < one):
        return verdict
    extra, which = sorted(one ^ two)[0], "first" if two < one else "second"
    found = same(ours.body(), theirs.body(), seed=verdict.seed)
    told = f"only the {which} has {extra}; without heads they are: {found.answer.value}"
    more = " (--only body asks just that)" if found.answer.same_function else ""
    return replace(verdict, reason=f"{verdict.reason}; {told}{more}")
