/* The graph of a world's links: its pieces, as pieces.py counts them, and its rings, as rings.py does. */

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

/* How many pieces every world has: each link between two trees joins them. `parent` has room for every node. */
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

/* The number of links of the shortest way from one node to another without the link between them, 0 if there is
   none. `seen` and `queue` have room for every node. */
static int64_t way_round(int64_t from, int64_t to, int64_t nodes, const int64_t *degree, const int64_t *near,
                         int64_t *seen, int64_t *queue) {
    for (int64_t node = 0; node < nodes; node++) seen[node] = -1;
    int64_t first = 0, last = 1;
    queue[0] = from;
    seen[from] = 0;
    while (first < last) {
        int64_t node = queue[first++];
        for (int64_t i = 0; i < degree[node]; i++) {
            int64_t next = near[node * nodes + i];
            if (seen[next] >= 0 || (node == from && next == to)) continue;
            seen[next] = seen[node] + 1;
            if (next == to) return seen[next];
            queue[last++] = next;
        }
    }
    return 0;
}

/* For every node the smallest ring that it lies on, 0 if none, then how many of its links lie on rings. `scratch`
   has room for nodes * (nodes + 3) numbers. */
void nmln_rings(const Graph *graph, const int32_t *values, int32_t *rings, int64_t *scratch) {
    int64_t nodes = graph->nodes;
    int64_t *degree = scratch, *seen = degree + nodes, *queue = seen + nodes, *near = queue + nodes;
    for (int64_t number = 0; number < graph->worlds; number++, rings += 2 * nodes) {
        const int32_t *world = values + number * graph->groups;
        for (int64_t node = 0; node < nodes; node++) degree[node] = 0;
        for (int64_t place = 0; place < 2 * nodes; place++) rings[place] = 0;
        for (int64_t link = 0; link < graph->links; link++) {
            int64_t one = graph->one[link], other = graph->other[link];
            if (world[graph->group[link]] == graph->null[link] || one == other) continue;
            int64_t known = 0; /* two attributes may link the same nodes */
            for (int64_t i = 0; i < degree[one]; i++) known |= near[one * nodes + i] == other;
            if (known) continue;
            near[one * nodes + degree[one]++] = other;
            near[other * nodes + degree[other]++] = one;
        }
        for (int64_t one = 0; one < nodes; one++) {
            for (int64_t i = 0; i < degree[one]; i++) {
                int64_t other = near[one * nodes + i];
                if (other < one || degree[one] < 2 || degree[other] < 2) continue;
                int64_t size = way_round(one, other, nodes, degree, near, seen, queue) + 1;
                if (size == 1) continue;
                int64_t ends[2] = {one, other};
                for (int64_t end = 0; end < 2; end++) {
                    int32_t *smallest = rings + ends[end];
                    if (!*smallest || size < *smallest) *smallest = (int32_t)size;
                    rings[nodes + ends[end]]++;
                }
            }
        }
    }
}
