/* The scores of neighbourhoods, as local.py computes them; in double precision and world by world, so that a
   world has the same score in any batch. */

#include "neighbourhoods.h"

/* Adds the score of one part to that of every world. `scratch` has room for the kinds and counts of the nodes. */
void nmln_local(const Part *p, int64_t levels, int64_t chains, int64_t groups, const int32_t *values,
                double *scores, int64_t *scratch) {
    int64_t *kind = scratch, *counts = scratch + p->nodes;
    for (int64_t level = 0; level < levels; level++) {
        const double *nodes = p->node_table + level * p->kinds * p->around;
        const double *ties = p->tie_table + level * p->categories * p->kinds * p->kinds;
        for (int64_t chain = 0; chain < chains; chain++, values += groups, scores++) {
            double total = 0;
            count_ties(p, values, groups, kind, counts);
            for (int64_t node = 0; node < p->nodes; node++)
                total += nodes[kind[node] * p->around + around(p, counts + node * p->ties)];
            for (int64_t group = 0; group < groups; group++)
                if (p->one[group] >= 0)
                    total += ties[pair_place(p, values[group], kind[p->one[group]], kind[p->other[group]])];
            *scores += total;
        }
    }
}
