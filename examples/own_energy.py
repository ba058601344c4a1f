"""An energy of your own: an Ising ring, its slopes, and its exact distribution."""

import nmln

space = nmln.Space(nmln.Language(nmln.predicate("up", "site")), {"site": 8})


def ring(onehot):
    """Neighbours prefer to point the same way; the entries of a site are (down, up)."""
    spins = onehot[..., 1::2] - onehot[..., ::2]
    return 0.8 * (spins * spins.roll(1, -1)).sum(-1)


potential = nmln.OneHotPotential(space, ring)
worlds = space.enumerate()
scores, slopes = potential.score_and_slopes(worlds[None])
probabilities = scores[0].softmax(0)
best = probabilities.argsort(descending=True)[:4]
for index in best:
    print(f"{''.join('↑' if v else '↓' for v in worlds[index])}  {probabilities[index]:.3f}")
print("log Z =", round(scores[0].logsumexp(0).item(), 4))
