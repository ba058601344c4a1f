"""Knowledge bases of triples: potentials with embeddings, training, filtered ranking, completion."""
