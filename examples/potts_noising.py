"""The same energy on a 3 x 3 torus by parallel noising: small enough to be noised exactly."""

import torch

import nmln

torch.set_num_threads(1)  # tensors are small: a second thread would only slow them down
space = nmln.Space(nmln.Language(nmln.Attribute("spin", ("site",), ("a", "b", "c"))), {"site": 9})


def potts(onehot):
    grid = onehot.unflatten(-1, (3, 3, 3))
    alike = grid * grid.roll(1, -2) + grid * grid.roll(1, -3)
    return 1.1 * alike.sum((-3, -2, -1))


target = nmln.OneHotPotential(space, potts).score(space.enumerate()[None])[0].softmax(0)
ladder = nmln.Ladder((0.6, 0.4, 0.2, 0.05, 0.0))
table = torch.stack([nmln.noised(space, target, rate) for rate in ladder]).log()
potential = nmln.TablePotential(space, table)
kernel, rng = nmln.kernel_named("gibbs", space), torch.Generator().manual_seed(0)
start = nmln.uniform(space, len(ladder), 50, rng)
recorder = nmln.Recorder({"all alike": lambda values: (values == values[..., :1]).all(-1)})
for _ in nmln.sample(potential, kernel, start, 500, rng, moves=5, burn_in=50, recorder=recorder):
    pass
found = nmln.diagnose(recorder, ladder)
exact = target[[0, len(target) // 2, len(target) - 1]].sum()
print(f"all sites equal: {found.mixing['all alike'][-1].mean:.3f}, exactly {exact:.3f}")
print(found.findings() or "no problem was found")
print("look at", *nmln.write_summary("potts.html", found, "Potts model, noised"))
