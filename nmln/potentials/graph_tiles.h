/* The body of the kernel, included once for every instruction set.

   NAME(x) names a function of this set, TARGET is the attribute that selects it, LANES the floats of one
   vector, VECTORS the vectors of a tile, ROWS its rows where it has all vectors, MORE where it has fewer.

   Rows of activations are `width` floats apart: `hidden`, padded with zeros to whole vectors. Weights are
   packed in panels of VECTORS vectors, so that a tile reads them one after the other. Every row is summed
   up in the order of its inputs, whatever the tile: so a world has the same score in any batch. */

typedef float NAME(Vector) __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t NAME(Mask) __attribute__((vector_size(4 * LANES), aligned(4)));
#define Vector NAME(Vector)
#define Mask NAME(Mask)
#define PANEL (VECTORS * LANES)
#define INLINE TARGET static inline __attribute__((always_inline))
#define FUNCTION TARGET static __attribute__((noinline))

INLINE int64_t NAME(padded)(int64_t count) { return (count + LANES - 1) / LANES * LANES; }
INLINE Vector NAME(load)(const float *from) { return *(const Vector *)from; }
INLINE void NAME(store)(float *to, Vector value) { *(Vector *)to = value; }

/* NaN stays NaN, so that broken weights are noticed. */
INLINE Vector NAME(relu)(Vector value) {
    Mask negative = value < (Vector){0};
    return (Vector)((Mask)value & ~negative);
}

/* Some rows of `to` (from `start` if given) plus some rows of `from` times a panel of weights. */
INLINE void NAME(tile)(const int rows, const int vectors, const Product *p, const int32_t *from_row,
                       const int32_t *to_row, const float *weight, int64_t column) {
    Vector total[8][VECTORS];
    const float *from[8];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
        from[i] = p->from + from_row[i] * p->from_width;
        const float *first = p->start ? p->start : p->to + to_row[i] * p->to_width;
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++)
            total[i][j] = NAME(load)(first + column + j * LANES);
    }
    for (int64_t k = 0; k < p->inputs; k++) {
        Vector w[VECTORS];
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++)
            w[j] = NAME(load)(weight + j * LANES);
        weight += vectors * LANES;
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            Vector x = from[i][k] - (Vector){0};
#pragma GCC unroll 8
            for (int j = 0; j < vectors; j++)
                total[i][j] += x * w[j];
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++)
            NAME(store)(p->to + to_row[i] * p->to_width + column + j * LANES,
                        p->relu ? NAME(relu)(total[i][j]) : total[i][j]);
}

/* Some rows of the panel of a weight's gradient: the sum over pairs of rows of their outer products. */
INLINE void NAME(outer_tile)(const int inputs, const int vectors, const Product *p,
                             const int32_t *from_row, const int32_t *to_row, float *gradient,
                             int64_t input, int64_t column) {
    Vector total[8][VECTORS];
    gradient += input * vectors * LANES;
#pragma GCC unroll 8
    for (int i = 0; i < inputs; i++)
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++)
            total[i][j] = NAME(load)(gradient + (i * vectors + j) * LANES);
    for (int64_t row = 0; row < p->rows; row++) {
        const float *from = p->from + from_row[row] * p->from_width + input;
        const float *to = p->to + to_row[row] * p->to_width + column;
        Vector g[VECTORS];
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++)
            g[j] = NAME(load)(to + j * LANES);
#pragma GCC unroll 8
        for (int i = 0; i < inputs; i++) {
            Vector x = from[i] - (Vector){0};
#pragma GCC unroll 8
            for (int j = 0; j < vectors; j++)
                total[i][j] += x * g[j];
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < inputs; i++)
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++)
            NAME(store)(gradient + (i * vectors + j) * LANES, total[i][j]);
}

#define CASE(rows, vectors) \
    case rows: \
        NAME(tile)(rows, vectors, p, from_row + i, to_row + i, weight, column); \
        break;
#define OUTER_CASE(inputs, vectors) \
    case inputs: \
        NAME(outer_tile)(inputs, vectors, p, from_row, to_row, gradient, i, column); \
        break;
#define TILES(CASE, vectors, most, count) \
    for (int64_t i = 0; i < count; i += most) \
        switch (count - i < most ? count - i : most) { \
            CASE(1, vectors) CASE(2, vectors) CASE(3, vectors) CASE(4, vectors) \
            CASE(5, vectors) CASE(6, vectors) CASE(7, vectors) CASE(8, vectors) \
        }

/* Cases above `most` never occur. Few vectors leave registers for more rows. */
#if VECTORS == 4
#define PANELS(CASE, count) \
    switch (vectors) { \
        case 1: TILES(CASE, 1, MORE, count) break; \
        case 2: TILES(CASE, 2, MORE, count) break; \
        case 3: TILES(CASE, 3, MORE, count) break; \
        case 4: TILES(CASE, 4, ROWS, count) break; \
    }
#else
#define PANELS(CASE, count) \
    switch (vectors) { \
        case 1: TILES(CASE, 1, MORE, count) break; \
        case 2: TILES(CASE, 2, ROWS, count) break; \
    }
#endif

FUNCTION void NAME(product)(const Product *p) {
    const int32_t *from_row = p->from_row, *to_row = p->to_row;
    for (int64_t column = 0; column < p->outputs; column += PANEL) {
        const float *weight = p->weight + column * p->inputs;
        int64_t left = (p->outputs - column) / LANES, vectors = left < VECTORS ? left : VECTORS;
        PANELS(CASE, p->rows)
    }
}

FUNCTION void NAME(outer)(const Product *p) {
    const int32_t *from_row = p->from_row, *to_row = p->to_row;
    for (int64_t column = 0; column < p->outputs; column += PANEL) {
        float *gradient = p->gradient + column * p->inputs;
        int64_t left = (p->outputs - column) / LANES, vectors = left < VECTORS ? left : VECTORS;
        PANELS(OUTER_CASE, p->inputs)
    }
}

/* Between a matrix of torch and its panels; `down` and `right` are the steps of the former. */
FUNCTION void NAME(pack)(float *to, const float *from, int64_t inputs, int64_t outputs, int64_t down,
                         int64_t right) {
    int64_t width = NAME(padded)(outputs);
    for (int64_t column = 0; column < width; column += PANEL) {
        int64_t panel = width - column < PANEL ? width - column : PANEL;
        for (int64_t k = 0; k < inputs; k++)
            for (int64_t j = 0; j < panel; j++)
                *to++ = column + j < outputs ? from[k * down + (column + j) * right] : 0;
    }
}

FUNCTION void NAME(unpack)(float *to, const float *from, int64_t inputs, int64_t outputs, int64_t down) {
    int64_t width = NAME(padded)(outputs);
    for (int64_t column = 0; column < width; column += PANEL) {
        int64_t panel = width - column < PANEL ? width - column : PANEL;
        for (int64_t k = 0; k < inputs; k++, from += panel)
            for (int64_t j = 0; j < panel && column + j < outputs; j++)
                to[k * down + column + j] = from[j];
    }
}

INLINE void NAME(add)(float *to, const float *from, int64_t width) {
    for (int64_t j = 0; j < width; j += LANES)
        NAME(store)(to + j, NAME(load)(to + j) + NAME(load)(from + j));
}

/* The gradient before a ReLU, from that behind it. */
INLINE void NAME(relu_backward)(float *to, const float *gradient, const float *activation,
                                int64_t count) {
    for (int64_t j = 0; j < count; j += LANES) {
        Mask off = NAME(load)(activation + j) <= (Vector){0};
        NAME(store)(to + j, (Vector)((Mask)NAME(load)(gradient + j) & ~off));
    }
}

FUNCTION void NAME(sum_rows)(float *to, const float *from, int64_t rows, int64_t width) {
    for (int64_t row = 0; row < rows; row++)
        NAME(add)(to, from + row * width, width);
}
