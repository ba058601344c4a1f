/* The neighbourhoods of one symmetric attribute, as local.py has them, for local_kernel.c and walk_kernel.c. */

#ifndef NMLN_NEIGHBOURHOODS
#define NMLN_NEIGHBOURHOODS

#include <stdint.h>

/* Filled in by compiled_local.py; the two tables have a row for each level. */
typedef struct {
    int64_t nodes, kinds, around, cap, ties, categories;
    const int64_t *one, *other; /* for each group: the two ends of the pair, -1 if it is not a pair here */
    const int64_t *node, *step; /* for each group: the node whose kind it is part of, -1 if there is none; by
                                   how much the kind grows with its category */
    const int64_t *pair;        /* for each two nodes: the group of their pair, -1 on the diagonal */
    const int64_t *tie;         /* for each category: its place among the ties, -1 for the null one */
    const double *node_table, *tie_table;
} Part;

/* The place of a node's neighbourhood in its table. */
static inline int64_t around(const Part *p, const int64_t *counts) {
    int64_t found = 0;
    for (int64_t tie = 0; tie < p->ties; tie++)
        found = found * (p->cap + 1) + (counts[tie] < p->cap ? counts[tie] : p->cap);
    return found;
}

/* The place of a pair in the table of ties; its two ends are alike. */
static inline int64_t pair_place(const Part *p, int64_t category, int64_t one, int64_t other) {
    int64_t low = one < other ? one : other, high = one < other ? other : one;
    return (category * p->kinds + low) * p->kinds + high;
}

/* The kind of every node, and how many ties of each category it has. */
static inline void count_ties(const Part *p, const int32_t *world, int64_t groups, int64_t *kind, int64_t *counts) {
    for (int64_t node = 0; node < p->nodes; node++) kind[node] = 0;
    for (int64_t place = 0; place < p->nodes * p->ties; place++) counts[place] = 0;
    for (int64_t group = 0; group < groups; group++) {
        if (p->node[group] >= 0) kind[p->node[group]] += p->step[group] * world[group];
        if (p->one[group] < 0) continue;
        int64_t tie = p->tie[world[group]];
        if (tie < 0) continue;
        counts[p->one[group] * p->ties + tie]++;
        counts[p->other[group] * p->ties + tie]++;
    }
}

#endif
