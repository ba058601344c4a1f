"""An energy of your own: a Potts model on a 4 x 4 torus, sampled by parallel tempering."""

import torch

import nmln

torch.set_num_threads(1)  # tensors are small: a second thread would only slow them down
space = nmln.Space(nmln.Language(nmln.Attribute("spin", ("site",), ("a", "b", "c"))), {"site": 16})


def potts(onehot):
    grid = onehot.unflatten(-1, (4, 4, 3))
    alike = grid * grid.roll(1, -2) + grid * grid.roll(1, -3)
    return 1.1 * alike.sum((-3, -2, -1))


ladder = nmln.Temperatures.geometric(hottest=2.0, levels=4)
potential = nmln.TemperedPotential(nmln.OneHotPotential(space, potts), ladder)
kernel, rng = nmln.kernel_named("langevin", space), torch.Generator().manual_seed(0)
start = nmln.uniform(space, len(ladder), 20, rng)  # 20 replicas
recorder = nmln.Recorder({"share of a": lambda values: (values == 0).double().mean(-1)})
run = nmln.sample(potential, kernel, start, 600, rng, moves=5, burn_in=100, recorder=recorder)
*_, last = run
found = nmln.diagnose(recorder, ladder)
print(*("".join("abc"[spin] for spin in row) for row in last.state.values[-1, 0].view(4, 4)))
print(found.findings() or "no problem was found")
print("look at", *nmln.write_summary("potts.html", found, "Potts model, tempered"))
