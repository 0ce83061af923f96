#include "chain_calls.h"

#include "interface.h"

/* What differs from version to version. All begin with name, init and get_coll_info. */
struct adapter {
    int (*init)(struct next_tuner *next, const struct opening *opening);
    int (*decide)(const struct next_tuner *next, const struct call *call, struct cost_cells cells, int *channels);
    int (*choose)(const struct next_tuner *next, const struct call *call, int *algorithm, int *protocol, int *channels);
    int (*close)(const struct next_tuner *next);
};

static bool has(struct cost_cells cells, int algorithm, int protocol) {
    return algorithm >= 0 && algorithm < cells.algorithms && protocol >= 0 && protocol < cells.protocols &&
           cells.us[algorithm * cells.protocols + protocol] != IGNORED_US;
}

/* Version 1: 2.19 and 2.20 */

static int init_v1(struct next_tuner *next, const struct opening *opening) {
    const struct plugin_v1 *plugin = next->plugin;
    return plugin->init(opening->shape.ranks, opening->shape.nodes, opening->logger);
}

static int choose_v1(const struct next_tuner *next, const struct call *call, int *algorithm, int *protocol,
                     int *channels) {
    const struct plugin_v1 *plugin = next->plugin;
    return plugin->get_coll_info(call->collective, call->bytes, call->collnet, call->nvls, call->pipelined, algorithm,
                                 protocol, channels);
}

static int close_v1(const struct next_tuner *next) {
    const struct plugin_v1 *plugin = next->plugin;
    return plugin->destroy ? plugin->destroy() : RESULT_SUCCESS;
}

/* Version 2: 2.21 */

static int init_v2(struct next_tuner *next, const struct opening *opening) {
    const struct plugin_v2 *plugin = next->plugin;
    return plugin->init(opening->shape.ranks, opening->shape.nodes, opening->logger, &next->context);
}

static int choose_v2(const struct next_tuner *next, const struct call *call, int *algorithm, int *protocol,
                     int *channels) {
    const struct plugin_v2 *plugin = next->plugin;
    return plugin->get_coll_info(next->context, call->collective, call->bytes, call->collnet, call->nvls,
                                 call->pipelined, algorithm, protocol, channels);
}

static int close_v2(const struct next_tuner *next) {
    const struct plugin_v2 *plugin = next->plugin;
    return plugin->destroy ? plugin->destroy(next->context) : RESULT_SUCCESS;
}

/* What the communicator supports is read from the cost table, and the cell that is named costs nothing: as NCCL itself
 * does with a plugin of version 2 (src/plugin/tuner/tuner_v2.cc, v2.28.9-1). */
static int decide_by_name(const struct next_tuner *next, const struct call *call, struct cost_cells cells,
                          int *channels) {
    struct call named = *call;
    named.collnet = has(cells, ALGORITHM_COLLNET_CHAIN, PROTOCOL_SIMPLE);
    named.nvls = has(cells, ALGORITHM_NVLS, PROTOCOL_SIMPLE) || has(cells, ALGORITHM_NVLS_TREE, PROTOCOL_SIMPLE);
    int algorithm = -1, protocol = -1;
    int result = next_choose(next, &named, &algorithm, &protocol, channels);
    if (result == RESULT_SUCCESS && has(cells, algorithm, protocol)) {
        cells.us[algorithm * cells.protocols + protocol] = 0.0f;
    }
    return result;
}

/* Version 3: 2.22 and 2.23. Its init and destroy are those of version 2. */

static int decide_v3(const struct next_tuner *next, const struct call *call, struct cost_cells cells, int *channels) {
    const struct plugin_v3 *plugin = next->plugin;
    return plugin->get_coll_info(next->context, call->collective, call->bytes, call->pipelined, (float **)cells.us,
                                 cells.algorithms, cells.protocols, channels);
}

/* Version 4: 2.24 to 2.27. Its call is that of all later versions. */

static int decide_v4(const struct next_tuner *next, const struct call *call, struct cost_cells cells, int *channels) {
    const struct plugin_v4 *plugin = next->plugin;
    return plugin->get_coll_info(next->context, call->collective, call->bytes, call->pipelined, (float **)cells.us,
                                 cells.algorithms, cells.protocols, call->registered, channels);
}

/* Version 5: 2.28 and 2.29; version 6, of 2.30 and later, begins the same. */

static int init_v5(struct next_tuner *next, const struct opening *opening) {
    const struct plugin_v5 *plugin = next->plugin;
    return plugin->init(&next->context, opening->communicator, opening->shape.ranks, opening->shape.nodes,
                        opening->logger, opening->domains, (struct constants *)opening->constants);
}

static const struct adapter adapters[NEWEST_VERSION + 1] = {
    [1] = {init_v1, decide_by_name, choose_v1, close_v1}, [2] = {init_v2, decide_by_name, choose_v2, close_v2},
    [3] = {init_v2, decide_v3, NULL, close_v2},           [4] = {init_v2, decide_v4, NULL, close_v2},
    [5] = {init_v5, decide_v4, NULL, close_v2},           [6] = {init_v5, decide_v4, NULL, close_v2},
};

_Static_assert(offsetof(struct plugin_v2, init) == offsetof(struct plugin_v4, init), "read as version 2");
_Static_assert(offsetof(struct plugin_v2, destroy) == offsetof(struct plugin_v4, destroy), "read as version 2");
_Static_assert(offsetof(struct plugin_v2, destroy) == offsetof(struct plugin_v5, finalize), "read as version 2");
_Static_assert(offsetof(struct plugin_v4, get_coll_info) == offsetof(struct plugin_v5, get_coll_info),
               "read as version 4");

bool next_is_whole(const struct next_tuner *next) {
    const struct plugin_v4 *plugin = next->plugin;
    return plugin->init && plugin->get_coll_info;
}

const char *next_name(const struct next_tuner *next) {
    const struct plugin_v4 *plugin = next->plugin;
    return plugin->name ? plugin->name : "";
}

int next_init(struct next_tuner *next, const struct opening *opening) {
    return adapters[next->version].init(next, opening);
}

int next_close(const struct next_tuner *next) {
    return adapters[next->version].close(next);
}

int next_decide(const struct next_tuner *next, const struct call *call, struct cost_cells cells, int *channels) {
    return adapters[next->version].decide(next, call, cells, channels);
}

int next_choose(const struct next_tuner *next, const struct call *call, int *algorithm, int *protocol, int *channels) {
    return adapters[next->version].choose(next, call, algorithm, protocol, channels);
}

bool next_sets_chunks(const struct next_tuner *next) {
    return next->version >= 6 && ((const struct plugin_v6 *)next->plugin)->get_chunk_size;
}

int next_chunk(const struct next_tuner *next, const struct chunk_call *call, size_t *chunk_bytes) {
    const struct plugin_v6 *plugin = next->plugin;
    if (!next_sets_chunks(next)) {
        return RESULT_SUCCESS;
    }
    return plugin->get_chunk_size(next->context, call->collective, call->bytes, call->algorithm, call->protocol,
                                  call->channels, chunk_bytes);
}
