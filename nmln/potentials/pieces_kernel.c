/* The pieces of worlds' graphs, as pieces.py counts them: a forest of nodes in which every link joins two trees. */

#include <stdint.h>

/* Filled in by compiled.py: the two nodes of each link, its group, and the category that says none. */
typedef struct {
    int64_t worlds, groups, nodes, links;
    const int64_t *one, *other, *group, *null;
} Graph;

static int64_t root(int64_t *parent, int64_t node) {
    while (parent[node] != node) node = parent[node] = parent[parent[node]];
    return node;
}

/* `parent` has room for every node. */
void nmln_pieces(const Graph *graph, const int32_t *values, int64_t *pieces, int64_t *parent) {
    for (int64_t number = 0; number < graph->worlds; number++) {
        const int32_t *world = values + number * graph->groups;
        int64_t left = graph->nodes;
        for (int64_t node = 0; node < graph->nodes; node++) parent[node] = node;
        for (int64_t link = 0; link < graph->links; link++) {
            if (world[graph->group[link]] == graph->null[link]) continue;
            int64_t one = root(parent, graph->one[link]), other = root(parent, graph->other[link]);
            if (one == other) continue;
            parent[one] = other;
            left--;
        }
        pieces[number] = left;
    }
}
