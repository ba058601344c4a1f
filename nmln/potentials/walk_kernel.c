/* Walks by a stand-in: what walk.py does with torch, on one processor core and with the same random numbers.

   All scores are in double precision. Each world is moved by itself, so that it takes the same path in any
   batch. */

#include <math.h>

#include "neighbourhoods.h"

/* Filled in by walk.py. A kind is a category of an attribute, counted over all attributes. */
typedef struct {
    int64_t levels, chains, groups, entries, attributes, kinds, parts;
    double rest;                                    /* the probability of staying, whatever is proposed */
    const int64_t *offsets;                         /* for each group: its first entry */
    const int64_t *attribute_first, *attribute_end; /* for each attribute: its groups in `free` */
    const int64_t *attribute_kind, *attribute_size; /* its first kind, and the number of its categories */
    const int64_t *free;                            /* the free groups, attribute by attribute */
    const int64_t *allowed_start, *allowed;         /* for each group: the allowed categories */
    const double *entry_table;
    const Part *part;
} Walk;

/* One of `count`, by a uniform number. */
static int64_t choose(double uniform, int64_t count) {
    int64_t found = (int64_t)(uniform * (double)count);
    return found < count ? found : count - 1;
}

/* How much the number of a node grows when one of its ties takes another category; updates `counts`. */
static double turned(const Part *p, const double *table, int64_t kind, int64_t *counts, int64_t old, int64_t new) {
    double before = table[kind * p->around + around(p, counts)];
    if (old >= 0) counts[old]--;
    if (new >= 0) counts[new]++;
    return table[kind * p->around + around(p, counts)] - before;
}

/* How much the score of a part grows when one group takes a category; updates `kind` and `counts`. */
static double change(const Part *p, int64_t level, const int32_t *world, int64_t group, int64_t new, int64_t *kind,
                     int64_t *counts) {
    const double *nodes = p->node_table + level * p->kinds * p->around;
    const double *ties = p->tie_table + level * p->categories * p->kinds * p->kinds;
    int64_t old = world[group];
    if (p->one[group] >= 0) {
        int64_t one = p->one[group], other = p->other[group];
        double found = ties[pair_place(p, new, kind[one], kind[other])] -
                       ties[pair_place(p, old, kind[one], kind[other])];
        found += turned(p, nodes, kind[one], counts + one * p->ties, p->tie[old], p->tie[new]);
        return found + turned(p, nodes, kind[other], counts + other * p->ties, p->tie[old], p->tie[new]);
    }
    if (p->node[group] < 0) return 0;
    int64_t node = p->node[group], was = kind[node], is = was + p->step[group] * (new - old);
    int64_t place = around(p, counts + node * p->ties);
    double found = nodes[is * p->around + place] - nodes[was * p->around + place];
    const int64_t *pairs = p->pair + node * p->nodes;
    for (int64_t far = 0; far < p->nodes; far++) {
        if (pairs[far] < 0) continue;
        int64_t category = world[pairs[far]];
        found += ties[pair_place(p, category, is, kind[far])] - ties[pair_place(p, category, was, kind[far])];
    }
    kind[node] = is;
    return found;
}

/* Undoes the updates of `change`. */
static void restore(const Part *p, int64_t group, int64_t old, int64_t new, int64_t *kind, int64_t *counts) {
    if (p->one[group] >= 0) {
        int64_t ends[2] = {p->one[group], p->other[group]};
        for (int end = 0; end < 2; end++) {
            if (p->tie[old] >= 0) counts[ends[end] * p->ties + p->tie[old]]++;
            if (p->tie[new] >= 0) counts[ends[end] * p->ties + p->tie[new]]--;
        }
    } else if (p->node[group] >= 0) {
        kind[p->node[group]] -= p->step[group] * (new - old);
    }
}

/* Moves each world `moves[level]` times in place, and writes how much its score by the stand-in has grown.
   `uniforms` has five numbers for each move, world by world. `scratch` has room for the number of groups of each
   kind, then for the kinds and counts of the nodes of each part. */
void nmln_walk(const Walk *w, const int64_t *moves, int32_t *values, const double *uniforms, double *gained,
               int64_t *scratch) {
    for (int64_t level = 0; level < w->levels; level++) {
        const double *numbers = w->entry_table + level * w->entries;
        for (int64_t chain = 0; chain < w->chains; chain++) {
            int32_t *world = values + (level * w->chains + chain) * w->groups;
            int64_t *count = scratch, *room = scratch + w->kinds;
            double total = 0;
            for (int64_t kind = 0; kind < w->kinds; kind++) count[kind] = 0;
            for (int64_t a = 0; a < w->attributes; a++)
                for (int64_t i = w->attribute_first[a]; i < w->attribute_end[a]; i++)
                    count[w->attribute_kind[a] + world[w->free[i]]]++;
            for (int64_t p = 0; p < w->parts; p++) {
                const Part *part = w->part + p;
                count_ties(part, world, w->groups, room, room + part->nodes);
                room += part->nodes * (1 + part->ties);
            }
            for (int64_t move = 0; move < moves[level]; move++, uniforms += 5) {
                int64_t a = choose(uniforms[0], w->attributes), present = 0;
                int64_t *own = count + w->attribute_kind[a], size = w->attribute_size[a];
                for (int64_t kind = 0; kind < size; kind++) present += own[kind] > 0;
                int64_t left = choose(uniforms[1], present), old = 0;
                while (!own[old] || left--) old++;
                left = choose(uniforms[2], own[old]);
                int64_t place = w->attribute_first[a];
                while (world[w->free[place]] != old || left--) place++;
                int64_t group = w->free[place];
                const int64_t *options = w->allowed + w->allowed_start[group];
                int64_t others = w->allowed_start[group + 1] - w->allowed_start[group] - 1, at = 0;
                while (at < others && options[at] != old) at++;
                int64_t new = options[(at + 1 + choose(uniforms[3], others)) % (others + 1)];

                int64_t back = present - (own[old] == 1) + (own[new] == 0);
                double factor = log((double)(present * own[old])) - log((double)(back * (own[new] + 1)));
                int64_t entry = w->offsets[group];
                double gain = numbers[entry + new] - numbers[entry + old];
                room = scratch + w->kinds;
                for (int64_t p = 0; p < w->parts; p++) {
                    const Part *part = w->part + p;
                    gain += change(part, level, world, group, new, room, room + part->nodes);
                    room += part->nodes * (1 + part->ties);
                }
                double ratio = gain + factor;
                double chance = (1 - w->rest) * (ratio >= 0 ? 1 : exp(ratio)); /* NaN is never taken */
                if (uniforms[4] < chance) {
                    world[group] = (int32_t)new;
                    own[old]--;
                    own[new]++;
                    total += gain;
                    continue;
                }
                room = scratch + w->kinds;
                for (int64_t p = 0; p < w->parts; p++) {
                    const Part *part = w->part + p;
                    restore(part, group, old, new, room, room + part->nodes);
                    room += part->nodes * (1 + part->ties);
                }
            }
            gained[level * w->chains + chain] = total;
        }
    }
}
