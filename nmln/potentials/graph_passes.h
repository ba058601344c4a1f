/* The passes of the network through a block of worlds, included once for every instruction set. */

#include "graph_tiles.h"

#define WEIGHT(tensor) (w->weight + w->place[2 * (tensor)])
#define BACK(tensor) (w->back + w->place[2 * (tensor) + 1])
#define GRADIENT(tensor) (w->gradient + w->place[2 * (tensor)])
#define STATE(layer) (w->state + (layer) % w->kept * w->state_rows * w->width)
#define HEARD(layer) (w->heard + (mode == SCORES ? 0 : (layer) * w->rows * w->width))
/* The updated state, before the layer's input is added to it. */
#define UPDATED(layer) \
    (n->residual && (layer) ? w->updated + (layer) % w->kept * w->rows * w->width : STATE(layer))

/* What rows of `from` become by `inputs` x `outputs` weights; all rows where none are named. */
FUNCTION void NAME(transform)(const Work *w, int64_t rows, const float *from, int64_t from_width,
                              const int32_t *from_row, int64_t inputs, const float *weight,
                              const float *start, float *to, int64_t to_width, const int32_t *to_row,
                              int64_t outputs, int relu) {
    Product p = {rows, inputs, outputs, from, weight, start,
                 from_row ? from_row : w->every, to_row ? to_row : w->every,
                 from_width, to_width, to, 0, relu};
    NAME(product)(&p);
}

/* Adds the outer products of rows to the gradient of a weight. */
FUNCTION void NAME(collect)(const Work *w, int64_t rows, const float *from, int64_t from_width,
                            const int32_t *from_row, int64_t inputs, const float *to, int64_t to_width,
                            const int32_t *to_row, int64_t outputs, float *gradient) {
    Product p = {rows, inputs, outputs, from, 0, 0,
                 from_row ? from_row : w->every, to_row ? to_row : w->every,
                 from_width, to_width, (float *)to, gradient, 0};
    NAME(outer)(&p);
}

/* The weights of a level as panels, and (for the way back) transposed. The first layer's are kept row by
   row, because its inputs are features that are there or not. */
FUNCTION void NAME(pack_level)(const Network *n, const Work *w, int mode, int64_t level) {
    int64_t hidden = n->hidden, parts = n->kinds + 1, layers = n->layers;
    for (int64_t layer = 0; layer < layers; layer++) {
        int64_t inputs = inputs_of(n, layer), down = parts * hidden;
        const float *from = n->weights[layer] + level * inputs * down;
        for (int64_t part = 0; part < parts; part++) {
            float *to = WEIGHT(layer) + part * inputs * w->width;
            if (layer)
                NAME(pack)(to, from + part * hidden, inputs, hidden, down, 1);
            else
                for (int64_t k = 0; k < inputs; k++)
                    NAME(pack)(to + k * w->width, from + part * hidden + k * down, 1, hidden, 0, 1);
            if (mode != SCORES)
                NAME(pack)(BACK(layer) + part * hidden * NAME(padded)(inputs), from + part * hidden,
                           hidden, inputs, 1, down);
        }
        from = n->weights[2 * layers + layer] + level * hidden * hidden;
        NAME(pack)(WEIGHT(2 * layers + layer), from, hidden, hidden, hidden, 1);
        if (mode != SCORES)
            NAME(pack)(BACK(2 * layers + layer), from, hidden, hidden, 1, hidden);
        for (int64_t bias = layers + layer; bias < 4 * layers; bias += 2 * layers)
            NAME(pack)(WEIGHT(bias), n->weights[bias] + level * hidden, 1, hidden, 0, 1);
    }
    for (int64_t i = 0; i < 3; i++) {
        int64_t inputs = i ? hidden : layers * hidden, outputs = i < 2 ? hidden : 1;
        const float *from = n->weights[4 * layers + i] + level * inputs * outputs;
        NAME(pack)(WEIGHT(4 * layers + i), from, inputs, outputs, outputs, 1);
        if (mode != SCORES)
            NAME(pack)(BACK(4 * layers + i), from, outputs, inputs, 1, outputs);
        from = n->weights[4 * layers + 3 + i] + level * outputs;
        NAME(pack)(WEIGHT(4 * layers + 3 + i), from, 1, outputs, 0, 1);
    }
}

/* What each node hears in the first layer: the weights' rows of the features of whom it hears. */
FUNCTION void NAME(hear_features)(const Network *n, const Work *w, int64_t rows, float *heard) {
    int64_t width = w->width;
    for (int64_t row = 0; row < rows; row++) {
        memcpy(heard + row * width, WEIGHT(n->layers), width * sizeof(float));
        for (int32_t f = w->feature_start[row]; f < w->feature_start[row + 1]; f++)
            NAME(add)(heard + row * width, WEIGHT(0) + w->feature[f] * width, width);
    }
    for (int64_t kind = 0; kind < n->kinds; kind++) {
        const float *weight = WEIGHT(0) + (kind + 1) * n->features * width;
        for (int32_t i = w->list_start[kind]; i < w->list_start[kind + 1]; i++)
            for (int32_t e = w->list_edge[i]; e < w->list_edge[i + 1]; e++) {
                int32_t source = w->edge_source[e];
                for (int32_t f = w->feature_start[source]; f < w->feature_start[source + 1]; f++)
                    NAME(add)(heard + w->list_row[i] * width, weight + w->feature[f] * width, width);
            }
    }
}

/* The same in the later layers: the sum of the states that a node hears, times the relation's weights. */
FUNCTION void NAME(hear_states)(const Network *n, const Work *w, int64_t layer, int64_t rows,
                                float *heard) {
    int64_t width = w->width, hidden = n->hidden;
    float *state = STATE(layer - 1), *weight = WEIGHT(layer);
    for (int32_t i = 0; i < w->list_start[n->kinds]; i++) {
        if (w->list_from[i] < w->rows) continue;
        float *sum = state + w->list_from[i] * width;
        memcpy(sum, state + w->edge_source[w->list_edge[i]] * width, width * sizeof(float));
        for (int32_t e = w->list_edge[i] + 1; e < w->list_edge[i + 1]; e++)
            NAME(add)(sum, state + w->edge_source[e] * width, width);
    }
    NAME(transform)(w, rows, state, width, 0, hidden, weight, WEIGHT(n->layers + layer), heard, width, 0,
                    width, 0);
    for (int64_t kind = 0; kind < n->kinds; kind++) {
        int32_t first = w->list_start[kind], count = w->list_start[kind + 1] - first;
        NAME(transform)(w, count, state, width, w->list_from + first, hidden,
                        weight + (kind + 1) * hidden * width, 0, heard, width, w->list_row + first, width,
                        0);
    }
}

FUNCTION void NAME(forward)(const Network *n, const Work *w, int mode, int64_t worlds, float *scores) {
    int64_t layers = n->layers, hidden = n->hidden, width = w->width, rows = worlds * n->nodes;
    Vector scale = (float)n->pool_scale - (Vector){0};
    for (int64_t layer = 0; layer < layers; layer++) {
        float *heard = HEARD(layer), *updated = UPDATED(layer), *state = STATE(layer);
        if (layer) NAME(hear_states)(n, w, layer, rows, heard);
        else NAME(hear_features)(n, w, rows, heard);
        for (int64_t j = 0; j < rows * width; j += LANES)
            NAME(store)(heard + j, NAME(relu)(NAME(load)(heard + j)));
        NAME(transform)(w, rows, heard, width, 0, hidden, WEIGHT(2 * layers + layer),
                        WEIGHT(3 * layers + layer), updated, width, 0, width, 1);
        if (updated != state) {
            const float *before = STATE(layer - 1);
            for (int64_t j = 0; j < rows * width; j += LANES)
                NAME(store)(state + j, NAME(load)(updated + j) + NAME(load)(before + j));
        }
        /* The padding of a pool is overwritten by the next one. */
        for (int64_t world = 0; world < worlds; world++) {
            float *pool = w->pools + world * w->pool_width + layer * hidden;
            const float *from = state + world * n->nodes * width;
            for (int64_t j = 0; j < width; j += LANES) {
                Vector sum = NAME(load)(from + j);
                for (int64_t node = 1; node < n->nodes; node++)
                    sum += NAME(load)(from + node * width + j);
                NAME(store)(pool + j, sum * scale);
            }
        }
    }
    float *one = w->read, *two = w->read + w->worlds * width;
    NAME(transform)(w, worlds, w->pools, w->pool_width, 0, layers * hidden, WEIGHT(4 * layers),
                    WEIGHT(4 * layers + 3), one, width, 0, width, 1);
    NAME(transform)(w, worlds, one, width, 0, hidden, WEIGHT(4 * layers + 1), WEIGHT(4 * layers + 4), two,
                    width, 0, width, 1);
    NAME(transform)(w, worlds, two, width, 0, hidden, WEIGHT(4 * layers + 2), WEIGHT(4 * layers + 5),
                    w->score, LANES, 0, LANES, 0);
    for (int64_t world = 0; world < worlds; world++) scores[world] = w->score[world * LANES];
}

/* From the scores back to the pools. */
FUNCTION void NAME(back_to_pools)(const Network *n, const Work *w, int mode, int64_t worlds,
                                  const float *by_score) {
    int64_t hidden = n->hidden, width = w->width, last = 4 * n->layers, pools = n->layers * hidden;
    const float *one = w->read, *two = w->read + w->worlds * width;
    float *by_one = w->by_read, *by_two = w->by_read + w->worlds * width, *by = w->score;
    memset(by, 0, worlds * LANES * sizeof(float));
    for (int64_t world = 0; world < worlds; world++) by[world * LANES] = by_score ? by_score[world] : 1;
    memset(by_one, 0, 2 * w->worlds * width * sizeof(float));
    memset(w->by_pool, 0, worlds * w->pool_width * sizeof(float));
    NAME(transform)(w, worlds, by, LANES, 0, 1, BACK(last + 2), 0, by_two, width, 0, width, 0);
    NAME(relu_backward)(by_two, by_two, two, worlds * width);
    NAME(transform)(w, worlds, by_two, width, 0, hidden, BACK(last + 1), 0, by_one, width, 0, width, 0);
    NAME(relu_backward)(by_one, by_one, one, worlds * width);
    NAME(transform)(w, worlds, by_one, width, 0, hidden, BACK(last), 0, w->by_pool, w->pool_width, 0,
                    NAME(padded)(pools), 0);
    Vector scale = (float)n->pool_scale - (Vector){0};
    for (int64_t j = 0; j < worlds * w->pool_width; j += LANES)
        NAME(store)(w->by_pool + j, NAME(load)(w->by_pool + j) * scale);
    if (mode != GRADIENTS) return;
    NAME(collect)(w, worlds, w->pools, w->pool_width, 0, pools, by_one, width, 0, width, GRADIENT(last));
    NAME(collect)(w, worlds, one, width, 0, hidden, by_two, width, 0, width, GRADIENT(last + 1));
    NAME(collect)(w, worlds, two, width, 0, hidden, by, LANES, 0, LANES, GRADIENT(last + 2));
    NAME(sum_rows)(GRADIENT(last + 3), by_one, worlds, width);
    NAME(sum_rows)(GRADIENT(last + 4), by_two, worlds, width);
    NAME(sum_rows)(GRADIENT(last + 5), by, worlds, LANES);
}

/* The gradient of a layer's weights, from those by what is updated and by what is heard. */
FUNCTION void NAME(gather_gradient)(const Network *n, const Work *w, int64_t layer, int64_t rows,
                                    const float *heard, const float *through, const float *by_heard) {
    int64_t layers = n->layers, hidden = n->hidden, width = w->width;
    NAME(collect)(w, rows, heard, width, 0, hidden, through, width, 0, width,
                  GRADIENT(2 * layers + layer));
    NAME(sum_rows)(GRADIENT(3 * layers + layer), through, rows, width);
    NAME(sum_rows)(GRADIENT(layers + layer), by_heard, rows, width);
    if (layer) {
        const float *state = STATE(layer - 1);
        NAME(collect)(w, rows, state, width, 0, hidden, by_heard, width, 0, width, GRADIENT(layer));
        for (int64_t kind = 0; kind < n->kinds; kind++) {
            int32_t first = w->list_start[kind], count = w->list_start[kind + 1] - first;
            NAME(collect)(w, count, state, width, w->list_from + first, hidden, by_heard, width,
                          w->list_row + first, width, GRADIENT(layer) + (kind + 1) * hidden * width);
        }
        return;
    }
    for (int64_t row = 0; row < rows; row++)
        for (int32_t f = w->feature_start[row]; f < w->feature_start[row + 1]; f++)
            NAME(add)(GRADIENT(0) + w->feature[f] * width, by_heard + row * width, width);
    for (int64_t kind = 0; kind < n->kinds; kind++) {
        float *gradient = GRADIENT(0) + (kind + 1) * n->features * width;
        for (int32_t i = w->list_start[kind]; i < w->list_start[kind + 1]; i++)
            for (int32_t e = w->list_edge[i]; e < w->list_edge[i + 1]; e++) {
                int32_t source = w->edge_source[e];
                for (int32_t f = w->feature_start[source]; f < w->feature_start[source + 1]; f++)
                    NAME(add)(gradient + w->feature[f] * width, by_heard + w->list_row[i] * width, width);
            }
    }
}

/* How the score changes with what every node hears from every other along a relation. */
FUNCTION void NAME(add_pairs)(const Network *n, const Work *w, int64_t kind, int64_t layer, int64_t worlds) {
    int64_t nodes = n->nodes, wide = w->node_width;
    int64_t inputs = inputs_of(n, layer), row_width = NAME(padded)(inputs);
    for (int64_t world = 0; world < worlds; world++) {
        int64_t first = world * nodes;
        memset(w->turned, 0, inputs * wide * sizeof(float));
        for (int64_t node = 0; node < nodes; node++) {
            int64_t column = node / PANEL * PANEL;
            int64_t panel = wide - column < PANEL ? wide - column : PANEL;
            float *to = w->turned + column * inputs + node - column;
            int64_t row = first + node;
            if (layer) {
                const float *from = STATE(layer - 1) + row * w->width;
                for (int64_t k = 0; k < inputs; k++) to[k * panel] = from[k];
            } else {
                for (int32_t f = w->feature_start[row]; f < w->feature_start[row + 1]; f++)
                    to[w->feature[f] * panel] = 1;
            }
        }
        NAME(transform)(w, nodes, w->by_rows + first * row_width, row_width, 0, inputs, w->turned, 0,
                        w->by_pair + (kind * w->rows + first) * wide, wide, 0, wide, 0);
    }
}

/* From the pools back through the layers, collecting what is asked for. */
FUNCTION void NAME(backward)(const Network *n, const Work *w, int mode, int64_t worlds, float *by_feature,
                             float *by_adjacency) {
    int64_t layers = n->layers, hidden = n->hidden, width = w->width, nodes = n->nodes;
    int64_t rows = worlds * nodes, wide = width > w->feature_width ? width : w->feature_width;
    float *by_state = w->by_state, *next = w->by_state + w->rows * wide;
    float *through = w->by_heard, *by_heard = w->by_heard + w->rows * width;
    memset(by_state, 0, rows * width * sizeof(float));
    if (mode == SLOPES) memset(w->by_pair, 0, w->rows * n->kinds * w->node_width * sizeof(float));
    for (int64_t layer = layers; layer-- > 0;) {
        float *heard = HEARD(layer);
        for (int64_t row = 0; row < rows; row++)
            NAME(add)(by_state + row * width,
                      w->by_pool + row / nodes * w->pool_width + layer * hidden, width);
        NAME(relu_backward)(through, by_state, UPDATED(layer), rows * width);
        memset(by_heard, 0, rows * width * sizeof(float));
        NAME(transform)(w, rows, through, width, 0, hidden, BACK(2 * layers + layer), 0, by_heard, width, 0,
                        width, 0);
        NAME(relu_backward)(by_heard, by_heard, heard, rows * width);
        if (mode == GRADIENTS) {
            NAME(gather_gradient)(n, w, layer, rows, heard, through, by_heard);
            if (!layer) return;
        }
        int64_t row_width = NAME(padded)(inputs_of(n, layer)), part = hidden * row_width;
        if (n->residual && layer) memcpy(next, by_state, rows * width * sizeof(float));
        else memset(next, 0, rows * row_width * sizeof(float));
        NAME(transform)(w, rows, by_heard, width, 0, hidden, BACK(layer), 0, next, row_width, 0, row_width,
                        0);
        for (int64_t kind = 0; kind < n->kinds; kind++) {
            int32_t first = w->list_start[kind], count = w->list_start[kind + 1] - first;
            int all = mode == SLOPES;
            int64_t needed = all ? rows : count;
            if (!needed) continue;
            memset(w->by_rows, 0, needed * row_width * sizeof(float));
            NAME(transform)(w, needed, by_heard, width, all ? 0 : w->list_row + first, hidden,
                            BACK(layer) + (kind + 1) * part, 0, w->by_rows, row_width, 0, row_width, 0);
            if (all) NAME(add_pairs)(n, w, kind, layer, worlds);
            for (int32_t i = first; i < first + count; i++) {
                const float *from = w->by_rows + (all ? w->list_row[i] : i - first) * row_width;
                for (int32_t e = w->list_edge[i]; e < w->list_edge[i + 1]; e++)
                    NAME(add)(next + w->edge_source[e] * row_width, from, row_width);
            }
        }
        float *spare = by_state;
        by_state = next;
        next = spare;
    }
    for (int64_t row = 0; row < rows; row++)
        memcpy(by_feature + row * n->features, by_state + row * w->feature_width,
               n->features * sizeof(float));
    for (int64_t world = 0; world < worlds; world++)
        for (int64_t source = 0; source < nodes; source++)
            for (int64_t kind = 0; kind < n->kinds; kind++)
                for (int64_t node = 0; node < nodes; node++)
                    *by_adjacency++ =
                        w->by_pair[(kind * w->rows + world * nodes + node) * w->node_width + source];
}

/* The gradients of a level, from panels to tensors. */
FUNCTION void NAME(unpack_level)(const Network *n, const Work *w, int64_t level, float *const *out) {
    int64_t hidden = n->hidden, parts = n->kinds + 1, layers = n->layers;
    for (int64_t layer = 0; layer < layers; layer++) {
        int64_t inputs = inputs_of(n, layer), down = parts * hidden;
        float *to = out[layer] + level * inputs * down;
        for (int64_t part = 0; part < parts; part++) {
            const float *from = GRADIENT(layer) + part * inputs * w->width;
            if (layer)
                NAME(unpack)(to + part * hidden, from, inputs, hidden, down);
            else
                for (int64_t k = 0; k < inputs; k++)
                    NAME(unpack)(to + part * hidden + k * down, from + k * w->width, 1, hidden, 0);
        }
        NAME(unpack)(out[2 * layers + layer] + level * hidden * hidden, GRADIENT(2 * layers + layer), hidden,
                     hidden, hidden);
        for (int64_t bias = layers + layer; bias < 4 * layers; bias += 2 * layers)
            NAME(unpack)(out[bias] + level * hidden, GRADIENT(bias), 1, hidden, 0);
    }
    for (int64_t i = 0; i < 3; i++) {
        int64_t inputs = i ? hidden : layers * hidden, outputs = i < 2 ? hidden : 1;
        NAME(unpack)(out[4 * layers + i] + level * inputs * outputs, GRADIENT(4 * layers + i), inputs,
                     outputs, outputs);
        NAME(unpack)(out[4 * layers + 3 + i] + level * outputs, GRADIENT(4 * layers + 3 + i), 1, outputs, 0);
    }
}

FUNCTION void NAME(run)(const Network *n, const Work *w, int mode, const int32_t *values,
                        const float *by_score, float *scores, float *const *out) {
    for (int64_t row = 0; row < w->rows; row++) w->every[row] = row;
    for (int64_t level = 0; level < n->levels; level++) {
        NAME(pack_level)(n, w, mode, level);
        if (mode == GRADIENTS) memset(w->gradient, 0, w->weights * sizeof(float));
        for (int64_t chain = 0; chain < n->chains; chain += w->worlds) {
            int64_t left = n->chains - chain, worlds = left < w->worlds ? left : w->worlds;
            int64_t first = level * n->chains + chain;
            wire(n, w, values + first * n->groups, worlds);
            NAME(forward)(n, w, mode, worlds, scores + first);
            if (mode == SCORES) continue;
            NAME(back_to_pools)(n, w, mode, worlds, by_score ? by_score + first : 0);
            NAME(backward)(n, w, mode, worlds, mode == SLOPES ? out[0] + first * n->nodes * n->features : 0,
                           mode == SLOPES ? out[1] + first * n->nodes * n->nodes * n->kinds : 0);
        }
        if (mode == GRADIENTS) NAME(unpack_level)(n, w, level, out);
    }
}

#undef WEIGHT
#undef BACK
#undef GRADIENT
#undef STATE
#undef HEARD
#undef UPDATED
#undef NAME
#undef TARGET
#undef LANES
#undef VECTORS
#undef ROWS
#undef MORE
#undef Vector
#undef Mask
#undef PANEL
#undef INLINE
#undef FUNCTION
#undef CASE
#undef OUTER_CASE
#undef TILES
#undef PANELS
