/* The rules of docs/decision-table.md once more, the straightforward way, row by row. */
#ifndef CHECK_SCAN_H
#define CHECK_SCAN_H

#include "../abi.h"
#include "../table.h"

/* The choices of the first row that matches, or the one that is NCCL's own. */
const struct choice *scan_rows(const struct table *table, const struct shape *shape, const struct call *call);

/* What the table decides: the first choice that NCCL could take, of the first row that matches, or of the first that
 * has one where rows fall through; or NULL. `hands_cells`: the cells are NCCL's own times, where it may hold Ring back. */
const struct choice *scan_decisions(const struct table *table, const struct shape *shape, const struct call *call,
                                    const float *given, int algorithms, int protocols, bool hands_cells,
                                    uint32_t *line);

/* `hands_cells`: the cells are NCCL's own times. */
void scan_costs(const struct table *table, const struct shape *shape, const struct call *call, struct cost_cells cells,
                bool hands_cells);

/* Those that the plugin passes on to NCCL. */
int kept_channels(const struct choice *choice, const struct shape *shape);

#endif
