/* The network of graph.py on one processor core: scores, slopes, and gradients by the parameters.

   Compiled by compile_kernel.py when the package is installed, and called by compiled.py; without it
   everything works with torch. Worlds are taken a block at a time, so that all activations of a block fit
   the cache, and everything a block needs lies in one piece of memory that the caller lends. */

#include <stdint.h>
#include <string.h>

#ifndef NMLN_SOURCE
#define NMLN_SOURCE 0
#endif

/* Rows of a block: as many as amortise reading the weights, and fit the cache with their activations. */
#ifndef BLOCK
#define BLOCK 160
#endif

enum { SCORES, GRADIENTS, SLOPES };

/* Filled in by compiled.py; the tables are those of wiring.py. */
typedef struct {
    int64_t levels, nodes, groups, kinds, features, layers, hidden, residual;
    int64_t entries, chains, heard_most; /* the most (node, relation) pairs of a world that are heard */
    double pool_scale;
    const int64_t *offsets;                                 /* of groups among the entries */
    const uint8_t *codes;                                   /* of entries */
    const int64_t *cell_start, *cell_group, *cell_heard;    /* of nodes (and the end); of cells */
    const int64_t *slot_start, *slot_group, *slot_column;   /* the same for node features */
    const float *const *weights; /* hear, hear_bias, update, update_bias; readout and its bias: 3 each */
} Network;

/* A product of rows with packed weights, or its gradient. */
typedef struct {
    int64_t rows, inputs, outputs;
    const float *from, *weight, *start;
    const int32_t *from_row, *to_row;
    int64_t from_width, to_width;
    float *to, *gradient;
    int relu;
} Product;

/* Where everything of a block lies. Rows of activations are `width` apart, those of pools `pool_width`. */
typedef struct {
    int64_t worlds, rows, width, pool_width, feature_width, node_width, state_rows, kept;
    int32_t *every, *list_start, *list_row, *list_from, *list_edge, *edge_source;
    int32_t *key_count, *edge_key, *edge_from, *feature_start, *feature;
    uint8_t *code;
    int64_t *place; /* of each tensor in `weight` and `gradient`, and of the transposed ones in `back` */
    float *weight, *back, *gradient;
    int64_t weights;
    float *state, *heard, *updated, *pools, *read, *score;
    float *by_pool, *by_read, *by_state, *by_heard, *by_rows, *turned, *by_pair;
} Work;

typedef struct {
    char *start;
    size_t used;
} Room;

static void *take(Room *room, int64_t count, size_t size) {
    void *found = room->start ? room->start + room->used : 0;
    room->used += (count * size + 127) / 64 * 64; /* a vector more, so that reading one over is allowed */
    return found;
}

static int64_t whole(int64_t count, int64_t lanes) { return (count + lanes - 1) / lanes * lanes; }

static int64_t inputs_of(const Network *n, int64_t layer) {
    return layer ? n->hidden : n->features;
}

/* Lays out the room; with a room that starts nowhere, only measures it. */
static Work lay_out(const Network *n, Room *room, int mode, int64_t lanes) {
    Work w = {0};
    int64_t layers = n->layers, hidden = n->hidden, kinds = n->kinds, nodes = n->nodes;
    w.worlds = BLOCK / nodes > 1 ? BLOCK / nodes : 1;
    if (w.worlds > n->chains) w.worlds = n->chains;
    int64_t rows = w.rows = w.worlds * nodes, width = w.width = whole(hidden, lanes);
    int64_t most = w.worlds * n->heard_most, edges = w.worlds * n->cell_start[nodes];
    w.pool_width = whole(layers * hidden, lanes) + width;
    w.feature_width = whole(n->features, lanes);
    w.node_width = whole(nodes, lanes);
    w.state_rows = rows + most;
    w.kept = mode == SCORES ? 2 : layers;

    w.every = take(room, rows, 4);
    w.list_start = take(room, kinds + 1, 4);
    w.list_row = take(room, most, 4);
    w.list_from = take(room, most, 4);
    w.list_edge = take(room, most + 1, 4);
    w.edge_source = take(room, edges, 4);
    w.edge_key = take(room, edges, 4);
    w.edge_from = take(room, edges, 4);
    w.key_count = take(room, rows * kinds, 4);
    w.feature_start = take(room, rows + 1, 4);
    w.feature = take(room, w.worlds * n->slot_start[nodes], 4);
    w.code = take(room, n->groups, 1);

    w.place = take(room, 8 * layers + 12, 8);
    int64_t place = 0, back = 0, at = 0, wide = width > w.feature_width ? width : w.feature_width;
    int64_t places[6] = {(kinds + 1) * hidden * width, width, hidden * width, width, 0, 0};
    int64_t backs[6] = {(kinds + 1) * hidden * wide, 0, hidden * width, 0, 0, 0};
    int64_t ends[6] = {layers, layers, layers, layers, 3, 3};
    int64_t first = (kinds + 1) * n->features * width;
    if (first < places[0]) first = places[0];
    int64_t pool = hidden * (layers * width + lanes);
    for (int kind = 0; kind < 6; kind++)
        for (int64_t i = 0; i < ends[kind]; i++, at++) {
            if (room->start) w.place[2 * at] = place, w.place[2 * at + 1] = back;
            if (kind == 4) place += i ? hidden * width : layers * hidden * width, back += pool;
            else if (kind == 5) place += width;
            else place += kind || i ? places[kind] : first, back += backs[kind];
        }
    w.weights = place;
    w.weight = take(room, place, 4);
    w.back = take(room, mode == SCORES ? 0 : back, 4);
    w.gradient = take(room, mode == GRADIENTS ? place : 0, 4);

    w.state = take(room, w.kept * w.state_rows * width, 4);
    w.heard = take(room, (mode == SCORES ? 1 : layers) * rows * width, 4);
    w.updated = n->residual ? take(room, w.kept * rows * width, 4) : 0;
    w.pools = take(room, w.worlds * w.pool_width, 4);
    w.read = take(room, 2 * w.worlds * width, 4);
    w.score = take(room, w.worlds * lanes, 4);
    if (mode != SCORES) {
        w.by_pool = take(room, w.worlds * w.pool_width, 4);
        w.by_read = take(room, 2 * w.worlds * width, 4);
        w.by_state = take(room, 2 * rows * wide, 4);
        w.by_heard = take(room, 2 * rows * width, 4);
        w.by_rows = take(room, rows * wide, 4);
    }
    if (mode == SLOPES) {
        w.turned = take(room, wide * w.node_width, 4);
        w.by_pair = take(room, rows * kinds * w.node_width, 4);
    }
    return w;
}

/* The edges of a block, as lists: entry by entry (a relation and a node that hears along it) the nodes that
   are heard, in the order of the cells. A single node is read where it is, more are summed up first. */
static int64_t wire(const Network *n, const Work *w, const int32_t *values, int64_t worlds) {
    int64_t rows = worlds * n->nodes, edges = 0, features = 0, entries = 0, edge = 0;
    memset(w->key_count, 0, rows * n->kinds * sizeof(int32_t));
    for (int64_t world = 0; world < worlds; world++, values += n->groups) {
        for (int64_t group = 0; group < n->groups; group++)
            w->code[group] = n->codes[n->offsets[group] + values[group]];
        for (int64_t node = 0; node < n->nodes; node++) {
            int64_t row = world * n->nodes + node;
            w->feature_start[row] = features;
            for (int64_t slot = n->slot_start[node]; slot < n->slot_start[node + 1]; slot++) {
                int64_t group = n->slot_group[slot];
                w->feature[features++] = n->slot_column[slot] + (group < 0 ? 0 : values[group]);
            }
            for (int64_t cell = n->cell_start[node]; cell < n->cell_start[node + 1]; cell++) {
                /* Without a branch, which could not be predicted: an empty cell is overwritten. */
                int code = w->code[n->cell_group[cell]];
                int64_t heard = n->cell_heard[cell];
                w->edge_key[edges] = ((int32_t)(heard & 0x7fffffff) + code - 1) * rows + row;
                w->edge_from[edges] = world * n->nodes + (heard >> 32);
                edges += code != 0;
            }
        }
    }
    w->feature_start[rows] = features;
    for (int64_t i = 0; i < edges; i++) w->key_count[w->edge_key[i]]++;
    for (int64_t relation = 0; relation < n->kinds; relation++) {
        w->list_start[relation] = entries;
        for (int64_t row = 0; row < rows; row++) {
            int32_t *count = w->key_count + relation * rows + row, found = *count;
            if (!found) continue;
            w->list_row[entries] = row;
            w->list_edge[entries++] = edge;
            *count = edge;
            edge += found;
        }
    }
    w->list_start[n->kinds] = entries;
    w->list_edge[entries] = edges;
    for (int64_t i = 0; i < edges; i++) w->edge_source[w->key_count[w->edge_key[i]]++] = w->edge_from[i];
    for (int64_t i = 0; i < entries; i++) {
        int single = w->list_edge[i + 1] - w->list_edge[i] == 1;
        w->list_from[i] = single ? w->edge_source[w->list_edge[i]] : w->rows + i;
    }
    return entries;
}

#define JOINED(a, b) a##b
#define JOIN(a, b) JOINED(a, b)

#if defined(__x86_64__)
#define NAME(x) JOIN(x, _avx512)
#define TARGET __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")))
#define LANES 16
#define VECTORS 4
#define ROWS 6
#define MORE 8
#include "graph_passes.h"

#define NAME(x) JOIN(x, _avx2)
#define TARGET __attribute__((target("avx2,fma")))
#define LANES 8
#define VECTORS 2
#define ROWS 6
#define MORE 8
#include "graph_passes.h"

#define NAME(x) JOIN(x, _plain)
#define TARGET
#define LANES 4
#define VECTORS 2
#define ROWS 4
#define MORE 8
#include "graph_passes.h"
#else
#define NAME(x) JOIN(x, _plain)
#define TARGET
#define LANES 4
#define VECTORS 4
#define ROWS 6
#define MORE 8
#include "graph_passes.h"
#endif

/* The best instruction set of this processor: 0 the plain one, 1 AVX2, 2 AVX-512. */
int nmln_instructions(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    int wide = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    int wider = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    return wide + (wide && wider);
#else
    return 0;
#endif
}

unsigned nmln_source(void) { return NMLN_SOURCE; }

/* How many bytes of room a call needs. */
int64_t nmln_room(const Network *n, int mode, int instructions) {
    Room room = {0, 0};
    lay_out(n, &room, mode, instructions == 2 ? 16 : instructions == 1 ? 8 : 4);
    return room.used + 64;
}

/* Scores; with gradients also the gradient by all weights of sum(by_score * score), written to `out`; with
   slopes the gradients by node features and by the adjacency, laid out as (source, relation, target). */
void nmln_run(const Network *n, int mode, int instructions, void *memory, const int32_t *values,
              const float *by_score, float *scores, float *const *out) {
    Room room = {(char *)(((uintptr_t)memory + 63) / 64 * 64), 0};
#if defined(__x86_64__)
    if (instructions == 2) {
        Work w = lay_out(n, &room, mode, 16);
        run_avx512(n, &w, mode, values, by_score, scores, out);
        return;
    }
    if (instructions == 1) {
        Work w = lay_out(n, &room, mode, 8);
        run_avx2(n, &w, mode, values, by_score, scores, out);
        return;
    }
#endif
    Work w = lay_out(n, &room, mode, 4);
    run_plain(n, &w, mode, values, by_score, scores, out);
}
