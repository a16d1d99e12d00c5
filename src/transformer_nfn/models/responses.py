"""How a network responds to one probe set, in a few dozen numbers."""

import torch
from jaxtyping import Float
from torch import Tensor

_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
#: Probes are put into so many groups by how sure the consensus is.
_GROUPS = 4
#: A logarithm below this is no worse than this: a network may be very sure and wrong.
_LEAST = -8.0


def response_features(
    answers: Float[Tensor, "n q o"], consensus: Float[Tensor, "q o"]
) -> Float[Tensor, "n f"]:
    """Numbers that do not depend on the order of probes, nor on that of classes.

    The right answer is the most probable one of the consensus. Means over the probes of: the
    probability of the right answer, whether it is the most probable one, its logarithm, its lead
    over the best of the others (also its size, and through two sigmoids), the largest probability,
    and the entropy; the deviations and quantiles of some of them; how evenly all answers together
    use the classes; for each class the share of right answers and their mean probability, sorted;
    three distances from the consensus; and the share of right answers and the agreement with the
    consensus in each quarter of the probes, from those where the consensus is most sure.

    Args:
        answers: Logarithms of the probabilities of the answers.
        consensus: Their probabilities, as they should be.
    """
    right = consensus.argmax(1)
    chances = answers.exp()
    index = right.expand(len(answers), -1).unsqueeze(2)
    log_right = answers.gather(2, index).squeeze(2)  # n q
    lead = log_right - answers.scatter(2, index, -torch.inf).amax(2)
    is_right = (lead > 0).to(answers.dtype)
    surest, entropy = chances.amax(2), -(chances * answers).sum(2)
    log_consensus = consensus.clamp_min(1e-6).log()
    agreement = (chances * consensus).sum(2)
    means = (
        log_right.exp(),
        is_right,
        log_right.clamp_min(_LEAST),
        lead.sigmoid(),
        (3 * lead).sigmoid(),
        surest,
        entropy,
        lead,
        lead.abs(),
        agreement,
        (consensus * (log_consensus - answers.clamp_min(1.5 * _LEAST))).sum(2),
        (chances * (answers - log_consensus)).sum(2),
        (chances - consensus).abs().sum(2),
    )
    deviations = (log_right.exp(), log_right, surest, entropy, lead)
    quantiles = torch.tensor(_QUANTILES, dtype=answers.dtype, device=answers.device)
    use = chances.mean(1)  # n o
    of_class = torch.nn.functional.one_hot(right, consensus.shape[1]).to(answers.dtype)  # q o
    of_class = of_class / of_class.sum(0).clamp_min(1)
    from_sure = (-consensus * log_consensus).sum(1).argsort(stable=True).tensor_split(_GROUPS)
    groups = [each[:, some].mean(1) for some in from_sure for each in (is_right, agreement)]
    return torch.cat(
        [
            torch.stack([each.mean(1) for each in means], 1),
            torch.stack([each.std(1, correction=0) for each in deviations], 1),
            *(torch.quantile(each, quantiles, dim=1).T for each in (log_right, lead, surest)),
            torch.stack([-torch.xlogy(use, use).sum(1), use.amax(1)], 1),
            (log_right.exp() @ of_class).sort(1).values,
            (is_right @ of_class).sort(1).values,
            torch.stack(groups, 1),
        ],
        dim=1,
    )
