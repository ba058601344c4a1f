"""Knowledge bases of triples: embeddings and fragments, training, filtered ranking, completion.

The files in the order in which a triple passes them: `data` reads triples into a world; `parts`,
`fragments` and `potential` score it; `objectives`, `settings` and `training` fit the parameters;
`ranking` and `completion` apply them; `storing` keeps models and checkpoints on disk.
"""
